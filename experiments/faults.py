"""One fault at a time: what it does to latency and errors (paper 3.6, 6).

The system is `faults` (65 % utilisation, router replicas, 1 % of the probes lost, error aversion,
two retries within a budget of 10 %) with a single disturbance from 0.3 to 0.7 of the horizon. Every
policy meets the same requests with the fault and without, so that for each policy

    ratio = mean latency with the fault / mean latency without,

over the whole measured time: it holds 0.4 of the horizon with the fault and what follows from it.
Errors are those that are final after the retries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, evaluated, line_style, panels

QUESTION = "What does each fault cost, and which policies stand it?"

POLICIES = ("random", "mnlb", "disc-rif", "flow-gradient")
FAULTS: dict[str, dict[str, Any]] = {
    "none": {},
    "server_crash": {"cells": ["us-east4"], "servers": 4},
    "leaf_crash": {"cells": ["us-east4"], "replicas": 2},
    "root_crash": {"roots": ["us-east4"], "replicas": 2},
    "partition": {"cells": ["us-east4"]},
    "latency_shift": {"cells": ["us-east4"], "extra_s": 0.1},
    "slow_cell": {"cells": ["us-east4"], "speed": 0.5},
    "black_hole": {"cells": ["us-east4"], "error_fraction": 0.8},
}
"""Each concerns the cell or the root of the largest demand, which has 18 % of the nominal rate."""


def runs(quick: bool) -> list[Measurement]:
    """Every fault for every policy."""
    if quick:
        return _sweep(
            ("random", "disc-rif"), tuple(FAULTS), 1, {"settle_s": 2.0, "horizon_s": 10.0}
        )
    return _sweep(POLICIES, tuple(FAULTS), 3, {"settle_s": 10.0, "horizon_s": 30.0})


def tiny() -> list[Measurement]:
    """Two faults, one policy, a few seconds."""
    return _sweep(("disc-rif",), ("none", "partition"), 1, {"warmup_s": 1.0, "horizon_s": 3.0})


def _sweep(
    policies: tuple[str, ...], faults: tuple[str, ...], seeds: int, changes: dict[str, Any]
) -> list[Measurement]:
    measurements = []
    for fault in faults:
        disturbances = [{"kind": fault, **FAULTS[fault]}] if FAULTS[fault] else []
        scenario = override(
            load_scenario("faults"), {"warmup_s": 10.0, **changes, "disturbances": disturbances}
        )
        measurements += [evaluated(policy, scenario, seeds, fault=fault) for policy in policies]
    return measurements


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, and latency relative to no fault."""
    columns = ["latency_mean_s", "latency_p99_s", "error_rate", "resent"]
    means = records.groupby(["fault", "policy"], sort=False)[columns].mean().reset_index()
    calm = means[means["fault"] == "none"].set_index("policy")
    for column in ("latency_mean_s", "latency_p99_s"):
        ratio = column.removesuffix("_s") + "_ratio"
        means[ratio] = means[column] / means["policy"].map(calm[column])
    return means


def figure(table: pd.DataFrame) -> Figure:
    """Latency relative to no fault, and error rates; a group of marks for every fault."""
    drawn, (left, right) = panels(2)
    faults = [fault for fault in table["fault"].unique() if fault != "none"]
    policies = list(table["policy"].unique())
    for index, policy in enumerate(policies):
        own = table[table["policy"] == policy].set_index("fault").loc[faults]
        places = np.arange(len(faults)) + 0.15 * (index - (len(policies) - 1) / 2)
        style = line_style(policy) | {"linestyle": "none"}
        left.plot(own["latency_mean_ratio"], places, **style)
        right.plot(100 * own["error_rate"], places, **style)
    left.set(title="mean latency over that without the fault")
    left.axvline(1.0, color="#999999", lw=0.8)
    right.set(title="error rate after retries, %", xlim=(0.0, None))
    for axes in (left, right):
        axes.set_yticks(np.arange(len(faults)), faults)
        axes.invert_yaxis()
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The dearest fault in latency and in errors."""
    faulty = table[table["fault"] != "none"]
    slowest = faulty.loc[faulty["latency_mean_ratio"].idxmax()]
    same = faulty[faulty["fault"] == slowest["fault"]]
    mildest = same.loc[same["latency_mean_ratio"].idxmin()]
    errors = faulty.groupby("fault", sort=False)["error_rate"].agg(["min", "max"])
    worst = errors["max"].idxmax()
    quiet = [fault for fault in errors.index if errors["max"][fault] < 1e-3]
    return (
        f"{slowest['fault']} costs the most latency: {slowest['policy']} takes "
        f"{slowest['latency_mean_ratio']:.2f} times as long as without, {mildest['policy']} "
        f"{mildest['latency_mean_ratio']:.2f} times. {worst} costs the most errors: "
        f"{100 * errors['min'][worst]:.2f} to {100 * errors['max'][worst]:.2f} % after retries. "
        f"Below 0.1 % of errors with every policy: {', '.join(quiet) if quiet else 'none'}."
    )
