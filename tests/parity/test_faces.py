"""All faces show the same bytes: single, native batch, Stable-Baselines3, PettingZoo; and copies.

The single environment is the yardstick: row r of seed s is the one of seed s + r.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from dlb_gym.envs import DLBEnv
from tests.parity.faces import (
    CASES,
    MAKERS,
    SEED,
    Episode,
    actions_for,
    agents,
    move,
    rounded,
    sb3,
    single,
    start,
    vector,
)
from tests.short_episodes import short

EPISODES, STEPS = 3, 6


def drawn(env: DLBEnv, row: int, steps: int = STEPS) -> list[Any]:
    return list(actions_for(env, row, EPISODES, steps))


@pytest.mark.parametrize("case", CASES)
def test_all_faces_show_the_same_observations_rewards_ends_and_infos(case: str) -> None:
    keywords = CASES[case]()
    envs = [DLBEnv(**keywords) for _ in range(2)]
    actions = [drawn(env, row) for row, env in enumerate(envs)]
    expected = [single(env, SEED + r, actions[r]) for r, env in enumerate(envs)]
    for r, episodes in enumerate(expected):
        assert [len(episode.steps) for episode in episodes] == [STEPS] * EPISODES
        assert [episode.steps[-1].truncated for episode in episodes] == [True] * EPISODES
        assert len({episode.first for episode in episodes}) == EPISODES
        assert len({step.reward for episode in episodes for step in episode.steps}) > 1
        assert agents(MAKERS["agents"](**keywords), SEED + r, actions[r]) == episodes
    batch = vector(MAKERS["vector"](**keywords), SEED, actions)
    assert batch == expected
    assert sb3(MAKERS["sb3"](**keywords), actions) == [rounded(each) for each in expected]


@pytest.mark.parametrize("limit", [3, 5, 9])
def test_the_smaller_of_limit_and_horizon_ends_the_episode_in_every_face(limit: int) -> None:
    keywords: dict[str, Any] = {
        "changes": short(steps=5), "max_episode_steps": limit, "action": "weights",
    }  # fmt: skip
    actions = [drawn(DLBEnv(**keywords), row) for row in range(2)]
    expected = [single(DLBEnv(**keywords), SEED + r, actions[r]) for r in range(2)]
    for episode in (*expected[0], *expected[1]):
        assert [step.truncated for step in episode.steps] == [False] * (min(limit, 5) - 1) + [True]
    assert agents(MAKERS["agents"](**keywords), SEED, actions[0]) == expected[0]
    assert vector(MAKERS["vector"](**keywords), SEED, actions) == expected
    assert sb3(MAKERS["sb3"](**keywords), actions) == [rounded(each) for each in expected]


def test_environments_made_by_their_id_are_the_same() -> None:
    keywords = CASES["everything"]()
    env = DLBEnv(**keywords)
    actions = [drawn(env, row) for row in range(2)]
    expected = [single(DLBEnv(**keywords), SEED + r, actions[r]) for r in range(2)]
    made = gym.make("DLB-v0", **keywords)
    assert single(made, SEED, actions[0]) == expected[0]
    batch: Any = gym.make_vec("DLB-v0", num_envs=2, autoreset_mode="SameStep", **keywords)
    assert vector(batch, SEED, actions) == expected


@pytest.mark.parametrize("steps", [1, 2])
def test_the_comparison_sees_a_swap_of_two_agents(steps: int) -> None:
    """What it must not overlook: rows of the joint action given to the wrong roots."""
    keywords = CASES["burst"]()
    env = DLBEnv(**keywords)
    actions = [each[:steps] for each in drawn(env, 0)][:1]
    swapped = [each[:, ::-1].copy() for each in actions]
    right = agents(MAKERS["agents"](**keywords), SEED, actions)
    wrong = agents(MAKERS["agents"](**keywords), SEED, swapped)
    assert right == single(env, SEED, actions)
    assert wrong[0].first == right[0].first
    assert wrong[0].steps != right[0].steps


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda env: pickle.loads(pickle.dumps(env))}


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("case", ["everything", "everything batching", "autoscaler"])
@pytest.mark.parametrize("face", MAKERS)
def test_a_copy_taken_at_any_step_goes_on_as_the_original_does(
    face: str, case: str, copied: str
) -> None:
    """Two episodes; copies are taken before each of its steps, the first of an episode included."""
    keywords = CASES[case]()
    env = MAKERS[face](**keywords)
    actions = np.concatenate(drawn(DLBEnv(**keywords), 0))[: 2 * STEPS]
    start(face, env)
    copies, shown = [], []
    for action in actions:
        copies.append(COPIES[copied](env))
        shown.append(move(face, env, action))
    for at, twin in enumerate(copies):
        again = [move(face, twin, action) for action in actions[at:]]
        assert again == shown[at:], at


def test_a_copy_lives_on_its_own() -> None:
    """Moving the copy leaves the original where it was."""
    keywords = CASES["everything"]()
    env = DLBEnv(**keywords)
    actions = drawn(env, 0)
    expected: list[Episode] = single(DLBEnv(**keywords), SEED, actions[:1])
    env.reset(seed=SEED)
    twin = copy.deepcopy(env)
    single(twin, SEED + 9, actions)
    assert [env.step(action)[0].tobytes() for action in actions[0]] == [
        step.observation for step in expected[0].steps
    ]
