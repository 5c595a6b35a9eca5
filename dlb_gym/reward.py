"""Rewards: what an interval was worth, from the truth, as named terms that add up.

The default, for an interval of length h, with Z the zero-load time and rate the mean offered rate,
both constants of the scenario:

    -[ (mean requests in system) / (rate Z) + error_penalty * errors / (rate h) ]

By Little's law the mean of the first term is the mean latency in zero-load times. Errors are
charged when they happen, at the leaf.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.views import Truth

FloatArray = NDArray[np.float64]
Reward = Callable[["RewardFacts", Truth], dict[str, FloatArray]]


class RewardFacts(NamedTuple):
    """Constants of each row's episode that rewards refer to, (n,) each."""

    rate_rps: FloatArray
    zero_load_time_s: FloatArray
    control_interval_s: FloatArray
    error_penalty: FloatArray


def latency_reward(facts: RewardFacts, truth: Truth) -> dict[str, FloatArray]:
    """The default reward's terms: see the module's docstring."""
    interval_s = facts.control_interval_s
    in_system = truth.in_system_s / interval_s
    errors_rps = truth.rejected / interval_s
    return {
        "in_system": -in_system / (facts.rate_rps * facts.zero_load_time_s),
        "errors": -facts.error_penalty * errors_rps / facts.rate_rps,
    }


REWARDS: dict[str, Reward] = {"latency": latency_reward}


def resolve_reward(name: str) -> Reward:
    """A reward by name, or by "module:function".

    Raises:
        ValueError: There is no such reward.
    """
    if name in REWARDS:
        return REWARDS[name]
    module, _, function = name.partition(":")
    if not function:
        raise ValueError(
            f"reward = {name!r} is unknown; choose one of {', '.join(REWARDS)} or name a function "
            'as "module:function"'
        )
    try:
        reward: Reward = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"reward = {name!r} cannot be imported: {error}") from error
    return reward
