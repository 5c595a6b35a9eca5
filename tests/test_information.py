"""The information rule: what happens in a cell reaches root i after tau_ij, and not before.

Each test plays one scenario twice in one batch, with the same seed: row 1 differs from row 0 from
a known instant on, and the first step at which each root can know is worked out by hand from the
tie rules: a report emitted at m p is seen at step k iff m p + tau <= k h. (Fault kinds 23 and 27.)
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import baselines
from baselines.mnlb import MNLB
from dlb_gym.decision import Decision
from dlb_gym.episodes import FixedScenarios, episode_source
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.policy import Policy
from dlb_gym.rates import one_way_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from dlb_gym.workload import Workload
from tests.mechanisms import MECHANISMS, scenario_with

SEED = 3
INTERVAL_S, PROBE_S, WARMUP_S, HORIZON_S = 0.02, 0.005, 2.0, 3.0
CHANGE_S = WARMUP_S + 0.25 * HORIZON_S
STEPS, FIRST = 75, 100  # steps played, and the step at which the horizon starts
PROTOCOL = {"warmup_s": WARMUP_S, "horizon_s": HORIZON_S, "control_interval_s": INTERVAL_S}
OUTAGE = {"kind": "outage", "cells": ["us-central1"], "start": 0.25, "end": 1.0}
BURST = {"kind": "burst", "root": "us-east4", "start": 0.25, "end": 1.0, "to_utilisation": 2.5}

# What the root knows by itself, whatever other roots and cells do, where no mechanism is on.
OWN = ("admissible", "rtt", "zero_load_time_s", "control_interval", "routing", "arrival_load",
       "model_alpha", "model_beta", "model_knee", "model_smoothing", "aversion",
       "probe_age", "prefill_backlog", "decode_backlog", "tail_alpha", "tail_beta", "tail_knee",
       "tail_smoothing")  # fmt: skip
LOCAL = [name for name in baselines.names() if baselines.make(name).information == "local"]


def pair(disturbance: dict[str, Any], **changes: Any) -> tuple[Task, Scenario]:
    """A task of two rows, undisturbed and disturbed."""
    plain = override(load_scenario("global_six"), PROTOCOL | changes)
    return Task(episode_source([plain, override(plain, {"disturbances": [disturbance]})]), 2), plain


def first_step(event_s: float, tau_s: float) -> int:
    """The first step at which a root tau away sees a report emitted at or after an event."""
    report = math.ceil(event_s / PROBE_S - 1e-9)
    step = math.ceil((report * PROBE_S + tau_s) / INTERVAL_S - 1e-9)
    return step - FIRST


def cubes(task: Task, observation: NDArray[np.float32]) -> NDArray[np.float32]:
    """(rows, fields, roots, cells)."""
    fields = task.spec.observation.decode(observation)
    return np.stack([fields[name] for name in FIELD_NAMES], axis=1)


def first_differences(history: list[NDArray[Any]]) -> NDArray[np.int64]:
    """First step at which rows 0 and 1 differ, per entry; the length where they never do."""
    stacked = np.stack(history)
    differ = stacked[:, 0] != stacked[:, 1]
    return np.where(differ.any(axis=0), differ.argmax(axis=0), len(history))


def open_loop(task: Task, routing: NDArray[np.float64]) -> NDArray[np.int64]:
    """First differing step per (field, root, cell) under a fixed routing."""
    history = [cubes(task, task.reset(seeds=[SEED, SEED]))]
    history.extend(cubes(task, task.step_routing(routing).observation) for _ in range(STEPS))
    return first_differences(history)


def test_an_outage_is_known_to_a_root_exactly_when_the_first_report_of_it_arrives() -> None:
    task, scenario = pair(OUTAGE)
    tau_s = one_way_s(scenario)
    first = open_loop(task, np.full((2, 6, 6), 1 / 6))
    for root in range(6):
        expected = first_step(CHANGE_S, tau_s[root, 0])
        assert 0 < expected < STEPS
        servers, capacity = (FIELD_NAMES.index(n) for n in ("servers", "capacity_load"))
        assert first[servers, root, 0] == first[capacity, root, 0] == expected
        assert first[:, root, 0].min() == expected, "no field of the row may know earlier"
        # Nobody reacts, so the other cells never change.
        assert first[:, root, 1:].min() > STEPS


def test_every_field_of_a_far_cell_changes_after_its_outage_and_own_fields_never() -> None:
    """A queue limit of 12 turns the outage into errors; own requests then return early or late."""
    task, scenario = pair(OUTAGE, server={"queue_limit": 12})
    tau_s = one_way_s(scenario)
    first = open_loop(task, np.full((2, 6, 6), 1 / 6))
    for index, name in enumerate(FIELD_NAMES):
        for root in range(6):
            if name in OWN:
                assert first[index, root].min() > STEPS, name
            else:
                known = first_step(CHANGE_S, tau_s[root, 0])
                assert known <= first[index, root, 0] <= STEPS, name


def test_a_far_roots_burst_reaches_a_root_through_the_cells_it_loads() -> None:
    """us-east4 keeps its requests at home: its cell's load changes with the first one more."""
    task, scenario = pair(BURST)
    tau_s = one_way_s(scenario)
    arrivals = [Workload(s, SEED, 0).chunk(0)[1][:, 0] for s in task._source.scenarios]  # type: ignore[attr-defined]
    extra_s = float(np.setdiff1d(arrivals[1], arrivals[0]).min())
    assert CHANGE_S < extra_s < CHANGE_S + 0.1
    leaf_s = (extra_s + scenario.router_delay_s) + tau_s[1, 1]
    first = open_loop(task, np.tile(np.eye(6), (2, 1, 1)))
    rif = FIELD_NAMES.index("rif")
    for root in (0, 2, 3, 4, 5):
        known = first_step(leaf_s, tau_s[root, 1])
        assert first[rif, root, 1] == known
        assert first[:, root].min() == known
    own = FIELD_NAMES.index("arrival_load")
    assert first[own, 1].max() == math.ceil(extra_s / INTERVAL_S) - FIRST


