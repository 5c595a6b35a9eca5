"""Latency models that are fitted while they serve (paper 3.3, 6).

Oracle: calibrated beforehand. Online: softplus fits every 10 s on completed requests with a prior
that is the fleet's; without background probing a cell deemed slow is seen no more; a wide prior
trusts the samples, a narrow one the fleet.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, by_variant, side_by_side, value, variants

QUESTION = "How much is lost by fitting the latency models online?"

POLICIES = ("disc-latency", "disc-gradient", "flow-latency", "flow-gradient")
VARIANTS: dict[str, dict[str, Any]] = {
    "oracle": {"telemetry": {}},
    "online": {"telemetry": {}, "latency_estimate": {"background": 0.005}},
    "no background": {"telemetry": {}, "latency_estimate": {}},
    "dithered": {"telemetry": {}, "latency_estimate": {"dither": 0.1}},
    "wide prior": {"telemetry": {}, "latency_estimate": {"prior_sd": 3.0, "background": 0.005}},
    "narrow prior": {"telemetry": {}, "latency_estimate": {"prior_sd": 0.1, "background": 0.005}},
}
METRICS = ("latency_mean_s", "latency_p90_s", "error_rate")


def runs(quick: bool) -> list[Measurement]:
    """Every policy on every variant."""
    return _sweep(POLICIES, 2, 20.0) if quick else _sweep(POLICIES, 4, 60.0)


def tiny() -> list[Measurement]:
    """One policy, 3 s."""
    return _sweep(POLICIES[:1], 2, 3.0, settle_s=1.0)


def _sweep(
    policies: tuple[str, ...], seeds: int, horizon_s: float, settle_s: float = 20.0
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    base = override(load_scenario("global_six"), spans)
    return variants(
        {name: override(base, changes) for name, changes in VARIANTS.items()}, policies, seeds
    )


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row a variant and policy."""
    return by_variant(records, METRICS)


def figure(table: pd.DataFrame) -> Figure:
    """The metrics over the variants."""
    return side_by_side(
        table, {"latency_mean_s": "mean latency, s", "error_rate": "errors, % of requests"}
    )


def finding(table: pd.DataFrame) -> str:
    """Each policy's mean latency with online models against the oracle's."""
    parts = []
    for policy in dict.fromkeys(table["policy"]):
        own = table[table["policy"] == policy]
        oracle = value(table, "oracle", policy, "latency_mean_s")
        online = value(table, "online", policy, "latency_mean_s")
        worst = own.loc[own["latency_mean_s"].idxmax()]
        parts.append(
            f"{policy} {100.0 * (online / oracle - 1.0):+.1f} % (at worst "
            f"{100.0 * (worst['latency_mean_s'] / oracle - 1.0):+.1f} %, {worst['variant']})"
        )
    return f"Mean latency with online models against the oracle's: {', '.join(parts)}."
