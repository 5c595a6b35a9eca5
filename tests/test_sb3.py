"""The face for Stable-Baselines3: its dialect, its wrappers, its training and its evaluation."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.vector import AsyncVectorEnv
from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import SubprocVecEnv, VecMonitor, VecNormalize

import baselines
from agents.training import NETWORKS, Training
from dlb_gym.actions import to_routing
from dlb_gym.envs import DLBVectorEnv
from dlb_gym.sb3 import DLBVecEnv
from tests.environment_maker import EnvironmentMaker
from tests.short_episodes import STEPS, drawn_actions, ring, short

ROWS = 3


@pytest.fixture(autouse=True)
def _one_torch_thread() -> None:
    torch.set_num_threads(1)


def batch(**keywords: Any) -> DLBVecEnv:
    return DLBVecEnv(ROWS, **({"changes": short()} | keywords))


def batch_actions(count: int, seed: int = 0) -> Any:
    space = batch().action_space
    return drawn_actions(gym.vector.utils.batch_space(space, ROWS), count, seed)


def test_rows_are_those_of_the_native_batch_bit_for_bit() -> None:
    env = batch(seed=4)
    vector = DLBVectorEnv(ROWS, changes=short(), action="logits", autoreset_mode="SameStep")
    np.testing.assert_array_equal(env.reset(), vector.reset(seed=4)[0])
    for action in batch_actions(2 * STEPS + 1):
        observation, reward, done, infos = env.step(action)
        expected = vector.step(action)
        assert observation.tobytes() == expected[0].tobytes()
        assert reward.tobytes() == expected[1].astype(np.float32).tobytes()
        np.testing.assert_array_equal(done, expected[3])
        for row in np.flatnonzero(done):
            np.testing.assert_array_equal(
                infos[row]["terminal_observation"], expected[4]["final_obs"][row]
            )


def test_the_horizon_is_a_time_limit_with_the_last_observation_and_the_episodes_sums() -> None:
    """Fault kinds 12 and 20."""
    env, actions = batch(), batch_actions(2 * STEPS)
    env.reset()
    rewards = []
    for step, action in enumerate(actions):
        observation, reward, done, infos = env.step(action)
        rewards.append(reward.astype(np.float64))
        ends = (step + 1) % STEPS == 0
        assert done.tolist() == [ends] * ROWS
        assert all(("episode" in info) == ends for info in infos)
    episode_returns = np.sum(rewards[STEPS:], axis=0)
    for row, info in enumerate(infos):
        last = info["terminal_observation"]
        assert last.dtype == env.observation_space.dtype
        assert env.observation_space.contains(last)
        assert not np.array_equal(last, observation[row])
        assert info["TimeLimit.truncated"] is True
        assert set(info["episode"]) == {"r", "l", "t"}
        assert [type(info["episode"][key]) for key in "rlt"] == [float, int, float]
        assert info["episode"]["l"] == STEPS
        assert info["episode"]["t"] > 0
        assert info["episode"]["r"] == pytest.approx(episode_returns[row], rel=1e-6)


def test_arrays_have_the_types_and_shapes_that_sb3_stores() -> None:
    """Fault kind 1, for the rows of the batch."""
    env = batch()
    observation = env.reset()
    assert (observation.shape, observation.dtype) == (
        (ROWS, *env.observation_space.shape),
        np.float32,
    )
    observation, reward, done, infos = env.step(batch_actions(1)[0])
    assert (observation.dtype, reward.dtype, done.dtype) == (np.float32, np.float32, np.bool_)
    assert reward.shape == done.shape == (ROWS,)
    assert len(infos) == ROWS
    for one, ended in zip(reward.tolist(), done.tolist(), strict=True):
        assert (type(one), type(ended)) == (float, bool)


def test_it_counts_as_wrapped_by_monitor_and_by_nothing_else() -> None:
    env = batch()
    assert env.env_is_wrapped(Monitor) == [True] * ROWS
    assert env.env_is_wrapped(gym.wrappers.TimeLimit, indices=[0, 2]) == [False, False]
    assert env.get_attr("num_envs", indices=1) == [ROWS]
    with pytest.raises(AttributeError, match="'gamma' cannot be set: the rows of DLBVecEnv share"):
        env.set_attr("gamma", 0.5)


def test_seeds_count_from_the_constructors_and_seed_takes_effect_at_the_next_reset() -> None:
    env = batch(seed=2)
    first = env.reset()
    following = env.reset()
    assert not np.array_equal(first, following)
    assert env.seed(2) == [2, 3, 4]
    np.testing.assert_array_equal(env.reset(), first)
    np.testing.assert_array_equal(batch(seed=3).reset()[:2], first[1:])


def test_a_wrong_action_changes_nothing() -> None:
    env, twin, action = batch(), batch(), batch_actions(1)[0]
    env.reset()
    twin.reset()
    bad = action.copy()
    bad[2, 0, 1] = np.nan
    for wrong, message in ((bad, "replication 2, root 0, cell 1 is nan"), (action[:2], "shape")):
        with pytest.raises(ValueError, match=message):
            env.step(wrong)
    for one, two in zip(env.step(action)[:3], twin.step(action)[:3], strict=True):
        assert one.tobytes() == two.tobytes()
    with pytest.raises(ValueError, match="num_envs = 0 must be at least 1"):
        DLBVecEnv(0)


def test_ppo_trains_on_the_batch_and_logs_episodes() -> None:
    """Fault kinds 11 and 20."""
    env = batch()
    model = PPO("MlpPolicy", env, n_steps=32, batch_size=96, n_epochs=1, seed=0, device="cpu")
    model.learn(256)
    assert model.num_timesteps >= 256
    assert model.ep_info_buffer is not None
    assert len(model.ep_info_buffer) == ROWS * (model.num_timesteps // ROWS // STEPS)
    assert {info["l"] for info in model.ep_info_buffer} == {STEPS}


def test_ppo_learns_on_the_single_environment_for_2048_steps() -> None:
    """The longest test: one rollout of PPO's default length, in the README's words."""
    env = gym.make("DLB-v0", changes=short(steps=64))
    model = PPO("MlpPolicy", env, seed=0, device="cpu", n_epochs=2)
    before = model.policy.parameters_to_vector().copy()
    model.learn(2048)
    after = model.policy.parameters_to_vector()
    assert np.isfinite(after).all()
    assert not np.array_equal(before, after)
    assert model.num_timesteps == 2048


def test_evaluate_policy_takes_a_baseline_on_a_monitored_environment_and_on_the_batch() -> None:
    """Fault kind 20. No warning, and the same mean: row r of seed s is seed s + r."""
    alone = Monitor(gym.make("DLB-v0", changes=short(steps=20)))
    policy = baselines.make("flow-gradient", alone)
    rewards = [_return(policy, alone, seed) for seed in range(ROWS)]
    mean, _ = evaluate_policy(baselines.make("flow-gradient", alone), alone, n_eval_episodes=2)
    assert mean < 0
    together = batch(action="weights", changes=short(steps=20))
    mean, _ = evaluate_policy(
        baselines.make("flow-gradient", together), together, n_eval_episodes=ROWS
    )
    assert mean == pytest.approx(np.mean(rewards), rel=1e-6)


def _return(policy: Any, env: Any, seed: int) -> float:
    observation, _ = env.reset(seed=seed)
    total, start, ended = 0.0, np.array([True]), False
    while not ended:
        action, _ = policy.predict(observation, None, start)
        observation, reward, _, ended, _ = env.step(action)
        total, start = total + reward, np.array([False])
    return total


@pytest.mark.parametrize("wrapper", [VecNormalize, VecMonitor])
def test_sb3s_wrappers_take_the_batch(wrapper: Any) -> None:
    if wrapper is VecMonitor:
        with pytest.warns(UserWarning, match="already wrapped with a `Monitor`"):
            env = wrapper(batch())
    else:
        env = wrapper(batch())
    assert np.isfinite(env.reset()).all()
    for action in batch_actions(2 * STEPS):
        observation, reward, done, infos = env.step(action)
        assert np.isfinite(observation).all()
        assert np.isfinite(reward).all()
    assert done.all()
    assert [info["episode"]["l"] for info in infos] == [STEPS] * ROWS
    assert all("terminal_observation" in info for info in infos)


def initial_actions(policy: Any, **keywords: Any) -> tuple[Any, Any]:
    """What a policy answers before it learns to 1,000 observations: raw, and as played."""
    env = DLBVecEnv(50, changes=short(steps=20))
    shape = {"n_steps": 8, "batch_size": 400, "seed": 0, "device": "cpu"}
    model = PPO(policy, env, **shape, **keywords)
    actions = drawn_actions(gym.vector.utils.batch_space(env.action_space, 50), 19)
    observations = np.concatenate([env.reset(), *(env.step(each)[0] for each in actions)])
    assert len(observations) == 1000
    with torch.no_grad():
        raw = model.policy(torch.as_tensor(observations))[0].numpy()
    return raw, model.predict(observations)[0]


def assert_routable(actions: Any) -> None:
    """On the simplex, with a share for every cell."""
    routing = to_routing(actions, "logits", np.ones(actions.shape, dtype=np.bool_))
    assert (routing > 0).all()
    np.testing.assert_allclose(routing.sum(axis=-1), 1.0, rtol=1e-12)


def test_the_initial_gaussian_policy_stays_within_the_bounds_of_logits() -> None:
    """Fault kind 15. PPO starts with N(0, 1): P(|a| > 1) = 31.7 %, 99.9 % of such means +-0.8 %.

    On `weights`, of which half the normal's mass lies below 0, two of three would be clipped.
    """
    raw, actions = initial_actions("MlpPolicy")
    assert np.mean(np.abs(raw) > 1.0) < 0.317 + 0.01
    assert_routable(actions)


def test_our_own_agent_starts_far_from_the_bounds() -> None:
    """Fault kind 15: the limit of what the default training may clip at its start is 1 %."""
    raw, actions = initial_actions(
        NETWORKS[Training().network][0],
        use_sde=True,
        policy_kwargs={"log_std_init": math.log(Training().action_std)},
    )
    assert np.mean(np.abs(raw) > 1.0) < 0.01
    assert_routable(actions)


def test_sb3_refuses_gymnasiums_batch_by_the_name_of_a_class_that_says_what_to_take() -> None:
    """Fault kind 11. SB3 writes the message; what it tells of us is a class, which names ours."""
    env: Any = DLBVectorEnv(ROWS, changes=short())
    with pytest.raises(ValueError, match=r"'dlb_gym\.envs\.DLBVectorEnv'>, not a Gymnasium"):
        PPO("MlpPolicy", env, device="cpu")
    assert "Stable-Baselines3 takes `dlb_gym.DLBVecEnv` instead" in str(DLBVectorEnv.__doc__)


def test_one_model_plays_scenarios_of_2_5_and_10_cells() -> None:
    """Fault kind 17. SB3 itself compares the spaces in `set_env`."""
    batches = [DLBVecEnv(ROWS, scenario=ring(cells), max_cells=10) for cells in (2, 5, 10)]
    model = PPO("MlpPolicy", batches[0], n_steps=8, batch_size=24, seed=0, device="cpu")
    for env in batches:
        model.set_env(env)
        actions, _ = model.predict(env.reset())
        assert actions.shape == (ROWS, 10, 10)
        assert np.isfinite(env.step(actions)[1]).all()
    with pytest.raises(ValueError, match="Observation spaces do not match"):
        model.set_env(DLBVecEnv(ROWS, scenario=ring(2)))


def makers() -> list[EnvironmentMaker]:
    """One worker by either id."""
    return [EnvironmentMaker(name, changes=short()) for name in ("DLB-v0", "dlb_gym:DLB-v0")]


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_sb3s_workers_know_both_ids(context: str) -> None:
    """Fault kind 14."""
    env = SubprocVecEnv(makers(), start_method=context)  # type: ignore[arg-type]
    try:
        env.seed(3)
        np.testing.assert_array_equal(
            env.reset(), DLBVectorEnv(2, changes=short()).reset(seed=3)[0]
        )
    finally:
        env.close()


@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_workers_of_gymnasiums_batch_know_both_ids(context: str) -> None:
    """Fault kind 14."""
    env = AsyncVectorEnv(makers(), context=context)
    try:
        vector = DLBVectorEnv(2, changes=short())
        np.testing.assert_array_equal(env.reset(seed=3)[0], vector.reset(seed=3)[0])
        actions = drawn_actions(vector.action_space, 1)[0]
        np.testing.assert_array_equal(env.step(actions)[0], vector.step(actions)[0])
    finally:
        env.close()
