"""What an episode takes is said before it is taken; whoever means a large system may have it."""

from __future__ import annotations

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
from dlb_gym.sizes import axes_of, bytes_of

LITTLE_BYTES = 2**26


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


def test_ten_thousand_cells_are_refused_before_they_take_memory() -> None:
    place = {"region": "us-east4"}
    cells = [place | {"name": f"p{i}", "servers": 1} for i in range(10_000)]
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError, match="'cells' has 10,000 entries; at most 1,000"):
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