def played(task: Task, name: str, steps: int) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """What the two rows' roots see, and a baseline's decisions in closed loop, step by step."""
    return played_by(baselines.make(name), task, steps)


def played_by(
    policy: Policy, task: Task, steps: int
) -> tuple[list[NDArray[Any]], list[NDArray[Any]]]:
    """As `played`, for a policy."""
    policy.reset(task.spec, 2, 0)
    observation = task.reset(seeds=[SEED, SEED])
    seen, decided = [], []
    for _ in range(steps):
        decision = policy.act(observation)
        forms = (
            decision.routing, decision.base, decision.slope, decision.offset, decision.table,
        )  # fmt: skip
        seen.append(cubes(task, observation))
        decided.append(np.stack([form for form in forms if form is not None], axis=1))
        observation = task.step(decision).observation
    return seen, decided


OF_SERVERS = {"random", "wrr", "maglev"}
"""Local policies that read no queue; an outage they see."""
DEAF = {"nearest", "ecmp"}
"""Those that see neither, as every cell keeps a server."""


@pytest.mark.parametrize("disturbance", [OUTAGE, BURST], ids=["outage", "burst"])
@pytest.mark.parametrize("name", LOCAL)
def test_a_local_policys_row_stays_the_same_until_the_network_can_have_told_it(
    name: str, disturbance: dict[str, Any]
) -> None:
    """Fault kind 23. Other roots react too, but news through them travels no shorter a way."""
    task, scenario = pair(disturbance)
    tau_s = one_way_s(scenario)
    source = 0 if disturbance is OUTAGE else 1
    seen, decided = played(task, name, STEPS)
    first_seen = first_differences(seen).min(axis=(0, 2))
    first_decided = first_differences(decided).min(axis=(0, 2))
    for root in range(6):
        if disturbance is BURST and root == source:
            continue
        if disturbance is OUTAGE:
            known = first_step(CHANGE_S, tau_s[root, source])
            assert first_seen[root] == known
        else:
            known = first_step(CHANGE_S, min(tau_s[root, j] + tau_s[source, j] for j in range(6)))
            assert known <= first_seen[root] < STEPS
        assert first_decided[root] >= first_seen[root]
        if name.startswith("flow") or (name in OF_SERVERS and disturbance is OUTAGE):
            assert first_decided[root] < STEPS, "a gradual policy reacts in every root"
    reacts = np.delete(first_decided, source).min() < STEPS
    deaf = DEAF if disturbance is OUTAGE else DEAF | OF_SERVERS
    assert reacts == (name not in deaf)


