"""Random numbers by counting: the n-th draw of a request is a hash, so no generator has a state.

A kernel must be a pure function, and what a request meets must not follow from the order in which
cells run. So a mechanism that draws inside the engine asks for

    uniform(seed + PURPOSE, key, count) in [0, 1),

seed being the row's (0 <= seed < 2^32), `PURPOSE` a multiple of 2^32 that no other mechanism has,
`key` the request's and `count` the number of the draw. The arguments' six 32-bit words are absorbed
one by one: h <- mix((h ^ word) + WEYL), where `mix` is an invertible xor-shift-multiply hash of 32
bits that changes about half of its output with any bit of its input. 32 bits are enough for a
choice between events; draws of one request are independent of one another and of other requests'.
The shifts and multipliers are those that the public search `hash-prospector` found with the least
bias (0.107 of its avalanche measure).

Both multipliers are below 2^31 and words below 2^32, so no product passes 2^63: Python's integers,
numpy's and the compiled ones agree, and nothing wraps.
"""

from __future__ import annotations

from dlb_gym.engine.compile import part

DRAFTS = 1 << 32
"""Purpose: tokens that speculative decoding accepts."""
SAMPLED_ARCS, TABLE_ENTRY = 1 << 42, 1 << 43
"""Purposes: arcs that `drill` looks at; entries of a session's table. Keys are drawn already."""

_WORD = 0xFFFFFFFF
_WEYL = 0x9E3779B9  # 2^32 / golden ratio
_FIRST, _SECOND = 0x21F0AAAD, 0x735A2D97


@part
def _absorb(h: int, word: int) -> int:
    """A hash of 32 bits and a word of 32 bits."""
    x = ((h ^ word) + _WEYL) & _WORD
    x = ((x ^ (x >> 16)) * _FIRST) & _WORD
    x = ((x ^ (x >> 15)) * _SECOND) & _WORD
    return x ^ (x >> 15)


@part
def uniform(a: int, b: int, c: int) -> float:
    """A number in [0, 1), a multiple of 2^-32, that looks random in each of three integers.

    Args:
        a: int64, as are the others: seed and purpose.
        b: Key of a request, say.
        c: Number of the draw.
    """
    h = _absorb(0, a & _WORD)
    h = _absorb(h, (a >> 32) & _WORD)
    h = _absorb(h, b & _WORD)
    h = _absorb(h, (b >> 32) & _WORD)
    h = _absorb(h, c & _WORD)
    h = _absorb(h, (c >> 32) & _WORD)
    return h / 4294967296.0
