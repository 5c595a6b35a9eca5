"""The single environment: checkers, keywords, seeds, copies, ends of episodes."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import dlb_gym
from dlb_gym.actions import ENCODINGS
from dlb_gym.encoded_task import Keywords
from dlb_gym.envs import DLBEnv
from dlb_gym.episodes import episode_source
from dlb_gym.observation import FIELDS
from dlb_gym.scenario_source import ScenarioError, scenario_names
from dlb_gym.task import Task
from tests.mechanisms import scenario_with
from tests.request_log import books_at, is_error
from tests.short_episodes import STEPS, drawn_actions, play, ring, short

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2024-01-01 00:00:{second:02d}.{tenth},{400 + second},{150 + tenth}\n"
    for second in range(4)
    for tenth in range(10)
)
RTT = "region,a,b\na,0.5,80\nb,80,0.5\n"


IDS = [each.id for each in gym.registry.values() if str(each.entry_point).startswith("dlb_gym")]
PADDINGS = (None, 10)
SYSTEMS: dict[str, dict[str, Any]] = {
    **{name: {"scenario": name, "changes": short(name)} for name in scenario_names()},
    "family": {"family": "appendix_b", "changes": {"horizon_s": 0.5, "warmup_s": 1.0}},
    **{
        name: {"scenario": scenario_with(name, horizon_s=1.0)}
        for name in ("everything", "everything batching")
    },
}


@pytest.mark.parametrize("action", ENCODINGS)
@pytest.mark.parametrize("system", SYSTEMS)
@pytest.mark.parametrize("name", IDS)
def test_both_checkers_pass_without_a_warning(name: str, system: str, action: str) -> None:
    """Fault kind 3. Every system with every action; padding alternates so as to meet each of both.

    So any two options meet in some case: (system, action), (system, padding), (action, padding).
    """
    padding = PADDINGS[(list(SYSTEMS).index(system) + ENCODINGS.index(action)) % 2]  # type: ignore[arg-type]
    env = gym.make(name, action=action, max_cells=padding, **SYSTEMS[system])
    check_env(env.unwrapped)
    with warnings.catch_warnings():
        if action == "weights":
            warnings.filterwarnings("ignore", "We recommend you to use a symmetric")
        sb3_check_env(env.unwrapped)


def test_the_checkers_meet_every_pair_of_options() -> None:
    """Fault kind 3: the covering is what its test says, and there is something registered."""
    assert IDS == ["DLB-v0"]
    count = len(SYSTEMS)
    met = {(s, a, (s + a) % 2) for s in range(count) for a in range(2)}
    for one, two, pairs in ((0, 1, 2 * count), (0, 2, 2 * count), (1, 2, 4)):
        assert len({(case[one], case[two]) for case in met}) == pairs


@pytest.mark.parametrize("name", [*IDS, "dlb_gym:DLB-v0"])
def test_a_step_returns_plain_python_numbers_under_every_id(name: str) -> None:
    """Fault kind 1; the last step too, and under the wrappers of `gym.make` as without them."""
    made = gym.make(name, changes=short())
    for env in (made, made.unwrapped):
        env.reset(seed=0)
        for _ in range(STEPS):
            action = np.full(env.action_space.shape or (), 0.5, np.float32)
            observation, reward, terminated, truncated, _ = env.step(action)
            assert (type(reward), type(terminated), type(truncated)) == (float, bool, bool)
            assert observation.dtype == np.float32
        assert truncated


def keywords(folder: Path) -> list[dict[str, Any]]:
    """Every documented keyword, each in some valid set of them."""
    trace, rtt = folder / "trace.csv", folder / "rtt.csv"
    trace.write_text(TRACE)
    rtt.write_text(RTT)
    measured = ring(2)
    for place, region in zip([*measured["cells"], *measured["roots"]], "abab", strict=True):
        place["region"] = region
    common = {"action": "logits", "max_cells": 10}
    return [
        {"scenario": "burst", "changes": short(), "reward": "dlb_gym.reward:latency_reward"},
        {"family": "appendix_b", "changes": {"horizon_s": 0.5, "warmup_s": 1.0}, **common},
        {"scenario": measured, "trace": str(trace), "rtt_csv": str(rtt), **common},
    ]


def test_those_are_all_keywords_there_are(tmp_path: Path) -> None:
    named = {name for case in keywords(tmp_path) for name in case} | {"max_episode_steps"}
    assert named == {"scenario", *Keywords.__annotations__} - {"render_mode"}


@pytest.mark.parametrize("case", range(3))
def test_a_spec_survives_json_with_every_documented_keyword(case: int, tmp_path: Path) -> None:
    """Fault kind 10."""
    env = gym.make("DLB-v0", max_episode_steps=3, **keywords(tmp_path)[case])
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert json.loads(again.spec.to_json()) == json.loads(env.spec.to_json())
    actions = drawn_actions(env.action_space, 3)
    one, two = play(env, actions, seed=5), play(again, actions, seed=5)
    np.testing.assert_array_equal(one[0], two[0])
    assert one[2] == two[2] == [False, False, True]


@pytest.mark.parametrize("case", range(3))
def test_a_vector_spec_rebuilds_the_native_batch(case: int, tmp_path: Path) -> None:
    """Fault kind 10."""
    made = keywords(tmp_path)[case] | {"autoreset_mode": "SameStep", "max_episode_steps": 3}
    env = gym.make_vec("DLB-v0", num_envs=2, **made)
    assert isinstance(env.unwrapped, dlb_gym.DLBVectorEnv)
    assert env.spec is not None
    spec = gym.envs.registration.EnvSpec.from_json(env.spec.to_json())
    for again in (gym.make_vec(env.spec), gym.make_vec(spec)):
        assert again.num_envs == 2
        assert again.metadata["autoreset_mode"] == gym.vector.AutoresetMode.SAME_STEP
        np.testing.assert_array_equal(again.reset(seed=1)[0], env.reset(seed=1)[0])


def test_a_seed_gives_the_same_first_observation_whatever_came_before() -> None:
    """Fault kind 4, in one process."""
    env = DLBEnv(changes=short())
    actions = drawn_actions(env.action_space, STEPS)
    first = play(env, actions, seed=1)
    for earlier in (actions[:2], actions):
        play(env, earlier, seed=9)
        again = play(env, actions, seed=1)
        np.testing.assert_array_equal(again[0], first[0])
        assert again[1] == first[1]


FRESH = """
import gymnasium, dlb_gym, sys
env = gymnasium.make("DLB-v0", changes={"horizon_s": 0.5, "warmup_s": 1.0})
sys.stdout.buffer.write(env.reset(seed=1)[0].tobytes())
"""


def test_a_seed_gives_the_same_first_observation_in_a_fresh_process() -> None:
    """Fault kind 4, across processes; the hash seed of strings is another one there."""
    done = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=Path(__file__).parents[1], capture_output=True,
        env=os.environ | {"PYTHONHASHSEED": "7"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr.decode()
    here = gym.make("DLB-v0", changes={"horizon_s": 0.5, "warmup_s": 1.0}).reset(seed=1)[0]
    assert done.stdout == here.tobytes()


def test_an_unseeded_reset_after_a_seed_is_its_next_episode() -> None:
    """Fault kind 5."""
    env = DLBEnv(changes=short())
    pairs = [(env.reset(seed=7)[0], env.reset()[0]) for _ in range(2)]
    np.testing.assert_array_equal(pairs[0][1], pairs[1][1])
    assert not np.array_equal(pairs[0][0], pairs[0][1])


def test_episodes_and_seeds_differ_in_scenario_and_in_arrivals() -> None:
    """Fault kind 6: a fixed scenario with other arrivals each time, a family with others too."""
    for env in (DLBEnv(changes=short()), DLBEnv(family="appendix_b", changes=short())):
        env.reset(seed=3)
        later = [env.reset()[0] for _ in range(3)]
        seeded = [env.reset(seed=seed)[0] for seed in (3, 4)]
        arrivals = {env.task_spec.observation.decode(o)["arrival_load"].tobytes() for o in later}
        assert len(arrivals) == 3
        assert len({o.tobytes() for o in (*later, *seeded)}) == 5
    networks = {env.task_spec.observation.decode(o)["rtt"].tobytes() for o in later}
    assert len(networks) == 3, "the family's fleets differ from one another"


def test_an_environment_never_seeded_draws_a_seed_of_its_own() -> None:
    one, two = (DLBEnv(changes=short()).reset() for _ in range(2))
    assert one[1]["seed"] != two[1]["seed"]
    again = DLBEnv(changes=short()).reset(seed=one[1]["seed"])
    np.testing.assert_array_equal(again[0], one[0])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_a_copy_made_in_mid_episode_continues_identically(duplicate: Any) -> None:
    env = DLBEnv("outage", changes=short(steps=30))
    actions = drawn_actions(env.action_space, 60, seed=2)
    env.reset(seed=4)
    for action in actions[:10]:
        env.step(action)
    twin = duplicate(env)
    for action in actions[10:30]:
        one, two = env.step(action), twin.step(action)
        assert one[0].tobytes() == two[0].tobytes()
        assert one[1:4] == two[1:4]
    assert one[3]
    assert one[4]["metrics"] == pytest.approx(two[4]["metrics"], nan_ok=True, rel=0, abs=0)
    one_again, two_again = play(env, actions[30:]), play(twin, actions[30:])
    np.testing.assert_array_equal(one_again[0], two_again[0])


@pytest.mark.parametrize("action", ENCODINGS)
def test_every_observation_lies_in_its_space_at_120_percent_with_an_outage(action: str) -> None:
    """Fault kind 2: the observations of resets, of steps and of the last step."""
    outage = [{"kind": "outage", "cells": ["us-east4", "europe-west3"]}]
    changes = short(steps=200) | {"demand.utilisation": 1.2, "disturbances": outage}
    env = DLBEnv(changes=changes, action=action)  # type: ignore[arg-type]
    observations, rewards, truncations, _ = play(env, drawn_actions(env.action_space, 200), seed=0)
    assert len(rewards) == 200
    observations.append(env.reset()[0])
    assert truncations[-1]
    for observation in observations:
        assert observation.dtype == env.observation_space.dtype
        assert env.observation_space.contains(observation)
    assert all(np.isfinite(rewards))


@pytest.mark.parametrize(("limit", "expected"), [(3, 3), (5, 5), (9, 5)])
@pytest.mark.parametrize("made", [True, False])
def test_the_smaller_of_limit_and_horizon_truncates_once(
    limit: int, expected: int, made: bool
) -> None:
    """Fault kind 13."""
    keywords = {"max_episode_steps": limit, "changes": short()}
    env: Any = gym.make("DLB-v0", **keywords) if made else DLBEnv(**keywords)
    env.reset(seed=0)
    action = np.ones(env.action_space.shape, np.float32)
    ends = [env.step(action)[2:4] for _ in range(expected)]
    assert ends == [(False, False)] * (expected - 1) + [(False, True)]


def test_an_episode_ends_with_metrics_of_its_own_measured_span() -> None:
    long = DLBEnv(max_episode_steps=20, changes=short(steps=200))
    short_one = DLBEnv(changes=short(steps=20))
    actions = drawn_actions(long.action_space, 20)
    cut, whole = (play(env, actions, seed=1)[3][-1]["metrics"] for env in (long, short_one))
    assert cut == pytest.approx(whole, rel=1e-12)


def test_no_request_vanishes_from_an_overload() -> None:
    """Fault kind 25: 120 % load, queues of one. What a cell holds, did and refused is what came.

    What lies on the wires, and what was served or refused by when, is counted from the log.
    """
    overload = ring(3, demand={"utilisation": 1.2}, server={"queue_limit": 1}, horizon_s=1.5)
    task = Task(episode_source(overload), 1, log=True)
    task.reset(seeds=[2])
    routing = np.tile([0.5, 0.3, 0.2], (1, 3, 1))
    shown = []
    for _ in range(15):
        truncated = task.step_routing(routing).truncated
        sent, truth = task.simulator.view().sent[0].sum(axis=0), task.simulator.truth()
        books = {key: int(value[0]) for key, value in task.simulator.books()._asdict().items()}
        received, rif = truth.received[0].sum(axis=0).copy(), truth.rif[0].copy()
        shown.append((float(task.simulator.time_s[0]), sent.copy(), received, rif, books))
    assert truncated.tolist() == [True]
    metrics = task.summary(0)
    assert metrics["requests"] == metrics["answered"] + metrics["errors"] + metrics["unfinished"]
    task.drain()
    log = task.simulator.request_log(0)
    for time_s, sent, received, rif, books in shown:
        assert books.pop("retrying") == 0
        assert books == books_at(log, time_s)
        for cell in range(3):
            own = {name: column[log["cell"] == cell] for name, column in log.items()}
            at_leaf, error = own["leaf_s"] <= time_s, is_error(own)
            done, refused = at_leaf & ~error & (own["done_s"] <= time_s), at_leaf & error
            assert received[cell] == rif[cell] + done.sum() + refused.sum()
            under_way = (own["arrival_s"] <= time_s) & ~at_leaf
            assert sent[cell] == received[cell] + under_way.sum()
        assert sent.sum() == books["arrived"]
    assert is_error(log).sum() > 20


@pytest.mark.parametrize("queue_limit", [1, 100])
def test_an_episode_in_which_nothing_completes_has_well_formed_metrics(queue_limit: int) -> None:
    """Fault kind 25: 0.1 s from empty, where a request takes 1.1 s on average, none of these less.

    With queues of one at 1,000 % load some are refused, so that there are errors and no answer.
    """
    crowd = ring(
        2, demand={"utilisation": 10.0}, server={"queue_limit": queue_limit}, warmup_s=0.0,
        horizon_s=0.1,
    )  # fmt: skip
    env = DLBEnv(crowd)
    *_, infos = play(env, drawn_actions(env.action_space, 1), seed=0)
    metrics = infos[-1]["metrics"]
    assert metrics["answered"] == 0
    assert metrics["requests"] == metrics["errors"] + metrics["unfinished"] > 30
    assert (metrics["errors"] > 0) == (queue_limit == 1)
    assert metrics["error_rate"] == float(queue_limit == 1)
    latencies = [metrics[name] for name in metrics if name.startswith(("latency", "ttft", "tpot"))]
    assert len(latencies) == 15
    assert np.isnan(latencies).all()
    rest = {name for name in metrics if not name.startswith(("latency", "ttft", "tpot"))}
    assert all(np.isfinite(metrics[name]) for name in rest)


def ring_env(cells: int, max_cells: int = 10) -> DLBEnv:
    return DLBEnv(ring(cells), max_cells=max_cells)


def test_scenarios_of_two_five_and_ten_cells_share_spaces_and_zero_padding() -> None:
    """Fault kind 17."""
    first = ring_env(2)
    for cells in (2, 5, 10):
        env = ring_env(cells)
        assert env.observation_space == first.observation_space
        assert env.action_space == first.action_space
        observations, *_ = play(env, drawn_actions(env.action_space, STEPS), seed=0)
        cube = np.array(observations).reshape(-1, 10, 10, len(FIELDS))
        assert not cube[:, cells:].any()
        assert not cube[:, :, cells:].any()
        assert cube[:, :cells, :cells, 0].all()


@pytest.mark.parametrize("action", ENCODINGS)
def test_what_an_action_says_of_padding_changes_nothing(action: str) -> None:
    """Fault kind 17."""
    env = DLBEnv(ring(2), max_cells=10, action=action)  # type: ignore[arg-type]
    actions = drawn_actions(env.action_space, STEPS)
    other = drawn_actions(env.action_space, STEPS, seed=1)
    other[:, :2, :2] = actions[:, :2, :2]
    one, two = play(env, actions, seed=0), play(env, other, seed=0)
    np.testing.assert_array_equal(one[0], two[0])
    assert one[1] == two[1]


@pytest.mark.parametrize("action", ENCODINGS)
def test_wild_actions_leave_everything_finite(action: str) -> None:
    """Fault kind 16."""
    env = DLBEnv(changes=short(), action=action)  # type: ignore[arg-type]
    env.reset(seed=0)
    for row in (np.full(6, 1e30), np.full(6, -1e30), np.zeros(6), [1e30, -1e30, 0, 1, 5, -5]):
        observation, reward, *_ = env.step(np.tile(np.asarray(row, np.float32), (6, 1)))
        assert np.isfinite(reward)
        assert np.isfinite(observation).all()


def test_importing_twice_registers_once() -> None:
    """Fault kind 14."""
    import importlib

    importlib.reload(dlb_gym)
    assert gym.spec("DLB-v0").entry_point == "dlb_gym.envs:DLBEnv"
    assert gym.spec("DLB-v0").max_episode_steps is None


def test_a_name_that_the_package_does_not_have_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'dlb_gym' has no attribute 'DLBenv'"):
        dlb_gym.DLBenv  # noqa: B018


def test_metrics_are_to_be_had_where_a_wrapper_ends_the_episode() -> None:
    env = gym.make("DLB-v0", max_episode_steps=3, changes={"warmup_s": 1.0, "horizon_s": 2.0})
    env.reset(seed=0)
    action = np.ones(env.action_space.shape or (), dtype=np.float32)
    ends = [env.step(action)[3:] for _ in range(3)]
    assert [truncated for truncated, _ in ends] == [False, False, True]
    metrics = env.unwrapped.metrics()  # type: ignore[attr-defined]
    assert metrics["utilisation"] == pytest.approx(0.8, rel=0.5)
    assert metrics["requests"] == pytest.approx(0.3 * 356, rel=0.5)  # Poisson, 107 expected


def test_a_disturbance_that_cannot_be_brought_about_is_refused_at_once() -> None:
    with pytest.raises(ScenarioError, match="to_utilisation"):
        gym.make("DLB-v0", changes={"disturbances": [{"kind": "burst", "to_utilisation": 0.5}]})
