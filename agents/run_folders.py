"""Where a run keeps its checkpoints: folders that are complete or not there."""

from __future__ import annotations

import re
from pathlib import Path

CHECKPOINTS = "checkpoints"
_NAME = re.compile(r"step-(\d{9,})")


def checkpoint_path(run: Path, steps: int) -> Path:
    """The folder of a run's checkpoint after so many steps."""
    return run / CHECKPOINTS / f"step-{steps:09d}"


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first."""
    found = {
        int(named[1]): path
        for path in (run / CHECKPOINTS).glob("step-*")
        if (named := _NAME.fullmatch(path.name)) and path.is_dir()
    }
    return [found[steps] for steps in sorted(found)]


def latest_checkpoint(run: Path) -> Path | None:
    """The newest checkpoint of a run, if it has one."""
    found = checkpoints_of(run)
    return found[-1] if found else None


def owner_of(folder: Path) -> str:
    """Name of the run that a folder is a checkpoint of, or else its own."""
    whole = folder.resolve()
    if _NAME.fullmatch(whole.name) and whole.parent.name == CHECKPOINTS:
        return whole.parents[1].name
    return whole.name
