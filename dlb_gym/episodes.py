"""Which scenario an episode plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from dlb_gym.disturbances import resolve
from dlb_gym.generator import FAMILIES, sample
from dlb_gym.mechanism_rows import check_protocol
from dlb_gym.messages import shown
from dlb_gym.rates import one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import (
    ScenarioError,
    ScenarioSource,
    endpoint_name,
    load_endpoints,
    load_scenario,
    override,
    several_endpoints,
)
from dlb_gym.sizes import Axes, axes_of, longest, require_length, require_room
from dlb_gym.trace import describe_trace

DEFAULT_SCENARIO = "global_six"
MAX_REPORTS_UNDER_WAY = 100_000
"""Reports that a cell has sent and its farthest root has not received: the simulator keeps them."""


class EpisodeSource(Protocol):
    """Which scenario an episode of a row plays; `FixedScenarios` or `FamilyScenarios`."""

    max_roots: int
    max_cells: int
    axes: Axes

    def scenario(self, row: int, seed: int, episode: int) -> Scenario:
        """The scenario of an episode."""


class FixedScenarios:
    """Every row its own scenario, the same in all episodes; fewer scenarios than rows repeat.

    Args:
        scenarios: The scenarios, at least one.
        rows: Rows that will play them.

    Attributes:
        scenarios: Those that rows play: row r number r modulo their number.

    Raises:
        ScenarioError: A disturbance cannot be brought about, the protocol does not suit the
            network, or it would take too much memory or time (see `sizes`).
        NetworkError: Round trips cannot be scaled to the mean asked for.
        TraceError: A trace cannot be used.
    """

    def __init__(self, scenarios: Sequence[Scenario], rows: int = 1) -> None:
        self.scenarios = tuple(scenarios)
        axes = [_checked(scenario) for scenario in self.scenarios]
        self.axes = longest(axes)
        require_room(f"scenario {self.scenarios[0].name!r}", self.axes, rows)
        self.max_roots = max(len(scenario.roots) for scenario in self.scenarios)
        self.max_cells = max(len(scenario.cells) for scenario in self.scenarios)

    def scenario(self, row: int, seed: int, episode: int) -> Scenario:
        """Row r plays scenario r mod their number."""
        return self.scenarios[row % len(self.scenarios)]


class FamilyScenarios:
    """Every episode a new scenario of a family, padded to the largest that it can draw.

    Args:
        family: Name of the family.
        changes: What to override in each (see `scenario_source.override`).
        rows: Rows of the batch that plays them.
        trials: So many seeds, from a multiple of it on, share their scenarios.

    Raises:
        ScenarioError: The family is unknown or a change is not valid.
        TraceError: A trace among the changes cannot be used.
    """

    def __init__(
        self,
        family: str,
        changes: Mapping[str, Any] | None = None,
        rows: int = 1,
        trials: int = 1,
    ) -> None:
        self._family, self._changes, self._rows = family, dict(changes or {}), rows
        self._trials = trials
        first = sample(family, 0, 0, self._changes)
        self.axes = _checked(first, rows=rows)
        if first.demand.trace is not None:  # described once: every episode the same content
            self._changes["demand.trace"] = first.demand.trace.model_dump()
        self.max_roots = self.max_cells = FAMILIES[family].max_cells

    def scenario(self, row: int, seed: int, episode: int) -> Scenario:
        """The family's scenario of (seed, episode).

        Raises:
            ScenarioError: This one cannot be played.
        """
        drawn = sample(self._family, seed - seed % self._trials, episode, self._changes)
        _checked(drawn, seed, episode, self._rows)
        return drawn


def episode_source(
    scenario: ScenarioSource | Sequence[ScenarioSource] | None = None,
    family: str | None = None,
    changes: Mapping[str, Any] | None = None,
    trace: str | Path | None = None,
    rtt_csv: str | Path | None = None,
    num_envs: int | None = None,
) -> EpisodeSource:
    """The source that an environment's keywords describe.

    Args:
        scenario: A scenario, one for every row, or one that lists endpoints, which the rows take
            in turn; "global_six" if there is no family.
        family: Name of a scenario family, instead of a scenario.
        changes: Dotted keys and values that override the scenario (see `override`).
        trace: Request trace that replaces the synthetic arrivals (see `describe_trace`).
        rtt_csv: Measured round trips, matched by region (see `load_scenario`).
        num_envs: Rows that will play it; None if that is not known.

    Raises:
        ScenarioError: Both a scenario and a family, measured round trips for a family, more
            scenarios than rows, rows that are no multiple of the endpoints, or anything that makes
            a scenario invalid.
        TraceError: The trace cannot be used.
        NetworkError: The matrix cannot be used.
    """
    if changes is not None and not isinstance(changes, Mapping):
        raise ScenarioError(
            f"changes = {shown(changes)} must map dotted keys to values, as in "
            "{'horizon_s': 30.0}"
        )
    changed = dict(changes or {})
    if trace is not None:
        changed["demand.trace"] = describe_trace(trace).model_dump()
    if family is not None:
        if scenario is not None or rtt_csv is not None:
            raise ScenarioError(
                f"family = {family!r} draws its scenarios and round trips itself; leave out "
                "`scenario` and `rtt_csv`, or the family"
            )
        return FamilyScenarios(family, changed, num_envs or 1)
    if isinstance(scenario, Sequence) and not isinstance(scenario, str):
        _require_a_row_each(scenario, num_envs)
        loaded = [load_scenario(source, rtt_csv=rtt_csv) for source in scenario]
    else:
        source: Any = DEFAULT_SCENARIO if scenario is None else scenario
        loaded = list(load_endpoints(source, rtt_csv=rtt_csv))
        _require_whole_rounds(source, loaded, num_envs)
    changed_too = [override(each, changed) if changed else each for each in loaded]
    return FixedScenarios(changed_too, rows=num_envs or 1)


def _require_a_row_each(sources: Sequence[Any], num_envs: int | None) -> None:
    if not sources:
        raise ScenarioError("scenario is an empty list; name at least one scenario")
    if num_envs is not None and len(sources) > num_envs:
        raise ScenarioError(
            f"scenario lists {len(sources)} scenarios for num_envs = {num_envs}, and row r plays "
            "number r, so the last would never be played; list at most one for every row, or "
            "make more rows with gym.make_vec"
        )


def _require_whole_rounds(
    source: ScenarioSource, scenarios: Sequence[Scenario], num_envs: int | None
) -> None:
    """Every endpoint gets as many rows as the others."""
    count = len(scenarios)
    if num_envs is not None and num_envs % count:
        raise ScenarioError(
            f"{several_endpoints(source, scenarios)}, one a row, and num_envs = {num_envs} is no "
            f"multiple of {count}; make {count}, {2 * count}, ... rows with gym.make_vec, or name "
            f"one of them, as in {endpoint_name(source, scenarios[0])!r}"
        )


def _checked(scenario: Scenario, seed: int = 0, episode: int = 0, rows: int = 1) -> Axes:
    """What a scenario takes, if it can be played at all."""
    require_length(scenario)
    disturbances = resolve(scenario, seed, episode)
    check_protocol(scenario, disturbances)
    _require_reports_in_bounds(scenario)
    axes = axes_of(scenario, disturbances)
    require_room(f"scenario {scenario.name!r}", axes, rows)
    return axes


def _require_reports_in_bounds(scenario: Scenario) -> None:
    """A probe interval far below the latencies would fill the memory with reports under way."""
    longest_s = float(np.nanmax(one_way_s(scenario)))
    reports = longest_s / scenario.probe_interval_s
    if reports > MAX_REPORTS_UNDER_WAY:
        raise ScenarioError(
            f"probe_interval_s = {scenario.probe_interval_s} keeps {reports:.3g} reports of a cell "
            f"under way to a root {longest_s:.3g} s away; at most {MAX_REPORTS_UNDER_WAY:,} are "
            f"kept: lengthen the interval to {longest_s / MAX_REPORTS_UNDER_WAY:.3g} s or more"
        )
