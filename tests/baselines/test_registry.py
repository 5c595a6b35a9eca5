from __future__ import annotations

import json
from importlib import import_module

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv

import baselines
from baselines.registry import BASELINES
from dlb_gym.envs import DLBEnv
from dlb_gym.observation import Observation
from dlb_gym.policy import Policy, TaskSpec, task_spec_of
from dlb_gym.policy_check import check_policy
from tests.baselines.scenes import observe


class Echo(gym.Env[np.ndarray, np.ndarray]):
    """Rewards the share of root 0 that goes to cell 0; two steps an episode."""

    task_spec = TaskSpec(2, 3, Observation(2, 3))
    observation_space = spaces.Box(-np.inf, np.inf, observe(2, 3)[0].shape, np.float32)
    action_space = spaces.Box(0.0, 1.0, (2, 3), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None):
        self.left = 2
        return observe(2, 3, servers=[0.25, 0.5, 0.25])[0], {}

    def step(self, action: np.ndarray):
        assert action.shape == (2, 3)
        self.left -= 1
        return observe(2, 3)[0], float(action[0, 0]), False, self.left == 0, {}


ORACLES = [name for name in baselines.names() if baselines.make(name).information == "oracle"]


@pytest.mark.parametrize("name", [name for name in baselines.names() if name not in ORACLES])
def test_every_baseline_keeps_the_contract(name: str) -> None:
    policy = baselines.make(name)
    assert type(policy).reveal is Policy.reveal  # what oracles are told is for them alone
    check_policy(policy)


@pytest.mark.parametrize("name", ORACLES)
def test_oracles_say_what_they_lack(name: str) -> None:
    policy = baselines.make(name, Echo())
    with pytest.raises(ValueError, match=r"is an oracle and was told nothing: evaluate it with"):
        policy.predict(observe(2, 3))
    with pytest.raises(ValueError, match=r"is an oracle, and synthetic observations have no scen"):
        check_policy(policy)


@pytest.mark.parametrize("name", baselines.names())
def test_a_baselines_name_is_its_entry_and_its_keywords_are_json(name: str) -> None:
    module, attribute = BASELINES[name].policy.split(":")
    keywords = json.loads(json.dumps(dict(BASELINES[name].keywords)))
    assert getattr(import_module(module), attribute)(**keywords).name == name


def test_an_unknown_name_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match=r"baseline 'flow-gradiant' is unknown; nearest.*'flow-gradient'; ch"
    ):
        baselines.make("flow-gradiant")


def test_evaluate_policy_runs_a_baseline_on_one_environment_and_on_a_batch() -> None:
    wrapped = gym.wrappers.TimeLimit(Echo(), 5)
    for env in (wrapped, DummyVecEnv([Echo, Echo, Echo])):
        policy = baselines.make("random", env)
        with pytest.warns(UserWarning, match="not wrapped with a ``Monitor``"):
            mean, _ = evaluate_policy(policy, env, n_eval_episodes=3)
        # A quarter by live servers, then a third (the scene's default: equal cells).
        assert mean == pytest.approx(1 / 4 + 1 / 3)


def test_predict_answers_one_row_as_it_answers_a_batch() -> None:
    policy = baselines.make("flow-rif", Echo())
    batch, _ = policy.predict(observe(2, 3, 4, rif=[1.0, 2.0, 3.0]))
    single, state = policy.predict(observe(2, 3, rif=[1.0, 2.0, 3.0])[0])
    assert (batch.shape, single.shape, batch.dtype, state) == ((4, 2, 3), (2, 3), np.float32, None)
    np.testing.assert_array_equal(batch, np.broadcast_to(single, batch.shape))


def test_episode_start_restarts_its_rows_only() -> None:
    policy = baselines.make("capacity", Echo())
    policy.predict(observe(2, 3, 2, capacity_load=[0.5, 0.25, 0.25]), None, np.ones(2))
    later = observe(2, 3, 2, capacity_load=[0.25, 0.25, 0.5])
    action, _ = policy.predict(later, None, np.array([False, True]))
    np.testing.assert_array_equal(action[:, 0], [[0.5, 0.25, 0.25], [0.25, 0.25, 0.5]])


def test_the_task_is_found_through_gymnasium_and_sb3_and_missed_by_name() -> None:
    vector = gym.vector.SyncVectorEnv([Echo, Echo])
    for env in (Echo(), gym.wrappers.TimeLimit(Echo(), 5), vector, DummyVecEnv([Echo])):
        assert task_spec_of(env) is Echo.task_spec
    for env in (gym.make("CartPole-v1"), DummyVecEnv([lambda: gym.make("CartPole-v1")])):
        with pytest.raises(ValueError, match="has no attribute `task_spec`; pass a DLB-v0 environ"):
            task_spec_of(env)


def test_a_policy_without_a_task_says_so() -> None:
    with pytest.raises(ValueError, match=r"'random' knows no task yet; call reset\(spec, num_"):
        baselines.make("random").predict(observe(2, 3))


def test_a_baseline_refuses_an_environment_whose_actions_are_logits() -> None:
    env = DLBEnv(action="logits", changes={"warmup_s": 0.0, "horizon_s": 1.0})
    policy = baselines.make("random", env)
    observation, _ = env.reset(seed=0)
    with pytest.raises(ValueError, match="actions are logits; make the environment"):
        policy.predict(observation)
