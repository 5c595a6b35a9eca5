"""The simulator against the plain reference, and its books against a count of its own log."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.disturbances import resolve
from dlb_gym.engine import layout
from dlb_gym.network import rtt_s
from dlb_gym.rates import one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.workload import CHUNK_S, Workload
from tests import reference
from tests.parity import engine_run
from tests.request_log import books_at
from tests.short_episodes import ring

SEED, EPISODE = 5, 1


def described(scenario: Scenario, live: Any) -> reference.System:
    """The scenario in the reference's words, from its own keys and the network model alone."""
    tau_s = np.array(
        [
            [
                rtt_s(root.region, cell.region) / 2
                if root.reachable is None or cell.name in root.reachable
                else np.nan
                for cell in scenario.cells
            ]
            for root in scenario.roots
        ]
    )
    return reference.System(
        tau_s=tau_s,
        prefill_s_per_token=np.array([c.prefill_s_per_token for c in scenario.cells]),
        decode_s_per_token=np.array([c.decode_s_per_token for c in scenario.cells]),
        live_servers=live,
        decode_slots=scenario.server.decode_engines * scenario.server.slots_per_engine,
        queue_limit=scenario.server.queue_limit,
        router_delay_s=scenario.router_delay_s,
        probe_interval_s=scenario.probe_interval_s,
        control_interval_s=scenario.control_interval_s,
    )


def offered(scenario: Scenario, end_s: float) -> reference.Requests:
    """The episode's requests up to `end_s`."""
    workload = Workload(scenario, SEED, EPISODE)
    rows = []
    for index in range(int(end_s / CHUNK_S) + 1):
        for root, requests in enumerate(workload.chunk(index)):
            kept = requests[requests[:, 0] <= end_s]
            rows.append(np.column_stack([np.full(len(kept), root), kept]))
    table = np.concatenate(rows)
    table = table[np.lexsort((table[:, 1], table[:, 0]))]
    return reference.Requests(
        root=table[:, 0].astype(np.int64),
        arrival_s=table[:, 1],
        prompt_tokens=table[:, 2].astype(np.int64),
        output_tokens=table[:, 3].astype(np.int64),
        u_route=table[:, 4],
        u_leaf=table[:, 5],
    )


def routings(arcs: NDArray[np.bool_], count: int) -> list[NDArray[np.float64]]:
    rng = np.random.default_rng(0)
    weights = [np.where(arcs, rng.random(arcs.shape) ** 4, 0.0) for _ in range(count)]
    return [each / each.sum(axis=-1, keepdims=True) for each in weights]


