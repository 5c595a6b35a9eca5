"""Names as they may be shown: those of scenarios, cells and policies may hold any character."""

from __future__ import annotations

import unicodedata

_UNSEEN = ("C", "Zl", "Zp")
"""Control, format (such as the one that reverses a line), lone surrogates; line, paragraph ends."""


def printable(text: str) -> str:
    """The text, characters that act instead of being seen written as Python writes them."""
    return "".join(
        each.encode("unicode_escape").decode("ascii")
        if unicodedata.category(each).startswith(_UNSEEN)
        else each
        for each in text
    )
