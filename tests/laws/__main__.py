"""Runs the laws and prints their figures as the table of docs/trust.md.

    python -m tests.laws

Of each law the case that comes nearest to failing, and the planted faults that its test notices.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.laws.figures import FIGURES, Figure
from tests.mutants.listed import MUTANTS

HEAD = ("law", "nearest case, of n", "samples", "theory", "measured", "demanded", "faults noticed")


def main() -> int:
    """Pytest's exit status: there is a table only of laws that hold."""
    status = pytest.main(["-q", "-p", "no:cacheprovider", str(Path(__file__).parent)])
    if status == 0:
        sys.stdout.write("\n".join(table(FIGURES)) + "\n")
    return int(status)


def table(figures: Iterable[Figure]) -> list[str]:
    """Its lines, in the order of the tests; the faults stand in the first line of each test."""
    of_law: dict[tuple[str, str], list[Figure]] = {}
    for figure in figures:
        of_law.setdefault((figure.test.partition("[")[0], figure.law), []).append(figure)
    lines = [_line(HEAD), _line(["---"] * len(HEAD))]
    last_test = ""
    for (test, law), cases in of_law.items():
        nearest = max(cases, key=lambda figure: (figure.distance, figure.samples))
        case = f"{nearest.case}; {len(cases)}" if len(cases) > 1 else nearest.case
        values = (f"{nearest.samples:,}", nearest.theory, nearest.measured, nearest.demanded)
        lines.append(_line((law, case, *values, "″" if test == last_test else noticed_by(test))))
        last_test = test
    return lines


def noticed_by(test: str) -> str:
    """The mutants that name this test, whatever the case: `make mutants` shows that it fails."""
    return ", ".join(
        f"`{mutant.name}`"
        for mutant in MUTANTS
        if any(named.partition("[")[0] == test for named in mutant.tests)
    )


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    sys.exit(main())
