"""Checkpoints: folders that are complete or not there.

A checkpoint `step-000123456` holds `model.zip` (weights, optimiser state, step count),
`normalisation.pkl` (running statistics) and `state.json` (sizes and the training curve). It is
written under another name and renamed when whole. SB3's files are pickles: load only those you
trust.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

FOLDER = "checkpoints"
MODEL, STATISTICS, STATE = "model.zip", "normalisation.pkl", "state.json"
KEPT = 3
_PREFIX = "step-"


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and the remedy."""


@dataclass(frozen=True)
class State:
    """What a checkpoint says about itself.

    Attributes:
        steps: Environment steps taken.
        starts: How often training was started or resumed.
        num_roots: Roots of the observation.
        num_cells: Cells of the observation.
        network: Name of the network, see `training.NETWORKS`.
        curve: (steps, mean reward of an interval) of every rollout.
    """

    steps: int
    starts: int
    num_roots: int
    num_cells: int
    network: str
    curve: tuple[tuple[int, float], ...]


def write_checkpoint(run: Path, model: PPO, statistics: VecNormalize, state: State) -> Path:
    """Writes a checkpoint of a run, drops the oldest ones, and returns its folder."""
    folder = run / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    whole = folder / f"{_PREFIX}{state.steps:09d}"
    aside = folder / f".{whole.name}.{os.getpid()}.part"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    model.save(aside / MODEL)
    statistics.save(str(aside / STATISTICS))
    (aside / STATE).write_text(json.dumps(asdict(state)), encoding="utf-8")
    shutil.rmtree(whole, ignore_errors=True)
    aside.replace(whole)
    for old in _checkpoints(run)[:-KEPT]:
        shutil.rmtree(old)
    return whole


def clear_parts(run: Path) -> None:
    """Removes what a kill left half written."""
    for part in (run / FOLDER).glob(".*.part"):
        shutil.rmtree(part)


def _checkpoints(run: Path) -> list[Path]:
    return sorted((run / FOLDER).glob(f"{_PREFIX}*"))


def latest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = _checkpoints(run)
    return found[-1] if found else None


def resolve(path: str | Path) -> Path:
    """The checkpoint that a path means: itself, or the newest of the run there.

    Raises:
        CheckpointError: There is none.
    """
    folder = Path(path)
    if folder.name.startswith(_PREFIX):
        found: Path | None = folder
    else:
        found = latest_checkpoint(folder)
    if found is None or not found.is_dir():
        raise CheckpointError(
            f"{str(folder)!r} holds no trained policy: there is no folder {FOLDER}/{_PREFIX}*; "
            "give the folder of a run of train.py"
        )
    return found


def files(checkpoint: Path) -> tuple[Path, ...]:
    """The files of a checkpoint.

    Raises:
        CheckpointError: One of them is missing.
    """
    found = tuple(checkpoint / name for name in (MODEL, STATISTICS, STATE))
    for path in found:
        if not path.is_file():
            raise CheckpointError(
                f"checkpoint {str(checkpoint)!r} lacks {path.name}; delete its folder, the one "
                "before it will serve, or train again"
            )
    return found


def read_state(checkpoint: Path) -> State:
    """What a checkpoint says about itself.

    Raises:
        CheckpointError: The file is missing or not readable.
    """
    path = files(checkpoint)[2]
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        curve = tuple((int(steps), float(reward)) for steps, reward in content.pop("curve"))
        return State(**content, curve=curve)
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, error) from error


def read_model(checkpoint: Path, env: VecEnv | None = None) -> PPO:
    """The model, on the CPU, continuing on `env` if given.

    Raises:
        CheckpointError: The file is missing or not readable.
    """
    path = files(checkpoint)[0]
    try:
        return PPO.load(path, env=env, device="cpu")
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error


def read_statistics(checkpoint: Path) -> VecNormalize:
    """The running statistics, without an environment.

    Raises:
        CheckpointError: The file is missing or not readable.
    """
    path = files(checkpoint)[1]
    try:
        statistics = pickle.loads(path.read_bytes())
    except _UNREADABLE as error:
        raise _unreadable(path, error) from error
    if not isinstance(statistics, VecNormalize):
        raise _unreadable(path, TypeError(f"it holds a {type(statistics).__name__}"))
    return statistics


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
