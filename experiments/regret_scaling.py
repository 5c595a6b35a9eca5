"""How Flow's distance from its equilibrium shrinks with time and step (paper, Theorem 1).

For flow routing with delays the theorem bounds the mean over [0, T] of the distance

    d = sum_j (f_j(N_j) - f_j(N*_j)) (mu_j(N_j) - mu_j(N*_j)) + sum_ij lambda_i (c*_ij - c*_i) x_ij

(workloads' and routing's; `fluid.convergence`), for steps between eta_ and eta^, by

    G_0 / (T eta_) + G_1(tau) eta^ + G_2 / T:

with steps that shrink like T^(-1/2) it falls at least like T^(-1/2), and with a step that stays it
comes within O(eta). Constants are loose, so what is tested is the scaling: slopes of log d against
log T or log eta, one a system, and the mean of these slopes with a 95 % interval over the systems
(Student's t).

Systems are drawn from the family `appendix_b` and start empty, routing by capacity, under the
gradient cost, in Flow's limit. Steps are multiples of the one that `step_sizes` recommends for a
system (half of where it starts to oscillate, deciding with every probe). Far beyond it nothing
settles, and d is what remains of the oscillation over the last half of the time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from dlb_gym.fluid import Flow, FluidModel, equilibrium
from dlb_gym.fluid.convergence import routing_gap, workload_distance
from dlb_gym.generator import sample
from dlb_gym.runs import FIRST_HELD_OUT_SEED
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import override
from dlb_gym.step_sizes import recommended_step_size
from experiments.runner import Measurement, Slope, panels

QUESTION = "Does Flow's distance from the optimum fall with time and step as Theorem 1 says?"

SHRINKING, STAYING, SMALL, LARGE = (
    "step shrinks with span", "step stays", "small step", "unstable step",
)  # fmt: skip
STEP_S = 0.1
SHORTEST_S = 20.0
SPANS = 7
"""Each twice the one before."""
SMALL_FACTORS, LARGE_FACTORS = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2), (4.0, 8.0, 16.0, 32.0)
"""On the recommended step."""
NOT_FALLING = 0.75
"""Where all is forgotten but the start, a mean over twice the span is half as large."""
COLOURS = {SHRINKING: "#2a6fbb", STAYING: "#2f9e6e", SMALL: "#2a6fbb", LARGE: "#d1602b"}


def runs(quick: bool) -> list[Measurement]:
    """Systems of the family."""
    return _sweep(4, 4) if quick else _sweep(12, SPANS)


def tiny() -> list[Measurement]:
    """Two systems, short spans."""
    return _sweep(2, 2)


def _sweep(systems: int, spans: int) -> list[Measurement]:
    return [
        Measurement(
            f"{__name__}:distances",
            override(
                sample("appendix_b", FIRST_HELD_OUT_SEED, number), {"control_interval_s": 0.005}
            ),
            {"spans": spans},
            {"system": number},
        )
        for number in range(systems)
    ]


class _Case(NamedTuple):
    """A mean of d over [begin, end) in seconds, under a step.

    Attributes:
        size: What the study varies: the span in seconds, or the factor on the recommended step.
        factor: On the recommended step.
    """

    study: str
    size: float
    factor: float
    begin_s: float
    end_s: float


def distances(scenario: Scenario, spans: int) -> list[dict[str, float | str]]:
    """Mean distances in all cases of one system."""
    cases = _cases([SHORTEST_S * 2.0**k for k in range(spans)])
    factors, column = np.unique([case.factor for case in cases], return_inverse=True)
    distance = _distance(scenario, factors, max(case.end_s for case in cases))
    rows: list[dict[str, float | str]] = []
    for case, own in zip(cases, column, strict=True):
        begin, end = round(case.begin_s / STEP_S), round(case.end_s / STEP_S)
        mean = float(distance[begin:end, own].mean())
        rows.append({"study": case.study, "size": case.size, "distance": mean})
    return rows


def _cases(spans_s: list[float]) -> list[_Case]:
    longest_s = spans_s[-1]
    return [
        *(_Case(SHRINKING, t, (t / spans_s[0]) ** -0.5, 0.0, t) for t in spans_s),
        *(_Case(STAYING, t, 1.0, 0.0, t) for t in spans_s),
        *(_Case(SMALL, f, f, 0.0, longest_s) for f in SMALL_FACTORS),
        *(_Case(LARGE, f, f, 0.5 * longest_s, longest_s) for f in LARGE_FACTORS),
    ]


def _distance(scenario: Scenario, factors: np.ndarray, span_s: float) -> np.ndarray:
    """D at every step, a column for every factor on the recommended step."""
    model = FluidModel([scenario] * len(factors), STEP_S)
    best = recommended_step_size(scenario, "gradient").recommended
    eta = factors[:, None] * best
    system, rest = model.system, equilibrium(model, "gradient")
    start = np.zeros(rest.rif.shape)
    path = model.run(
        Flow("gradient", eta), span_s, rif=start, routing=system.capacity_split(), record_every=1
    )
    workloads = workload_distance(system, "gradient", path.rif[:-1], rest)
    return (workloads + routing_gap(system, "gradient", path.routing[:-1], rest)).numpy()


def table(records: pd.DataFrame) -> pd.DataFrame:
    """All means."""
    return records[["system", "study", "size", "distance"]]


def figure(table: pd.DataFrame) -> Figure:
    """Distance against span and step: a line for every system, bold their geometric mean."""
    drawn, (left, right) = panels(2)
    for axes, studies in ((left, (SHRINKING, STAYING)), (right, (SMALL, LARGE))):
        for study in studies:
            own = table[table["study"] == study]
            for _, each in own.groupby("system"):
                axes.plot(each["size"], each["distance"], color=COLOURS[study], alpha=0.25, lw=0.7)
            middle = own.groupby("size")["distance"].apply(stats.gmean)
            label = study if study == LARGE else f"{study}: {_text(_slope(own))}"
            axes.plot(middle.index, middle, "o-", color=COLOURS[study], label=label)
        axes.set(xscale="log", yscale="log")
        axes.legend(title="slope, 95 % interval")
    left.set(title="mean distance over a span", xlabel="span, s")
    right.set(title="mean distance over the longest span", xlabel="step / recommended step")
    return drawn


def finding(table: pd.DataFrame) -> str:
    """The slopes beside those of the theorem."""
    shrinking, staying, small = (
        _slope(table[table["study"] == study]) for study in (SHRINKING, STAYING, SMALL)
    )
    verdict = "Yes" if shrinking.high <= -0.5 else "Within the interval"
    verdict = verdict if shrinking.low <= -0.5 else "Not as fast"
    spans_s = table.loc[table["study"] == SHRINKING, "size"]
    by_span = table[table["study"] == STAYING].pivot(
        index="system", columns="size", values="distance"
    )
    restless = int((by_span.iloc[:, -1] > NOT_FALLING * by_span.iloc[:, -2]).sum())
    large = table[table["study"] == LARGE].groupby("system")["distance"].max()
    return (
        f"{verdict}: over {spans_s.min():g} to {spans_s.max():g} s the mean distance falls as "
        f"T^{_text(shrinking)} under a step that shrinks as T^-0.5 (the theorem: at least T^-0.5), "
        f"and as T^{_text(staying)} under the recommended step. That one is a local bound: of "
        f"{len(by_span)} systems {restless} never settle from an empty start. Steps of 1/32 to 1/2 "
        f"of it leave eta^{_text(small)} (the theorem's 1 / (T eta) allows eta^-1); those of "
        f"{min(LARGE_FACTORS):g} to {max(LARGE_FACTORS):g} times as much oscillate, and "
        f"{(large / by_span.iloc[:, -1]).median():.0f} times (median) the distance remains."
    )


def _text(slope: Slope) -> str:
    return f"{slope.value:.2f} ({slope.low:.2f} to {slope.high:.2f})"


def _slope(own: pd.DataFrame) -> Slope:
    """Mean over systems of the slope in logarithms, and its interval."""
    slopes = np.array(
        [
            np.polyfit(np.log(each["size"]), np.log(each["distance"]), 1)[0]
            for _, each in own.groupby("system")
        ]
    )
    half = stats.t.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / np.sqrt(len(slopes))
    return Slope(slopes.mean(), slopes.mean() - half, slopes.mean() + half)
