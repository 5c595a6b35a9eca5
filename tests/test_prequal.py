"""Prequal at a leaf: its formula against the paper's numbers, its rules by hand.

Systems are those of `test_leaf_rules`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.engine import leaf_memory, prequal
from dlb_gym.engine.leaf_memory import PROBE_COLUMNS
from tests.conversations import SERVER_1, Turn, chosen, talking

compiled: Any = numba.njit  # its stubs do not know that it decorates
Loads = NDArray[np.float64]


@compiled
def reuse(servers: int, pool: float, probes: float, removals: float, delta: float) -> float:
    return prequal.reuse(servers, pool, probes, removals, delta)


@compiled
def best(pool: Loads, size: int, limit: int) -> int:
    return prequal.best(pool, size, limit)


@compiled
def worst(pool: Loads, size: int, limit: int) -> int:
    return prequal.worst(pool, size, limit)


@compiled
def note_rif(rif: int, rifs: NDArray[np.int64], answers: int) -> None:
    prequal.note_rif(rif, rifs, answers)


@compiled
def hot_above(rifs: NDArray[np.int64], answers: int, quantile: float) -> int:
    return prequal.hot_above(rifs, answers, quantile)


@compiled
def latency_at(rif: float, finished: Loads, count: int, scratch: Loads) -> float:
    return prequal.latency_at(rif, finished, count, scratch)


@compiled
def draw(picks: NDArray[np.int64], drawn: int, u: float, servers: int) -> int:
    return prequal.draw(picks, drawn, u, servers)


def test_what_is_drawn_is_the_so_manieth_of_those_left() -> None:
    picks = np.zeros(8, dtype=np.int64)
    assert [draw(picks, k, u, 5) for k, u in enumerate((0.5, 0.9, 0.4, 0.0, 0.3))] == [
        2,
        4,
        1,
        0,
        3,
    ]
    assert picks[:5].tolist() == [0, 1, 2, 3, 4]


def test_a_probe_is_good_for_as_many_requests_as_the_paper_says() -> None:
    """Section 5: n = 100, m = 16, 3 probes and 1 removal a request, delta = 1: 2 / 1.52 = 1.316."""
    assert reuse(100, 16, 3.0, 1.0, 1.0) == pytest.approx(1.3158, abs=5e-5)
    assert reuse(100, 16, 3.0, 0.25, 1.0) == 1.0
    assert reuse(10**9, 16, 3.0, 1.0, 5.0) == pytest.approx(3.0)
    assert reuse(24, 16, 3.0, 1.0, 1.0) == np.inf
    assert reuse(25, 16, 3.0, 1.0, 1.0) == pytest.approx(2 / 0.08)


def pool_of(*probes: tuple[int, float]) -> Loads:
    """Of servers 0, 1, ...: RIF and latency."""
    pool = np.zeros((len(probes), PROBE_COLUMNS))
    for s, (rif, latency_s) in enumerate(probes):
        pool[s, :3] = s, rif, latency_s
    return pool


@pytest.mark.parametrize(
    ("probes", "limit", "first", "last"),
    [
        ([(9, 0.1), (2, 0.5), (3, 0.2)], 5, 2, 0),  # 0 is hot, 2 the fastest of the cold
        ([(9, 0.1), (2, 0.5), (3, 0.2)], 9, 0, 1),  # nobody is hot: latency alone
        ([(9, 0.1), (7, 0.5), (8, 0.2)], 5, 1, 0),  # all are hot: RIF alone
        ([(3, 0.2), (2, 0.2), (2, 0.2)], 5, 1, 0),  # equal latency: fewer requests, then age
        ([(7, 0.5), (7, 0.2), (9, 0.1), (9, 0.1)], 5, 1, 2),
    ],
)
def test_hot_probes_go_by_rif_and_cold_ones_by_latency(
    probes: list[tuple[int, float]], limit: int, first: int, last: int
) -> None:
    pool = pool_of(*probes)
    assert best(pool, len(probes), limit) == first
    assert worst(pool, len(probes), limit) == last


def test_hot_is_what_exceeds_the_quantile_of_the_last_64_answers() -> None:
    rifs = np.zeros((2, leaf_memory.RIFS), dtype=np.int64)
    rng = np.random.default_rng(5)
    answers = rng.integers(0, 12, 200).tolist()
    for count, rif in enumerate(answers):
        note_rif(rif, rifs, count)
        last = sorted(answers[max(0, count - 63) : count + 1])
        for quantile in (0.0, 0.5, 2**-0.25, 1.0):
            place = next(k for k in range(len(last)) if (k + 1) >= quantile * len(last))
            assert hot_above(rifs, count + 1, quantile) == last[place]


@pytest.mark.parametrize(
    ("rif", "latency_s"),
    [
        (2, 0.2),  # those at 1, 2 and 3 requests: 0.1, 0.2, 0.9
        (5, 0.9),  # nobody within 1, the nearest at 3 requests
        (8, 4.0),  # 9 alone
        (1, 0.1),  # of two the smaller
    ],
)
def test_a_server_tells_the_median_latency_of_requests_at_a_rif_like_its_own(
    rif: int, latency_s: float
) -> None:
    finished = np.zeros((leaf_memory.FINISHED, 2))
    finished[:4] = (1, 0.1), (9, 4.0), (2, 0.2), (3, 0.9)
    assert latency_at(float(rif), finished, 4, np.zeros(64)) == latency_s
    assert latency_at(float(rif), finished, 0, np.zeros(64)) == 0.0


PROBING = {"rule": "prequal", "probes_per_request": 2.0, "removals_per_request": 0.0}
"""Both of two servers are probed with every request; no probe is worn out."""


def test_probes_serve_from_the_next_request_on_while_they_are_fresh() -> None:
    """The first request's probes count it: server 0 has 1, server 1 none, for 1 s."""
    first = Turn(0.02, 900, 10)
    for gap_s, server in ((0.9, 1), (1.1, 0)):
        assert chosen([first, Turn(0.02 + gap_s, 10, 10)], PROBING) == [0, server]


@pytest.mark.parametrize(("quantile", "servers"), [(1.0, [0, 1, 1, 1]), (0.0, [0, 1, 1, 0])])
def test_a_slow_server_is_left_alone_unless_rif_says_otherwise(
    quantile: float, servers: list[int]
) -> None:
    """At 2.55 s server 0 has finished a request in 1.4 s (900 + 500 ms), server 1 one in 0.11 s.

    Too old a pool sends that turn to server 1, as u says, and its probes tell both latencies. With
    Q = 1 nobody is hot, so the faster server takes the rest. With Q = 0 the limit is the least RIF
    among the answers, 0: the request on server 1 makes that one hot, and server 0 is cold.
    """
    turns = [
        Turn(0.02, 900, 50), Turn(0.03, 10, 10), Turn(2.5, 10, 90, u_leaf=SERVER_1),
        Turn(2.52, 10, 90),
    ]  # fmt: skip
    assert chosen(turns, PROBING | {"rif_quantile": quantile}) == servers


def test_probes_are_messages() -> None:
    """2 a probe, beside those of telemetry: without any there are as many as without Prequal."""
    turns = [Turn(0.1 * k, 10, 10) for k in range(10)]
    messages = []
    for table in ({"rule": "random"}, PROBING, {"rule": "prequal", "probes_per_request": 0.5}):
        counts = talking(turns, (2,), leaf=table).to(3.0).simulator.counts()
        assert counts is not None
        messages.append(int(counts.messages[0]))
    assert messages[1] - messages[0] == 2 * 2 * 10
    assert messages[2] - messages[0] == 2 * 5
