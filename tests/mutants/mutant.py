"""What a planted fault is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Mutant:
    """A fault planted in one place, and the tests that must notice.

    Attributes:
        name: Unique, in words joined by hyphens.
        path: File in the tree.
        old: Text that occurs exactly once in it.
        new: What stands there instead; it must change results.
        tests: Node ids of pytest, few and quick.
        breaks: What is wrong then.
        jit: Run the tests on compiled kernels (a minute or two for a fault in the engine), not on
            plain Python with a tiny calibration.
        shows: How else than by a failed test it may be noticed: "hang" or "crash". Undeclared,
            either proves nothing: the tests might not have noticed.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    breaks: str
    jit: bool = False
    shows: Literal["", "hang", "crash"] = ""


def planted(mutant: Mutant, text: str) -> str:
    """The file's text with the fault in it.

    Raises:
        ValueError: The old text does not occur exactly once, or is the new one.
    """
    count = text.count(mutant.old)
    if count != 1 or mutant.old == mutant.new:
        raise ValueError(
            f"mutant {mutant.name!r}: its old text occurs {count} times in {mutant.path} and must "
            "occur once and differ from the new one; bring the mutant up to date"
        )
    return text.replace(mutant.old, mutant.new)
