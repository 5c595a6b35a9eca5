"""How large Flow's step may be on slow networks (paper 3.2.2, B.1; theory.md section 3).

Near an equilibrium Flow in continuous time is a linear system with delays (`dlb_gym.stability`). It
decays for small steps eta and oscillates from a critical one on. DLB's rule lets eta shrink like
1 / (network latency) and leaves the constant open.

**Two equal cells** behind one root, mu(N) = 10 N / (N + 10), 12 requests a second, gradient cost.
With a = mu'(N*), b = f'(N*) and a loop delay of T = 2 tau,

    eta_c = (a / (lambda b T)) theta / sin theta,   theta tan theta = a T,

between 1 and pi / 2 times a / (lambda b T). Beside it stand the eta at which the rightmost
characteristic root crosses the imaginary axis, and the eta at which the fluid itself, nonlinear and
moved in steps, stops to forget: N starts 1e-7 beside the equilibrium, and the growth rate is that
of its root mean square between the last two thirds of the run,

    log(rms of N_1 - N_2 in the last third / rms in the middle one) / (a third of the run).

It is taken at many eta, from theory's sufficient bound upwards, then at more between the last eta
that decays and the first that grows, and interpolated to 0.

**Scenarios**, their networks scaled to a mean round trip. The margin is the critical factor on the
working rule of `latency_model.step_size` at the equilibrium: above 1 the rule is stable, and far
above 1 it could be faster. (star) of theory.md 3c, sufficient for any network, is given as a share
of the critical step in the same proportions.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import StrMethodFormatter

from dlb_gym.fluid import Flow, FluidModel, FluidSystem
from dlb_gym.generator import sample
from dlb_gym.latency_model import STEP_GAIN, STEP_MAX
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.service_curves import COSTS, require_cost
from dlb_gym.stability import (
    Loop,
    critical_gain,
    equal_delay_gain,
    linearised,
    one_root_step,
    sufficient_gain,
)
from dlb_gym.step_sizes import recommended_step_size
from dlb_gym.textbook_curves import HyperbolicCells
from experiments.runner import Measurement, line_style, panels

QUESTION = "How large may Flow's step be as the network gets slower?"

TWO_CELLS = "two equal cells"
RATE_RPS, LARGEST_RPS, HALF_RIF = 12.0, 10.0, 10.0
RIF = 15.0
"""N*: 6 requests a second are 10 N / (N + 10)."""
ONE_WAY_S = (0.005, 0.015, 0.05, 0.15, 0.5, 1.5, 5.0, 15.0, 50.0)
SIMULATED_S = (0.05, 0.15, 0.5, 1.5, 5.0)
LONGEST_STEP_S = 0.1
DEVIATION = 1e-7
SPREAD = 128.0
"""The first eta are between the sufficient one and so many times as much."""
FINEST_PERCENT = 5e-4
"""What six digits of a table can tell."""

ROUND_TRIPS_S = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
NAMED = ("global_six", "sand", "residency")
DRAWN = 3


def runs(quick: bool) -> list[Measurement]:
    """Two cells at every latency; every system, cost and round trip."""
    if quick:
        return _sweep(ONE_WAY_S[::2], (0.5, 5.0), NAMED, 0, ROUND_TRIPS_S[1::3], spans=20.0)
    return _sweep(ONE_WAY_S, SIMULATED_S, NAMED, DRAWN, ROUND_TRIPS_S, spans=40.0)


def tiny() -> list[Measurement]:
    """Two latencies, one system."""
    return _sweep((0.5, 5.0), (5.0,), ("homogeneous",), 0, (0.1,), spans=10.0)


def _sweep(
    one_way_s: tuple[float, ...],
    simulated_s: tuple[float, ...],
    named: tuple[str, ...],
    drawn: int,
    round_trips_s: tuple[float, ...],
    spans: float,
) -> list[Measurement]:
    systems = {name: load_scenario(name) for name in named}
    for episode in range(drawn):
        systems[f"appendix_b {episode}"] = sample("appendix_b", FIRST_HELD_OUT_SEED, episode)
    cells = [
        Measurement(
            f"{__name__}:two_cells",
            load_scenario("homogeneous"),
            {"one_way_s": tau_s, "spans": spans if tau_s in simulated_s else 0.0},
            {"system": TWO_CELLS, "cost": "gradient", "round_trip_s": 2.0 * tau_s},
        )
        for tau_s in one_way_s
    ]
    return cells + [
        Measurement(
            f"{__name__}:margins",
            override(scenario, {"network.mean_rtt_s": round_trip_s}),
            {"cost": cost},
            {"system": name, "cost": cost, "round_trip_s": round_trip_s},
        )
        for name, scenario in systems.items()
        for cost in COSTS
        for round_trip_s in round_trips_s
    ]


def two_cells(scenario: Scenario, one_way_s: float, spans: float) -> dict[str, float]:
    """The critical eta in three ways; the scenario is not looked at.

    Args:
        scenario: Any.
        one_way_s: tau, seconds.
        spans: Length of a simulation, in 1 / a + T; 0: none.
    """
    loop, delay_s = _loop(one_way_s), 2.0 * one_way_s
    a, b = float(loop.rate_slope[0]), float(loop.cost_slope[0])
    critical = critical_gain(loop)
    return {
        "eta_closed": equal_delay_gain(a, delay_s) / (RATE_RPS * b),
        "eta_root": critical,
        "eta_simulated": _simulated(loop, spans * (1.0 / a + delay_s)) if spans else math.nan,
        "margin": critical / (STEP_GAIN * a / (delay_s * b * RATE_RPS)),
        "sufficient_share": sufficient_gain(loop) / critical,
    }


def margins(scenario: Scenario, cost: str) -> dict[str, float]:
    """The working rule and (star) beside the critical step."""
    found = recommended_step_size(scenario, require_cost(cost))
    share = found.sufficient[0] / (found.recommended[0] / STEP_GAIN)
    known = found.recommended[0] < STEP_MAX
    return {"margin": found.margin, "sufficient_share": share if known else math.nan}


def _loop(one_way_s: float) -> Loop:
    curves = HyperbolicCells(np.full(2, LARGEST_RPS), np.full(2, HALF_RIF), np.ones(2))
    tau_s, rates_rps = np.full((1, 2), one_way_s), np.array([RATE_RPS])
    return linearised(rates_rps, tau_s, curves, "gradient", np.full(2, RIF), np.ones(1))


def _simulated(loop: Loop, duration_s: float) -> float:
    """The eta at which the fluid's growth rate is 0."""
    tau_s = float(loop.one_way_s[0, 0])
    low = one_root_step(RATE_RPS, loop.rate_slope, loop.cost_slope, 2.0 * loop.one_way_s[0])
    high = SPREAD * low
    for count in (17, 9):
        eta = np.geomspace(low, high, count)
        growth = _growth_rates(tau_s, eta, duration_s)
        first = int(np.argmax(growth > 0.0))
        low, high = eta[first - 1], eta[first]
    return float(np.interp(0.0, growth[first - 1 : first + 1], [low, high]))


