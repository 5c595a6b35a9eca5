"""A cell that fails most of what it gets at once, with and without error aversion (paper 3.4).

Such a cell looks idle: a share q of its requests spends no time in it, so that a rate x gives it
only the RIF that (1 - q) x would, and the latency model at that RIF is low. A policy that equalises
RIF gives it up to 1 / (1 - q) times the traffic of a healthy cell, and every q-th of that is lost.

With aversion a root avoids it with a probability a that rises within some control loops, as the
leaf's exponential mean of errors does, to 0.95 at most, so that the trickle shows when the cell is
well again; then a falls by 0.05 a second. Measured per span of 3 s, from the start of the horizon:

    share   = requests that reached the cell / requests that reached any
    goodput = answers / (answers + errors), as they come to the roots

The scenario is `black_hole`: q = 0.8 in a cell with 18 % of the nominal rate, from 18 to 42 s.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from experiments.runner import Measurement, line_style, panels, played

QUESTION = "Do policies flock to a cell that errs, and does error aversion keep them away?"

POLICIES = (
    "random", "disc-rif", "disc-latency", "disc-gradient", "flow-rif", "flow-latency",
    "flow-gradient",
)  # fmt: skip
SPAN_S = 3.0
RISE_S = 9.0
"""What aversion has before it is judged."""
SHOWN = "disc-rif"


def runs(quick: bool) -> list[Measurement]:
    """Every policy, with aversion and without."""
    if quick:
        return _sweep(("random", "disc-rif"), 1, {"settle_s": 5.0})
    return _sweep(POLICIES, 3, {"settle_s": 10.0})


def tiny() -> list[Measurement]:
    """One policy, a few seconds."""
    changes = {"warmup_s": 1.0, "settle_s": 1.0, "horizon_s": 9.0}
    return _sweep(("disc-rif",), 1, changes)


def _sweep(policies: tuple[str, ...], seeds: int, changes: dict[str, Any]) -> list[Measurement]:
    return [
        Measurement(
            f"{__name__}:spans",
            override(
                load_scenario("black_hole"),
                changes if averting else {**changes, "error_aversion": None},
            ),
            {"policy": policy, "seeds": seeds},
            {"policy": policy, "aversion": averting},
        )
        for policy in policies
        for averting in (False, True)
    ]


def spans(scenario: Scenario, policy: str, seeds: int) -> list[dict[str, float]]:
    """Share of the cell that errs, and goodput, a row for every span; all seeds together."""
    (cell,) = (
        [each.name for each in scenario.cells].index(name)
        for disturbance in scenario.disturbances
        for name in getattr(disturbance, "cells", ())
    )
    counts: list[np.ndarray] = []
    origin = scenario.intervals(scenario.warmup_s + scenario.settle_s)

    def each(task: Task) -> None:
        if (task.simulator.step[0] - origin) % scenario.intervals(SPAN_S) == 0:
            received = task.simulator.truth().received.sum(axis=(0, 1))
            books = task.simulator.books()
            counts.append(
                np.array([received[cell], received.sum(), books.answered.sum(), books.errors.sum()])
            )

    played(policy, scenario, [FIRST_HELD_OUT_SEED + k for k in range(seeds)], each)
    measured = np.diff(counts, axis=0)[-round(scenario.horizon_s / SPAN_S) :]
    starts_s = SPAN_S * np.arange(len(measured)) + scenario.horizon_s - SPAN_S * len(measured)
    start_s, end_s = (getattr(scenario.disturbances[0], edge) for edge in ("start", "end"))
    return [
        {
            "time_s": time_s,
            "erring": start_s * scenario.horizon_s <= time_s < end_s * scenario.horizon_s,
            "share": here / anywhere,
            "goodput": answers / (answers + errors),
        }
        for time_s, (here, anywhere, answers, errors) in zip(starts_s, measured, strict=True)
    ]


def table(records: pd.DataFrame) -> pd.DataFrame:
    """The spans as they are."""
    return records[["policy", "aversion", "time_s", "erring", "share", "goodput"]]


def judged(table: pd.DataFrame) -> pd.DataFrame:
    """Mean share and goodput of every case while the cell errs, its first seconds left out."""
    erring = table[table["erring"]]
    late = erring["time_s"] >= erring["time_s"].min() + RISE_S
    chosen = erring[late] if late.any() else erring
    return chosen.groupby(["policy", "aversion"], sort=False)[["share", "goodput"]].mean()


def before(table: pd.DataFrame) -> pd.Series:
    """Mean share of every policy until the cell errs, without aversion."""
    start_s = table.loc[table["erring"], "time_s"].min()
    calm = table[(table["time_s"] < start_s) & ~table["aversion"]]
    return calm.groupby("policy", sort=False)["share"].mean()


def figure(table: pd.DataFrame) -> Figure:
    """Share and goodput by policy, and the share of one policy over time."""
    drawn, (left, middle, right) = panels(3)
    means, calm = judged(table), before(table)
    policies = list(calm.index)
    places = np.arange(len(policies))
    left.bar(places - 0.3, calm, 0.25, color="#bbbbbb", label="before it errs")
    for axes, column in ((left, "share"), (middle, "goodput")):
        for averting, colour, offset in ((False, "#d1602b", 0.0), (True, "#2a6fbb", 0.3)):
            values = means.xs(averting, level="aversion")[column].reindex(policies)
            label = f"{'with' if averting else 'without'} aversion"
            axes.bar(places + offset, values, 0.25, color=colour, label=label)
        axes.set_xticks(places, policies, rotation=40, ha="right")
        axes.grid(visible=False, axis="x")
    left.set(title="share of the traffic that the cell gets")
    middle.set(title="goodput while it errs", ylim=(0.0, 1.0))
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower left", ncols=3)
    for (policy, averting), own in table.groupby(["policy", "aversion"], sort=False):
        if policy in (SHOWN, "flow-latency"):
            style = line_style(policy) | {"linestyle": "-" if averting else ":"}
            style["label"] = f"{policy}, {'with' if averting else 'without'}"
            right.plot(own["time_s"] + SPAN_S / 2, own["share"], **style)
    erring = table.loc[table["erring"], "time_s"]
    right.axvspan(erring.min(), erring.max() + SPAN_S, color="#000000", alpha=0.07, lw=0)
    right.set(title="its share over time (shaded: it errs)", xlabel="time, s", ylim=(0.0, 1.2))
    right.legend(ncols=2, loc="upper center")
    return drawn


def finding(table: pd.DataFrame) -> str:
    """Who flocks, and what aversion saves."""
    means, calm = judged(table), before(table)
    without, averting = means.xs(False, level="aversion"), means.xs(True, level="aversion")
    flocks = without["share"] / calm
    worst = flocks.idxmax()
    those = [policy for policy in flocks.index if flocks[policy] > 1.5]
    verdict = f"{len(those)} of {len(flocks)} policies flock" if those else "No policy flocks"
    lost = f"{100 * without['goodput'].min():.0f} to {100 * without['goodput'].max():.0f} %"
    return (
        f"{verdict} (more than 1.5 times the share of before): {worst} gives the cell that errs "
        f"{100 * without['share'][worst]:.0f} % of the traffic after "
        f"{100 * calm[worst]:.0f} % before, and its goodput is "
        f"{100 * without['goodput'][worst]:.0f} %. With aversion the cell gets "
        f"{100 * averting['share'].min():.1f} to {100 * averting['share'].max():.1f} % from all "
        f"policies, and goodput is {100 * averting['goodput'].min():.1f} to "
        f"{100 * averting['goodput'].max():.1f} % (without: {lost}). {_afterwards(table)}"
    )


def _afterwards(table: pd.DataFrame) -> str:
    """The largest share that a policy with aversion gives the cell once it is well again."""
    last_s = table.loc[table["erring"], "time_s"].max()
    after = table[(table["time_s"] > last_s) & table["aversion"]]
    if after.empty:
        return ""
    most = after.loc[after["share"].idxmax()]
    least = after.loc[after["goodput"].idxmin()]
    return (
        f"Once it is well again {most['policy']} gives it up to {100 * most['share']:.0f} %, and "
        f"the least goodput is {100 * least['goodput']:.1f} % ({least['policy']})."
    )
