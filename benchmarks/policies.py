"""What it costs to decide: process time of `Policy.act` for 64 rows of up to 10 cells.

Every baseline sees the same observations, of appendix_b under the split by capacity, and decides in
turn with the others, so that no one has the machine to itself. The best of some rounds counts: it
is what the code costs, and not what else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

import baselines
from baselines.registry import BASELINES
from dlb_gym.episodes import FamilyScenarios
from dlb_gym.policy import Policy, proportional
from dlb_gym.task import Task

ROWS, OBSERVATIONS, ROUNDS = 64, 16, 12
FAST_US, OTHERS_US = 200.0, 1000.0
FAST = ("static:", "discrete:", "queues:", "tables:")
"""Modules of static and discrete policies."""
SOLVING = ("mnlb:", "optimum:")
"""Those that solve a program now and then, without a limit."""


def act_us(
    names: Sequence[str], rows: int = ROWS, observations: int = OBSERVATIONS, rounds: int = ROUNDS
) -> dict[str, float]:
    """Microseconds of process time that each policy takes to decide for all rows."""
    task = Task(FamilyScenarios("appendix_b", {"horizon_s": 60.0}, rows), rows)
    seen = [task.reset(seeds=list(range(rows)))]
    split = proportional(np.ones(task.admissible.shape), task.admissible)
    while len(seen) < observations:
        seen.append(task.step_routing(split).observation)
    policies = {name: baselines.make(name) for name in names}
    for policy in policies.values():
        policy.reset(task.spec, rows, 0)
        policy.reveal([each for each in task.scenarios if each is not None])
    best = dict.fromkeys(names, float("inf"))
    for _ in range(rounds):
        for name, policy in policies.items():
            best[name] = min(best[name], _seconds(policy, seen) / len(seen))
    return {name: 1e6 * seconds for name, seconds in best.items()}


def _seconds(policy: Policy, seen: Sequence[NDArray[np.float32]]) -> float:
    start_s = time.process_time()
    for observation in seen:
        policy.act(observation)
    return time.process_time() - start_s


def limit_us(name: str) -> float:
    """The most that a policy may take."""
    made_by = BASELINES[name].policy
    if any(module in made_by for module in SOLVING):
        return float("inf")
    return FAST_US if any(module in made_by for module in FAST) else OTHERS_US


def verdict(name: str, found_us: float) -> str:
    """Whether a policy keeps its limit."""
    limit = limit_us(name)
    if limit == float("inf"):
        return "no limit: solves a program now and then"
    return f"limit {limit:,.0f} us: {'kept' if found_us <= limit else 'MISSED'}"


def main() -> None:
    """Prints a line a policy."""
    print(f"policies: us to decide for {ROWS} rows of up to 10 cells, best of {ROUNDS} rounds")
    for name, found_us in sorted(act_us(baselines.names()).items(), key=lambda pair: pair[1]):
        print(f"  {name:28s}{found_us:8,.0f}   {verdict(name, found_us)}")
