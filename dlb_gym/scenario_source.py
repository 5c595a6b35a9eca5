"""Where scenarios come from: shipped names, TOML files, dictionaries, changes to another one.

A file or dictionary may say `base = "global_six"` and then state only what differs from that
shipped scenario; a base has no base of its own. Tables merge, lists are replaced, and a quoted key
("cells.0.servers") reaches into a list, all as in `override`.

A trace may be given by its path alone: its digest is taken when it is loaded, and its columns are
named for it where the file has those of a known format. A path in a file starts at that file's
folder.

Whatever is wrong with a scenario - an unknown key, a wrong type, a contradiction, a missing file -
raises `ScenarioError`, which names the key, the value, the rule and the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from dlb_gym.network import load_rtt_csv
from dlb_gym.scenario import Scenario, Strict, Trace, nearest_key
from dlb_gym.trace_file import TraceFile, recognised

SCENARIO_DIR = Path(__file__).parent / "scenarios"

ScenarioSource = str | Path | Mapping[str, Any] | Scenario


class ScenarioError(ValueError):
    """A scenario that cannot be used; the message names the key, the rule and the remedy."""


def scenario_names() -> tuple[str, ...]:
    """Names of the shipped scenarios."""
    return tuple(sorted(path.stem for path in SCENARIO_DIR.glob("*.toml")))


def load_scenario(source: ScenarioSource, rtt_csv: str | Path | None = None) -> Scenario:
    """Loads a scenario.

    Args:
        source: The name of a shipped scenario, the path of a TOML file (it ends in ".toml"), a
            dictionary, or a scenario, which is returned as it is.
        rtt_csv: Measured round trips (see `network.load_rtt_csv`) that replace the modelled ones,
            matched to roots and cells by region.

    Raises:
        ScenarioError: The source is missing, unreadable or not a valid scenario.
        TraceError: Its trace has to be read for what is left out, and cannot be.
        NetworkError: The matrix is not valid or lacks a region of the scenario.
    """
    if isinstance(source, Scenario):
        document: Mapping[str, Any] = source.model_dump(mode="python")
    elif isinstance(source, Mapping):
        document = _on_its_base(source)
    else:
        path = _scenario_path(source)
        document = _with_trace(_on_its_base(_read_toml(path)), path.parent)
    if rtt_csv is not None:
        document = _with_measured_rtt(document, rtt_csv)
    elif isinstance(source, Scenario):
        return source
    return scenario_from_dict(document)


def override(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A scenario with some keys changed, validated again.

    Args:
        scenario: The scenario to start from; it stays as it is.
        changes: Dotted keys ("demand.utilisation", "cells.0.servers") to new values; a mapping as
            a value changes only the keys it names, unless it is a trace: another path is another
            trace.

    Raises:
        ScenarioError: A key is unknown or the result is not valid.
        TraceError: As `scenario_from_dict`.
    """
    return scenario_from_dict(_changed(scenario, changes))


def scenario_from_dict(document: Mapping[str, Any]) -> Scenario:
    """Validates a dictionary as a scenario; lists count as tuples.

    Raises:
        ScenarioError: With one line for every fault.
        TraceError: Its trace has to be read for what is left out, and cannot be.
    """
    try:
        return Scenario.model_validate(_tuples(_with_trace(document)))
    except ValidationError as error:
        lines = [_fault(dict(item)) for item in error.errors(include_url=False)]
        raise ScenarioError("\n".join(lines)) from None


