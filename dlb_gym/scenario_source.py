"""Where scenarios come from: shipped names, TOML files, dictionaries, changes to another one.

A file or dictionary may say `base = "global_six"` and then state only what differs from that
shipped scenario; a base has no base of its own. Tables merge, lists are replaced, and a quoted key
("cells.0.servers") reaches into a list, all as in `override`.

Whatever is wrong with a scenario - an unknown key, a wrong type, a contradiction, a missing file -
raises `ScenarioError`, which names the key, the value, the rule and the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlb_gym.network import load_rtt_csv
from dlb_gym.scenario import Scenario, Strict, nearest_key

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
        NetworkError: The matrix is not valid or lacks a region of the scenario.
    """
    if isinstance(source, Scenario):
        document: Mapping[str, Any] = source.model_dump(mode="python")
    elif isinstance(source, Mapping):
        document = source
    else:
        document = _read_toml(_scenario_path(source))
    document = _on_its_base(document)
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
            a value changes only the keys it names.

    Raises:
        ScenarioError: A key is unknown or the result is not valid.
    """
    return scenario_from_dict(_changed(scenario, changes))


def scenario_from_dict(document: Mapping[str, Any]) -> Scenario:
    """Validates a dictionary as a scenario; lists count as tuples.

    Raises:
        ScenarioError: With one line for every fault.
    """
    try:
        return Scenario.model_validate(_tuples(document))
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
    if isinstance(value, Mapping) and isinstance(current, dict):
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
            raise ScenarioError(f"scenario key {key!r} is unknown{nearest_key(part, target)}")
        if isinstance(target[part], tuple):
            target[part] = list(target[part])
        return target[part]
    if isinstance(target, list) and part.isdigit() and int(part) < len(target):
        return target[int(part)]
    raise ScenarioError(f"scenario key {key!r} does not lead to a value; check its parts")


def _fault(item: dict[str, Any]) -> str:
    key = ".".join(str(part) for part in item["loc"]) or "scenario"
    if item["type"] == "extra_forbidden":
        return f"scenario key {key!r} is unknown{nearest_key(str(item['loc'][-1]), _all_keys())}"
    if item["type"] == "missing":
        return f"scenario key {key!r} is missing"
    message = item["msg"].removeprefix("Value error, ")
    if not item["loc"]:
        return f"scenario: {message}"
    return f"scenario key {key!r}: {message} (got {str(item['input'])[:80]!r})"


def _all_keys() -> set[str]:
    keys: set[str] = set()
    models = list(Strict.__subclasses__())
    while models:
        model = models.pop()
        keys.update(model.model_fields)
        models.extend(model.__subclasses__())
    return keys
