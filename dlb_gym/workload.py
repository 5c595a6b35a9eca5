"""The requests that a scenario offers, in chunks of ten seconds.

A chunk [a, b) of a root is drawn from the key (seed, episode, root, chunk) alone. With rate
lambda(t) and Lambda its integral from a, the number of arrivals is Poisson(Lambda(b)), and given
that number, arrivals are Lambda^-1(U Lambda(b)) of sorted uniforms U. A burst superposes requests
from a key of its own, so the others stay the same, bit for bit. A recorded trace replaces arrivals
and tokens (see `trace_replay`); bursts then draw their tokens from it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.demand_profile import RelativeRate
from dlb_gym.disturbances import ActiveBurst, resolve
from dlb_gym.network import REGIONS
from dlb_gym.rates import demand_shares, offered_rate_rps
from dlb_gym.scenario import Root, Scenario
from dlb_gym.streams import Stream, random_stream
from dlb_gym.tokens import TokenSource, token_source
from dlb_gym.trace import load_trace
from dlb_gym.trace_replay import TraceReplay

CHUNK_S = 10.0
"""Length of a chunk, seconds."""
COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens", "u_route", "u_leaf")
"""Columns of a chunk: clock time, whole token counts, and the uniforms of the two choices."""


class Workload:
    """The requests of one episode. It does not end: the simulator stops arrivals where it must.

    Args:
        scenario: The scenario.
        seed: Seed, >= 0.
        episode: Number of the episode since the seed was set, >= 0.

    Raises:
        ScenarioError: A disturbance cannot be brought about.
        TraceError: The scenario's trace cannot be used.
    """

    def __init__(self, scenario: Scenario, seed: int, episode: int) -> None:
        self._key = (seed, episode)
        self._tokens = token_source(scenario.tokens, scenario.demand.trace)
        disturbances = resolve(scenario, seed, episode)
        self._bursts = disturbances.bursts
        self.live_servers = disturbances.live_servers
        shares = demand_shares(scenario)
        rate_rps = offered_rate_rps(scenario)
        self._rates_rps: list[float] = (rate_rps * shares).tolist()
        self._profiles = [_relative_rate(scenario, root) for root in scenario.roots]
        self._replay: TraceReplay | None = None
        if scenario.demand.trace is not None:
            trace = load_trace(scenario.demand.trace)
            self._replay = TraceReplay(trace, rate_rps, shares, seed, episode)

    def chunk(self, index: int) -> list[NDArray[np.float64]]:
        """Requests that arrive in [10 index, 10 (index + 1)) seconds.

        Args:
            index: Number of the chunk, >= 0; chunks may be asked for in any order.

        Returns:
            One float64 array of shape (n, 5) per root, sorted by arrival; see `COLUMNS`.
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
        return _poisson_requests(rng, np.array([start_s, end_s]), expected, self._tokens)


def _relative_rate(scenario: Scenario, root: Root) -> RelativeRate:
    """Regions without a known time zone pass validation only where none is needed."""
    region = REGIONS.get(root.region)
    return RelativeRate(scenario.demand.profile, region.utc_offset_h if region else 0.0)


def _poisson_requests(
    rng: np.random.Generator,
    grid_s: NDArray[np.float64],
    expected: NDArray[np.float64],
    tokens: TokenSource,
) -> NDArray[np.float64]:
    """Arrivals of a Poisson process on [grid_s[0], grid_s[-1]), shape (n, 5).

    Args:
        rng: Their stream.
        grid_s: Times, ascending, shape (points,).
        expected: Expected arrivals from the first grid point to each, shape (points,).
        tokens: Where their tokens come from.
    """
    total = float(expected[-1])
    count = int(rng.poisson(total))
    requests = np.empty((count, len(COLUMNS)))
    arrival_s = rng.random(count)
    arrival_s.sort()
    if grid_s.size == 2:  # a constant rate, by far the most frequent: no need to search the grid
        arrival_s *= grid_s[1] - grid_s[0]
        arrival_s += grid_s[0]
    else:
        arrival_s = np.interp(arrival_s * total, expected, grid_s)
    # Rounding may have reached the end, which belongs to the next chunk.
    np.minimum(arrival_s, math.nextafter(grid_s[-1], -math.inf), out=requests[:, 0])
    requests[:, 1], requests[:, 2] = tokens.draw(rng, count)
    requests[:, 3:] = rng.random((count, 2))
    return requests


def _merged(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Both by arrival; at equal times those of the first precede."""
    both = np.concatenate((first, second))
    return both[np.argsort(both[:, 0], kind="stable")]
