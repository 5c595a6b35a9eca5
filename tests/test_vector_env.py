"""The native batch: autoreset modes, statistics wrappers, metadata, partial resets."""

from __future__ import annotations

import copy
import os
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from gymnasium.wrappers.vector import NormalizeReward, RecordEpisodeStatistics

from benchmarks import faces
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from tests.short_episodes import STEPS, drawn_actions, play, short

MODES = ("NextStep", "SameStep", "Disabled")
ROWS = 2


def batch(mode: str = "NextStep", **keywords: Any) -> DLBVectorEnv:
    return DLBVectorEnv(ROWS, changes=short(), autoreset_mode=mode, **keywords)


def batch_actions(count: int, seed: int = 0) -> Any:
    return drawn_actions(batch().action_space, count, seed)


def single(row: int, actions: Any, seed: int = 0, episodes: int = 1) -> list[Any]:
    """Row `row` of a batch seeded with `seed`, played alone: the episodes one after the other."""
    env = DLBEnv(changes=short())
    played = []
    for episode in range(episodes):
        mine = actions[episode * STEPS : (episode + 1) * STEPS, row]
        played.append(play(env, mine, seed=seed + row if episode == 0 else None))
    return played


def test_next_step_returns_the_last_observation_and_then_resets_whatever_the_action() -> None:
    """Fault kind 7."""
    env, actions = batch("NextStep"), batch_actions(2 * STEPS)
    alone = [single(row, actions, episodes=2) for row in range(ROWS)]
    env.reset(seed=0)
    for action in actions[:STEPS]:
        observation, _, _, truncated, infos = env.step(action)
    assert truncated.all()
    assert infos["_metrics"].all()
    for row in range(ROWS):
        np.testing.assert_array_equal(observation[row], alone[row][0][0][STEPS])
    observation, reward, terminated, truncated, infos = env.step(np.full_like(action, np.nan))
    assert not reward.any()
    assert not terminated.any()
    assert not truncated.any()
    assert infos["episode_number"].tolist() == [1, 1]
    for row in range(ROWS):
        np.testing.assert_array_equal(observation[row], alone[row][1][0][0])
    for step, action in enumerate(actions[STEPS:]):
        observation, reward, *_ = env.step(action)
        for row in range(ROWS):
            np.testing.assert_array_equal(observation[row], alone[row][1][0][step + 1])
            assert reward[row] == alone[row][1][1][step]


def test_same_step_resets_at_once_and_keeps_the_final_observation_and_info() -> None:
    """Fault kind 7."""
    env, actions = batch("SameStep"), batch_actions(2 * STEPS)
    alone = [single(row, actions, episodes=2) for row in range(ROWS)]
    env.reset(seed=0)
    for action in actions[:STEPS]:
        observation, reward, _, truncated, infos = env.step(action)
    assert truncated.all()
    for row in range(ROWS):
        (observations, rewards, _, ended), following = alone[row]
        np.testing.assert_array_equal(infos["final_obs"][row], observations[STEPS])
        np.testing.assert_array_equal(observation[row], following[0][0])
        assert reward[row] == rewards[-1]
        metrics = infos["final_info"]["metrics"]
        assert {k: v[row] for k, v in metrics.items() if k[0] != "_"} == pytest.approx(
            ended[-1]["metrics"], rel=0, abs=0, nan_ok=True
        )
    assert infos["_final_info"].all()
    assert infos["episode_number"].tolist() == [1, 1]
    observation, _, _, truncated, infos = env.step(actions[STEPS])
    assert not truncated.any()
    assert "final_obs" not in infos
    for row in range(ROWS):
        np.testing.assert_array_equal(observation[row], alone[row][1][0][1])


def test_same_step_tells_rows_that_end_from_rows_that_go_on() -> None:
    """Row 0 plays a scenario of five steps, row 1 one of nine."""
    scenarios = [
        {"base": "global_six", "name": str(steps), **short(steps=steps)} for steps in (5, 9)
    ]
    env = DLBVectorEnv(ROWS, scenario=scenarios, autoreset_mode="SameStep")
    env.reset(seed=0)
    for action in batch_actions(5):
        _, reward, _, truncated, infos = env.step(action)
    assert truncated.tolist() == [True, False]
    assert infos["_final_obs"].tolist() == infos["_final_info"].tolist() == [True, False]
    assert infos["final_obs"][1] is None
    ended, going = infos["final_info"]["reward_terms"], infos["reward_terms"]
    assert ended["_in_system"].tolist() == [True, False]
    assert going["_in_system"].tolist() == [False, True]
    assert ended["in_system"][0] + ended["errors"][0] == reward[0]
    assert going["in_system"][1] + going["errors"][1] == reward[1]
    assert ended["in_system"][1] == ended["errors"][1] == 0.0
    assert going["in_system"][0] == going["errors"][0] == 0.0


