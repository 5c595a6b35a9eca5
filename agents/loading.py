"""Trained policies that act like any other. Loading one unpickles files: load your own only."""

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
from agents.networks import ArcNetwork, ArcPolicy
from dlb_gym.actions import to_routing
from dlb_gym.observation import Observation
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
        self._arcs: ArcNetwork | None = None
        torch.set_num_threads(1)

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Starts anew for a batch.

        The `arc` network is rebuilt at the task's sizes with the same weights.

        Raises:
            CheckpointError: The observation has other fields now, or a network that is not shared
                by all arcs was trained on other sizes.
        """
        trained = (self._state.num_roots, self._state.num_cells)
        size = Observation(*trained).size
        if self._model.observation_space.shape != (size,):
            raise CheckpointError(
                f"policy {self.name!r} was trained on observations of shape "
                f"{self._model.observation_space.shape}; this version's have shape {(size,)}; "
                "train it again"
            )
        if isinstance(self._model.policy, ArcPolicy):
            self._arcs = ArcNetwork(spec.num_roots, spec.num_cells)
            self._arcs.load_state_dict(self._model.policy.mlp_extractor.state_dict())
        elif (spec.num_roots, spec.num_cells) != trained:
            raise CheckpointError(
                f"policy {self.name!r} was trained on {trained[0]} roots and {trained[1]} cells; "
                f"this task has {spec.num_roots} roots and {spec.num_cells} cells; "
                "train on a scenario of these sizes, or the `arc` network, which fits all"
            )
        super().reset(spec, num_replications, seed)

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The routing of the mean action."""
        admissible = self.fields(observation)["admissible"] > 0.0
        seen = np.asarray(self._statistics.normalize_obs(observation))
        if self._arcs is None:
            action, _ = self._model.predict(seen, deterministic=True)
        else:
            with torch.no_grad():
                means = self._arcs.forward_actor(torch.as_tensor(seen))
            action = means.numpy().reshape(admissible.shape)
        return Decision(to_routing(action, "logits", admissible))


def policy_files(path: str | Path) -> tuple[str, tuple[str, ...]]:
    """The checkpoint that a path means now, and the files whose content decides what it does.

    Raises:
        CheckpointError: There is no complete checkpoint.
    """
    checkpoint = resolve(path)
    return str(checkpoint), tuple(str(file) for file in files(checkpoint))
