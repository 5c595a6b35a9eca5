"""Gymnasium faces of the task: one replication, or a native batch. They only rename."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from dlb_gym.actions import numbers
from dlb_gym.encoded_task import EncodedTask, Keywords
from dlb_gym.policy import TaskSpec
from dlb_gym.scenario_source import ScenarioSource
from dlb_gym.task import Step

Array = NDArray[Any]


class DLBEnv(gym.Env[NDArray[np.float32], NDArray[np.float32]]):
    """Routing of requests between the cells of a geo-distributed serving fleet.

    ## Description
    Every cell has a root router, where requests arrive, and inference servers. Root i sends each of
    its requests to a cell j drawn from its routing vector; the request travels tau_ij, is served,
    and its answer travels back. A root knows another cell only by probes that are tau_ij old.
    docs/concepts.md describes the system, docs/environment.md this page's subjects in full.

    ## Action Space
    `Box` of shape (roots, cells), one row a root, held for `control_interval_s`:

    - `action="weights"`: [0, 1]; a row, masked and normalised, is the routing vector.
    - `action="logits"`: [-1, 1]; masked softmax of 8 x the row. The one to train with.

    NaN, infinity or a wrong shape is a ValueError; other values count as the nearest bound.

    ## Observation Space
    `Box` of shape (roots * cells * fields,), float32. `env.unwrapped.task_spec.observation.decode`
    gives named arrays (roots, cells); the fields are listed in docs/environment.md and
    `dlb_gym.observation.FIELDS`.

    ## Rewards
    Minus the mean number of requests in the system over the interval, divided by the mean arrival
    rate, in zero-load times: its mean is minus the mean latency. Each error costs `error_penalty`
    of the scenario. `info["reward_terms"]` holds the parts. Others are chosen by name: "ttft",
    "tail(0.95)", "goodput(2.5)"; see `dlb_gym.reward`.

    ## Starting State
    The fleet has served `warmup_s` of requests under a split proportional to capacity. The seed and
    the number of the episode since then determine all randomness.

    ## Episode End
    `terminated` is always False; `truncated` is True at the end of the horizon or, if earlier,
    after `max_episode_steps`. `info["metrics"]` then holds latency quantiles, errors, utilisation;
    `gym.make` keeps its `max_episode_steps` in a wrapper, under which `env.unwrapped.metrics()`
    gives the same.

    ## Arguments
    All are JSON values, so that `spec.to_json()` works.

    - `scenario`: name, path of a TOML file, or dictionary; default "global_six". One endpoint of
      several is named as in "endpoints/sand".
    - `family`, `changes`, `trace`, `rtt_csv`, `action`, `reward`, `max_episode_steps`, `max_cells`:
      see `dlb_gym.encoded_task.Keywords`.

    ## Version History
    - v0: first version.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 - Gymnasium's own declaration

    def __init__(
        self, scenario: ScenarioSource | None = None, **keywords: Unpack[Keywords]
    ) -> None:
        self._task = EncodedTask(scenario, 1, **keywords)
        self.task_spec: TaskSpec = self._task.spec
        spec = self.task_spec
        self.observation_space: gym.spaces.Box = spec.observation.space  # type: ignore[assignment]
        self.action_space: gym.spaces.Box = self._task.action_space  # type: ignore[assignment]
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Starts an episode: the seed's first, or without a seed the next one."""
        super().reset(seed=seed)
        observation = self._task.reset(seeds=None if seed is None else [seed])
        self._running = True
        return observation[0], self._task.start_info(0)

    def step(
        self, action: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Holds a routing for one control interval.

        Raises:
            ValueError: The action has a wrong shape or holds NaN or infinity.
            RuntimeError: No episode is running.
        """
        if not self._running:
            raise RuntimeError("step was called before reset or after the end; call reset first")
        step = self._task.step_actions(numbers(action)[None])
        truncated = bool(step.truncated[0])
        self._running = not truncated
        info = self._task.step_info(step, 0)
        return step.observation[0], float(step.reward[0]), False, truncated, info

    def metrics(self) -> dict[str, float]:
        """Metrics of the requests measured so far in this episode; see docs/environment.md."""
        return self._task.summary(0)


class DLBVectorEnv(VectorEnv[Array, Array, Array]):
    """A native batch of replications, row r of seed s being the single environment of seed s + r.

    Stable-Baselines3 takes `dlb_gym.DLBVecEnv` instead of this.

    Args:
        num_envs: Rows, at least 1.
        scenario: See `DLBEnv`; a list gives every row its own (fewer repeat), and rows take
            several endpoints in turn. All are padded to the largest.
        autoreset_mode: "NextStep" (Gymnasium's default), "SameStep" or "Disabled"; also the enum.
        keywords: See `dlb_gym.encoded_task.Keywords`.
    """

    def __init__(
        self,
        num_envs: int = 1,
        scenario: ScenarioSource | Sequence[ScenarioSource] | None = None,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        **keywords: Unpack[Keywords],
    ) -> None:
        self._task = EncodedTask(scenario, num_envs, **keywords)
        self._mode = _autoreset_mode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self._mode}
        self.num_envs = num_envs
        self.task_spec: TaskSpec = self._task.spec
        self.single_observation_space = self.task_spec.observation.space
        self.single_action_space = self._task.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._ended = np.ones(num_envs, dtype=np.bool_)
        self._started = False

    def reset(
        self,
        *,
        seed: int | Sequence[int | None] | None = None,
        options: dict[str, Any] | None = None,
    ) -> tuple[Array, dict[str, Any]]:
        """Starts episodes.

        Args:
            seed: s for the seeds s, s + 1, ...; or one a row, None for the row's next episode.
            options: {"reset_mask": (n,) bool array} starts only those rows.

        Raises:
            ValueError: The mask or the list of seeds is not one a row.
        """
        rows = self._reset_mask(options)
        if seed is not None:
            if isinstance(seed, int | np.integer):
                seed = [int(seed) + r for r in range(self.num_envs)]
            seeds = list(seed)
            if len(seeds) != self.num_envs:
                raise ValueError(
                    f"seed lists {len(seeds)} values for num_envs = {self.num_envs}; one a row"
                )
            given = [(r, value) for r, value in enumerate(seeds) if value is not None and rows[r]]
            if given:
                self._task.seed(np.array([r for r, _ in given]), [value for _, value in given])
        observation = self._task.reset(rows)
        self._ended[rows] = False
        self._started = True
        infos: dict[str, Any] = {}
        for r in np.flatnonzero(rows):
            infos = self._add_info(infos, self._task.start_info(int(r)), int(r))
        return observation, infos

    def _reset_mask(self, options: dict[str, Any] | None) -> NDArray[np.bool_]:
        mask = (options or {}).get("reset_mask")
        if mask is None:
            return np.ones(self.num_envs, dtype=np.bool_)
        if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
            raise ValueError("options['reset_mask'] must be a numpy array of bool")
        if mask.shape != (self.num_envs,) or not mask.any():
            raise ValueError(
                f"options['reset_mask'] must have shape ({self.num_envs},) and a True entry; got "
                f"shape {mask.shape} with {int(mask.sum())} True"
            )
        return mask

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        """Holds a routing in every row for one control interval.

        Raises:
            ValueError: An action has a wrong shape or holds NaN or infinity.
            RuntimeError: An episode is over and the mode is "Disabled", or none has begun.
        """
        some_wait = bool(self._ended.any())
        if not self._started or (self._mode == AutoresetMode.DISABLED and some_wait):
            raise RuntimeError(
                f"rows {np.flatnonzero(self._ended).tolist()} have no running episode; call reset, "
                "with options={'reset_mask': ...} to start only those"
            )
        waiting, moved = self._ended, ~self._ended
        values = numbers(actions)
        if some_wait and values.shape == self._task.admissible.shape:
            values = np.where(waiting[:, None, None], 0.0, values)
        step = self._task.step_actions(values, moved if some_wait else None)
        truncated = step.truncated & moved
        observation = step.observation
        self._ended = truncated.copy()
        if self._mode == AutoresetMode.SAME_STEP and truncated.any():
            final_obs = np.full(self.num_envs, None, dtype=object)
            for r in np.flatnonzero(truncated):
                final_obs[r] = observation[r]
            infos = {
                **self._step_info(step, ~truncated, _masked(step.reward_terms, ~truncated)),
                "final_obs": final_obs,
                "_final_obs": truncated.copy(),
                "final_info": self._step_info(
                    step, truncated, _masked(step.reward_terms, truncated)
                ),
                "_final_info": truncated.copy(),
            }
            observation, infos = self._restart(truncated, infos)
            self._ended[:] = False
        else:
            infos = self._step_info(step, moved, step.reward_terms)
            if some_wait:
                observation, infos = self._restart(waiting, infos)
        terminated = np.zeros(self.num_envs, dtype=np.bool_)
        return observation, step.reward, terminated, truncated, infos

    def _restart(
        self, rows: NDArray[np.bool_], infos: dict[str, Any]
    ) -> tuple[Array, dict[str, Any]]:
        observation = self._task.reset(rows)
        for r in np.flatnonzero(rows):
            infos = self._add_info(infos, self._task.start_info(int(r)), int(r))
        return observation, infos

    def _step_info(
        self, step: Step, rows: NDArray[np.bool_], terms: dict[str, Array]
    ) -> dict[str, Any]:
        """Reward terms of some rows (zero in the others), and the metrics of those that end."""
        named = terms | {f"_{name}": rows for name in terms}
        infos: dict[str, Any] = {"reward_terms": named, "_reward_terms": rows}
        for r in np.flatnonzero(step.truncated & rows):
            infos = self._add_info(infos, {"metrics": self._task.summary(int(r))}, int(r))
        return infos


def _masked(terms: dict[str, Array], rows: NDArray[np.bool_]) -> dict[str, Array]:
    return {name: np.where(rows, term, 0.0) for name, term in terms.items()}


def _autoreset_mode(mode: str | AutoresetMode) -> AutoresetMode:
    try:
        return AutoresetMode(mode)
    except ValueError:
        choices = ", ".join(repr(each.value) for each in AutoresetMode)
        raise ValueError(f"autoreset_mode = {mode!r} is unknown; choose one of {choices}") from None
