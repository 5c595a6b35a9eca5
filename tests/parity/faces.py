"""What each face shows of the same rows, episodes and actions, written down in one form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.pettingzoo import DLBParallelEnv, parallel_env
from dlb_gym.sb3 import DLBVecEnv
from dlb_gym.scenario import Scenario
from tests.mechanisms import scenario_with
from tests.short_episodes import ring, short

Array = NDArray[np.float32]
Keywords = dict[str, Any]
SEED = 5


class Moved(NamedTuple):
    """What a step brought; an absent info is None."""

    observation: bytes
    reward: float
    truncated: bool
    reward_terms: dict[str, float] | None
    metrics: str | None


class Episode(NamedTuple):
    """One episode of one row; `start` is what its reset told, None where a face does not."""

    start: dict[str, Any] | None
    first: bytes
    steps: list[Moved]


def printed(metrics: dict[str, Any] | None) -> str | None:
    """Every bit of every metric; repr, since NaN differs from itself."""
    if metrics is None:
        return None
    return repr({name: float(value) for name, value in sorted(metrics.items())})


def actions_for(env: DLBEnv, row: int, episodes: int, steps: int) -> Array:
    """(episodes, steps, roots, cells) drawn for a row, beyond both bounds now and then."""
    space = env.action_space
    rng = np.random.default_rng([row, 17])
    drawn = rng.uniform(space.low - 0.1, space.high + 0.1, (episodes, steps, *space.shape))
    return drawn.astype(np.float32)


def single(
    env: DLBEnv | gym.Env[Any, Any], seed: int | None, actions: Sequence[Array]
) -> list[Episode]:
    """Whole episodes of a single environment; under another limit `actions` are cut."""
    episodes = []
    for number, drawn in enumerate(actions):
        first, start = env.reset(seed=seed if number == 0 else None)
        steps = []
        for action in drawn:
            observation, reward, terminated, truncated, info = env.step(action)
            assert not terminated
            steps.append(
                Moved(
                    observation.tobytes(), float(reward), truncated, info["reward_terms"],
                    printed(info.get("metrics")),
                )
            )  # fmt: skip
            if truncated:
                break
        episodes.append(Episode(start, first.tobytes(), steps))
    return episodes


def agents(env: DLBParallelEnv, seed: int | None, actions: Sequence[Array]) -> list[Episode]:
    """The same of PettingZoo's face: parts are joined, and what is common must be."""
    episodes = []
    for number, drawn in enumerate(actions):
        parts, infos = env.reset(seed=seed if number == 0 else None)
        names = list(env.agents)
        start = {key: value for key, value in infos["root_0"].items() if key != "root"}
        first, steps = joined(env, parts), []
        for action in drawn:
            given = {name: action[i] for i, name in enumerate(names)}
            parts, rewards, terminations, truncations, infos = env.step(given)
            assert terminations == dict.fromkeys(names, False)
            assert rewards == dict.fromkeys(names, rewards["root_0"])
            assert truncations == dict.fromkeys(names, truncations["root_0"])
            assert {repr(infos[name]) for name in names} == {repr(infos["root_0"])}
            info = infos["root_0"]
            steps.append(
                Moved(
                    joined(env, parts), rewards["root_0"], truncations["root_0"],
                    info["reward_terms"], printed(info.get("metrics")),
                )
            )  # fmt: skip
            if truncations["root_0"]:
                break
        episodes.append(Episode(start, first, steps))
    return episodes


def joined(env: DLBParallelEnv, parts: dict[str, Array]) -> bytes:
    """The agents' parts one after the other, then zeros for roots that are padding."""
    width = env.task_spec.observation.size // env.task_spec.num_roots
    rows = [parts.get(f"root_{i}", np.zeros(width, np.float32)) for i in range(
        env.task_spec.num_roots)]  # fmt: skip
    assert np.concatenate(rows).tobytes() == env.state().tobytes()
    return np.concatenate(rows).tobytes()


def vector(
    env: DLBVectorEnv, seed: int | None, actions: list[Sequence[Array]]
) -> list[list[Episode]]:
    """Rows of the native batch in the mode SameStep, all of one length; `actions` a row."""
    rows = range(env.num_envs)
    observation, infos = env.reset(seed=seed)
    played: list[list[Episode]] = [[] for _ in rows]
    for number in range(len(actions[0])):
        for r in rows:
            played[r].append(Episode(of_row(infos, r), observation[r].tobytes(), []))
        for step in range(len(actions[0][number])):
            given = np.stack([actions[r][number][step] for r in rows])
            observation, reward, terminated, truncated, infos = env.step(given)
            assert not terminated.any()
            for r in rows:
                last = bool(truncated[r])
                info = infos["final_info"] if last else infos
                seen = infos["final_obs"][r] if last else observation[r]
                played[r][-1].steps.append(
                    Moved(
                        seen.tobytes(), float(reward[r]), last, of_row(info["reward_terms"], r),
                        printed(of_row(info["metrics"], r)) if last else None,
                    )
                )  # fmt: skip
            if truncated.any():
                assert truncated.all()
                break
    return played