def _growth_rates(tau_s: float, eta: np.ndarray, duration_s: float) -> np.ndarray:
    """Of a small deviation, 1/s, a row of the model for every eta."""
    torch.set_num_threads(1)  # the tensors are tiny

    def rows(*values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float64).expand(len(eta), len(values))

    curves = HyperbolicCells(
        rows(LARGEST_RPS, LARGEST_RPS), rows(HALF_RIF, HALF_RIF), rows(1.0, 1.0), torch
    )
    system = FluidSystem.from_arrays(rows(RATE_RPS), rows(tau_s, tau_s)[:, None], curves)
    step_s = tau_s / max(2, math.ceil(tau_s / LONGEST_STEP_S))
    path = FluidModel(system, step_s).run(
        Flow("gradient", torch.from_numpy(eta)[:, None]),
        step_s * math.ceil(duration_s / step_s),
        rif=rows(RIF + DEVIATION, RIF - DEVIATION),
        routing=rows(0.5, 0.5)[:, None],
        record_every=1,
    )
    apart = (path.rif[..., 0] - path.rif[..., 1]).numpy()
    third = len(apart) // 3
    middle, last = (apart[-2 * third :].reshape(2, third, -1) ** 2).mean(axis=1)
    rates: np.ndarray = 0.5 * np.log(last / middle) / (third * step_s)
    return rates


