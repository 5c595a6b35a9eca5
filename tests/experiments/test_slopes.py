"""Exponents with intervals, against exact powers and the variance of least squares."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.runner import power_of

WHERE = (1.0, 4.0, 16.0, 64.0)


def test_an_exact_power_is_found_with_no_width() -> None:
    """3 x^-0.7 without noise."""
    found = power_of({x: np.full(5, 3.0 * x**-0.7) for x in WHERE})
    assert found == pytest.approx((-0.7, -0.7, -0.7), abs=1e-12)


def test_the_interval_is_that_of_least_squares() -> None:
    """Means of n samples, of relative deviation s, have logarithms of deviation s / sqrt(n).

    The slope's deviation is that over the root of the sum of squares of log x about their mean; the
    interval is 2 x 1.96 as wide, and holds the true exponent (seed fixed).
    """
    count, spread = 400, 0.2
    rng = np.random.default_rng(1)
    samples = {x: x**0.5 * (1.0 + spread * rng.standard_normal(count)) for x in WHERE}
    logs = np.log(WHERE)
    deviation = spread / math.sqrt(count * ((logs - logs.mean()) ** 2).sum())
    found = power_of(samples)
    assert found.low < 0.5 < found.high
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(2.0 * 1.96 * deviation, rel=0.15)


def test_one_place_has_no_slope() -> None:
    with pytest.raises(ValueError, match="samples at 1 x have no slope; give two x or more"):
        power_of({2.0: np.ones(3)})
