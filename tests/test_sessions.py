"""Sessions: what follows from their description, and the requests drawn, against those laws."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from dlb_gym.rates import mean_tokens, nominal_rates_rps, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, override
from dlb_gym.scheduling_hash import SchedulingHash
from dlb_gym.session_requests import LONGEST_MEANS, request_tokens
from dlb_gym.sessions import Sessions, eligible_share, mean_context_tokens, turn_moments
from dlb_gym.workload import COLUMNS, SESSION_COLUMNS, Workload
from tests.scenarios_by_hand import two_cells

Rows = NDArray[np.float64]
ARRIVAL, PROMPT, OUTPUT, U_ROUTE, U_LEAF, SESSION, HASH, PREFIX = range(8)


def talking(sessions: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """`two_cells` with sessions: offered half of its nominal rate, east three quarters of that."""
    demand = {"utilisation": 0.5, "sessions": sessions or {}}
    return two_cells(demand=demand | changes.pop("demand", {}), **changes)


def counted(sessions: dict[str, Any] | None = None, **changes: Any) -> Scenario:
    """The same, every turn with exactly 100 new and 50 output tokens: a prompt tells its turn."""
    exactly = {
        "prompt": {"loc_tokens": 100, "shape": 1.0, "mean_tokens": 100.001},
        "output": {"loc_tokens": 50, "shape": 1.0, "mean_tokens": 50.001},
    }
    return talking(sessions, tokens=exactly, **changes)


def turn_of(rows: Rows) -> NDArray[np.int64]:
    """Turns before each request, where tokens are counted."""
    return ((rows[:, PROMPT] - 100) / 150).astype(np.int64)


def drawn(scenario: Scenario, chunks: int, seed: int = 11) -> list[Rows]:
    workload = Workload(scenario, seed, 0)
    parts = [workload.chunk(index) for index in range(chunks)]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def conversations(rows: Rows, first: NDArray[np.bool_], until_s: float) -> list[Rows]:
    """Sessions whose first turns are among the rows and arrive before `until_s`."""
    whole = rows[first & (rows[:, ARRIVAL] < until_s), SESSION]
    rows = rows[np.isin(rows[:, SESSION], whole)]
    rows = rows[np.lexsort((rows[:, ARRIVAL], rows[:, SESSION]))]
    return np.split(rows, np.flatnonzero(np.diff(rows[:, SESSION])) + 1)


def whole_conversations(scenario: Scenario, chunks: int, seed: int = 11) -> list[Rows]:
    sessions = scenario.demand.sessions
    assert sessions is not None
    until_s = 10 * chunks - LONGEST_MEANS * sessions.mean_turns * sessions.gap_s
    found = []
    for rows in drawn(scenario, chunks, seed):
        found += conversations(rows, rows[:, PREFIX] == 0, until_s)
    return found


def within_999(values: NDArray[np.float64] | list[float], expected: float) -> bool:
    """Whether the expected mean lies in the sample's 99.9 % interval."""
    low, high = stats.t.interval(0.999, len(values) - 1, np.mean(values), stats.sem(values))
    return bool(low <= expected <= high)


def test_moments_and_mean_tokens_are_those_computed_by_hand() -> None:
    # P(T = 1, 2, 3) = 1/2, 1/4, 1/4: E[T] = 7/4, pairs 0, 1, 3 of which 1/4 + 3/4 = 1 on average.
    sessions = Sessions(mean_turns=2.0, max_turns=3, prefix_fraction=1.0)
    assert turn_moments(sessions) == pytest.approx((1.75, 1.0))
    assert eligible_share(sessions) == pytest.approx(3 / 7)
    assert mean_context_tokens(sessions, 500.0, 200.0) == pytest.approx(400.0)
    # Hot ones have 2, 4 or 6 turns, 1, 6 or 15 pairs: 5.75 on average.
    hot = sessions.model_copy(update={"hot_fraction": 0.25, "hot_factor": 2})
    assert turn_moments(hot) == pytest.approx((0.75 * 1.75 + 0.25 * 3.5, 0.75 + 0.25 * 5.75))
    scenario = talking({"mean_turns": 2.0, "max_turns": 3})
    assert mean_tokens(scenario) == pytest.approx((900.0, 200.0))
    # Prefill binds: 900 * 2e-4 s a request and server, without any cache.
    assert nominal_rates_rps(scenario) == pytest.approx(np.array([10, 4]) / 0.18)


def test_single_turns_are_the_requests_of_a_scenario_without_sessions() -> None:
    scenario = talking({"mean_turns": 1.0, "max_turns": 1})
    assert mean_tokens(scenario) == mean_tokens(two_cells())
    rows = np.concatenate(drawn(scenario, 5))
    assert np.unique(rows[:, SESSION]).size == len(rows)
    assert not rows[:, PREFIX].any()


