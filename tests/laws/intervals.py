"""99.9 % intervals from independent replications.

Rows of a batch are independent and equally distributed, so the mean of one number a row lies
within  t(0.9995; n - 1) s / sqrt(n)  of its expectation in 99.9 % of all cases (Student). Every
interval must also be narrow enough (`resolution`, relative to what is expected): a test whose
interval holds everything proves nothing.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.999
Numbers = NDArray[np.float64] | NDArray[np.int64]


def half_width(samples: Numbers) -> float:
    """Of the 99.9 % interval of the mean of independent samples."""
    n = len(samples)
    t = float(stats.t.ppf(0.5 + LEVEL / 2.0, n - 1))
    return t * float(np.std(samples, ddof=1)) / math.sqrt(n)


def assert_mean(samples: Numbers, expected: float, resolution: float, bias: float = 0.0) -> None:
    """The samples' expectation is `expected`, up to a known bound on a bias.

    Args:
        samples: One a row.
        expected: What theory says.
        resolution: The interval must be narrower than this part of `expected`.
        bias: Absolute difference from theory that a finite system may have.
    """
    half = half_width(samples)
    mean = float(np.mean(samples))
    assert half <= resolution * abs(expected), f"interval of {half:.3g} around {mean:.6g}"
    exact = 1e-9 * abs(expected)  # where nothing is random, sums still round
    assert abs(mean - expected) <= half + bias + exact, (
        f"{mean:.6g} +- {half:.3g}, not {expected:.6g}"
    )


def assert_ratio(
    totals: Numbers, counts: Numbers, expected: float, resolution: float, bias: float = 0.0
) -> None:
    """A mean per request is `expected`: E[total - expected count] = 0 in every row.

    Exact where a row's count is random too, as the mean of the rows' quotients would not be, and
    narrower than the interval of the totals, which vary with the counts.
    """
    mean_count = float(np.mean(counts))
    residuals = (np.asarray(totals) - expected * np.asarray(counts)) / mean_count
    assert_mean(residuals + expected, expected, resolution, bias)


def assert_counts(counts: NDArray[np.int64], expected: NDArray[np.float64]) -> None:
    """Chi-square of independent Poisson counts of known means: neither too far nor too close."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    low, high = stats.chi2.interval(LEVEL, counts.size)
    assert low < statistic < high


def assert_uncorrelated(a: NDArray[np.float64], b: NDArray[np.float64]) -> None:
    """Of standardised samples: their products' sum over sqrt(n) is normal for large n."""
    z = float((a * b).sum()) / math.sqrt(a.size)
    assert abs(z) < stats.norm.ppf(0.5 + LEVEL / 2.0)
