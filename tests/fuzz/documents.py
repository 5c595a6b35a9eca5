"""Scenario documents, mostly valid, that something was done to; and their text as TOML."""

from __future__ import annotations

import copy
import json
import math
import tomllib
from typing import Any

from hypothesis import strategies as st

from dlb_gym.scenario_source import SCENARIO_DIR

Document = dict[str, Any]

SMALL: Document = {
    "name": "small",
    "cells": [
        {"name": "a", "region": "us-east4", "servers": 2},
        {"name": "b", "region": "europe-west1", "servers": 3, "decode_s_per_token": 0.01},
    ],
    "roots": [
        {"name": "a", "region": "us-east4", "demand": 1.0},
        {"name": "c", "region": "asia-east1", "demand": 0.5, "reachable": ["b"]},
    ],
    "warmup_s": 1.0,
    "horizon_s": 2.0,
}
EVERYTHING: Document = SMALL | {
    "network": {"rtt_s": [[0.001, 0.1], [0.15, 0.2]], "mean_rtt_s": 0.08},
    "tokens": {
        "prompt": {"loc_tokens": 20, "shape": 1.5, "mean_tokens": 500.0},
        "output": {"loc_tokens": 10, "shape": 2.0, "mean_tokens": 200.0},
    },
    "server": {"kind": "disaggregated", "decode_engines": 2, "queue_limit": 32, "max_wait_s": 5.0},
    "demand": {
        "utilisation": 0.7,
        "profile": {"diurnal_amplitude": 0.2, "synchronised_fraction": 0.1, "day_s": 60.0},
        "sessions": {"mean_turns": 2.0, "gap_s": 1.0, "least_gap_s": 0.2, "hot_fraction": 0.1},
    },
    "telemetry": {"probe_loss": 0.1, "leaf_replicas": 3, "root_replicas": 2, "backlogs": True},
    "latency_estimate": {"kind": "online", "refit_interval_s": 1.0, "dither": 0.1},
    "error_aversion": {"interval_s": 0.5},
    "affinity": {"kind": "conditional", "cache_sessions": 16, "map_sessions": 8},
    "leaf": {"rule": "prequal", "probe_pool": 8, "probes_per_request": 1.5},
    "retries": {"attempts": 2, "budget": 0.2},
    "disturbances": [
        {"kind": "burst", "to_utilisation": 0.9, "root": "c"},
        {"kind": "server_crash", "cells": ["b"], "servers": 1},
        {"kind": "black_hole", "error_fraction": 0.3, "start": 0.1, "end": 0.5},
        {"kind": "slow_cell", "speed": 0.5},
        {"kind": "leaf_crash", "cells": ["a"], "replicas": 1},
        {"kind": "root_crash", "roots": ["a"], "replicas": 1},
        {"kind": "partition", "cells": ["a"], "roots": ["c"]},
        {"kind": "latency_shift", "extra_s": 0.1},
        {"kind": "outage", "cells": ["b"], "servers_left": 1},
    ],
    "dispatch": "smooth",
    "router_delay_s": 5e-4,
    "probe_interval_s": 5e-3,
    "control_interval_s": 0.1,
    "settle_s": 0.5,
    "error_penalty": 10.0,
}
BATCHING: Document = SMALL | {
    "server": {
        "kind": "continuous_batching", "preset": "a100", "max_batch": 8, "queue_limit": 16,
        "prefill_budget_tokens": 256, "kv_tokens": 20_000, "draft_tokens": 2, "acceptance": 0.5,
    },
    "autoscaler": {"interval_s": 0.5, "delay_s": 1.0, "extra_servers": 0.5},
}  # fmt: skip
ENDPOINTS: Document = {
    **SMALL,
    "endpoints": [{"name": "one"}, {"name": "two", "demand": {"utilisation": 0.5}}],
}
SEEDS = (
    SMALL,
    EVERYTHING,
    BATCHING,
    ENDPOINTS,
    *(
        tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted(SCENARIO_DIR.glob("*.toml"))
    ),
)

