"""Replay of a recorded trace at another rate, from a random place, for ever.

A trace of n requests at times s_0 = 0 <= ... <= s_(n-1) is closed to a circle of period
S = s_(n-1) n / (n - 1): the gap between its last and its first request is the mean gap. All its
times are divided by one factor c, so that its rate n / (S / c) is the rate wanted, and the replay
starts at a random offset o on the circle. Request k of lap L arrives at

    t = s_k / c + (L S / c - o).

Equal times keep file order. Each request belongs to a root drawn by the roots' demand shares; all
requests of a session belong to one, by a hash of the session. Every lap has sessions of its own:
session m of lap L, in a trace of M, has the id L M + m.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.scheduling_hash import SchedulingHash
from dlb_gym.streams import Stream, random_stream
from dlb_gym.trace import TraceColumns

_MARGIN_S = 1e-6
"""Search this much further than the chunk; the exact times then decide."""


class TraceReplay:
    """The requests of a trace as they arrive in one episode.

    Args:
        trace: The trace.
        rate_rps: Mean rate of the replay, all roots together.
        shares: Each root's share of the requests, shape (roots,), adding up to 1.
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.
    """

    def __init__(
        self,
        trace: TraceColumns,
        rate_rps: float,
        shares: NDArray[np.float64],
        seed: int,
        episode: int,
    ) -> None:
        count = trace.time_s.size
        self._trace = trace
        self._lap_s: float = count / rate_rps
        recorded_s = float(trace.time_s[-1])
        self._time_s: NDArray[np.float64] = trace.time_s * ((count - 1) / rate_rps / recorded_s)
        start = random_stream(seed, episode, Stream.TRACE_OFFSET).random()
        self._offset_s = float(self._lap_s * start)
        self._bounds = np.cumsum(shares)
        self._bounds[np.flatnonzero(shares)[-1] :] = 1.0
        self._key = (seed, episode)
        self._hashes = SchedulingHash(seed, episode)

    def chunk(self, index: int, start_s: float, end_s: float) -> list[NDArray[np.float64]]:
        """Requests that arrive in [start_s, end_s), one array per root.

        Their columns are `workload.COLUMNS`, or `workload.SESSION_COLUMNS` with sessions.

        Args:
            index: Number of the chunk, part of the key of its random numbers.
            start_s: Its start.
            end_s: Its end.
        """
        number = np.arange(self._number_at(start_s - _MARGIN_S), self._number_at(end_s + _MARGIN_S))
        lap, row = np.divmod(number, self._time_s.size)
        arrival_s = self._time_s[row] + (lap * self._lap_s - self._offset_s)
        inside = (arrival_s >= start_s) & (arrival_s < end_s)
        lap, row = lap[inside], row[inside]

        uniform = random_stream(*self._key, Stream.TRACE_ROOTS, index).random((row.size, 3))
        turns = self._turns(lap, row)
        u_root = uniform[:, 0]
        if turns.size:
            u_root = np.where(turns[:, 0] < 0, u_root, self._hashes.uniform(turns[:, 0]))
        # Two bytes: numpy then sorts by radix, and stably.
        root = np.searchsorted(self._bounds, u_root, side="right").astype(np.int16)
        requests = np.empty((row.size, 5 + turns.shape[1]))
        requests[:, 0] = arrival_s[inside]
        requests[:, 1] = self._trace.prompt_tokens[row]
        requests[:, 2] = self._trace.output_tokens[row]
        requests[:, 3:5] = uniform[:, 1:]
        requests[:, 5:] = turns
        by_root = requests[np.argsort(root, kind="stable")]
        counts = np.bincount(root, minlength=self._bounds.size)
        return np.split(by_root, np.cumsum(counts)[:-1])

    def _turns(self, lap: NDArray[np.int64], row: NDArray[np.int64]) -> NDArray[np.float64]:
        """Session, its hash and the prefix of requests, shape (n, 3); (n, 0) without sessions."""
        trace = self._trace
        if trace.session is None or trace.prefix_tokens is None:
            return np.empty((row.size, 0))
        session = trace.session[row]
        own = lap * (trace.session.max() + 1.0) + session
        session = np.where(session < 0, -1.0, own)
        return np.column_stack((session, self._hashes(session), trace.prefix_tokens[row]))

    def _number_at(self, clock_s: float) -> int:
        """How many requests, counted from the start of lap 0, come before a clock time."""
        lap, within_s = divmod(clock_s + self._offset_s, self._lap_s)
        before = int(np.searchsorted(self._time_s, within_s, side="left"))
        return math.floor(lap) * self._time_s.size + before
