"""A training of a second, for tests that need what it leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.run_folders import latest_checkpoint
from agents.training import Training
from dlb_gym.episodes import FixedScenarios
from dlb_gym.scenario_source import override
from dlb_gym.task import Task
from tests.scenarios_by_hand import two_cells

SCENARIO = override(two_cells(), {"warmup_s": 1.0, "horizon_s": 2.0})


def tiny(**changes: Any) -> Training:
    settings: dict[str, Any] = {
        "environment": {"scenario": SCENARIO.model_dump(mode="json")},
        "steps": 96,
        "num_envs": 4,
        "copies": 2,
        "rollout_steps": 8,
        "batch_size": 16,
        "epochs": 1,
        "checkpoint_steps": 32,
    }
    return Training(**(settings | changes))


def observations(rows: int) -> NDArray[np.float32]:
    task = Task(FixedScenarios([SCENARIO]), rows)
    return task.reset(seeds=list(range(rows)))


def newest(run: Path) -> Path:
    found = latest_checkpoint(run)
    assert found is not None
    return found
