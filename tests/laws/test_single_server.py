"""M/M/1, M/D/1 and M/G/1: one server, first come, first served.

With arrivals at rate lam, service times S and rho = lam E[S] < 1 (Kleinrock, Queueing Systems I,
1975, chapters 3 and 5):

    M/G/1  E[T] = E[S] + lam E[S^2] / (2 (1 - rho))      (Pollaczek and Khinchine)
           P(an arrival need not wait) = 1 - rho         (PASTA)
    M/M/1  T is exponential at rate mu - lam;  P(N = n) = (1 - rho) rho^n at any instant
    M/D/1  E[T] = D + rho D / (2 (1 - rho))
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.laws.intervals import assert_mean, assert_ratio
from tests.laws.station import NONE, Service, by_row, instants, played, replications, station

MEAN_S = 0.01
ROWS = 64
SERVICES = {
    "deterministic": Service(MEAN_S, math.inf),
    "regular": Service(MEAN_S, 4.0),
    "exponential": Service(MEAN_S, 1.0),
    "irregular": Service(MEAN_S, 0.5),
}
KENDALL = {"deterministic": "M/D/1", "exponential": "M/M/1"}
"""M/G/1 by its own name."""


@pytest.mark.parametrize("stage", ["prefill", "decode"])
@pytest.mark.parametrize("law", SERVICES)
def test_mean_sojourn_is_that_of_pollaczek_and_khinchine(law: str, stage: str) -> None:
    """E[T] = E[S] + lam E[S^2] / (2 (1 - rho)) at rho = 0.6, in either stage alone.

    Catches: a slot too many or too few (decode), an engine that is not kept busy or works on two
    requests at once (prefill), seconds per token of the wrong stage, a token law of another second
    moment, a rate that is not utilisation x nominal rate, latency counted from the wrong instant.
    """
    service, rate_rps = SERVICES[law], 60.0
    rho = rate_rps * MEAN_S
    expected_s = MEAN_S + rate_rps * service.second_moment_s2 / (2.0 * (1.0 - rho))
    stages = {"prefill": NONE, "decode": NONE} | {stage: service}
    scenario = station(rate_rps, **stages, warmup_s=10.0, horizon_s=100.0)
    found = played(scenario, ROWS).measurements()
    case = f"rho = 0.6, {law} {stage}"
    name = f"{KENDALL.get(law, 'M/G/1')}: E[T], s"
    assert_ratio(name, case, found.latency_sum_s, found.arrived, expected_s, 0.05)


def test_sojourn_times_of_mm1_are_exponential() -> None:
    """P(T > t) = exp(-(mu - lam) t) at rho = 0.7, for t at the 50 %, 90 % and 99 % points.

    The mean alone would not see last come, first served or another law of equal moments.
    Catches: service out of turn, a completion recorded at another instant than it happens.
    """
    rate_rps = 70.0
    scenario = station(rate_rps, prefill=SERVICES["exponential"], warmup_s=10.0, horizon_s=100.0)
    simulator = played(scenario, ROWS, log=True)
    logs = by_row(simulator, scenario, ROWS)
    counts = np.array([len(log["done_s"]) for log in logs])
    assert np.array_equal(counts, simulator.measurements().arrived)
    for tail, resolution in ((0.5, 0.03), (0.1, 0.1), (0.01, 0.3)):
        t_s = -math.log(tail) / (1.0 / MEAN_S - rate_rps)
        longer = np.array([(log["done_s"] - log["leaf_s"] > t_s).sum() for log in logs])
        case = f"rho = 0.7, t = {t_s:.3f} s"
        assert_ratio("M/M/1: P(T > t)", case, longer, counts, tail, resolution)


@pytest.mark.parametrize("law", ["deterministic", "exponential", "irregular"])
def test_an_arrival_finds_the_server_idle_as_often_as_it_is(law: str) -> None:
    """P(W = 0) = 1 - rho whatever the service times are: Poisson arrivals see time averages.

    Catches: arrivals that are not Poisson (regular, bunched, or drawn twice for rows or chunks).
    """
    rate_rps = 60.0
    scenario = station(rate_rps, prefill=SERVICES[law], warmup_s=10.0, horizon_s=60.0)
    simulator = played(scenario, ROWS, log=True)
    logs = by_row(simulator, scenario, ROWS)
    at_once = np.array([(log["leaf_s"][1:] > log["first_token_s"][:-1]).sum() for log in logs])
    counts = np.array([len(log["leaf_s"]) - 1 for log in logs])
    expected = 1.0 - rate_rps * MEAN_S
    assert_ratio("M/G/1: P(W = 0)", f"rho = 0.6, {law}", at_once, counts, expected, 0.025)


def test_the_number_in_mm1_is_geometric() -> None:
    """P(N = n) = (1 - rho) rho^n at instants of no special kind: the ends of control intervals.

    Catches: RIF that loses or keeps a request, a completion taken one interval early or late.
    """
    rho = 0.6
    scenario = station(
        rho / MEAN_S,
        decode=SERVICES["exponential"],
        warmup_s=10.0,
        horizon_s=60.0,
        control_interval_s=0.1,
    )
    simulator = replications(scenario, ROWS)
    seen = np.array([simulator.truth().rif[:, 0].copy() for _ in instants(simulator, scenario)])
    for n, resolution in ((0, 0.03), (1, 0.04), (2, 0.05), (5, 0.15)):
        share = (seen == n).mean(axis=0)
        expected = (1.0 - rho) * rho**n
        assert_mean("M/M/1: P(N = n)", f"rho = 0.6, n = {n}", share, expected, resolution)
