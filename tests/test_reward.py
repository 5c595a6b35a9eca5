"""Rewards by name, against hand computation and against the request log."""

from __future__ import annotations

import copy
import itertools
import pickle
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.episodes import episode_source
from dlb_gym.measurements import bin_edges_s, slowest_sum_s, within
from dlb_gym.reward import RewardFacts, latency_reward, make_reward, ttft_reward
from dlb_gym.task import Task
from dlb_gym.views import Truth
from tests.request_log import between, is_error
from tests.short_episodes import drawn_actions, play, ring

RATE_RPS, ZERO_LOAD_S, INTERVAL_S, PENALTY = 0.8 * 64, 1.1, 0.1, 10.0
MIDDLE = 1 + 1 / 128
"""Middle of the bin that begins at a power of two, over that power."""
BIN = 1 / 64
SLO_S = 1.25
NAMED = ("latency", "ttft", "tail(0.9)", "goodput(1.25)")
OVERLOAD = {"demand": {"utilisation": 1.2}, "server": {"queue_limit": 2}}


def histogram(*latencies_s: float) -> NDArray[np.int64]:
    """Of one row."""
    counts, _ = np.histogram(latencies_s, bin_edges_s())
    return counts[None].astype(np.int64)


def facts() -> RewardFacts:
    """10/s, Z = 2 s, h = 0.5 s, an error costs 4."""
    return RewardFacts(*(np.array([x]) for x in (10.0, 2.0, 0.5, 4.0)))


def truth(**fields: Any) -> Truth:
    nothing = dict.fromkeys(Truth._fields, np.zeros(1))
    return Truth(**nothing | {key: np.array([value]) for key, value in fields.items()})


class Measured:
    """Stands for a simulator: one row, and errors of the interval."""

    def __init__(self, errors: int = 0) -> None:
        self.counts, self.errors = histogram(), errors

    def add(self, *latencies_s: float) -> Any:
        self.counts = self.counts + histogram(*latencies_s)
        return self

    def measurements(self) -> Any:
        return SimpleNamespace(latency_histogram=self.counts)

    def truth(self) -> Truth:
        return truth(rejected=self.errors)


def test_latency_and_ttft_by_hand() -> None:
    """20 in system over 10/s and 2 s is 1; 3 errors in 0.5 s at 10/s cost 3/5 of the penalty.

    Times to first token that add up to 5 s in half a second are 10 s/s, half of 10/s x 2 s.
    """
    seen = truth(in_system_s=20.0 * 0.5, rejected=3, first_token_sum_s=5.0)
    latency, ttft = latency_reward(facts(), seen), ttft_reward(facts(), seen)
    assert latency["in_system"].tolist() == [-1.0]
    assert ttft["ttft"].tolist() == [-0.5]
    assert latency["errors"] == ttft["errors"] == pytest.approx(-4.0 * 3 / 5)


def test_the_slowest_share_by_hand() -> None:
    counts = histogram(1.0, 1.0, 1.0, 4.0)
    for share, sum_s in ((0.25, 4.0), (0.5, 5.0), (0.375, 4.5), (0.125, 2.0), (1.0, 7.0)):
        assert slowest_sum_s(counts, share) == pytest.approx(sum_s * MIDDLE, rel=1e-12)
    assert slowest_sum_s(histogram(), 0.5).tolist() == [0.0]
    both = np.concatenate([counts, histogram(), histogram(2.0)])
    expected = [5.0 * MIDDLE, 0.0, 0.5 * 2.0 * MIDDLE]
    assert slowest_sum_s(both, 0.5) == pytest.approx(expected, rel=1e-12)


def test_the_slowest_share_is_rockafellars_and_uryasevs_conditional_value_at_risk() -> None:
    """min_c sum (c + (l - c)+ / (1 - q)); some latency is a best c."""
    latencies_s = np.random.default_rng(0).lognormal(0.0, 1.0, 997)
    for q in (0.05, 0.5, 0.9, 0.99):
        excess_s = np.maximum(latencies_s - latencies_s[:, None], 0.0).sum(axis=1) / (1.0 - q)
        least_s = (len(latencies_s) * latencies_s + excess_s).min()
        share = 1.0 - q
        found_s = slowest_sum_s(histogram(*latencies_s), share)[0] / share
        assert found_s == pytest.approx(least_s, rel=BIN / 2)