def table(records: pd.DataFrame) -> pd.DataFrame:
    """All rows."""
    keys = ["system", "cost", "round_trip_s"]
    etas = ["eta_closed", "eta_root", "eta_simulated"]
    return records[[*keys, *etas, "margin", "sufficient_share"]]


def figure(table: pd.DataFrame) -> Figure:
    """Critical steps of the two cells; margins of the scenarios."""
    drawn, (left, right) = panels(2)
    cells, others = _parts(table)
    tau_s = 0.5 * cells["round_trip_s"]
    left.plot(tau_s, cells["eta_closed"], label="closed form", color="#222222")
    left.plot(tau_s, cells["eta_root"], "o", label="characteristic root", color="#2a6fbb")
    left.plot(
        tau_s, cells["eta_simulated"], "x", label="simulated fluid", color="#d1602b", markersize=10
    )
    left.plot(tau_s, cells["eta_root"] / cells["margin"], "--", label="working rule", color="#888")
    sufficient = cells["eta_root"] * cells["sufficient_share"]
    left.plot(tau_s, sufficient, ":", label="sufficient bound", color="#888")
    left.set(title="critical step of two equal cells, 1/s²", xlabel="one-way latency, s")
    for (_, cost), own in others.groupby(["system", "cost"], sort=False):
        right.plot(own["round_trip_s"], own["margin"], **line_style(f"flow-{cost}"), linewidth=1.0)
    right.axhline(1.0, color="#888")
    right.set(title="critical step / working rule", xlabel="mean round trip, s")
    for axes in (left, right):
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    left.legend()
    lines = dict(zip(*reversed(right.get_legend_handles_labels()), strict=True))
    right.legend(lines.values(), lines.keys(), title="every line a system")
    return drawn


def finding(table: pd.DataFrame) -> str:
    """How the critical step falls, how well it is known, and where the working rule stands."""
    cells, others = _parts(table)
    delay_s = cells["round_trip_s"]
    steady = cells["eta_root"] * delay_s
    simulated = cells.dropna(subset="eta_simulated")
    tau_s = 0.5 * simulated["round_trip_s"]
    spans = [
        f"{own['margin'].min():.1f} to {own['margin'].max():,.0f} times as large ({cost})"
        for cost, own in others.groupby("cost", sort=False)
    ]
    stable = int((others["margin"] > 1.0).sum())
    return (
        f"As one over the round trip: while it grows {delay_s.max() / delay_s.min():.0f}-fold, the "
        f"critical step times the round trip of two equal cells stays within a factor of "
        f"{steady.max() / steady.min():.2f}. The simulated boundary is within "
        f"{_percent(simulated, 'eta_simulated'):.2g} % of the closed form at one-way latencies of "
        f"{tau_s.min():g} to {tau_s.max():g} s, the characteristic root within "
        f"{max(_percent(cells, 'eta_root'), FINEST_PERCENT):.4f} %. On the scenarios the working "
        f"rule is stable in {stable} of {len(others)} cases, the critical step being "
        f"{', '.join(spans)}; theory's sufficient bound is "
        f"{100 * others['sufficient_share'].min():.2g} to "
        f"{100 * others['sufficient_share'].max():.2g} % of the critical step."
    )


def _parts(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The two cells and the scenarios."""
    alone = table["system"] == TWO_CELLS
    return table[alone], table[~alone]


def _percent(cells: pd.DataFrame, column: str) -> float:
    """Largest distance of a column from the closed form."""
    return float(100.0 * (cells[column] / cells["eta_closed"] - 1.0).abs().max())
