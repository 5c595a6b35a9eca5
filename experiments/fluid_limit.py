"""How the event engine approaches the fluid as systems grow, and what it does not approach.

Kurtz (1970): where a cell with N requests in flight answers at the rate mu(N), as c exponential
slots with one queue do at mu(N) = min(N, c) / S, k-fold arrivals and slots follow the fluid n of
theory.md (8) the better, the larger k:

    N^k(t) / k -> n(t),   at a distance of the order of 1 / sqrt(k).

Distances are relative to the fluid's size, |n|^2 = sum_j n_j^2, its mean over time <.>:

    d(t) = |N^k(t) / k - n(t)| / sqrt(<|n|^2>),
    error^2 = <d^2> = random^2 + systematic^2,    worst = max_t d(t).

Systematic is what the mean over the seeds keeps (less its variance), so it is what a larger k does
not take away. Everything starts empty, and a root's demand jumps for a while past what the cells
near it can serve. `pooled` cells are single servers of 4 k slots, three of them, at 25 ms to 0.5 s
from two roots; in `six` (global_six) k multiplies the servers, of which each has 8 slots behind a
prefill engine, mu is the calibrated curve, and the demand jumps to 95 %. Roots keep one routing
(`fixed`), or follow Flow in steps, on the cost of what they see, in both models.

Where throughput is no function of N, take independent services S and no queue. After a jump of the
arrivals by 1, requests leave at P(S < t), while mu(N) = N / E[S] rises as

    1/E[S] int_0^t P(S > u) du,
    int_0^inf (mu(N) - P(S < t)) dt = E[S] - E[S^2] / (2 E[S]) = (1 - v) E[S] / 2

sooner, v = Var[S] / E[S]^2: not at all if S is exponential. The lag of the throughput behind
mu(N) is measured over a start from empty, of the fleet, with mu scaled to be right in the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from dlb_gym.fluid import Fixed, Flow, FluidModel, FluidSystem
from dlb_gym.policy import project_to_simplex
from dlb_gym.rates import offered_rate_rps
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override, scenario_from_dict
from dlb_gym.server_design import Disaggregated
from dlb_gym.service_curves import ServiceCurves, cell_cost
from dlb_gym.simulator import Simulator
from dlb_gym.textbook_curves import PooledSlots
from dlb_gym.views import View
from experiments.runner import Measurement, panels, power_of, simulated, use_log

QUESTION = "Does the event engine approach the fluid model as the system grows?"

Array = NDArray[np.float64]

PROBE_S = 0.01
CONTROL_S = 0.1
STEPS = 10
"""Of the fluid, in a control interval."""
PROTOCOL = {"probe_interval_s": PROBE_S, "control_interval_s": CONTROL_S, "warmup_s": 0.0}
FINE_TOKENS = 100_000
"""Mean of output tokens that makes rounding to whole ones invisible."""
NO_TOKENS = {"loc_tokens": 0, "shape": 1.0, "mean_tokens": 1e-3}
SLOTS = 4
SERVICE_S = {"a": 0.8, "b": 1.0, "c": 1.3}
ONE_WAY_S = ((0.035, 0.155, 0.495), (0.405, 0.105, 0.025))
"""Odd multiples of half the probe interval: at every decision reports are then as old as the fluid
takes them to be, one way and half a probe interval."""
NEAR_FIRST = ((0.7, 0.25, 0.05), (0.1, 0.3, 0.6))
POOLED_FLOW = ("rif", 0.2)
SIX_FLOW = ("gradient", 0.01)
FIRST_FOLD = 4
"""Slopes are fitted from there on: below, the mean of mu(N) is visibly not mu of the mean."""
PARTS = ("random", "systematic", "at_start", "settled")
SECONDS = ("time_s", "served", "by_curve")
START_S = 6.0
"""Within which a start from empty is over."""


def pooled(fold: int, shape: float = 1.0, servers: int = 1, horizon_s: float = 30.0) -> Scenario:
    """Cells of 4 `fold` slots on so many servers; Gamma services of this shape (1: exponential)."""
    cells = [
        {
            "name": name, "region": "us-east4", "servers": servers,
            "prefill_s_per_token": 1e-9, "decode_s_per_token": mean_s / FINE_TOKENS,
        }
        for name, mean_s in SERVICE_S.items()
    ]  # fmt: skip
    output = {"loc_tokens": 0, "shape": shape, "mean_tokens": FINE_TOKENS}
    each = fold // servers
    burst = {"kind": "burst", "root": "a", "start": 0.3, "end": 0.5, "to_utilisation": 1.1}
    document = {
        "name": "pooled",
        "cells": cells,
        "roots": [{"name": name, "region": "us-east4", "demand": 1.0} for name in "ac"],
        "network": {"rtt_s": [[2.0 * one_way_s for one_way_s in row] for row in ONE_WAY_S]},
        "tokens": {"prompt": NO_TOKENS, "output": output},
        "server": {"decode_engines": SLOTS, "slots_per_engine": each, "queue_limit": 99 * each},
        "demand": {"utilisation": 0.6},
        "disturbances": [burst],
        "horizon_s": horizon_s,
    }  # fmt: skip
    return scenario_from_dict(document | PROTOCOL)


def six(fold: int, exponential: bool = False, horizon_s: float = 60.0) -> Scenario:
    """`global_six` with k times the servers; exponential: without prefill, decode of equal mean."""
    base = load_scenario("global_six")
    burst = {"kind": "burst", "root": "us-east4", "start": 0.4, "end": 0.7, "to_utilisation": 0.95}
    changes: dict[str, Any] = PROTOCOL | {"disturbances": [burst], "horizon_s": horizon_s}
    finer = base.tokens.output.mean_tokens / FINE_TOKENS
    for j, cell in enumerate(base.cells):
        changes[f"cells.{j}.servers"] = fold * cell.servers
        if exponential:
            changes[f"cells.{j}.decode_s_per_token"] = finer * cell.decode_s_per_token
    if exponential:
        output = {"loc_tokens": 0, "shape": 1.0, "mean_tokens": FINE_TOKENS}
        changes["tokens"] = {"prompt": NO_TOKENS, "output": output}
    return override(base, changes)


def runs(quick: bool) -> list[Measurement]:
    """Pooled slots at many k, then what is no function of N, and how throughput lags."""
    folds = (1, 4, 16, 64) if quick else (1, 2, 4, 8, 16, 32, 64, 128, 256)
    few = (4, 16) if quick else (4, 16, 64, 256)
    seeds = 8 if quick else 64
    some = {1: 16, 4: 16} if quick else {1: 64, 4: 32, 16: 16, 64: 4}
    return [
        *(_apart("pooled fixed", pooled(k), k, seeds) for k in folds),
        *(_apart("pooled flow", pooled(k), k, seeds, *POOLED_FLOW) for k in folds),
        *(_apart("pooled Gamma", pooled(k, shape=2.0), k, seeds) for k in few),
        *(_apart("k servers", pooled(k, servers=k), k, seeds) for k in few),
        *(_apart("six fixed", six(k), k, count) for k, count in some.items()),
        *(_apart("six flow", six(k), k, count, *SIX_FLOW) for k, count in some.items()),
        *(_apart("six exponential", six(k, True), k, count) for k, count in some.items()),
        *_starts({1: 8, 4: 4} if quick else {1: 64, 4: 32, 16: 16}),
    ]


def tiny() -> list[Measurement]:
    """Few seconds of few seeds."""
    return [
        *(_apart("pooled fixed", pooled(k, horizon_s=3.0), k, 2) for k in (4, 8)),
        *(_apart("pooled flow", pooled(k, horizon_s=3.0), k, 2, *POOLED_FLOW) for k in (4, 8)),
        _apart("six fixed", six(1, horizon_s=2.0), 1, 2),
        *_starts({1: 2}, horizon_s=6.0),
    ]


def _apart(
    case: str, scenario: Scenario, fold: int, seeds: int, cost: str | None = None, eta: float = 0.0
) -> Measurement:
    pools = not case.startswith("six")
    arguments = {"fold": fold, "pools": pools, "seeds": seeds, "cost": cost, "eta": eta}
    return Measurement(f"{__name__}:distances", scenario, arguments, {"case": case, "fold": fold})


def _starts(folds: dict[int, int], horizon_s: float = 60.0) -> list[Measurement]:
    return [
        Measurement(
            f"{__name__}:start",
            override(
                six(fold, law == "exponential", horizon_s),
                {"disturbances": [], "demand.utilisation": utilisation},
            ),
            {"seeds": seeds},
            {"case": f"start, {law}", "fold": fold, "utilisation": utilisation},
        )
        for law in ("two stages", "exponential")
        for utilisation in (0.8, 0.95)
        for fold, seeds in folds.items()
    ]


def distances(
    scenario: Scenario, fold: int, pools: bool, seeds: int, cost: str | None, eta: float
) -> list[dict[str, float]]:
    """Error and worst of every seed, of what they are made, and shares of systematic^2 by spans.

    Args:
        scenario: With k-fold arrivals and places.
        fold: k.
        pools: mu(N) = min(N, slots) / S; else the calibrated curves.
        seeds: How many.
        cost: Of Flow; None: the routing stays.
        eta: Flow's step size.
    """
    system = fluid_system(scenario, pools)
    fluid = fluid_rif(scenario, system, cost, eta) / fold
    events = event_rif(scenario, system, seeds, cost, eta)
    apart = events.rif / fold - fluid[:, None]
    size2 = (fluid**2).sum(axis=-1).mean()
    squares = (apart**2).sum(axis=-1) / size2  # (time, seed)
    random2 = apart.var(axis=1, ddof=1).sum(axis=-1).mean() / size2
    kept2 = (apart.mean(axis=1) ** 2 - apart.var(axis=1, ddof=1) / seeds).sum(axis=-1) / size2
    starts = round(START_S / CONTROL_S)
    jumps = round(scenario.disturbances[0].start * len(fluid))
    return [
        {
            "error": np.sqrt(squares[:, r].mean()),
            "worst": np.sqrt(squares[:, r].max()),
            "random": np.sqrt(random2),
            "systematic": np.sqrt(max(kept2.mean(), 0.0)),
            "at_start": kept2[:starts].sum() / kept2.sum(),
            "settled": kept2[starts:jumps].sum() / kept2.sum(),
            "failed": int(events.failed[r]),
        }
        for r in range(seeds)
    ]


def fluid_system(scenario: Scenario, pools: bool) -> FluidSystem:
    """The fluid of a scenario, if asked for with pooled slots for its calibrated curves."""
    system = FluidSystem.from_scenarios([scenario])
    if not pools:
        return system
    design = scenario.server
    assert isinstance(design, Disaggregated)
    output = scenario.tokens.output.mean_tokens
    slots = [float(cell.servers * design.decode_slots) for cell in scenario.cells]
    service_s = [output * cell.decode_s_per_token for cell in scenario.cells]
    tensor = system.rates_rps.new_tensor
    curves = PooledSlots(tensor([slots]), tensor([service_s]), system.curves.xp)
    return replace(system, curves=curves)


def first_routing(system: FluidSystem) -> Array:
    """What roots keep, or begin with: mostly near cells where slots are pooled."""
    if isinstance(system.curves, PooledSlots):
        return np.array(NEAR_FIRST)
    return np.asarray(system.capacity_split()[0].numpy())


def fluid_rif(scenario: Scenario, system: FluidSystem, cost: Any = None, eta: float = 0.0) -> Array:
    """N at the ends of control intervals, (intervals, cells)."""
    model = FluidModel(system, CONTROL_S / STEPS, allow_nonmonotone=True)
    held = system.rates_rps.new_tensor(first_routing(system))
    dynamics = Fixed(held) if cost is None else Flow(cost, eta, CONTROL_S)
    path = model.run(dynamics, scenario.horizon_s, routing=held[None], record_every=STEPS)
    return np.asarray(path.rif[1:, 0].numpy())


class Events(NamedTuple):
    """RIF and requests received so far, (intervals, seeds, cells), and those refused, (seeds,)."""

    rif: Array
    received: Array
    failed: NDArray[np.int64]


def event_rif(
    scenario: Scenario, system: FluidSystem, seeds: int, cost: Any = None, eta: float = 0.0
) -> Events:
    """The same by events: roots take Flow's steps, on the cost of the cells that they see."""
    curves: ServiceCurves = system.curves.mapped(lambda tensor: tensor.numpy(), np)
    rif: list[Array] = []
    received: list[Array] = []

    def keep(simulator: Simulator) -> None:
        truth = simulator.truth()
        rif.append(truth.rif.astype(np.float64))
        received.append(truth.received.sum(axis=1, dtype=np.float64))

    def stepped(view: View, routing: Array) -> Array:
        costs = cell_cost(curves.at(view.rif), cost, curves.servers)
        costs = costs if cost == "rif" else costs + view.rtt_s
        return project_to_simplex(routing - CONTROL_S * eta * costs, view.admissible)

    chosen = range(FIRST_HELD_OUT_SEED, FIRST_HELD_OUT_SEED + seeds)
    step = None if cost is None else stepped
    simulator = simulated(scenario, chosen, first_routing(system), keep, step)
    return Events(np.array(rif), np.array(received), simulator.books().errors)


