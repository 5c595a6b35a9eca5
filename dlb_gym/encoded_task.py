"""What all faces share: an environment's keywords, and a task that takes encoded actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym.actions import action_space, to_routing
from dlb_gym.episodes import episode_source
from dlb_gym.messages import nearest, whole
from dlb_gym.policy import Encoding, TaskSpec
from dlb_gym.scenario_source import ScenarioSource
from dlb_gym.task import Step, Task


class Keywords(TypedDict, total=False):
    """Keywords of every face besides `scenario`, all JSON values.

    Attributes:
        family: Name of a scenario family ("appendix_b"), instead of a scenario: every episode a
            new scenario.
        changes: Dotted overrides, such as {"demand.utilisation": 0.9, "control_interval_s": 0.02}.
        trace: File with recorded requests.
        rtt_csv: File with measured round trips.
        action: Encoding of actions, "weights" or "logits".
        reward: Name, with its number if it has one, or "module:function"; "latency" if left out.
        max_episode_steps: Ends episodes before their horizon.
        max_cells: Pads roots and cells to this many, so that one model fits several scenarios; at
            least those of the scenario.
        render_mode: None; no other is supported in this version.
    """

    family: str | None
    changes: Mapping[str, Any] | None
    trace: str | Path | None
    rtt_csv: str | Path | None
    action: Encoding
    reward: str
    max_episode_steps: int | None
    max_cells: int | None
    render_mode: None


class EncodedTask(Task):
    """A task made of an environment's keywords, moved by actions as its environment encodes them.

    Args:
        scenario: One scenario, or one for every row, or one that lists endpoints; "global_six" if
            there is neither this nor a family.
        num_envs: Rows, at least 1.
        keywords: See `Keywords`; actions are "weights" if left out.

    Attributes:
        spec: The task's sizes, with the encoding of its actions.
        action_space: Box (roots, cells) of one row's actions.
        most_roots: Roots of the largest scenario that it can play.

    Raises:
        TypeError: A keyword is unknown.
        ValueError: num_envs is below 1, or a keyword is not valid (see `episode_source`, `Task`).
    """

    def __init__(
        self,
        scenario: ScenarioSource | Sequence[ScenarioSource] | None,
        num_envs: int,
        **keywords: Unpack[Keywords],
    ) -> None:
        _require_known(keywords)
        if whole("num_envs", num_envs) < 1:
            raise ValueError(f"num_envs = {num_envs} must be at least 1")
        render_mode: object = keywords.get("render_mode")
        if render_mode is not None:
            raise ValueError(f"render_mode = {render_mode!r} is not supported in this version")
        source = episode_source(
            scenario,
            keywords.get("family"),
            keywords.get("changes"),
            keywords.get("trace"),
            keywords.get("rtt_csv"),
            num_envs,
        )
        super().__init__(
            source,
            num_envs,
            reward=keywords.get("reward", "latency"),
            max_episode_steps=keywords.get("max_episode_steps"),
            max_cells=keywords.get("max_cells"),
        )
        self.most_roots = source.max_roots
        self.spec: TaskSpec = replace(self.spec, action=keywords.get("action", "weights"))
        self.action_space: gym.spaces.Box = action_space(
            self.spec.action, self.spec.num_roots, self.spec.num_cells
        )

    def step_actions(self, actions: NDArray[Any], rows: NDArray[np.bool_] | None = None) -> Step:
        """As `step`, for actions (n, roots, cells).

        Raises:
            ValueError: The shape is wrong, or a value is NaN or infinite.
        """
        return self.step_routing(to_routing(actions, self.spec.action, self.admissible), rows)

    def start_info(self, r: int) -> dict[str, Any]:
        """What a reset tells of row r: scenario, seed, and number of the episode since then."""
        scenario = self.scenarios[r]
        return {
            "scenario": scenario.name if scenario is not None else "",
            "seed": int(self.seeds[r]),
            "episode_number": int(self.episodes[r]),
        }

    def step_info(self, step: Step, r: int) -> dict[str, Any]:
        """What a step tells of row r: the reward's terms and, at the end, the metrics."""
        terms = {name: float(term[r]) for name, term in step.reward_terms.items()}
        ended = {"metrics": self.summary(r)} if step.truncated[r] else {}
        return {"reward_terms": terms} | ended


def _require_known(keywords: Keywords) -> None:
    """A misspelt keyword must not be ignored; Python checks the names of `Unpack` nowhere."""
    known = Keywords.__annotations__.keys()
    for name in keywords:
        if name not in known:
            near = nearest(name, ["scenario", *known])
            hint = f"did you mean {near!r}? " if near else ""
            raise TypeError(
                f"an environment has no keyword {name!r}; {hint}it takes scenario, "
                f"{', '.join(known)}"
            )