def test_a_central_policy_reacts_after_its_reports_have_come_and_its_weights_gone() -> None:
    """Fault kind 23: MNLB, planning every 0.2 s, sees all roots' rows, late by the longest tau.

    Reports of the first period that ends once some root knows travel that long, and weights again.
    """
    task, scenario = pair(OUTAGE)
    tau_s = one_way_s(scenario)
    delay, period = math.ceil(tau_s.max() / INTERVAL_S), round(0.2 / INTERVAL_S)
    seen, decided = played_by(MNLB(period_s=0.2), task, STEPS)
    first_seen = int(first_differences(seen).min())
    assert first_seen == min(first_step(CHANGE_S, tau_s[root, 0]) for root in range(6))
    first_decided = int(first_differences(decided).min())
    assert first_decided == math.ceil(first_seen / period) * period + 2 * delay


def test_a_static_policy_never_learns_of_it() -> None:
    """Fault kind 23."""
    task, _ = pair(OUTAGE)
    policy = baselines.make("capacity")
    policy.reset(task.spec, 2, 0)
    observation = task.reset(seeds=[SEED, SEED])
    for _ in range(STEPS):
        routing = policy.act(observation).routing
        assert routing is not None
        np.testing.assert_array_equal(routing[0], routing[1])
        observation = task.step(Decision(routing)).observation


@pytest.mark.parametrize(("sender", "target"), list(itertools.permutations(range(6), 2)))
def test_a_switch_of_one_row_takes_effect_after_the_documented_delays(
    sender: int, target: int
) -> None:
    """Fault kind 27. Root `sender` of row 1 switches from its own cell to `target` after step 10.

    It does so at the start of the first interval in which it has a request, so that one step of
    delay shows. That request, at a, reaches the leaf at (a + router delay) + tau; `routing`
    shows it at the end of its interval, RIF and received counts at the leaf's, and root i's row
    when the first report after that arrives.
    """
    plain = override(load_scenario("global_six"), PROTOCOL)
    task = Task(episode_source(plain), 2)
    tau_s = one_way_s(plain)
    arrivals_s = Workload(plain, SEED, 0).chunk(0)[sender][:, 0]
    sent_s = float(arrivals_s[arrivals_s > (FIRST + 10) * INTERVAL_S][0])
    switch = math.ceil(sent_s / INTERVAL_S - 1e-9) - 1 - FIRST
    leaf_s = (sent_s + plain.router_delay_s) + tau_s[sender, target]
    history = [cubes(task, task.reset(seeds=[SEED, SEED]))]
    rif, received = [], []
    routing = np.tile(np.eye(6), (2, 1, 1))
    for step in range(60):
        if step == switch:
            routing[1, sender] = np.eye(6)[target]
        history.append(cubes(task, task.step_routing(routing).observation))
        truth = task.simulator.truth()
        rif.append(truth.rif.copy())
        received.append(truth.received[:, sender].copy())
    first = first_differences(history)
    assert first[FIELD_NAMES.index("routing"), sender, target] == switch + 1
    at_leaf = math.ceil(leaf_s / INTERVAL_S - 1e-9) - FIRST
    assert first_differences(received)[target] + 1 == at_leaf
    assert first_differences(rif)[target] + 1 == at_leaf
    for root in range(6):
        known = first_step(leaf_s, tau_s[root, target])
        assert first[FIELD_NAMES.index("rif"), root, target] == known
        if root != sender:
            assert first[:, root, target].min() == known


