"""What messages about bad input say of a value or a name, which may have any size and depth."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import NDArray

MOST_CHARS = 80
MOST_CHOICES = 1_000
"""Names among which the nearest is looked for: comparing takes time with each."""

_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxother, _brief.maxlong = 3, MOST_CHARS, 200, 200


class Names(NamedTuple):
    """What a caller calls the roots and cells of a system, if they are not just counted from 0.

    Attributes:
        roots: Its number of each root, (roots,); None: they are counted.
        cells: Its number of each cell, (cells,); None: they are counted.
        place: Which of several systems it is, as "row 3"; empty where there is one.
    """

    roots: NDArray[np.intp] | None = None
    cells: NDArray[np.intp] | None = None
    place: str = ""

    @property
    def prefix(self) -> str:
        """What messages begin with."""
        return f"{self.place}: " if self.place else ""

    def root(self, index: int) -> int:
        """Number of a root."""
        return index if self.roots is None else int(self.roots[index])

    def cell(self, index: int) -> int:
        """Number of a cell."""
        return index if self.cells is None else int(self.cells[index])


COUNTED = Names()


def shown(value: object) -> str:
    """The value in quotes, cut to a length that can be read."""
    if isinstance(value, str):
        return repr(value[:MOST_CHARS])
    try:
        text = _brief.repr(value)
    except ValueError:  # more digits than Python writes
        text = "a whole number of thousands of digits"
    return repr(text[:MOST_CHARS])


def whole(key: str, value: object) -> int:
    """The value, if it is a whole number; numpy's count as well.

    Raises:
        ValueError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise ValueError(f"{key} = {shown(value)} must be a whole number")
    return operator.index(value)


def nearest(word: str, choices: Iterable[str]) -> str | None:
    """The choice that is most like the word, if one is like it at all."""
    if len(word) > MOST_CHARS:
        return None
    short = [choice for choice in choices if len(choice) <= MOST_CHARS][:MOST_CHOICES]
    return next(iter(get_close_matches(word, short, n=1, cutoff=0.5)), None)
