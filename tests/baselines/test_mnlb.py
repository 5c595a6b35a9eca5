from __future__ import annotations

import itertools

import numpy as np
import pytest

from baselines.mnlb import MNLB
from baselines.mnlb_program import least_network_latency
from dlb_gym.decision import Array
from tests.baselines.scenes import observe, start

ARCS = np.ones((2, 2), dtype=np.bool_)
# Two seconds a control interval (Z = 2 s), so five intervals a period; the largest one-way
# latency, 0.1 s, is one interval. Reports of interval 5 are in force from interval 7.
SCENE = {
    "rtt": [[[0.0, 0.1], [0.05, 0.1]]],
    "capacity_load": [0.6, 0.4],
    "zero_load_time_s": 2.0,
    "control_interval": 1.0,
}


def _loads(arrivals: Array, weights: Array) -> Array:
    return (arrivals[:, None] * weights).sum(axis=0)


def test_weights_are_those_computed_by_hand_and_come_two_delays_after_the_period() -> None:
    # Caps 0.51 and 0.34. Cell 0 saves root 0 twice what it saves root 1: root 0 sends all of its
    # 0.4 there, root 1 the 0.11 that are left of its 0.2.
    policy = start(MNLB(), 2, 2)
    for step in range(9):
        strange = step in (0, 6, 7)  # before the period and after it: must not matter
        arrivals = [[[0.9], [0.0]]] if strange else [[[0.4], [0.1 * (step - 1)]]]
        routing = policy.act(observe(2, 2, arrival_load=arrivals, **SCENE)).routing
        expected = [[0.6, 0.4], [0.6, 0.4]] if step < 7 else [[1.0, 0.0], [0.55, 0.45]]
        np.testing.assert_allclose(routing, [expected], rtol=1e-6)


def test_the_freshest_probe_tells_a_cells_capacity() -> None:
    # Root 1 holds the older report of cell 0, from before its outage: cap 0.85 x 0.2 = 0.17.
    policy = start(MNLB(), 2, 2)
    scene = SCENE | {"capacity_load": [[[0.2, 0.4], [0.6, 0.4]]], "probe_age": [[[0.0], [0.1]]]}
    arrivals = [[[0.25], [0.25]]]
    for _ in range(8):
        routing = policy.act(observe(2, 2, arrival_load=arrivals, **scene)).routing
    np.testing.assert_allclose(routing, [[[0.68, 0.32], [0.0, 1.0]]], atol=1e-6)


def test_the_program_finds_what_a_grid_search_finds() -> None:
    rng = np.random.default_rng(3)
    shares = np.linspace(0.0, 1.0, 41)
    grid = np.array(list(itertools.product(shares, repeat=3)))
    for _ in range(5):
        arrivals = rng.integers(2, 8, 3) / 40.0
        capacity = np.array([0.5, 0.6]) * arrivals.sum() / 0.8
        rtt = rng.uniform(0.01, 0.2, (3, 2))
        loads = np.stack([grid @ arrivals, (1 - grid) @ arrivals], axis=-1)
        costs = (arrivals * (grid * rtt[:, 0] + (1 - grid) * rtt[:, 1])).sum(axis=-1)
        best = costs[(loads <= 0.9 * capacity + 1e-12).all(axis=-1)].min()
        weights = least_network_latency(
            arrivals=arrivals,
            capacity=capacity,
            rtt=rtt,
            admissible=np.ones((3, 2), dtype=np.bool_),
            headroom=0.9,
        )
        found = (arrivals[:, None] * weights * rtt).sum()
        assert (_loads(arrivals, weights) <= 0.9 * capacity + 1e-9).all()
        assert best - 0.002 < found <= best + 1e-9


def test_an_overload_is_shared_in_proportion_to_capacity() -> None:
    weights = least_network_latency(
        arrivals=np.array([0.7, 0.3]),
        capacity=np.array([0.6, 0.4]),
        rtt=np.array([[0.0, 0.1], [0.0, 0.1]]),
        admissible=ARCS,
        headroom=0.85,
    )
    np.testing.assert_allclose(_loads(np.array([0.7, 0.3]), weights), [0.6, 0.4], atol=1e-7)


def test_residency_holds_and_roots_without_arrivals_get_the_nearest_room() -> None:
    weights = least_network_latency(
        arrivals=np.array([0.4, 0.0, 0.2]),
        capacity=np.array([0.5, 0.5]),
        rtt=np.array([[0.0, 0.1], [0.0, 0.2], [0.1, 0.0]]),
        admissible=np.array([[True, True], [True, True], [True, False]]),
        headroom=1.0,
    )
    # Root 2 may only use cell 0 and takes 0.2 of its 0.5; root 1 counts as 0.0002.
    np.testing.assert_allclose(weights, [[0.75, 0.25], [1.0, 0.0], [1.0, 0.0]], atol=1e-3)


def test_noise_is_the_seeds_and_repeats_after_a_restart() -> None:
    scene = SCENE | {"arrival_load": [[[0.4], [0.2]]]}

    def last(policy: MNLB) -> Array:
        for _ in range(8):
            routing = policy.act(observe(2, 2, **scene)).routing
        assert routing is not None
        return routing

    def noisy(seed: int) -> MNLB:
        policy = MNLB(arrival_noise=0.2)
        start(policy, 2, 2, seed=seed)
        return policy

    policy = noisy(0)
    first = last(policy)
    policy.restart(np.array([True]))
    np.testing.assert_array_equal(last(policy), first)
    assert not np.array_equal(last(noisy(1)), first)
    assert abs(first[0, 1, 0] - 0.55) > 1e-3


def test_without_arrivals_the_plan_is_the_capacity_split() -> None:
    policy = start(MNLB(), 2, 2)
    for _ in range(8):
        routing = policy.act(observe(2, 2, **(SCENE | {"arrival_load": 0.0}))).routing
    np.testing.assert_allclose(routing, [[[0.6, 0.4], [0.6, 0.4]]], rtol=1e-6)


def test_arguments_out_of_range_are_refused() -> None:
    for key, value in (("headroom", 0.0), ("headroom", float("nan")), ("period_s", -1.0)):
        with pytest.raises(ValueError, match=f"{key} = {value} must be finite and above 0; leave"):
            MNLB(**{key: value})
    for value in (1.0, -0.1):
        with pytest.raises(ValueError, match=rf"arrival_noise = {value} must lie in \[0, 1\); 0 t"):
            MNLB(arrival_noise=value)


def test_a_program_without_an_optimum_says_what_its_numbers_must_be() -> None:
    """No cell has room, so no root's row can sum to 1."""
    with pytest.raises(
        ValueError, match=r"no optimum \(.*\); arrivals, capacities and round trips"
    ):
        least_network_latency(
            arrivals=np.array([0.2, 0.2]),
            capacity=np.zeros(2),
            rtt=np.array([[0.0, 0.1], [0.1, 0.0]]),
            admissible=ARCS,
            headroom=0.85,
        )
