"""Continuously batching servers: what hardware, memory and drafts do, and what routing gains.

A server's iterations grow with its batch, so its latency rises with the load long before it is
full (see `engine/batching.py`). First part: one cell of four equal servers under a rising load, for
the three presets; for an h100 whose KV cache holds 10,000 tokens (about 14 requests of the mean
length, where `max_batch` allows 64); and for one that decodes speculatively with 3 drafts of which
each is accepted with probability 0.7, at no cost: 1 + 0.7 + 0.49 + 0.343 = 2.53 tokens an
iteration. Loads are shares of the closed-form rate of each (`batching_rates`). Second part:
policies on the scenario `batching`, cells of different presets.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.rates import nominal_rates_rps
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override, scenario_from_dict
from experiments.runner import Measurement, evaluated, line_style, panels, played, use_log

QUESTION = "How do batching servers respond to load, and what do routing policies gain on them?"

SERVERS: dict[str, dict[str, Any]] = {
    "a100": {"preset": "a100"},
    "h100": {},
    "b200": {"preset": "b200"},
    "h100, 10k KV tokens": {"kv_tokens": 10_000},
    "h100, drafts": {"draft_tokens": 3, "acceptance": 0.7},
}
LOADS = (0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.1)
POLICIES = ("random", "capacity", "disc-rif", "disc-gradient", "flow-rif", "flow-gradient", "mnlb")
UTILISATIONS = (0.5, 0.8, 0.95)
METRICS = ("latency_mean_s", "latency_p95_s", "ttft_mean_s", "tpot_mean_s", "error_rate")
LOADED = 0.9
"""The load at which the finding compares servers."""


def runs(quick: bool) -> list[Measurement]:
    """Every server at every load, then every policy at every utilisation."""
    if quick:
        return _curves(LOADS[1::3], 1, 20.0, 20.0) + _policies(POLICIES[:4], (0.8,), 2, 20.0, 20.0)
    return _curves(LOADS, 2, 30.0, 60.0) + _policies(POLICIES, UTILISATIONS, 3, 20.0, 60.0)


def tiny() -> list[Measurement]:
    """Two loads, two policies, 2 s."""
    return _curves(LOADS[1:6:4], 1, 1.0, 2.0) + _policies(POLICIES[:2], (0.8,), 1, 1.0, 2.0)


def _curves(
    loads: tuple[float, ...], seeds: int, settle_s: float, horizon_s: float
) -> list[Measurement]:
    base = {
        "name": "one_cell",
        "cells": [{"name": "cell", "region": "us-east4", "servers": 4}],
        "roots": [{"name": "cell", "region": "us-east4", "demand": 1.0}],
        "control_interval_s": 0.1,
        "settle_s": settle_s,
        "horizon_s": horizon_s,
    }
    return [
        Measurement(
            f"{__name__}:served",
            scenario_from_dict(
                base
                | {
                    "server": {"kind": "continuous_batching", **server},
                    "demand": {"utilisation": load},
                }
            ),
            {"seeds": seeds},
            {"part": "servers", "case": name, "load": load},
        )
        for name, server in SERVERS.items()
        for load in loads
    ]


def _policies(
    policies: tuple[str, ...],
    utilisations: tuple[float, ...],
    seeds: int,
    settle_s: float,
    horizon_s: float,
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    return [
        evaluated(
            policy,
            override(load_scenario("batching"), {**spans, "demand.utilisation": utilisation}),
            seeds,
            part="policies",
            case=policy,
            load=utilisation,
        )
        for utilisation in utilisations
        for policy in policies
    ]


def served(scenario: Scenario, seeds: int) -> list[dict[str, float]]:
    """Throughput and latencies of one cell, a row for every seed."""
    task = played("capacity", scenario, [FIRST_HELD_OUT_SEED + k for k in range(seeds)], log=True)
    task.drain()
    servers = scenario.cells[0].servers
    start_s = scenario.warmup_s + scenario.settle_s
    rows = []
    for r in range(seeds):
        summary = task.summary(r)
        log = task.simulator.request_log(r)
        inside = (start_s < log["done_s"]) & (log["done_s"] <= start_s + scenario.horizon_s)
        answered = np.count_nonzero(inside & (log["server"] >= 0))
        rows.append(
            {
                "nominal_rps": float(nominal_rates_rps(scenario)[0]) / servers,
                "throughput_rps": answered / scenario.horizon_s / servers,
                **{name: summary[name] for name in METRICS},
            }
        )
    return rows


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds; rates of a server in the first part only."""
    groups = records.groupby(["part", "case", "load"], sort=False)
    return groups[["nominal_rps", "throughput_rps", *METRICS]].mean().reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Latency and time per token against throughput; policies against load."""
    drawn, axes = panels(3)
    servers = table[table["part"] == "servers"]
    for name, own in servers.groupby("case", sort=False):
        rates = own["throughput_rps"]
        axes[0].plot(rates, own["latency_mean_s"], marker="o", label=str(name))
        axes[1].plot(rates, 1000.0 * own["tpot_mean_s"], marker="o")
    axes[0].set(title="mean latency, s")
    axes[1].set(title="time per output token, ms")
    for axis in axes[:2]:
        axis.set(xlabel="throughput of a server, requests/s")
        use_log(axis.xaxis)
        use_log(axis.yaxis)
    axes[0].legend(fontsize=7)
    for policy, own in table[table["part"] == "policies"].groupby("case", sort=False):
        axes[2].plot(100.0 * own["load"], own["latency_mean_s"], **line_style(str(policy)))
    axes[2].set(title="scenario batching: mean latency, s", xlabel="utilisation, %")
    axes[2].legend(fontsize=7)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The servers near their rate, what they serve at most, and the best policy at every load."""
    servers = table[table["part"] == "servers"]
    near = min(servers["load"].unique(), key=lambda load: abs(load - LOADED))
    parts = []
    for name, own in servers.groupby("case", sort=False):
        row = own[own["load"] == near].iloc[0]
        most = own["throughput_rps"].max() / row["nominal_rps"] - 1.0
        parts.append(
            f"{name} {row['throughput_rps']:.1f} requests/s in {row['latency_mean_s']:.1f} s, "
            f"{1000 * row['tpot_mean_s']:.0f} ms a token (most: {100 * most:+.0f} % of the formula)"
        )
    text = f"A server at {100 * near:.0f} % of its rate: {'; '.join(parts)}."
    policies = table[table["part"] == "policies"]
    gains = []
    for load, rows in policies.groupby("load"):
        own = rows.set_index("case")
        latency_s = own["latency_mean_s"]
        best = latency_s.idxmin()
        against = ", ".join(
            f"{100 * (latency_s[best] / latency_s[other] - 1):+.0f} % against {other}"
            for other in ("random", "capacity")
        )
        errors = 100 * own.loc[best, "error_rate"]
        lost = f"; {errors:.1f} % errors" if errors > 0.1 else ""
        gains.append(f"at {100 * load:.0f} % {best} ({against}{lost})")
    return f"{text} Least mean latency in the scenario batching: {', '.join(gains)}."
