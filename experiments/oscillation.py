"""When Disc oscillates and Flow does not (paper 3.2).

A Disc root sends everything to the cell that looks best. It keeps sending there for a round trip
after the cell has stopped being best: until then it sees the cell as it was one network latency
ago, and what it sent meanwhile is still on the wire. Herds of requests follow, and the RIF of every
cell swings with an amplitude that grows with the round trip. Flow turns its probabilities by steps
that shrink with the network latency.

Measured is the swing of cell j, with n = N_j / k_j its RIF per server at the ends of the control
intervals of a span, and its mean over the cells:

    swing = sqrt( mean over time of (n - mean of n)^2 )

Requests come at random, so n swings under every policy: the split by capacity, which reacts to
nothing, shows how much. Cells are equal (`homogeneous`, where the split by capacity is nearly the
best there is) and requests are sand: token times a tenth of the usual, so that a request is served
in about 0.12 s. Decisions come with every probe (2 ms), and the network is scaled to its mean round
trip.
"""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from experiments.runner import Measurement, line_style, panels, played

QUESTION = "Does discrete routing oscillate when the network is slow, and flow routing not?"

STILL = "capacity"
POLICIES = (STILL, "disc-gradient", "disc-rif", "flow-gradient", "flow-rif")
FAR_MORE = 1.5
"""Disc has to swing so many times as much as Flow before the finding calls it an oscillation."""
SAND = {"prefill_s_per_token": 2e-5, "decode_s_per_token": 5e-4}
PROBE_S = 0.002
ROUND_TRIPS_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2)


def runs(quick: bool) -> list[Measurement]:
    """Every policy at every mean round trip."""
    if quick:
        return _sweep(POLICIES, ROUND_TRIPS_S[1::2], seeds=1, interval_s=0.01)
    return _sweep(POLICIES, ROUND_TRIPS_S, seeds=5, interval_s=PROBE_S)


def tiny() -> list[Measurement]:
    """Three policies, 1 s."""
    return _sweep(
        (STILL, "disc-rif", "flow-rif"), (0.01, 0.2), 1, 0.01, settle_s=0.5, horizon_s=0.5
    )


def _sweep(
    policies: tuple[str, ...],
    round_trips_s: tuple[float, ...],
    seeds: int,
    interval_s: float,
    settle_s: float = 5.0,
    horizon_s: float = 10.0,
) -> list[Measurement]:
    cells = range(len(load_scenario("homogeneous").cells))
    sand = {f"cells.{j}.{key}": value for j in cells for key, value in SAND.items()}
    changes = {
        **sand, "probe_interval_s": PROBE_S, "control_interval_s": interval_s,
        "warmup_s": 2.0, "settle_s": settle_s, "horizon_s": horizon_s,
    }  # fmt: skip
    return [
        Measurement(
            f"{__name__}:swings",
            override(load_scenario("homogeneous"), {**changes, "network.mean_rtt_s": mean_rtt_s}),
            {"policy": policy, "seeds": seeds},
            {"mean_rtt_s": mean_rtt_s, "policy": policy},
        )
        for mean_rtt_s in round_trips_s
        for policy in policies
    ]


def swings(scenario: Scenario, policy: str, seeds: int) -> list[dict[str, float]]:
    """Swing, mean RIF per server and latency, a row for every seed."""
    per_server: list[np.ndarray] = []

    def each(task: Task) -> None:
        truth = task.simulator.truth()
        per_server.append(truth.rif / truth.live_servers)

    chosen = [FIRST_HELD_OUT_SEED + k for k in range(seeds)]
    task = played(policy, scenario, chosen, each)
    task.drain()
    settled = np.array(per_server[scenario.intervals(scenario.settle_s) :])  # (time, seed, cell)
    return [
        {
            "swing": settled[:, r].std(axis=0).mean(),
            "rif_per_server": settled[:, r].mean(),
            "latency_s": task.summary(r)["latency_mean_s"],
            "error_rate": task.summary(r)["error_rate"],
        }
        for r in range(seeds)
    ]


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds."""
    return records.groupby(["mean_rtt_s", "policy"], sort=False).mean().reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """Swing and latency against the mean round trip."""
    drawn, (left, right) = panels(2)
    for policy, own in table.groupby("policy", sort=False):
        left.plot(1e3 * own["mean_rtt_s"], own["swing"], **line_style(policy))
        right.plot(1e3 * own["mean_rtt_s"], own["latency_s"], **line_style(policy))
    left.set(title="swing of the RIF per server (sd over time)", ylim=(0.0, None))
    right.set(title="mean end-to-end latency, s")
    for axes in (left, right):
        axes.set(xlabel="mean round trip, ms", xscale="log")
        ticks_ms = [f"{1e3 * mean_rtt_s:g}" for mean_rtt_s in table["mean_rtt_s"].unique()]
        axes.set_xticks([float(tick) for tick in ticks_ms], ticks_ms)
        axes.minorticks_off()
    drawn.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The most restless Disc beside the most restless Flow where the network is slowest."""
    near, far = (_swings(table, pick(table["mean_rtt_s"])) for pick in (min, max))
    disc, flow = (_most_restless(far, mechanism) for mechanism in ("disc", "flow"))
    verdict = "Yes" if far[disc] > FAR_MORE * far[flow] else "No clear difference"
    others = ", ".join(f"{p} {far[p]:.1f}" for p in far if p not in (disc, flow))
    return (
        f"{verdict}: at a mean round trip of {1e3 * table['mean_rtt_s'].max():.0f} ms the RIF per "
        f"server swings {far[disc]:.1f} times as much under {disc} as under {STILL}, and "
        f"{far[flow]:.1f} times under {flow}"
        + (f" ({others})" if others else "")
        + f"; at {1e3 * table['mean_rtt_s'].min():.0f} ms it is {near[disc]:.1f} and "
        f"{near[flow]:.1f} times."
    )


def _swings(table: pd.DataFrame, mean_rtt_s: float) -> dict[str, float]:
    """Swing of every policy that reacts, relative to the one that does not."""
    swing = table[table["mean_rtt_s"] == mean_rtt_s].set_index("policy")["swing"]
    return {policy: swing[policy] / swing[STILL] for policy in swing.index if policy != STILL}


def _most_restless(swings: dict[str, float], mechanism: str) -> str:
    return max((p for p in swings if p.startswith(mechanism)), key=lambda p: swings[p])
