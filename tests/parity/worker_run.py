"""Bytes that worker processes give, by the way in which they are started: prints them as JSON.

`python -m tests.parity.worker_run` plays environments itself, so that a forked worker inherits
kernels that have run, and leaves others to workers: once from the start, once as a pickle in
mid-episode.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import pickle
import warnings
from typing import Any

import numpy as np

from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.pettingzoo import parallel_env
from tests.mechanisms import scenario_with
from tests.short_episodes import short

STEPS, HANDED_OVER, SEED = 8, 3, 5
METHODS = ("spawn", "fork", "forkserver")


def environments() -> list[Any]:
    """A face each; two of three with mechanisms."""
    everything = scenario_with("everything", horizon_s=0.6, warmup_s=0.3, control_interval_s=0.1)
    return [
        DLBEnv("burst", changes=short("burst")),
        DLBVectorEnv(2, everything, autoreset_mode="SameStep"),
        parallel_env(everything),
    ]


def step(env: Any, number: int) -> bytes:
    """Step `number` under an action of its own; what ended begins anew."""
    rng = np.random.default_rng(number)
    if isinstance(env, DLBVectorEnv):
        observation, reward, *_ = env.step(rng.random(env.action_space.shape))
        return bytes(observation.tobytes() + reward.tobytes())
    if isinstance(env, DLBEnv):
        observation, reward, _, ended, _ = env.step(rng.random(env.action_space.shape))
        shown = observation.tobytes() + repr(reward).encode()
    else:
        given = {agent: rng.random(env.action_space(agent).shape) for agent in env.agents}
        rewards = env.step(given)[1]
        shown, ended = env.state().tobytes() + repr(rewards).encode(), not env.agents
    if ended:
        env.reset()
    return bytes(shown)


def played(index: int, steps: int = STEPS) -> tuple[Any, bytes]:
    """Environment number `index` after some steps, and what it showed."""
    env = environments()[index]
    env.reset(seed=SEED)
    return env, b"".join(step(env, number) for number in range(steps))


def from_the_start(index: int) -> bytes:
    """All of its steps."""
    return played(index)[1]


def from_the_middle(pickled: bytes) -> bytes:
    """The steps that are left."""
    env = pickle.loads(pickled)
    return b"".join(step(env, number) for number in range(HANDED_OVER, STEPS))


def main() -> None:
    """One digest a way and environment; two of each, that of a whole run and of a handed-over."""
    # From Python 3.12 on it warns of forks beside any thread, numpy's idle ones included.
    warnings.filterwarnings("ignore", ".* is multi-threaded", DeprecationWarning)
    numbers = range(len(environments()))
    begun = [played(index, HANDED_OVER) for index in numbers]
    pickles = [pickle.dumps(env) for env, _ in begun]
    shown = {"alone": [[from_the_start(index)] * 2 for index in numbers]}
    for method in METHODS:
        with multiprocessing.get_context(method).Pool(1) as pool:
            whole = pool.map(from_the_start, numbers)
            rest = pool.map(from_the_middle, pickles)
        shown[method] = [
            [all_of_it, first + left]
            for all_of_it, (_, first), left in zip(whole, begun, rest, strict=True)
        ]
    digests = {
        way: [[hashlib.sha256(each).hexdigest() for each in pair] for pair in pairs]
        for way, pairs in shown.items()
    }
    print(json.dumps(digests))  # noqa: T201 - read by the parent process


if __name__ == "__main__":
    main()
