"""Scenarios as files and dictionaries: read into plain data whose size and depth are bounded."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dlb_gym.input_files import InputFileError, read_whole
from dlb_gym.messages import shown
from dlb_gym.scenario import MAX_CELLS, MAX_DISTURBANCES
from dlb_gym.scenario_faults import ScenarioError

MAX_SCENARIO_BYTES = 16 * 2**20
"""Largest scenario file: round trips between 1,000 roots and 1,000 cells fit."""
MAX_DEPTH = 16
"""Tables and lists within one another; a scenario needs 5."""

_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_START = r"(?:^[ \t]*+(?:\[\[?[ \t]*+)?|[{,][ \t]*+)"  # of a key: a comment may hold what it likes
_LONG_KEY = re.compile(rf"{_START}(?:{_PART}){{{MAX_DEPTH}}}", re.MULTILINE)
"""Reading a key takes the square of the tables that it names."""


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        ScenarioError: The file cannot be read, is too large, or is no TOML.
    """
    name = f"scenario file {str(path)!r}"
    try:
        text = read_whole(path, MAX_SCENARIO_BYTES, "leave out what is not used").decode(
            "utf-8-sig"
        )
    except InputFileError as error:
        raise ScenarioError(f"{name} {error}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name} is not readable TOML: {error}; save it in UTF-8") from error
    if long := _LONG_KEY.search(text):
        raise ScenarioError(
            f"{name} has a key of more than {MAX_DEPTH} tables, {shown(long[0])}; no scenario has "
            "such a key"
        )
    try:
        document: dict[str, Any] = plain(tomllib.loads(text))
        return document
    except ValueError as error:  # TOMLDecodeError, or a number of thousands of digits
        raise ScenarioError(f"{name} is not readable TOML: {error}; correct it") from error
    except RecursionError as error:
        raise ScenarioError(_too_deep(name)) from error


def plain(value: Any, depth: int = 0) -> Any:
    """The value with tuples for lists, which is what a strict model takes.

    Raises:
        ScenarioError: It is nested too deep.
    """
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth > MAX_DEPTH:
        raise ScenarioError(_too_deep("scenario"))
    if isinstance(value, Mapping):
        return {key: plain(item, depth + 1) for key, item in value.items()}
    return tuple(plain(item, depth + 1) for item in value)


def _too_deep(name: str) -> str:
    return f"{name} nests tables or lists more than {MAX_DEPTH} deep; no scenario needs that"


def require_counts(document: Mapping[str, Any]) -> None:
    """Refuses lists that are too long before their entries take memory and time.

    Raises:
        ScenarioError: There are too many cells, roots or disturbances.
    """
    for key, most in (
        ("cells", MAX_CELLS), ("roots", MAX_CELLS), ("disturbances", MAX_DISTURBANCES)
    ):  # fmt: skip
        entries = document.get(key)
        if isinstance(entries, list | tuple) and len(entries) > most:
            raise ScenarioError(
                f"scenario key {key!r} has {len(entries):,} entries; at most {most:,} are "
                "possible: leave some out"
            )
