"""What an episode takes is said before it is taken; whoever means a large system may have it."""

from __future__ import annotations

import re
import tracemalloc
from typing import Any

import numpy as np
import pytest

from dlb_gym import sizes
from dlb_gym.disturbances import resolve
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.episodes import FamilyScenarios, FixedScenarios, episode_source
from dlb_gym.network import REGIONS
from dlb_gym.policy import proportional
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.sizes import Axes, axes_of, bytes_of, require_length, require_room
from dlb_gym.task import Task

LITTLE_BYTES = 2**26
STAGES = ("prefill", "decode")


def fleet(cells: int, servers: int, rate_rps: float, **changes: Any) -> Scenario:
    """Equal cells in turn in all regions, each with a root, offered so many requests a second.

    A server does 8 requests/s at 2e-4 and 5e-3 s per token; times shorter by a factor make it as
    many times faster.
    """
    factor = rate_rps / (0.8 * 8.0 * cells * servers)
    regions = sorted(REGIONS)
    places = [{"name": f"p{i}", "region": regions[i % len(regions)]} for i in range(cells)]
    times = {"prefill_s_per_token": 2e-4 / factor, "decode_s_per_token": 5e-3 / factor}
    return load_scenario(
        {
            "name": "fleet",
            "cells": [place | times | {"servers": servers} for place in places],
            "roots": [place | {"demand": 1.0} for place in places],
            **changes,
        }
    )


