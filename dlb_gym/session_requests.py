"""The requests of sessions, root by root and chunk by chunk.

Sessions start as a Poisson process that follows the root's profile, at its rate of requests over
E[T]; later turns follow at gaps (`sessions`), so requests keep the offered rate on average and
follow the profile with the sessions' delay. What starts in a chunk of time is drawn, with all its
turns, from the key (seed, episode, root, chunk) alone, before clock 0 as after it: at clock 0 as
many sessions are under way as ever.

A chunk of requests needs the starts of finitely many chunks since no session lasts longer than

    L = 5 mean_turns gap_s,

where the gaps of one add up to more (by default one session in 700, with one request in 200), all
of them shrink in proportion.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.arrivals import arrival_times_s
from dlb_gym.demand_profile import RelativeRate
from dlb_gym.scenario import Tokens, Trace
from dlb_gym.scheduling_hash import SchedulingHash
from dlb_gym.sessions import Sessions, turn_moments
from dlb_gym.streams import Stream, random_stream
from dlb_gym.tokens import TokenColumns, TokenSource, token_source

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

COLUMNS = 8
LONGEST_MEANS = 5.0
"""Longest session, in mean numbers of turns at mean gaps."""
_ORIGIN = 2**31
"""Chunks before clock 0 have numbers below 0, and parts of a stream's key must not."""
_NUMBERS = 2**24
"""Sessions that a root may start in a chunk, each with an id of its own. Ids stay exact in float64:
2^53 / 2^24 are the chunks of 1,000 roots for two months."""


class SessionRequests:
    """The sessions of one root in one episode.

    Args:
        sessions: Their description.
        tokens: Where new prompt tokens and output tokens come from.
        profile: How the rate moves.
        rate_rps: Mean rate of requests.
        place: Number of the root, and of roots there are.
        key: Seed and episode.
        chunk_s: Length of a chunk.
        hashes: The episode's scheduling hashes.
    """

    def __init__(
        self,
        sessions: Sessions,
        tokens: TokenSource,
        profile: RelativeRate,
        rate_rps: float,
        place: tuple[int, int],
        key: tuple[int, int],
        chunk_s: float,
        hashes: SchedulingHash,
    ) -> None:
        self._sessions = sessions
        self._tokens = tokens
        self._profile = profile
        self._starts_per_s = rate_rps / turn_moments(sessions).turns
        self._root, self._num_roots = place
        self._key = key
        self._chunk_s = chunk_s
        self._hashes = hashes
        self._longest_s = LONGEST_MEANS * sessions.mean_turns * sessions.gap_s
        self._reach = math.ceil(self._longest_s / chunk_s)
        self._recent: dict[int, FloatArray] = {}

    def chunk(self, index: int) -> FloatArray:
        """Requests that arrive in chunk `index` >= 0, shape (n, 8), sorted by arrival."""
        start_s, end_s = self._chunk_s * index, self._chunk_s * (index + 1)
        if self._starts_per_s == 0:
            return np.empty((0, COLUMNS))
        needed = range(index - self._reach, index + 1)
        self._recent = {
            k: self._recent[k] if k in self._recent else self._started_in(k) for k in needed
        }
        parts = []
        for started in self._recent.values():
            first, stop = np.searchsorted(started[:, 0], (start_s, end_s))
            parts.append(started[first:stop])
        requests = np.concatenate(parts)
        return requests[np.argsort(requests[:, 0], kind="stable")]

    def _started_in(self, chunk: int) -> FloatArray:
        """All requests of the sessions that start in a chunk (below 0: before clock 0), sorted."""
        rng = random_stream(*self._key, Stream.SESSIONS, self._root, _ORIGIN + chunk)
        grid_s, integral_s = self._profile.cumulative(
            self._chunk_s * chunk, self._chunk_s * (chunk + 1)
        )
        start_s = arrival_times_s(rng, grid_s, self._starts_per_s * integral_s)
        pace = self._paces(rng, start_s.size)
        turns = _turns(rng, self._sessions, start_s.size) * pace
        total = int(turns.sum())
        new, output = self._tokens.draw(rng, total)
        context = _sums_before(new + output, turns)
        first_id = ((chunk + self._reach) * self._num_roots + self._root) * _NUMBERS
        session = np.arange(first_id, first_id + start_s.size, dtype=np.float64)

        requests = np.empty((total, COLUMNS))
        requests[:, 0] = np.repeat(start_s, turns) + self._offsets_s(rng, turns, pace)
        requests[:, 1] = context + new
        requests[:, 2] = output
        requests[:, 3:5] = rng.random((total, 2))
        requests[:, 5] = np.repeat(session, turns)
        requests[:, 6] = np.repeat(self._hashes(session), turns)
        requests[:, 7] = np.floor(self._sessions.prefix_fraction * context)
        return requests[np.argsort(requests[:, 0], kind="stable")]

    def _paces(self, rng: np.random.Generator, count: int) -> IntArray:
        """How many times the turns of an ordinary session each has: 1, or more if hot."""
        hot = rng.random(count) < self._sessions.hot_fraction
        return np.where(hot, self._sessions.hot_factor, 1)

    def _offsets_s(self, rng: np.random.Generator, turns: IntArray, pace: IntArray) -> FloatArray:
        """Time of every turn since the first of its session, shape (all turns,)."""
        sessions = self._sessions
        gap_s = rng.standard_exponential(int(turns.sum()))
        gap_s *= sessions.gap_s - sessions.least_gap_s
        gap_s += sessions.least_gap_s
        gap_s /= np.repeat(pace, turns)
        offset_s = _sums_before(gap_s, turns)
        lasts_s = offset_s[np.cumsum(turns) - 1]
        shrink = np.minimum(1.0, self._longest_s / np.maximum(lasts_s, self._longest_s))
        offset_s *= np.repeat(shrink, turns)
        return offset_s