def start(scenario: Scenario, seeds: int) -> list[dict[str, float]]:
    """Lag of a fleet that starts empty, how far off it settles; rows of its first seconds."""
    system = fluid_system(scenario, pools=False)
    events = event_rif(scenario, system, seeds)
    rif, received = (np.concatenate((np.zeros_like(each[:1]), each)) for each in events[:2])
    served = np.diff(received - rif, axis=0).sum(axis=-1) / CONTROL_S  # (time, seed)
    curves: ServiceCurves = system.curves.mapped(lambda tensor: tensor[0].numpy(), np)
    by_curve = curves.at(0.5 * (rif[1:] + rif[:-1])).rate_rps.sum(axis=-1)
    settled = slice(2 * len(served) // 3, None)
    by_curve *= served[settled].mean() / by_curve[settled].mean()
    flow = (system.rates_rps[0] @ system.capacity_split()[0]).numpy()
    rate_rps, shown = offered_rate_rps(scenario), round(START_S / CONTROL_S)
    gaps = rif[1:][settled].sum(axis=-1).mean(axis=0) / curves.rif_at(flow).sum() - 1.0
    lags_s = (by_curve - served)[:shown].sum(axis=0) * CONTROL_S / rate_rps
    summary = {
        "steady_gap": gaps.mean(),
        "steady_gap_sem": gaps.std(ddof=1) / np.sqrt(seeds),
        "lag_s": lags_s.mean(),
        "lag_sem_s": lags_s.std(ddof=1) / np.sqrt(seeds),
        "lag_theory_s": flow @ _lags_s(scenario) / rate_rps,
        "failed": int(events.failed.sum()),
    }
    times_s = CONTROL_S * (np.arange(shown) + 0.5)
    shares = (each.mean(axis=1)[:shown] / rate_rps for each in (served, by_curve))
    path = zip(times_s, *shares, strict=True)
    return [summary, *(dict(zip(SECONDS, each, strict=True)) for each in path)]


def _lags_s(scenario: Scenario) -> Array:
    """(1 - v) E[S] / 2 of every cell, S the service of a request that never waits."""
    laws = (scenario.tokens.prompt, scenario.tokens.output)
    unit_s = np.array([[c.prefill_s_per_token, c.decode_s_per_token] for c in scenario.cells])
    mean_s = unit_s @ [law.mean_tokens for law in laws]
    variance_s2 = unit_s**2 @ [(law.mean_tokens - law.loc_tokens) ** 2 / law.shape for law in laws]
    return np.asarray(0.5 * (mean_s - variance_s2 / mean_s))


def table(records: pd.DataFrame) -> pd.DataFrame:
    """A row for every case and k, with the case's slopes; the starts; seconds of those at 80 %."""
    started = records["case"].str.startswith("start")
    rows = []
    for case, own in records[~started].groupby("case", sort=False):
        squares = {fold: each for fold, each in own.groupby("fold") if fold >= FIRST_FOLD}
        slopes: dict[str, float] = {}
        for of in ("error", "worst") if len(squares) > 1 else ():
            found = power_of({k: each[of].to_numpy() ** 2 for k, each in squares.items()})
            names = (f"{of}_slope", f"{of}_slope_low", f"{of}_slope_high")
            slopes |= dict(zip(names, np.array(found) / 2.0, strict=True))
        for fold, each in own.groupby("fold"):
            row = {key: np.sqrt((each[key] ** 2).mean()) for key in ("error", "worst")}
            row |= {key: each[key].iloc[0] for key in PARTS}
            counts = {"seeds": len(each), "failed": each["failed"].sum()}
            rows.append({"case": case, "fold": fold, **counts, **row, **slopes})
    frame = pd.DataFrame(rows)
    frame.loc[frame["systematic"] == 0.0, ["at_start", "settled"]] = np.nan
    starts, key = records[started], ["case", "fold", "utilisation"]
    numbers = ["steady_gap", "steady_gap_sem", "lag_s", "lag_sem_s", "lag_theory_s", "failed"]
    summaries = starts.loc[starts["lag_s"].notna(), [*key, *numbers]]
    shown = (starts["utilisation"] == 0.8) & (starts["fold"] == starts["fold"].max())
    seconds = starts.loc[shown & starts["time_s"].notna(), [*key, *SECONDS]]
    return pd.concat([frame, summaries, seconds])


def figure(table: pd.DataFrame) -> Figure:
    """Distances of pooled exponential slots; those of others; how throughput lags."""
    drawn, (left, middle, right) = panels(3)
    for case, own in table[table["error"].notna()].groupby("case", sort=False):
        axes = left if "pooled f" in case else middle
        (line,) = axes.plot(own["fold"], 100.0 * own["error"], marker="o", label=case)
        if axes is middle:
            axes.plot(own["fold"], 100.0 * own["systematic"], ":", color=line.get_color())
        elif case == "pooled fixed":
            root = 100.0 * own["error"].iloc[-1] * np.sqrt(own["fold"].iloc[-1] / own["fold"])
            axes.plot(own["fold"], root, ":", color="grey", label="1 / sqrt(k)")
    left.set(title="distance from the fluid, % (pooled slots)", xlabel="k")
    middle.set(title="the same of others (dotted: systematic)", xlabel="k", ylim=(0.0, None))
    seconds = table[table["time_s"].notna()].groupby("case", sort=False)
    for number, (case, own) in enumerate(seconds):
        colour = f"C{number}"
        right.plot(own["time_s"], 100.0 * own["served"], color=colour, label=f"{case}: served")
        right.plot(own["time_s"], 100.0 * own["by_curve"], "--", color=colour, label="mu(N)")
    right.set(title="a start from empty, % of the arrivals", xlabel="time, s")
    for axis in (left.xaxis, left.yaxis, middle.xaxis):
        use_log(axis)
    for axes in (left, middle, right):
        axes.legend()
    return drawn


def finding(table: pd.DataFrame) -> str:
    """Slopes where throughput is a function of N; what stays elsewhere, and how far it is a lag."""
    cases = dict(iter(table[table["error"].notna()].groupby("case", sort=False)))
    pools = [(case, own.iloc[0]) for case, own in cases.items() if "pooled f" in case]
    rooted = all(of["error_slope_low"] <= -0.5 <= of["error_slope_high"] for _, of in pools)
    slopes = ", ".join(
        f"{of['error_slope']:.2f} ({case}; 95%: {of['error_slope_low']:.2f} to "
        f"{of['error_slope_high']:.2f})"
        for case, of in pools
    )
    others = [(case, own.iloc[-1]) for case, own in cases.items() if "pooled f" not in case]
    stays = ", ".join(f"{case} {of['systematic']:.1%}" for case, of in others)
    first, last = (cases["six fixed"].iloc[n] for n in (0, -1))
    starts = table[table["lag_s"].notna()].set_index(["case", "utilisation", "fold"])
    two, one = (starts.xs(f"start, {law}") for law in ("two stages", "exponential"))
    gaps = ", ".join(
        f"{of['steady_gap']:+.1%} ± {of['steady_gap_sem']:.1%} at k = {fold}"
        for fold, of in two.xs(0.95).iterrows()
    )
    lags = [
        f"{of['lag_s']:.2f} ± {of['lag_sem_s']:.2f} s ({of['lag_theory_s']:.2f} s)"
        for of in (each.xs(0.8).iloc[-1] for each in (two, one))
    ]
    return (
        f"{'Yes' if rooted else 'Not as 1 / sqrt(k)'}: with pooled exponential slots the distance "
        f"goes as a power of k: {slopes}. With disaggregated servers it falls from "
        f"{first['error']:.1%} at k = {first['fold']} to {last['error']:.1%} at k = "
        f"{last['fold']}, and what is systematic at the largest k stays: {stays}. Of its square "
        f"(six fixed) {last['at_start']:.0%} arise in the first {START_S:g} s, "
        f"{last['settled']:.0%} until the demand jumps to 95%. Settled there, RIF is off the "
        f"fluid's by {gaps}. Starting, at 80%, throughput lags behind mu(N) by {lags[0]}, with one "
        f"exponential stage by {lags[1]}; in brackets: theory without queues."
    )
