"""Policies on continuously batching servers of three generations (paper 1.1).

A cell's latency follows its batch and what its KV cache holds; hardware differs by almost an
order of magnitude. Speculative decoding with 3 drafts of which 70 % are accepted; a KV cache of
20,000 tokens, which bounds the batch; half the utilisation.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, by_variant, side_by_side, value, variants

QUESTION = "What do routing policies gain where servers batch continuously?"

POLICIES = ("random", "capacity", "disc-rif", "disc-gradient", "flow-gradient", "mnlb")
VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "half the load": {"demand.utilisation": 0.4},
    "speculative": {"server.draft_tokens": 3, "server.acceptance": 0.7},
    "20k KV tokens": {"server.kv_tokens": 20_000},
}
METRICS = ("latency_mean_s", "ttft_mean_s", "tpot_mean_s", "latency_p95_s", "error_rate")


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
    base = override(load_scenario("batching"), spans)
    return variants(
        {name: override(base, changes) for name, changes in VARIANTS.items()}, policies, seeds
    )


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over seeds, a row a variant and policy."""
    return by_variant(records, METRICS)


def figure(table: pd.DataFrame) -> Figure:
    """The metrics over the variants."""
    return side_by_side(
        table, {"latency_mean_s": "mean latency, s", "ttft_mean_s": "mean time to first token, s"}
    )


def finding(table: pd.DataFrame) -> str:
    """The best policy of each variant."""
    parts = []
    for name in dict.fromkeys(table["variant"]):
        own = table[table["variant"] == name]
        best = own.loc[own["latency_mean_s"].idxmin()]
        reference = value(table, name, "random", "latency_mean_s")
        gain = 100.0 * (best["latency_mean_s"] / reference - 1.0)
        parts.append(
            f"{name}: {best['policy']} ({gain:+.1f} % against random, "
            f"{1000.0 * best['tpot_mean_s']:.1f} ms a token)"
        )
    return f"Least mean latency. {'; '.join(parts)}."
