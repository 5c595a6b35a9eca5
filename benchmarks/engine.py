"""Engine speed beside a usual SimPy model of the same system and workload; one core, CPU time.

Both sides get the same minute of requests, drawn beforehand, and hold the split by capacity,
renewed every control interval. The engine runs a batch of 16 `global_six` replications, SimPy the
first of them.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import numpy as np

from benchmarks import simpy_model
from dlb_gym import engine as compiled
from dlb_gym.engine import layout
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.policy import proportional
from dlb_gym.rates import nominal_rates_rps, one_way_s
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.server_design import Disaggregated
from dlb_gym.simulator import Simulator
from dlb_gym.workload import CHUNK_S, Workload

BATCH = 16
HORIZON_S = 60.0
ROUNDS = 5
INTERVALS_S = (0.1, 0.02, 1.0)


class Stopwatch:
    """CPU seconds spent in some functions, patched into their modules while it is active."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    def wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        """The function, timed."""

        def timed(*args: object) -> object:
            start_s = time.process_time()
            result = function(*args)
            self.spent_s += time.process_time() - start_s
            return result

        return timed


def _simulator(interval_s: float, horizon_s: float) -> Simulator:
    scenario = override(
        load_scenario("global_six"),
        {"control_interval_s": interval_s, "warmup_s": 0.0, "horizon_s": horizon_s},
    )
    simulator = Simulator(BATCH, len(scenario.roots), len(scenario.cells))
    for r in range(BATCH):
        simulator.reset_row(r, scenario, seed=r, episode=0)
    split = proportional(
        np.broadcast_to(nominal_rates_rps(scenario), simulator.admissible.shape).copy(),
        simulator.admissible,
    )
    simulator.set_routing(split, np.full(BATCH, layout.SAMPLE))
    return simulator


def engine_rate(interval_s: float, drawn_before: bool) -> float:
    """Requests per CPU second of one run of the engine."""
    simulator = _simulator(interval_s, HORIZON_S)
    if drawn_before:
        simulator.draw_until(HORIZON_S)
    start_s = time.process_time()
    for step in range(1, round(HORIZON_S / interval_s) + 1):
        simulator.advance(np.full(BATCH, step))
    spent_s = time.process_time() - start_s
    return float(simulator.books().arrived.sum()) / spent_s


class SimPy:
    """The SimPy model on the first of the engine's replications."""

    def __init__(self, interval_s: float) -> None:
        scenario = load_scenario("global_six")
        design = scenario.server
        if not isinstance(design, Disaggregated):
            raise TypeError(f"global_six has servers of kind {design.kind!r}; SimPy models others")
        workload = Workload(scenario, seed=0, episode=0)
        chunks = [workload.chunk(c) for c in range(round(HORIZON_S / CHUNK_S))]
        roots = range(len(scenario.roots))
        columns = [np.concatenate([chunk[i] for chunk in chunks]) for i in roots]
        root = np.repeat(np.array(roots), [len(requests) for requests in columns])
        self._table = np.concatenate(columns)
        self._requests = simpy_model.Requests(root, self._table[:, 0], *self._table[:, 1:].T)
        self._system = simpy_model.System(
            tau_s=one_way_s(scenario),
            prefill_s_per_token=np.array([cell.prefill_s_per_token for cell in scenario.cells]),
            decode_s_per_token=np.array([cell.decode_s_per_token for cell in scenario.cells]),
            live_servers=tuple(((0.0, cell.servers),) for cell in scenario.cells),
            decode_slots=design.decode_slots,
            queue_limit=design.queue_limit,
            router_delay_s=scenario.router_delay_s,
            probe_interval_s=scenario.probe_interval_s,
            control_interval_s=interval_s,
        )
        rates_rps = nominal_rates_rps(scenario)
        self._routing = np.tile(rates_rps / rates_rps.sum(), (len(columns), 1))

    def rate(self) -> float:
        """Requests per CPU second of one run."""
        start_s = time.process_time()
        simpy_model.run(self._system, self._requests, self._routing, HORIZON_S)
        return len(self._table) / (time.process_time() - start_s)


