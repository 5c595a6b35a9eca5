"""The command line of the experiments: `python -m experiments [NAME|all] [--quick] [--jobs N]`.

Without a name it lists them. With one it makes what is missing of the sweep, then the table
experiments/results/NAME.csv, the finding NAME.txt beside it and the figure docs/figures/NAME.svg.
A quick sweep leaves those alone: all its files go to runs/experiments/NAME/.
"""

from __future__ import annotations

import argparse
import logging
import sys

from experiments.runner.discovery import load, names
from experiments.runner.publication import ROOT, places, publish


def main(arguments: list[str]) -> int:
    """Runs the command.

    Returns:
        Exit status: 0, 1 if an experiment failed, 2 for bad arguments, 130 when stopped.
    """
    options = _parser().parse_args(arguments)
    if options.name is None:
        for name in names():
            print(f"{name:<20} {load(name).question}")
        return 0
    chosen = names() if options.name == "all" else (options.name,)
    try:
        if options.name != "all":
            load(options.name)
        if options.jobs < 1:
            raise ValueError(f"--jobs {options.jobs} must be at least 1")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        failed = [name for name in chosen if not _succeeds(name, options.quick, options.jobs)]
    except KeyboardInterrupt:
        print("stopped; the same command keeps the measurements that are made", file=sys.stderr)
        return 130
    if failed:
        print(f"error: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments",
        description="Runs experiments; without a name, lists them.",
    )
    parser.add_argument("name", nargs="?", help="an experiment, or all")
    parser.add_argument("--quick", action="store_true", help="a smaller sweep, kept apart")
    parser.add_argument("--jobs", type=int, default=1, help="processes (default: 1)")
    return parser


def _succeeds(name: str, quick: bool, jobs: int) -> bool:
    """Runs one experiment and prints what it gave; a failure is printed with its traceback."""
    try:
        _run(name, quick, jobs)
    except Exception:
        logging.getLogger(__name__).exception("experiment %s failed", name)
        return False
    return True


def _run(name: str, quick: bool, jobs: int) -> None:
    experiment = load(name)
    measurements = experiment.runs(quick)
    done = 0

    def on_finished(count: int) -> None:
        nonlocal done
        done += count
        print(f"{name}: {done}/{len(measurements)}", file=sys.stderr)

    print(f"\n{name}: {experiment.question}")
    where = places(name, quick=quick)
    published = publish(experiment, measurements, where, jobs, on_finished)
    print(f"\n{published.table.to_string(index=False)}\n\n{published.finding}\n")
    for path in where[1:]:
        print(path.relative_to(ROOT))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
