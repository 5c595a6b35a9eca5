"""Demand profiles: their integrals against closed forms and quadrature."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad

from dlb_gym.demand_profile import RelativeRate
from dlb_gym.scenario import DemandProfile

DAY_S = 86_400.0


def integral_s(profile: DemandProfile, start_s: float, end_s: float, offset_h: float = 0) -> float:
    return float(RelativeRate(profile, offset_h).cumulative(start_s, end_s)[1][-1])


def test_a_flat_profile_is_its_mean() -> None:
    grid_s, cumulative_s = RelativeRate(DemandProfile(), 3.0).cumulative(20.0, 30.0)
    assert grid_s.tolist() == [20.0, 30.0]
    assert cumulative_s.tolist() == [0.0, 10.0]


@pytest.mark.parametrize(
    ("profile", "period_s"),
    [
        (DemandProfile(diurnal_amplitude=1.0), DAY_S),
        (DemandProfile(weekend_factor=0.3), 7 * DAY_S),
        (DemandProfile(weekend_factor=0.0, diurnal_amplitude=0.7), 7 * DAY_S),
        (DemandProfile(synchronised_fraction=0.4), 60.0),
        (DemandProfile(synchronised_fraction=1.0, synchronised_width_s=7.0), 60.0),
        (DemandProfile(synchronised_fraction=0.5, diurnal_amplitude=0.8), DAY_S),
    ],
)
def test_the_mean_of_a_profile_over_its_period_is_one(
    profile: DemandProfile, period_s: float
) -> None:
    edges_s = [13.0 + k * period_s / 8 for k in range(9)]
    chunks = [integral_s(profile, a, b, 2.5) for a, b in itertools.pairwise(edges_s)]
    assert math.fsum(chunks) == pytest.approx(period_s, rel=1e-10)


def test_a_daily_profile_integrates_a_cosine_around_its_local_peak() -> None:
    profile = DemandProfile(diurnal_amplitude=0.6, peak_hour=14.0, start_hour_utc=6.0)
    # At UTC+3 the peak of 14 o'clock comes 5 hours after 6 UTC; a quarter day around it holds
    # 1/4 + amplitude sin(pi / 4) / pi of a day's demand.
    peak_s = 5 * 3_600.0
    around = integral_s(profile, peak_s - DAY_S / 8, peak_s + DAY_S / 8, 3.0)
    assert around == pytest.approx(DAY_S * (0.25 + 0.6 * math.sin(math.pi / 4) / math.pi))


def test_a_short_day_keeps_its_hours() -> None:
    profile = DemandProfile(diurnal_amplitude=0.6, start_hour_utc=6.0, day_s=240.0)
    around = integral_s(profile, 50.0 - 30.0, 50.0 + 30.0, 3.0)
    assert around == pytest.approx(240.0 * (0.25 + 0.6 * math.sin(math.pi / 4) / math.pi))


def test_a_weekend_takes_its_share_of_the_week_and_starts_at_local_midnight() -> None:
    profile = DemandProfile(weekend_factor=0.5, start_hour_utc=119.0)  # Friday, 23 o'clock UTC
    factor = 7 / 6
    assert integral_s(profile, 0.0, 7_200.0) == pytest.approx(3_600 * factor * (1 + 0.5))
    assert integral_s(profile, 0.0, 7_200.0, offset_h=1.0) == pytest.approx(7_200 * factor * 0.5)
    assert integral_s(profile, 0.0, 7_200.0, offset_h=-1.0) == pytest.approx(7_200 * factor)


def test_a_synchronised_start_holds_its_fraction_of_the_requests() -> None:
    profile = DemandProfile(
        synchronised_fraction=0.3, synchronised_period_s=20.0, synchronised_width_s=0.5
    )
    pulse = 20.0 * 0.3 + 0.7 * 0.5
    assert integral_s(profile, 40.0, 40.5) == pytest.approx(pulse)
    assert integral_s(profile, 40.5, 60.0) == pytest.approx(20.0 - pulse)
    assert integral_s(profile, 40.25, 40.5) == pytest.approx(pulse / 2)


def test_a_synchronised_start_follows_the_clock_of_utc() -> None:
    profile = DemandProfile(
        synchronised_fraction=1.0, synchronised_width_s=1.0, start_hour_utc=45.0 / 3_600
    )
    assert integral_s(profile, 0.0, 15.0) == pytest.approx(0.0, abs=1e-9)
    assert integral_s(profile, 15.0, 16.0, offset_h=5.5) == pytest.approx(60.0)


def test_a_mixed_profile_integrates_like_quadrature() -> None:
    profile = DemandProfile(
        diurnal_amplitude=0.9,
        weekend_factor=0.4,
        day_s=30.0,
        start_hour_utc=110.0,
        synchronised_fraction=0.25,
        synchronised_period_s=5.0,
        synchronised_width_s=1.0,
    )
    start_s = 110.0 / 24 * 30

    def rate(clock_s: float) -> float:
        day = (start_s + clock_s + 2.0 / 24 * 30) / 30
        daily = 1 + 0.9 * math.cos(2 * math.pi * (day - 14 / 24))
        weekly = (0.4 if day % 7 >= 5 else 1.0) / ((5 + 2 * 0.4) / 7)
        pulse = 0.75 + (0.25 * 5 if (start_s + clock_s) % 5 < 1 else 0.0)
        return daily * weekly * pulse

    grid_s, cumulative_s = RelativeRate(profile, 2.0).cumulative(0.0, 20.0)
    assert np.all(np.diff(grid_s) > 0)
    assert np.all(np.diff(cumulative_s) >= 0)
    pulse_edges_s = [(5 * k + width - start_s) % 20 for k in range(4) for width in (0, 1)]
    saturday_s = 150 - 2.5 - start_s
    steps_s = sorted({*pulse_edges_s, saturday_s})
    expected = quad(rate, 0.0, 20.0, points=steps_s, limit=200)[0]
    assert cumulative_s[-1] == pytest.approx(expected, rel=1e-9)
    # A piece is a 288th of a day: the mean rate over it is close to the rate in its middle.
    middle_s = 0.5 * (grid_s[1:] + grid_s[:-1])
    rates = np.diff(cumulative_s) / np.diff(grid_s)
    assert rates == pytest.approx([rate(t) for t in middle_s], rel=1e-3, abs=1e-3)
