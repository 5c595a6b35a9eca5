"""With mechanisms, too, a row is the same bytes whatever its neighbours and wherever it runs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym import simulator
from dlb_gym.decision import Decision
from dlb_gym.episodes import FixedScenarios
from dlb_gym.scenario import Scenario
from dlb_gym.task import Task
from tests.mechanisms import MECHANISMS, scenario_with
from tests.parity.test_processes import elsewhere

STEPS = 30
SEED = 11
ALL = list(MECHANISMS)


class Run(NamedTuple):
    """What a row showed: bytes of observations, rewards and log, and its summary."""

    observations: list[bytes]
    rewards: list[float]
    log: dict[str, bytes]
    summary: str


def play(
    scenarios: Sequence[Scenario],
    seeds: Sequence[int],
    starts: Sequence[int] | None = None,
    steps: int = STEPS,
) -> list[Run]:
    """Each row's run of `steps` steps from its own start on, under decisions of its own."""
    starts = [0] * len(seeds) if starts is None else starts
    rows = len(scenarios)
    task = Task(FixedScenarios(scenarios), rows, log=True)
    observations: list[list[bytes]] = [[] for _ in scenarios]
    rewards: list[list[float]] = [[] for _ in scenarios]
    rngs = [np.random.default_rng(seed) for seed in seeds]
    for step in range(max(starts) + steps):
        begun = np.array([start == step for start in starts])
        if begun.any():
            first = task.reset(begun, [seed for seed, now in zip(seeds, begun, strict=True) if now])
            for r in np.flatnonzero(begun):
                observations[r].append(cut(task, first, int(r), scenarios[r]))
        playing = np.array([start <= step < start + steps for start in starts])
        moved = task.step(drawn(task, scenarios, rngs, playing, step - np.array(starts)), playing)
        for r in np.flatnonzero(playing):
            observations[r].append(cut(task, moved.observation, int(r), scenarios[r]))
            rewards[r].append(float(moved.reward[r]))
    return [
        Run(
            observations[r],
            rewards[r],
            {name: column.tobytes() for name, column in task.simulator.request_log(r).items()},
            repr(shared(task.summary(r))),
        )
        for r in range(rows)
    ]


def shared(summary: dict[str, float]) -> dict[str, float]:
    """Metrics that a batch without mechanisms has as well."""
    absent = ("messages", "resent", "prefix_")
    return {name: value for name, value in summary.items() if not name.startswith(absent)}


def drawn(
    task: Task,
    scenarios: Sequence[Scenario],
    rngs: list[np.random.Generator],
    playing: NDArray[np.bool_],
    steps: NDArray[np.int64],
) -> Decision:
    """Routing drawn row by row, so that neighbours do not change it."""
    routing = np.where(task.admissible, 1.0, 0.0)
    for r, scenario in enumerate(scenarios):
        if playing[r] and steps[r] % 3 == 0:
            shape = (len(scenario.roots), len(scenario.cells))
            routing[r, : shape[0], : shape[1]] = rngs[r].integers(1, 5, shape)
    return Decision(routing / np.maximum(routing.sum(axis=-1, keepdims=True), 1.0))


def cut(task: Task, observation: NDArray[np.float32], r: int, scenario: Scenario) -> bytes:
    """The fields of the row's own roots and cells."""
    fields = task.spec.observation.decode(observation)
    roots, cells = len(scenario.roots), len(scenario.cells)
    return np.array([field[r, :roots, :cells] for field in fields.values()]).tobytes()


def alone(scenario: Scenario, seed: int) -> Run:
    return play([scenario], [seed])[0]


def test_rows_of_different_mechanisms_are_singles() -> None:
    """Rows of 2 to 4 cells, padded, with every mechanism on its own and rows without any."""
    scenarios = [scenario_with(name, 2 + k % 3) for k, name in enumerate([None, *ALL, None])]
    seeds = [SEED + k for k in range(len(scenarios))]
    together = play(scenarios, seeds)
    for scenario, seed, run in zip(scenarios, seeds, together, strict=True):
        assert run == alone(scenario, seed), scenario.name


