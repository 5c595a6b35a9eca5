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

from tests.laws.figures import check

LEVEL = 0.999
Numbers = NDArray[np.float64] | NDArray[np.int64]


def half_width(samples: Numbers) -> float:
    """Of the 99.9 % interval of the mean of independent samples."""
    n = len(samples)
    t = float(stats.t.ppf(0.5 + LEVEL / 2.0, n - 1))
    return t * float(np.std(samples, ddof=1)) / math.sqrt(n)


def assert_mean(
    law: str, case: str, samples: Numbers, expected: float, resolution: float, bias: float = 0.0
) -> None:
    """The samples' expectation is `expected`, up to a known bound on a bias.

    Args:
        law: What is checked, for the table of figures.
        case: With which parameters.
        samples: One a row.
        expected: What theory says.
        resolution: The interval must be narrower than this part of `expected`.
        bias: Absolute difference from theory that a finite system may have.
    """
    half = half_width(samples)
    mean = float(np.mean(samples))
    exact = 1e-9 * abs(expected)  # where nothing is random, sums still round
    allowed = half + bias + exact
    assert half <= resolution * abs(expected), f"interval of {half:.3g} around {mean:.6g}"
    known_bias = f", bias < {100.0 * bias / abs(expected):.2g} %" if bias > 0.0 else ""
    check(
        law,
        case,
        len(samples),
        theory=f"{expected:.4g}",
        measured=f"{mean:.4g} ± {100.0 * half / abs(expected):.2g} %",
        demanded=f"± {100.0 * resolution:g} %{known_bias}",
        distance=abs(mean - expected) / allowed,
    )


def assert_ratio(
    law: str,
    case: str,
    totals: Numbers,
    counts: Numbers,
    expected: float,
    resolution: float,
    bias: float = 0.0,
) -> None:
    """A mean per request is `expected`: E[total - expected count] = 0 in every row.

    Exact where a row's count is random too, as the mean of the rows' quotients would not be, and
    narrower than the interval of the totals, which vary with the counts.
    """
    mean_count = float(np.mean(counts))
    residuals = (np.asarray(totals) - expected * np.asarray(counts)) / mean_count
    assert_mean(law, case, residuals + expected, expected, resolution, bias)


def assert_counts(
    law: str, case: str, counts: NDArray[np.int64], expected: NDArray[np.float64]
) -> None:
    """Chi-square of independent Poisson counts of known means: neither too far nor too close."""
    statistic = float(((counts - expected) ** 2 / expected).sum())
    low, high = (float(limit) for limit in stats.chi2.interval(LEVEL, counts.size))
    side = high if statistic > counts.size else low
    check(
        law,
        case,
        counts.size,
        theory=f"chi-square {counts.size}",
        measured=f"{statistic:.0f}",
        demanded=f"{low:.0f} to {high:.0f}",
        distance=(statistic - counts.size) / (side - counts.size),
    )


def assert_uncorrelated(
    law: str, case: str, a: NDArray[np.float64], b: NDArray[np.float64]
) -> None:
    """Of standardised samples: their products' sum over sqrt(n) is normal for large n."""
    z = float((a * b).sum()) / math.sqrt(a.size)
    limit = float(stats.norm.ppf(0.5 + LEVEL / 2.0))
    check(
        law,
        case,
        a.size,
        theory="z = 0",
        measured=f"z = {z:.2f}",
        demanded=f"-{limit:.2f} to {limit:.2f}",
        distance=abs(z) / limit,
    )


def assert_distribution(law: str, case: str, samples: NDArray[np.float64], name: str) -> None:
    """Kolmogorov and Smirnov against a distribution of scipy's."""
    statistic = float(stats.kstest(samples, name).statistic)
    assert_distance(law, case, samples.size, statistic)


def assert_distance(law: str, case: str, size: int, distance: float) -> None:
    """Kolmogorov's distance of an empirical distribution function; few samples would be few."""
    limit = float(stats.kstwobign.ppf(LEVEL)) / math.sqrt(size)
    check(
        law,
        case,
        size,
        theory="KS",
        measured=f"{distance:.4f}",
        demanded=f"< {limit:.4f}",
        distance=distance / limit,
    )


def assert_identity(law: str, case: str, size: int, difference: float, limit: float = 0.0) -> None:
    """What theory makes equal on every path: counts (differences are 1 or more), or sums."""
    check(
        law,
        case,
        size,
        theory="equal",
        measured=f"{difference:.1g} apart" if difference else "equal",
        demanded=f"{limit:g} apart" if limit else "equal",
        distance=difference / limit if limit > 0.0 else float(difference),
    )