def compare(interval_s: float) -> str:
    """A line: the best of several runs that take turns, since a machine's speed drifts."""
    usual = SimPy(interval_s)
    engine_rate(interval_s, True)  # compiles
    rounds = [
        (engine_rate(interval_s, True), usual.rate(), engine_rate(interval_s, False))
        for _ in range(ROUNDS)
    ]
    drawn, simpy, drawing = (max(column) for column in zip(*rounds, strict=True))
    ratios = sorted(fast / slow for fast, slow, _ in rounds)
    return (
        f"  control interval {interval_s:4.2f} s: {drawn:9,.0f} drawn beforehand, "
        f"{drawing:9,.0f} with drawing; SimPy {simpy:6,.0f}; best / best {drawn / simpy:4.0f} x, "
        f"by round {ratios[0]:.0f} to {ratios[-1]:.0f} x, median {ratios[len(ratios) // 2]:.0f} x"
    )


def environment_overhead(num_envs: int, steps: int = 400) -> dict[str, float]:
    """Microseconds of CPU per step of the environment, by where they go."""
    env: DLBEnv | DLBVectorEnv = DLBEnv(action="logits")
    if num_envs > 1:
        env = DLBVectorEnv(num_envs, action="logits")
    env.reset(seed=0)
    assert env.action_space.shape is not None
    action = np.zeros(env.action_space.shape, dtype=np.float32)
    kernel, drawing = Stopwatch(), Stopwatch()
    advance, draw = compiled.advance, Simulator._draw
    compiled.advance = kernel.wrap(advance)  # type: ignore[assignment]
    Simulator._draw = drawing.wrap(draw)  # type: ignore[method-assign, assignment]
    try:
        env.step(action)
        kernel.spent_s = drawing.spent_s = 0.0
        start_s = time.process_time()
        for _ in range(steps):
            env.step(action)
        total_s = time.process_time() - start_s
    finally:
        compiled.advance = advance
        Simulator._draw = draw  # type: ignore[method-assign]
    scale = 1e6 / steps
    return {
        "total": total_s * scale,
        "kernel": kernel.spent_s * scale,
        "drawing": drawing.spent_s * scale,
        "other": (total_s - kernel.spent_s - drawing.spent_s) * scale,
    }


FIRST_STEP = """
import gymnasium, dlb_gym, time
env = gymnasium.make("DLB-v0")
env.reset(seed=0)
env.step(env.action_space.sample())
print(time.time())
"""


def first_step_s(cache: str) -> float:
    """Wall-clock seconds of a fresh process from its start to its first step."""
    start_s = time.time()
    finished = subprocess.run(
        [sys.executable, "-c", FIRST_STEP],
        check=True,
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )
    return float(finished.stdout) - start_s


def memory_growth_mib(hours: float) -> tuple[float, float]:
    """Peak resident memory after one simulated hour, and what the hours after it add, MiB."""
    scenario = override(load_scenario("global_six"), {"horizon_s": hours * 3600.0})
    simulator = Simulator(1, len(scenario.roots), len(scenario.cells))
    simulator.reset_row(0, scenario, seed=0, episode=0)
    split = proportional(
        np.broadcast_to(nominal_rates_rps(scenario), simulator.admissible.shape).copy(),
        simulator.admissible,
    )
    simulator.set_routing(split, np.full(1, layout.SAMPLE))
    per_hour = scenario.intervals(3600.0)
    peaks = []
    for hour in range(1, round(hours) + 1):
        for minute in range(60):
            simulator.advance(np.full(1, (hour - 1) * per_hour + (minute + 1) * per_hour // 60))
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0)
    return peaks[0], peaks[-1] - peaks[0]


def main() -> None:
    """Prints the table."""
    print("engine: requests per CPU second, one core, batch 16, global_six")
    for interval_s in INTERVALS_S:
        print(compare(interval_s))
    print("environment: microseconds per step at 0.1 s control intervals (CPU)")
    for num_envs in (1, 8, 64):
        spent = environment_overhead(num_envs)
        print(
            f"  {num_envs:3d} rows: {spent['total']:7.0f} in all, kernel {spent['kernel']:6.0f}, "
            f"drawing {spent['drawing']:5.0f}, other {spent['other']:5.0f} "
            f"= {spent['other'] / num_envs:6.1f} a row"
        )
    with tempfile.TemporaryDirectory() as cache:
        cold_s = first_step_s(cache)
        warm_s = sorted(first_step_s(cache) for _ in range(ROUNDS))
    print(
        f"first step of a fresh process: {cold_s:.1f} s cold cache, warm "
        f"median {warm_s[ROUNDS // 2]:.1f} s ({warm_s[0]:.1f} to {warm_s[-1]:.1f} s)"
    )
    first_mib, growth_mib = memory_growth_mib(24)
    print(f"memory: {first_mib:.0f} MiB after 1 simulated hour, {growth_mib:+.1f} MiB in 23 more")
