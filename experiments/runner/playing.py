"""Policies played on scenarios: whole evaluations as measurements, and episodes to look into."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baselines import registry
from dlb_gym.engine import layout
from dlb_gym.episodes import FixedScenarios
from dlb_gym.evaluation import rollout
from dlb_gym.runs import FIRST_HELD_OUT_SEED, MAX_BATCH, Run, require_playable, seeded
from dlb_gym.scenario import Scenario
from dlb_gym.simulator import Simulator
from dlb_gym.task import Task
from dlb_gym.views import View
from experiments.runner.measurement import Measurement, Row

Routing = NDArray[np.float64]


def evaluated(
    policy: str,
    scenario: Scenario,
    seeds: int,
    keywords: Mapping[str, Any] | None = None,
    **columns: Any,
) -> Measurement:
    """A policy judged on a scenario: a row for every seed, keys as in `evaluation.Result.record`.

    Args:
        policy: Name of a baseline, or `module:attribute` of a policy.
        scenario: With the `settle_s` that the policy needs.
        seeds: Number of seeds, 1 to 64, from the first held-out one on; they share a batch.
        keywords: Arguments of a `module:attribute`.
        **columns: See `Measurement`.

    Raises:
        ValueError: The policy is unknown, or the number of seeds is out of range.
    """
    if not 1 <= seeds <= MAX_BATCH:
        raise ValueError(f"seeds = {seeds} must be 1 to {MAX_BATCH}")
    run = _run(policy, scenario, FIRST_HELD_OUT_SEED, keywords)
    arguments = {"policy": run.policy, "keywords": dict(run.keywords), "seeds": seeds}
    return Measurement(f"{__name__}:records", scenario, arguments, columns)


def records(scenario: Scenario, policy: str, keywords: Mapping[str, Any], seeds: int) -> list[Row]:
    """Records of a policy's runs, one for every seed."""
    runs = seeded(Run(policy, keywords, scenario=scenario), seeds)
    require_playable(runs)
    return [result.record for result in rollout(runs)]


def played(
    policy: str,
    scenario: Scenario,
    seeds: Sequence[int],
    each: Callable[[Task], None] | None = None,
    *,
    keywords: Mapping[str, Any] | None = None,
    log: bool = False,
) -> Task:
    """Plays an episode, settling included, to its horizon, for a measurement to look into.

    Args:
        policy: As in `evaluated`.
        scenario: The same for every row.
        seeds: One for every row.
        each: Called after every control interval.
        keywords: As in `evaluated`.
        log: Keep `task.simulator.request_log(row)`.

    Returns:
        The task, not drained: `task.drain()` waits for the requests under way.

    Raises:
        ValueError: The policy is unknown or cannot be made.
    """
    source = FixedScenarios([scenario])
    player = _run(policy, scenario, seeds[0], keywords).make_policy()
    task = Task(source, len(seeds), log=log)
    observation = task.reset(seeds=seeds)
    player.reset(task.spec, len(seeds), seeds[0])
    ended = False
    while not ended:
        step = task.step(player.act(observation))
        if each is not None:
            each(task)
        observation, ended = step.observation, bool(step.truncated.all())
    return task


def simulated(
    scenario: Scenario,
    seeds: Sequence[int],
    routing: Routing,
    each: Callable[[Simulator], None],
    decide: Callable[[View, Routing], Routing] | None = None,
) -> Simulator:
    """Moves systems from empty ones at clock 0 to the horizon, without the task around them.

    For comparisons with theory: nothing warms up under another routing, and what roots see is
    exact, where an observation ends (at 1,000 requests a server). Requests are dispatched at
    random.

    Args:
        scenario: The same for every row.
        seeds: One for every row.
        routing: At first, (roots, cells).
        each: Called after every control interval.
        decide: The next routing (n, roots, cells) from what roots see and the last one; None: it
            stays.
    """
    rows = len(seeds)
    simulator = Simulator(rows, len(scenario.roots), len(scenario.cells))
    for r, seed in enumerate(seeds):
        simulator.reset_row(r, scenario, seed, 0)
    routing = np.broadcast_to(routing, simulator.admissible.shape)
    spans_s = scenario.warmup_s, scenario.settle_s, scenario.horizon_s
    for step in range(sum(map(scenario.intervals, spans_s))):
        if decide is not None:
            routing = decide(simulator.view(), routing)
        simulator.set_routing(routing, np.full(rows, layout.SAMPLE))
        simulator.advance(np.full(rows, step + 1))
        each(simulator)
    return simulator


def _run(policy: str, scenario: Scenario, seed: int, keywords: Mapping[str, Any] | None) -> Run:
    if ":" not in policy:
        if keywords:
            raise ValueError(
                f"policy = {policy!r} is a baseline's name, which has its keywords; "
                "give module:attribute with other ones"
            )
        policy, keywords = registry.entry(policy)
    return Run(policy, keywords or {}, scenario=scenario, seed=seed)
