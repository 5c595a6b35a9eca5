"""How fast the fluid model runs: 256 six-cell networks over 600 s at steps of 10 ms.

They differ in load and distances. Flow's gradient routing is taken in steps, one at every step of
the model, and in its limit. Time is measured over a part of the run and scaled up: every step does
the same. Each half of the batch has a process, as the tensors are too small for threads.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time

import numpy as np
import torch

from dlb_gym.fluid import Flow, FluidModel, FluidSystem
from dlb_gym.scenario_source import load_scenario, override

NETWORKS, SPAN_S, STEP_S = 256, 600.0, 0.01
MEASURED_STEPS = 500
ROUNDS = 3
PROCESSES = 2
LIMIT_S = 60.0
DYNAMICS = {"steps": Flow("gradient", 0.02, STEP_S), "limit": Flow("gradient", 0.02)}


def main() -> int:
    """Prints the times; 1 if one exceeds the limit."""
    total_s = {name: span_time_s(name) for name in DYNAMICS}
    print(f"fluid: {NETWORKS} networks of six cells, {SPAN_S:g} s at {STEP_S:g} s a step")
    for name, each_s in total_s.items():
        kept = "kept" if each_s <= LIMIT_S else "MISSED"
        print(f"  flow-gradient in {name:6s} {each_s:6.1f} s   limit {LIMIT_S:g} s: {kept}")
    return int(max(total_s.values()) > LIMIT_S)


def span_time_s(name: str) -> float:
    """Seconds that the whole span would take, both processes side by side."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(PROCESSES) as pool:
        times_s = pool.starmap(_time_s, [(name, part) for part in range(PROCESSES)], chunksize=1)
    return max(times_s) * SPAN_S / STEP_S / MEASURED_STEPS


def _time_s(name: str, part: int) -> float:
    """Of the measured steps of a part of the batch: the median of some rounds, after one."""
    torch.set_num_threads(1)
    rng = np.random.default_rng(part)
    base = load_scenario("global_six")
    scenarios = [
        override(
            base,
            {
                "network.mean_rtt_s": float(rng.uniform(0.02, 0.2)),
                "demand.utilisation": float(rng.uniform(0.4, 0.9)),
                "warmup_s": 0.0,
            },
        )
        for _ in range(NETWORKS // PROCESSES)
    ]
    model = FluidModel(FluidSystem.from_scenarios(scenarios), STEP_S)
    times_s = []
    for _ in range(ROUNDS + 1):
        start_s = time.perf_counter()
        model.run(DYNAMICS[name], MEASURED_STEPS * STEP_S)
        times_s.append(time.perf_counter() - start_s)
    return statistics.median(times_s[1:])
