"""PettingZoo's face of the task: every root router is an agent.

`parallel_env(...)` makes a `ParallelEnv`, which `pettingzoo.utils.parallel_to_aec` turns into an
`AECEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Unpack

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym.actions import numbers
from dlb_gym.encoded_task import EncodedTask, Keywords
from dlb_gym.messages import shown
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.scenario_source import ScenarioSource

try:
    from pettingzoo import ParallelEnv  # type: ignore[import-untyped]
except ModuleNotFoundError as error:
    if error.name != "pettingzoo":
        raise
    raise ImportError("dlb_gym.pettingzoo needs PettingZoo: pip install 'dlb-gym[marl]'") from error

Array = NDArray[np.float32]


class DLBParallelEnv(ParallelEnv):  # type: ignore[misc]
    """Cooperative routing: one agent a root, one decision each, one reward for all.

    The system, its time and its episodes are those of `dlb_gym.envs.DLBEnv`: agents that are given
    the rows of an action there move the same bytes here.

    - **Agents** are "root_0", "root_1", ...: agent i is root i, whose name in the scenario the
      infos of `reset` tell. `possible_agents` are the roots of the largest scenario that can come;
      under a family, an episode's `agents` are those of them that its scenario has.
    - **Action**: row i of the joint action, `Box` (cells,).
    - **Observation**: row i of the joint observation, `Box` (cells * fields,), float32: what root
      i may know and nothing of what others know; `agent_spec.observation.decode` names its fields,
      each of shape (1, cells). All agents' spaces are equal, and with `max_cells` so are those of
      different scenarios.
    - **Reward**: the task is cooperative, so that every agent gets the whole system's reward. Do
      not add them up: the sum over agents is not the single environment's return.
    - **End**: the horizon truncates all agents at once; none ever terminates.
    - `state()` is the joint observation, for critics that see all roots.

    Args:
        scenario: See `DLBEnv`.
        keywords: See `dlb_gym.encoded_task.Keywords`.

    Attributes:
        task_spec: Sizes of the joint task.
        agent_spec: Sizes of one agent's part: a single root.
        state_space: Space of `state()`.

    Raises:
        TypeError: A keyword is unknown.
        ValueError: A keyword is not valid.
    """

    metadata: dict[str, Any] = {"name": "DLB-v0", "render_modes": []}  # noqa: RUF012 - as above it

    def __init__(
        self, scenario: ScenarioSource | None = None, **keywords: Unpack[Keywords]
    ) -> None:
        self._task = EncodedTask(scenario, 1, **keywords)
        spec = self._task.spec
        self.task_spec: TaskSpec = spec
        part = Observation(1, spec.num_cells)
        self.agent_spec = TaskSpec(1, spec.num_cells, part, spec.action)
        self.render_mode: str | None = None
        self.possible_agents = [f"root_{i}" for i in range(self._task.most_roots)]
        self.agents: list[str] = []
        self.state_space: gym.spaces.Box = spec.observation.space
        joint = self._task.action_space
        self._observation_spaces = dict.fromkeys(self.possible_agents, part.space)
        self._action_spaces = {  # one each: every agent's samples have a seed of their own
            name: gym.spaces.Box(joint.low[i], joint.high[i], dtype=np.float32)
            for i, name in enumerate(self.possible_agents)
        }
        self._observation: Array = np.zeros(spec.observation.size, np.float32)

    def observation_space(self, agent: str) -> gym.spaces.Box:
        """Box (cells * fields,), the same for all agents."""
        return self._observation_spaces[agent]

    def action_space(self, agent: str) -> gym.spaces.Box:
        """Box (cells,), the same for all agents."""
        return self._action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, dict[str, Any]]]:
        """Starts an episode: the seed's first, or without a seed the next one.

        Returns:
            Observations, and infos with the root's name, the scenario's, seed and episode.
        """
        self._observation = self._task.reset(seeds=None if seed is None else [seed])[0]
        scenario = self._task.scenarios[0]
        roots = () if scenario is None else scenario.roots
        self.agents = self.possible_agents[: len(roots)]
        start = self._task.start_info(0)
        infos = {
            name: {"root": root.name, **start}
            for name, root in zip(self.agents, roots, strict=True)
        }
        return self._parts(), infos

    def step(
        self, actions: Mapping[str, Array]
    ) -> tuple[
        dict[str, Array],
        dict[str, float],
        dict[str, bool],
        dict[str, bool],
        dict[str, dict[str, Any]],
    ]:
        """Holds every root's routing for one control interval.

        Raises:
            ValueError: An agent's action is missing, has a wrong shape or holds NaN or infinity,
                or there is no such agent.
            RuntimeError: No episode is running.
        """
        if not self.agents:
            raise RuntimeError("step was called before reset or after the end; call reset first")
        step = self._task.step_actions(self._joint(actions))
        self._observation = step.observation[0]
        reward, ended = float(step.reward[0]), bool(step.truncated[0])
        agents, info = self.agents, self._task.step_info(step, 0)
        result = (
            self._parts(),
            dict.fromkeys(agents, reward),
            dict.fromkeys(agents, False),
            dict.fromkeys(agents, ended),
            {name: {key: part.copy() for key, part in info.items()} for name in agents},
        )
        if ended:
            self.agents = []
        return result

    def state(self) -> Array:
        """The joint observation (roots * cells * fields,), as in `DLBEnv`."""
        return self._observation.copy()

    def metrics(self) -> dict[str, float]:
        """Metrics of the requests measured so far in this episode; see docs/environment.md."""
        return self._task.summary(0)

    def _parts(self) -> dict[str, Array]:
        """Every agent's row of the joint observation, as arrays of their own."""
        rows = self._observation.reshape(self.task_spec.num_roots, -1)
        return {name: rows[i].copy() for i, name in enumerate(self.agents)}

    def _joint(self, actions: Mapping[str, Array]) -> NDArray[np.float64]:
        """Joint action (1, roots, cells); zero in padded rows, which send nothing."""
        if not isinstance(actions, Mapping):
            raise ValueError(
                f"actions = {shown(actions)} must be a dictionary from agents to actions"
            )
        wrong = sorted(map(shown, set(actions) ^ set(self.agents)))
        if wrong:
            raise ValueError(
                f"actions must be given for exactly the agents {self.agents}; missing or unknown: "
                f"{', '.join(wrong)}"
            )
        joint = np.zeros((1, self.task_spec.num_roots, self.task_spec.num_cells))
        for i, name in enumerate(self.agents):
            action = numbers(actions[name])
            if action.shape != joint.shape[2:]:
                raise ValueError(
                    f"action of {name!r} has shape {action.shape}; it must be {joint.shape[2:]}: "
                    "one number for every cell"
                )
            joint[0, i] = action
        return joint


def parallel_env(
    scenario: ScenarioSource | None = None, **keywords: Unpack[Keywords]
) -> DLBParallelEnv:
    """The environment by the name that PettingZoo's own have; see `DLBParallelEnv`."""
    return DLBParallelEnv(scenario, **keywords)
