"""Replay of a trace: order, rate and shares."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.trace import TraceColumns
from dlb_gym.trace_replay import TraceReplay

# Gaps 1, 0, 3 s; the circle's period is 4 * 4 / 3 s, so the last gap is the mean gap, 4 / 3 s.
TIME_S = np.array([0.0, 1.0, 1.0, 4.0])
TRACE = TraceColumns(TIME_S, np.array([10.0, 20, 30, 40]), np.array([1.0, 2, 3, 4]))


def replayed(
    replay: TraceReplay, chunks: range, length_s: float = 10.0
) -> list[NDArray[np.float64]]:
    parts = [replay.chunk(k, k * length_s, (k + 1) * length_s) for k in chunks]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def test_a_replay_runs_around_the_trace_in_file_order_from_a_random_row() -> None:
    (requests,) = replayed(TraceReplay(TRACE, 0.75, np.array([1.0]), 3, 0), range(20))
    row = (requests[:, 1] / 10 - 1).astype(int)
    assert np.all(np.diff(row) % 4 == 1)
    assert requests[:, 2].tolist() == (row + 1).tolist()
    # The trace's own rate is 4 requests in 16/3 s: at that rate the gaps are its own.
    gap_s = {0: 1.0, 1: 0.0, 2: 3.0, 3: 4 / 3}
    assert np.diff(requests[:, 0]) == pytest.approx([gap_s[r] for r in row[:-1]], abs=1e-9)


def test_a_replay_has_the_rate_asked_for() -> None:
    (requests,) = replayed(TraceReplay(TRACE, 300.0, np.array([1.0]), 3, 0), range(4))
    # Whole laps last 4 / 300 s, so 40 s hold 12,000 requests, give or take one lap.
    assert abs(len(requests) - 12_000) <= 4
    assert np.all(np.diff(requests[:, 0]) >= 0)
    assert requests[0, 0] >= 0
    assert requests[-1, 0] < 40


def test_chunks_of_any_length_and_order_lose_and_double_nothing() -> None:
    replay = TraceReplay(TRACE, 0.75, np.array([1.0]), 8, 0)
    (whole,) = replayed(replay, range(1), 210.0)
    (parts,) = replayed(replay, range(300), 0.7)
    assert parts[:, :3].tolist() == whole[:, :3].tolist()
    late = replay.chunk(7, 70.0, 80.0)[0]
    assert replay.chunk(7, 70.0, 80.0)[0].tolist() == late.tolist()


def test_the_offset_comes_from_seed_and_episode_and_is_uniform() -> None:
    firsts = [
        TraceReplay(TRACE, 0.75, np.array([1.0]), seed, episode).chunk(0, 0.0, 10.0)[0][0, 1]
        for seed in range(200)
        for episode in range(2)
    ]
    # A row comes first when the start falls into the gap before it: 4/3, 1, 0 or 3 of 16/3 s.
    counts = [firsts.count(row) for row in (10, 20, 30, 40)]
    assert counts[2] == 0
    expected = np.array([4 / 3, 1, 3]) / (16 / 3) * 400
    assert stats.chisquare([counts[0], counts[1], counts[3]], expected).pvalue > 1e-3


def test_roots_are_drawn_by_their_shares_and_none_without_demand() -> None:
    shares = np.array([0.0, 0.3, 0.0, 0.7, 0.0])
    counts = [len(rows) for rows in replayed(TraceReplay(TRACE, 300.0, shares, 3, 0), range(4))]
    low, high = stats.binom.interval(0.999, sum(counts), 0.3)
    assert counts[0] == counts[2] == counts[4] == 0
    assert low <= counts[1] <= high


def test_equal_times_keep_file_order_within_a_root() -> None:
    count = 400
    times_s = np.repeat(np.arange(count / 40, dtype=np.float64), 40)
    trace = TraceColumns(times_s, np.arange(1.0, count + 1.0), np.ones(count))
    shares = np.array([0.5, 0.5])
    for rows in replayed(TraceReplay(trace, 60.0, shares, 5, 0), range(3)):
        assert len(rows) > 500
        lap_starts = np.flatnonzero(np.diff(rows[:, 1]) < 0)
        assert len(lap_starts) in (4, 5)  # 30 s at 60 / s are 4.5 laps of 400


def test_the_uniforms_are_uniform_and_of_their_chunk() -> None:
    (requests,) = replayed(TraceReplay(TRACE, 300.0, np.array([1.0]), 3, 0), range(2))
    for column in (3, 4):
        assert stats.kstest(requests[:, column], "uniform").pvalue > 1e-3
    assert len(np.unique(requests[:, 3:])) == requests[:, 3:].size
