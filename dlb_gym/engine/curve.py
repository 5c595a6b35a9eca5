"""The latency and marginal latency of `latency_model.py`, stated again for one arc at a time.

A test holds both equal. With u = (n - n0) / s and d = e^-|u|:

    l = alpha + beta s (log1p(d) + max(u, 0))
    H = alpha - beta n0 sigma(u) + beta s (log1p(d) + |u| d / (1 + d)),   f = l^2 / H
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part


@part
def latencies(
    n: float, alpha: float, beta: float, knee: float, smoothing: float
) -> tuple[float, float]:
    """Serving latency and marginal latency at n requests per server."""
    u = (n - knee) / smoothing
    size = abs(u)
    decay = math.exp(-size)
    tail = math.log1p(decay)
    major = 1.0 / (1.0 + decay)
    minor = decay * major
    logistic = major if u > 0.0 else minor
    bend = beta * smoothing
    latency = alpha + bend * (tail + max(u, 0.0))
    headroom = alpha - beta * knee * logistic + bend * (tail + size * minor)
    return latency, latency * latency / headroom
