"""Arrival times of a Poisson process whose rate varies.

With Lambda the integral of the rate from the start of a span, the number of arrivals within it is
Poisson(Lambda(end)), and given that number they are Lambda^-1(U Lambda(end)) of sorted uniforms U.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def arrival_times_s(
    rng: np.random.Generator, grid_s: NDArray[np.float64], expected: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Arrivals on [grid_s[0], grid_s[-1]), ascending, shape (arrivals,).

    Args:
        rng: Their stream.
        grid_s: Times, ascending, shape (points,).
        expected: Expected arrivals from the first grid point to each, shape (points,).
    """
    total = float(expected[-1])
    arrival_s = rng.random(int(rng.poisson(total)))
    arrival_s.sort()
    if grid_s.size == 2:  # a constant rate, by far the most frequent: no need to search the grid
        arrival_s *= grid_s[1] - grid_s[0]
        arrival_s += grid_s[0]
    else:
        arrival_s = np.interp(arrival_s * total, expected, grid_s)
    # Rounding may have reached the end, which belongs to the next chunk.
    return np.minimum(arrival_s, math.nextafter(grid_s[-1], -math.inf), out=arrival_s)
