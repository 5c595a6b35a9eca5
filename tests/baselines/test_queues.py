"""Classical rules, with decisions worked out by hand; three cells of 2, 4 and 8 servers."""

from __future__ import annotations

from math import comb

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from baselines.queues import (
    FastestIdle,
    FastestShortest,
    FewestConnections,
    IdleQueue,
    MaxWeight,
    PowerOfCells,
    ShortestExpectedDelay,
    ShortestQueue,
)
from baselines.static import Nearest, RoundRobin
from dlb_gym.decision import Decision
from dlb_gym.policy import Policy
from tests.baselines.scenes import observe, start
from tests.reference_choices import Decision as Chosen
from tests.reference_choices import Dispatcher

SERVERS = np.array([2.0, 4.0, 8.0])
SIZES = {"request_weight": 1.0 / SERVERS, "servers": SERVERS / 14, "capacity_load": SERVERS / 14}


def decided(policy: Policy, **fields: object) -> Decision:
    """The decision of one root over three cells."""
    given = {**SIZES, **fields}
    return start(policy, 1, 3).act(observe(1, 3, **given))


def routing(policy: Policy, **fields: object) -> list[float]:
    found = decided(policy, **fields).routing
    assert found is not None
    return found[0, 0].tolist()


def scores(policy: Policy, **fields: object) -> tuple[list[float], list[float]]:
    found = decided(policy, **fields)
    assert found.base is not None
    assert found.slope is not None
    return found.base[0, 0].tolist(), found.slope[0, 0].tolist()


def test_fewest_counts_own_requests_and_its_weighted_form_divides_by_the_rate() -> None:
    outstanding = np.array([3, 4, 6]) / SERVERS
    assert scores(FewestConnections(), outstanding=outstanding) == ([3, 4, 6], [1, 1, 1])
    # Rates k / beta = 2 / .5, 4 / .5, 8 / .25.
    base, slope = scores(
        FewestConnections(weighted=True), outstanding=outstanding, model_beta=[0.5, 0.5, 0.25]
    )
    assert base == [3 / 4, 4 / 8, 6 / 32]
    assert slope == [1 / 4, 1 / 8, 1 / 32]


def test_jsq_counts_whole_requests_whatever_serves_them() -> None:
    assert scores(ShortestQueue(), rif=[3.0, 1.75, 0.625]) == ([6, 7, 5], [1, 1, 1])


def test_sed_counts_the_request_itself() -> None:
    # (6 + 1) / 4, (7 + 1) / 8, (5 + 1) / 32.
    found = scores(ShortestExpectedDelay(), rif=[3.0, 1.75, 0.625], model_beta=[0.5, 0.5, 0.25])
    assert found == ([7 / 4, 1.0, 6 / 32], [1 / 4, 1 / 8, 1 / 32])


def test_max_weight_weighs_round_trips_against_work() -> None:
    fields = {"rif": [3.0, 1.75, 0.625], "model_beta": [0.5, 0.5, 0.25], "rtt": [0.0, 0.5, 2.0]}
    base, slope = scores(MaxWeight(), **fields)
    assert base == [6 / 4, 7 / 8 + 0.5, 5 / 32 + 2.0]
    assert slope == [1 / 4, 1 / 8, 1 / 32]
    assert scores(MaxWeight(0.0), **fields)[0] == [6 / 4, 7 / 8, 5 / 32]
    with pytest.raises(ValueError, match=r"penalty = -1\.0 must be finite and at least 0; 1 is"):
        MaxWeight(-1.0)


def test_jiq_splits_over_idle_places_and_by_capacity_where_there_is_none() -> None:
    # Knee 4: places 2 (4 - 3), 0, 8 (4 - 3.5).
    assert routing(IdleQueue(), model_knee=4.0, rif=[3.0, 5.0, 3.5]) == [2 / 6, 0.0, 4 / 6]
    assert_allclose(routing(IdleQueue(), model_knee=4.0, rif=[4.0, 5.0, 9.0]), SERVERS / 14)


def test_power_of_two_cells_is_the_chance_to_be_the_best_of_a_pair() -> None:
    # Of three pairs the best cell wins two, the middle one the third.
    assert_allclose(routing(PowerOfCells(2), rif=[2.0, 1.0, 3.0]), [1 / 3, 2 / 3, 0.0])
    # Two tie for best: one pair is theirs, two more have one of them each.
    assert_allclose(routing(PowerOfCells(2), rif=[1.0, 1.0, 3.0]), [0.5, 0.5, 0.0])
    assert_allclose(routing(PowerOfCells(1), rif=[1.0, 1.0, 3.0]), [1 / 3] * 3)
    assert_allclose(routing(PowerOfCells(9), rif=[2.0, 1.0, 3.0]), [0.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="cells = 0 must be at least 1; 2 is the default"):
        PowerOfCells(0)


def test_power_of_cells_agrees_with_counting_all_samples() -> None:
    rng = np.random.default_rng(0)
    load = rng.permutation(9).astype(float)
    policy = start(PowerOfCells(3), 1, 9)
    found = policy.act(observe(1, 9, rif=load)).routing
    assert found is not None
    for cell, mine in enumerate(load):
        worse = int((load > mine).sum())
        assert found[0, 0, cell] == pytest.approx(comb(worse, 2) / comb(9, 3), abs=1e-15)


def test_arcs_bind_the_sample() -> None:
    seen = observe(1, 3, rif=[1.0, 2.0, 3.0], admissible=[[[0, 1, 1]]])
    found = start(PowerOfCells(2), 1, 3).act(seen).routing
    assert_array_equal(found, [[[0.0, 1.0, 0.0]]])


def test_jfsq_takes_the_fastest_of_the_shortest_queues() -> None:
    alpha = [1.0, 0.5, 0.25]
    # Shortest queues of 2, 2 and 3 requests.
    assert routing(FastestShortest(), rif=[2.25, 2.75, 3.0], model_alpha=alpha) == [0, 1, 0]
    assert routing(FastestShortest(), rif=[2.25, 2.75, 2.9], model_alpha=alpha) == [0, 0, 1]
    assert routing(FastestShortest(), rif=[2.25, 2.75, 3.0]) == [0.5, 0.5, 0.0]


def test_jfiq_takes_the_fastest_idle_cell_and_splits_by_servers_where_none_is() -> None:
    given = {"model_knee": 4.0, "model_alpha": [1.0, 0.5, 0.25]}
    assert routing(FastestIdle(), rif=[3.0, 3.5, 4.0], **given) == [0, 1, 0]
    assert_allclose(routing(FastestIdle(), rif=[4.0, 5.0, 4.0], **given), SERVERS / 14)


def test_nearest_goes_by_round_trips_alone() -> None:
    assert routing(Nearest(), rtt=[0.5, 0.25, 1.0], rif=[0.0, 9.0, 0.0]) == [0, 1, 0]
    assert routing(Nearest(), rtt=[0.5, 0.5, 1.0]) == [0.5, 0.5, 0.0]


def test_round_robin_takes_turns_in_nginxs_published_order() -> None:
    """Weights 5, 1, 1 give a a b a c a a (the message of the commit that gave it to nginx)."""
    found = decided(RoundRobin(), capacity_load=np.array([5, 1, 1]) / 7)
    assert found.dispatch == "smooth"
    assert found.routing is not None
    root = Dispatcher(0, [True] * 3)
    root.adopt(Chosen("smooth", routing=7.0 * found.routing[0]))
    order = [root.choose(0.0) for _ in range(7)]
    assert order == [0, 0, 1, 0, 2, 0, 0]
