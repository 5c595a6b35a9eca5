"""Cache hits against balance (paper 3.5).

Requests come in sessions whose prompts grow; servers keep prefixes. Routing ignores them (none),
goes back while it pays (conditional, the paper's), goes back always (sticky), or hashes sessions to
cells and servers (consistent_hash). The workloads are

- sessions: of the defaults, at 80 % utilisation counted as if no prefix were cached;
- full: the same at 115 %, which the fleet can serve only if caches help;
- hot: one session in a hundred has ten times the turns, at ten times the rate, and prompts that
  grow ten times as long;
- collisions: 64 scheduling hashes for all sessions, so that many share one.

With E[n], E[P] the mean new and whole prompt (`sessions`), a share 1 - 1 / E[T] of the requests has
a prefix, and caches save at most prefix_fraction (E[P] - E[n]) / E[P] of the prompt tokens. Balance
is told by the busiest server of a cell (its requests over the mean there, cells weighted by their
requests) and the busiest cell (its requests per capacity over the fleet's).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from dlb_gym.rates import mean_tokens, nominal_rates_rps
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.sessions import eligible_share
from experiments.runner import Measurement, panels, played, use_log

QUESTION = "What does affinity save, and what does it cost in balance?"

KINDS = ("none", "conditional", "sticky", "consistent_hash")
WORKLOADS: dict[str, dict[str, Any]] = {
    "sessions": {},
    "full": {"demand.utilisation": 1.15},
    "hot": {"demand.sessions.hot_fraction": 0.01},
    "collisions": {"demand.sessions.hash_values": 64},
}
SHOWN = "flow-gradient"
POLICIES = ("capacity", "disc-latency", SHOWN)
ELIGIBLE, SAVED = (0.60, 0.70), (0.40, 0.50)
"""What the paper reports: requests that can benefit, and prefill saved."""


def runs(quick: bool) -> list[Measurement]:
    """Every policy with every kind of affinity under every workload."""
    return _sweep((SHOWN,), 2, 20.0) if quick else _sweep(POLICIES, 4, 60.0)


def tiny() -> list[Measurement]:
    """One policy, 3 s."""
    return _sweep((SHOWN,), 2, 3.0, settle_s=1.0)


def _sweep(
    policies: tuple[str, ...], seeds: int, horizon_s: float, settle_s: float = 20.0
) -> list[Measurement]:
    spans = {"control_interval_s": 0.1, "settle_s": settle_s, "horizon_s": horizon_s}
    return [
        Measurement(
            f"{__name__}:saved",
            override(load_scenario("sessions"), {**spans, **changes, "affinity.kind": kind}),
            {"policy": policy, "seeds": seeds},
            {"workload": workload, "affinity": kind, "policy": policy},
        )
        for workload, changes in WORKLOADS.items()
        for kind in KINDS
        for policy in policies
    ]


def saved(scenario: Scenario, policy: str, seeds: int) -> list[dict[str, float]]:
    """Hits, savings, latencies and balance, a row for every seed."""
    task = played(policy, scenario, [FIRST_HELD_OUT_SEED + k for k in range(seeds)], log=True)
    task.drain()
    sessions = scenario.demand.sessions
    prompt, _ = mean_tokens(scenario)
    context = prompt - scenario.tokens.prompt.mean_tokens
    bounds = {
        "eligible_bound": eligible_share(sessions) if sessions else 0.0,
        "saved_bound": sessions.prefix_fraction * context / prompt if sessions else 0.0,
    }
    rows = []
    for r in range(seeds):
        summary = task.summary(r)
        busiest_server, busiest_cell = _busiest(scenario, task.simulator.request_log(r))
        rows.append(
            {
                "latency_mean_s": summary["latency_mean_s"],
                "latency_p95_s": summary["latency_p95_s"],
                "ttft_mean_s": summary["ttft_mean_s"],
                "error_rate": summary["error_rate"],
                "eligible": summary["prefix_share"],
                "hit_rate": summary["prefix_hit_rate"],
                "prefill_saved": summary["prefill_saved"],
                "busiest_server": busiest_server,
                "busiest_cell": busiest_cell,
                **bounds,
            }
        )
    return rows


def _busiest(scenario: Scenario, log: dict[str, np.ndarray]) -> tuple[float, float]:
    """Requests of the busiest server and cell relative to what would be even."""
    start_s = scenario.warmup_s + scenario.settle_s
    counted = (log["arrival_s"] > start_s) & (log["server"] >= 0)
    cell, server = log["cell"][counted].astype(int), log["server"][counted].astype(int)
    cells = len(scenario.cells)
    requests = np.bincount(cell, minlength=cells)
    even = nominal_rates_rps(scenario) / nominal_rates_rps(scenario).sum()
    ratios = [
        np.bincount(server[cell == j]).max() / (requests[j] / scenario.cells[j].servers)
        for j in range(cells)
        if requests[j]
    ]
    weights = requests[requests > 0]
    return float(np.average(ratios, weights=weights)), float(
        (requests / requests.sum() / even).max()
    )


def table(records: pd.DataFrame) -> pd.DataFrame:
    """Means over the seeds, and the standard error of the mean latency."""
    groups = records.groupby(["workload", "affinity", "policy"], sort=False)
    means = groups.mean()
    means.insert(1, "latency_mean_s_sem", groups["latency_mean_s"].sem())
    return means.reset_index()


def figure(table: pd.DataFrame) -> Figure:
    """What is saved, what it brings, and how even the load is, kind by kind."""
    drawn, axes = panels(3)
    own = table[table["policy"] == SHOWN]
    metrics = {
        "prefill_saved": ("prompt tokens that caches saved, %", 100.0),
        "ttft_mean_s": ("mean time to first token, s", 1.0),
        "busiest_server": ("requests of a cell's busiest server / mean", 1.0),
    }
    for axis, (metric, (title, scale)) in zip(axes, metrics.items(), strict=True):
        for workload, rows in own.groupby("workload", sort=False):
            places = [KINDS.index(kind) for kind in rows["affinity"]]
            axis.plot(places, scale * rows[metric], marker="o", label=str(workload))
        axis.set(title=title, xticks=range(len(KINDS)))
        axis.set_xticklabels([kind.replace("_", " ") for kind in KINDS])
        if metric == "ttft_mean_s":
            use_log(axis.yaxis)
        else:
            axis.set_ylim(bottom=0.0)
    axes[0].axhspan(100 * SAVED[0], 100 * SAVED[1], color="#2f9e6e", alpha=0.12, linewidth=0)
    axes[0].text(-0.1, 45.5, "paper: 40 to 50 %", fontsize=7, color="#2f9e6e")
    drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The paper's two figures, what each kind does, and where balance suffers."""
    own = table[table["policy"] == SHOWN].set_index(["workload", "affinity"])
    plain = own.loc["sessions"]
    eligible = plain["eligible"].mean()
    met = [
        f"{kind} {100 * row['prefill_saved']:.0f} % "
        f"({'within' if SAVED[0] <= row['prefill_saved'] <= SAVED[1] else 'outside'})"
        for kind, row in plain.iterrows()
    ]
    within = "within" if ELIGIBLE[0] <= eligible <= ELIGIBLE[1] else "outside"
    return " ".join(
        [
            f"{100 * eligible:.0f} % of the requests can benefit ({within} the paper's 60 to 70 %);"
            f" of the prompt tokens, {100 * plain['saved_bound'].iloc[0]:.0f} % at most, caches "
            f"save under {SHOWN} (paper: 40 to 50 %): {', '.join(met)}.",
            *(_outcome(name, own.loc[name]) for name in own.index.unique("workload")),
        ]
    )


def _outcome(workload: str, rows: pd.DataFrame) -> str:
    """Latency, errors and balance of the kinds under one workload."""
    parts = []
    for kind, row in rows.iterrows():
        errors = f", {100 * row['error_rate']:.0f} % errors" if row["error_rate"] > 0.005 else ""
        parts.append(f"{kind} {row['latency_mean_s']:.2f} s{errors}")
    worst = rows["busiest_server"].idxmax()
    return (
        f"Mean latency, {workload}: {'; '.join(parts)}; a cell's busiest server has at most "
        f"{rows['busiest_server'].max():.1f} times the mean ({worst})."
    )
