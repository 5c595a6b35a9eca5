"""What changes in scenarios while the fluid flows: rates, cells and arcs, from their seeds.

Rates are the workload's: demand profiles and bursts, averaged over every step, so no request is
lost between steps. Cells follow `disturbances.resolve` at the nearest step: an outage takes servers
away at once (in the engine they finish what they have), a crash also their share of the requests in
flight, a slow cell's servers work at a part of their speed, a black hole fails a share of what
arrives. A latency shift makes what departs in it travel longer; what would travel through a
partition is lost, requests and reports (answers are not followed).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.demand_profile import RelativeRate, relative_rates
from dlb_gym.disturbances import Change, Disturbances, Window, resolve
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError

Array = NDArray[np.float64]

UNFOLLOWED = ("leaf_crash", "root_crash")
"""Disturbances of replicas: a fluid has none."""


class CellChange(NamedTuple):
    """What holds in a cell from `time_s` on.

    Attributes:
        time_s: Clock time.
        row: Of the batch.
        cell: Number.
        servers: Live ones.
        speed: Factor on their speed.
        passing: Share of what arrives that does not fail at once.
        kept: Share of the requests in flight that survives the change.
    """

    time_s: float
    row: int
    cell: int
    servers: float
    speed: float
    passing: float
    kept: float


class Spans(NamedTuple):
    """Spans of departure times of every arc, (rows, roots, cells, spans), empty ones at the end.

    Attributes:
        start_s: First departure.
        end_s: After the last.
        extra_s: Added to the delay; infinite where what departs is lost.
    """

    start_s: Array
    end_s: Array
    extra_s: Array

    @property
    def longest_extra_s(self) -> float:
        """Most that a message may be late, or a report older because the ones after it are lost."""
        cut = np.isinf(self.extra_s)
        late_s = np.where(cut, 0.0, self.extra_s).sum(axis=-1)
        silent_s = (np.where(cut, self.end_s, 0.0) - np.where(cut, self.start_s, 0.0)).sum(axis=-1)
        return float((late_s + silent_s).max())


class Schedule:
    """The changes of a batch of scenarios.

    Args:
        scenarios: One a row.
        shape: (rows, roots, cells) of the batch, padded.
        delay_s: Of the arcs without disturbances, of that shape.
        seed: Of row 0; row r has seed + r, as in the environment.
        episode: Number of the episode.

    Attributes:
        changes: Of cells, by time.
        spans: Of arcs; None where no arc ever changes.

    Raises:
        ScenarioError: A scenario has what the fluid does not follow, or cannot be brought about.
    """

    def __init__(
        self,
        scenarios: Sequence[Scenario],
        shape: tuple[int, int, int],
        delay_s: Array,
        seed: int,
        episode: int,
    ) -> None:
        for scenario in scenarios:
            _require_followed(scenario)
        resolved = [resolve(each, seed + row, episode) for row, each in enumerate(scenarios)]
        self.changes = tuple(
            sorted(
                change
                for row, (scenario, each) in enumerate(zip(scenarios, resolved, strict=True))
                for change in _changes(row, scenario, each)
            )
        )
        self.spans = _spans(resolved, shape, delay_s)
        self._shape = shape
        self._profiles = [relative_rates(scenario) for scenario in scenarios]
        self._bursts = [each.bursts for each in resolved]
        self.steady_rates = all(
            scenario.demand.profile == type(scenario.demand.profile)() for scenario in scenarios
        ) and not any(self._bursts)

    @property
    def is_still(self) -> bool:
        """Whether nothing changes at all."""
        return self.steady_rates and not self.changes and self.spans is None

    def mean_rates(self, edges_s: Array) -> tuple[Array, Array]:
        """Each root's rate between edges, over its mean rate; and what bursts add, 1/s.

        Returns:
            Two arrays (edges - 1, rows, roots).
        """
        rows, roots, _ = self._shape
        relative, extra = (np.zeros((len(edges_s) - 1, rows, roots)) for _ in range(2))
        for row, profiles in enumerate(self._profiles):
            for root, profile in enumerate(profiles):
                relative[:, row, root] = _increments_s(profile, edges_s)
            for burst in self._bursts[row]:
                within_s = np.clip(edges_s, burst.start_s, burst.end_s)
                extra[:, row, burst.root] += burst.extra_rps * np.diff(within_s)
        span_s = np.diff(edges_s)[:, None, None]
        return relative / span_s, extra / span_s


def _require_followed(scenario: Scenario) -> None:
    demand = scenario.demand
    for key, value in (
        ("demand.trace", demand.trace),
        ("demand.sessions", demand.sessions),
        ("autoscaler", scenario.autoscaler),
    ):
        if value is not None:
            raise ScenarioError(
                f"{key} is given, and the fluid model does not follow it; leave it out, or measure "
                "with the environment"
            )
    for index, disturbance in enumerate(scenario.disturbances):
        if disturbance.kind in UNFOLLOWED:
            raise ScenarioError(
                f"disturbances.{index}.kind = {disturbance.kind!r} concerns replicas, which the "
                "fluid model does not have; leave it out, or measure with the environment"
            )


def _increments_s(profile: RelativeRate, edges_s: Array) -> Array:
    """Integral of the relative rate between edges."""
    grid_s, integral_s = profile.cumulative(float(edges_s[0]), float(edges_s[-1]))
    return np.diff(np.interp(edges_s, grid_s, integral_s))


def _changes(row: int, scenario: Scenario, disturbances: Disturbances) -> list[CellChange]:
    """Of one row."""
    changes = []
    for cell, schedule in enumerate(disturbances.changes):
        before = Change(0.0, scenario.cells[cell].servers)
        for now in schedule:
            if now != before:
                kept = min(1.0, now.live / before.live) if now.crash else 1.0
                passing = 1.0 - now.error_fraction
                changes.append(
                    CellChange(now.time_s, row, cell, now.live, now.speed, passing, kept)
                )
            before = now
    return changes


def _spans(
    resolved: Sequence[Disturbances], shape: tuple[int, int, int], delay_s: Array
) -> Spans | None:
    arcs: dict[tuple[int, int, int], list[tuple[float, float, float]]] = {}
    for row, disturbances in enumerate(resolved):
        for window in disturbances.windows:
            arc = (row, window.root, window.cell)
            if not np.isnan(delay_s[arc]):
                arcs.setdefault(arc, []).append(_departures(window, delay_s[arc]))
    if not arcs:
        return None
    pieces = {arc: _pieces(windows) for arc, windows in arcs.items()}
    most = max(len(each) for each in pieces.values())
    start_s, end_s, extra_s = (np.zeros((*shape, most)) for _ in range(3))
    start_s[..., 0], end_s[..., 0] = -math.inf, math.inf
    start_s[..., 1:] = end_s[..., 1:] = math.inf
    for arc, each in pieces.items():
        for number, (start, end, extra) in enumerate(each):
            start_s[arc][number], end_s[arc][number], extra_s[arc][number] = start, end, extra
    return Spans(start_s, end_s, extra_s)


def _departures(window: Window, delay_s: float) -> tuple[float, float, float]:
    """Departures that a window concerns: a cut also takes what is on its way when it begins."""
    cut = math.isinf(window.extra_s)
    return window.start_s - (delay_s if cut else 0.0), window.end_s, window.extra_s


def _pieces(windows: list[tuple[float, float, float]]) -> list[tuple[float, float, float]]:
    """The time line cut where a window begins or ends; extras of overlapping windows add up."""
    cuts = sorted({-math.inf, math.inf}.union(*((start, end) for start, end, _ in windows)))
    return [
        (begin, finish, sum(extra for start, end, extra in windows if start <= begin < end))
        for begin, finish in pairwise(cuts)
    ]
