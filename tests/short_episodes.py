"""Short episodes of shipped scenarios, environments in them, and actions drawn from a seed."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym.scenario_source import load_scenario

STEPS = 5
ROUND_TRIP_S = 0.1


def short(scenario: str = "global_six", steps: int = STEPS, warmup: int = 10) -> dict[str, Any]:
    """Changes that leave a scenario this many control intervals, and this many of warm-up."""
    interval_s = load_scenario(scenario).control_interval_s
    return {"horizon_s": steps * interval_s, "warmup_s": warmup * interval_s}


def ring(cells: int, **changes: Any) -> dict[str, Any]:
    """A scenario of equal cells of 4 servers, 32 requests/s each, 0.1 s from one another."""
    names = [f"cell-{j}" for j in range(cells)]
    document = {
        "name": f"ring-{cells}",
        "cells": [{"name": n, "region": "us-east4", "servers": 4} for n in names],
        "roots": [{"name": n, "region": "us-east4", "demand": 1.0} for n in names],
        "network": {"rtt_s": [[0.0 if i == j else ROUND_TRIP_S for j in names] for i in names]},
        "horizon_s": 0.5,
        "warmup_s": 1.0,
    }
    return document | changes


def drawn_actions(space: gym.Space[Any], count: int, seed: int = 0) -> NDArray[np.float32]:
    """Actions uniform on a Box, the same for the same seed."""
    assert isinstance(space, gym.spaces.Box)
    rng = np.random.default_rng(seed)
    return rng.uniform(space.low, space.high, (count, *space.shape)).astype(np.float32)


def play(
    env: gym.Env[Any, Any], actions: NDArray[np.float32], seed: int | None = None
) -> tuple[list[NDArray[np.float32]], list[float], list[bool], list[dict[str, Any]]]:
    """One episode: observations (one more than the rest), rewards, truncations, infos."""
    first, _ = env.reset(seed=seed)
    observations, rewards, truncations, infos = [first], [], [], []
    for action in actions:
        observation, reward, _, truncated, info = env.step(action)
        observations.append(observation)
        rewards.append(float(reward))
        truncations.append(truncated)
        infos.append(info)
        if truncated:
            break
    return observations, rewards, truncations, infos
