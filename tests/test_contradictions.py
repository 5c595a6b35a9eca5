"""Mechanisms that contradict one another are named at load; those that do not, run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlb_gym.envs import DLBEnv
from dlb_gym.episodes import FixedScenarios
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from tests.scripted import assert_balanced
from tests.short_episodes import ring

TRACE = {
    "path": "requests.csv",
    "sha256": "0" * 64,
    "time_column": "time",
    "prompt_column": "prompt",
    "output_column": "output",
}
THREE = ring(3)["cells"]
PEERS = {"leaf_replicas": 3, "root_replicas": 2}
CONTRADICTIONS: list[tuple[dict[str, Any], str]] = [
    ({"affinity": {}}, "affinity without sessions has nothing to stick to: add demand.sessions"),
    (
        {"latency_estimate": {"kind": "oracle", "background": 0.005}},
        r"background = 0\.005 has no effect with kind = 'oracle': set kind = 'online'",
    ),
    (
        {"latency_estimate": {"kind": "online", "epsilon": 0.2}},
        r"epsilon = 0\.2 has no effect with kind = 'online': set kind = 'noisy'",
    ),
    (
        {"cells": [ring(1)["cells"][0] | {"hardware": "h100"}]},
        r"cells\.0\.hardware = 'h100' has no effect on disaggregated",
    ),
    ({"probe_interval_s": 0.7}, r"probe_interval_s = 0\.7 exceeds horizon_s = 0\.5: no probe"),
    (
        {"server": {"kind": "continuous_batching", "kv_tokens": 500}},
        r"server\.kv_tokens = 500 is below a mean request of 500 prompt and 200 output tokens",
    ),
    (
        {"server": {"kind": "continuous_batching", "queue_limit": 8}},
        "queue_limit = 8 is below max_batch = 64",
    ),
    (
        {"telemetry": {"sync_interval_s": 0.012}},
        r"telemetry\.sync_interval_s = 0\.012 is no whole number of probe intervals of 0\.005",
    ),
    (
        {"telemetry": {"server_probe_interval_s": 0.004}},
        r"telemetry\.server_probe_interval_s = 0\.004 is no whole number of probe intervals",
    ),
    *(
        (
            {"telemetry": {key: 0.6}},
            rf"telemetry\.{key} = 0\.6 exceeds horizon_s = 0\.5; shorten it",
        )
        for key in ("turn_s", "sync_interval_s", "server_probe_interval_s", "probe_timeout_s")
    ),
    (
        {
            "telemetry": {"leaf_replicas": 200},
            "cells": [cell | {"servers": 20_000} for cell in THREE],
        },
        r"leaf_replicas = 200 in 3 cells of up to 20,000 servers makes 12,000,000 views of a "
        "server in a replication; at most 10,000,000 are kept: lower it",
    ),
    (
        {"telemetry": {"probe_timeout_s": 0.1}},
        r"telemetry\.probe_timeout_s = 0\.1 must exceed the longest round trip of 0\.1 s",
    ),
    (
        {
            "telemetry": {"probe_timeout_s": 0.2},
            "disturbances": [{"kind": "latency_shift", "extra_s": 0.06}],
        },
        r"probe_timeout_s = 0\.2 must exceed .* \(a latency shift of 0\.06 s included\) of 0\.22 s",
    ),
    (
        {"disturbances": [{"kind": "leaf_crash"}]},
        r"disturbances\.0: a leaf_crash needs router replicas; add a telemetry table",
    ),
    (
        {"telemetry": PEERS, "disturbances": [{"kind": "leaf_crash", "replicas": 3}]},
        r"disturbances\.0\.replicas = 3 must be below telemetry\.leaf_replicas = 3",
    ),
    (
        {"telemetry": PEERS, "disturbances": [{"kind": "root_crash", "replicas": 2}]},
        r"disturbances\.0\.replicas = 2 must be below telemetry\.root_replicas = 2",
    ),
    (
        {"latency_estimate": {"refit_interval_s": 0.08}},
        r"latency_estimate\.refit_interval_s = 0\.08 is shorter than control_interval_s",
    ),
    (
        {"control_interval_s": 0.01, "latency_estimate": {"refit_interval_s": 0.04}},
        r"latency_estimate\.refit_interval_s = 0\.04 is shorter than reports travel: .* 0\.05 s",
    ),
    (
        {"error_aversion": {"interval_s": 0.05}},
        r"error_aversion\.interval_s = 0\.05 is shorter than control_interval_s = 0\.1",
    ),
    (
        {"error_aversion": {"silence_s": 0.03}, "telemetry": {"turn_s": 0.025}},
        r"error_aversion\.silence_s = 0\.03 is no longer than reports of a healthy cell lie apart",
    ),
    (
        {"autoscaler": {"interval_s": 0.25}},
        r"autoscaler\.interval_s = 0\.25 is no whole number of control intervals",
    ),
    (
        {"autoscaler": {"extra_servers": 0, "least_share": 1}},
        "extra_servers = 0 and least_share = 1 leave an autoscaler nothing to change: raise the o",
    ),
    (
        {"autoscaler": {}, "disturbances": [{"kind": "outage"}]},
        r"disturbances\.0: an autoscaler and a outage would both write a cell's schedule",
    ),
    (
        {"demand": {"sessions": {}, "trace": TRACE}},
        r"demand\.sessions shapes synthetic arrivals and demand\.trace brings its own",
    ),
    (
        {"demand": {"trace": TRACE}, "affinity": {}},
        "affinity without sessions .* name the trace's hash_ids_column",
    ),
    (
        {"demand": {"sessions": {"least_gap_s": 3.0, "gap_s": 2.0}}},
        r"least_gap_s = 3\.0 must be less than the mean, gap_s = 2\.0",
    ),
    (
        ring(11) | {"demand": {"sessions": {}}, "affinity": {"cache_sessions": 1_000_000}},
        r"affinity\.cache_sessions = 1,000,000 in 11 cells makes 11,000,000 sessions in a "
        "replication; at most 10,000,000 are kept: lower it",
    ),
    (
        ring(11) | {"demand": {"sessions": {}}, "affinity": {"map_sessions": 1_000_000}},
        r"affinity\.map_sessions = 1,000,000 in 11 roots makes 11,000,000 sessions in a",
    ),
    ({"retries": {"attempts": 0}}, r"retries\.attempts"),
    ({"telemetry": {"probe_loss": 1.0}}, r"telemetry\.probe_loss"),
    ({"disturbances": [{"kind": "slow_cell", "cells": ["cell-9"]}]}, "names 'cell-9'"),
    ({"disturbances": [{"kind": "partition", "roots": ["cell9"]}]}, "names 'cell9'"),
    ({"disturbances": [{"kind": "slow_cell", "start": 0.7, "end": 0.2}]}, "must come before"),
]


@pytest.mark.parametrize(("changes", "message"), CONTRADICTIONS)
def test_contradictory_mechanisms_are_named_at_construction(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        DLBEnv(ring(3) | changes)


def test_a_timeout_that_a_familys_round_trips_contradict_is_refused_before_any_episode() -> None:
    with pytest.raises(ValueError, match=r"telemetry\.probe_timeout_s = 0\.01 must exceed"):
        DLBEnv(family="appendix_b", changes={"telemetry": {"probe_timeout_s": 0.01}})


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


def table(**keys: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=keys)


FRACTION = st.sampled_from([0.0, 0.05, 0.5, 0.95, 1.0])
SPAN_S = st.sampled_from([0.0, 0.005, 0.01, 0.05, 0.1, 0.2, 0.5, 1.0])
COUNT = st.sampled_from([1, 2, 3, 7, 50])
CELLS = maybe(st.sampled_from([["cell-0"], ["cell-1"], ["cell-0", "cell-1"]]))
TIMES = {"start": FRACTION, "end": FRACTION}
DISTURBANCES = st.one_of(
    *(
        st.builds(lambda kind, rest: {"kind": kind} | rest, st.just(kind), table(**TIMES, **keys))
        for kind, keys in {
            "burst": {"to_utilisation": st.sampled_from([0.95, 2.0])},
            "outage": {"servers_left": COUNT, "cells": CELLS},
            "server_crash": {"servers": COUNT, "cells": CELLS},
            "black_hole": {"error_fraction": FRACTION, "cells": CELLS},
            "slow_cell": {"speed": FRACTION, "cells": CELLS},
            "leaf_crash": {"replicas": COUNT, "cells": CELLS},
            "root_crash": {"replicas": COUNT, "roots": CELLS},
            "partition": {"cells": CELLS, "roots": CELLS},
            "latency_shift": {"extra_s": SPAN_S, "cells": CELLS, "roots": CELLS},
        }.items()
    )
)
# Few server designs: each is calibrated once.
SERVER_DESIGNS: list[dict[str, Any]] = [
    {"queue_limit": 4},
    {"queue_limit": 4, "max_wait_s": 0.05},
    {"kind": "continuous_batching", "max_batch": 4, "queue_limit": 8, "kv_tokens": 40_000},
    {
        "kind": "continuous_batching", "max_batch": 4, "queue_limit": 8, "kv_tokens": 40_000,
        "draft_tokens": 2, "acceptance": 0.6, "max_wait_s": 0.2,
    },
]  # fmt: skip
DRAWN = {
    "server": st.sampled_from(SERVER_DESIGNS),
    "dispatch": st.sampled_from(["sample", "smooth"]),
    "probe_interval_s": st.sampled_from([0.005, 0.01, 0.3]),
    "demand.sessions": maybe(
        table(mean_turns=st.sampled_from([1.0, 3.0]), hash_values=COUNT, hot_fraction=FRACTION)
    ),
    "telemetry": maybe(
        table(
            probe_loss=FRACTION, probe_timeout_s=SPAN_S, root_replicas=COUNT, turn_s=SPAN_S,
            leaf_replicas=COUNT, sync_interval_s=SPAN_S, server_probe_interval_s=SPAN_S,
            backlogs=st.booleans(),
        )
    ),
    "latency_estimate": st.one_of(
        table(kind=st.just("oracle")),
        table(kind=st.just("noisy"), epsilon=FRACTION),
        table(
            kind=st.just("online"), refit_interval_s=SPAN_S, memory_s=SPAN_S, background=FRACTION,
            dither=FRACTION,
        ),
    ),
    "error_aversion": maybe(
        table(interval_s=SPAN_S, tolerance=FRACTION, highest=FRACTION, silence_s=SPAN_S)
    ),
    "affinity": maybe(
        table(
            kind=st.sampled_from(["conditional", "sticky", "consistent_hash", "none"]),
            cache_tokens=COUNT.map(lambda count: 40 * count), cache_sessions=COUNT,
            map_sessions=COUNT,
        )
    ),
    "retries": maybe(table(attempts=COUNT, budget=FRACTION)),
    "autoscaler": maybe(
        table(
            kind=st.sampled_from(["utilisation", "marginal_latency"]), interval_s=SPAN_S,
            delay_s=SPAN_S, extra_servers=FRACTION, least_share=FRACTION,
        )
    ),
    "disturbances": st.lists(DISTURBANCES, max_size=3),
}  # fmt: skip


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(st.fixed_dictionaries({}, optional=DRAWN))
def test_random_values_are_refused_by_name_or_run(changes: dict[str, Any]) -> None:
    plain = {"horizon_s": 2.0, "warmup_s": 1.0, "demand.utilisation": 0.9}
    try:
        scenario = override(load_scenario(ring(2)), plain | changes)
        FixedScenarios([scenario])
    except ValueError:
        return
    assert_runs(scenario, 0)


def assert_runs(scenario: Scenario, seed: int) -> None:
    """To the end and beyond: books balance, observations lie in bounds, rewards are finite."""
    task = Task(FixedScenarios([scenario]), 1)
    observation = task.reset(seeds=[seed])
    space = task.spec.observation.space
    routing = task.admissible / task.admissible.sum(axis=-1, keepdims=True)
    for _ in range(scenario.intervals(scenario.horizon_s)):
        assert space.contains(observation[0])
        moved = task.step_routing(routing)
        assert np.isfinite(moved.reward).all()
        observation = moved.observation
        assert_balanced(task.simulator)
    task.drain()
    assert_balanced(task.simulator)
    assert not np.isinf(list(task.summary(0).values())).any()


def any_of(rng: np.random.Generator, values: dict[str, list[Any]]) -> dict[str, Any]:
    return {key: own[int(rng.integers(len(own)))] for key, own in values.items()}


def random_mechanisms(rng: np.random.Generator) -> dict[str, Any]:
    """Every mechanism with probability 0.6, with values that agree with one another."""
    tables: dict[str, dict[str, list[Any]]] = {
        "telemetry": {
            "probe_loss": [0.0, 0.3, 0.95], "probe_timeout_s": [0.35, 1.0],
            "root_replicas": [2, 5], "turn_s": [0.0, 0.025, 0.33], "leaf_replicas": [2, 7],
            "sync_interval_s": [0.0, 0.01, 0.5], "server_probe_interval_s": [0.0, 0.03],
            "backlogs": [True, False],
        },
        "latency_estimate": [
            {
                "kind": ["online"], "refit_interval_s": [0.25, 0.7], "memory_s": [0.1, 60.0],
                "prior_sd": [0.1, 100.0], "background": [0.0, 0.5], "dither": [0.0, 0.9],
            },
            {"kind": ["noisy"], "epsilon": [0.0, 0.1, 0.9]},
        ][int(rng.integers(2))],
        "error_aversion": {
            "interval_s": [0.1, 0.3], "tolerance": [0.0, 1.0], "gain": [0.1, 100.0],
            "highest": [0.1, 0.99], "rise": [0.1, 1.0], "quiet_answers": [0, 100],
            "silence_s": [0.4, 2.0],
        },
        "retries": {"attempts": [1, 5], "budget": [0.0, 0.1, 1.0]},
        "affinity": {
            "kind": ["conditional", "sticky", "consistent_hash", "none"],
            "cache_tokens": [1, 500, 100_000], "cache_sessions": [1, 5, 300],
            "map_sessions": [1, 9, 300],
        },
        "autoscaler": {
            "kind": ["utilisation", "marginal_latency"], "interval_s": [0.1, 0.5],
            "delay_s": [0.0, 0.25, 1.0], "extra_servers": [0.25, 2.0], "least_share": [0.0, 0.5],
        },
    }  # fmt: skip
    drawn = {key: any_of(rng, own) for key, own in tables.items() if rng.random() < 0.6}
    if "affinity" in drawn:
        drawn["demand.sessions"] = any_of(
            rng, {"mean_turns": [1.0, 4.0], "gap_s": [0.5], "least_gap_s": [0.1],
                  "hash_values": [1, 50, None], "hot_fraction": [0.0, 0.2]},
        )  # fmt: skip
    server = SERVER_DESIGNS[int(rng.integers(len(SERVER_DESIGNS)))]
    kinds: dict[str, dict[str, list[Any]]] = {
        "burst": {"to_utilisation": [1.2, 3.0]},
        "partition": {"roots": [None, ["cell-0"], ["cell-0", "cell-1"]]},
        "latency_shift": {"extra_s": [0.01, 0.1]},
    }
    if "telemetry" in drawn:
        kinds["root_crash"] = {"roots": [["cell-0"]]}
    if "autoscaler" not in drawn:
        kinds |= {
            "outage": {"servers_left": [1, 3], "cells": [["cell-0"], ["cell-1"]]},
            "server_crash": {"servers": [1, 9]},
            "black_hole": {"error_fraction": [0.1, 1.0]},
            "slow_cell": {"speed": [0.01, 0.7]},
        }
        if "telemetry" in drawn:
            kinds["leaf_crash"] = {"cells": [["cell-1"]]}
    chosen = [str(kind) for kind in rng.permutation(list(kinds))[: rng.integers(5)]]
    times: list[list[float]] = np.sort(rng.random((len(chosen), 2)), axis=1).tolist()
    faults = [
        {"kind": kind, "start": start, "end": end} | any_of(rng, kinds[kind])
        for kind, (start, end) in zip(chosen, times, strict=True)
    ]
    return drawn | {"server": server, "disturbances": faults}


@pytest.mark.parametrize("seed", range(60))
def test_random_combinations_that_agree_run(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shared = {
        "horizon_s": 3.0,
        "warmup_s": 0.5,
        "demand.utilisation": float(rng.uniform(0.3, 1.1)),
        "dispatch": ["sample", "smooth"][int(rng.integers(2))],
    }
    cells = 2 + int(rng.integers(3))
    assert_runs(override(load_scenario(ring(cells)), shared | random_mechanisms(rng)), seed)
