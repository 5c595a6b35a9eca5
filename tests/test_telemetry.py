"""Reports with their imperfections against hand computation and the system's own request log.

Times are multiples of 1/64 s, exact in binary, so that ties are what they look like.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override, scenario_from_dict
from dlb_gym.simulator import Simulator
from dlb_gym.views import View

PROBE_S = 1 / 64
PROMPT, OUTPUT = 80, 40
FIXED = {
    "prompt": {"loc_tokens": PROMPT, "shape": 1.0, "mean_tokens": PROMPT + 1e-3},
    "output": {"loc_tokens": OUTPUT, "shape": 1.0, "mean_tokens": OUTPUT + 1e-3},
}
PLAIN = {
    "root_replicas": 1, "turn_s": 0.0, "leaf_replicas": 1,
    "sync_interval_s": 0.0, "server_probe_interval_s": 0.0,
}  # fmt: skip
HORIZON_S = 8.0
Log = dict[str, NDArray[np.float64]]


def system(
    cells: int = 1,
    roots: int = 1,
    servers: int = 2,
    tau_s: float = 3 / 64,
    changes: dict[str, Any] | None = None,
    **telemetry: Any,
) -> Scenario:
    """Equal cells, equally far from every root; no warm-up."""
    document: dict[str, Any] = {
        "name": "system",
        "cells": [
            {"name": f"cell-{j}", "region": "us-east4", "servers": servers} for j in range(cells)
        ],
        "roots": [{"name": f"root-{i}", "region": "us-east4", "demand": 1.0} for i in range(roots)],
        "network": {"rtt_s": [[2 * tau_s] * cells] * roots},
        "tokens": FIXED,
        "telemetry": PLAIN | telemetry,
        "probe_interval_s": PROBE_S,
        "control_interval_s": PROBE_S,
        "warmup_s": 0.0,
        "horizon_s": HORIZON_S,
    }
    return scenario_from_dict(document | (changes or {}))


def started(scenario: Scenario) -> Simulator:
    """The system at clock 0 under an even split, keeping its log."""
    roots, cells = len(scenario.roots), len(scenario.cells)
    simulator = Simulator(1, roots, cells, log=True)
    simulator.reset_row(0, scenario, 7, 0)
    even = np.full((1, roots, cells), 1.0 / cells)
    simulator.set_routing(even, np.zeros(1, dtype=np.int64))
    return simulator


def watched(scenario: Scenario, steps: int) -> tuple[list[View], Simulator]:
    """What the roots know after every step, then everything answered."""
    simulator = started(scenario)
    views = []
    for step in range(1, steps + 1):
        simulator.advance(np.array([step]))
        views.append(View(*(np.copy(array) for array in simulator.view())))
    simulator.advance(np.array([steps + round(4 * HORIZON_S / PROBE_S)]))
    assert simulator.books().arrived == simulator.books().answered, "all done and without errors"
    return views, simulator


def in_order(simulator: Simulator) -> Log:
    """The log in the order of arrival, which is that of the round robin of a single root."""
    log = simulator.request_log(0)
    order = np.argsort(log["arrival_s"])
    return {name: column[order] for name, column in log.items()}


def test_a_turn_makes_the_age_of_a_report_a_sawtooth() -> None:
    """After t the root has what had come by the end of its last turn: age = tau + t mod turn."""
    tau_steps, turn_steps = 3, 16
    views, _ = watched(system(turn_s=turn_steps * PROBE_S, root_replicas=4), 200)
    for step, view in enumerate(views, start=1):
        if step < turn_steps:
            continue  # no turn has ended: the root holds the empty report of the start
        age = view.probe_age_s[0, 0, 0] / PROBE_S
        assert age == tau_steps + step % turn_steps


def test_without_turns_a_report_is_as_old_as_its_journey() -> None:
    views, _ = watched(system(), 100)
    assert {view.probe_age_s[0, 0, 0] for view in views[3:]} == {3 * PROBE_S}


def held_reports(loss: float, steps: int) -> NDArray[np.int64]:
    """Numbers of the reports held after every step, (steps, roots, cells)."""
    scenario = system(
        3,
        3,
        tau_s=0.0,
        probe_loss=loss,
        changes={"horizon_s": 100.0, "demand": {"utilisation": 0.01}},
    )
    simulator = started(scenario)
    held = []
    for step in range(1, steps + 1):
        simulator.advance(np.array([step]))
        held.append(np.round(step - simulator.view().probe_age_s[0] / PROBE_S))
    return np.array(held, dtype=np.int64)


def test_losses_are_independent_and_have_the_share_of_the_configuration() -> None:
    """A fresh report fails to come with probability q, so ages are geometric: (1 - q) q^a."""
    loss, steps = 0.3, 4000
    held = held_reports(loss, steps).reshape(steps, 9)
    lost = held < np.arange(1, steps + 1)[:, None]
    count = lost.size
    assert abs(lost.mean() - loss) < 4 * np.sqrt(loss * (1 - loss) / count)
    # Gaps between reports that came are independent and geometric.
    gaps = np.concatenate([np.diff(np.flatnonzero(~column)) for column in lost.T])
    observed = np.append(np.bincount(gaps)[1:8], (gaps >= 8).sum())
    law = np.append((1 - loss) * loss ** np.arange(7), loss**7)
    assert stats.chisquare(observed, law * len(gaps)).pvalue > 1e-3
    # Arcs lose other reports: neither roots nor cells share their luck.
    correlation = np.corrcoef(lost.T)[np.triu_indices(9, 1)]
    assert np.abs(correlation).max() < 4.5 / np.sqrt(steps)


def rif_at(log: Log, mine: NDArray[np.bool_], time_s: float) -> int:
    return int((mine & (log["leaf_s"] <= time_s) & (log["done_s"] > time_s)).sum())


@pytest.mark.parametrize(("leaves", "sync"), [(3, 4), (5, 1), (4, 8), (3, 0)])
def test_a_report_has_its_leafs_own_rif_now_and_its_peers_as_of_the_last_gathering(
    leaves: int, sync: int
) -> None:
    scenario = system(leaf_replicas=leaves, sync_interval_s=sync * PROBE_S)
    views, simulator = watched(scenario, 500)
    log = in_order(simulator)
    leaf = np.arange(len(log["leaf_s"])) % leaves  # round robin
    wrong = 0
    for step, view in enumerate(views, start=1):
        m = round(step - view.probe_age_s[0, 0, 0] / PROBE_S)
        if step < 4:
            continue
        now_s = m * PROBE_S
        synced_s = m // sync * sync * PROBE_S if sync else now_s
        own = leaf == m % leaves
        expected = rif_at(log, own, now_s) + rif_at(log, ~own, synced_s)
        assert view.rif[0, 0, 0] == expected, m
        wrong += expected != rif_at(log, np.ones_like(own), now_s)
    # The age of the peers' counts shows exactly where there is one.
    assert (wrong > 0) == (sync > 1)


def unfinished_tokens(log: Log, mine: NDArray[np.bool_], time_s: float) -> int:
    """Prompt tokens count until the first token, output tokens until the last."""
    here = mine & (log["leaf_s"] <= time_s)
    prompts = PROMPT * (here & (log["first_token_s"] > time_s)).sum()
    return int(prompts + OUTPUT * (here & (log["done_s"] > time_s)).sum())


@pytest.mark.parametrize(("leaves", "look"), [(2, 8), (1, 32), (3, 0)])
def test_a_leaf_sees_the_servers_as_of_its_last_look_and_what_it_placed_since(
    leaves: int, look: int
) -> None:
    """Of two servers both are always compared, so a request shows what its leaf saw."""
    scenario = system(
        leaf_replicas=leaves,
        server_probe_interval_s=look * PROBE_S,
        changes={"demand": {"utilisation": 0.9}},
    )
    _, simulator = watched(scenario, 512)
    log = in_order(simulator)
    leaf = np.arange(len(log["leaf_s"])) % leaves
    decided, blind = 0, 0
    for n, now_s in enumerate(log["leaf_s"]):
        before = np.arange(len(leaf)) < n
        on = [before & (log["server"] == s) for s in (0, 1)]
        true = [unfinished_tokens(log, on[s], now_s) for s in (0, 1)]
        seen = true
        if look:
            look_s = np.floor(now_s / (look * PROBE_S)) * look * PROBE_S
            placed = before & (leaf == leaf[n]) & (log["leaf_s"] > look_s)
            seen = [
                unfinished_tokens(log, on[s], look_s)
                + (PROMPT + OUTPUT) * int((placed & on[s]).sum())
                for s in (0, 1)
            ]
        if seen[0] != seen[1]:
            decided += 1
            assert log["server"][n] == np.argmin(seen)
            blind += true[int(np.argmin(seen))] > min(true)
    assert decided > 100
    assert (blind > 0) == (leaves == 2), "only with a peer whose placing it does not see"


def test_messages_are_those_of_the_formula() -> None:
    """2 a probe and arc, L (L - 1) a gathering, 2 a look, leaf and server, peers a turn and root.

    By hand for 10 s of 3 cells with 4 servers, 2 roots, L = 5, 3 root replicas; gatherings and
    looks begin at clock 0, as reports do.
    """
    simulator = started(
        system(
            3, 2, servers=4, leaf_replicas=5, root_replicas=3, turn_s=0.25,
            sync_interval_s=4 * PROBE_S, server_probe_interval_s=8 * PROBE_S,
        )
    )  # fmt: skip
    simulator.advance(np.array([640]))
    counts = simulator.counts()
    assert counts is not None
    probes = 641 * 2 * (3 * 2)
    gatherings = 161 * 3 * 5 * 4
    looks = 81 * 3 * 2 * 5 * 4
    turns = 40 * 2 * 2
    assert counts.messages[0] == probes + gatherings + looks + turns


def test_a_root_probes_only_the_cells_that_it_may_use() -> None:
    scenario = system(2, 2)
    names = ["cell-0"]
    roots = [{**scenario.roots[0].model_dump(), "reachable": names}, scenario.roots[1].model_dump()]
    simulator = started(override(scenario, {"roots": roots}))
    simulator.set_routing(np.array([[[1.0, 0.0], [0.5, 0.5]]]), np.zeros(1, dtype=np.int64))
    simulator.advance(np.array([64]))
    counts = simulator.counts()
    assert counts is not None
    assert counts.messages[0] == 65 * 2 * 3


def test_backlogs_in_reports_are_the_cells_unfinished_tokens() -> None:
    views, simulator = watched(system(backlogs=True, changes={"demand": {"utilisation": 0.9}}), 400)
    log = in_order(simulator)
    for step, view in enumerate(views[3:], start=4):
        now_s = (step - 3) * PROBE_S
        here = log["leaf_s"] <= now_s
        prompts = PROMPT * int((here & (log["first_token_s"] > now_s)).sum())
        outputs = OUTPUT * int((here & (log["done_s"] > now_s)).sum())
        np.testing.assert_array_equal(view.backlog_tokens[0, 0, 0], [prompts, outputs])


def test_one_replica_that_knows_all_is_a_system_without_telemetry() -> None:
    """The shortest telemetry table changes nothing but that messages are counted."""
    changes = {"warmup_s": 0.0, "horizon_s": 4.0}
    plain = override(load_scenario("global_six"), changes)
    logs = []
    for scenario in (plain, override(plain, {"telemetry": PLAIN})):
        simulator = started(scenario)
        simulator.advance(np.array([100]))
        logs.append((simulator.request_log(0), simulator.view().rif.copy()))
    for name, column in logs[0][0].items():
        np.testing.assert_array_equal(column, logs[1][0][name])
    np.testing.assert_array_equal(logs[0][1], logs[1][1])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"sync_interval_s": 0.02}, "telemetry.sync_interval_s = 0.02"),
        ({"turn_s": 100.0}, "telemetry.turn_s = 100"),
        ({"leaf_replicas": 201}, "telemetry.leaf_replicas"),
        ({"probe_loss": 1.0}, "telemetry.probe_loss"),
    ],
)
def test_bad_telemetry_is_refused_by_its_key(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        system(**table)
