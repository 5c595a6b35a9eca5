"""Copies of a batch that meet the same requests, so that luck cancels from the reward.

Arrivals move the requests in system far more than a routing decision does. With K copies of the
same episodes under the same policy, each with action noise of its own,

    r'_k = r_k - mean over copies of r

keeps what the noise did and drops what the arrivals did. The other copies' rewards do not depend on
copy k's actions, so the policy gradient keeps its direction; the own share in the mean only scales
it by 1 - 1/K.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from dlb_gym.sb3 import DLBVecEnv

Array = NDArray[Any]


class SharedRequests(VecEnv):
    """K equal batches in one; row r of copy k is row k * (rows of a copy) + r.

    Args:
        make: Makes a batch; called once for every copy, it must return the same one.
        copies: K >= 1; one copy keeps its reward.
    """

    def __init__(self, make: Callable[[], DLBVecEnv], copies: int) -> None:
        self._copies = [make() for _ in range(copies)]
        first = self._copies[0]
        self.task_spec = first.task_spec
        self.render_mode: str | None = None
        self.mean_reward = 0.0
        super().__init__(first.num_envs * copies, first.observation_space, first.action_space)

    def reset(self) -> Array:
        """Starts an episode in every row."""
        observations = np.concatenate([copy.reset() for copy in self._copies])
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return observations

    def step_async(self, actions: Array) -> None:
        """Takes the actions of all rows."""
        for copy, part in zip(self._copies, np.split(actions, len(self._copies)), strict=True):
            copy.step_async(part)

    def step_wait(self) -> tuple[Array, Array, Array, list[dict[str, Any]]]:
        """Moves every row; rewards are those beyond the copies' mean, if there are several."""
        steps = [copy.step_wait() for copy in self._copies]
        rewards = np.stack([step[1] for step in steps])
        self.mean_reward = float(rewards.mean())
        if len(steps) > 1:
            rewards = rewards - rewards.mean(axis=0)
        return (
            np.concatenate([step[0] for step in steps]),
            rewards.reshape(-1),
            np.concatenate([step[2] for step in steps]),
            [info for step in steps for info in step[3]],
        )

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the rows."""
        values = [value for copy in self._copies for value in copy.get_attr(attr_name)]
        return [values[index] for index in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused, as by the batch itself.

        Raises:
            AttributeError: Always.
        """
        self._copies[0].set_attr(attr_name, value, indices)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method, for every row asked for, of the copy that holds it.

        Raises:
            IndexError: There is no such row.
        """
        places = [(copy, row) for copy in self._copies for row in range(copy.num_envs)]
        answers: list[Any] = []
        for copy, row in (places[index] for index in self._get_indices(indices)):
            answers += copy.env_method(method_name, *method_args, indices=row, **method_kwargs)
        return answers

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """True for Monitor, as of the batch itself."""
        wrapped = self._copies[0].env_is_wrapped(wrapper_class)[0]
        return [wrapped for _ in self._get_indices(indices)]
