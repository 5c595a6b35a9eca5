"""Checkpoints: folders that are complete or not there.

A checkpoint `step-000123456` holds the policy as anyone may load it (`saved_policy`) and, to resume
this very training, `model.zip` (weights, optimiser, step count), `normalisation.pkl` (running
statistics) and `state.json` (the training curve). SB3's two files are pickles, which run code when
they are read: they are read by a training that goes on from its own folder and by nothing else.
"""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from agents.run_folders import checkpoint_path, checkpoints_of
from agents.saved_policy import Tensors, write_policy
from dlb_gym.aside import folder_aside, remove_folder, write_aside

MODEL, STATISTICS, STATE = "model.zip", "normalisation.pkl", "state.json"
KEPT = 3


class CheckpointError(ValueError):
    """A checkpoint that no training can go on from; the message names the file and the remedy."""


@dataclass(frozen=True)
class State:
    """How far a training is.

    Attributes:
        steps: Environment steps taken.
        starts: How often training was started or resumed.
        curve: (steps, mean reward of an interval) of every rollout.
    """

    steps: int
    starts: int
    curve: tuple[tuple[int, float], ...]


def write_checkpoint(
    run: Path,
    model: PPO,
    statistics: VecNormalize,
    state: State,
    policy: tuple[Mapping[str, Any], Tensors],
) -> Path:
    """Writes a checkpoint of a run, drops the oldest ones, and returns its folder.

    Args:
        run: Folder of the run.
        model: To resume.
        statistics: To resume.
        state: To resume.
        policy: As `exporting.exported` gives it.

    Raises:
        OSError: It cannot be written; those before it are still there.
    """
    whole = checkpoint_path(run, state.steps)
    whole.parent.mkdir(parents=True, exist_ok=True)
    packed = io.BytesIO()
    model.save(packed)
    with folder_aside(whole) as folder:
        write_policy(folder, *policy)
        write_aside(folder / MODEL, packed.getvalue())
        write_aside(folder / STATISTICS, pickle.dumps(statistics))
        write_aside(folder / STATE, json.dumps(asdict(state)))
    for old in checkpoints_of(run)[:-KEPT]:
        remove_folder(old)
    return whole


def _file(checkpoint: Path, name: str) -> Path:
    path = checkpoint / name
    if not path.is_file():
        raise CheckpointError(
            f"checkpoint {str(checkpoint)!r} lacks {name}; delete its folder, the one before it "
            "will serve, or train again"
        )
    return path


def read_state(checkpoint: Path) -> State:
    """How far the training was.

    Raises:
        CheckpointError: The file is missing or not readable.
    """
    path = _file(checkpoint, STATE)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        curve = tuple((int(steps), float(reward)) for steps, reward in content.pop("curve"))
        return State(int(content.pop("steps")), int(content.pop("starts")), curve)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise _unreadable(path, error) from error


def read_model(checkpoint: Path, env: VecEnv | None = None) -> PPO:
    """The model, on the CPU, continuing on `env` if given; runs code that the file holds.

    Raises:
        CheckpointError: The file is missing or not readable.
    """
    path = _file(checkpoint, MODEL)
    try:
        return PPO.load(path, env=env, device="cpu")
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def read_statistics(checkpoint: Path, env: VecEnv | None = None) -> VecNormalize:
    """The running statistics, around an environment if there is one; runs code of the file.

    Raises:
        CheckpointError: The file is missing or not readable, or belongs to other sizes.
    """
    path = _file(checkpoint, STATISTICS)
    try:
        statistics = pickle.loads(path.read_bytes())
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if not isinstance(statistics, VecNormalize):
        raise _unreadable(path, TypeError(f"it holds a {type(statistics).__name__}"))
    if env is not None:
        _wrap(statistics, env, path)
    return statistics


def _wrap(statistics: VecNormalize, env: VecEnv, path: Path) -> None:
    before, now = statistics.observation_space.shape, env.observation_space.shape
    if before != now:
        raise CheckpointError(
            f"{str(path)!r} has statistics of observations of shape {before}, and the environment "
            f"to go on with gives {now}: resume with the version and keywords that it was trained "
            "with, or train anew"
        )
    statistics.set_venv(env)


_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    IndexError,
    EOFError,
    ImportError,
    AssertionError,
    RuntimeError,
    pickle.UnpicklingError,
    zipfile.BadZipFile,
)
"""What zipfile, pickle and torch raise on a damaged file."""


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(
        f"checkpoint file {str(path)!r} cannot be read ({type(error).__name__}: {error}); "
        "delete its folder, the one before it will serve, or train again"
    )