def test_the_defaults_lie_within_what_the_paper_reports() -> None:
    scenario = talking()
    sessions = scenario.demand.sessions
    assert sessions is not None
    assert 0.6 < eligible_share(sessions) < 0.7
    prompt, _ = mean_tokens(scenario)
    saved = sessions.prefix_fraction * (prompt - 500) / prompt
    assert 0.4 < saved < 0.5
    rows = np.concatenate(drawn(scenario, 120))
    eligible = rows[:, PREFIX] > 0
    assert eligible.mean() == pytest.approx(eligible_share(sessions), abs=0.01)
    assert rows[:, PREFIX].sum() / rows[:, PROMPT].sum() == pytest.approx(saved, abs=0.01)


def test_turns_are_geometric_up_to_the_most() -> None:
    sessions = {"mean_turns": 2.5, "max_turns": 5, "gap_s": 4.0, "least_gap_s": 0.5}
    found = whole_conversations(talking(sessions | {"prefix_fraction": 1.0}), 120)
    counts = np.bincount([len(rows) for rows in found], minlength=6)
    law = np.append(0.4 * 0.6 ** np.arange(4), 0.6**4)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:], len(found) * law).pvalue > 1e-3


def test_a_prompt_is_all_that_was_said_before_and_something_new() -> None:
    share = 0.7
    found = whole_conversations(talking({"prefix_fraction": share}), 40)
    plain = whole_conversations(talking({"prefix_fraction": 1.0}), 40)
    assert [rows[:, [0, 1, 2, 3, 4, 5, 6]].tolist() for rows in found] == [
        rows[:, [0, 1, 2, 3, 4, 5, 6]].tolist() for rows in plain
    ]
    for rows, whole in zip(found, plain, strict=True):
        context, new = whole[:, PREFIX], whole[:, PROMPT] - whole[:, PREFIX]
        assert context[0] == 0
        assert context[1:].tolist() == (whole[:-1, PROMPT] + whole[:-1, OUTPUT]).tolist()
        assert np.all(new >= 20)  # loc_tokens
        assert rows[:, PREFIX].tolist() == np.floor(share * context).tolist()
        assert np.unique(rows[:, HASH]).size == 1
        assert np.all(np.diff(rows[:, ARRIVAL]) > 0)
    everything = np.concatenate(plain)
    new = everything[:, PROMPT] - everything[:, PREFIX]
    assert within_999(new, 500.0)
    assert within_999(everything[:, OUTPUT], 200.0)


@pytest.mark.parametrize("hot", [{}, {"hot_fraction": 0.2, "hot_factor": 3}])
def test_the_mean_prompt_is_the_closed_form(hot: dict[str, Any]) -> None:
    scenario = talking({"mean_turns": 2.0, "max_turns": 6, "gap_s": 4.0} | hot)
    sessions = scenario.demand.sessions
    assert sessions is not None
    found = whole_conversations(scenario, 200)
    # Independent sessions, whose prompts add up to E[T] E[P] tokens and whose turns to E[T].
    turns = turn_moments(sessions).turns
    assert within_999([float(len(rows)) for rows in found], turns)
    total = [float(rows[:, PROMPT].sum()) for rows in found]
    assert within_999(total, turns * mean_tokens(scenario)[0])


def test_requests_keep_the_offered_rate_and_come_as_often_at_clock_0_as_later() -> None:
    scenario = talking({"gap_s": 20.0})
    rate_rps = offered_rate_rps(scenario)
    for index in (0, 1, 40):
        east, west = [], []
        for seed in range(80):
            rows = Workload(scenario, seed, 0).chunk(index)
            east.append(float(len(rows[0])))
            west.append(float(len(rows[1])))
        assert within_999(east, 10 * 0.75 * rate_rps)
        assert within_999(west, 10 * 0.25 * rate_rps)


def test_at_clock_0_as_many_sessions_are_as_far_as_ever() -> None:
    # Of all requests, those with k turns before them are P(T > k) / E[T].
    scenario = counted({"mean_turns": 3.0, "max_turns": 4, "gap_s": 15.0})
    law = (2 / 3) ** np.arange(4)
    law /= law.sum()
    for index in (0, 7):
        counts = np.zeros(4)
        for seed in range(12):
            # One request of each session: turns of one session are not independent.
            rows = np.concatenate(Workload(scenario, seed, 0).chunk(index))
            u = rows[:, U_ROUTE]
            thin = rows[u < 0.1]
            counts += np.bincount(turn_of(thin), minlength=4)
            # Within the chunk arrivals are even: no wave of first turns starts at clock 0.
            assert stats.kstest(rows[:, ARRIVAL] - 10 * index, "uniform", (0, 10)).pvalue > 1e-4
        assert stats.chisquare(counts, counts.sum() * law).pvalue > 1e-3


