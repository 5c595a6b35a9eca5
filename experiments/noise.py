"""What errors of the latency model cost (paper 5.4, Figure 7).

As in the paper, every cell's parameters are multiplied by one factor 1 + epsilon xi, xi uniform on
[-1, 1], drawn anew for every seed; the knee is then moved in to where the processing rate still
rises. A factor moves alpha, beta, knee and smoothing together, so it shifts a cell's latency at all
loads and, the other way, its bend. The paper does not say whether its parameters scale like ours.

Compared is every policy with itself under the exact model, seed by seed (the same requests):

    latency ratio = mean over seeds of L(epsilon) / L(0).

Costs by RIF read no model; Flow's step size does, whatever the cost. `global_six`, decisions every
20 ms, 20 s under each policy before the 40 s that are measured.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, evaluated, line_style, panels

QUESTION = "How much do errors of the latency model cost the policies that use it?"

MECHANISMS = ("disc", "flow")
POLICIES = tuple(f"{m}-{cost}" for m in MECHANISMS for cost in ("rif", "latency", "gradient"))
EPSILONS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)


def runs(quick: bool) -> list[Measurement]:
    """Every policy at every epsilon."""
    if quick:
        return _sweep(POLICIES, (0.0, 0.25, 0.5), seeds=3, interval_s=0.1)
    return _sweep(POLICIES, EPSILONS, seeds=8, interval_s=0.02)


def tiny() -> list[Measurement]:
    """Two policies, 4 s."""
    return _sweep(("disc-rif", "flow-gradient"), (0.0, 0.5), 2, 0.1, settle_s=1.0, horizon_s=3.0)


def _sweep(
    policies: tuple[str, ...],
    epsilons: tuple[float, ...],
    seeds: int,
    interval_s: float,
    settle_s: float = 20.0,
    horizon_s: float = 40.0,
) -> list[Measurement]:
    changes = {"control_interval_s": interval_s, "settle_s": settle_s, "horizon_s": horizon_s}
    plain = override(load_scenario("global_six"), changes)
    return [
        evaluated(
            policy,
            override(plain, {"latency_estimate": {"kind": "noisy", "epsilon": epsilon}}),
            seeds,
            epsilon=epsilon,
        )
        for epsilon in epsilons
        for policy in policies
    ]


def table(records: pd.DataFrame) -> pd.DataFrame:
    """A row for every policy and epsilon, with the standard error over the seeds."""
    exact = records[records["epsilon"] == 0.0][["policy", "seed", "latency_mean_s"]]
    paired = records.merge(exact, on=["policy", "seed"], suffixes=("", "_exact"))
    paired["ratio"] = paired["latency_mean_s"] / paired["latency_mean_s_exact"]
    grouped = paired.groupby(["epsilon", "policy"], sort=False)
    return pd.DataFrame(
        {
            "latency_s": grouped["latency_mean_s"].mean(),
            "p90_s": grouped["latency_p90_s"].mean(),
            "error_rate": grouped["error_rate"].mean(),
            "latency_ratio": grouped["ratio"].mean(),
            "ratio_se": grouped["ratio"].sem(),
        }
    ).reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Mean latency, its 90th percentile and errors against epsilon, as in the paper's figure."""
    drawn, axes = panels(3)
    columns = ("latency_s", "p90_s", "error_rate")
    for policy, own in table.groupby("policy", sort=False):
        for panel, column in zip(axes, columns, strict=True):
            scale = 100.0 if column == "error_rate" else 1.0
            panel.plot(own["epsilon"], scale * own[column], **line_style(policy))
    titles = ("mean latency, s", "90th percentile, s", "errors, % of requests")
    for panel, title in zip(axes, titles, strict=True):
        panel.set(title=title, xlabel="largest relative error of the model")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """Every policy's ratio at the largest epsilon, and whether the order turns."""
    most = table["epsilon"].max()
    worst = table[table["epsilon"] == most].set_index("policy")
    parts = [
        f"{policy} {100.0 * (row['latency_ratio'] - 1.0):+.1f} % (s.e. {100 * row['ratio_se']:.1f})"
        for policy, row in worst.iterrows()
    ]
    best = worst["latency_s"].idxmin()
    exact = table[table["epsilon"] == 0.0].set_index("policy")["latency_s"]
    return (
        f"At epsilon = {most:g} mean latency changes by: {', '.join(parts)}. Best without errors "
        f"is {exact.idxmin()} ({np.min(exact):.2f} s), with them {best} "
        f"({worst['latency_s'].min():.2f} s; errors {100 * worst['error_rate'][best]:.2f} %)."
    )
