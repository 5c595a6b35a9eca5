"""Routing matrices of actions, row by row: masked weights or masked exponentials, normalised."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine.compile import entry
from dlb_gym.engine.layout import NONE, FloatArray


@entry
def route(
    action: FloatArray,
    low: float,
    scale: float,
    admissible: NDArray[np.bool_],
    routing: FloatArray,
) -> int:
    """Fills a routing matrix.

    Args:
        action: (n, R, C); clipped to [low, 1].
        low: Lower bound.
        scale: 0: the entries are weights; else e^(scale x entry) are.
        admissible: (n, R, C) arcs. A row whose weights are all zero splits evenly over them.
        routing: (n, R, C), written.

    Returns:
        Flat index of an entry that is not finite, or -1.
    """
    replications, roots, cells = admissible.shape
    for r in range(replications):
        for i in range(roots):
            total = 0.0
            arcs = 0
            for j in range(cells):
                value = action[r, i, j]
                if not math.isfinite(value):
                    return int((r * roots + i) * cells + j)
                weight = 0.0
                if admissible[r, i, j]:
                    arcs += 1
                    weight = min(max(value, low), 1.0)
                    if scale > 0.0:
                        weight = math.exp(scale * weight)
                routing[r, i, j] = weight
                total += weight
            for j in range(cells):
                if total > 0.0:
                    routing[r, i, j] /= total
                elif admissible[r, i, j]:
                    routing[r, i, j] = 1.0 / arcs
    return NONE
