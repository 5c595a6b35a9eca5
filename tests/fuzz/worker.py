"""One target in this process: inputs until the time is over, and what failed, on disk."""

from __future__ import annotations

import hashlib
import resource
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, seed, settings

from dlb_gym import calibration, sizes
from dlb_gym.scenario_source import scenario_from_dict
from tests.fuzz.documents import EVERYTHING, SMALL
from tests.fuzz.guard import Hang, time_limit
from tests.fuzz.targets import TARGETS, Target, play

NAMES = tuple(target.name for target in TARGETS)
MEMORY_BYTES = 4 * 2**30
"""What an input may take beyond what the process has when it starts."""
ROUND = 200
"""Inputs of one seed."""
_SHOWN = 20_000


class Report:
    """What a worker leaves on disk: the input it is at, how many there were, and what failed.

    Args:
        folder: Where.
        name: Of the target.
    """

    def __init__(self, folder: Path, name: str) -> None:
        stem = name.replace(" ", "-")
        self._folder, self._stem = folder, stem
        self._at = folder / f"{stem}.at"
        self._tried = 0

    def clear(self) -> None:
        """Forgets an earlier run."""
        for path in self._folder.glob(f"{self._stem}.*"):
            path.unlink()

    def begin(self, hostile: Any) -> None:
        """An input is next."""
        self._tried += 1
        self._at.write_text(f"{self._tried}\n{_text(hostile)}", encoding="utf-8")

    def keep(self, text: str) -> None:
        """A failure."""
        digest = hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
        path = self._folder / f"{self._stem}.failure-{digest}"
        path.write_text(text, encoding="utf-8", errors="backslashreplace")

    def keep_last(self, what: str) -> None:
        """The input that was begun last is a failure, as the process did not survive it."""
        at = self._at.read_text(encoding="utf-8") if self._at.exists() else "before any input"
        self.keep(f"{what}\n\n{at}")

    def counts(self) -> tuple[int, int]:
        """Inputs tried and failures."""
        tried = int(self._at.read_text("utf-8").partition("\n")[0]) if self._at.exists() else 0
        return tried, len(list(self._folder.glob(f"{self._stem}.failure-*")))


def run(name: str, seconds: float, first_seed: int, folder: Path) -> None:
    """Fuzzes a target for so long."""
    target = next(target for target in TARGETS if target.name == name)
    calibration._folder_of_kernels = lambda: None  # fits of hostile scenarios are not kept
    report = Report(folder, name)
    known: set[str] = set()
    with tempfile.TemporaryDirectory() as scratch:
        play([scenario_from_dict(SMALL), scenario_from_dict(EVERYTHING)])  # loads the engine
        _bound_memory()
        end = time.monotonic() + seconds
        number = first_seed
        while time.monotonic() < end:
            run_round(target, number, Path(scratch), report, known)
            number += 1


def _bound_memory() -> None:
    with Path("/proc/self/statm").open(encoding="ascii") as file:
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    sizes.MAX_BYTES = MEMORY_BYTES // 2  # refused by name must be what cannot be had here


def run_round(target: Target, number: int, scratch: Path, report: Report, known: set[str]) -> None:
    """Inputs of one seed; of a failure that is not known, the smallest is kept."""
    failure: list[tuple[str, str]] = []

    @seed(number)
    @settings(
        max_examples=ROUND,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def hold(hostile: Any) -> None:
        report.begin(hostile)
        try:
            with time_limit():
                target.check(hostile, scratch)
        except (Exception, Hang) as error:
            place = _place(error)
            if place not in known:
                failure[:] = [(place, f"{traceback.format_exc()}\n{_text(hostile)}")]
                raise AssertionError(place) from error

    try:
        hold()
    except AssertionError:
        if not failure:
            raise
        known.add(failure[0][0])
        report.keep(failure[0][1])


def _place(error: BaseException) -> str:
    """What tells one fault from another: the error's type and where it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "dlb_gym" in frame.filename or "agents" in frame.filename]
    last = (own or list(frames))[-1]
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}"


def _text(hostile: Any) -> str:
    try:
        text = repr(hostile)
    except (ValueError, RecursionError) as error:
        text = f"cannot be written: {error}"
    return text.encode("utf-8", "backslashreplace").decode()[:_SHOWN]
