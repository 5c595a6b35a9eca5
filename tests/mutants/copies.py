"""Copies of the tree, and pytest runs in them.

A lane is a directory in which one copy after another is made, always at the same path: numba keeps
compiled kernels by path, size and time of their sources, and a copy keeps both, so a fault outside
the engine costs no compilation after the lane's first run.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PARTS = (
    "agents", "baselines", "benchmarks", "dlb_gym", "docs", "experiments", "tests", "README.md",
    "pyproject.toml", "train.py",
)  # fmt: skip
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class Outcome(NamedTuple):
    """A run of pytest.

    Attributes:
        failed: The tests that failed, in their order.
        ended: "hang" or "crash" if pytest did not end by itself, "error" if it ended otherwise than
            with tests that passed or failed; else empty.
        detail: The same in words.
        seconds: How long it took.
        output: What pytest printed.
    """

    failed: tuple[str, ...]
    ended: str
    detail: str
    seconds: float
    output: str


def fresh_copy(lane: Path) -> Path:
    """The tree as it is, without what it has built."""
    copy = lane / "tree"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", ".*")
            shutil.copytree(source, copy / part, ignore=unwanted)
        else:
            shutil.copy2(source, copy / part)
    return copy


def run_tests(lane: Path, tests: list[str], jit: bool, limit_s: float, *options: str) -> Outcome:
    """Runs tests in the lane's copy; a run that passes its limit is ended."""
    plugin = [] if jit else ["-p", "tests.mutants.tiny_calibration"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *plugin, *options]
    variables = os.environ | {
        "NUMBA_DISABLE_JIT": str(int(not jit)),
        "NUMBA_CACHE_DIR": str(lane / "kernels"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # they take longer to import than most tests run
    }
    start = time.perf_counter()
    process = subprocess.Popen(
        [*command, *tests], cwd=lane / "tree", env=variables, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=limit_s)
        code = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        code = None
    failed = tuple(_FAILED.findall(output))
    return Outcome(failed, *_ending(code, failed), time.perf_counter() - start, output)


def _ending(code: int | None, failed: tuple[str, ...]) -> tuple[str, str]:
    """How a run ended that did not end with tests that passed or failed, and the detail."""
    if code is None:
        return "hang", "no end within the limit"
    if code < 0:
        return "crash", f"killed by {signal.Signals(-code).name}"
    if code > 1 or bool(code) != bool(failed):
        return "error", f"pytest's exit status {code}"
    return "", ""
