"""`python -m tests.fuzz`: hostile input for as long as one likes, and what it broke.

Every target runs in a process of its own, whose memory is bounded; one that does not answer is
ended, and the input it was at is a failure. Inputs that fail, as small as hypothesis makes them,
go to `runs/fuzz/`. Where atheris is installed, the readers of files are also fuzzed by coverage.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import by_coverage, worker
from tests.fuzz.guard import LIMIT_S

FOLDER = Path("runs") / "fuzz"
STARTING_S = 1_200.0
"""The engine may have to be compiled first, on a machine that is busy."""


def main() -> int:
    """Exit status 1 if there is a failure."""
    options = _options()
    if options.only is not None:
        worker.run(options.only, options.seconds, options.seed, FOLDER)
        return 0
    FOLDER.mkdir(parents=True, exist_ok=True)
    _say(f'seed {options.seed}: ARGS="--seconds {options.seconds:g} --seed {options.seed}"')
    names = [*worker.NAMES, *(f"atheris: {name}" for name in by_coverage.NAMES)]
    share_s = options.seconds / len(names)
    tried = failed = 0
    for name in names:
        if name.startswith("atheris") and not by_coverage.is_installed():
            _say("atheris is not installed (pip install atheris): hypothesis alone")
            break
        reached = ""
        if name.startswith("atheris"):
            found = by_coverage.fuzz(name.removeprefix("atheris: "), share_s, options.seed, FOLDER)
            counts = found.tried, found.failures
            reached = f", branches {found.branches_before:,} -> {found.branches:,}"
        else:
            counts = _hypothesis(name, share_s, options.seed)
        _say(f"{name}: inputs tried {counts[0]:,}, failures {counts[1]}{reached}")
        tried, failed = tried + counts[0], failed + counts[1]
    _say(f"inputs tried {tried:,}, failures {failed}")
    return int(failed > 0)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make fuzz ARGS=...", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0, help="time for all targets")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of all inputs")
    parser.add_argument("--only", choices=worker.NAMES, help=argparse.SUPPRESS)
    return parser.parse_args()


def _hypothesis(name: str, seconds: float, seed: int) -> tuple[int, int]:
    """Inputs tried and failures of one target."""
    report = worker.Report(FOLDER, name)
    report.clear()
    command = [sys.executable, "-m", "tests.fuzz", "--only", name, "--seconds", str(seconds),
               "--seed", str(seed)]  # fmt: skip
    process = subprocess.Popen(command)
    try:
        status = process.wait(seconds + STARTING_S + LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        report.keep_last("no end in time")
    else:
        if status != 0:
            report.keep_last(f"the process ended with status {status}")
    return report.counts()


if __name__ == "__main__":
    sys.exit(main())
