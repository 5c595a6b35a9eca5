"""PettingZoo's face: its own checkers, what an agent sees, gives and gets, and wrong input."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pettingzoo.test import api_test, parallel_api_test, parallel_seed_test, seed_test
from pettingzoo.utils import parallel_to_aec

import baselines
from dlb_gym.observation import FIELD_NAMES
from dlb_gym.pettingzoo import DLBParallelEnv, parallel_env
from tests.mechanisms import scenario_with
from tests.short_episodes import STEPS, ring, short

CELLS = (2, 10)
PAGE = Path(__file__).parents[1] / "docs" / "environment.md"


def of_cells(cells: int, **keywords: Any) -> DLBParallelEnv:
    """A ring padded to ten cells, in episodes of five steps."""
    return parallel_env(ring(cells), **({"max_cells": 10} | keywords))


MAKERS: dict[str, Callable[[], DLBParallelEnv]] = {
    "2 cells": lambda: of_cells(2),
    "10 cells": lambda: of_cells(10, action="logits"),
    "residency": lambda: parallel_env("residency", changes=short("residency"), reward="ttft"),
    "everything": lambda: parallel_env(scenario_with("everything", horizon_s=0.5)),
}


def drawn(env: DLBParallelEnv, rng: np.random.Generator) -> dict[str, NDArray[np.float32]]:
    """An action for every agent, uniform on its space."""
    spaces = {agent: env.action_space(agent) for agent in env.agents}
    return {
        agent: rng.uniform(space.low, space.high).astype(np.float32)
        for agent, space in spaces.items()
    }


@pytest.mark.parametrize("name", MAKERS)
def test_pettingzoos_own_tests_pass_without_a_warning(name: str) -> None:
    parallel_api_test(MAKERS[name](), num_cycles=STEPS + 1)
    parallel_seed_test(MAKERS[name], num_cycles=STEPS)


@pytest.mark.parametrize("name", ["2 cells", "everything"])
def test_agents_may_also_take_turns(name: str) -> None:
    api_test(parallel_to_aec(MAKERS[name]()), num_cycles=STEPS + 1)
    seed_test(lambda: parallel_to_aec(MAKERS[name]()), num_cycles=STEPS)


def test_a_seed_gives_the_same_episodes_in_another_instance() -> None:
    """PettingZoo's seed test ends after one step: it asks whether any agent's name is true."""
    ways = []
    for _ in range(2):
        env, rng = MAKERS["2 cells"](), np.random.default_rng(0)
        seen: list[Any] = []
        for episode in range(2):
            env.reset(seed=5 if episode == 0 else None)
            while env.agents:
                parts, rewards, *_ = env.step(drawn(env, rng))
                seen.append(([part.tobytes() for part in parts.values()], rewards))
        ways.append(seen)
    assert ways[0] == ways[1]
    assert len(ways[0]) == 2 * STEPS
    assert ways[0][:STEPS] != ways[0][STEPS:]


def test_environments_of_2_and_10_cells_have_agents_of_equal_shapes() -> None:
    first = of_cells(CELLS[0])
    for cells in CELLS:
        env = of_cells(cells)
        assert env.possible_agents == [f"root_{i}" for i in range(cells)]
        parts, infos = env.reset(seed=0)
        assert env.agents == list(parts) == list(infos) == env.possible_agents
        assert [info["root"] for info in infos.values()] == [f"cell-{i}" for i in range(cells)]
        for agent in env.agents:
            assert env.observation_space(agent) == first.observation_space("root_0")
            assert env.action_space(agent) == first.action_space("root_0")
            assert env.observation_space(agent).shape == (10 * len(FIELD_NAMES),)
            assert env.action_space(agent).shape == (10,)
            assert env.observation_space(agent).contains(parts[agent])


def test_every_agent_sees_its_own_row_of_the_joint_observation() -> None:
    """Fields of the joint one are (roots, cells); rows differ, so that a mix-up shows."""
    env, rng = MAKERS["residency"](), np.random.default_rng(1)
    parts, _ = env.reset(seed=2)
    while env.agents:
        joint = env.task_spec.observation.decode(env.state())
        assert env.state_space.contains(env.state())
        for i, agent in enumerate(env.agents):
            own = env.agent_spec.observation.decode(parts[agent])
            for name in FIELD_NAMES:
                assert own[name].shape == (1, 6)
                np.testing.assert_array_equal(own[name][0], joint[name][i], name)
        assert len({part.tobytes() for part in parts.values()}) == len(env.agents)
        parts, *_ = env.step(drawn(env, rng))


@pytest.mark.parametrize("name", ["flow-gradient", "disc-latency"])
def test_a_local_policy_decides_from_an_agents_part_as_it_does_from_the_whole(name: str) -> None:
    env = parallel_env(changes=short(steps=20))
    whole = baselines.make(name)
    whole.reset(env.task_spec, 1, 0)
    own = {agent: baselines.make(name) for agent in env.possible_agents}
    for policy in own.values():
        policy.reset(env.agent_spec, 1, 0)
    parts, _ = env.reset(seed=4)
    while env.agents:
        joint = whole.act(env.state()[None]).routing
        assert joint is not None
        actions = {}
        for i, agent in enumerate(env.agents):
            routing = own[agent].act(parts[agent][None]).routing
            assert routing is not None
            assert routing[0, 0].tobytes() == joint[0, i].tobytes()
            actions[agent] = routing[0, 0].astype(np.float32)
        parts, *_ = env.step(actions)


def test_the_reward_is_common_and_the_horizon_truncates_all_at_once() -> None:
    env, rng = MAKERS["2 cells"](), np.random.default_rng(0)
    env.reset(seed=0)
    for step in range(1, STEPS + 1):
        _, rewards, terminations, truncations, infos = env.step(drawn(env, rng))
        assert rewards["root_0"] == rewards["root_1"] < 0
        assert type(rewards["root_0"]) is float
        assert terminations == {"root_0": False, "root_1": False}
        assert truncations == dict.fromkeys(terminations, step == STEPS)
        for info in infos.values():
            assert sum(info["reward_terms"].values()) == rewards["root_0"]
            assert ("metrics" in info) == (step == STEPS)
    assert env.agents == []
    assert infos["root_0"]["metrics"] == pytest.approx(env.metrics(), rel=0, abs=0, nan_ok=True)


def test_an_agents_info_is_its_own_though_metrics_are_computed_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env, rng = of_cells(10, max_episode_steps=1), np.random.default_rng(0)
    env.reset(seed=0)
    summary, computed = env._task.summary, []
    monkeypatch.setattr(env._task, "summary", lambda r: computed.append(r) or summary(r))
    *_, infos = env.step(drawn(env, rng))
    assert computed == [0]
    others = {name: repr(info) for name, info in infos.items() if name != "root_0"}
    infos["root_0"]["metrics"].clear()
    infos["root_0"]["reward_terms"].clear()
    infos["root_0"].clear()
    assert {name: repr(infos[name]) for name in others} == others
    assert len(others) == 9


def test_a_limit_below_the_horizon_ends_the_episode_there() -> None:
    env, rng = of_cells(2, max_episode_steps=3), np.random.default_rng(0)
    env.reset(seed=0)
    ends = [env.step(drawn(env, rng))[3]["root_1"] for _ in range(3)]
    assert ends == [False, False, True]


def test_a_familys_episodes_have_the_agents_that_their_scenarios_have() -> None:
    """Those that an episode lacks are what PettingZoo's test warns of, and nothing else."""

    def make() -> DLBParallelEnv:
        return parallel_env(family="appendix_b", changes={"horizon_s": 0.5, "warmup_s": 0.5})

    env, sizes = make(), set()
    assert env.possible_agents == [f"root_{i}" for i in range(10)]
    env.reset(seed=0)
    for _ in range(4):
        parts, infos = env.reset()
        joint = env.task_spec.observation.decode(env.state())["admissible"]
        size = int(joint.any(axis=1).sum())
        assert env.agents == list(parts) == list(infos) == env.possible_agents[:size]
        sizes.add(size)
    assert len(sizes) > 1
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "No agents present but not all possible_agents")
        parallel_api_test(make(), num_cycles=STEPS + 1)
    parallel_seed_test(make, num_cycles=STEPS)


