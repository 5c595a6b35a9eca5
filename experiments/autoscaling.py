"""Autoscaling beside routing (paper 6).

A burst to the whole nominal rate lasts for most of four minutes; servers come a minute after they
are ordered, a quarter more at most. One autoscaler follows utilisation, the other marginal
latency.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, by_variant, side_by_side, value, variants

QUESTION = "What does an autoscaler bridge, and does it matter what drives it?"

POLICIES = ("random", "disc-rif", "flow-gradient")
VARIANTS: dict[str, dict[str, Any]] = {
    "none": {"autoscaler": None},
    "utilisation": {},
    "marginal latency": {"autoscaler.kind": "marginal_latency"},
}
METRICS = ("latency_mean_s", "latency_p95_s", "error_rate", "utilisation")


def runs(quick: bool) -> list[Measurement]:
    """Every policy on every variant."""
    return _sweep(POLICIES, 2, 60.0) if quick else _sweep(POLICIES, 3, 240.0)


def tiny() -> list[Measurement]:
    """One policy, 3 s."""
    return _sweep(POLICIES[:1], 2, 3.0, settle_s=1.0)


def _sweep(
    policies: tuple[str, ...], seeds: int, horizon_s: float, settle_s: float = 20.0
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    base = override(load_scenario("autoscaler"), spans)
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
            "error_rate": "errors, % of requests",
            "utilisation": "utilisation of live servers",
        },
    )


def finding(table: pd.DataFrame) -> str:
    """Latency, errors and utilisation by autoscaler, under the last policy."""
    policy = str(table["policy"].iloc[-1])
    parts = [
        f"{name}: mean {value(table, name, policy, 'latency_mean_s'):.2f} s, errors "
        f"{100.0 * value(table, name, policy, 'error_rate'):.2f} %, utilisation "
        f"{value(table, name, policy, 'utilisation'):.2f}"
        for name in dict.fromkeys(table["variant"])
    ]
    return f"Under {policy}, {'; '.join(parts)}."