NUMBERS = st.one_of(
    st.sampled_from(
        [0, 1, -1, 2, 10, 1_000, 10**5, 10**7, 10**9, 2**31, 2**53, 2**63, 2**64, 10**30, 10**400]
    ),
    st.sampled_from([0.0, -0.0, 0.5, 1.0, 1e-3, 1e-9, 1e-300, 5e-324, 1e6, 1e12, 1e308, -1e308]),
    st.sampled_from([math.nan, math.inf, -math.inf]),
    st.integers(),
    st.floats(),
    st.floats(0, 1),
    st.integers(1, 100),
)
TEXTS = st.one_of(
    st.sampled_from(["", "a", "b", "c", "us-east4", "global_six", "online", "outage", "1", "nan"]),
    st.sampled_from(["é\u202e\u0301", "<script>", "\x7f\x01", "a" * 10_000, "../x", "a.b", "²"]),
    st.text(st.characters(codec="utf-8"), max_size=20),
)
SCALARS = st.one_of(NUMBERS, NUMBERS, TEXTS, st.booleans())
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


_DEEPEST = 6


def nested(depth: int, of_tables: bool) -> Any:
    """A list in a list, or a table in a table, so deep."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if of_tables else [value]
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of what is in a document, as far as a scenario goes down."""
    if isinstance(value, dict):
        items: Any = value.items()
    elif isinstance(value, list):
        items = list(enumerate(value))[:20]
    else:
        return []
    if len(path) > _DEEPEST:
        return []
    found = []
    for key, item in items:
        found += [(*path, key), *places(item, (*path, key))]
    return found


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


CHANGES = (
    "drop", "value", "value", "number", "number", "number", "copy", "rename", "add", "twice",
    "long",
)  # fmt: skip


@st.composite
def documents(draw: st.DrawFn, most_changes: int = 3) -> Document:
    """A valid document after up to so many changes."""
    document = copy.deepcopy(draw(st.sampled_from(SEEDS)))
    for _ in range(draw(st.integers(0, most_changes))):
        found = places(document)
        if not found:
            break
        change(draw, document, draw(st.sampled_from(found)), found)
    if draw(st.integers(0, 15)) == 0:
        deep = nested(draw(st.sampled_from([5, 90, 2_000])), draw(st.booleans()))
        path = draw(st.sampled_from(places(document) or [("name",)]))
        _at(document, path[:-1])[path[-1]] = deep
    return document


def change(
    draw: st.DrawFn, document: Document, path: tuple[Any, ...], found: list[tuple[Any, ...]]
) -> None:
    """Does something to what is at a path.

    Args:
        draw: Hypothesis'.
        document: It is changed in place.
        path: Of the thing.
        found: All paths there are.
    """
    parent, key = _at(document, path[:-1]), path[-1]
    kind = draw(st.sampled_from(CHANGES))
    if kind == "drop":
        del parent[key]
    elif kind == "value":
        parent[key] = draw(VALUES)
    elif kind == "number":
        old = parent[key]
        scaled = isinstance(old, float) and draw(st.booleans())
        parent[key] = old * 10.0 ** draw(st.integers(-12, 12)) if scaled else draw(NUMBERS)
    elif kind == "copy":
        parent[key] = copy.deepcopy(_at(document, draw(st.sampled_from(found))))
    elif kind == "long":
        parent[key] = [copy.deepcopy(parent[key])] * draw(st.sampled_from([0, 3, 30, 2_000]))
    elif isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))
    elif kind == "rename":
        parent[draw(st.one_of(TEXTS, st.just(f"{key}s")))] = parent.pop(key)
    elif kind == "add":
        parent[draw(TEXTS)] = draw(VALUES)
    else:
        _add_known_key(draw, parent, found)


def _add_known_key(draw: st.DrawFn, table: Any, found: list[tuple[Any, ...]]) -> None:
    """A key that is valid, here or somewhere else."""
    known = sorted({str(path[-1]) for path in (*found, *places(EVERYTHING))})
    table[draw(st.sampled_from(known))] = draw(VALUES)


def toml(document: Document) -> str:
    """The document as TOML, a key a line."""
    return "".join(f"{_text(str(key))} = {toml_value(value)}\n" for key, value in document.items())


def toml_value(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(str(k))} = {toml_value(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    return _text(value)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
