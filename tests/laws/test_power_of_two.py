"""Power of two choices: many servers behind one leaf, each request on the better of two.

With N servers at load lam (per server and mean service time), s_n the share of servers with at
least n unfinished requests, servers become independent as N grows (Vvedenskaya, Dobrushin and
Karpelevich 1996; Bramson, Lu and Prabhakar 2012 for general service times). Each then is a queue to
which requests come at a rate that depends on its own length,

    lam_n = lam (s_n^2 - s_(n+1)^2) / (s_n - s_(n+1)) = lam (s_n + s_(n+1)),

and s is what that queue makes of it: a fixed point. For exponential services it is
s_n = lam^(2^n - 1). The leaf compares unfinished tokens; with equal requests that is their number.

Exact for any N is what servers without a place to wait refuse. With B of N busy an arrival is lost
if both of its two distinct choices are, with probability B (B - 1) / (N (N - 1)), else an idle
server takes it, each with the same chance: a rate that depends on B alone, for which B is the
birth-death chain of exponential services whatever the services are (detailed balance of the set of
busy servers). For N = 2 that is Erlang's loss formula.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.linalg import expm

from dlb_gym.scenario import Scenario
from tests.laws.erlang import erlang_b
from tests.laws.intervals import assert_ratio
from tests.laws.station import Service, by_row, played, station

LOAD = 0.85
MEAN_S = 0.1
ROWS = 8
LONGEST = 12
"""No queue of the fixed point is ever that long: s_12 < 1e-100."""
FINITE_SIZE = 1.5
"""N servers are slower than infinitely many by less than 1.5 / N services: measured 0.9 / N at 20
and at 50 servers (2.8 % and 1.2 %)."""


def state_probabilities(rates: NDArray[np.float64], exponential: bool) -> NDArray[np.float64]:
    """P(n in system) of a server of mean service 1 to which requests come at rate rates[n].

    Exponential: detailed balance. Deterministic: a service that starts with n requests ends with
    j - 1 left with probability exp(Q)[n, j], Q the generator of arrivals alone; p is stationary for
    that, and every upcrossing of n has its downcrossing: rates[n] P(n) is proportional to p_n.
    """
    size = len(rates)
    if exponential:
        probability = np.concatenate(([1.0], np.cumprod(rates[:-1])))
        return probability / probability.sum()
    births = np.diag(rates[:-1], 1) - np.diag(np.append(rates[:-1], 0.0))
    after = expm(births)
    left = np.zeros((size, size))
    for n in range(size):
        left[n, :-1] = after[max(n, 1), 1:]
        left[n, 0] += after[max(n, 1), 0]
    p = np.linalg.matrix_power(left, 1_000)[0]
    probability = np.divide(p, rates, out=np.zeros(size), where=rates > 0)
    return probability / probability.sum()


@lru_cache
def fixed_point(load: float, exponential: bool) -> NDArray[np.float64]:
    """s_0 = 1, s_1, ...: iterated until it stands still."""
    tails = load ** np.arange(LONGEST + 1.0)
    for _ in range(250):
        rates = load * (tails[:-1] + tails[1:])
        probability = state_probabilities(rates, exponential)
        new = np.append(np.cumsum(probability[::-1])[::-1], 0.0)
        tails = 0.5 * (tails + new)
    return tails


def test_the_fixed_point_is_the_known_one_for_exponential_services() -> None:
    """s_n = lam^(2^n - 1), and with any service times s_1 = lam (work conservation)."""
    tails = fixed_point(LOAD, exponential=True)
    np.testing.assert_allclose(tails[:6], [LOAD ** (2**n - 1) for n in range(6)], atol=1e-9)
    assert math.isclose(fixed_point(LOAD, exponential=False)[1], LOAD, rel_tol=1e-9)


@pytest.mark.parametrize("servers", [20, 400])
def test_mean_sojourn_is_that_of_the_fixed_point(servers: int) -> None:
    """E[T] = (s_1 + s_2 + ...) / lam, up to 1.5 / N, for deterministic services at lam = 0.85.

    One choice (M/D/1) would take 3.83 services instead of 1.58, the shortest of all 400 about 1.
    Catches: a second choice that is always the first; the busier of the two; a leaf
    that looks at what is not up to date; tokens that stay in the count, or leave it too early.
    """
    expected = float(fixed_point(LOAD, exponential=False)[1:].sum()) / LOAD
    scenario = pool(servers, Service(MEAN_S, math.inf), requests=60_000)
    found = played(scenario, ROWS).measurements()
    bias_s = FINITE_SIZE / servers * MEAN_S
    law, case = "power of two, mean field: E[T], s", f"N = {servers}, lam = {LOAD}, deterministic"
    assert_ratio(law, case, found.latency_sum_s, found.arrived, expected * MEAN_S, 0.02, bias_s)


@pytest.mark.parametrize("shape", [math.inf, 1.0, 0.5])
def test_an_arrival_waits_where_both_choices_are_busy(shape: float) -> None:
    """P(W > 0) = s_1^2 = lam^2 for any service times: an idle server has no unfinished tokens.

    Exactly, with B of N servers busy, it is E[B (B - 1)] / (N (N - 1)) with E[B] = lam N. Servers
    are negatively correlated, 0 <= Var B <= N lam (1 - lam), so it differs from lam^2 by no more
    than lam (1 - lam) / (N - 1).
    Catches: choices that are far from uniform, a tie for the wrong one, a server that
    idles in front of work (E[B] < lam N).
    """
    servers = 200
    scenario = pool(servers, Service(MEAN_S, shape), requests=60_000)
    simulator = played(scenario, ROWS, log=True)
    logs = by_row(simulator, scenario, ROWS)
    waited = np.array(
        [(log["first_token_s"] - log["leaf_s"] - log["prefill_s"] > 1e-9).sum() for log in logs]
    )
    counts = np.array([len(log["leaf_s"]) for log in logs])
    law, case = "power of two, mean field: P(W > 0)", f"N = 200, lam = {LOAD}, shape {shape:g}"
    bias = LOAD * (1.0 - LOAD) / (servers - 1)
    assert_ratio(law, case, waited, counts, LOAD**2, 0.04, bias)


def lost_share(servers: int, load: float) -> float:
    """Of arrivals, at `load` arrivals in a mean service time in all: detailed balance of B."""
    busy = np.arange(servers + 1.0)
    refused = busy * (busy - 1.0) / (servers * (servers - 1.0))
    weights = np.cumprod(np.append(1.0, load * (1.0 - refused[:-1]) / busy[1:]))
    return float(weights @ refused / weights.sum())


def test_two_choices_of_two_servers_lose_erlangs_share() -> None:
    assert math.isclose(lost_share(2, 1.3), erlang_b(2, 1.3))


@pytest.mark.parametrize("shape", [math.inf, 0.5])
@pytest.mark.parametrize("servers", [2, 5])
def test_without_places_to_wait_what_finds_both_choices_busy_is_lost(
    servers: int, shape: float
) -> None:
    """P(lost) = E[B (B - 1)] / (N (N - 1)) of the birth-death chain, at load N.

    One server drawn twice, which is a choice of one for 1 / N of the requests, shows in few.
    Catches: two choices that may be the same, one choice, three, choices that are not uniform, a
    busy server preferred to an idle one, a limit that is off by one.
    """
    scenario = station(
        servers / MEAN_S,
        prefill=Service(MEAN_S, shape),
        servers=servers,
        warmup_s=10.0,
        horizon_s=300.0 / servers,
        server={"decode_engines": 1, "slots_per_engine": 1, "queue_limit": 1},
    )
    found = played(scenario, 64).measurements()
    law, case = "power of two without queues: P(lost)", f"N = {servers}, lam = 1, shape {shape:g}"
    expected = lost_share(servers, float(servers))
    assert_ratio(law, case, found.errors, found.arrived, expected, 0.02)


def pool(servers: int, service: Service, requests: int) -> Scenario:
    """Servers that only prefill, at load `LOAD`, for about so many measured requests."""
    rate_rps = LOAD * servers / MEAN_S
    return station(
        rate_rps,
        prefill=service,
        servers=servers,
        warmup_s=10.0,
        horizon_s=math.ceil(requests / rate_rps),
        server={"decode_engines": 1, "slots_per_engine": 1, "queue_limit": 256},
    )
