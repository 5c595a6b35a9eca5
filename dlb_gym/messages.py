"""What messages about bad input say of a value or a name, which may have any size and depth."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterable
from difflib import get_close_matches
from typing import SupportsIndex

MOST_CHARS = 80
MOST_CHOICES = 1_000
"""Names among which the nearest is looked for: comparing takes time with each."""

_brief = reprlib.Repr()
_brief.maxlevel, _brief.maxstring, _brief.maxother, _brief.maxlong = 3, MOST_CHARS, 200, 200


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
