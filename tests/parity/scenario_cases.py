"""Random small scenarios, each mechanism on or off, and random decisions."""

from __future__ import annotations

import random
from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict
from tests.parity.random_choices import MODES, random_decision
from tests.parity.traces import random_trace
from tests.reference import Decision

Table = dict[str, Any]

FAULTS = (
    "server_crash", "outage", "black_hole", "slow_cell", "leaf_crash", "root_crash", "partition",
    "latency_shift", "burst",
)  # fmt: skip
MECHANISMS = (
    "telemetry", "online", "noisy", "aversion", "sessions", "trace", "retries", "patience",
    "batching", "autoscaler", "leaf", *FAULTS,
)  # fmt: skip
"""What a scenario may have; leaf and root crashes bring telemetry with them, and a trace's sessions
replace drawn ones."""
SCHEDULED = frozenset(("server_crash", "outage", "black_hole", "slow_cell", "leaf_crash"))
"""Faults that an autoscaler keeps out."""
LEAF_RULES: dict[str, Table] = {
    "tokens": {"choices": (1, 3, 9)},
    "random": {},
    "round_robin": {},
    "least_requests": {},
    "ray": {},
    "prequal": {
        "probe_pool": (2, 3, 16),
        "probe_age_s": (0.2, 1.0),
        "probes_per_request": (0.7, 3.0),
        "removals_per_request": (0.0, 0.4, 1.0),
        "reuse_delta": (0.0, 1.3),
        "rif_quantile": (0.0, 0.5, 0.84, 1.0),
    },
    "vllm": {"window_s": (0.3, 2.0)},
}
SESSION_RULES: dict[str, Table] = {
    "vllm_load_aware": {"load_weight": (0.2, 1.0)},
    "aibrix": {"imbalance_gap": (0, 2), "imbalance_factor": (0.5, 2.0), "deviations": (0.5, 1.0)},
    "sglang": {"imbalance_gap": (0, 2), "imbalance_factor": (1.5,), "match_share": (0.1, 0.5)},
    "preble": {"window_s": (0.3, 2.0)},
    "dualmap": {"ttft_slo_s": (0.05, 5.0)},
}
"""Rules of leaves and their numbers."""
OVERLAPPING = ("server_crash", "black_hole", "slow_cell", "partition", "latency_shift")
"""Of these a scenario may have two."""
TRACES = 3
"""Each has latency curves of its own to be measured."""
GRID_S = 1.0 / 64.0
TOKENS: Table = {
    "prompt": {"loc_tokens": 5, "shape": 1.5, "mean_tokens": 200.0},
    "output": {"loc_tokens": 1, "shape": 1.0, "mean_tokens": 60.0},
}


def random_scenario(seed: int, on: Set[str], folder: Path) -> Scenario:
    """A scenario of 1 to 4 cells, 1 to 3 roots and these mechanisms; all numbers from the seed.

    Args:
        seed: The seed.
        on: Of `MECHANISMS`.
        folder: Where a trace is written to.
    """
    return scenario_from_dict(_Drawer(seed, folder).document(on))


def on_a_grid(seed: int, on: Set[str], folder: Path) -> Scenario:
    """A scenario whose times are sixteenths and the like: instants of all kinds coincide.

    Sums of these times are exact, so every tie is one in both implementations.
    """
    document = _Drawer(seed, folder).document(on)
    rng = random.Random(seed)
    document |= {
        "router_delay_s": 0.0,
        "probe_interval_s": GRID_S,
        "control_interval_s": rng.choice([0.125, 0.25]),
        "horizon_s": 4.0,
        "network": {
            "rtt_s": [
                [rng.choice([0.0, 0.0625, 0.125]) for _ in document["cells"]]
                for _ in document["roots"]
            ]
        },
    }
    for cell in document["cells"]:
        cell |= {"prefill_s_per_token": 2.0**-10, "decode_s_per_token": 2.0**-7}
    for each in document["disturbances"]:
        each |= {"start": rng.choice([0.125, 0.25]), "end": rng.choice([0.5, 0.625])}
        each |= {key: 0.5 for key in ("speed", "error_fraction") if key in each}
        each |= {"extra_s": 0.0625} if "extra_s" in each else {}
    if "max_wait_s" in document["server"]:
        document["server"]["max_wait_s"] = 0.125
    if "telemetry" in document:
        document["telemetry"] |= {
            "turn_s": rng.choice([0.0, 0.0625, 0.25]),
            "sync_interval_s": GRID_S * rng.choice([0, 1, 3]),
            "server_probe_interval_s": GRID_S * rng.choice([0, 1, 4]),
        }
    if "error_aversion" in document:
        document["error_aversion"]["interval_s"] = 0.25
    if "autoscaler" in document:
        intervals = rng.choice([1, 2])
        document["autoscaler"]["interval_s"] = intervals * document["control_interval_s"]
        document["autoscaler"]["delay_s"] = GRID_S * rng.choice([0, 3, 16])
    return scenario_from_dict(document)


