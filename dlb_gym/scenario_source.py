"""Where scenarios come from: shipped names, TOML files, dictionaries, changes to another one.

A file or dictionary may say `base = "global_six"` and then state only what differs from that
shipped scenario; a base has no base of its own. Tables merge, lists are replaced, and a quoted key
("cells.0.servers") reaches into a list, all as in `override`.

A file or dictionary may also list several endpoints, scenarios that are rows of one batch and
follow one clock:

    name = "endpoints"
    base = "global_six"
    control_interval_s = 0.1      # what stands here holds for all of them ...

    [[endpoints]]
    name = "sand"
    tokens.output.mean_tokens = 20.0        # ... and a key of an endpoint's own replaces it.

Each is the scenario "endpoints/sand", and goes by that name; those of a file "mine.toml" are given
as "mine.toml/sand".

A trace may be given by its path alone: its digest is taken when it is loaded, and its columns are
named for it where the file has those of a known format. A path in a file starts at that file's
folder.

Whatever is wrong with a scenario - an unknown key, a wrong type, a contradiction, a missing file -
raises `ScenarioError`, which names the key, the value, the rule and the remedy.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dlb_gym.messages import shown
from dlb_gym.network import load_rtt_csv
from dlb_gym.scenario import Scenario, Trace
from dlb_gym.scenario_checks import nearest_key
from dlb_gym.scenario_faults import ScenarioError as ScenarioError
from dlb_gym.scenario_faults import faults, unknown_key
from dlb_gym.scenario_text import plain, read_toml, require_counts
from dlb_gym.trace_file import TraceFile, recognised

SCENARIO_DIR = Path(__file__).parent / "scenarios"
CLOCK = ("control_interval_s", "warmup_s", "settle_s", "horizon_s")
"""What the endpoints of one batch have in common."""
ScenarioSource = str | Path | Mapping[str, Any] | Scenario

_INDEX = re.compile("[0-9]{1,9}")


@cache
def scenario_names() -> tuple[str, ...]:
    """Names of the shipped scenarios; a file of several endpoints gives one for each of them."""
    names: list[str] = []
    for path in SCENARIO_DIR.glob("*.toml"):
        endpoints = read_toml(path).get("endpoints", ())
        names += [f"{path.stem}/{table['name']}" for table in endpoints] or [path.stem]
    return tuple(sorted(names))


def load_scenario(source: ScenarioSource, rtt_csv: str | Path | None = None) -> Scenario:
    """Loads a scenario.

    Args:
        source: The name of a shipped scenario, the path of a TOML file (it ends in ".toml", or in
            ".toml/" and the name of an endpoint), a dictionary, or a scenario, which is returned
            as it is.
        rtt_csv: Measured round trips (see `network.load_rtt_csv`) that replace the modelled ones,
            matched to roots and cells by region.

    Raises:
        ScenarioError: The source is missing, unreadable, not a valid scenario, or several.
        TraceError: Its trace has to be read for what is left out, and cannot be.
        NetworkError: The matrix is not valid or lacks a region of the scenario.
    """
    scenarios = load_endpoints(source, rtt_csv)
    if len(scenarios) > 1:
        raise ScenarioError(
            f"{several_endpoints(source, scenarios)}, rows of one batch, where one scenario is "
            f"needed; name one of them, as in {endpoint_name(source, scenarios[0])!r}"
        )
    return scenarios[0]


def load_endpoints(
    source: ScenarioSource, rtt_csv: str | Path | None = None
) -> tuple[Scenario, ...]:
    """Loads the endpoints of a source, in its order; one scenario where it lists none.

    Args:
        source: As for `load_scenario`.
        rtt_csv: As for `load_scenario`, for every endpoint.

    Raises:
        ScenarioError: As `load_scenario`, or the endpoints do not follow one clock.
        TraceError: As `load_scenario`.
        NetworkError: As `load_scenario`.
    """
    if isinstance(source, Scenario):
        if rtt_csv is None:
            return (source,)
        return (_validated(source.model_dump(mode="python"), None, rtt_csv),)
    if isinstance(source, Mapping):
        folder, chosen, document = None, None, plain(source)
    else:
        path, chosen = _scenario_path(source)
        folder, document = path.parent, read_toml(path)
    if "endpoints" not in document:
        if chosen is not None:
            raise ScenarioError(
                f"scenario {str(source)!r}: the file lists no endpoints; leave out '/{chosen}'"
            )
        return (_validated(_on_its_base(document), folder, rtt_csv),)
    scenarios = []
    for name, table in _endpoints(document, chosen).items():
        with _concerning(name):
            scenarios.append(_validated(_on_its_base(table), folder, rtt_csv))
    _require_one_clock(scenarios)
    return tuple(scenarios)


def several_endpoints(source: ScenarioSource, scenarios: Sequence[Scenario]) -> str:
    """The beginning of an error: which source lists which endpoints."""
    listed = ", ".join(scenario.name.rpartition("/")[2] for scenario in scenarios)
    return f"scenario {_name_of(source)!r} lists {len(scenarios)} endpoints ({listed})"


def endpoint_name(source: ScenarioSource, scenario: Scenario) -> str:
    """What to give as `scenario` for one endpoint of a source."""
    return f"{_name_of(source)}/{scenario.name.rpartition('/')[2]}"


def _name_of(source: ScenarioSource) -> str:
    return str(source.get("name")) if isinstance(source, Mapping) else str(source)


def override(scenario: Scenario, changes: Mapping[str, Any]) -> Scenario:
    """A scenario with some keys changed, validated again.

    Args:
        scenario: The scenario to start from; it stays as it is.
        changes: Dotted keys ("demand.utilisation", "cells.0.servers") to new values; a mapping as
            a value changes only the keys it names, unless it is a trace (another path is another
            trace) or a server or disturbance of another kind.

    Raises:
        ScenarioError: A key is unknown or the result is not valid.
        TraceError: As `scenario_from_dict`.
    """
    if not isinstance(changes, Mapping):
        raise ScenarioError(
            f"changes must map dotted keys to values, as in {{'horizon_s': 30.0}}; got "
            f"{shown(changes)}"
        )
    return scenario_from_dict(_changed(scenario, plain(changes)))


def scenario_from_dict(document: Mapping[str, Any]) -> Scenario:
    """Validates a dictionary as a scenario; lists count as tuples.

    Raises:
        ScenarioError: With one line for every fault.
        TraceError: Its trace has to be read for what is left out, and cannot be.
    """
    require_counts(document)
    try:
        return Scenario.model_validate(plain(_with_trace(document)))
    except ValidationError as error:
        raise ScenarioError("\n".join(faults(error))) from None


def _validated(
    document: Mapping[str, Any], folder: Path | None, rtt_csv: str | Path | None
) -> Scenario:
    """A whole document, its paths relative to a folder, as a scenario."""
    if folder is not None:
        document = _with_trace(document, folder)
    if rtt_csv is not None:
        document = _with_measured_rtt(document, rtt_csv)
    return scenario_from_dict(document)


def _endpoints(document: Mapping[str, Any], chosen: str | None) -> dict[str, dict[str, Any]]:
    """The documents of all endpoints by name, or of the one that is chosen."""
    tables = document["endpoints"]
    if not isinstance(tables, list | tuple) or not tables:
        raise ScenarioError("scenario key 'endpoints' must list at least one table")
    if not isinstance(document.get("name"), str):
        raise ScenarioError("scenario key 'name' is missing or no text")
    shared = {key: value for key, value in document.items() if key != "endpoints"}
    found: dict[str, dict[str, Any]] = {}
    for index, table in enumerate(tables):
        name = table.get("name") if isinstance(table, Mapping) else None
        if not isinstance(name, str) or not re.fullmatch(r"[\w-]+", name):
            raise ScenarioError(
                f"scenario key 'endpoints.{index}.name' must consist of letters, digits, '_' and "
                f"'-' (got {shown(name)})"
            )
        if name in found:
            raise ScenarioError(f"endpoints: the name {name!r} stands twice; names must differ")
        found[name] = {**shared, **table, "name": f"{document['name']}/{name}"}
    if chosen is None:
        return found
    if chosen not in found:
        raise ScenarioError(
            f"scenario {shown(document['name'])} has no endpoint {shown(chosen)}"
            f"{nearest_key(chosen, found)}; endpoints: {', '.join(found)}"
        )
    return {chosen: found[chosen]}


@contextmanager
def _concerning(endpoint: str) -> Iterator[None]:
    """Says in an error which endpoint it is about."""
    try:
        yield
    except ScenarioError as error:
        raise ScenarioError(f"endpoint {endpoint!r}: {error}") from error


def _require_one_clock(scenarios: Sequence[Scenario]) -> None:
    first = scenarios[0]
    for scenario in scenarios[1:]:
        for key in CLOCK:
            one, other = getattr(first, key), getattr(scenario, key)
            if one != other:
                raise ScenarioError(
                    f"endpoints follow one clock, but {key} = {one} in {first.name!r} and {other} "
                    f"in {scenario.name!r}; state {key} once, outside the endpoints"
                )


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
    if not isinstance(base, str) or base not in _shipped_files():
        raise ScenarioError(
            f"base = {shown(base)} is no shipped scenario"
            f"{nearest_key(base, scenario_names()) if isinstance(base, str) else ''}; "
            f"shipped: {', '.join(scenario_names())}"
        )
    whole = read_toml(SCENARIO_DIR / f"{base}.toml")
    if "endpoints" in whole:
        raise ScenarioError(f"base = {base!r} lists several endpoints; a base is one scenario")
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
    network = document.get("network", {})
    if not isinstance(network, Mapping):
        raise ScenarioError(f"scenario key 'network' must be a table (got {shown(network)})")
    unmeasured = {**document, "network": {**network, "rtt_s": None}}
    regions: dict[str, list[str]] = {}
    for key in ("roots", "cells"):
        places = unmeasured.get(key)
        if not isinstance(places, list | tuple) or not places or not all(map(_has_region, places)):
            raise ScenarioError(f"scenario key {key!r} must list tables with a region each")
        regions[key] = [place["region"] for place in places]
    rtt_s = load_rtt_csv(path).between(regions["roots"], regions["cells"])
    unmeasured["network"] = {**unmeasured["network"], "rtt_s": rtt_s.tolist()}
    return unmeasured


def _has_region(place: object) -> bool:
    return isinstance(place, Mapping) and isinstance(place.get("region"), str)


def _shipped_files() -> set[str]:
    return {path.stem for path in SCENARIO_DIR.glob("*.toml")}


def _scenario_path(source: str | Path) -> tuple[Path, str | None]:
    """The file of a scenario that is no dictionary, and the endpoint of it that is named."""
    if not isinstance(source, str | Path):
        raise ScenarioError(
            f"scenario = {shown(source)} must be a name, the path of a TOML file, a dictionary or "
            "a Scenario"
        )
    path, endpoint = Path(source), None
    shipped = _shipped_files()
    if path.suffix != ".toml" and (path.parent.suffix == ".toml" or str(path.parent) in shipped):
        path, endpoint = path.parent, path.name
    if path.suffix != ".toml":
        if str(path) in shipped:
            return SCENARIO_DIR / f"{path}.toml", endpoint
        raise ScenarioError(
            f"scenario {shown(str(source))} is not shipped"
            f"{nearest_key(str(source), scenario_names())}; "
            f"shipped: {', '.join(scenario_names())}; a file's name must end in .toml"
        )
    return path, endpoint


def _assign(document: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key in a nested document in place."""
    if not isinstance(key, str):
        raise ScenarioError(f"scenario key {shown(key)} must be text")
    target: Any = document
    *parents, last = key.split(".")
    walked: list[str] = []
    for part in parents:
        walked.append(part)
        target = _step_into(target, part, ".".join(walked))
    current = _step_into(target, last, key, missing_allowed=isinstance(target, dict))
    if (
        isinstance(value, Mapping)
        and isinstance(current, dict)
        and not _replaces(key, value, current)
    ):
        for name, item in value.items():
            _assign(current, name, item)
        return
    if isinstance(target, list):
        target[int(last)] = value
    else:
        target[last] = value


def _replaces(key: str, value: Mapping[str, Any], current: dict[str, Any]) -> bool:
    """Whether a table stands by itself: another trace (only one has a path), or another kind.

    What is known of one file's content says nothing about another's, and a server or disturbance
    has the keys of its kind.
    """
    has_kinds = key == "server" or key.startswith("disturbances.")
    return "path" in value or (
        has_kinds and "kind" in value and value["kind"] != current.get("kind")
    )


def _step_into(target: Any, part: str, key: str, missing_allowed: bool = False) -> Any:
    """The child `part` of a mapping or sequence; sequences become lists so that they can change."""
    if isinstance(target, dict):
        if part not in target:
            if missing_allowed:
                return None
            raise ScenarioError(unknown_key(key.split(".")))
        if isinstance(target[part], tuple):
            target[part] = list(target[part])
        return target[part]
    if isinstance(target, list) and _INDEX.fullmatch(part) and int(part) < len(target):
        return target[int(part)]
    raise ScenarioError(f"scenario key {shown(key)} does not lead to a value; check its parts")