def test_latencies_within_a_limit_by_hand() -> None:
    """2.5 is a bin's edge; a quarter of the bin from 2 s is 2 (1 + 1/256)."""
    counts = histogram(1.0, 2.0, 2.0, 2.49, 2.5, 4.0)
    assert within(counts, 2.5).tolist() == [4.0]
    assert within(counts, 2.0 * (1 + 1 / 256)).tolist() == [1.5]
    assert within(counts, 1e-6).tolist() == [0.0]
    assert within(counts, 1e6).tolist() == [6.0]


def test_the_tail_by_hand() -> None:
    """q = 0.5; V is 2 x the sum of the slower half: 1 s; 1, 4: 8 s; 1, 1, 1, 4: 10 s.

    Over rate h Z = 10 s: 2 x 0.5 x 1 for the first, then 7 and 2 s more.
    """
    reward, seen = make_reward("tail(0.5)", 1), Measured(errors=3)
    for latencies_s, grown_s in (((1.0,), 1.0), ((4.0,), 7.0), ((), 0.0), ((1.0, 1.0), 2.0)):
        terms = reward.terms(facts(), seen.add(*latencies_s))
        assert terms["tail"] == pytest.approx(-grown_s * MIDDLE / 10.0, rel=1e-12)
        assert terms["errors"] == pytest.approx(-4.0 * 3 / 5)
    reward.restart(0)
    terms = reward.terms(facts(), Measured().add(2.0))  # type: ignore[arg-type]
    assert terms["tail"] == pytest.approx(-2.0 * MIDDLE / 10.0, rel=1e-12)


def test_the_goodput_by_hand() -> None:
    """Five are offered in half a second at 10/s; errors are not charged again."""
    reward, seen = make_reward("goodput(2.5)", 1), Measured(errors=3)
    for latencies_s, share in (((1.0, 2.0, 4.0), 0.4), ((4.0,), 0.0), ((), 0.0), ((1.0,) * 5, 1.0)):
        assert reward.terms(facts(), seen.add(*latencies_s)) == {"goodput": pytest.approx(share)}
    reward.restart(0)
    terms = reward.terms(facts(), Measured().add(2.0))  # type: ignore[arg-type]
    assert terms == {"goodput": pytest.approx(0.2)}