def rounded(requests: NDArray[np.float64]) -> NDArray[np.float64]:
    """Requests at sixty-fourths of a second, with tokens by the 16."""
    requests = requests.copy()
    requests[:, 0] = np.floor(requests[:, 0] / GRID_S) * GRID_S
    requests[:, 1:3] = 16 * np.ceil(requests[:, 1:3] / 16)
    return requests


class _Drawer:
    """Draws the tables of a scenario."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._rng = random.Random(seed)
        self._folder = folder
        self._cells = self._rng.randint(1, 4)
        self._roots = self._rng.randint(1, 3)
        self._probe_s = self._pick(0.01, 0.02, 0.07)

    def _pick(self, *choices: Any) -> Any:
        return self._rng.choice(choices)

    def _some(self, count: int) -> list[str]:
        """At least one of so many places."""
        places = [f"place-{k}" for k in range(count)]
        return sorted(self._rng.sample(places, self._rng.randint(1, count)))

    def document(self, on: Set[str]) -> Table:
        if "autoscaler" in on:
            on = on - SCHEDULED
        document: Table = {
            "name": "drawn",
            "cells": [self._cell(j) for j in range(self._cells)],
            "roots": [self._root(i) for i in range(self._roots)],
            "network": {"rtt_s": [self._rtts_s() for _ in range(self._roots)]},
            "tokens": TOKENS,
            "demand": self._demand(on),
            "server": self._server(on),
            "router_delay_s": self._pick(0.0, 5e-4),
            "probe_interval_s": self._probe_s,
            "control_interval_s": self._pick(0.05, 0.1, 0.25),
            "warmup_s": 0.5,
            "horizon_s": self._pick(4.5, 6.0),
        }
        document |= self._knowledge(on)
        if "aversion" in on:
            document["error_aversion"] = self._aversion()
        if on & {"sessions", "trace"} and self._rng.random() < 0.8:
            document["affinity"] = self._affinity()
        if "leaf" in on:
            document["leaf"] = self._leaf(document, bool(on & {"sessions", "trace"}))
        if "retries" in on:
            attempts, budget = self._rng.randint(1, 3), self._pick(0.05, 0.3, 1.0)
            document["retries"] = {"attempts": attempts, "budget": budget}
        if "autoscaler" in on:
            document["autoscaler"] = self._autoscaler(document["control_interval_s"])
        document["disturbances"] = [
            self._disturbance(kind)
            for kind in FAULTS
            if kind in on
            for _ in range(2 if kind in OVERLAPPING and self._rng.random() < 0.3 else 1)
        ]
        return document

    def _demand(self, on: Set[str]) -> Table:
        demand: Table = {"utilisation": self._pick(0.4, 0.9, 1.4)}
        if "trace" in on:
            trace = random_trace(self._rng.randrange(TRACES), self._folder)
            return demand | {"trace": trace.model_dump()}
        return demand | ({"sessions": self._sessions()} if "sessions" in on else {})

    def _knowledge(self, on: Set[str]) -> Table:
        """What roots are told, and how."""
        told: Table = {}
        if on & {"telemetry", "leaf_crash", "root_crash"}:
            told["telemetry"] = self._telemetry()
        if "noisy" in on:
            told["latency_estimate"] = {"kind": "noisy", "epsilon": 0.3}
        if "online" in on:
            told["latency_estimate"] = self._estimate()
        return told

    def _cell(self, number: int) -> Table:
        return {
            "name": f"place-{number}",
            "region": "us-east4",
            "servers": self._rng.randint(1, 4),
            "prefill_s_per_token": self._pick(2e-4, 3.1e-4),
            "decode_s_per_token": self._pick(2e-3, 5.3e-3),
        }

    def _root(self, number: int) -> Table:
        return {
            "name": f"place-{number}",
            "region": "us-east4",
            "demand": self._pick(1.0, 2.0),
            "reachable": self._some(self._cells),
        }

    def _rtts_s(self) -> list[float]:
        return [self._pick(0.0, 0.02, 0.0531, 0.1, 0.1397) for _ in range(self._cells)]

    def _server(self, on: Set[str]) -> Table:
        server: Table = {"max_wait_s": self._pick(0.02, 0.1, 0.4)} if "patience" in on else {}
        if "batching" not in on:
            return server | {
                "decode_engines": self._rng.randint(1, 2),
                "slots_per_engine": self._rng.randint(1, 4),
                "queue_limit": self._pick(2, 5, 32),
            }
        return server | {
            "kind": "continuous_batching",
            "max_batch": 4,
            "queue_limit": 9,
            "kv_tokens": 3000,
            "prefill_budget_tokens": 256,
            **self._pick({}, {"draft_tokens": 2, "acceptance": 0.6}),
        }

    def _telemetry(self) -> Table:
        return {
            "probe_loss": self._pick(0.0, 0.2, 0.7),
            "probe_timeout_s": 0.5,
            "root_replicas": self._rng.randint(2, 4),
            "turn_s": self._pick(0.0, 0.03, 0.2),
            "leaf_replicas": self._rng.randint(2, 4),
            "sync_interval_s": self._probe_s * self._pick(0, 1, 3),
            "server_probe_interval_s": self._probe_s * self._pick(0, 1, 4),
            "backlogs": self._pick(False, True),
        }

    def _estimate(self) -> Table:
        return {
            "kind": "online",
            "refit_interval_s": self._pick(0.5, 1.3),
            "memory_s": self._pick(1.0, 60.0),
            "background": self._pick(0.0, 0.2),
            "dither": self._pick(0.0, 0.1),
        }

    def _aversion(self) -> Table:
        return {
            "interval_s": self._pick(0.25, 0.6),
            "quiet_answers": self._rng.randint(0, 10),
            "recovery_s": 2.0,
            "silence_s": 0.4,
        }

    def _sessions(self) -> Table:
        return {
            "mean_turns": self._pick(2.0, 4.0),
            "gap_s": self._pick(0.3, 1.0),
            "least_gap_s": 0.05,
            "hash_values": self._pick(None, 5, 40),
        }

    def _affinity(self) -> Table:
        return {
            "kind": self._pick("none", "conditional", "sticky", "consistent_hash"),
            "cache_tokens": self._pick(300, 3000, 100_000),
            "cache_sessions": self._pick(2, 8, 1024),
            "map_sessions": self._pick(1, 16, 1024),
        }

    def _autoscaler(self, control_interval_s: float) -> Table:
        return {
            "kind": self._pick("utilisation", "marginal_latency"),
            "target_utilisation": self._pick(0.2, 0.5, 0.9),
            "target_marginal": self._pick(1.1, 1.5, 3.0),
            "interval_s": control_interval_s * self._pick(1, 2, 7),
            "delay_s": self._pick(0.0, 0.33, 1.1),
            "extra_servers": self._pick(0.25, 0.8, 2.0),
            "least_share": self._pick(0.1, 0.5, 1.0),
        }

    def _leaf(self, document: Table, sessions: bool) -> Table:
        """Numbers that small cells reach; where a hash picks servers, the only rule there is."""
        if document.get("affinity", {}).get("kind") == "consistent_hash":
            return {}
        rules = [*LEAF_RULES, *(SESSION_RULES if sessions else {})]
        rule = self._pick(*rules)
        keys = (LEAF_RULES | SESSION_RULES)[rule]
        return {"rule": rule} | {key: self._pick(*choices) for key, choices in keys.items()}

    def _disturbance(self, kind: str) -> Table:
        start, span = self._pick(0.1, 0.25, 0.4), self._pick(0.1, 0.3, 0.5)
        table: Table = {"kind": kind, "start": start, "end": start + span}
        if kind == "burst":
            return table | {"to_utilisation": 2.0}
        if kind == "root_crash":
            return table | {"roots": self._some(self._roots)}
        table["cells"] = self._some(self._cells)
        if kind in ("partition", "latency_shift"):
            table["roots"] = self._some(self._roots)
        keys: dict[str, Table] = {
            "server_crash": {"servers": self._rng.randint(1, 3)},
            "black_hole": {"error_fraction": self._pick(0.3, 1.0)},
            "slow_cell": {"speed": self._pick(0.3, 0.7)},
            "latency_shift": {"extra_s": self._pick(0.013, 0.06)},
        }
        return table | keys.get(kind, {})


def random_decisions(
    rng: np.random.Generator, admissible: NDArray[np.bool_], num_steps: int
) -> list[Decision]:
    """One decision a step, all modes mixed; some have spent aversion themselves."""
    return [
        random_decision(rng, admissible, str(rng.choice(MODES)), bool(rng.random() < 0.2))
        for _ in range(num_steps)
    ]
