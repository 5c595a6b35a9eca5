"""How the load decides what a policy gains (paper 5.4, Figure 6).

With the latency L_p and the error rate e_p of policy p, and the seeds paired,

    latency ratio = mean over seeds of L_p / L_random      error rate = mean over seeds of e_p

at target utilisations from 0.5 to 0.9. `global_six` stands for the paper's ten drawn fleets: one
system over many seeds, so an interval speaks of other requests, not of other fleets. Decisions come
with every probe (5 ms), which is the paper's Disc exactly and the finest Flow; 20 s under each
policy precede the 60 s that are measured.
"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.comparison import paired_differences
from dlb_gym.scenario_source import load_scenario, override
from experiments.runner import Measurement, evaluated, line_style, panels

QUESTION = "What do the policies gain over weighted random as the utilisation rises?"

REFERENCE = "random"
POLICIES = (
    REFERENCE, "mnlb", "disc-rif", "disc-latency", "disc-gradient",
    "flow-rif", "flow-latency", "flow-gradient",
)  # fmt: skip
TARGETS = (0.5, 0.65, 0.8, 0.9)


def runs(quick: bool) -> list[Measurement]:
    """Every policy at every target."""
    if quick:
        return _sweep(POLICIES, TARGETS, seeds=3, interval_s=0.1)
    return _sweep(POLICIES, TARGETS, seeds=10, interval_s=0.005)


def tiny() -> list[Measurement]:
    """Two policies, 4 s."""
    return _sweep(("random", "flow-rif"), (0.5, 0.9), 2, 0.1, settle_s=1.0, horizon_s=3.0)


def _sweep(
    policies: tuple[str, ...],
    targets: tuple[float, ...],
    seeds: int,
    interval_s: float,
    settle_s: float = 20.0,
    horizon_s: float = 60.0,
) -> list[Measurement]:
    changes = {"control_interval_s": interval_s, "settle_s": settle_s, "horizon_s": horizon_s}
    scenarios = {
        target: override(load_scenario("global_six"), {**changes, "demand.utilisation": target})
        for target in targets
    }
    return [
        evaluated(policy, scenario, seeds, target=target)
        for target, scenario in scenarios.items()
        for policy in policies
    ]


def table(records: pd.DataFrame) -> pd.DataFrame:
    """A row for every target and policy."""
    return pd.DataFrame(
        row for target, own in records.groupby("target") for row in _rows(float(target), own)
    )


def _rows(target: float, records: pd.DataFrame) -> list[dict[str, object]]:
    compared = paired_differences(records.to_dict("records"), REFERENCE)
    by_label = records.groupby("label")
    rows: list[dict[str, object]] = []
    for comparison in compared:
        own = by_label.get_group(comparison.label)
        ratio = comparison.ratio
        rows.append(
            {
                "target": target,
                "policy": own["policy"].iloc[0],
                "pairs": comparison.pairs,
                "latency_s": own["latency_mean_s"].mean(),
                "latency_ratio": ratio and ratio.value,
                "ratio_low": ratio and ratio.low,
                "ratio_high": ratio and ratio.high,
                "error_rate": own["error_rate"].mean(),
            }
        )
    return rows


def figure(table: pd.DataFrame) -> Figure:
    """Latency ratio and error rate against the target."""
    drawn, (left, right) = panels(2)
    for policy, own in table.groupby("policy", sort=False):
        style = line_style(policy)
        left.plot(own["target"], own["latency_ratio"], **style)
        right.plot(own["target"], 100.0 * own["error_rate"], **style)
    left.set(title="mean latency, ratio to random", xlabel="target utilisation")
    right.set(title="errors, % of requests", xlabel="target utilisation")
    handles, labels = left.get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The best policy at the lowest and the highest target, and what the load changes."""
    low, high = table["target"].min(), table["target"].max()
    return f"{_at(table, low)} {_at(table, high)}"


def _at(table: pd.DataFrame, target: float) -> str:
    own = table[(table["target"] == target) & (table["policy"] != REFERENCE)]
    best = own.loc[own["latency_ratio"].idxmin()]
    rif = own.loc[own["policy"].str.endswith("rif"), "latency_ratio"].min()
    gain = 100.0 * (1.0 - best["latency_ratio"])
    sure = "" if best["ratio_high"] < 1.0 else ", which other seeds may not confirm"
    return (
        f"At {target:.0%} {best['policy']} is best, {gain:.0f} % below random{sure}; the best rif "
        f"policy is {100.0 * (1.0 - rif):.0f} % below. Errors: random "
        f"{_errors(table, target, REFERENCE):.2f} %, {best['policy']} "
        f"{100.0 * best['error_rate']:.2f} %."
    )


def _errors(table: pd.DataFrame, target: float, policy: str) -> float:
    chosen = table[(table["target"] == target) & (table["policy"] == policy)]
    return 100.0 * float(chosen["error_rate"].iloc[0])