def held_bytes(value: Any) -> int:
    """Bytes of the arrays that an object keeps, in its attributes, tuples and lists of tuples."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, tuple):
        return sum(map(held_bytes, value))
    return 0


def test_a_day_of_a_million_requests_a_second_on_ten_thousand_servers_is_accepted() -> None:
    scenario = fleet(200, 50, 1e6, horizon_s=86_400.0)
    assert offered_rate_rps(scenario) == pytest.approx(1e6)
    source = FixedScenarios([scenario])
    assert (source.max_roots, source.max_cells) == (200, 200)


def test_a_thousand_rows_of_many_small_requests_are_accepted() -> None:
    FixedScenarios([load_scenario("sand")], 1_024)


def test_a_replayed_traces_busiest_span_is_counted() -> None:
    """Ten requests a second for 100 s, then one a second: 15 s hold 151 at most, ends included.

    Replayed at the trace's own rate; twice the lap holds every request twice.
    """
    time_s = np.concatenate((np.arange(1_000) * 0.1, 100.0 + np.arange(901.0)))
    rate_rps = (time_s.size - 1) / time_s[-1]
    assert sizes._most_replayed(time_s, rate_rps, 15.0) in (150, 151)
    lap_s = time_s.size / rate_rps
    assert sizes._most_replayed(time_s, rate_rps, 2.0 * lap_s) == pytest.approx(3_802, abs=1)


def test_a_family_is_bounded_by_its_rows_too() -> None:
    changes = {"server.queue_limit": 20_000}
    FamilyScenarios("appendix_b", changes, 2)
    with pytest.raises(ScenarioError, match=r"of memory in 2,000 rows.*or make fewer rows"):
        FamilyScenarios("appendix_b", changes, 2_000)


def test_a_thousand_cells_are_accepted() -> None:
    FixedScenarios([fleet(1_000, 10, 1e5)])


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dispatch": "smooth", "server.queue_limit": 500},
        {"telemetry": {"leaf_replicas": 50}, "latency_estimate": {"kind": "online"}},
        {"telemetry": {"leaf_replicas": 50}, "leaf": {"rule": "vllm"}},
        {"telemetry": {"leaf_replicas": 50}, "leaf": {"rule": "prequal", "probe_pool": 64}},
        {"demand.sessions": {}, "affinity": {"cache_sessions": 50_000, "map_sessions": 20_000}},
        {"probe_interval_s": 1e-5},
        {"disturbances": [{"kind": "latency_shift", "extra_s": 3.0}] * 40},
        {"autoscaler": {"interval_s": 0.1}, "horizon_s": 600.0},
    ],
)
def test_the_estimate_covers_what_is_allocated_and_not_much_more(changes: dict[str, Any]) -> None:
    """The arrays after warm-up and some overload, against the sum of the parts."""
    scenario = override(load_scenario("global_six"), changes)
    roots = cells = 6
    estimate = sum(bytes_of(axes_of(scenario, resolve(scenario, 0, 0))).values())
    simulator = Simulator(1, roots, cells)
    simulator.reset_row(0, scenario, 0, 0)
    capacity = np.tile(nominal_rates_rps(scenario), (roots, 1))
    simulator.set_routing(proportional(capacity[None], simulator.admissible), np.zeros(1, np.int64))
    simulator.advance(np.array([200]))
    held = sum(held_bytes(value) for value in vars(simulator).values())
    assert 0.5 * held < estimate + 2**20
    assert estimate < 8 * held + 2**20


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cells.0.servers": 10**9}, "'cells.0.servers': Input should be less than or equal to"),
        ({"horizon_s": 1e12}, "'horizon_s': Input should be less than or equal to 1000000000"),
        ({"horizon_s": 9e8}, "control_interval_s = 0.1 makes 9e\\+09 control intervals"),
        (
            {
                f"cells.{i}.{stage}_s_per_token": 1e-12
                for i in range(6)
                for stage in ("prefill", "decode")
            },
            "makes .* requests at 8.8e\\+10 a second.*lower demand.utilisation or servers",
        ),
        ({"probe_interval_s": 1e-10}, "probe_interval_s = 1e-10 makes 8e\\+11 reports of a cell"),
        (
            {"telemetry": {"turn_s": 50.0}, "probe_interval_s": 2e-6},
            "GiB are for .* reports of each cell under way.*lengthen probe_interval_s",
        ),
        (
            {"control_interval_s": 1e7, "warmup_s": 0.0, "horizon_s": 1e8, "probe_interval_s": 1.0},
            "GiB are for requests in 6 cells and 3.56e\\+09 under way.*latencies, control",
        ),
        (
            {"demand.profile": {"synchronised_fraction": 1.0, "synchronised_period_s": 1e7}},
            "requests in 6 cells and .* under way.*synchronised_period_s",
        ),
        (
            {"demand.sessions": {"gap_s": 1e7, "mean_turns": 10.0}},
            "before its start, from which sessions last.*shorten demand.sessions.gap_s",
        ),
        ({"disturbances": [{"kind": "burst"}] * 20_000}, "'disturbances' has 20,000 entries"),
        (
            {"disturbances": [{"kind": "slow_cell", "cells": ["us-east4"] * 30}] * 900},
            "900 of them strike 27,000 places in all; at most 10,000",
        ),
    ],
)  # fmt: skip
def test_sizes_that_nobody_means_are_refused_before_they_are_taken(
    changes: dict[str, Any], message: str
) -> None:
    scenario = load_scenario("global_six")
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError, match=message):
            FixedScenarios([override(scenario, changes)])
        assert tracemalloc.get_traced_memory()[1] < LITTLE_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (
            Axes(20_000, 20_000),
            "arcs between 20,000 roots and 20,000 cells: use fewer roots and cells",
        ),
        (
            Axes(6, 6, probes=2**31),
            "2,147,483,648 reports of each cell under way, with counts of 6 roots: lengthen "
            "probe_interval_s, or shorten latencies, disturbances' extra_s, telemetry.turn_s or "
            "control_interval_s",
        ),
        (
            Axes(6, 6, servers=10**7, slots=1_000),
            "6 cells x 10,000,000 servers with 1 places: lower servers, server.queue_limit or "
            "telemetry.leaf_replicas",
        ),
        (
            Axes(6, 6, changes=10**9),
            "1,000,000,000 changes in each cell's schedule: lengthen autoscaler.interval_s, "
            "shorten horizon_s or use fewer disturbances",
        ),
        (
            Axes(6, 6, cache_sessions=10**9, map_sessions=10),
            "sessions that are remembered: lower affinity.cache_sessions and map_sessions",
        ),
        (
            Axes(6, 6, ahead=1e10),
            "1e+10 requests of the busiest root drawn ahead, with room for as many at each of 6 "
            "roots: lower demand.utilisation or servers, shorten control_interval_s or "
            "demand.profile's synchronised_period_s, or spread the roots' demand",
        ),
        (
            Axes(6, 6, kept=1e10),
            "1e+10 requests of sessions that go on: shorten demand.sessions.gap_s or mean_turns, "
            "or lower demand.utilisation",
        ),
        (
            Axes(6, 6, under_way=1e10),
            "requests in 6 cells and 1e+10 under way: lower server.queue_limit, servers or "
            "demand.utilisation, or shorten latencies, control_interval_s or demand.profile's "
            "synchronised_period_s",
        ),
    ],
)
def test_what_takes_most_is_named_with_the_keys_that_make_it_smaller(
    axes: Axes, message: str
) -> None:
    with pytest.raises(ScenarioError) as raised:
        require_room("a batch", axes)
    told = str(raised.value)
    assert re.match(r"a batch would take about [\d,.]+ GiB of memory in 1 row; at most 16", told)
    assert told.endswith(f" GiB are for {message}")
    with pytest.raises(ScenarioError) as raised:
        require_room("a batch", axes, rows=3)
    assert "GiB of memory in 3 rows; at most 16.0 GiB are allowed. " in str(raised.value)
    assert str(raised.value).endswith(f" GiB are for {message}, or make fewer rows")


@pytest.mark.parametrize(
    ("system", "changes", "message"),
    [
        (
            "fleet",
            {"horizon_s": 9e8, "warmup_s": 0.0, "control_interval_s": 1e3},
            "makes 1.8e+09 spans of 10 s x 20 roots, in an episode of 9e+08 s (warm-up, settling "
            "and horizon); at most 1e+09 are possible: shorten horizon_s, or use fewer roots",
        ),
        (
            "fleet",
            {"horizon_s": 9e8, "warmup_s": 0.0, "control_interval_s": 1e3, "demand.utilisation": 9},
            "makes 1.01e+12 requests at 1.12e+03 a second, in an episode of 9e+08 s (warm-up, "
            "settling and horizon); at most 1e+12 are possible: shorten horizon_s, or lower "
            "demand.utilisation or servers",
        ),
        (
            "global_six",
            {"demand.sessions": {"gap_s": 1e7, "mean_turns": 10.0}},
            "spans of 10 s x 6 roots before its start, from which sessions last, in an episode of "
            "80 s (warm-up, settling and horizon); at most 1e+06 are possible: shorten "
            "demand.sessions.gap_s or mean_turns",
        ),
        (
            "global_six",
            {
                "demand.sessions": {},
                **{f"cells.{i}.{s}_s_per_token": 1e-9 for i in range(6) for s in STAGES},
            },
            "sessions that start at one root within 10 s, in an episode of 80 s (warm-up, settling "
            "and horizon); at most 1.68e+07 are possible: lower demand.utilisation, or spread the "
            "roots' demand",
        ),
    ],
)
def test_episodes_of_too_many_events_are_named_with_the_keys_that_make_them_fewer(
    system: str, changes: dict[str, Any], message: str
) -> None:
    """20 roots of 9e8 s are 1.8e9 spans; 20 cells of 5 servers get 125 a second at 100 %."""
    scenario = fleet(20, 5, 100.0) if system == "fleet" else load_scenario(system)
    with pytest.raises(ScenarioError) as raised:
        require_length(override(scenario, {"probe_interval_s": 10.0, **changes}))
    assert str(raised.value).startswith(f"scenario {system!r} makes ")
    assert str(raised.value).endswith(message)


def test_ten_thousand_cells_are_refused_before_they_take_memory() -> None:
    place = {"region": "us-east4"}
    cells = [place | {"name": f"p{i}", "servers": 1} for i in range(10_000)]
    tracemalloc.start()
    try:
        with pytest.raises(
            ScenarioError, match="10,000 entries; at most 1,000 are possible: leave some out"
        ):
            load_scenario({"base": "global_six", "cells": cells})
        assert tracemalloc.get_traced_memory()[1] < LITTLE_BYTES
    finally:
        tracemalloc.stop()


def test_batches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(
        ScenarioError, match=r"in 10,000,000 rows; at most 16.0 GiB.*make fewer rows"
    ):
        DLBVectorEnv(10_000_000)
    with pytest.raises(ScenarioError, match="arcs between 100,000 roots and 100,000 cells"):
        DLBEnv(max_cells=100_000)
    assert episode_source("global_six", num_envs=1_024).max_cells == 6


def test_padding_counts_with_what_the_scenario_needs_of_each_arc() -> None:
    """Rings of 2,048 reports in each of 4 million arcs are 64 GiB, whatever the bare arcs take."""
    slow = override(load_scenario("global_six"), {"probe_interval_s": 1e-4})
    assert sum(bytes_of(Axes(2000, 2000)).values()) < 16 * 2**30
    with pytest.raises(ScenarioError, match=r"a batch for 2,000 roots and 2,000 cells .* at most"):
        Task(FixedScenarios([slow]), 1, max_cells=2000)
