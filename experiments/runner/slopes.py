"""Powers by which something grows or falls, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 2_000
COVERAGE = 0.95


class Slope(NamedTuple):
    """An exponent and its interval."""

    value: float
    low: float
    high: float


def power_of(samples: Mapping[float, NDArray[np.float64]]) -> Slope:
    """The p of mean of samples ~ x^p: least squares of the logarithms, every x alike.

    The interval, at 95 %, is of the quantiles of resampled samples (bootstrap), at every x apart.

    Args:
        samples: Independent and positive, at each x > 0.

    Raises:
        ValueError: There are fewer than two x.
    """
    if len(samples) < 2:
        raise ValueError(f"samples at {len(samples)} x have no slope; give two x or more")
    rng = np.random.default_rng(0)
    means = [
        np.append(each.mean(), rng.choice(each, (RESAMPLES, len(each))).mean(axis=1))
        for each in samples.values()
    ]
    slopes = np.polyfit(np.log(list(samples)), np.log(means), 1)[0]
    low, high = np.quantile(slopes[1:], (0.5 - 0.5 * COVERAGE, 0.5 + 0.5 * COVERAGE))
    return Slope(float(slopes[0]), float(low), float(high))
