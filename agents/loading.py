"""Trained policies that act like any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from agents.checkpoints import (
    CheckpointError,
    files,
    read_model,
    read_state,
    read_statistics,
    resolve,
)
from agents.networks import ArcPolicy
from dlb_gym.actions import to_routing
from dlb_gym.policy import Decision, Information, Policy, TaskSpec


class TrainedPolicy(Policy):
    """Acts with what `training.train` saved: the mean action, no noise.

    It is `local` if its network is the one shared by all arcs, and `central` otherwise.

    Args:
        path: Folder of a run of train.py, whose newest checkpoint counts, or of a checkpoint.
        name: Label in results; by default the name of the run's folder.

    Raises:
        CheckpointError: There is no checkpoint, or it is incomplete or unreadable.
    """

    def __init__(self, path: str, name: str | None = None) -> None:
        self.checkpoint = resolve(path)
        self.name = name or self.checkpoint.resolve().parents[1].name
        self._state = read_state(self.checkpoint)
        self._statistics = read_statistics(self.checkpoint)
        self._model = read_model(self.checkpoint)
        local = isinstance(self._model.policy, ArcPolicy)
        self.information: Information = "local" if local else "central"
        torch.set_num_threads(1)

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Starts anew for a batch.

        Raises:
            CheckpointError: The task's sizes are not those it was trained on.
        """
        trained = (self._state.num_roots, self._state.num_cells)
        if (spec.num_roots, spec.num_cells) != trained:
            raise CheckpointError(
                f"policy {self.name!r} was trained on {trained[0]} roots and {trained[1]} cells; "
                f"this task has {spec.num_roots} roots and {spec.num_cells} cells; "
                "train on a scenario of these sizes"
            )
        if self._model.observation_space.shape != spec.observation.space.shape:
            raise CheckpointError(
                f"policy {self.name!r} was trained on observations of shape "
                f"{self._model.observation_space.shape}; this version's have shape "
                f"{spec.observation.space.shape}; train it again"
            )
        super().reset(spec, num_replications, seed)

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The routing of the mean action."""
        admissible = self.fields(observation)["admissible"] > 0.0
        seen = self._statistics.normalize_obs(observation)
        action, _ = self._model.predict(np.asarray(seen), deterministic=True)
        return Decision(to_routing(action, "logits", admissible))


def policy_files(path: str | Path) -> tuple[str, tuple[str, ...]]:
    """The checkpoint that a path means now, and the files whose content decides what it does.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    checkpoint = resolve(path)
    return str(checkpoint), tuple(str(file) for file in files(checkpoint))
