"""What parts of a scenario must agree on; each rule names its key, the value and the remedy."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING

from dlb_gym.disturbance_models import (
    BlackHole,
    Burst,
    Disturbance,
    LatencyShift,
    LeafCrash,
    Outage,
    Partition,
    RootCrash,
    ServerCrash,
    SlowCell,
)
from dlb_gym.messages import nearest
from dlb_gym.server_design import check_design
from dlb_gym.sessions import mean_prompt_tokens

if TYPE_CHECKING:
    from dlb_gym.scenario import Scenario

MAX_STRUCK = 10_000
"""Cells or roots that disturbances strike, each counted as often as it is struck."""
MAX_STRUCK_ARCS = 1_000_000
"""Arcs that are cut or longer for a time, counted likewise."""
MAX_REMEMBERED = 10_000_000
"""Sessions in maps, sessions in caches, or views of servers by leaves that a replication keeps."""


def nearest_key(word: str, choices: Collection[str]) -> str:
    """A hint that names the closest valid word, or nothing."""
    close = nearest(word, choices)
    return f"; nearest valid key: {close!r}" if close else ""


def require_members(key: str, names: tuple[str, ...] | None, known: list[str]) -> None:
    """Refuses names that do not exist.

    Raises:
        ValueError: One of them is not known.
    """
    valid = set(known)
    for name in names or ():
        if name not in valid:
            hint = nearest_key(name, known)
            raise ValueError(f"{key} names {name!r}, which does not exist{hint}")


def check_mechanisms(scenario: Scenario) -> None:
    """Refuses mechanisms that contradict one another or the rest of the scenario.

    Raises:
        ValueError: They do.
    """
    _check_affinity(scenario)
    _check_leaf(scenario)
    _check_server(scenario)
    _check_telemetry(scenario)
    _check_intervals(scenario)
    _check_reach(scenario)
    for index, disturbance in enumerate(scenario.disturbances):
        _check_disturbance(scenario, f"disturbances.{index}", disturbance)
        _check_once(scenario.disturbances[:index], f"disturbances.{index}", disturbance)


def _check_affinity(scenario: Scenario) -> None:
    affinity = scenario.affinity
    if affinity is None:
        return
    for key, places, each in (
        ("cache_sessions", len(scenario.cells), "cells"),
        ("map_sessions", len(scenario.roots), "roots"),
    ):
        total = places * int(getattr(affinity, key))
        if total > MAX_REMEMBERED:
            raise ValueError(
                f"affinity.{key} = {getattr(affinity, key):,} in {places} {each} makes {total:,} "
                f"sessions in a replication; at most {MAX_REMEMBERED:,} are kept: lower it"
            )
    if not scenario.demand.has_sessions:
        raise ValueError(
            "affinity without sessions has nothing to stick to: add demand.sessions, name the "
            "trace's hash_ids_column, or leave affinity out"
        )


def _check_leaf(scenario: Scenario) -> None:
    """Which of affinity and leaf rule picks a server must be clear."""
    leaf, affinity = scenario.leaf, scenario.affinity
    if leaf.looks_at_sessions and not scenario.demand.has_sessions:
        raise ValueError(
            f"leaf.rule = {leaf.rule!r} goes by what servers keep of sessions, and there are none: "
            "add demand.sessions, name the trace's hash_ids_column, or choose another rule"
        )
    if affinity is not None and affinity.kind == "consistent_hash" and leaf != type(leaf)():
        raise ValueError(
            f"leaf.rule = {leaf.rule!r} has no effect with affinity.kind = 'consistent_hash', by "
            "which a session's hash alone picks its server: choose another kind, or leave leaf out"
        )


def _check_server(scenario: Scenario) -> None:
    """A trace's tokens are known when it is read, and checked then (`rates`)."""
    for index, cell in enumerate(scenario.cells):
        if cell.hardware is not None and scenario.server.kind == "disaggregated":
            raise ValueError(
                f"cells.{index}.hardware = {cell.hardware!r} has no effect on disaggregated "
                "servers: state prefill_s_per_token and decode_s_per_token, or set server.kind = "
                "'continuous_batching'"
            )
    demand, tokens = scenario.demand, scenario.tokens
    if demand.trace is not None:
        return
    output = tokens.output.mean_tokens
    prompt = mean_prompt_tokens(demand.sessions, tokens.prompt.mean_tokens, output)
    check_design(scenario.server, prompt, output, [cell.hardware for cell in scenario.cells])


def _check_telemetry(scenario: Scenario) -> None:
    telemetry = scenario.telemetry
    if telemetry is None:
        return
    for key in ("sync_interval_s", "server_probe_interval_s"):
        span_s = getattr(telemetry, key)
        if not _is_multiple(span_s, scenario.probe_interval_s):
            raise ValueError(
                f"telemetry.{key} = {span_s} is no whole number of probe intervals of "
                f"{scenario.probe_interval_s} s; choose a multiple, or 0"
            )
    cells, servers = len(scenario.cells), max(cell.servers for cell in scenario.cells)
    views = cells * servers * telemetry.leaf_replicas
    if views > MAX_REMEMBERED:
        raise ValueError(
            f"telemetry.leaf_replicas = {telemetry.leaf_replicas} in {cells} cells of up to "
            f"{servers:,} servers makes {views:,} views of a server in a replication; at most "
            f"{MAX_REMEMBERED:,} are kept: lower it"
        )
    for key in ("turn_s", "sync_interval_s", "server_probe_interval_s", "probe_timeout_s"):
        if getattr(telemetry, key) > scenario.horizon_s:
            raise ValueError(
                f"telemetry.{key} = {getattr(telemetry, key)} exceeds "
                f"horizon_s = {scenario.horizon_s}; shorten it"
            )