def test_gaps_are_the_least_and_an_exponential_and_no_session_is_too_long() -> None:
    sessions = {"mean_turns": 2.0, "max_turns": 9, "gap_s": 4.0, "least_gap_s": 1.0}
    found = whole_conversations(talking(sessions), 60)
    # Two turns are too few to come near the limit of 40 s.
    gaps_s = [float(np.diff(rows[:, ARRIVAL])[0]) for rows in found if len(rows) == 2]
    assert stats.kstest(gaps_s, "expon", args=(1.0, 3.0)).pvalue > 1e-3
    lasts_s = [rows[-1, ARRIVAL] - rows[0, ARRIVAL] for rows in found]
    assert 30 < max(lasts_s) < 40 + 1e-9


def test_hot_sessions_have_more_turns_in_the_same_time() -> None:
    sessions = {"mean_turns": 1.0, "max_turns": 1, "hot_fraction": 0.1, "hot_factor": 5}
    scenario = counted(sessions | {"gap_s": 6.0, "least_gap_s": 1.0})
    found = whole_conversations(scenario, 40)
    turns = np.array([len(rows) for rows in found])
    assert set(turns.tolist()) == {1, 5}
    low, high = stats.binom.interval(0.999, len(found), 0.1)
    assert low <= np.count_nonzero(turns == 5) <= high
    gaps_s = [float(np.diff(rows[:, ARRIVAL])[0]) for rows in found if len(rows) == 5]
    assert min(gaps_s) > 0.2
    # 30 s is the limit here: the first gap of 1 + Exp(5) s, over 5, is seldom shortened.
    assert np.mean(gaps_s) == pytest.approx(6 / 5, rel=0.1)


def test_chunks_are_the_same_in_whatever_order_they_are_asked_for() -> None:
    scenario = talking({"hot_fraction": 0.1, "hot_factor": 2})
    forward = Workload(scenario, 5, 2)
    chunks = [forward.chunk(index) for index in range(25)]
    for index in (24, 3, 0, 17, 17, 1):
        for again in (Workload(scenario, 5, 2).chunk(index), forward.chunk(index)):
            assert [r.tobytes() for r in again] == [r.tobytes() for r in chunks[index]]
    for index, rows in ((i, r) for i, chunk in enumerate(chunks) for r in chunk):
        assert np.all(np.diff(rows[:, ARRIVAL]) >= 0)
        assert rows[0, ARRIVAL] >= 10 * index
        assert rows[-1, ARRIVAL] < 10 * (index + 1)
    others = [Workload(scenario, *key).chunk(1)[0].tobytes() for key in ((5, 2), (6, 2), (5, 3))]
    assert len(set(others)) == 3


def test_a_roots_sessions_do_not_depend_on_the_others_demand() -> None:
    alone = override(talking(), {"roots.0.demand": 0, "demand.utilisation": 0.5 * 0.25})
    quiet, west = Workload(alone, 5, 0).chunk(3)
    assert quiet.shape == (0, 8)
    assert west.tobytes() == Workload(talking(), 5, 0).chunk(3)[1].tobytes()


def test_uniforms_are_uniform_and_ids_exact_and_of_one_root() -> None:
    east, west = drawn(talking(), 20)
    rows = np.concatenate((east, west))
    for column in (U_ROUTE, U_LEAF):
        assert stats.kstest(rows[:, column], "uniform").pvalue > 1e-3
    for column in (SESSION, HASH):
        assert np.array_equal(rows[:, column], np.floor(rows[:, column]))
        assert rows[:, column].min() >= 0
        assert rows[:, column].max() < 2**53
        assert not set(east[:, column]) & set(west[:, column])
        assert np.unique(rows[:, column]).size == np.unique(rows[:, SESSION]).size


def test_session_starts_follow_the_profile_and_later_turns_follow_them() -> None:
    profile = {"synchronised_fraction": 1.0, "synchronised_width_s": 0.5}
    scenario = counted({"mean_turns": 2.0}, demand={"profile": profile})
    east, _ = drawn(scenario, 18)
    first = turn_of(east) == 0
    assert np.all(east[first, ARRIVAL] % 60 < 0.5)
    # The second turn comes 2 s later at the earliest.
    assert np.all(east[turn_of(east) == 1, ARRIVAL] % 60 >= 2.0)
    assert first.sum() == pytest.approx(180 * 0.75 * offered_rate_rps(scenario) / 2, rel=0.1)


