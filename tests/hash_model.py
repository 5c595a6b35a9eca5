"""Draws by hashes, as `engine/hashing.py` describes them."""

from __future__ import annotations


def uniform(a: int, b: int, c: int) -> float:
    """The engine's counter hash, on Python's unbounded integers."""
    h = 0
    for number in (a, b, c):
        for word in (number % 2**32, number // 2**32 % 2**32):
            h = ((h ^ word) + 0x9E3779B9) % 2**32
            h = (h ^ h >> 16) * 0x21F0AAAD % 2**32
            h = (h ^ h >> 15) * 0x735A2D97 % 2**32
            h ^= h >> 15
    return h / 2**32