def of_row(infos: dict[str, Any], r: int) -> dict[str, Any]:
    """A row's entries of Gymnasium's batched infos, as Python's own numbers."""
    arrays = {name: entry for name, entry in infos.items() if isinstance(entry, np.ndarray)}
    return {
        name: entry[r : r + 1].tolist()[0]
        for name, entry in arrays.items()
        if name[0] != "_" and name != "final_obs" and infos[f"_{name}"][r]
    }


def sb3(env: DLBVecEnv, actions: list[Sequence[Array]]) -> list[list[Episode]]:
    """Rows of SB3's face, all of one length; it tells the metrics at the end, and no terms."""
    rows = range(env.num_envs)
    observation = env.reset()
    played: list[list[Episode]] = [[] for _ in rows]
    for number in range(len(actions[0])):
        for r in rows:
            played[r].append(Episode(dict(env.reset_infos[r]), observation[r].tobytes(), []))
        for step in range(len(actions[0][number])):
            given = np.stack([actions[r][number][step] for r in rows])
            observation, reward, done, infos = env.step(given)
            for r in rows:
                last = bool(done[r])
                seen = infos[r]["terminal_observation"] if last else observation[r]
                metrics = printed(infos[r]["metrics"]) if last else None
                played[r][-1].steps.append(
                    Moved(seen.tobytes(), float(reward[r]), last, None, metrics)
                )
            if done.any():
                break
    return played


def rounded(episodes: list[Episode]) -> list[Episode]:
    """What SB3's face tells of them: rewards are float32, and there are no terms."""
    return [
        episode._replace(
            steps=[
                step._replace(reward=float(np.float32(step.reward)), reward_terms=None)
                for step in episode.steps
            ]
        )
        for episode in episodes
    ]


def mechanisms(name: str) -> Scenario:
    """Six intervals of a small system in overload, with a mechanism or all of them."""
    return scenario_with(name, horizon_s=0.6, warmup_s=0.3, control_interval_s=0.1)


CASES: dict[str, Callable[[], Keywords]] = {
    "burst": lambda: {
        "scenario": "burst", "changes": short("burst", 6), "action": "weights",
    },
    "outage, logits, ttft": lambda: {
        "scenario": "outage", "changes": short("outage", 9), "action": "logits",
        "reward": "ttft", "max_episode_steps": 6,
    },
    "residency, tail": lambda: {
        "scenario": "residency", "changes": short("residency", 6) | {"dispatch": "smooth"},
        "action": "weights", "reward": "tail(0.9)",
    },
    "2 cells of 10": lambda: {
        "scenario": ring(2, horizon_s=0.6), "max_cells": 10, "action": "logits",
        "reward": "goodput(2.5)",
    },
    "family": lambda: {
        "family": "appendix_b", "changes": {"horizon_s": 0.6, "warmup_s": 0.5},
        "action": "weights",
    },
    "everything": lambda: {"scenario": mechanisms("everything"), "action": "logits"},
    "everything batching": lambda: {
        "scenario": mechanisms("everything batching"), "action": "weights", "max_cells": 4,
    },
    "autoscaler": lambda: {"scenario": mechanisms("autoscaler"), "action": "weights"},
}  # fmt: skip
"""Keywords of environments whose episodes have the same number of steps in all rows."""

MAKERS: dict[str, Callable[..., Any]] = {
    "single": DLBEnv,
    "vector": lambda **keywords: DLBVectorEnv(2, autoreset_mode="SameStep", **keywords),
    "sb3": lambda **keywords: DLBVecEnv(2, SEED, **keywords),
    "agents": parallel_env,
}


def start(face: str, env: Any) -> None:
    """Row 0 gets the seed."""
    if face == "sb3":
        env.reset()  # SB3's has got it from its maker
    else:
        env.reset(seed=SEED)


def move(face: str, env: Any, actions: Any) -> list[bytes]:
    """Bytes of what a step of any face brings; a batch restarts by itself, others are reset."""
    if face in ("vector", "sb3"):
        observation, reward, *_ = env.step(np.stack([actions, actions]))
        return [observation.tobytes(), reward.tobytes()]
    if face == "agents":
        given = {agent: actions[i] for i, agent in enumerate(env.agents)}
        _, rewards, _, truncations, _ = env.step(given)
        shown = [env.state().tobytes(), repr((rewards, truncations)).encode()]
        ended = not env.agents
    else:
        observation, reward, _, ended, info = env.step(actions)
        shown = [observation.tobytes(), repr((reward, ended, info)).encode()]
    if ended:
        env.reset()
    return shown