def test_scheduling_hashes_collide_only_as_configured() -> None:
    few = np.concatenate(drawn(talking({"hash_values": 7}), 20))
    own = np.concatenate(drawn(talking(), 20))
    assert few[:, [0, 1, 2, 3, 4, 5, 7]].tolist() == own[:, [0, 1, 2, 3, 4, 5, 7]].tolist()
    _, first = np.unique(few[:, SESSION], return_index=True)
    assert stats.chisquare(np.bincount(few[first, HASH].astype(int), minlength=7)).pvalue > 1e-3
    ids = np.concatenate((np.arange(20_000.0), 2.0**53 - 1 - np.arange(20_000.0)))
    hashes = SchedulingHash(3, 0)(ids)
    assert np.unique(hashes).size == ids.size
    assert stats.kstest(SchedulingHash(3, 0).uniform(ids), "uniform").pvalue > 1e-3
    for other in (SchedulingHash(4, 0), SchedulingHash(3, 1)):
        assert np.mean(other(ids) == hashes) < 1e-3
    assert SchedulingHash(3, 0)(np.array([-1.0, 0.0]))[0] == -1
    assert SchedulingHash(3, 0, 5)(np.array([-1.0]))[0] == -1


def test_a_bursts_requests_bring_their_load_and_no_session() -> None:
    burst = {"kind": "burst", "root": "west", "to_utilisation": 0.9, "start": 0.0, "end": 1.0}
    quiet = talking(warmup_s=0.0, horizon_s=200.0)
    quiet_east, quiet_west = drawn(quiet, 20)
    east, west = drawn(override(quiet, {"disturbances": [burst]}), 20)
    assert east.tobytes() == quiet_east.tobytes()
    extra = west[west[:, SESSION] < 0]
    assert west[west[:, SESSION] >= 0].tobytes() == quiet_west.tobytes()
    assert np.all(np.diff(west[:, ARRIVAL]) >= 0)
    assert np.all(extra[:, [SESSION, HASH, PREFIX]] == (-1, -1, 0))
    low, high = stats.poisson.interval(0.999, 200 * 0.4 * nominal_rates_rps(quiet).sum())
    assert low <= len(extra) <= high
    assert within_999(extra[:, PROMPT], mean_tokens(quiet)[0])
    assert within_999(extra[:, OUTPUT], 200.0)


@pytest.mark.parametrize("hot_fraction", [0.0, 0.5])
def test_tokens_of_single_requests_are_those_of_a_random_turn(hot_fraction: float) -> None:
    sessions = {"mean_turns": 2.0, "max_turns": 3, "hot_fraction": hot_fraction, "hot_factor": 2}
    scenario = counted(sessions)
    tokens = request_tokens(scenario.tokens, scenario.demand.sessions, None)
    prompt, output = tokens.draw(np.random.default_rng(1), 20_000)
    assert set(output) == {50}
    counts = np.bincount(((prompt - 100) / 150).astype(int))
    # P(T > k) is 1, 1/2, 1/4 as a rule, and each of them twice of a hot session.
    law = np.array([1, 0.5, 0.25])
    if hot_fraction:
        law = 0.5 * np.repeat(law, 2) + 0.5 * np.append(law, (0, 0, 0))
    assert stats.chisquare(counts, 20_000 * law / law.sum()).pvalue > 1e-3


def test_requests_without_sessions_have_no_columns_for_them() -> None:
    assert Workload(two_cells(), 0, 0).columns == COLUMNS
    assert Workload(talking(), 0, 0).columns == SESSION_COLUMNS
    assert [rows.shape[1] for rows in Workload(talking(), 0, 0).chunk(0)] == [8, 8]


@pytest.mark.parametrize(
    ("sessions", "message"),
    [
        ({"gap_s": 2.0}, r"least_gap_s = 2.0 must be less than the mean, gap_s = 2.0"),
        ({"mean_turns": 13.0}, r"mean_turns = 13.0 must not exceed max_turns = 12"),
        ({"mean_turns": 0.5}, r"greater than or equal to 1"),
        ({"hot_fraction": 0.1, "hot_factor": 5_000}, r"hot_factor = 5000 x max_turns = 12 turns"),
        ({"hash_values": 0}, r"greater than or equal to 1"),
        ({"hash_values": 2**53 + 1}, r"less than or equal to"),
        ({"prefix_fraction": 1.1}, r"less than or equal to 1"),
        ({"gap": 3.0}, r"Extra inputs"),
        ({"gap_s": float("inf")}, r"finite"),
    ],
)
def test_contradictory_sessions_are_refused(sessions: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Sessions(**sessions)


def test_a_scenarios_sessions_are_named_in_its_errors() -> None:
    with pytest.raises(ScenarioError, match=r"demand\.sessions.*least_gap_s = 9\.0 must be less"):
        talking({"gap_s": 9.0, "least_gap_s": 9.0})
    with pytest.raises(ScenarioError, match=r"'demand\.sessions\.gap_ms' is unknown.*'gap_s'"):
        talking({"gap_ms": 9.0})