def _check_intervals(scenario: Scenario) -> None:
    estimate, autoscaler = scenario.latency_estimate, scenario.autoscaler
    # One round of fits a control interval at most: cells, which run one after the other, never
    # meet another's next round. Rounds begin with reports, so late by up to a probe interval.
    least_s = scenario.control_interval_s + scenario.probe_interval_s
    if estimate.kind == "online" and estimate.refit_interval_s < least_s:
        raise ValueError(
            f"latency_estimate.refit_interval_s = {estimate.refit_interval_s} is shorter than "
            f"control_interval_s + probe_interval_s = {least_s:g}; lengthen it"
        )
    aversion = scenario.error_aversion
    if aversion is not None and aversion.interval_s < scenario.control_interval_s:
        raise ValueError(
            f"error_aversion.interval_s = {aversion.interval_s} is shorter than "
            f"control_interval_s = {scenario.control_interval_s}, between which roots change "
            "nothing; lengthen it"
        )
    turn_s = 0.0 if scenario.telemetry is None else scenario.telemetry.turn_s
    if aversion is not None and aversion.silence_s <= scenario.probe_interval_s + turn_s:
        raise ValueError(
            f"error_aversion.silence_s = {aversion.silence_s} is no longer than reports of a "
            f"healthy cell lie apart, probe_interval_s + telemetry.turn_s = "
            f"{scenario.probe_interval_s + turn_s:g}; lengthen it"
        )
    if autoscaler is not None and not _is_multiple(
        autoscaler.interval_s, scenario.control_interval_s
    ):
        raise ValueError(
            f"autoscaler.interval_s = {autoscaler.interval_s} is no whole number of control "
            f"intervals of {scenario.control_interval_s} s; choose a multiple"
        )
    schedules = Outage | ServerCrash | BlackHole | SlowCell | LeafCrash
    for index, each in enumerate(scenario.disturbances):
        if autoscaler is not None and isinstance(each, schedules):
            raise ValueError(
                f"disturbances.{index}: an autoscaler and a {each.kind} would both write a cell's "
                "schedule: leave one of them out"
            )


def _check_reach(scenario: Scenario) -> None:
    """Working out what holds when takes the square of what strikes one place."""
    places = arcs = 0
    for each in scenario.disturbances:
        named = getattr(each, "cells", None) or getattr(each, "roots", None)
        places += len(named or ("drawn",))
        if isinstance(each, Partition | LatencyShift):
            roots = scenario.roots if each.roots is None else each.roots
            arcs += len(each.cells or ("drawn",)) * len(roots)
    for count, most, what in ((places, MAX_STRUCK, "places"), (arcs, MAX_STRUCK_ARCS, "arcs")):
        if count > most:
            raise ValueError(
                f"disturbances: {len(scenario.disturbances):,} of them strike {count:,} {what} in "
                f"all; at most {most:,} are possible: leave some out or name fewer cells and roots"
            )


def _check_disturbance(scenario: Scenario, key: str, disturbance: Disturbance) -> None:
    roots = [root.name for root in scenario.roots]
    if isinstance(disturbance, Burst):
        require_members(f"{key}.root", (disturbance.root and (disturbance.root,)) or None, roots)
        return
    if not isinstance(disturbance, RootCrash):
        cells = [cell.name for cell in scenario.cells]
        require_members(f"{key}.cells", disturbance.cells, cells)
    if isinstance(disturbance, RootCrash | Partition | LatencyShift):
        require_members(f"{key}.roots", disturbance.roots, roots)
    for kind, field in ((LeafCrash, "leaf_replicas"), (RootCrash, "root_replicas")):
        if isinstance(disturbance, kind):
            _require_peers(scenario, key, disturbance.kind, disturbance.replicas, field)


def _check_once(before: tuple[Disturbance, ...], key: str, disturbance: Disturbance) -> None:
    """Routers of a place crash at most once in an episode."""
    if not isinstance(disturbance, LeafCrash | RootCrash):
        return
    own = _crashing(disturbance)
    for other in before:
        if isinstance(other, LeafCrash | RootCrash) and other.kind == disturbance.kind:
            places = _crashing(other)
            if own is None or places is None or set(own) & set(places):
                raise ValueError(
                    f"{key}: a second {disturbance.kind} may concern the same place, whose routers "
                    "crash at most once in an episode: name other places, or leave one of them out"
                )


def _crashing(disturbance: LeafCrash | RootCrash) -> tuple[str, ...] | None:
    return disturbance.cells if isinstance(disturbance, LeafCrash) else disturbance.roots


def _require_peers(scenario: Scenario, key: str, kind: str, replicas: int, field: str) -> None:
    if scenario.telemetry is None:
        raise ValueError(
            f"{key}: a {kind} needs router replicas; add a telemetry table, whose {field} says how "
            "many a cell has"
        )
    available = getattr(scenario.telemetry, field)
    if replicas >= available:
        raise ValueError(
            f"{key}.replicas = {replicas} must be below telemetry.{field} = {available}: somebody "
            "has to go on; raise the one or lower the other"
        )


def _is_multiple(span_s: float, unit_s: float) -> bool:
    count = span_s / unit_s
    return math.isclose(count, round(count), rel_tol=1e-9, abs_tol=1e-9)
