"""What the laws' tests measured, for the table in docs/trust.md: `python -m tests.laws`."""

from __future__ import annotations

import os
from typing import NamedTuple


class Figure(NamedTuple):
    """One check of one law.

    Attributes:
        law: What is checked, in the words of the table.
        case: With which parameters.
        samples: How many independent samples, mostly the rows of a batch.
        theory: What theory says.
        measured: What was measured.
        demanded: Where the test fails.
        distance: From theory, relative to the distance at which the test fails.
        test: Node id of the test.
    """

    law: str
    case: str
    samples: int
    theory: str
    measured: str
    demanded: str
    distance: float
    test: str


FIGURES: list[Figure] = []


def check(
    law: str,
    case: str,
    samples: int,
    *,
    theory: str,
    measured: str,
    demanded: str,
    distance: float,
) -> None:
    """Keeps the figure, of the test that is running, and fails where the distance is above 1."""
    test = os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]
    FIGURES.append(Figure(law, case, samples, theory, measured, demanded, distance, test))
    assert distance <= 1.0, f"{law} ({case}): {measured}, theory {theory}, demanded {demanded}"
