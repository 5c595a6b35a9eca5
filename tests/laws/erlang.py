"""Erlang's formulas: the probability of loss in M/G/c/c and of waiting in M/M/c."""

from __future__ import annotations


def erlang_b(servers: int, load: float) -> float:
    """Loss probability of M/G/c/c: the usual recursion B(k) = a B(k-1) / (k + a B(k-1))."""
    blocked = 1.0
    for k in range(1, servers + 1):
        blocked = load * blocked / (k + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Probability of waiting in M/M/c."""
    blocked = erlang_b(servers, load)
    return blocked / (1.0 - load / servers * (1.0 - blocked))
