"""How fast the fluid model runs: 256 six-cell networks over 600 s at steps of 10 ms.

They differ in load and distances. Flow's gradient routing decides every 0.1 s, every step of the
model, or moves in its limit. Each half of the batch has a process, as the tensors are too small for
threads, and runs the whole span, making a record every second.
"""

from __future__ import annotations

import multiprocessing
import resource
import time

import numpy as np
import torch

from dlb_gym.fluid import Flow, FluidModel, FluidSystem
from dlb_gym.scenario_source import load_scenario, override

NETWORKS, SPAN_S, STEP_S = 256, 600.0, 0.01
PROCESSES = 2
LIMIT_S = 60.0
DYNAMICS = {
    "every 0.1 s": Flow("gradient", 0.02, 0.1),
    "every step": Flow("gradient", 0.02, STEP_S),
    "in the limit": Flow("gradient", 0.02),
}


def main() -> int:
    """Prints the times; 1 if one exceeds the limit."""
    print(f"fluid: {NETWORKS} networks of six cells, {SPAN_S:g} s at {STEP_S:g} s a step")
    slowest_s = 0.0
    for name in DYNAMICS:
        took_s, memory_gib = run(name, SPAN_S)
        kept = "kept" if took_s <= LIMIT_S else "MISSED"
        print(
            f"  flow-gradient {name:12s} {took_s:6.1f} s, {memory_gib:.2f} GiB a process; "
            f"limit {LIMIT_S:g} s: {kept}"
        )
        slowest_s = max(slowest_s, took_s)
    return int(slowest_s > LIMIT_S)


def run(name: str, span_s: float) -> tuple[float, float]:
    """Seconds that a span takes, both processes side by side; GiB of the larger one."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        parts = [(name, span_s, part) for part in range(PROCESSES)]
        times_s, memories_gib = zip(*pool.starmap(_part, parts, chunksize=1), strict=True)
    return max(times_s), max(memories_gib)


def _part(name: str, span_s: float, part: int) -> tuple[float, float]:
    """Seconds and GiB of a part of the batch."""
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
    model.run(DYNAMICS[name], 1.0)  # warms up
    start_s = time.perf_counter()
    model.run(DYNAMICS[name], span_s, record_every=100)
    took_s = time.perf_counter() - start_s
    return took_s, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