def played(reward: str, steps: int, **changes: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Terms (steps,) of a ring of two under a uniform split, and the log of the drained task."""
    task = Task(episode_source(ring(2, **changes)), 1, reward=reward, log=True)
    task.reset(seeds=[0])
    split = np.where(task.admissible, 0.5, 0.0)
    moved = [task.step_routing(split) for _ in range(steps)]
    terms = {name: np.array([s.reward_terms[name][0] for s in moved]) for name in moved[0][3]}
    np.testing.assert_allclose([step.reward[0] for step in moved], sum(terms.values()), rtol=1e-12)
    task.drain()
    return terms, task.simulator.request_log(0)


def answered(log: dict[str, Any], start_s: float, end_s: float) -> Any:
    return between(log["answer_s"], start_s, end_s) & ~is_error(log)


EDGES = [INTERVAL_S * k for k in range(10, 51)]
"""Warm-up ends at 1 s, the horizon at 5 s."""


def test_ttft_sums_the_first_tokens_of_each_intervals_answers() -> None:
    """All of them: those that arrived in warm-up too."""
    terms, log = played("ttft", 40, horizon_s=4.0)
    tau_s = np.where(log["root"] == log["cell"], 0.0, 0.05)
    ttft_s = log["first_token_s"] + tau_s - log["arrival_s"]
    sums_s = [ttft_s[answered(log, *edges)].sum() for edges in itertools.pairwise(EDGES)]
    np.testing.assert_allclose(
        terms["ttft"], -np.array(sums_s) / (RATE_RPS * INTERVAL_S * ZERO_LOAD_S), rtol=1e-9
    )
    assert not terms["errors"].any()
    assert terms["ttft"].all()


def test_goodput_counts_each_intervals_measured_answers_within_the_slo() -> None:
    terms, log = played(f"goodput({SLO_S})", 40, horizon_s=4.0)
    good = (log["answer_s"] - log["arrival_s"] < SLO_S) & (log["arrival_s"] > 1.0)
    counts = [(good & answered(log, *edges)).sum() for edges in itertools.pairwise(EDGES)]
    assert 50 < sum(counts) < 200
    np.testing.assert_allclose(
        terms["goodput"], np.array(counts) / (RATE_RPS * INTERVAL_S), rtol=1e-12
    )


@pytest.mark.parametrize("q", [0.5, 0.95])
def test_the_tail_of_an_episode_adds_up_to_the_mean_of_its_slowest_answers(q: float) -> None:
    terms, log = played(f"tail({q})", 40, horizon_s=4.0)
    measured = answered(log, 1.0, 5.0) & (log["arrival_s"] > 1.0)
    slowest_s = np.sort((log["answer_s"] - log["arrival_s"])[measured])[::-1]
    wanted = (1.0 - q) * len(slowest_s)
    taken = np.clip(wanted - np.arange(len(slowest_s)), 0.0, 1.0)
    mean_s = (taken * slowest_s).sum() / wanted
    expected = -len(slowest_s) * mean_s / (RATE_RPS * INTERVAL_S * ZERO_LOAD_S)
    assert terms["tail"].sum() == pytest.approx(expected, rel=BIN / 2)
    assert (terms["tail"] <= 1e-12).all()


@pytest.mark.parametrize("reward", ["ttft", "tail(0.9)"])
def test_errors_cost_what_they_cost_in_the_default(reward: str) -> None:
    terms, _ = played(reward, 40, horizon_s=4.0, **OVERLOAD)
    expected, _ = played("latency", 40, horizon_s=4.0, **OVERLOAD)
    assert expected["errors"].any()
    np.testing.assert_array_equal(terms["errors"], expected["errors"])


@pytest.mark.parametrize("reward", [*NAMED, "tail(0.999999)", "goodput(1e-6)", "goodput(1e6)"])
@pytest.mark.parametrize("changes", [OVERLOAD, {"demand": {"utilisation": 1e-6}}])
def test_rewards_are_finite_where_nothing_arrives_and_where_all_is_refused(
    reward: str, changes: dict[str, Any]
) -> None:
    terms, _ = played(reward, 10, horizon_s=1.0, warmup_s=0.0, **changes)
    assert all(np.isfinite(term).all() for term in terms.values())


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize("reward", NAMED)
def test_rows_that_end_at_different_times_earn_what_they_earn_alone(reward: str, mode: str) -> None:
    """Two episodes of 1 s and of 1.5 s, whatever a row's neighbour does."""
    spans = (10, 15)
    scenarios = [ring(2, horizon_s=steps * INTERVAL_S, **OVERLOAD) for steps in spans]
    env = DLBVectorEnv(2, scenario=scenarios, reward=reward, autoreset_mode=mode)
    env.reset(seed=4)
    actions = drawn_actions(env.action_space, 40)
    earned: list[list[float]] = [[], []]
    chosen: list[list[Any]] = [[], []]
    ended = np.zeros(2, dtype=np.bool_)
    for action in actions:
        waits = ended.copy() if mode == "NextStep" else np.zeros(2, dtype=np.bool_)
        _, rewards, _, ended, _ = env.step(action)
        for row in np.flatnonzero(~waits):
            earned[row].append(float(rewards[row]))
            chosen[row].append(action[row])
        assert not rewards[waits].any()
        if mode == "Disabled" and ended.any():
            env.reset(options={"reset_mask": ended})
    for row, steps in enumerate(spans):
        alone = DLBEnv(scenarios[row], reward=reward)
        first = play(alone, np.array(chosen[row][:steps]), seed=4 + row)[1]
        second = play(alone, np.array(chosen[row][steps : 2 * steps]))[1]
        assert earned[row][: 2 * steps] == [*first, *second]


@pytest.mark.parametrize("reward", NAMED)
def test_an_episode_broken_off_leaves_nothing_to_the_next(reward: str) -> None:
    env = DLBEnv(ring(2, horizon_s=1.5), reward=reward)
    actions = drawn_actions(env.action_space, 15)
    whole = play(env, actions, seed=1)[1]
    play(env, actions[:7], seed=9)
    assert play(env, actions, seed=1)[1] == whole
    assert np.any(whole)


@pytest.mark.parametrize("reward", NAMED)
def test_copies_in_mid_episode_earn_the_same(reward: str) -> None:
    env = DLBVectorEnv(2, scenario=ring(2, horizon_s=1.5), reward=reward)
    env.reset(seed=0)
    actions = drawn_actions(env.action_space, 12)
    for action in actions[:8]:
        env.step(action)
    twins = (copy.deepcopy(env), pickle.loads(pickle.dumps(env)))
    for action in actions[8:]:
        expected = env.step(action)[1]
        for twin in twins:
            assert twin.step(action)[1].tobytes() == expected.tobytes()


def test_the_default_is_latency_and_functions_are_taken_by_name() -> None:
    env, default = (DLBEnv(ring(2), **keywords) for keywords in ({"reward": "latency"}, {}))
    named = DLBEnv(ring(2), reward="dlb_gym.reward:latency_reward")
    actions = drawn_actions(env.action_space, 5)
    assert play(env, actions, seed=0)[1] == play(default, actions, seed=0)[1]
    assert play(named, actions, seed=0)[1] == play(default, actions, seed=0)[1]


@pytest.mark.parametrize("reward", NAMED)
def test_a_spec_with_a_reward_survives_json(reward: str) -> None:
    env = gym.make("DLB-v0", scenario=ring(2), reward=reward)
    assert env.spec is not None
    again = gym.make(gym.envs.registration.EnvSpec.from_json(env.spec.to_json()))
    assert again.spec is not None
    assert again.spec.kwargs["reward"] == reward


@pytest.mark.parametrize("number", ["0.95", ".95", "95e-2"])
def test_the_number_of_a_reward_may_be_written_in_any_usual_way(number: str) -> None:
    seen = Measured().add(1.0, 4.0)
    terms = [make_reward(f"tail({n})", 1).terms(facts(), seen) for n in (number, "0.95")]
    assert terms[0] == terms[1]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tail", "'tail' must hold one positive number in brackets, as in \"tail"),
        ("tail()", "'tail\\(\\)' must hold one positive number"),
        ("tail(0.9", "must hold one positive number"),
        ("tail(0.9) ", "must hold one positive number"),
        ("tail( 0.9)", "must hold one positive number"),
        ("tail(0.9,2)", "must hold one positive number"),
        ("tail(-0.5)", "must hold one positive number"),
        ("tail(nan)", "must hold one positive number"),
        ("goodput(inf)", "must hold one positive number"),
        ("goodput(1_0)", "must hold one positive number"),
        ("tail(0)", r"'tail\(0\)': q must lie between 0 and 1"),
        ("tail(1.0)", r"'tail\(1\)': q must lie between 0 and 1"),
        ("tail(95)", r"'tail\(95\)': q must lie between 0 and 1; tail\(0.95\) looks"),
        ("tail(1e999)", "q must lie between 0 and 1"),
        ("goodput(0)", r"'goodput\(0\)': the SLO must be 1e-06 to 1e\+06 seconds"),
        ("goodput(2e6)", "the SLO must be 1e-06"),
        ("latency(1)", r"'latency\(1\)' is unknown; choose one of latency, ttft, tail\(q\)"),
        ("Tail(0.9)", "is unknown; choose one of"),
        ("", "'' is unknown; choose one of"),
        (":", "':' cannot be imported: .*; choose one of latency, ttft, .*module:function"),
        ("math:", "'math:' cannot be imported"),
        ("math:nothing", "'math:nothing' cannot be imported"),
    ],
)
def test_a_reward_that_makes_no_sense_is_refused_by_name(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^reward = .*{message}|^reward = {message}"):
        make_reward(name, 1)