def _changed(scenario: Scenario, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The scenario as a dictionary with some keys changed, not validated yet."""
    document = scenario.model_dump(mode="python")
    for key, value in changes.items():
        _assign(document, key, value)
    return document


def _on_its_base(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """The document itself, or all of its base with what the document changes."""
    if "base" not in document:
        return document
    base = document["base"]
    if base not in scenario_names():
        raise ScenarioError(
            f"base = {base!r} is no shipped scenario{nearest_key(str(base), scenario_names())}; "
            f"shipped: {', '.join(scenario_names())}"
        )
    whole = _read_toml(SCENARIO_DIR / f"{base}.toml")
    if "base" in whole:
        raise ScenarioError(
            f"base = {base!r} has a base itself; name that one, {whole['base']!r}, and the changes"
        )
    changes = {key: value for key, value in document.items() if key != "base"}
    return _changed(scenario_from_dict(whole), changes)


def _with_trace(document: Mapping[str, Any], folder: Path | None = None) -> Mapping[str, Any]:
    """The document, its trace with the digest and columns that it leaves out.

    Args:
        document: Not validated yet; a trace with faults of its own is left to the validation.
        folder: Where a relative path starts; None for the working directory.
    """
    demand = document.get("demand")
    given = demand.get("trace") if isinstance(demand, Mapping) else None
    if not isinstance(demand, Mapping) or not isinstance(given, Mapping):
        return document
    trace = dict(given)
    columns = ("time_column", "prompt_column", "output_column")
    texts = [trace.get(key, "") for key in ("path", "sha256", *columns)]
    if "path" not in trace or not all(isinstance(text, str) for text in texts):
        return document
    if folder is not None:
        trace["path"] = str(folder / trace["path"])
    if set(trace) <= set(Trace.model_fields) and not {"sha256", *columns} <= set(trace):
        file = TraceFile(trace["path"])
        fit = recognised(file, *(trace.get(key) for key in columns))
        if not set(columns) <= set(trace):
            trace.setdefault("time_unit_s", fit.time_unit_s)
        trace = {
            "sha256": file.sha256, "time_column": fit.time_column,
            "prompt_column": fit.prompt_column, "output_column": fit.output_column, **trace,
        }  # fmt: skip
    return {**document, "demand": {**demand, "trace": trace}}


def _with_measured_rtt(document: Mapping[str, Any], path: str | Path) -> Mapping[str, Any]:
    """The document with the file's round trips as `network.rtt_s`."""
    unmeasured = {**document, "network": {**document.get("network", {}), "rtt_s": None}}
    regions: dict[str, list[str]] = {}
    for key in ("roots", "cells"):
        places = unmeasured.get(key)
        if not places or not all(isinstance(p, Mapping) and "region" in p for p in places):
            raise ScenarioError(f"scenario key {key!r} must list tables with a region each")
        regions[key] = [str(place["region"]) for place in places]
    rtt_s = load_rtt_csv(path).between(regions["roots"], regions["cells"])
    unmeasured["network"] = {**unmeasured["network"], "rtt_s": rtt_s.tolist()}
    return unmeasured


def _scenario_path(source: str | Path) -> Path:
    path = Path(source)
    if path.suffix != ".toml":
        if str(source) in scenario_names():
            return SCENARIO_DIR / f"{source}.toml"
        raise ScenarioError(
            f"scenario {str(source)!r} is not shipped{nearest_key(str(source), scenario_names())}; "
            f"shipped: {', '.join(scenario_names())}; a file's name must end in .toml"
        )
    if not path.is_file():
        raise ScenarioError(f"scenario file {str(path)!r} does not exist or is not a file")
    return path


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise ScenarioError(f"scenario file {str(path)!r} is not readable TOML: {error}") from error


def _tuples(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _tuples(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return tuple(_tuples(item) for item in value)
    return value


def _assign(document: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key in a nested document in place."""
    target: Any = document
    *parents, last = key.split(".")
    walked: list[str] = []
    for part in parents:
        walked.append(part)
        target = _step_into(target, part, ".".join(walked))
    current = _step_into(target, last, key, missing_allowed=isinstance(target, dict))
    # Only a trace has a path; what is known of one file's content says nothing about another's.
    if isinstance(value, Mapping) and isinstance(current, dict) and "path" not in value:
        for name, item in value.items():
            _assign(current, str(name), item)
        return
    if isinstance(target, list):
        target[int(last)] = value
    else:
        target[last] = value


def _step_into(target: Any, part: str, key: str, missing_allowed: bool = False) -> Any:
    """The child `part` of a mapping or sequence; sequences become lists so that they can change."""
    if isinstance(target, dict):
        if part not in target:
            if missing_allowed:
                return None
            raise ScenarioError(_unknown([*key.split(".")]))
        if isinstance(target[part], tuple):
            target[part] = list(target[part])
        return target[part]
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return target[int(part)]
    raise ScenarioError(f"scenario key {key!r} does not lead to a value; check its parts")


def _fault(item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "scenario"
    if item["type"] == "extra_forbidden":
        return _unknown([str(part) for part in item["loc"]])
    if item["type"] == "missing":
        return f"scenario key {key!r} is missing"
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return f"scenario: {message}"
    return f"scenario key {key!r}: {message} (got {str(item['input'])[:80]!r})"


def _unknown(key: Sequence[str]) -> str:
    """Says that a key is unknown: the nearest of its table, where it belongs, or all valid ones."""
    *parents, last = key
    valid = sorted({name for table in _tables_at(parents) for name in table.model_fields})
    if not parents:
        valid.append("base")
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
        elif not part.isdigit():  # pydantic puts a disturbance's kind between its number and keys
            tables = [table for table in tables if _kind(table) == part]
    return tables


def _kind(table: type[Strict]) -> Any:
    """A disturbance's kind, None of other tables."""
    return table.model_fields["kind"].default if "kind" in table.model_fields else None


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
