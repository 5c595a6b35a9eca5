"""Join the shortest queue: two exponential servers, each request on the one with fewer requests.

No closed form is simple, but the chain is: in state (m, n) requests come at rate lam, to the
smaller of m and n, to either with probability 1/2 if they are equal, and each server that has any
finishes one at rate 1. Cut at 60 requests a server, where the probability left is below 1e-8 at
the loads here, its balance equations are solved directly; by Little's law E[T] = E[m + n] / lam.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.linalg import spsolve

from tests.laws.intervals import assert_ratio
from tests.laws.station import Service, played, station

LOAD = 0.7
MEAN_S = 0.1
MOST = 60
ROWS = 32


@lru_cache
def mean_sojourn(load: float) -> float:
    """E[T] in mean service times, of two servers at this load each."""
    size = MOST + 1
    rate = 2.0 * load
    moves: list[tuple[int, int, float]] = []

    def move(m: int, n: int, to: tuple[int, int], at: float) -> None:
        here, there = m * size + n, to[0] * size + to[1]
        moves.extend([(there, here, at), (here, here, -at)])

    for m in range(size):
        for n in range(size):
            if m <= n and m < MOST:
                move(m, n, (m + 1, n), rate if m < n else rate / 2)
            if n <= m and n < MOST:
                move(m, n, (m, n + 1), rate if n < m else rate / 2)
            if m > 0:
                move(m, n, (m - 1, n), 1.0)
            if n > 0:
                move(m, n, (m, n - 1), 1.0)
    # One equation follows from the others; that probabilities add up stands in its place.
    moves = [each for each in moves if each[0] > 0] + [(0, k, 1.0) for k in range(size * size)]
    rows, columns, rates = zip(*moves, strict=True)
    balance = coo_matrix((rates, (rows, columns)), shape=(size * size, size * size)).tocsc()
    right = np.zeros(size * size)
    right[0] = 1.0
    probability = spsolve(balance, right).reshape(size, size)
    assert probability[-1].sum() < 1e-8
    in_system = np.add.outer(np.arange(size), np.arange(size))
    return float((probability * in_system).sum() / rate)


def test_the_chain_lies_between_one_queue_for_both_and_a_queue_each() -> None:
    """M/M/2: 1 / (1 - load^2); two M/M/1: 1 / (1 - load). Nearly idle, nobody waits."""
    for load in (0.3, LOAD):
        assert 1.0 / (1.0 - load**2) < mean_sojourn(load) < 1.0 / (1.0 - load)
    assert mean_sojourn(1e-3) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("rule", ["least_requests", "ray"])
def test_two_servers_are_joined_by_the_shorter_queue(rule: str) -> None:
    """Of two servers power of two sees both; its first drawn, which a tie goes to, is uniform.

    Catches: requests miscounted or counted late, ties that favour a server, the longer queue.
    """
    scenario = station(
        2.0 * LOAD / MEAN_S,
        prefill=Service(MEAN_S),
        servers=2,
        warmup_s=30.0,
        horizon_s=4_000.0,
        leaf={"rule": rule},
    )
    found = played(scenario, ROWS).measurements()
    law, case = "shortest of two queues: E[T], s", f"lam = {LOAD}, {rule}"
    expected_s = mean_sojourn(LOAD) * MEAN_S
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.02)


def test_random_splits_make_two_independent_queues() -> None:
    """E[T] = 1 / (1 - load), that of M/M/1: 3.33 services where the shorter queue takes 2.11."""
    scenario = station(
        2.0 * LOAD / MEAN_S,
        prefill=Service(MEAN_S),
        servers=2,
        warmup_s=60.0,
        horizon_s=4_000.0,
        leaf={"rule": "random"},
    )
    found = played(scenario, ROWS).measurements()
    law, case = "two queues, split at random: E[T], s", f"lam = {LOAD}"
    expected_s = MEAN_S / (1.0 - LOAD)
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected_s, 0.04)
