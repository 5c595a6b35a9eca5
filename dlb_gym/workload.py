"""The requests that a scenario offers, in chunks of ten seconds.

A chunk of a root is drawn from the key (seed, episode, root, chunk) alone. Its arrivals are Poisson
(see `arrivals`); a burst superposes requests from a key of its own, so the others stay the same,
bit for bit. A recorded trace replaces arrivals and tokens (see `trace_replay`); bursts then draw
their tokens from it.

With sessions (see `session_requests`), or a trace that tells of them, requests say which session
they belong to. Those of a burst belong to none: each has the tokens of any request of a session,
so that the burst brings the load it should, and no server knows its context.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.arrivals import arrival_times_s
from dlb_gym.demand_profile import relative_rates
from dlb_gym.disturbances import ActiveBurst, resolve
from dlb_gym.rates import demand_shares, offered_rate_rps, root_rates_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scheduling_hash import SchedulingHash
from dlb_gym.session_requests import SessionRequests, request_tokens
from dlb_gym.streams import Stream, random_stream
from dlb_gym.tokens import TokenSource, token_source
from dlb_gym.trace import load_trace
from dlb_gym.trace_replay import TraceReplay

CHUNK_S = 10.0
"""Length of a chunk, seconds."""
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "u_route", "u_leaf")
"""Columns of a chunk: clock time, whole token counts, and the uniforms of the two choices."""
SESSION_COLUMNS = (*COLUMNS, "session", "session_hash", "prefix_tokens")
"""Columns of a chunk with sessions. The session's id is a whole number of its own, the hash one
that the scenario may let several share; -1 without a session. The prefix is what the prompt shares
with the context of the session's turns before."""
NO_SESSION = (-1.0, -1.0, 0.0)


class Workload:
    """The requests of one episode. It does not end: the simulator stops arrivals where it must.

    Args:
        scenario: The scenario.
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.

    Attributes:
        columns: Names of a chunk's columns: `COLUMNS`, or `SESSION_COLUMNS`.
        disturbances: What happens in the episode.

    Raises:
        ScenarioError: A disturbance cannot be brought about.
        TraceError: The scenario's trace cannot be used.
    """

    def __init__(self, scenario: Scenario, seed: int, episode: int) -> None:
        self._key = (seed, episode)
        demand = scenario.demand
        self._tokens = request_tokens(scenario.tokens, demand.sessions, demand.trace)
        disturbances = resolve(scenario, seed, episode)
        self._bursts = disturbances.bursts
        self.disturbances = disturbances
        self._rates_rps: list[float] = root_rates_rps(scenario).tolist()
        self._profiles = relative_rates(scenario)
        self._sessions = self._session_requests(scenario)
        self._replay = self._trace_replay(scenario)
        self.columns = SESSION_COLUMNS if demand.has_sessions else COLUMNS

    def _session_requests(self, scenario: Scenario) -> list[SessionRequests]:
        """One for each root, or none."""
        sessions = scenario.demand.sessions
        if sessions is None:
            return []
        hashes = SchedulingHash(*self._key, sessions.hash_values)
        tokens = token_source(scenario.tokens, None)
        roots = len(self._rates_rps)
        return [
            SessionRequests(
                sessions, tokens, profile, rate_rps, (root, roots), self._key, CHUNK_S, hashes
            )
            for root, (profile, rate_rps) in enumerate(
                zip(self._profiles, self._rates_rps, strict=True)
            )
        ]

    def _trace_replay(self, scenario: Scenario) -> TraceReplay | None:
        if scenario.demand.trace is None:
            return None
        trace = load_trace(scenario.demand.trace)
        return TraceReplay(trace, offered_rate_rps(scenario), demand_shares(scenario), *self._key)

    def chunk(self, index: int) -> list[NDArray[np.float64]]:
        """Requests that arrive in [10 index, 10 (index + 1)) seconds.

        Args:
            index: Number of the chunk, >= 0; chunks may be asked for in any order.

        Returns:
            One float64 array of shape (n, len(columns)) per root, sorted by arrival.
        """
        start_s, end_s = CHUNK_S * index, CHUNK_S * (index + 1)
        if self._replay is not None:
            requests = self._replay.chunk(index, start_s, end_s)
        else:
            requests = [self._own_requests(root, index) for root in range(len(self._rates_rps))]
        for number, burst in enumerate(self._bursts):
            if burst.start_s < end_s and burst.end_s > start_s:
                extra = self._burst_requests(number, burst, index)
                requests[burst.root] = _merged(requests[burst.root], extra)
        return requests

    def _own_requests(self, root: int, index: int) -> NDArray[np.float64]:
        if self._sessions:
            return self._sessions[root].chunk(index)
        rate_rps = self._rates_rps[root]
        if rate_rps == 0:
            return np.empty((0, len(COLUMNS)))
        grid_s, integral_s = self._profiles[root].cumulative(CHUNK_S * index, CHUNK_S * (index + 1))
        rng = random_stream(*self._key, Stream.REQUESTS, root, index)
        return _poisson_requests(rng, grid_s, rate_rps * integral_s, self._tokens)

    def _burst_requests(self, number: int, burst: ActiveBurst, index: int) -> NDArray[np.float64]:
        start_s = max(burst.start_s, CHUNK_S * index)
        end_s = min(burst.end_s, CHUNK_S * (index + 1))
        rng = random_stream(*self._key, Stream.BURST_REQUESTS, number, burst.root, index)
        expected = np.array([0.0, burst.extra_rps * (end_s - start_s)])
        requests = _poisson_requests(rng, np.array([start_s, end_s]), expected, self._tokens)
        if self.columns == SESSION_COLUMNS:
            return np.hstack((requests, np.tile(NO_SESSION, (len(requests), 1))))
        return requests


def _poisson_requests(
    rng: np.random.Generator,
    grid_s: NDArray[np.float64],
    expected: NDArray[np.float64],
    tokens: TokenSource,
) -> NDArray[np.float64]:
    """Independent requests, shape (n, 5).

    Args:
        rng: Their stream.
        grid_s: Times, ascending, shape (points,).
        expected: Expected arrivals from the first grid point to each, shape (points,).
        tokens: Where their tokens come from.
    """
    arrival_s = arrival_times_s(rng, grid_s, expected)
    requests = np.empty((arrival_s.size, len(COLUMNS)))
    requests[:, 0] = arrival_s
    requests[:, 1], requests[:, 2] = tokens.draw(rng, arrival_s.size)
    requests[:, 3:] = rng.random((arrival_s.size, 2))
    return requests


def _merged(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both by arrival; at equal times those of the first precede."""
    both = np.concatenate((first, second))
    return both[np.argsort(both[:, 0], kind="stable")]
