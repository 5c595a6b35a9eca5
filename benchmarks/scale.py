"""Cost of a request against the size of the fleet: cells, servers, rate of requests.

Fleets of equal servers, spread over the 20 cloud regions, under the split by capacity: one row,
control interval 0.1 s. CPU time is counted once requests come and go at the same rate, with the
requests drawn beforehand. The reference is the cheapest: six cells with so many requests that those
bear the costs of reports and calls.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from typing import NamedTuple

import numpy as np

from dlb_gym.network import REGIONS
from dlb_gym.policy import proportional
from dlb_gym.rates import nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.simulator import Simulator

WARM_S = 3.0
MEASURED_REQUESTS, MEASURED_STEPS = 200_000, 10
"""At least so many of both are counted."""
ROUNDS = 3
LIMIT = 3.0
"""Of a request's cost in the last fleet over that in the first."""


class Fleet(NamedTuple):
    """`speed` multiplies the token rates of the first cell of `global_six`."""

    cells: int
    servers_per_cell: int
    speed: float
    utilisation: float = 0.7


FLEETS = (
    Fleet(6, 9, 18.0),
    Fleet(6, 9, 18.0, utilisation=3.0),
    Fleet(6, 9, 1.0),
    Fleet(6, 1_667, 1.0),
    Fleet(20, 50, 1.0),
    Fleet(60, 50, 1.0),
    Fleet(200, 50, 1.0),
    Fleet(200, 50, 18.0),
)


def fleet_scenario(fleet: Fleet) -> Scenario:
    """A scenario of equal cells, each with a root of its own."""
    base = load_scenario("global_six")
    regions = [list(REGIONS.values())[k % len(REGIONS)] for k in range(fleet.cells)]
    model = base.cells[0]
    cells = [
        {
            "name": f"cell-{k}",
            "region": region.name,
            "servers": fleet.servers_per_cell,
            "prefill_s_per_token": model.prefill_s_per_token / fleet.speed,
            "decode_s_per_token": model.decode_s_per_token / fleet.speed,
        }
        for k, region in enumerate(regions)
    ]
    roots = [{"name": c["name"], "region": c["region"], "demand": 1.0} for c in cells]
    changes = {"cells": cells, "roots": roots, "demand.utilisation": fleet.utilisation}
    return override(base, {**changes, "horizon_s": 1_000.0})


def request_ns(scenario: Scenario) -> tuple[float, int]:
    """CPU time of a request, ns, and how many were counted."""
    simulator = Simulator(1, len(scenario.roots), len(scenario.cells))
    simulator.reset_row(0, scenario, 0, 0)
    capacity = np.tile(nominal_rates_rps(scenario), (len(scenario.roots), 1))
    split = proportional(capacity[None], simulator.admissible)
    simulator.set_routing(split, np.zeros(1, dtype=np.int64))
    interval_s = scenario.control_interval_s
    first = round(WARM_S / interval_s)
    steps = math.ceil(MEASURED_REQUESTS / (offered_rate_rps(scenario) * interval_s))
    last = first + max(steps, MEASURED_STEPS)
    simulator.draw_until(last * interval_s)
    simulator.advance(np.array([first]))
    arrived = int(simulator.books().arrived[0])
    start_ns = time.process_time_ns()
    for step in range(first, last):
        simulator.advance(np.array([step + 1]))
    spent_ns = time.process_time_ns() - start_ns
    counted = int(simulator.books().arrived[0]) - arrived
    return spent_ns / counted, counted


def verdict(ratios: list[float]) -> tuple[str, bool]:
    """A line on the median of the rounds' ratios, and whether it is within the limit."""
    ratio = statistics.median(ratios)
    kept = ratio <= LIMIT
    return (
        f"  the last over the first, median of {len(ratios)} rounds that take turns: "
        f"{ratio:.2f} x ({min(ratios):.2f} to {max(ratios):.2f}); "
        f"limit {LIMIT:.2f} x: {'kept' if kept else 'MISSED'}"
    ), kept


def main() -> int:
    """Prints a line a fleet, its cost over the first's, the peak memory, and the verdict.

    Returns:
        Exit status: 1 if the last fleet costs more than the limit.
    """
    print("Scale, CPU time of a request against the fleet (one row):")
    six_ns = 0.0
    for fleet in FLEETS:
        scenario = fleet_scenario(fleet)
        cost_ns, counted = request_ns(scenario)
        six_ns = six_ns or cost_ns
        print(
            f"  {fleet.cells:4d} cells, {fleet.cells * fleet.servers_per_cell:6,d} servers, "
            f"{offered_rate_rps(scenario):9,.0f} requests/s, load {fleet.utilisation:4.0%}: "
            f"{cost_ns:6,.0f} ns, "
            f"{cost_ns / six_ns:5.2f} x ({counted:,} requests)",
            flush=True,
        )
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak memory {peak_mib:,.0f} MiB", flush=True)
    first, last = fleet_scenario(FLEETS[0]), fleet_scenario(FLEETS[-1])
    line, kept = verdict([request_ns(last)[0] / request_ns(first)[0] for _ in range(ROUNDS)])
    print(line)
    return 0 if kept else 1
