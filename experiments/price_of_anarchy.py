"""What routing costs at its equilibrium, if not the whole of it is minimised (paper 3.3).

Roots that balance the latency of their own requests, or RIF per server, come to rest where theory
says (`dlb_gym.equilibrium`), not where the mean latency is least: that is what balancing marginal
latencies does. Of the fluid system, without a simulation,

    price = mean latency at a cost's equilibrium / mean latency at the gradient cost's.

RIF per server says nothing of who travels, so its equilibria differ in the network's part: `least`
and `largest` are the prices of the nearest and of the farthest. With both other costs they agree.

**Appendix B.** Systems of the paper's generator, with curves as calibrated, over utilisations and
over the sizes of requests as in the paper's B.2: token times are divided by `speed` and demand is
multiplied by it, from boulders (0.1) to sand (10).

**A root by its cell**, and much capacity far away: the price has no bound. By Pigou's example, let
the cell have the rate mu(N) = N / (N + K), hence a latency of K / (1 - z), the other no service
time and a round trip of 1, and demand be 1 - K, the most that selfish roots keep at home: all their
requests take 1. The best routing has K / (1 - z)^2 = 1 and 2 (sqrt K - K) requests in flight:

    price of latency = (1 + sqrt K) / (2 sqrt K), which grows like sqrt(round trip / empty latency).

Roots that balance RIF per server go where the servers are, whatever the way: at light load the
price is about 1 + round trip / empty latency. Here the cells' curves are calibrated ones, and
speed makes the empty latency short. No search could show unboundedness, but the slopes can.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.optimize import brentq

from dlb_gym.equilibrium import price_of_anarchy
from dlb_gym.generator import sample
from dlb_gym.rates import one_way_s, root_rates_rps
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_curves import service_curves_of
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.service_curves import Cost
from experiments.runner import Measurement, line_style, panels, use_log

QUESTION = "How much latency do selfish and RIF routing cost at equilibrium?"

COMPARED: tuple[Cost, ...] = ("latency", "rif")
UTILISATIONS = (0.3, 0.5, 0.7, 0.8, 0.9, 0.95)
USUAL = 0.8
"""The utilisation at which sizes of requests are compared."""
SPEEDS = (0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0)
FAR_SPEEDS = (1.0, 10.0, 100.0, 1e3, 1e4, 1e5)
LIGHT = 0.5
"""Load of the root's own cell in the constructed case of RIF."""


def runs(quick: bool) -> list[Measurement]:
    """Every system at every utilisation and speed."""
    if quick:
        return _sweep(8, (0.5, USUAL, 0.95), (0.1, 1.0, 10.0), FAR_SPEEDS)
    return _sweep(40, UTILISATIONS, SPEEDS, FAR_SPEEDS)


def tiny() -> list[Measurement]:
    """Two systems."""
    return _sweep(2, (USUAL, 0.95), (0.1, 1.0, 10.0), FAR_SPEEDS[:2])


def _sweep(
    systems: int,
    utilisations: tuple[float, ...],
    speeds: tuple[float, ...],
    far_speeds: tuple[float, ...],
) -> list[Measurement]:
    drawn = [
        Measurement(
            f"{__name__}:prices",
            sample("appendix_b", FIRST_HELD_OUT_SEED, k),
            {"utilisations": utilisations, "speeds": speeds},
            {"part": "appendix_b"},
        )
        for k in range(systems)
    ]
    return [
        *drawn,
        Measurement(
            f"{__name__}:far_prices", _far_capacity(), {"speeds": far_speeds}, {"part": "far"}
        ),
    ]


def _far_capacity() -> Scenario:
    """A root and a cell of its region, and a thousand times as many servers 0.2 s away."""
    cells = [
        {"name": "own", "region": "us-east4", "servers": 10},
        {"name": "far", "region": "asia-east1", "servers": 10_000},
    ]
    return scenario_from_dict(
        {
            "name": "far_capacity",
            "cells": cells,
            "roots": [{"name": "own", "region": "us-east4", "demand": 1.0}],
            "network": {"rtt_s": [[0.0, 0.2]]},
        }
    )


def prices(
    scenario: Scenario, utilisations: tuple[float, ...], speeds: tuple[float, ...]
) -> list[dict[str, Any]]:
    """A row for every utilisation, speed and cost."""
    curves, ways_s = service_curves_of(scenario), one_way_s(scenario)
    full_rps = root_rates_rps(scenario) / scenario.demand.utilisation
    rows = []
    for utilisation in utilisations:
        for speed in speeds:
            faster = curves.slowed(np.full(len(scenario.cells), speed))
            for cost in COMPARED:
                found = price_of_anarchy(utilisation * speed * full_rps, ways_s, faster, cost)
                case = {"utilisation": utilisation, "speed": speed, "cost": cost}
                rows.append({**case, **found._asdict()})
    return rows


def far_prices(scenario: Scenario, speeds: tuple[float, ...]) -> list[dict[str, Any]]:
    """A row for every speed and cost, at the demand that brings out the cost's price."""
    curves, ways_s = service_curves_of(scenario), one_way_s(scenario)
    round_trip_s = 2.0 * float(ways_s[0, 1])
    rows = []
    for speed in speeds:
        faster = curves.slowed(np.full(2, speed))
        empty_s = faster.at(np.zeros(2)).latency_s
        away_s = round_trip_s + float(empty_s[1])

        def beyond(rif: float, faster: Any = faster, away_s: float = away_s) -> float:
            return float(faster.at(np.array([rif, 0.0])).latency_s[0]) - away_s

        most = float(brentq(beyond, 0.0, 1e9, xtol=1e-9))
        kept_rps = {"latency": most / away_s, "rif": LIGHT * float(faster.capacity_rps[0])}
        for cost in COMPARED:
            found = price_of_anarchy(np.array([kept_rps[cost]]), ways_s, faster, cost)
            case = {"speed": speed, "cost": cost, "far": round_trip_s / float(empty_s[0])}
            rows.append({**case, **found._asdict()})
    return rows


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Mean and largest prices of the systems; `far`: round trip in empty latencies."""
    groups = records.groupby(["part", "utilisation", "speed", "far", "cost"], dropna=False)
    return groups.agg(
        systems=("least", "size"),
        least_mean=("least", "mean"),
        least_max=("least", "max"),
        largest_mean=("largest", "mean"),
        largest_max=("largest", "max"),
    ).reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Prices against load, against the size of requests, and of the root by its cell."""
    drawn, axes = panels(3)
    systems = table[table["part"] == "appendix_b"]
    by_load = systems[systems["speed"] == 1.0], "utilisation"
    by_size = systems[systems["utilisation"] == USUAL], "speed"
    for ax, (rows, key) in zip(axes[:2], (by_load, by_size), strict=True):
        for cost, own in rows.groupby("cost", sort=False):
            style = line_style(f"flow-{cost}") | {"label": f"{cost}, mean"}
            ax.plot(own[key], own["least_mean"], **style)
            if cost == "rif":
                worst = {"label": "rif, mean, worst routing", "linestyle": "--", "marker": ""}
                ax.plot(own[key], own["largest_mean"], **style | worst)
            most = {"label": f"{cost}, largest", "linestyle": ":", "marker": ""}
            ax.plot(own[key], own["largest_max"], **style | most)
    axes[0].set(title="price of anarchy (Appendix B)", xlabel="utilisation")
    axes[1].set(title=f"at {USUAL:.0%} utilisation", xlabel="speed (boulders to sand)")
    for cost, own in table[table["part"] == "far"].groupby("cost", sort=False):
        axes[2].plot(own["far"], own["least_mean"], **line_style(f"flow-{cost}") | {"label": cost})
    axes[2].set(title="a root by its cell", xlabel="round trip / empty latency")
    axes[2].set(xscale="log", yscale="log")
    use_log(axes[1].xaxis)
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """Typical and largest prices, then how they grow where they have no bound."""
    sizes = {"usual requests": 1.0, "sand (speed 10)": 10.0, "boulders (speed 0.1)": 0.1}
    told = "; ".join(f"{name}: {_told(table, speed)}" for name, speed in sizes.items())
    far = table[table["part"] == "far"]
    grown = []
    for cost in COMPARED:
        own = far[far["cost"] == cost].sort_values("far")
        ends = np.log(own[["far", "least_mean"]].to_numpy()[-2:])
        power = (ends[1, 1] - ends[0, 1]) / (ends[1, 0] - ends[0, 0])
        last = own.iloc[-1]
        grown.append(f"{cost} {last['least_mean']:,.0f} times the best (exponent {power:.2f})")
    return (
        f"Latency above the best at {USUAL:.0%} utilisation, mean of the systems (largest): "
        f"{told}. Where all capacity but a cell is far, no bound is in sight: at a round trip of "
        f"{far['far'].max():,.0f} empty latencies {', '.join(grown)}."
    )


def _told(table: pd.DataFrame, speed: float) -> str:
    """Prices of both costs at the usual utilisation, in percent above the best."""
    words = []
    for cost in COMPARED:
        rows = table[(table["part"] == "appendix_b") & (table["cost"] == cost)]
        row = rows[(rows["speed"] == speed) & (rows["utilisation"] == USUAL)].iloc[0]
        words.append(f"{cost} {row['least_mean'] - 1:.1%} ({row['least_max'] - 1:.1%}")
        if cost == "rif":
            words[-1] += f"; worst routing {row['largest_mean'] - 1:.1%}"
        words[-1] += ")"
    return ", ".join(words)
