"""How a root's demand moves around its mean rate, and the integral from which arrivals are drawn.

At clock t, with u = t + start of the week (UTC) and v = u + the root's offset from UTC, both in
seconds of days that last `day_s`, the rate over its mean is

    g(t) = daily(v) * weekly(v) * pulse(u)
    daily(v)  = 1 + amplitude cos(2 pi (v - peak) / day)
    weekly(v) = (1, or weekend_factor on days 6 and 7) * 7 / (5 + 2 weekend_factor)
    pulse(u)  = 1 - f + f P / w  within w after each multiple of P, else 1 - f

Each factor has mean 1 over its own period, and so has the product when a day holds two or more
whole pulse periods. Days 6 and 7 are local; pulses are those of one clock everywhere.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.network import REGIONS
from dlb_gym.scenario import DemandProfile, Scenario

_HOURS = 24.0
_WORKING_DAYS = 5
_PIECES_PER_DAY = 288
"""Within a piece, five minutes of a day, arrivals are uniform; its integral is exact."""


class RelativeRate:
    """The profile g of one root.

    Args:
        profile: The scenario's profile.
        utc_offset_h: Local time minus UTC at the root, hours of a day of 24.
    """

    def __init__(self, profile: DemandProfile, utc_offset_h: float) -> None:
        hour_s = profile.day_s / _HOURS
        self._profile = profile
        self._utc_s = profile.start_hour_utc * hour_s
        self._local_s = self._utc_s + utc_offset_h * hour_s
        self._daily = profile.diurnal_amplitude > 0
        self._weekly = profile.weekend_factor != 1
        self._pulsed = profile.synchronised_fraction > 0
        self._constant = not (self._daily or self._weekly or self._pulsed)

    def cumulative(
        self, start_s: float, end_s: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Integral of g from start_s, on a grid.

        Returns:
            Grid from start_s to end_s, ascending, and the integral up to each of its points in
            seconds; both of shape (points,). Between points the rate counts as constant.
        """
        if self._constant:
            return np.array([start_s, end_s]), np.array([0.0, end_s - start_s])
        grid_s = self._grid(start_s, end_s)
        middle_s = 0.5 * (grid_s[1:] + grid_s[:-1])
        pieces = np.maximum(0.0, self._daily_integral(grid_s)) * self._step_factor(middle_s)
        return grid_s, np.concatenate(([0.0], np.cumsum(pieces)))

    def _grid(self, start_s: float, end_s: float) -> NDArray[np.float64]:
        """Both ends, and between them every step of the rate and a fine enough division."""
        profile = self._profile
        points = [np.array([start_s, end_s])]
        if self._daily:
            points.append(_multiples(profile.day_s / _PIECES_PER_DAY, start_s, end_s))
        if self._weekly:
            points.append(_multiples(profile.day_s, start_s, end_s, -self._local_s))
        if self._pulsed:
            period_s, width_s = profile.synchronised_period_s, profile.synchronised_width_s
            points.append(_multiples(period_s, start_s, end_s, -self._utc_s))
            points.append(_multiples(period_s, start_s, end_s, width_s - self._utc_s))
        return np.unique(np.concatenate(points))

    def _daily_integral(self, grid_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Integral of the daily factor over each piece of the grid, seconds."""
        if not self._daily:
            return np.diff(grid_s)
        day_s = self._profile.day_s
        turn = 2 * math.pi / day_s
        peak_s = self._profile.peak_hour * day_s / _HOURS
        phase = turn * (grid_s + self._local_s - peak_s)
        swing = self._profile.diurnal_amplitude / turn * np.sin(phase)
        return np.diff(grid_s) + np.diff(swing)

    def _step_factor(self, time_s: NDArray[np.float64]) -> NDArray[np.float64]:
        """Weekly times pulse, at times inside pieces on which both are constant."""
        profile = self._profile
        factor: NDArray[np.float64] = np.ones(time_s.size)
        if self._weekly:
            day = np.floor((time_s + self._local_s) / profile.day_s) % 7
            mean = (_WORKING_DAYS + 2 * profile.weekend_factor) / 7
            factor[day >= _WORKING_DAYS] = profile.weekend_factor
            factor *= 1 / mean
        if self._pulsed:
            period_s, width_s = profile.synchronised_period_s, profile.synchronised_width_s
            fraction = profile.synchronised_fraction
            pulse: NDArray[np.float64] = np.full(time_s.size, 1 - fraction)
            pulse[(time_s + self._utc_s) % period_s < width_s] += fraction * period_s / width_s
            factor *= pulse
        return factor


def relative_rates(scenario: Scenario) -> list[RelativeRate]:
    """Of every root.

    Regions without a known time zone pass validation only where none is needed.
    """
    regions = [REGIONS.get(root.region) for root in scenario.roots]
    profile = scenario.demand.profile
    return [RelativeRate(profile, region.utc_offset_h if region else 0.0) for region in regions]


def _multiples(
    step_s: float, start_s: float, end_s: float, origin_s: float = 0.0
) -> NDArray[np.float64]:
    """The points origin + k step strictly between start and end."""
    first = math.floor((start_s - origin_s) / step_s)
    last = math.ceil((end_s - origin_s) / step_s)
    points: NDArray[np.float64] = origin_s + step_s * np.arange(first, last + 1, dtype=np.float64)
    return points[(points > start_s) & (points < end_s)]
