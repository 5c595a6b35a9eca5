"""Long and overloaded runs: memory stays what it was, books balance, clocks do not drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dlb_gym import simulator as simulation
from dlb_gym import workload
from dlb_gym.disturbance_models import Burst
from dlb_gym.policy import proportional
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps, one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from dlb_gym.simulator import Simulator
from tests.request_log import is_error
from tests.scenarios_by_hand import two_cells

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
MONTH_S = 30 * DAY_S


def started(scenario: Scenario, log: bool = False) -> Simulator:
    """A simulator at clock 0 under the split by capacity."""
    roots, cells = len(scenario.roots), len(scenario.cells)
    simulator = Simulator(1, roots, cells, log=log)
    simulator.reset_row(0, scenario, 0, 0)
    capacity = np.tile(nominal_rates_rps(scenario), (roots, 1))
    simulator.set_routing(proportional(capacity[None], simulator.admissible), np.zeros(1, np.int64))
    return simulator


def held_bytes(simulator: Simulator) -> int:
    """Bytes of all arrays that the simulator keeps, directly or in tuples."""
    total = 0
    waiting = list(vars(simulator).values())
    while waiting:
        value = waiting.pop()
        if isinstance(value, np.ndarray):
            total += value.nbytes
        elif isinstance(value, tuple):
            waiting.extend(value)
    return total


def from_the_first_hour_on(kind: str, **keys: Any) -> dict[str, Any]:
    """A disturbance that begins after 14 minutes and ends in the afternoon."""
    return {"kind": kind, "start": 0.01, "end": 0.6} | keys


EVERYTHING: dict[str, Any] = {
    "telemetry": {
        "backlogs": True,
        "turn_s": 2.5,
        "sync_interval_s": 1.0,
        "server_probe_interval_s": 1.0,
    },
    "latency_estimate": {"kind": "online"},
    "error_aversion": {"interval_s": 5.0, "silence_s": 5.0},
    "retries": {},
    "demand.sessions": {},
    "affinity": {"cache_sessions": 64, "map_sessions": 64},
}
FAULTS_OF_ROOTS_AND_ARCS = [
    from_the_first_hour_on("burst", root="west", to_utilisation=0.03),
    from_the_first_hour_on("root_crash", roots=["east"]),
    from_the_first_hour_on("partition", cells=["west"], roots=["east"]),
    from_the_first_hour_on("latency_shift", cells=["east"], roots=["west"]),
]
FAULTS_OF_SERVERS = [
    from_the_first_hour_on("server_crash", cells=["east"], servers=3),
    from_the_first_hour_on("outage", cells=["west"], servers_left=2),
    from_the_first_hour_on("black_hole", cells=["west"]),
    from_the_first_hour_on("slow_cell", cells=["east"]),
    from_the_first_hour_on("leaf_crash", cells=["east"]),
]
DAYS: dict[str, dict[str, Any]] = {
    "two_cells": {},
    "every fault": EVERYTHING
    | {"server.max_wait_s": 0.3, "disturbances": FAULTS_OF_ROOTS_AND_ARCS + FAULTS_OF_SERVERS},
    "batching and autoscaler": EVERYTHING
    | {
        "server": {"kind": "continuous_batching", "max_wait_s": 10.0},
        "autoscaler": {"target_utilisation": 0.03},
        "disturbances": FAULTS_OF_ROOTS_AND_ARCS,
    },
}
"""Changes of a scenario: between them all that it can have."""


@pytest.mark.parametrize("name", DAYS)
def test_a_day_takes_the_memory_of_its_first_hour(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (workload, simulation):  # so sparse a demand needs no chunk every 10 s
        monkeypatch.setattr(module, "CHUNK_S", 60.0)
    spans = {"control_interval_s": 5.0, "probe_interval_s": 0.5, "warmup_s": 0.0}
    demand = {"horizon_s": DAY_S, "demand.utilisation": 0.02}
    scenario = override(override(two_cells(), spans | demand), DAYS[name])
    simulator = started(scenario)
    simulator.advance(np.array([int(HOUR_S / 5.0)]))
    first_hour = held_bytes(simulator)
    assert first_hour > 10_000
    simulator.advance(np.array([int(DAY_S / 5.0)]))
    assert held_bytes(simulator) == first_hour
    books = simulator.books()
    bursts = [each for each in scenario.disturbances if isinstance(each, Burst)]
    usual = scenario.demand.utilisation
    more = sum((each.to_utilisation / usual - 1.0) * (each.end - each.start) for each in bursts)
    expected = offered_rate_rps(scenario) * DAY_S * (1.0 + more)
    assert books.arrived[0] == pytest.approx(expected, rel=0.05)
    assert books.answered[0] + books.errors[0] > 0.999 * books.arrived[0]


def test_three_times_the_capacity_ends_in_errors_and_costs_no_more_room() -> None:
    """Servers stay full, so they finish what they can, and all that is above it is refused.

    Nominal rates count the stages alone, 112 requests a second here; full servers keep them.
    """
    spans = {"warmup_s": 0.0, "horizon_s": 400.0, "demand.utilisation": 3.0}
    scenario = override(two_cells(), spans)
    simulator = started(scenario)
    simulator.advance(np.array([2_000]))
    before, room = simulator.books(), held_bytes(simulator)
    answered, errors, arrived = (
        int(each[0]) for each in (before.answered, before.errors, before.arrived)
    )
    simulator.advance(np.array([4_000]))
    books = simulator.books()
    assert held_bytes(simulator) == room
    served_rps = (books.answered[0] - answered) / 200.0
    assert served_rps == pytest.approx(nominal_rates_rps(scenario).sum(), rel=0.02)
    refused = books.errors[0] - errors
    assert refused / (books.arrived[0] - arrived) == pytest.approx(2 / 3, abs=0.02)
    limit = scenario.server.queue_limit * sum(cell.servers for cell in scenario.cells)
    assert books.rif[0].sum() <= limit


def test_clocks_do_not_drift_in_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stage of the last requests of a month against exact arithmetic: below 1 us.

    Half a unit in the last place of a month in seconds is 0.23 ns, and a request adds a handful of
    times; a clock that added up its intervals of 6.3 s would be off by more than 1 us.
    """
    added_s = np.add.accumulate(np.full(411_428, 6.3))[-1]
    assert abs(added_s - np.longdouble(63) / 10 * 411_428) > 1e-6
    for module in (workload, simulation):  # so sparse a demand needs no chunk every 10 s
        monkeypatch.setattr(module, "CHUNK_S", 2_520.0)
    steps = 411_428
    spans = {"control_interval_s": 6.3, "probe_interval_s": 0.7, "warmup_s": 0.0}
    demand = {"horizon_s": steps * 6.3, "demand.utilisation": 5e-4}
    scenario = override(two_cells(), spans | demand)
    simulator = started(scenario, log=True)
    simulator.advance(np.array([steps]))
    assert abs(float(simulator.time_s[0]) - np.longdouble(63) / 10 * steps) < 1e-6
    log = simulator.request_log(0)
    last = (log["arrival_s"] > MONTH_S - DAY_S) & ~is_error(log)
    assert last.sum() > 1_000
    arrival_s, leaf_s, first_token_s, done_s, answer_s = (
        log[f"{stage}_s"][last].astype(np.longdouble)
        for stage in ("arrival", "leaf", "first_token", "done", "answer")
    )
    arcs = log["root"][last].astype(int), log["cell"][last].astype(int)
    tau_s = one_way_s(scenario)[arcs].astype(np.longdouble)
    assert abs(leaf_s - (arrival_s + np.longdouble(scenario.router_delay_s) + tau_s)).max() < 1e-6
    assert abs(answer_s - (done_s + tau_s)).max() < 1e-6
    # With so few requests hardly one waits for another, so stages take whole numbers of tokens.
    cell = scenario.cells[0]
    for stage_s, token_s in (
        (first_token_s - leaf_s, cell.prefill_s_per_token),
        (done_s - first_token_s, cell.decode_s_per_token),
    ):
        off_s = abs(stage_s - np.rint(stage_s / token_s) * np.longdouble(token_s))
        assert np.quantile(off_s.astype(float), 0.99) < 1e-6


def test_reports_keep_their_instants_for_a_month(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a root holds at a decision is as old after a month as after its first minute."""
    for module in (workload, simulation):
        monkeypatch.setattr(module, "CHUNK_S", 2_400.0)
    spans = {"control_interval_s": 60.0, "probe_interval_s": 0.6, "warmup_s": 0.0}
    demand = {"horizon_s": MONTH_S, "demand.utilisation": 1e-4}
    simulator = started(override(two_cells(), spans | demand))
    simulator.advance(np.array([1]))
    first_s = simulator.view().probe_age_s.copy()
    simulator.advance(np.array([round(MONTH_S / 60.0)]))
    assert abs(simulator.view().probe_age_s - first_s).max() < 1e-6
