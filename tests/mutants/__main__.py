"""Plants faults one at a time and shows that the tests notice: `make mutants`.

    python -m tests.mutants [--jobs N] [NAME ...]

First all tests that the chosen mutants name must pass without a fault. A fault is caught by a
failed test: a test process that hangs, crashes or ends otherwise proves nothing, unless the mutant
declares that its fault shows so. Exit status 1 if a fault is not caught, if tests fail without one,
or if a mutant's text is not in its file exactly once.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.copies import ROOT, Outcome, fresh_copy, run_tests
from tests.mutants.listed import MUTANTS
from tests.mutants.mutant import Mutant, planted
from tests.mutants.verdict import Verdict, is_law, judge

CLEAN_LIMIT_S = 1200.0
LIMIT_S = {False: 120.0, True: 420.0}
"""Longest run with a fault, without and with compilation: ten times what is usual, else a hang."""
WIDTHS = (36, 32, 78)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the mutants that the command line names."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to plant; all if none")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time (default 2)")
    options = parser.parse_args(arguments)
    try:
        mutants = _chosen(options.names)
        for mutant in mutants:
            planted(mutant, (ROOT / mutant.path).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        _say(str(error))
        return 1
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        lanes = [Path(directory) / f"lane-{n}" for n in range(max(1, options.jobs))]
        return _run_all(mutants, lanes)


def _chosen(names: Sequence[str]) -> list[Mutant]:
    known = {mutant.name: mutant for mutant in MUTANTS}
    if len(known) != len(MUTANTS):
        raise ValueError("two mutants have the same name; every name must be unique")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown mutants: {', '.join(unknown)}; choose from {', '.join(known)}")
    return [known[name] for name in names] or list(MUTANTS)


def _run_all(mutants: list[Mutant], lanes: list[Path]) -> int:
    if not _clean_tree_passes(mutants, lanes):
        return 1
    _say(_line("fault", "file", "what it breaks", "s", "caught by"))
    free: SimpleQueue[Path] = SimpleQueue()
    for lane in lanes:
        free.put(lane)
    counts: Counter[Verdict] = Counter()
    # The slow ones first, so that no lane idles at the end.
    ordered = sorted(mutants, key=lambda mutant: not (mutant.jit and _in_engine(mutant)))
    with ThreadPoolExecutor(len(lanes)) as pool:
        running = {pool.submit(_plant, mutant, free): mutant for mutant in ordered}
        for future in as_completed(running):
            mutant, outcome = running[future], future.result()
            verdict, why = judge(mutant, outcome)
            counts[verdict] += 1
            if verdict is Verdict.INCONCLUSIVE:
                _say(outcome.output)
            _say(_line(mutant.name, mutant.path, mutant.breaks, f"{outcome.seconds:.0f}", why))
    _say(
        f"planted {len(mutants)}, " + ", ".join(f"{each.value} {counts[each]}" for each in Verdict)
    )
    return int(counts[Verdict.CAUGHT] < len(mutants))


def _in_engine(mutant: Mutant) -> bool:
    return mutant.path.startswith("dlb_gym/engine/")


def _plant(mutant: Mutant, free: SimpleQueue[Path]) -> Outcome:
    lane = free.get()
    try:
        file = fresh_copy(lane) / mutant.path
        file.write_text(planted(mutant, file.read_text(encoding="utf-8")), encoding="utf-8")
        first = () if any(map(is_law, mutant.tests)) else ("-x",)
        return run_tests(lane, list(mutant.tests), mutant.jit, LIMIT_S[mutant.jit], *first)
    finally:
        free.put(lane)


def _clean_tree_passes(mutants: list[Mutant], lanes: list[Path]) -> bool:
    """Runs the union of the tests without a fault, on plain Python and on compiled kernels."""
    passed = True
    with ThreadPoolExecutor(len(lanes)) as pool:
        runs = []
        for jit, lane in ((False, lanes[0]), *((True, lane) for lane in reversed(lanes))):
            tests = list(dict.fromkeys(t for m in mutants if m.jit == jit for t in m.tests))
            if tests:
                runs.append(pool.submit(_run_clean, lane, tests, jit))
        for run in runs:
            outcome = run.result()
            if outcome.failed or outcome.ended:
                trouble = ", ".join(outcome.failed) or outcome.detail
                _say(f"{outcome.output}\nwithout a fault: {trouble}")
                passed = False
    return passed


def _run_clean(lane: Path, tests: list[str], jit: bool) -> Outcome:
    fresh_copy(lane)
    return run_tests(lane, tests, jit, CLEAN_LIMIT_S)


def _line(fault: str, file: str, breaks: str, seconds: str, verdict: str) -> str:
    named = zip((fault, file, breaks), WIDTHS, strict=True)
    return " ".join((*(text.ljust(width) for text, width in named), seconds.rjust(4), verdict))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
