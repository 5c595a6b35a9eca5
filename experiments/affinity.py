"""Cache hits against balance (paper 3.5).

Requests come in sessions whose prompts grow; servers keep prefixes. Routing ignores them (none),
goes back always (sticky), goes back while it pays (conditional, the paper's), or hashes sessions
to servers. Hot sessions have ten times the turns; with 64 scheduling hashes many sessions
collide. The share of the prompt tokens that the caches hold is the prefill saved.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, by_variant, side_by_side, value, variants

QUESTION = "What does affinity save, and what does it cost in balance?"

POLICIES = ("capacity", "disc-latency", "flow-gradient")
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"affinity.kind": "none"},
    "conditional": {},
    "sticky": {"affinity.kind": "sticky"},
    "hash": {"affinity.kind": "consistent_hash"},
    "hot, conditional": {"demand.sessions.hot_fraction": 0.01},
    "hot, sticky": {"affinity.kind": "sticky", "demand.sessions.hot_fraction": 0.01},
    "hot, hash": {"affinity.kind": "consistent_hash", "demand.sessions.hot_fraction": 0.01},
    "64 hashes, hash": {
        "affinity.kind": "consistent_hash",
        "demand.sessions.hash_values": 64,
    },
    "64 hashes, cond.": {"demand.sessions.hash_values": 64},
}
METRICS = (
    "latency_mean_s",
    "ttft_mean_s",
    "latency_p95_s",
    "error_rate",
    "prefix_share",
    "prefix_hit_rate",
    "prefill_saved",
)


def runs(quick: bool) -> list[Measurement]:
    """Every policy on every variant."""
    return _sweep(POLICIES, 2, 20.0) if quick else _sweep(POLICIES, 3, 60.0)


def tiny() -> list[Measurement]:
    """One policy, 3 s."""
    return _sweep(POLICIES[:1], 2, 3.0, settle_s=1.0)


def _sweep(
    policies: tuple[str, ...], seeds: int, horizon_s: float, settle_s: float = 20.0
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    base = override(load_scenario("sessions"), spans)
    return variants(
        {name: override(base, changes) for name, changes in VARIANTS.items()}, policies, seeds
    )


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row a variant and policy."""
    return by_variant(records, METRICS)


def figure(table: pd.DataFrame) -> Figure:
    """The metrics over the variants."""
    return side_by_side(
        table,
        {
            "latency_mean_s": "mean latency, s",
            "prefix_hit_rate": "prefixes that hit, %",
            "error_rate": "errors, % of requests",
        },
    )


def finding(table: pd.DataFrame) -> str:
    """Eligible requests, prefill saved and latency by kind of affinity, under the last policy."""
    policy = str(table["policy"].iloc[-1])
    share = 100.0 * value(table, "none", policy, "prefix_share")
    parts = [
        f"{name}: {100.0 * value(table, name, policy, 'prefill_saved'):.0f} % of prefill saved, "
        f"mean {value(table, name, policy, 'latency_mean_s'):.2f} s, errors "
        f"{100.0 * value(table, name, policy, 'error_rate'):.1f} %"
        for name in dict.fromkeys(table["variant"])
    ]
    return f"{share:.0f} % of requests have a prefix. Under {policy}, {'; '.join(parts)}."
