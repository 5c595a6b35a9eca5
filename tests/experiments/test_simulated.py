"""Systems moved without a task, beside the same ones moved by it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.rates import nominal_rates_rps
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator
from dlb_gym.task import Task
from dlb_gym.views import View
from experiments.runner import played, simulated

SCENARIO = override(
    load_scenario("global_six"), {"warmup_s": 2.0, "settle_s": 1.0, "horizon_s": 3.0}
)
SEEDS = (7, 8)
CAPACITY = nominal_rates_rps(SCENARIO)
SPLIT = np.broadcast_to(CAPACITY / CAPACITY.sum(), (len(SCENARIO.roots), len(SCENARIO.cells)))


def test_under_the_split_by_capacity_it_is_what_the_task_plays() -> None:
    """The task's warm-up keeps that split, and so does the baseline: RIF equal from then on."""
    by_task: list[NDArray[np.int64]] = []
    alone: list[NDArray[np.int64]] = []

    def keep_task(task: Task) -> None:
        by_task.append(task.simulator.truth().rif.copy())

    def keep(simulator: Simulator) -> None:
        alone.append(simulator.truth().rif.copy())

    played("capacity", SCENARIO, SEEDS, keep_task)
    simulated(SCENARIO, SEEDS, SPLIT, keep)
    assert len(alone) == 60
    assert np.array_equal(alone[20:], by_task)


def test_decisions_are_made_at_every_interval_from_what_roots_see() -> None:
    """All to the last cell from the third decision on; the first sees the empty system."""
    seen: list[float] = []

    def decide(view: View, routing: NDArray[np.float64]) -> NDArray[np.float64]:
        seen.append(float(view.rif.sum()))
        if len(seen) < 3:
            return routing
        return np.broadcast_to(np.eye(SPLIT.shape[1])[-1], view.admissible.shape)

    sent: list[NDArray[np.int64]] = []
    simulated(SCENARIO, SEEDS, SPLIT, lambda s: sent.append(s.view().interval_sent.copy()), decide)
    assert len(seen) == 60
    assert seen[0] == 0.0
    assert seen[-1] > 0.0
    assert sent[1][..., :-1].sum() > 0
    assert sent[2][..., :-1].sum() == 0
    assert sent[2][..., -1].sum() > 0