def in_order(log: dict[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """By root and arrival, as the reference has them."""
    order = np.lexsort((log["arrival_s"], log["root"]))
    return {name: column[order] for name, column in log.items()}


@pytest.mark.parametrize("dispatch", ["sample", "smooth"])
@pytest.mark.parametrize("name", ["global_six", "burst", "outage", "residency", "sand"])
def test_a_shipped_scenario_runs_request_by_request_as_in_the_reference(
    name: str, dispatch: str
) -> None:
    interval_s = load_scenario(name).control_interval_s
    steps = 40
    scenario = override(
        load_scenario(name),
        {"horizon_s": 28 * interval_s, "warmup_s": 12 * interval_s, "dispatch": dispatch},
    )
    end_s = steps * interval_s
    live = resolve(scenario, SEED, EPISODE).live_servers
    if name == "outage":
        assert sum(len(schedule) for schedule in live) > len(live)
    system = described(scenario, live)
    decisions = routings(~np.isnan(system.tau_s), steps)

    expected = reference.simulate(
        system,
        offered(scenario, end_s),
        lambda k, _: reference.Decision(dispatch, routing=decisions[k]),  # type: ignore[arg-type]
        steps,
    )

    sim = Simulator(1, *system.tau_s.shape, log=True)
    sim.reset_row(0, scenario, SEED, EPISODE)
    mode = np.array([layout.SMOOTH if dispatch == "smooth" else layout.SAMPLE])
    for step in range(steps):
        sim.set_routing(decisions[step][None], mode)
        sim.advance(np.array([step + 1]))
        want, view, truth = expected.views[step + 1], sim.view(), sim.truth()
        for field in ("rif", "servers", "received", "sent", "answered"):
            np.testing.assert_array_equal(getattr(view, field)[0], getattr(want, field), field)
        arcs = ~np.isnan(system.tau_s)
        age_s = np.where(arcs, want.time_s - want.emitted_s, 0.0)
        np.testing.assert_allclose(np.where(arcs, view.probe_age_s[0], 0.0), age_s, atol=1e-12)
        np.testing.assert_allclose(view.error_rate[0], want.error_rate, atol=1e-12)
        assert truth.in_system_s[0] == pytest.approx(want.in_system_integral, abs=1e-9)
        assert truth.rejected[0] == want.rejected
    log = in_order(sim.request_log(0))
    answered = ~np.isnan(expected.requests["answer_s"])
    assert len(log["cell"]) == answered.sum() > 100
    for column in ("cell", "server", "leaf_s", "done_s", "answer_s"):
        done = answered & ~expected.requests["error"] if column == "done_s" else answered
        got = log[column][log["server"] >= 0] if column == "done_s" else log[column]
        np.testing.assert_array_equal(got, expected.requests[column][done], column)


def run(scenario: Scenario, log: bool = True) -> tuple[Simulator, list[Any], list[Any]]:
    """A whole episode under a uniform split, drained: books and truths after every step."""
    shape = (len(scenario.roots), len(scenario.cells))
    sim = Simulator(1, *shape, log=log)
    sim.reset_row(0, scenario, SEED, EPISODE)
    sim.set_routing(sim.admissible / sim.admissible.sum(axis=-1, keepdims=True), np.zeros(1, int))
    books, truths = [], []
    end = scenario.intervals(scenario.warmup_s + scenario.settle_s + scenario.horizon_s)
    step = 0
    while step < end or (books[-1].arrived - books[-1].answered - books[-1].errors)[0] > 0:
        step += 1
        sim.advance(np.array([step]))
        books.append(copy.deepcopy(sim.books()))
        truths.append(copy.deepcopy(sim.truth()))
    return sim, books, truths


OVERLOADS: list[dict[str, Any]] = [
    {"server": {"queue_limit": 1}},
    {"disturbances": [{"kind": "outage", "cells": ["cell-0"]}], "dispatch": "smooth"},
]


@pytest.mark.parametrize("changes", OVERLOADS)
def test_at_120_percent_the_books_are_a_count_of_the_log_at_every_step(
    changes: dict[str, Any],
) -> None:
    scenario = load_scenario(ring(3, demand={"utilisation": 1.2}, horizon_s=4.0, **changes))
    sim, books, truths = run(scenario)
    log = sim.request_log(0)
    errors = 0
    for step, (book, truth) in enumerate(zip(books, truths, strict=True)):
        time_s = (step + 1) * scenario.control_interval_s
        counted = books_at(log, time_s)
        found = {name: int(value[0]) for name, value in book._asdict().items()}
        assert found == counted | {"retrying": 0}, step
        parts = [counted[name] for name in ("answered", "errors", "rif", "to_cells", "to_roots")]
        assert counted["arrived"] == sum(parts)
        for cell in range(3):
            of_cell = {name: column[log["cell"] == cell] for name, column in log.items()}
            assert truth.rif[0, cell] == books_at(of_cell, time_s)["rif"]
            reached = int((of_cell["leaf_s"] <= time_s).sum())
            assert truth.received[0, :, cell].sum() == reached
        errors += int(truth.rejected[0])
    assert counted["arrived"] == counted["answered"] + counted["errors"] == len(log["cell"])
    assert errors == counted["errors"] > 0


def test_a_queue_limit_of_one_serves_one_request_a_server() -> None:
    changes = {"server": {"queue_limit": 1}, "demand": {"utilisation": 1.2}}
    _, _, truths = run(load_scenario(ring(3, horizon_s=4.0, **changes)))
    assert max(truth.rif.max() for truth in truths) <= 4
    assert max(truth.rif.max() for truth in truths) > 0


def test_an_outage_finishes_what_runs_and_takes_nothing_new() -> None:
    """From 3 s (0.5 of the horizon) on only server 0 of cell-0 takes requests."""
    outage = {"kind": "outage", "cells": ["cell-0"], "start": 0.5, "end": 1.0}
    scenario = load_scenario(ring(2, horizon_s=4.0, disturbances=[outage]))
    sim, _, truths = run(scenario)
    log = sim.request_log(0)
    there = (log["cell"] == 0) & (log["server"] > 0)
    assert truths[28].live_servers.tolist() == [[4, 4]]
    assert truths[29].live_servers.tolist() == [[1, 4]]
    before_s, end_s = 3.0, 5.0
    late = there & (log["leaf_s"] >= before_s) & (log["leaf_s"] < end_s)
    assert not late.any()
    assert (log["done_s"][there & (log["leaf_s"] < before_s)] > before_s).sum() > 0


def test_the_log_holds_a_request_once_and_its_times_in_order() -> None:
    """Requests of three chunks, the first and the last of which are cut."""
    sim, _, _ = run(load_scenario(ring(2, horizon_s=20.5)))
    log = sim.request_log(0)
    ok = log["server"] >= 0
    tau_s = one_way_s(load_scenario(ring(2)))[log["root"].astype(int), log["cell"].astype(int)]
    leaf_s = (log["arrival_s"] + 5e-4) + tau_s
    np.testing.assert_array_equal(log["leaf_s"], leaf_s)
    np.testing.assert_array_equal(log["answer_s"], log["done_s"] + tau_s)
    assert (log["first_token_s"] > log["leaf_s"])[ok].all()
    assert (log["done_s"] > log["first_token_s"])[ok].all()
    requests = offered(load_scenario(ring(2, horizon_s=20.5)), 21.5)
    np.testing.assert_array_equal(np.sort(log["arrival_s"]), np.sort(requests.arrival_s))
    unlogged, _, _ = run(load_scenario(ring(2)), log=False)
    with pytest.raises(ValueError, match="make the simulator with log=True"):
        unlogged.request_log(0)


def test_memory_stays_flat_over_a_long_run() -> None:
    scenario = load_scenario(ring(2, horizon_s=600.0))
    sim = Simulator(1, 2, 2)
    sim.reset_row(0, scenario, 0, 0)
    sim.set_routing(np.full((1, 2, 2), 0.5), np.zeros(1, int))
    sizes = []
    for step in range(600, 6001, 600):
        sim.advance(np.array([step]))
        sizes.append(len(pickle.dumps(sim)))
    assert sim.books().arrived[0] > 25_000
    assert max(sizes) < 1.02 * sizes[1]


def test_one_way_latency_is_half_the_round_trip_and_missing_off_the_arcs() -> None:
    scenario = load_scenario(ring(3))
    assert one_way_s(scenario)[0].tolist() == [0.0, 0.05, 0.05]
    rescaled = override(scenario, {"network.mean_rtt_s": 0.04, "roots.1.reachable": ["cell-1"]})
    tau_s = one_way_s(rescaled)
    np.testing.assert_allclose(tau_s[0], [0.0, 0.02, 0.02], rtol=1e-12)
    assert np.isnan(tau_s[1]).tolist() == [True, False, True]


def test_a_roots_arrival_rate_is_an_exponential_mean_over_one_second() -> None:
    """From the log: after every interval h the mean moves 1 - e^-h of the way to the rate in it."""
    scenario = load_scenario(ring(2, horizon_s=3.0))
    interval_s = scenario.control_interval_s
    sim = Simulator(1, 2, 2, log=True)
    sim.reset_row(0, scenario, SEED, EPISODE)
    sim.set_routing(np.full((1, 2, 2), 0.5), np.zeros(1, int))
    seen_rps = []
    for step in range(1, 41):
        sim.advance(np.array([step]))
        seen_rps.append(sim.view().arrival_rps[0].copy())
    sim.advance(np.array([120]))
    log = sim.request_log(0)
    mean_rps = np.zeros(2)
    for step, found_rps in enumerate(seen_rps):
        inside = (log["arrival_s"] > step * interval_s) & (
            log["arrival_s"] <= (step + 1) * interval_s
        )
        rate_rps = np.bincount(log["root"][inside].astype(int), minlength=2) / interval_s
        mean_rps += (1.0 - np.exp(-interval_s)) * (rate_rps - mean_rps)
        np.testing.assert_allclose(found_rps, mean_rps, rtol=1e-9)
    assert (mean_rps > 10.0).all()


def test_at_one_instant_a_completion_precedes_an_arrival_and_an_arrival_the_report() -> None:
    """One place in all; 2 tokens of 1/8 s each: the second comes when the first is done."""
    system = reference.System(
        tau_s=np.zeros((1, 1)),
        prefill_s_per_token=np.zeros(1),
        decode_s_per_token=np.array([0.125]),
        live_servers=(((0.0, 1),),),
        decode_slots=1,
        queue_limit=1,
        router_delay_s=0.0,
        probe_interval_s=0.25,
        control_interval_s=0.25,
    )
    two = np.zeros(2)
    requests = reference.Requests(
        root=two.astype(np.int64),
        arrival_s=np.array([0.25, 0.5]),
        prompt_tokens=two.astype(np.int64),
        output_tokens=np.array([2, 2]),
        u_route=two,
        u_leaf=two,
    )
    decision = reference.Decision("sample", routing=np.ones((1, 1)))
    views, logs = engine_run.simulate([(system, requests)], lambda step, _: decision, 4)
    assert [view.rejected for view in views[0]] == [0, 0, 0, 0]
    assert [int(view.received[0, 0]) for view in views[0]] == [1, 2, 2, 2]
    assert [int(view.rif[0, 0]) for view in views[0]] == [1, 1, 0, 0]
    assert logs[0][:, layout.LOG_DONE_S].tolist() == [0.5, 0.75]
