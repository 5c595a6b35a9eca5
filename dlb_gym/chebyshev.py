"""Polynomials through Chebyshev's extreme points: values elsewhere, integrals, derivatives.

All are matrices that act on the values at the nodes (barycentric formula; Berrut and Trefethen
2004).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def interpolation(nodes: Array, points: Array) -> Array:
    """Values at the nodes -> the polynomial's at the points, (points, nodes)."""
    gaps = points[:, None] - nodes
    hit = gaps == 0.0
    shares = _barycentric(nodes) / np.where(hit, 1.0, gaps)
    shares /= shares.sum(axis=1, keepdims=True)
    return np.where(hit.any(axis=1, keepdims=True), hit, shares)


def integration(nodes: Array, spans: Array) -> Array:
    """Values at the nodes -> the polynomial's integrals over [-span, 0], (spans, nodes)."""
    places, weights = np.polynomial.legendre.leggauss(len(nodes) // 2 + 1)
    points = 0.5 * spans[:, None] * (places - 1.0)
    values = interpolation(nodes, points.ravel()).reshape(*points.shape, len(nodes))
    integrals: Array = 0.5 * spans[:, None] * np.einsum("q,sqk->sk", weights, values)
    return integrals


def differentiation(nodes: Array) -> Array:
    """Values at the nodes -> the polynomial's derivatives there; constants have none, exactly."""
    weights = _barycentric(nodes)
    gaps = nodes[:, None] - nodes + np.eye(len(nodes))
    slopes = weights / weights[:, None] / gaps * (1.0 - np.eye(len(nodes)))
    derivative: Array = slopes - np.diag(slopes.sum(axis=1))
    return derivative


def _barycentric(nodes: Array) -> Array:
    """Weights of Chebyshev's extreme points."""
    weights = np.resize([1.0, -1.0], len(nodes))
    weights[[0, -1]] *= 0.5
    return weights
