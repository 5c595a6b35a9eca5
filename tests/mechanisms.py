"""Every mechanism on a small system, one by one and all together, as changes of a scenario."""

from __future__ import annotations

from typing import Any

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from tests.short_episodes import ring

SHORT: dict[str, Any] = {
    "horizon_s": 2.0,
    "warmup_s": 0.5,
    "control_interval_s": 0.05,
    "demand.utilisation": 1.1,
    "server.queue_limit": 4,
}
"""Two seconds of overload: full servers, so errors as well."""

SESSIONS = {"mean_turns": 4.0, "gap_s": 0.3, "least_gap_s": 0.05, "hash_values": 40}
REPLICAS = {
    "probe_loss": 0.2,
    "probe_timeout_s": 0.5,
    "root_replicas": 3,
    "turn_s": 0.03,
    "leaf_replicas": 3,
    "sync_interval_s": 0.02,
    "server_probe_interval_s": 0.015,
    "backlogs": True,
}
SMALL_CACHES = {"cache_tokens": 2000, "cache_sessions": 12, "map_sessions": 16}
ONLINE = {
    "kind": "online",
    "refit_interval_s": 0.2,
    "memory_s": 2.0,
    "background": 0.1,
    "dither": 0.05,
}
SPAN = {"start": 0.2, "end": 0.6}
FAULTS: dict[str, dict[str, Any]] = {
    "server_crash": {"servers": 2, "cells": ["cell-0"]},
    "black_hole": {"cells": ["cell-1"]},
    "slow_cell": {"cells": ["cell-1"]},
    "leaf_crash": {"cells": ["cell-0"]},
    "root_crash": {"roots": ["cell-1"]},
    "partition": {"cells": ["cell-0"]},
    "latency_shift": {"cells": ["cell-1"], "extra_s": 0.04},
}
BATCHING = {
    "kind": "continuous_batching",
    "max_batch": 4,
    "queue_limit": 8,
    "kv_tokens": 4000,
    "draft_tokens": 2,
    "acceptance": 0.6,
    "max_wait_s": 0.3,
}


def fault(kind: str, **keys: Any) -> dict[str, Any]:
    """A disturbance of a ring's cell or root."""
    return {"kind": kind} | SPAN | FAULTS[kind] | keys


MECHANISMS: dict[str, dict[str, Any]] = {
    "telemetry": {"telemetry": REPLICAS},
    "online": {"latency_estimate": ONLINE},
    "noisy": {"latency_estimate": {"kind": "noisy"}},
    "aversion": {"error_aversion": {"interval_s": 0.1, "silence_s": 0.2}},
    "conditional": {"demand.sessions": SESSIONS, "affinity": SMALL_CACHES},
    "sticky": {"demand.sessions": SESSIONS, "affinity": SMALL_CACHES | {"kind": "sticky"}},
    "hashed": {"demand.sessions": SESSIONS, "affinity": {"kind": "consistent_hash"}},
    "unrouted": {"demand.sessions": SESSIONS},
    "retries": {"retries": {"attempts": 2, "budget": 0.5}},
    "probing leaves": {"leaf": {"rule": "prequal"}},
    "counting leaves": {"leaf": {"rule": "preble"}, "demand.sessions": SESSIONS},
    "patience": {"server.max_wait_s": 0.05},
    "batching": {"server": BATCHING},
    "autoscaler": {"autoscaler": {"interval_s": 0.2, "delay_s": 0.3, "extra_servers": 0.5}},
} | {
    kind: {"disturbances": [fault(kind)]}
    | ({"telemetry": REPLICAS} if kind in ("leaf_crash", "root_crash") else {})
    for kind in FAULTS
}
"""What each mechanism needs to be on, by name."""

EVERYTHING: dict[str, Any] = {
    "telemetry": REPLICAS,
    "latency_estimate": ONLINE,
    "error_aversion": {"interval_s": 0.1, "silence_s": 0.2},
    "demand.sessions": SESSIONS,
    "affinity": SMALL_CACHES,
    "leaf": {"rule": "prequal"},
    "retries": {"attempts": 2, "budget": 0.5},
    "disturbances": [fault(kind) for kind in FAULTS],
}
MECHANISMS["everything"] = EVERYTHING | {"server.max_wait_s": 0.2}
MECHANISMS["everything batching"] = EVERYTHING | {"server": BATCHING, "leaf": {"rule": "preble"}}


def scenario_with(mechanism: str | None, cells: int = 3, **changes: Any) -> Scenario:
    """A ring with one of the mechanisms; None: with none of them."""
    own = {} if mechanism is None else MECHANISMS[mechanism]
    shared = {key: value for key, value in SHORT.items() if not _replaced(key, own)}
    named = {"name": f"{mechanism}-{cells}"}
    return override(load_scenario(ring(cells)), named | shared | own | changes)


def _replaced(key: str, own: dict[str, Any]) -> bool:
    """Whether a table of the mechanism stands in a shared key's place."""
    return key.split(".")[0] in own
