"""Learned policies that act like any other. Loading one runs no code, whoever it comes from.

What is read are the two files of `saved_policy`: text and numbers. SB3's zip and the pickles beside
them in a checkpoint serve only to resume one's own training (`checkpoints`); nothing here opens
them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from agents.networks import ArcActor, DescentActor, MlpActor
from agents.run_folders import CHECKPOINTS, latest_checkpoint, owner_of
from agents.saved_policy import DESCRIPTION, MEAN, TENSORS, VARIANCE, SavedPolicy, read_policy
from agents.saved_policy import LoadError as LoadError
from dlb_gym.actions import to_routing
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.input_files import InputFileError, input_path
from dlb_gym.messages import shown
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.policy import Information, Policy, TaskSpec, proportional


def load(path: str | Path, name: str | None = None) -> LearnedPolicy:
    """The learned policy in a folder.

    Args:
        path: Folder of a run of train.py, whose newest checkpoint counts, or any folder that holds
            `policy.json` and `policy.safetensors`.
        name: Label in results; by default the name of the run's folder.

    Raises:
        LoadError: There is none, or it cannot be used (see `saved_policy.read_policy`).
    """
    folder = _folder(path)
    return LearnedPolicy(read_policy(folder), name or owner_of(folder))


def policy_files(path: str | Path) -> tuple[str, tuple[str, ...]]:
    """The folder that a path means now, and the files whose content decides what the policy does.

    Raises:
        LoadError: There is no learned policy.
    """
    folder = _folder(path)
    read_policy(folder)
    return str(folder), tuple(str(folder / name) for name in (DESCRIPTION, TENSORS))


def _folder(path: str | Path) -> Path:
    """The folder with the files: the path itself, or the newest checkpoint of the run there."""
    try:
        return _found(input_path(path, "a learned policy"))
    except InputFileError as error:
        raise LoadError(str(error)) from None
    except OSError as error:
        raise LoadError(
            f"{shown(str(path))} cannot be read: {error.strerror}; give the folder of a run of "
            "train.py"
        ) from error


def _found(given: Path) -> Path:
    if given.is_file():
        raise LoadError(
            f"{str(given)!r} is a file; give the folder that holds {DESCRIPTION} and {TENSORS}. "
            "An SB3 zip serves only to resume one's own training and is never evaluated"
        )
    if (given / DESCRIPTION).exists() or (given / TENSORS).exists():
        return given
    newest = latest_checkpoint(given)
    if newest is None:
        raise LoadError(
            f"{str(given)!r} holds no learned policy: there is neither {DESCRIPTION} nor a folder "
            f"{CHECKPOINTS}/step-*; give the folder of a run of train.py"
        )
    return newest


@contextmanager
def _one_thread() -> Iterator[None]:
    """A sum has the same bits on any number of cores, and small networks are fastest so.

    The caller's own setting is that of the whole process and stays.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class LearnedPolicy(Policy):
    """Acts with the mean action, no noise.

    It is `local` if its network is shared by all arcs, and `central` otherwise. A `descent` network
    goes on from its last routing, at first the split by capacity: it finds that in place of the
    field `routing`, which tells where the few requests of an interval went.

    Args:
        saved: What was trained.
        name: Label in results.
    """

    _actor: ArcActor | DescentActor | MlpActor  # from reset on
    _last: Array

    def __init__(self, saved: SavedPolicy, name: str) -> None:
        self.name = name
        self.description = saved.description
        self._tensors = saved.tensors
        local = saved.description.network.kind in ("arc", "descent")
        self.information: Information = "local" if local else "central"
        self._unset = np.ones(1, dtype=np.bool_)

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Starts anew for a batch; the `arc` network is made at the task's sizes.

        Raises:
            LoadError: A network that is not shared by all arcs was trained on other sizes.
        """
        seen = self.description.observation
        trained, asked = (seen.num_roots, seen.num_cells), (spec.num_roots, spec.num_cells)
        if self.information == "central" and asked != trained:
            raise LoadError(
                f"policy {self.name!r} was trained on {trained[0]} roots and {trained[1]} cells; "
                f"this task has {asked[0]} roots and {asked[1]} cells; "
                "train on a scenario of these sizes, or the `arc` network, which fits all"
            )
        actor = self.description.network.actor(*asked)
        actor.load_state_dict(
            {name: torch.from_numpy(self._tensors[name]) for name in actor.state_dict()}
        )
        # In float64 a sum's order, which a batch may change, is lost in rounding to an action.
        self._actor = actor.double() if isinstance(actor, DescentActor) else actor
        self._last = np.zeros((num_replications, *asked))
        self._unset = np.ones(num_replications, dtype=np.bool_)
        super().reset(spec, num_replications, seed)

    def restart(self, rows: Mask) -> None:
        """Forget the last routing of these rows."""
        self._unset = self._unset | rows

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The routing of the mean action.

        Raises:
            ValueError: The policy was never reset.
            LoadError: The weights are so large that an action is NaN or infinite.
        """
        fields = self.fields(observation)
        admissible = fields["admissible"] > 0.0
        seen = self._normalised(observation)
        if isinstance(self._actor, DescentActor):
            start = proportional(fields["capacity_load"].astype(np.float64), admissible)
            self._last = np.where(self._unset[:, None, None], start, self._last)
            self._unset[:] = False
            seen = _with_routing(seen, self._last)
        with torch.no_grad(), _one_thread():
            means = self._actor.forward_actor(torch.as_tensor(seen))
        action = means.numpy().reshape(admissible.shape)
        if not np.isfinite(action).all():
            raise LoadError(
                f"policy {self.name!r} gave an action that is NaN or infinite: its weights are "
                "finite and yet too large; train again"
            )
        self._last = to_routing(action, "logits", admissible)
        return Decision(self._last)

    def _normalised(self, observation: NDArray[np.float32]) -> NDArray[np.float32]:
        rule = self.description.normalisation
        if rule is None:
            return observation
        with np.errstate(over="ignore"):  # what overflows is clipped
            deviation = np.sqrt(self._tensors[VARIANCE] + rule.epsilon)
            normal = (observation - self._tensors[MEAN]) / deviation
            return np.asarray(np.clip(normal, -rule.clip, rule.clip), dtype=np.float32)


def _with_routing(observation: NDArray[np.float32], routing: Array) -> NDArray[np.float32]:
    """The observation with this in place of the field `routing`."""
    changed = observation.copy()
    changed.reshape(*routing.shape, -1)[..., FIELD_NAMES.index("routing")] = routing
    return changed
