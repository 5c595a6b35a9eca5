"""Batching servers in a whole system: request by request against the plain model, and by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.engine import extras
from dlb_gym.engine.layout import KEY_SHIFT
from dlb_gym.rates import nominal_rates_rps, zero_load_times_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.workload import Workload
from tests.batching_model import ERROR, Design, Job, serve
from tests.conversations import Turn, talking, waits_s
from tests.scripted import Played, assert_balanced, system

PLAIN: dict[str, Any] = {"kind": "continuous_batching", "preset": "h100"}
TIGHT = {**PLAIN, "max_batch": 8, "queue_limit": 20, "kv_tokens": 4_000}
SERVERS: dict[str, tuple[dict[str, Any], float]] = {
    "plain": (PLAIN, 0.7),
    "full": (TIGHT, 2.5),
    "drafts": ({**TIGHT, "draft_tokens": 3, "acceptance": 0.7}, 3.0),
    "impatient": ({**TIGHT, "queue_limit": 60, "max_wait_s": 1.0}, 2.5),
}


def one_cell(server: dict[str, Any], utilisation: float) -> Scenario:
    """Three servers; one root is at hand, the other 0.06 s away."""
    return load_scenario(
        {
            "name": "one",
            "cells": [{"name": "here", "region": "us-east4", "servers": 3}],
            "roots": [
                {"name": "here", "region": "us-east4", "demand": 2},
                {"name": "there", "region": "us-east4", "demand": 1},
            ],
            "network": {"rtt_s": [[0.002], [0.12]]},
            "server": server,
            "demand": {"utilisation": utilisation},
            "control_interval_s": 0.1,
            "warmup_s": 0.0,
            "horizon_s": 15.0,
        }
    )


def jobs_of(scenario: Scenario, seed: int) -> list[Job]:
    """What reaches the leaf, in order of time."""
    jobs = []
    workload = Workload(scenario, seed, 0)
    for root, tau_s in enumerate((0.001, 0.06)):
        rows = np.concatenate([workload.chunk(0)[root], workload.chunk(1)[root]])
        rows = rows[rows[:, 0] <= scenario.horizon_s]
        for number, (at_s, prompt, output, _, u_leaf) in enumerate(rows.tolist()):
            leaf_s = (at_s + scenario.router_delay_s) + tau_s
            key = (root << KEY_SHIFT) + number
            jobs.append(Job(key, leaf_s, int(prompt), int(output), u_leaf))
    return sorted(jobs, key=lambda job: job.leaf_s)


def design_of(scenario: Scenario) -> Design:
    server = scenario.server.on(None)  # type: ignore[union-attr]
    return Design(
        max_batch=server.max_batch,
        kv_tokens=server.kv_tokens,
        prefill_budget=server.prefill_budget_tokens,
        queue_limit=server.queue_limit,
        base_s=server.base_s,
        per_sequence_s=server.per_sequence_s,
        per_context_token_s=server.per_context_token_s,
        prefill_s_per_token=server.prefill_s_per_token,
        draft_tokens=server.draft_tokens,
        acceptance=server.acceptance,
        max_wait_s=server.max_wait_s,
    )


@pytest.mark.parametrize("name", SERVERS)
def test_every_request_is_served_as_in_the_plain_model(name: str) -> None:
    scenario = one_cell(*SERVERS[name])
    simulator = Simulator(1, 2, 1, log=True)
    simulator.reset_row(0, scenario, 5, 0)
    assert simulator._extras is not None
    seed = int(simulator._extras.flag[0, extras.SEED])
    simulator.set_routing(np.ones((1, 2, 1)), np.zeros(1, dtype=np.int64))
    simulator.advance(np.array([2_000]))
    assert_balanced(simulator)
    jobs = jobs_of(scenario, 5)
    serve(design_of(scenario), jobs, servers=3, seed=seed)
    expected = np.array([(j.leaf_s, j.server, j.first_token_s, j.done_s) for j in jobs])
    log = simulator.request_log(0)
    order = np.argsort(log["leaf_s"], kind="stable")
    names = ("leaf_s", "server", "first_token_s", "done_s")
    served = np.column_stack([log[column][order] for column in names])
    np.testing.assert_array_equal(served, expected)
    errors = int((expected[:, 1] == ERROR).sum())
    assert errors == int(simulator.measurements().errors[0])
    kinds = simulator.measurements().errors_by_kind[0]
    assert (errors > 10) == (name != "plain")
    assert kinds[extras.FULL] + kinds[extras.GAVE_UP] == kinds.sum() == errors
    assert (kinds[extras.GAVE_UP] > 0) == (name == "impatient")


ROUND: dict[str, Any] = {
    "kind": "continuous_batching",
    "base_s": 0.01,
    "per_sequence_s": 0.0,
    "per_context_token_s": 0.0,
    "prefill_s_per_token": 1e-3,
}
"""An iteration takes 10 ms, and 1 ms for every prompt token."""


def test_a_cached_prefix_shortens_the_first_iteration() -> None:
    """100 prompt tokens: 110 ms; then 240 of which 120 are kept: 130 ms."""
    turns = [Turn(0.02, 100, 50, session=7), Turn(2.0, 240, 10, session=7, prefix=120)]
    played = talking(turns, (1,), "sticky", server=ROUND).to(5.0)
    assert waits_s(played) == pytest.approx([0.11, 0.13])


OWN_PACE = {
    "root_replicas": 1,
    "turn_s": 0.0,
    "leaf_replicas": 1,
    "sync_interval_s": 0.0,
    "server_probe_interval_s": 0.0,
}


def backlog_at(played: Played, time_s: float) -> list[int]:
    backlog: NDArray[np.float64] = played.to(time_s).simulator.view().backlog_tokens[0, 0, 0]
    return [int(tokens) for tokens in backlog]


def test_backlogs_in_reports_are_what_was_left_to_do_half_a_round_trip_ago() -> None:
    """A disaggregated server: prefill from 0.07 to 0.17 s, decode to 0.67 s, one way 0.05 s."""
    telemetry = {**OWN_PACE, "backlogs": True}
    played = Played(system(telemetry=telemetry), [(0.02, 100, 50)])
    assert backlog_at(played, 0.1) == [0, 0]  # emitted at 0.05 s
    assert backlog_at(played, 0.2) == [100, 50]  # at 0.15 s
    assert backlog_at(played, 0.3) == [0, 50]
    assert backlog_at(played, 0.7) == [0, 50]
    assert backlog_at(played, 0.8) == [0, 0]
    silent = Played(system(telemetry=OWN_PACE), [(0.02, 100, 50)])
    assert backlog_at(silent, 0.2) == [0, 0]


def test_a_batching_server_counts_its_backlog_down_token_by_token() -> None:
    """First token at 0.07 + 0.11 = 0.18 s, then one every 10 ms: 50 tokens by 0.67 s."""
    telemetry = {**OWN_PACE, "backlogs": True}
    played = Played(system(telemetry=telemetry, server=ROUND), [(0.02, 100, 50)])
    assert backlog_at(played, 0.1) == [0, 0]
    assert backlog_at(played, 0.2) == [100, 50]
    # At 0.255 s there would have been 1 + 7 tokens; reports come every 10 ms, as tokens do.
    assert backlog_at(played, 0.3) in ([0, 42], [0, 43])
    assert backlog_at(played, 0.5) in ([0, 22], [0, 23])
    assert backlog_at(played, 0.8) == [0, 0]


def test_cells_have_the_hardware_that_they_name() -> None:
    """Zero-load time by hand, h100: prefill in 500 / 512 + 1/2 iterations, then 199 of decode."""
    scenario = load_scenario("batching")
    presets = [cell.hardware for cell in scenario.cells]
    times_s = zero_load_times_s(scenario)
    h100 = times_s[presets.index("h100")]
    iterations = 500 / 512 + 0.5 + 199
    square = 200**2 + 190**2 / 2
    context = 500 * 200 - 500 + (square - 200) / 2
    by_hand_s = iterations * (29.889e-3 + 0.19928e-3) + 0.1785e-6 * context + 0.065743e-3 * 500
    assert h100 == pytest.approx(by_hand_s, rel=1e-12)
    per_server = nominal_rates_rps(scenario) / [cell.servers for cell in scenario.cells]
    a100, b200 = (per_server[presets.index(name)] for name in ("a100", "b200"))
    assert a100 < per_server[presets.index("h100")] < b200


def test_a_cache_below_a_mean_request_is_refused_at_load() -> None:
    with pytest.raises(ScenarioError, match=r"server.kv_tokens = 699 is below a mean request"):
        override(load_scenario("batching"), {"server.kv_tokens": 699})
    override(load_scenario("batching"), {"server.kv_tokens": 700})
    # Mean context of the default sessions: 1,334.8 tokens more.
    with pytest.raises(ScenarioError, match=r"server.kv_tokens = 2,000 is below"):
        override(load_scenario("batching"), {"server.kv_tokens": 2_000, "demand.sessions": {}})


def test_a_server_of_another_kind_replaces_the_table() -> None:
    scenario = override(load_scenario("global_six"), {"server": PLAIN})
    assert scenario.server.kind == "continuous_batching"
    assert scenario.server.queue_limit == 128
    wider = override(scenario, {"server": {"max_batch": 16}})
    assert wider.server.kind == "continuous_batching"
    assert override(wider, {"server": {"kind": "disaggregated"}}).server.queue_limit == 32
    document = {"base": "global_six", "name": "b", "server": {"kind": "continuous_batching"}}
    assert load_scenario(document).server.kind == "continuous_batching"