class SessionTokens:
    """Tokens of requests of sessions, each drawn by itself from among all requests there are.

    A request has k turns before it with probability P(T > k) / E[T], and their tokens for context.
    Bursts and calibration, which know no sessions, draw from it.

    Args:
        sessions: The sessions.
        tokens: Where new prompt tokens and output tokens come from.
    """

    def __init__(self, sessions: Sessions, tokens: TokenSource) -> None:
        self._tokens = tokens
        self._cumulative = np.cumsum(_place_shares(sessions))

    def draw(self, rng: np.random.Generator, count: int) -> TokenColumns:
        """Tokens of `count` independent requests."""
        place = np.searchsorted(self._cumulative[:-1], rng.random(count), side="right")
        turns = place + 1
        new, output = self._tokens.draw(rng, int(turns.sum()))
        last = np.cumsum(turns) - 1
        context = _sums_before(new + output, turns)[last]
        return context + new[last], output[last]


def request_tokens(tokens: Tokens, sessions: Sessions | None, trace: Trace | None) -> TokenSource:
    """Tokens of a scenario's requests, each by itself: those of a session, if there are any.

    Raises:
        TraceError: The trace cannot be used.
    """
    source = token_source(tokens, trace)
    return source if sessions is None else SessionTokens(sessions, source)


def _turns(rng: np.random.Generator, sessions: Sessions, count: int) -> IntArray:
    return np.minimum(rng.geometric(1.0 / sessions.mean_turns, count), sessions.max_turns)


def _place_shares(sessions: Sessions) -> FloatArray:
    """Share of the requests that have k turns before them, k = 0, 1, ..."""
    q = 1.0 - 1.0 / sessions.mean_turns
    lasting = q ** np.arange(sessions.max_turns, dtype=np.float64)  # P(T > k), not hot
    if sessions.hot_fraction > 0:
        others = (1.0 - sessions.hot_fraction) * lasting
        lasting = sessions.hot_fraction * np.repeat(lasting, sessions.hot_factor)
        lasting[: others.size] += others
    shares: FloatArray = lasting / turn_moments(sessions).turns
    return shares


def _sums_before(values: FloatArray, turns: IntArray) -> FloatArray:
    """For every turn, the sum of the values of the turns before it in its session.

    Args:
        values: Session after session, shape (all turns,).
        turns: Turns of each session, all >= 1, shape (sessions,).
    """
    before = np.cumsum(values) - values
    first = np.cumsum(turns) - turns
    before -= np.repeat(before[first], turns)
    return before