@pytest.mark.parametrize("first", ["everything", "everything batching", "hashed", "unrouted", None])
def test_a_neighbour_that_starts_in_mid_episode_changes_nothing(first: str | None) -> None:
    """It needs longer arrays of every kind, and the extras themselves where there were none."""
    late = scenario_with(
        "everything",
        4,
        **{
            "telemetry.leaf_replicas": 9,
            "affinity": {"cache_sessions": 500, "map_sessions": 700},
            "probe_interval_s": 0.005,
            "disturbances": [
                {"kind": "latency_shift", "extra_s": 0.04, "start": 0.1 * k, "end": 0.1 * k + 0.5}
                for k in range(3)
            ],
            **{f"cells.{j}.servers": 7 for j in range(4)},
        },
    )
    batching = scenario_with("batching", 2, **{"server.max_batch": 7, "server.queue_limit": 9})
    own = scenario_with(first, 3)
    runs = play([own, late, batching], [SEED, 5, 6], [0, 12, 20])
    assert runs[0] == alone(own, SEED)
    assert runs[1] == alone(late, 5)
    assert runs[2] == alone(batching, 6)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"dispatch": "smooth", "disturbances": [{"kind": "burst", "to_utilisation": 2.0}]},
        {"disturbances": [{"kind": "outage", "cells": ["cell-1"]}], "server.queue_limit": 2},
        {"probe_interval_s": 0.07, "network.mean_rtt_s": 0.31, "router_delay_s": 0.0},
        {"autoscaler": {"interval_s": 0.2, "delay_s": 0.1}},
    ],
    ids=["overload", "burst", "outage", "rare probes", "autoscaler"],
)
def test_the_extras_kernel_with_everything_off_is_the_lean_one(changes: dict[str, Any]) -> None:
    own = scenario_with(None, 3, **changes)
    beside = play([own, scenario_with("everything", 3)], [SEED, 1])[0]
    assert beside == alone(own, SEED)


def test_tiny_buffers_that_grow_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    scenarios = [scenario_with(name) for name in ("everything", "everything batching")]
    large = play(scenarios, [1, 2])
    monkeypatch.setattr(simulator, "FIRST_POOL", 1)
    monkeypatch.setattr(simulator, "FIRST_WIRE", 1)
    assert play(scenarios, [1, 2]) == large


@pytest.mark.parametrize("name", ALL)
def test_the_same_seed_gives_the_same_bytes_and_another_others(name: str) -> None:
    scenario = scenario_with(name)
    one, two, other = play([scenario] * 3, [SEED, SEED, SEED + 1])
    assert one == two
    assert one.log != other.log


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda task: pickle.loads(pickle.dumps(task))])
def test_a_copy_goes_on_as_the_original_does(copied: Any) -> None:
    scenarios = [scenario_with(name) for name in ("everything", "everything batching", None)]
    task = Task(FixedScenarios([*scenarios, scenario_with("autoscaler")]), 4)
    task.reset(seeds=[1, 2, 3, 4])
    routing = np.where(task.admissible, 1 / 3, 0.0)
    for _ in range(15):
        task.step_routing(routing)
    other = copied(task)
    for _ in range(15):
        one, two = task.step_routing(routing), other.step_routing(routing)
        assert one.observation.tobytes() == two.observation.tobytes()
        assert one.reward.tobytes() == two.reward.tobytes()
    seeded = [each.reset(seeds=[7, 8, 9, 10]).tobytes() for each in (task, other)]
    assert seeded[0] == seeded[1]


def test_kernels_as_plain_python_give_the_same_bytes() -> None:
    compiled = elsewhere("mechanisms", NUMBA_DISABLE_JIT="0")
    assert elsewhere("mechanisms", NUMBA_DISABLE_JIT="1") == compiled
