"""kill -9 at any moment loses no finished work, and the next call ends as if nothing had been."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def killing(what: str, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "tests.killing", what, str(folder)], cwd=ROOT, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def content_of(run: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("[!.]*")
        if path.is_file()
    }


def test_an_evaluation_killed_thirty_times_ends_with_the_same_bytes(tmp_path: Path) -> None:
    killing("evaluate", tmp_path)
    whole, killed = (content_of(tmp_path / place / "runs" / "run") for place in ("whole", "killed"))
    assert whole == killed
    assert len(whole) == 6


def test_a_training_killed_at_any_moment_of_a_checkpoint_goes_on_from_a_whole_one(
    tmp_path: Path,
) -> None:
    """5 files of 5 moments, the folder's new name, and the oldest checkpoint's removal."""
    moments = int(killing("train", tmp_path))
    assert moments == 5 * 5 + 2 + 3
