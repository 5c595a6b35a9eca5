"""Stable-Baselines3's face of the task: a `VecEnv` around the native batch.

Rows that end start their next episode in the same step, as SB3 wants it: `infos` of that step hold
`terminal_observation`, `TimeLimit.truncated` (the horizon is no end of the process, so values are
bootstrapped) and `episode` (return, length, wall-clock seconds).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym.encoded_task import EncodedTask, Keywords
from dlb_gym.policy import TaskSpec
from dlb_gym.scenario_source import ScenarioSource

try:
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import VecEnv
except ModuleNotFoundError as error:
    if error.name != "stable_baselines3":
        raise
    raise ImportError(
        "dlb_gym.sb3 needs Stable-Baselines3: pip install 'dlb-gym[train]'"
    ) from error

Array = NDArray[Any]


class DLBVecEnv(VecEnv):
    """A batch of DLB-v0 replications for SB3.

    Args:
        num_envs: Rows, at least 1.
        seed: Row r of seed s is the single environment of seed s + r.
        scenario: See `dlb_gym.envs.DLBVectorEnv`.
        keywords: See `dlb_gym.encoded_task.Keywords`; but actions are "logits" if left out.

    Raises:
        ValueError: num_envs is below 1, or a keyword is not valid.
    """

    def __init__(
        self,
        num_envs: int,
        seed: int = 0,
        scenario: ScenarioSource | Sequence[ScenarioSource] | None = None,
        **keywords: Unpack[Keywords],
    ) -> None:
        keywords.setdefault("action", "logits")
        self._task = EncodedTask(scenario, num_envs, **keywords)
        self.task_spec: TaskSpec = self._task.spec
        self.render_mode: str | None = None
        super().__init__(num_envs, self.task_spec.observation.space, self._task.action_space)
        self._next_seed: int | None = seed
        self._action: Array = np.zeros(0)
        self._returns = np.zeros(num_envs)
        self._lengths = np.zeros(num_envs, dtype=np.int64)
        self._started_at = time.perf_counter()

    def seed(self, seed: int | None = None) -> Sequence[int | None]:
        """Seeds of the rows at the next reset."""
        self._next_seed = seed
        return [None if seed is None else seed + r for r in range(self.num_envs)]

    def reset(self) -> NDArray[np.float32]:
        """Starts an episode in every row."""
        seeds = None
        if self._next_seed is not None:
            seeds = [self._next_seed + r for r in range(self.num_envs)]
        self._next_seed = None
        self._returns[:] = 0.0
        self._lengths[:] = 0
        self._started_at = time.perf_counter()
        observation = self._task.reset(seeds=seeds)
        self.reset_infos = [self._task.start_info(r) for r in range(self.num_envs)]
        return observation

    def step_async(self, actions: Array) -> None:
        """Takes the actions (n, roots, cells) of the next `step_wait`."""
        self._action = np.asarray(actions)

    def step_wait(
        self,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """Moves every row by one interval; rows that end start their next episode.

        Raises:
            ValueError: An action has a wrong shape or holds NaN or infinity.
        """
        step = self._task.step_actions(self._action)
        self._returns += step.reward
        self._lengths += 1
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        observation = step.observation
        ended = step.truncated
        if ended.any():
            for r in np.flatnonzero(ended):
                infos[r] = self._ending(int(r), observation[r])
            observation = self._task.reset(ended)
            for r in np.flatnonzero(ended):
                self.reset_infos[r] = self._task.start_info(int(r))
            self._returns[ended] = 0.0
            self._lengths[ended] = 0
        return observation, step.reward.astype(np.float32), ended, infos

    def _ending(self, r: int, observation: NDArray[np.float32]) -> dict[str, Any]:
        return {
            "terminal_observation": observation,
            "TimeLimit.truncated": True,
            "episode": {
                "r": float(self._returns[r]),
                "l": int(self._lengths[r]),
                "t": time.perf_counter() - self._started_at,
            },
            "metrics": self._task.summary(r),
        }

    def close(self) -> None:
        """Nothing is held open."""

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """An attribute of the batch, once for every row asked for."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Refused: rows share one batch.

        Raises:
            AttributeError: Always.
        """
        raise AttributeError(f"{attr_name!r} cannot be set: the rows of DLBVecEnv share one task")

    def env_method(
        self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method of the batch, once for every row asked for."""
        method = getattr(self, method_name)
        return [method(*method_args, **method_kwargs) for _ in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """True for Monitor, whose episode records this face writes itself."""
        return [issubclass(wrapper_class, Monitor) for _ in self._get_indices(indices)]