# A small system whose last cell and root are far from the others.
FAR, NEAR_S, FAR_S = 2, 0.05, 0.12
ROUND_TRIPS_S = [
    [0.0, 2 * NEAR_S, 2 * FAR_S],
    [2 * NEAR_S, 0.0, 2 * FAR_S],
    [2 * FAR_S, 2 * FAR_S, 0.0],
]
SMALL_STEPS = 40
EVENT = {"start": 0.3, "end": 1.0}
EVENTS: dict[str, dict[str, Any]] = {
    "outage": {"kind": "outage", "cells": ["cell-2"]},
    "server_crash": {"kind": "server_crash", "cells": ["cell-2"], "servers": 3},
    "black_hole": {"kind": "black_hole", "cells": ["cell-2"], "error_fraction": 0.9},
    "slow_cell": {"kind": "slow_cell", "cells": ["cell-2"], "speed": 0.3},
    "leaf_crash": {"kind": "leaf_crash", "cells": ["cell-2"]},
    "burst": {"kind": "burst", "root": "cell-2", "to_utilisation": 4.0},
}


def small_pair(mechanism: str, event: str) -> tuple[Task, Scenario, NDArray[np.float64]]:
    """Rows without and with an event; when each root can know of it at the earliest."""
    plain = scenario_with(mechanism, **{"network.rtt_s": ROUND_TRIPS_S})
    # Faults of the mechanism itself stay in the near cells.
    present = [each.model_dump() for each in plain.disturbances]
    disturbed = override(plain, {"disturbances": [*present, EVENTS[event] | EVENT]})
    event_s = plain.warmup_s + EVENT["start"] * plain.horizon_s
    tau_s = one_way_s(plain)
    travel_s = (tau_s[FAR] + tau_s).min(axis=1) if event == "burst" else tau_s[:, FAR]
    return Task(FixedScenarios([plain, disturbed]), 2), plain, event_s + travel_s


def allowed(mechanism: str, event: str) -> bool:
    """Whether the two may stand in one scenario."""
    if mechanism == "autoscaler":
        return event == "burst"
    if event == "leaf_crash":
        return mechanism.startswith(("telemetry", "everything"))
    return True


CASES = [(m, e) for m in MECHANISMS for e in EVENTS if allowed(m, e)]


@pytest.mark.parametrize(("mechanism", "event"), CASES)
def test_under_every_mechanism_no_root_knows_before_the_network_can_have_told_it(
    mechanism: str, event: str
) -> None:
    """Closed loop, in which errors, answers, reports, models and aversion all reach the roots."""
    assert_nothing_known_early(mechanism, event, "flow-gradient")


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("mechanism", ["everything", "everything batching"])
def test_with_every_mechanism_no_local_policy_decides_by_what_it_cannot_know(
    mechanism: str, name: str
) -> None:
    for event in ("server_crash", "burst"):
        assert_nothing_known_early(mechanism, event, name)


def assert_nothing_known_early(mechanism: str, event: str, name: str) -> None:
    task, scenario, known_s = small_pair(mechanism, event)
    seen, decided = played(task, name, SMALL_STEPS)
    first_seen = first_differences(seen)
    first_decided = first_differences(decided).min(axis=(0, 2))
    for root in range(FAR):
        earliest = math.ceil(
            (known_s[root] - scenario.warmup_s) / scenario.control_interval_s - 1e-9
        )
        early = [
            FIELD_NAMES[f] for f in range(len(FIELD_NAMES)) if first_seen[f, root].min() < earliest
        ]
        assert not early, (root, earliest, early)
        assert first_decided[root] >= earliest
    assert first_seen[:, :FAR].min() < SMALL_STEPS, "the event is felt in the end"