def test_disabled_waits_for_a_reset_of_the_rows_that_ended() -> None:
    env, actions = batch("Disabled"), batch_actions(2 * STEPS)
    alone = single(1, actions, episodes=2)
    env.reset(seed=0)
    for action in actions[:STEPS]:
        observation, *_ = env.step(action)
    with pytest.raises(RuntimeError, match=r"rows \[0, 1\] have no running episode; call reset"):
        env.step(actions[STEPS])
    after, infos = env.reset(options={"reset_mask": np.array([False, True])})
    np.testing.assert_array_equal(after[0], observation[0])
    np.testing.assert_array_equal(after[1], alone[1][0][0])
    assert infos["_episode_number"].tolist() == [False, True]
    with pytest.raises(RuntimeError, match=r"rows \[0\] have no running episode"):
        env.step(actions[STEPS])
    env.reset(options={"reset_mask": np.array([True, False])})
    observation, *_ = env.step(actions[STEPS])
    np.testing.assert_array_equal(observation[1], alone[1][0][1])


def test_a_partial_reset_in_mid_episode_leaves_the_other_rows_as_they_were() -> None:
    env, actions = batch("Disabled"), batch_actions(STEPS)
    undisturbed = single(0, actions)[0]
    env.reset(seed=0)
    for step, action in enumerate(actions):
        observation, reward, *_ = env.step(action)
        np.testing.assert_array_equal(observation[0], undisturbed[0][step + 1])
        assert reward[0] == undisturbed[1][step]
        env.reset(seed=[None, 9], options={"reset_mask": np.array([False, True])})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([True, False], "must be a numpy array of bool"),
        (np.array([1, 0]), "must be a numpy array of bool"),
        (np.array([True]), r"must have shape \(2,\) and a True entry"),
        (np.array([False, False]), "and a True entry"),
    ],
)
def test_a_wrong_reset_mask_is_refused_and_changes_nothing(mask: Any, message: str) -> None:
    env, twin, actions = batch(), batch(), batch_actions(1)
    env.reset(seed=0)
    twin.reset(seed=0)
    with pytest.raises(ValueError, match=message):
        env.reset(seed=5, options={"reset_mask": mask})
    for one, two in zip(env.step(actions[0])[:2], twin.step(actions[0])[:2], strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("mode", MODES)
def test_recorded_statistics_are_the_single_environments(mode: str) -> None:
    """Fault kind 8."""
    actions = batch_actions(2 * STEPS)
    env = RecordEpisodeStatistics(batch(mode))
    env.reset(seed=0)
    recorded, taken = [], 0
    for _ in range(2 * STEPS + (mode == "NextStep")):
        waits = mode == "NextStep" and len(recorded) == 1 and taken == STEPS
        infos = env.step(actions[0] if waits else actions[taken])[4]
        if waits:
            recorded.append(None)
            continue
        taken += 1
        if "episode" in infos and infos.get("_episode", np.zeros(1)).all() and taken % STEPS == 0:
            recorded.append(infos["episode"])
            if mode == "Disabled" and taken == STEPS:
                env.reset(options={"reset_mask": np.ones(ROWS, dtype=np.bool_)})
    episodes = [entry for entry in recorded if entry is not None]
    assert len(episodes) == 2
    for number, episode in enumerate(episodes):
        assert episode["l"].tolist() == [STEPS] * ROWS
        for row in range(ROWS):
            rewards = single(row, actions, episodes=2)[number][1]
            assert episode["r"][row] == pytest.approx(sum(rewards), rel=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_normalised_rewards_are_those_of_gymnasiums_own_batch(mode: str) -> None:
    """Fault kind 8. SyncVectorEnv of single environments is the yardstick; rewards are the same."""
    actions = batch_actions(2 * STEPS + 1)
    ours = NormalizeReward(batch(mode))
    sync = gym.vector.SyncVectorEnv(
        [lambda: DLBEnv(changes=short())] * ROWS, autoreset_mode=AutoresetMode(mode)
    )
    theirs = NormalizeReward(sync)
    for env in (ours, theirs):
        env.reset(seed=0)
    for action in actions:
        one, two = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(one[1], two[1], rtol=1e-12)
        np.testing.assert_array_equal(one[3], two[3])
        if mode == "Disabled" and one[3].all():
            for env in (ours, theirs):
                env.reset(options={"reset_mask": np.ones(ROWS, dtype=np.bool_)})
    assert ours.return_rms.count == theirs.return_rms.count
    assert ours.return_rms.var == pytest.approx(theirs.return_rms.var, rel=1e-12)


def test_each_instance_keeps_its_own_mode() -> None:
    """Fault kind 9."""
    envs = [batch(mode) for mode in MODES]
    assert [env.metadata["autoreset_mode"] for env in envs] == [AutoresetMode(m) for m in MODES]
    assert "autoreset_mode" not in DLBVectorEnv.metadata
    assert batch(AutoresetMode.SAME_STEP).metadata["autoreset_mode"] is AutoresetMode.SAME_STEP  # type: ignore[arg-type]


def test_spaces_are_the_batched_single_ones_and_rows_have_gymnasiums_types() -> None:
    env, alone = batch(), DLBEnv(changes=short())
    assert env.single_observation_space == alone.observation_space
    assert env.single_action_space == alone.action_space
    env.reset(seed=0)
    observation, reward, terminated, truncated, _ = env.step(batch_actions(1)[0])
    assert env.observation_space.contains(observation)
    assert (reward.dtype, terminated.dtype, truncated.dtype) == (np.float64, np.bool_, np.bool_)
    assert reward.shape == terminated.shape == truncated.shape == (ROWS,)
    assert not terminated.any()


def test_what_a_step_returned_stays_as_it_was() -> None:
    env, actions = batch("SameStep"), batch_actions(STEPS + 1)
    env.reset(seed=0)
    returned, kept = [], []
    for action in actions:
        observation, reward, _, truncated, infos = env.step(action)
        terms = infos.get("reward_terms", {}).get("in_system", reward)
        returned.append((observation, reward, truncated, terms))
        kept.append(copy.deepcopy(returned[-1]))
    for one, two in zip(returned, kept, strict=True):
        for a, b in zip(one, two, strict=True):
            np.testing.assert_array_equal(a, b)


def test_one_seed_counts_up_row_by_row_and_may_be_numpys() -> None:
    expected = batch().reset(seed=[4, 5])[0]
    for seed in (4, np.int64(4), np.array([4, 5])):
        np.testing.assert_array_equal(batch().reset(seed=seed)[0], expected)


def test_an_unseeded_reset_after_a_seed_is_every_rows_next_episode() -> None:
    """Fault kind 5, for the batch."""
    env = batch()
    pairs = [(env.reset(seed=7)[0], env.reset()[0]) for _ in range(2)]
    np.testing.assert_array_equal(pairs[0], pairs[1])
    for row in range(ROWS):
        assert not np.array_equal(pairs[0][0][row], pairs[0][1][row])


@pytest.mark.filterwarnings("ignore:.* is multi-threaded:DeprecationWarning")
def test_one_table_compares_the_speeds_of_all_faces() -> None:
    """Fault kind 22: that the figures exist, with the cores and threads they had; not how large."""
    title, sizes, *rows = faces.table(sizes=(1, 2), rounds=1, round_s=0.0).splitlines()
    assert f"{len(os.sched_getaffinity(0))} cores, one thread a process" in title
    assert sizes.split() == ["n", "=", "1", "n", "=", "2"]
    figures = {line[:18].strip(): line[18:].split() for line in rows}
    assert set(figures) == {
        "native vector", "native SB3", "Gymnasium sync", "Gymnasium async", "SB3 dummy",
        "SB3 subproc",
    }  # fmt: skip
    for pair in figures.values():
        assert all(float(figure.replace(",", "")) > 0 for figure in pair)
        assert len(pair) == 2


@pytest.mark.parametrize("mode", MODES)
def test_copies_of_a_batch_made_in_mid_episode_continue_identically(mode: str) -> None:
    env, actions = batch(mode), batch_actions(STEPS)
    env.reset(seed=0)
    env.step(actions[0])
    twins = (copy.deepcopy(env), pickle.loads(pickle.dumps(env)))
    for action in actions[1:]:
        expected = env.step(action)
        for twin in twins:
            for one, two in zip(expected[:4], twin.step(action)[:4], strict=True):
                assert one.tobytes() == two.tobytes()
