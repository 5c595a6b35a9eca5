"""Latency models that are fitted while they serve (paper 3.3, 6): their cost, and two ways to err.

Left: policies under the oracle (calibrated beforehand) and under softplus fits every 10 s, with and
without background requests and dither, and with a wide and a narrow prior around the fleet.

Middle: completed requests only. A sample of latency y that arrived at a uniform instant of [0, T]
is done by T with probability (T - y)+ / T, so a young estimate is one of short requests. `boulder`
(160 s of service) at 20 % load starts empty, routed by capacity; shown is what the leaves publish,
at the RIF of the moment, over the oracle there, averaged over servers, against the time in
zero-load times Z. The prior, here the oracle's own mean of the fleet, holds the estimate up, a wide
one less. Once requests end as often as they begin, each is a sample at last, and the bias goes.

Right: starvation. For a while us-east4 works at 0.3 of its speed, under disc-latency. Shown is its
published latency when idle, over the oracle's. Who deems it slow sends it nothing, and no sample
says that it has recovered, until the old ones fade and the prior takes over, or background requests
bring new ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.calibration import latency_parameters
from dlb_gym.latency_model import LatencyModel
from dlb_gym.rates import zero_load_time_s
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from experiments.runner import Measurement, evaluated, line_style, panels, played

QUESTION = "How much is lost by fitting the latency models online?"

POLICIES = ("disc-latency", "disc-gradient", "flow-latency", "flow-gradient")
VARIANTS: dict[str, dict[str, Any]] = {
    "oracle": {"kind": "oracle"},
    "online": {"kind": "online", "background": 0.005},
    "no background": {"kind": "online"},
    "dithered": {"kind": "online", "dither": 0.1},
    "wide prior": {"kind": "online", "prior_sd": 3.0, "background": 0.005},
    "narrow prior": {"kind": "online", "prior_sd": 0.1, "background": 0.005},
}
PRIORS = (0.5, 3.0)
BACKGROUNDS = (0.0, 0.005, 0.05)
SLOW_CELL = 1
SLOW: dict[str, Any] = {
    "kind": "slow_cell",
    "cells": ["us-east4"],
    "speed": 0.3,
    "start": 0.125,
    "end": 0.3125,
}
RECORD_S = 10.0
RECOVERED = 1.25
"""Published over true latency below which a cell counts as known again."""


def runs(quick: bool) -> list[Measurement]:
    """Policies on variants; a young estimate; a cell that was slow."""
    return _sweep(POLICIES, 2, 20.0, 1.0) if quick else _sweep(POLICIES, 4, 60.0, 8.0)


def tiny() -> list[Measurement]:
    """One policy, some seconds."""
    return _sweep(POLICIES[:1], 2, 3.0, 0.25, settle_s=1.0)


def _sweep(
    policies: tuple[str, ...],
    seeds: int,
    horizon_s: float,
    length: float,
    settle_s: float = 20.0,
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    base = override(load_scenario("global_six"), spans)
    young = {
        "demand.utilisation": 0.2, "warmup_s": 0.0, "horizon_s": 200.0 * length, "telemetry": {},
        "telemetry.sync_interval_s": 0.1, "telemetry.server_probe_interval_s": 0.1,
    }  # fmt: skip
    slow = {
        "warmup_s": 0.0, "horizon_s": 40.0 * length, "telemetry": {},
        "disturbances": [SLOW],
    }  # fmt: skip
    return [
        *(
            evaluated(
                policy,
                override(base, {"telemetry": {}, "latency_estimate": estimate}),
                seeds,
                part="policies",
                variant=name,
            )
            for name, estimate in VARIANTS.items()
            for policy in policies
        ),
        *(
            _followed("boulder", young, {"prior_sd": sd}, "young", f"prior_sd {sd:g}", 8 * seeds)
            for sd in PRIORS
        ),
        *(
            _followed("global_six", slow, {"background": b}, "slow", f"background {b:g}", seeds)
            for b in BACKGROUNDS
        ),
    ]


def _followed(
    name: str,
    changes: dict[str, Any],
    estimate: dict[str, Any],
    part: str,
    variant: str,
    seeds: int,
) -> Measurement:
    fitted = {"latency_estimate": {"kind": "online", **estimate}}
    scenario = override(load_scenario(name), {**changes, **fitted})
    policy = "capacity" if part == "young" else "disc-latency"
    arguments = {"part": part, "policy": policy, "seeds": seeds}
    columns = {"variant": variant, "part": part, "policy": policy}
    return Measurement(f"{__name__}:published", scenario, arguments, columns)


def published(scenario: Scenario, part: str, policy: str, seeds: int) -> list[dict[str, float]]:
    """What root 0 holds over the oracle, against the time; means over the seeds."""
    oracle = LatencyModel(*latency_parameters(scenario).T)
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    unit_s = zero_load_time_s(scenario) if part == "young" else 1.0
    record_s = unit_s / 4.0 if part == "young" else RECORD_S
    every = max(1, round(record_s / scenario.control_interval_s))
    rows: list[dict[str, float]] = []

    def each(task: Task) -> None:
        simulator = task.simulator
        if simulator.step[0] % every:
            return
        online = LatencyModel(*np.moveaxis(simulator.view().model[:, 0], -1, 0))
        n = simulator.truth().rif / servers if part == "young" else np.zeros((seeds, len(servers)))
        here, true = online.at(n).latency, oracle.at(n).latency
        if part == "young":
            ratio = (here * servers).sum(axis=1) / (true * servers).sum(axis=1)
        else:
            ratio = here[:, SLOW_CELL] / true[:, SLOW_CELL]
        rows.append(
            {
                "time": float(simulator.time_s[0]) / unit_s,
                "ratio": float(ratio.mean()),
                "ratio_se": float(ratio.std(ddof=1) / np.sqrt(seeds)),
            }
        )

    played(policy, scenario, [FIRST_HELD_OUT_SEED + k for k in range(seeds)], each)
    return rows


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, and the curves over time."""
    judged = records[records["part"] == "policies"]
    groups = judged.groupby(["part", "variant", "policy"], sort=False)
    means = groups[["latency_mean_s", "latency_p90_s", "error_rate"]].mean()
    means.insert(1, "latency_mean_s_sem", groups["latency_mean_s"].sem())
    curves = records.loc[
        records["part"] != "policies", ["part", "variant", "policy", "time", "ratio", "ratio_se"]
    ]
    return pd.concat([means.reset_index(), curves])


