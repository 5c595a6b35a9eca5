"""What is wrong with a scenario, in words: the key, the value, the rule and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_args

from pydantic import ValidationError

from dlb_gym.messages import MOST_CHARS, shown
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_checks import nearest_key
from dlb_gym.strict import Strict

MOST_FAULTS = 20
"""Faults that an error tells; the others are counted."""


class ScenarioError(ValueError):
    """A scenario that cannot be used; the message names the key, the rule and the remedy."""


def faults(error: ValidationError) -> list[str]:
    """One line for every fault that the validation found, as far as anybody reads them."""
    found = error.errors(include_url=False)
    lines = [_fault(dict(item)) for item in found[:MOST_FAULTS]]
    if len(found) > MOST_FAULTS:
        lines.append(f"and {len(found) - MOST_FAULTS:,} more faults; correct these first")
    return lines


def _fault(item: dict[str, Any]) -> str:
    loc = [str(part)[:MOST_CHARS] for part in item["loc"]]
    key = ".".join(_written(loc)) or "scenario"
    if item["type"] == "extra_forbidden":
        return unknown_key(loc)
    if item["type"] == "missing":
        return f"scenario key {key!r} is missing"
    if item["type"] == "union_tag_invalid":
        kinds = item["ctx"]
        return (
            f"scenario key {key + '.kind'!r} = {shown(kinds['tag'])} is unknown; choose one of "
            f"{kinds['expected_tags']}"
        )
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return f"scenario: {message}"
    return f"scenario key {key!r}: {message} (got {shown(item['input'])})"


def unknown_key(key: Sequence[str]) -> str:
    """Says that a key is unknown: the nearest of its table, where it belongs, or all valid ones."""
    *parents, last = (part[:MOST_CHARS] for part in key)
    key = [*_written(parents), last]
    valid = sorted({name for table in _tables_at(parents) for name in table.model_fields})
    if not parents:
        valid += ["base", "endpoints"]
    remedy = nearest_key(last, valid)
    if homes := _homes(last):
        remedy += f"; {last!r} belongs to {' or '.join(homes)}"
    if not remedy and valid:
        remedy = f"; valid keys here: {', '.join(valid)}"
    return f"scenario key {'.'.join(key)!r} is unknown{remedy}"


def _tables_at(key: Sequence[str]) -> list[type[Strict]]:
    """The tables that may stand at a key: several where a list holds tables of different kinds."""
    tables: list[type[Strict]] = [Scenario]
    for part in key:
        fields = [table.model_fields[part] for table in tables if part in table.model_fields]
        if fields:
            tables = [table for field in fields for table in _tables_in(field.annotation)]
        elif not part.isdigit():  # pydantic puts a table's kind between it and its keys
            tables = [table for table in tables if _kind(table) == part]
    return tables


def _written(key: Sequence[str]) -> list[str]:
    """The key as documents have it, without the kinds of tables."""
    return [
        part
        for k, part in enumerate(key)
        if k == 0 or part not in [_kind(table) for table in _tables_at(key[:k])]
    ]


def _kind(table: type[Strict]) -> Any:
    """A server's or disturbance's kind, None of other tables."""
    field = table.model_fields.get("kind")
    return field.default if field and len(get_args(field.annotation)) == 1 else None


def _tables_in(annotation: Any) -> list[type[Strict]]:
    """The tables within a type, such as Cell in tuple[Cell, ...]."""
    if isinstance(annotation, type) and issubclass(annotation, Strict):
        return [annotation]
    return [table for part in get_args(annotation) for table in _tables_in(part)]


def _homes(name: str, table: type[Strict] = Scenario, key: str = "") -> list[str]:
    """Where a key of this name is valid, in words: the scenario itself, or dotted tables."""
    place = repr(key) if key else "the scenario itself"
    if _kind(table) is not None:
        place += f" of kind {_kind(table)!r}"
    homes = [place] if name in table.model_fields else []
    for field, info in table.model_fields.items():
        for inner in _tables_in(info.annotation):
            homes += _homes(name, inner, f"{key}.{field}" if key else field)
    return homes
