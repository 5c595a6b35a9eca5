"""What the run of a mutant's tests says of them."""

from __future__ import annotations

from enum import Enum

from tests.mutants.copies import Outcome
from tests.mutants.mutant import Mutant


class Verdict(Enum):
    """Whether the tests noticed."""

    CAUGHT = "caught"
    SURVIVED = "survived"
    INCONCLUSIVE = "inconclusive"


def is_law(test: str) -> bool:
    """Laws are listed with the faults that break them, so each that a mutant names must notice."""
    return test.startswith("tests/laws/")


def judge(mutant: Mutant, outcome: Outcome) -> tuple[Verdict, str]:
    """The verdict, and what noticed or what went wrong."""
    if outcome.ended:
        if outcome.ended == mutant.shows:
            return Verdict.CAUGHT, f"{outcome.detail}, as declared"
        return Verdict.INCONCLUSIVE, f"INCONCLUSIVE {outcome.detail}"
    laws = [test for test in mutant.tests if is_law(test)]
    missed = [test for test in laws if test not in outcome.failed]
    if not outcome.failed or missed:
        return Verdict.SURVIVED, f"SURVIVED {', '.join(missed or mutant.tests)}"
    return Verdict.CAUGHT, ", ".join(outcome.failed if laws else outcome.failed[:1])
