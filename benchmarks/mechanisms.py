"""What the mechanisms cost: CPU time of a request with them beside one without, in one run.

Batches of 16 rows under the split by capacity, control interval 0.1 s, requests drawn beforehand.
Rows with sessions are compared with the same rate of requests without any.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from dlb_gym.policy import proportional
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator

BATCH = 16
ROUNDS = 5
WARM_STEPS, STEPS = 100, 400
TELEMETRY: dict[str, Any] = {"telemetry": {}}
FITTED = {**TELEMETRY, "latency_estimate": {"kind": "online", "background": 0.005}}
EVERYTHING = {**FITTED, "error_aversion": {}, "retries": {}}
SESSIONS = {**EVERYTHING, "demand.sessions": {}, "affinity": {}}


class Bench:
    """One batch that advances as often as asked.

    Args:
        scenario: Of all rows.
    """

    def __init__(self, scenario: Scenario) -> None:
        cells = len(scenario.cells)
        self._simulator = Simulator(BATCH, len(scenario.roots), cells)
        for r in range(BATCH):
            self._simulator.reset_row(r, scenario, r, 0)
        capacity = np.tile(nominal_rates_rps(scenario), (len(scenario.roots), 1))
        split = proportional(capacity[None], self._simulator.admissible)
        self._simulator.set_routing(split, np.zeros(BATCH, dtype=np.int64))
        self._simulator.advance(np.full(BATCH, WARM_STEPS))
        self._step = WARM_STEPS

    def request_ns(self) -> float:
        """CPU time of a request over the next steps."""
        last = self._step + STEPS
        self._simulator.draw_until(last * 0.1)
        arrived = int(self._simulator.books().arrived.sum())
        start_ns = time.process_time_ns()
        while self._step < last:
            self._step += 1
            self._simulator.advance(np.full(BATCH, self._step))
        spent_ns = time.process_time_ns() - start_ns
        return spent_ns / (int(self._simulator.books().arrived.sum()) - arrived)


def main() -> None:
    """Prints medians and ratios of rounds that take turns, since a machine's speed drifts."""
    base = override(load_scenario("global_six"), {"horizon_s": 600.0})
    slow = override(base, {"demand.sessions": {}})
    same_rate = offered_rate_rps(slow) / offered_rate_rps(base) * base.demand.utilisation
    rows = {
        "none": (base, "none"),
        "telemetry": (override(base, TELEMETRY), "none"),
        "and online estimation": (override(base, FITTED), "none"),
        "and aversion, retries": (override(base, EVERYTHING), "none"),
        "none, rate as below": (override(base, {"demand.utilisation": same_rate}), None),
        "and sessions, affinity": (override(base, SESSIONS), "none, rate as below"),
    }
    benches = {name: Bench(scenario) for name, (scenario, _) in rows.items()}
    rounds = [{name: bench.request_ns() for name, bench in benches.items()} for _ in range(ROUNDS)]
    print("Mechanisms, CPU time of a request (median) and over that without any (range):")
    for name, (_, reference) in rows.items():
        ratios = sorted(each[name] / each[reference or name] for each in rounds)
        print(
            f"  {name:24s} {np.median([each[name] for each in rounds]):7,.0f} ns  "
            f"{np.median(ratios):5.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )
