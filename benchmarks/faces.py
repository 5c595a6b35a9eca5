"""Every face beside the others: environment steps per second of wall-clock time, in one table.

The native batches move n rows in one kernel call of one thread. Gymnasium's and SB3's own batches
hold n single environments, in this process or in n others, which share the machine's cores.
Workers are forked: they start with this process's kernels and share its memory.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.sb3 import DLBVecEnv

SIZES = (1, 8, 64)
ROUNDS = 3
ROUND_S = 0.5
KEYWORDS: dict[str, Any] = {"scenario": "global_six", "action": "logits"}


def _single() -> DLBEnv:
    return DLBEnv(**KEYWORDS)


FACES: dict[str, Callable[[int], Any]] = {
    "native vector": lambda n: DLBVectorEnv(n, **KEYWORDS),
    "native SB3": lambda n: DLBVecEnv(n, **KEYWORDS),
    "Gymnasium sync": lambda n: SyncVectorEnv([_single] * n),
    "Gymnasium async": lambda n: AsyncVectorEnv([_single] * n, context="fork"),
    "SB3 dummy": lambda n: DummyVecEnv([_single] * n),
    "SB3 subproc": lambda n: SubprocVecEnv([_single] * n, start_method="fork"),
}


def steps_per_s(face: str, rows: int, rounds: int = ROUNDS, round_s: float = ROUND_S) -> float:
    """Environment steps (rows x calls) a second: the median of some rounds, after one call."""
    env = FACES[face](rows)
    try:
        env.reset()
        actions = np.zeros((rows, *env.action_space.shape[-2:]), dtype=np.float32)
        env.step(actions)
        return statistics.median(_rate(env, actions, round_s) for _ in range(rounds)) * rows
    finally:
        env.close()


def _rate(env: Any, actions: Any, round_s: float) -> float:
    """Calls of `step` a second."""
    calls, start_s = 0, time.perf_counter()
    while (spent_s := time.perf_counter() - start_s) < round_s or calls == 0:
        env.step(actions)
        calls += 1
    return calls / spent_s


def table(sizes: Sequence[int] = SIZES, rounds: int = ROUNDS, round_s: float = ROUND_S) -> str:
    """One line a face, one column a size, under the cores and threads that they had."""
    torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    lines = [
        f"faces: environment steps/s (wall clock, median of {rounds}) on global_six, {cores} "
        "cores, one thread a process, workers forked",
        f"  {'':16s}" + "".join(f"{f'n = {rows}':>12s}" for rows in sizes),
    ]
    for face in FACES:
        rates = [steps_per_s(face, rows, rounds, round_s) for rows in sizes]
        lines.append(f"  {face:16s}" + "".join(f"{rate:12,.0f}" for rate in rates))
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    print(table())