def figure(table: pd.DataFrame) -> Figure:
    """Latency by variant; published over true latency in time, young and after a slow spell."""
    drawn, (left, middle, right) = panels(3)
    names = list(VARIANTS)
    for policy, own in table[table["part"] == "policies"].groupby("policy", sort=False):
        left.plot(
            [names.index(v) for v in own["variant"]], own["latency_mean_s"], **line_style(policy)
        )
    left.set(title="mean latency, s")
    left.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=7)
    for panel, part in ((middle, "young"), (right, "slow")):
        for variant, own in table[table["part"] == part].groupby("variant", sort=False):
            panel.plot(own["time"], own["ratio"], label=variant)
        panel.axhline(1.0, color="grey", linewidth=0.8)
        panel.legend(fontsize=7, loc="lower right" if part == "young" else "upper left")
    middle.set(title="young estimate over true latency", xlabel="time in zero-load times")
    right.set(
        title="a cell slow for a while: estimate over truth", xlabel="time, s", ylim=(0.5, 3.7)
    )
    right.axvspan(*_slow_span_s(table), color="grey", alpha=0.2, linewidth=0.0)
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """What online costs, how far a young estimate errs, how long a slow cell is shunned."""
    judged = table[table["part"] == "policies"].set_index(["variant", "policy"])["latency_mean_s"]
    changes = []
    for policy in judged.index.unique("policy"):
        over = 100.0 * (judged.xs(policy, level="policy") / judged["oracle", policy] - 1.0)
        changes.append(
            f"{policy} {over['online']:+.1f} % (at worst {over.max():+.1f} %, {over.idxmax()})"
        )
    return (
        f"Mean latency with online models against the oracle's: {', '.join(changes)}. "
        f"{_young(table)} {_slow(table)}"
    )


def _young(table: pd.DataFrame) -> str:
    parts = []
    for variant, own in table[table["part"] == "young"].groupby("variant", sort=False):
        least = own.loc[own["ratio"].idxmin()]
        parts.append(
            f"{100.0 * (1.0 - least['ratio']):.0f} % too low at {least['time']:.1f} Z with "
            f"{variant} (at the end {100.0 * (own['ratio'].iloc[-1] - 1.0):+.0f} %)"
        )
    return f"A young estimate of boulders is {', '.join(parts)}." if parts else ""


def _slow_span_s(table: pd.DataFrame) -> tuple[float, float]:
    """When the cell was slow; the last record is at the end of the horizon."""
    horizon_s = float(table.loc[table["part"] == "slow", "time"].max())
    return horizon_s * SLOW["start"], horizon_s * SLOW["end"]


def _slow(table: pd.DataFrame) -> str:
    own_part = table[table["part"] == "slow"]
    _, end_s = _slow_span_s(table)
    parts = []
    for variant, own in own_part.groupby("variant", sort=False):
        late = own[own["time"] > end_s]
        known = late.loc[late["ratio"] < RECOVERED, "time"]
        after = f"after {known.iloc[0] - end_s:.0f} s" if len(known) else "not by the end"
        parts.append(f"{variant}: {after}")
    return (
        f"A cell that was slow is known within {RECOVERED - 1:.0%} of its latency again "
        f"({'; '.join(parts)})."
    )
