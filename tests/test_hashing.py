"""The counter hash: uniform and independent in each of its three numbers, exact in Python."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.engine import hashing
from tests import batching_model

_njit: Any = numba.njit
COUNT = 100_000


@_njit
def _many(a: Any, b: Any, c: Any) -> Any:
    u = np.empty(len(a))
    for k in range(len(a)):
        u[k] = hashing.uniform(a[k], b[k], c[k])
    return u


def uniforms(*numbers: object) -> NDArray[np.float64]:
    columns = np.broadcast_arrays(*(np.asarray(number, dtype=np.int64) for number in numbers))
    drawn: NDArray[np.float64] = _many(*(np.ascontiguousarray(column) for column in columns))
    return drawn


def counting(place: int, step: int = 1, start: int = 0) -> NDArray[np.float64]:
    """Draws with one of the three numbers counting, the others fixed."""
    numbers: list[object] = [7, 3 * 2**40 + 12, 5]
    numbers[place] = start + step * np.arange(COUNT)
    return uniforms(*numbers)


STREAMS = [(place, step) for place in range(3) for step in (1, 64, 2**32)]


@pytest.mark.parametrize(("place", "step"), STREAMS)
def test_counting_gives_uniform_numbers(place: int, step: int) -> None:
    u = counting(place, step)
    assert u.min() >= 0
    assert u.max() < 1
    assert stats.kstest(u, "uniform").pvalue > 1e-3
    for bits in (u * 4_096, u * 2**32 % 1_024):  # the leading bits and the last
        counts = np.bincount(bits.astype(np.int64))
        assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize(("place", "step"), STREAMS)
def test_draws_that_follow_one_another_are_independent(place: int, step: int) -> None:
    u = counting(place, step)
    pairs = (u[:-1:2] * 16).astype(np.int64) * 16 + (u[1::2] * 16).astype(np.int64)
    assert stats.chisquare(np.bincount(pairs, minlength=256)).pvalue > 1e-3
    for lag in (1, 2, 50):
        assert abs(np.corrcoef(u[:-lag], u[lag:])[0, 1]) < 4 / np.sqrt(COUNT)


def test_rows_requests_and_purposes_have_streams_of_their_own() -> None:
    draws = np.arange(COUNT)
    streams = [
        uniforms(seed + purpose, key, draws)
        for seed in (0, 1)
        for purpose in (0, hashing.DRAFTS)
        for key in (0, 1, 2**40)
    ]
    correlation = np.corrcoef(streams)
    off = correlation[~np.eye(len(streams), dtype=bool)]
    assert np.abs(off).max() < 4.5 / np.sqrt(COUNT)


def test_python_integers_give_the_same_numbers() -> None:
    rng = np.random.default_rng(0)
    numbers = rng.integers(0, 2**53, (500, 3))
    numbers[:3] = [[0, 0, 0], [2**53, 1, 2**32], [2**32 - 1, 2**32, 2**62]]
    by_hand = [batching_model.uniform(*(int(n) for n in row)) for row in numbers]
    assert uniforms(*numbers.T).tolist() == by_hand
