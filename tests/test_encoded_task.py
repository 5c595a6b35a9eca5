"""The keywords of all faces: one list, one check, one default each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

import dlb_gym
from dlb_gym.encoded_task import Keywords
from tests.short_episodes import ring, short

FACES: dict[str, Any] = {
    "single": dlb_gym.DLBEnv,
    "vector": lambda scenario=None, **keywords: dlb_gym.DLBVectorEnv(2, scenario, **keywords),
    "sb3": lambda scenario=None, **keywords: dlb_gym.DLBVecEnv(2, 0, scenario, **keywords),
    "pettingzoo": dlb_gym.parallel_env,
    "gym.make": lambda scenario=None, **keywords: (
        gym.make("DLB-v0", scenario=scenario, **keywords).unwrapped
    ),
}
PAGE = Path(__file__).parents[1] / "docs" / "environment.md"


@pytest.mark.parametrize("face", FACES)
def test_a_misspelt_keyword_is_refused_with_the_nearest_one(face: str) -> None:
    for wrong, near in (("max_cell", "max_cells"), ("scenarios", "scenario")):
        with pytest.raises(
            TypeError, match=rf"an environment has no keyword '{wrong}'; did you mean '{near}'\?"
        ):
            FACES[face](**{wrong: 1})
    with pytest.raises(TypeError, match="no keyword 'zzz'; it takes scenario, family, changes, "):
        FACES[face](zzz=1)


@pytest.mark.parametrize("face", ["single", "vector", "sb3", "pettingzoo"])
@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"action": "shares"}, "action = 'shares' is unknown; choose one of weights, logits"),
        ({"max_cells": 5}, "max_cells = 5 is too small for 6 roots and 6 cells; raise it or"),
        ({"max_episode_steps": 0}, "max_episode_steps = 0 must be at least 1"),
        ({"reward": "speed"}, "reward = 'speed'"),
        ({"family": "appendix_c"}, "appendix_c"),
        (
            {"scenario": "burst", "family": "appendix_b"},
            "family = 'appendix_b' draws its scenarios and round trips itself; leave out",
        ),
    ],
)
def test_every_face_refuses_the_same_values(
    face: str, keywords: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        FACES[face](**keywords)


@pytest.mark.parametrize("face", ["single", "vector", "sb3", "pettingzoo"])
def test_no_face_renders_yet(face: str) -> None:
    with pytest.raises(ValueError, match="render_mode = 'human' is not supported in this version"):
        FACES[face](render_mode="human")


@pytest.mark.parametrize("face", FACES)
def test_every_face_means_the_same_by_the_same_keywords(face: str) -> None:
    env = FACES[face](ring(2), max_cells=3, action="logits", changes={"horizon_s": 0.3})
    spec = env.task_spec
    assert (spec.num_roots, spec.num_cells, spec.action) == (3, 3, "logits")


@pytest.mark.parametrize("face", FACES)
def test_actions_are_weights_if_not_said_and_logits_where_sb3_trains(face: str) -> None:
    env = FACES[face](changes=short())
    assert env.task_spec.action == ("logits" if face == "sb3" else "weights")


@pytest.mark.parametrize("face", ["vector", "sb3"])
def test_a_batch_has_at_least_one_row(face: str) -> None:
    made = {"vector": dlb_gym.DLBVectorEnv, "sb3": dlb_gym.DLBVecEnv}[face]
    with pytest.raises(ValueError, match="num_envs = 0 must be at least 1"):
        made(0)


def test_the_page_describes_every_keyword_and_no_other() -> None:
    table = PAGE.read_text().split("## Arguments")[1].split("## ")[0]
    listed = [line.split("`")[1] for line in table.splitlines() if line.startswith("| `")]
    ours = {"scenario", *Keywords.__annotations__} - {"render_mode"}
    assert sorted(listed) == sorted(ours | {"autoreset_mode"})