def test_what_a_step_returned_stays_as_it_was() -> None:
    env, rng = MAKERS["2 cells"](), np.random.default_rng(0)
    parts, _ = env.reset(seed=0)
    state = env.state()
    kept = [part.copy() for part in (*parts.values(), state)]
    env.step(drawn(env, rng))
    for one, two in zip((*parts.values(), state), kept, strict=True):
        np.testing.assert_array_equal(one, two)
    parts["root_0"][:] = -1.0
    assert (env.state() >= 0).all()


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "missing": (lambda actions: actions.pop("root_1"), r"missing or unknown: 'root_1'"),
    "unknown": (
        lambda actions: actions.update(root_2=np.ones(10)),
        r"exactly the agents \['root_0', 'root_1'\]; missing or unknown: 'root_2'",
    ),
    "shape": (
        lambda actions: actions.update(root_1=np.ones(2)),
        r"action of 'root_1' has shape \(2,\); it must be \(10,\): one number for every cell",
    ),
    "none": (lambda actions: actions.update(root_0=None), r"action of 'root_0' has shape \(\)"),
    "nan": (
        lambda actions: actions.update(root_1=np.full(10, np.nan)),
        "root 1, cell 0 is nan; every entry must be a finite number",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_actions_change_nothing(kind: str) -> None:
    env, twin, rng = of_cells(2), of_cells(2), np.random.default_rng(0)
    env.reset(seed=0)
    twin.reset(seed=0)
    actions = drawn(env, rng)
    spoil, message = WRONG[kind]
    bad = dict(actions)
    spoil(bad)
    with pytest.raises(ValueError, match=message):
        env.step(bad)
    one, two = env.step(actions), twin.step(actions)
    assert one[1:4] == two[1:4]
    for agent in env.agents:
        assert one[0][agent].tobytes() == two[0][agent].tobytes()


@pytest.mark.parametrize("actions", [None, [], np.ones((2, 10))])
def test_actions_that_are_no_dictionary_are_refused(actions: Any) -> None:
    env = of_cells(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=r"^actions = '.*' must be a dictionary from agents to ac"):
        env.step(actions)


def test_no_step_goes_before_a_reset_or_after_the_end() -> None:
    env, rng = of_cells(2, max_episode_steps=1), np.random.default_rng(0)
    actions = {agent: np.ones(10, np.float32) for agent in env.possible_agents}
    with pytest.raises(RuntimeError, match="step was called before reset or after the end; call"):
        env.step(actions)
    env.reset(seed=0)
    env.step(drawn(env, rng))
    with pytest.raises(RuntimeError, match="after the end; call reset first"):
        env.step(actions)
    with pytest.raises(ValueError, match="seed = -1 is negative"):
        env.reset(seed=-1)
    assert env.reset()[1]["root_0"]["episode_number"] == 1


def test_the_pages_example_plays_an_episode() -> None:
    section = PAGE.read_text(encoding="utf-8").split("### One agent a root")[1].split("\n## ")[0]
    names: dict[str, Any] = {}
    exec(section.split("```python")[1].split("```")[0], names)
    assert names["env"].agents == []
    assert set(names["truncations"].values()) == {True}
    assert names["infos"]["root_0"]["metrics"]["requests"] > 0


def fresh(code: str) -> list[str]:
    """Lines that a process of its own prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_package_itself_loads_neither_pettingzoo_nor_stable_baselines3() -> None:
    code = (
        "import sys, dlb_gym\nfrom dlb_gym import *\n"
        "print(sorted({'pettingzoo', 'stable_baselines3'} & set(sys.modules)))"
    )
    assert fresh(code) == ["[]"]


def test_a_face_whose_package_is_missing_says_how_to_install_it() -> None:
    """A finder that goes first fails as Python itself does where a package is not installed."""
    code = """
import importlib, sys
import dlb_gym

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ("pettingzoo", "stable_baselines3"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for load in (
    lambda: dlb_gym.parallel_env,
    lambda: importlib.import_module("dlb_gym.pettingzoo"),
    lambda: dlb_gym.DLBVecEnv,
):
    try:
        load()
    except ImportError as error:
        print(error)
"""
    assert fresh(code) == [
        *["dlb_gym.pettingzoo needs PettingZoo: pip install 'dlb-gym[marl]'"] * 2,
        "dlb_gym.sb3 needs Stable-Baselines3: pip install 'dlb-gym[train]'",
    ]
