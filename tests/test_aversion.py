"""Error aversion against numbers worked out by hand: its control loop and its spending."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from baselines.discrete import Discrete, spend_in_order
from dlb_gym.decision import Decision
from dlb_gym.engine import aversion as kernels
from dlb_gym.engine import extras, layout
from dlb_gym.scenario_source import load_scenario, override
from dlb_gym.task import Task
from experiments.runner import played
from tests.baselines.scenes import observe, start
from tests.scripted import Played, system

compiled: Any = numba.njit  # its stubs do not know that it decorates
Floats = NDArray[np.float64]

UNTOUCHED = {"interval_s": 9.0}  # no update before


@compiled
def update(
    now_s: float,
    setting: Floats,
    tau_s: Floats,
    rtt_s: Floats,
    held_time: Floats,
    arc: NDArray[np.int64],
    memory: Floats,
    aversion: Floats,
) -> None:
    cells = len(tau_s)
    kernels.update_aversion(now_s, cells, setting, tau_s, rtt_s, held_time, arc, memory, aversion)


@compiled
def spend(base: Floats, aversion: Floats, capacity: Floats, weights: Floats) -> None:
    kernels.spend_aversion(len(base), base, aversion, capacity, weights)


class Loop:
    """The control loop of one root, fed by hand; every cell answers ten times a second."""

    def __init__(self, cells: int, **keys: Any) -> None:
        played = Played(system([1], error_aversion=keys), [])
        self.setting = played.simulator._extras.setting[0]  # type: ignore[union-attr]
        self.tau_s = np.full(cells, 0.05)
        self.rtt_s = np.full(cells, 0.1)  # of the reports held
        self.held_time = np.zeros((cells, 2))
        self.arc = np.zeros((cells, layout.ARC_COLUMNS), dtype=np.int64)
        self.memory = np.zeros((cells, extras.EXTRA_ARC_COLUMNS))
        self.memory[:, extras.TRUST] = 1.0
        self.aversion = np.zeros(cells)
        self.now_s = 0.0

    def __call__(self, *error_rates: float, answers: int = 10, age_s: float = 0.1) -> list[float]:
        """The next update, 1 s later."""
        self.now_s += 1.0
        self.held_time[:, layout.HELD_ERROR_RATE] = error_rates
        self.held_time[:, layout.HELD_EMITTED_S] = self.now_s - age_s
        self.arc[:, layout.ANSWERED_ARC] += answers
        update(
            self.now_s, self.setting, self.tau_s, self.rtt_s, self.held_time, self.arc,
            self.memory, self.aversion,
        )  # fmt: skip
        rates: list[float] = self.aversion.tolist()
        return rates


# The control loop.


def test_aversion_rises_by_half_of_the_way_to_its_target() -> None:
    loop = Loop(4)
    # Excess over the best cell's 0.01, less the 0.01 forgiven: 0.3, 0, 0, 0.05. Targets: 4 times
    # that, at most 0.95.
    rates = (0.32, 0.01, 0.02, 0.07)
    assert loop(*rates) == pytest.approx([0.475, 0.0, 0.0, 0.1])
    assert loop(*rates) == pytest.approx([0.7125, 0.0, 0.0, 0.15])
    assert loop(*rates) == pytest.approx([0.83125, 0.0, 0.0, 0.175])


def test_aversion_falls_by_a_twentieth_a_second_down_to_its_target() -> None:
    loop = Loop(2)
    loop(1.0, 0.0), loop(1.0, 0.0)  # 0.7125
    # At 0.16 the target is 4 x 0.15 = 0.6.
    assert [loop(0.16, 0.0)[0] for _ in range(4)] == pytest.approx([0.6625, 0.6125, 0.6, 0.6])
    assert [loop(0.0, 0.0)[0] for _ in range(12)] == pytest.approx(
        [0.55 - 0.05 * k for k in range(12)]
    )
    assert loop(0.0, 0.0)[0] == 0.0


def test_what_all_cells_do_nobody_is_avoided_for() -> None:
    assert Loop(3)(0.4, 0.4, 0.41) == pytest.approx([0.0, 0.0, 0.0])


def test_only_cells_that_a_root_can_reach_count_as_the_best() -> None:
    loop = Loop(3)
    loop.tau_s[0] = math.nan
    assert loop(0.0, 0.5, 0.4) == pytest.approx([0.0, 0.5 * 4 * 0.09, 0.0])


def test_the_error_rate_of_a_quiet_cell_is_doubted() -> None:
    loop = Loop(2)
    loop(0.5, 0.0, answers=20)
    # 2 answers an update are fewer than 5 in two; at the first of them 20 came just before.
    targets = [4 * (0.5 * math.exp(-k / 10) - 0.01) for k in range(12)]
    assert targets[6] > 0.95 > targets[8]  # e^(-k/10) = 0.2475 / 0.5 at k = 7.03
    expected = [0.475]
    for target in (min(each, 0.95) for each in targets):
        upwards = expected[-1] + 0.5 * (target - expected[-1])
        expected.append(upwards if target > expected[-1] else max(target, expected[-1] - 0.05))
    seen = [loop(0.5, 0.0, answers=2)[0] for _ in range(12)]
    assert seen == pytest.approx(expected[1:])
    assert seen[-1] < seen[7] < 0.95
    # 5 answers in two updates are enough to believe it again.
    assert loop(0.5, 0.0, answers=3)[0] > seen[-1]


def test_doubt_grows_with_time_and_not_with_the_number_of_updates() -> None:
    loop = Loop(1, interval_s=0.25, recovery_s=8.0)
    for _ in range(4):
        loop(0.0, answers=0)
    assert loop.memory[0, extras.TRUST] == pytest.approx(math.exp(-1.0 / 8.0))


def test_a_silent_cell_is_avoided_whatever_it_said_last() -> None:
    loop = Loop(2)
    assert loop(0.0, 0.0, age_s=2.04) == pytest.approx([0.0, 0.0])  # 1.99 s beyond its journey
    assert loop(0.0, 0.0, age_s=2.1) == pytest.approx([0.475, 0.475])


def test_a_cell_that_got_far_is_not_silent() -> None:
    """A latency shift of 2.5 s: reports 2.6 s old come as often as ever."""
    loop = Loop(2)
    loop.rtt_s[1] = 2 * (0.05 + 2.5)
    assert loop(0.0, 0.0, age_s=2.6) == pytest.approx([0.475, 0.0])


def test_a_leafs_error_rate_is_an_exponential_mean_over_five_seconds() -> None:
    hole = {
        "kind": "black_hole", "error_fraction": 1.0, "start": 0.3, "end": 0.6, "cells": ["cell-0"]
    }  # fmt: skip
    requests = [(1.95, 100, 5), (3.15, 10, 10), (3.45, 10, 10)]
    played = Played(system(disturbances=[hole]), requests)
    # One success, done at 2.15; errors at the leaf at 3.2 and 3.5.
    first = 1 - math.exp(-1.05 / 5)
    rates = {t: played.to(t).simulator.view().error_rate[0, 0, 0] for t in (3.2, 3.3, 3.6)}
    assert rates == pytest.approx(
        {3.2: 0.0, 3.3: first, 3.6: first + (1 - math.exp(-0.3 / 5)) * (1 - first)}
    )


def test_roots_do_by_the_reports_they_hold_what_the_law_says() -> None:
    """Two cells, one of which fails half of what it gets from 2 to 5 s: the law in plain Python."""
    hole = {"kind": "black_hole", "start": 0.2, "end": 0.5, "cells": ["cell-0"]}
    requests = [(0.01 * k, 10, 10) for k in range(999)]
    played = Played(
        system([4, 4], disturbances=[hole], error_aversion={}), requests, routing=[[0.5, 0.5]]
    )
    rates, trust, answered, highest = np.zeros(2), np.ones(2), [np.zeros(2), np.zeros(2)], 0.0
    for second in range(1, 11):
        view = played.to(second).simulator.view()
        trust = np.where(view.answered[0, 0] - answered[-2] < 5, trust * math.exp(-0.1), 1.0)
        answered.append(view.answered[0, 0].copy())
        errors = trust * view.error_rate[0, 0]
        target = np.minimum(0.95, 4 * np.maximum(errors - errors.min() - 0.01, 0.0))
        risen = rates + 0.5 * (target - rates)
        rates = np.where(target > rates, risen, np.maximum(target, rates - 0.05))
        np.testing.assert_allclose(view.aversion[0, 0], rates, atol=1e-12)
        highest = max(highest, rates[0])
    assert highest > 0.2
    assert rates[1] == 0.0


def test_aversion_is_over_when_the_cell_has_recovered() -> None:
    hole = {"kind": "black_hole", "start": 0.1, "end": 0.3, "cells": ["cell-0"]}
    requests = [(0.02 * k, 10, 10) for k in range(2999)]
    scenario = system([4, 4], disturbances=[hole], error_aversion={}, horizon_s=60.0)
    played = Played(scenario, requests, routing=[[0.5, 0.5]])
    rate = {t: played.to(t).simulator.view().aversion[0, 0, 0] for t in (18, 19, 23, 57, 58, 59)}
    assert rate[18] > 0.9
    # At most 0.05 s^-1 down; the error rate, 0.6 at most, is below 0.01 after 5 ln(60) = 20.5 s of
    # successes, and 19 s later there is nothing left.
    assert rate[23] >= rate[18] - 0.25
    assert rate[59] == 0.0


# What aversion is spent on.


def spent(base: list[float], aversion: list[float], capacity: list[float]) -> Floats:
    weights = np.zeros(len(base))
    spend(np.array(base), np.array(aversion), np.array(capacity), weights)
    return weights


def test_averted_mass_goes_to_the_rows_other_cells_in_proportion() -> None:
    # Kept: 0.1, 0.15, 0.2. The 0.4 averted from the first go 0.15 : 0.2 to the others, the 0.15 of
    # the second 0.1 : 0.2.
    expected = [0.1 + 0.05, 0.15 + 0.4 * 15 / 35, 0.2 + 0.4 * 20 / 35 + 0.1]
    assert spent([0.5, 0.3, 0.2], [0.8, 0.5, 0.0], [1.0, 1.0, 1.0]) == pytest.approx(expected)
    assert sum(expected) == pytest.approx(1.0)


def test_where_the_row_has_no_other_cell_it_goes_to_the_arcs_by_capacity() -> None:
    # Capacity that is not averted: 40 x 0.5 = 20 and 20; the last is no arc.
    weights = spent([1.0, 0.0, 0.0, 0.0], [0.9, 0.5, 0.0, 0.0], [80.0, 40.0, 20.0, 0.0])
    assert weights == pytest.approx([0.1, 0.45, 0.45, 0.0])


def test_an_only_arc_keeps_everything() -> None:
    assert spent([1.0, 0.0], [0.95, 0.0], [80.0, 0.0]) == pytest.approx([1.0, 0.0])


def averse(rates: list[float], count: int, **changes: Any) -> Played:
    """One root that averts as said; `count` requests in the first 0.1 s."""
    scenario = system([1] * len(rates), error_aversion=UNTOUCHED, **changes)
    played = Played(scenario, [(0.1 * k / count, 1, 1) for k in range(count)])
    played.simulator._extras.aversion[0, 0] = rates  # type: ignore[union-attr]
    return played


def sent(played: Played) -> list[int]:
    counts: list[int] = played.to(0.1).simulator.view().interval_sent[0, 0].tolist()
    return counts


def test_dispatch_follows_the_routing_with_aversion_spent() -> None:
    played = averse([0.8, 0.5, 0.0], 1000)
    played.simulator.set_routing(np.array([[[0.5, 0.3, 0.2]]]), np.array([layout.SMOOTH]))
    assert sent(played) == pytest.approx([150, 321.4, 528.6], abs=1)


def test_a_decision_that_dealt_with_aversion_itself_is_followed_as_it_is() -> None:
    played = averse([0.8, 0.5, 0.0], 1000)
    routing = np.array([[[0.5, 0.3, 0.2]]])
    played.simulator.set_routing(routing, np.array([layout.SMOOTH]), aversion_spent=True)
    assert sent(played) == pytest.approx([500, 300, 200], abs=1)


def scored(played: Played, base: list[float], slope: float = 0.0) -> list[int]:
    scores = Decision(base=np.array([[base]]), slope=np.full((1, 1, len(base)), slope))
    played.simulator.follow(scores, np.zeros(1, dtype=np.int64))
    return sent(played)


def test_scores_go_through_the_cells_in_their_order() -> None:
    count, first, second = 4000, 0.8, 0.3
    counts = scored(averse([second, 0.0, first], count), [2.0, 3.0, 1.0])
    shares = [first * (1 - second), first * second, 1 - first]
    for seen, share in zip(counts, shares, strict=True):
        assert seen == pytest.approx(count * share, abs=5 * math.sqrt(count * share * (1 - share)))


def test_where_no_cell_is_accepted_the_least_averted_arc_is_taken() -> None:
    reachable = {"roots.0.reachable": ["cell-1", "cell-2"]}
    scenario = override(system([1, 1, 1], error_aversion=UNTOUCHED), reachable)
    count = 4000
    played = Played(scenario, [(0.1 * k / count, 1, 1) for k in range(count)])
    played.simulator._extras.aversion[0, 0] = [0.0, 0.6, 0.9]  # type: ignore[union-attr]
    counts = scored(played, [0.0, 2.0, 1.0])
    # The third is tried first: 0.1; the second gets all the rest, accepted or not.
    assert counts[0] == 0
    assert counts[2] == pytest.approx(0.1 * count, abs=5 * math.sqrt(0.09 * count))


def test_scores_that_tie_are_split_by_the_requests_uniform() -> None:
    # u is 0.25 and 0.75 in turn, so every second request goes to either of the two tied cells.
    assert scored(averse([0.0, 0.0, 0.0], 100), [1.0, 2.0, 1.0]) == [50, 0, 50]


def test_disc_spends_aversion_in_the_order_of_its_costs() -> None:
    arcs = np.array([True, True, True, False])
    costs = np.array([2.0, 1.0, 3.0, 0.0])
    rates = np.array([0.4, 0.9, 0.0, 0.0])
    shares = spend_in_order(costs, rates, arcs)
    np.testing.assert_allclose(shares, [0.9 * 0.6, 0.1, 0.9 * 0.4, 0.0])
    # Accepted nowhere: 0.9 x 0.4 x 0.5 go to the mildest arc.
    shares = spend_in_order(costs, np.array([0.4, 0.9, 0.5, 0.0]), arcs)
    np.testing.assert_allclose(shares, [0.54 + 0.18, 0.1, 0.18, 0.0])


def test_disc_tries_cells_that_tie_together() -> None:
    arcs = np.ones(4, dtype=np.bool_)
    # The first two get a half each and accept 0.5 and 0.9 of it: 0.3 go on, of which the third
    # takes 0.8 and the last the rest.
    shares = spend_in_order(np.array([1.0, 1.0, 2.0, 3.0]), np.array([0.5, 0.1, 0.2, 0.0]), arcs)
    np.testing.assert_allclose(shares, [0.25, 0.45, 0.24, 0.06])
    # Nothing left to try: it goes to the arcs of least aversion, in equal parts.
    shares = spend_in_order(np.array([1.0, 1.0]), np.array([0.5, 0.5]), arcs[:2])
    np.testing.assert_allclose(shares, [0.5, 0.5])


def test_disc_says_that_it_has_spent_aversion_and_is_one_hot_without() -> None:
    seen = {"rif": [4.0, 2.0, 8.0]}
    plain = start(Discrete("rif"), 1, 3).act(observe(1, 3, **seen))
    assert not plain.aversion_spent
    averting = start(Discrete("rif"), 1, 3).act(observe(1, 3, aversion=[0.0, 0.75, 0.0], **seen))
    assert averting.aversion_spent
    np.testing.assert_allclose(averting.routing, [[[0.75, 0.25, 0.0]]])


# The black hole.

HOLE = 1  # us-east4


def in_a_black_hole(policy: str, *, averting: bool) -> tuple[float, float, float]:
    """Share of the traffic that the cell gets before and while it errs, and the error rate then."""
    scenario = override(
        load_scenario("black_hole"),
        {"warmup_s": 10.0, "horizon_s": 30.0, "disturbances.0.end": 1.0}
        | ({} if averting else {"error_aversion": None}),
    )
    marks_s = (12.0, 19.0, 29.0, 40.0)  # it errs from 19 s on; aversion has 10 s to rise
    received: list[NDArray[np.int64]] = []

    def each(task: Task) -> None:
        if np.isclose(task.simulator.time_s[0], marks_s).any():
            received.append(task.simulator.truth().received.sum(axis=1)[0])

    task = played(policy, scenario, [5], each)
    before, _, during = np.diff(received, axis=0)
    assert len(received) == 4
    failed = task.summary(0)["errors_black_hole"]
    return before[HOLE] / before.sum(), during[HOLE] / during.sum(), failed / during.sum()


@pytest.mark.parametrize("policy", ["disc-rif", "disc-latency", "flow-rif", "flow-latency"])
def test_policies_flock_to_a_black_hole_unless_they_avert_errors(policy: str) -> None:
    before, flocked, lost = in_a_black_hole(policy, averting=False)
    assert flocked > 1.5 * before
    averted_before, averted, kept = in_a_black_hole(policy, averting=True)
    assert averted_before == pytest.approx(before)
    assert averted < 0.5 * before
    assert kept < 0.5 * lost
