"""Prefill then decode: two queues in a row, with the network around them.

Burke (1956): the output of M/M/c in equilibrium is Poisson at the same rate, so a second
exponential stage is M/M/c too, and numbers have product form. Reich (1957): in M/M/1 -> M/M/1 the
two sojourns of a request are independent exponentials, at rates mu1 - lam and mu2 - lam.
"""

from __future__ import annotations

import math

import numpy as np

from tests.laws.erlang import erlang_c
from tests.laws.intervals import assert_counts, assert_mean, assert_ratio, assert_uncorrelated
from tests.laws.station import Service, by_row, played, station

ROWS = 64
RATE_RPS = 60.0
PREFILL = Service(0.01)
DECODE = Service(0.0125)
GAPS_RPS = (1.0 / PREFILL.mean_s - RATE_RPS, 1.0 / DECODE.mean_s - RATE_RPS)
"""mu - lam of either stage: 40 and 20 per second."""


def test_both_stages_of_a_tandem_of_mm1_are_exponential_and_independent() -> None:
    """E[T1] = 1 / 40, E[T2] = 1 / 20, E[T1 T2] = E[T1] E[T2] at lam = 60, mu = 100 and 80.

    P(T1 + T2 > t) = (40 exp(-20 t) - 20 exp(-40 t)) / (40 - 20).
    Catches: stages that share an engine, decode that starts with prefill or at the arrival, a
    second stage that is served out of turn, tokens of the stages that depend on each other.
    """
    scenario = station(RATE_RPS, prefill=PREFILL, decode=DECODE, warmup_s=10.0, horizon_s=150.0)
    simulator = played(scenario, ROWS, log=True)
    logs = by_row(simulator, scenario, ROWS)
    counts = np.array([len(log["done_s"]) for log in logs])
    first_s = [log["first_token_s"] - log["leaf_s"] for log in logs]
    second_s = [log["done_s"] - log["first_token_s"] for log in logs]
    expected_s = [1.0 / gap for gap in GAPS_RPS]
    law, loads = "M/M/1 -> M/M/1: ", "rho = 0.6 and 0.75"
    for k, sojourns_s, resolution in ((0, first_s, 0.03), (1, second_s, 0.06)):
        total_s = np.array([each.sum() for each in sojourns_s])
        case = f"{loads}, stage {k + 1}"
        assert_ratio(f"{law}E[T], s", case, total_s, counts, expected_s[k], resolution)
    products = [
        ((a - expected_s[0]) * (b - expected_s[1])).sum()
        for a, b in zip(first_s, second_s, strict=True)
    ]
    correlation = np.array(products) / counts.mean() / math.prod(expected_s)
    assert_mean(f"{law}E[T1 T2] / E[T1] E[T2]", loads, 1.0 + correlation, 1.0, 0.03)
    fast, slow = GAPS_RPS
    t_s = 0.2
    tail = (fast * math.exp(-slow * t_s) - slow * math.exp(-fast * t_s)) / (fast - slow)
    longer = np.array([(a + b > t_s).sum() for a, b in zip(first_s, second_s, strict=True)])
    assert_ratio(f"{law}P(T1 + T2 > t)", f"{loads}, t = {t_s} s", longer, counts, tail, 0.25)


def test_the_output_of_mmc_is_poisson() -> None:
    """Departures of M/M/4 in half second bins are Poisson(lam / 2), and bins are independent.

    Catches: completions that are lost, doubled, or moved to the ends of intervals; a loss rate or
    an arrival stream that is not Poisson.
    """
    scenario = station(RATE_RPS, decode=Service(0.05), slots=4, warmup_s=20.0, horizon_s=100.0)
    simulator = played(scenario, 32, log=True)
    edges_s = np.arange(20.0, 120.0, 0.5)
    counts = np.array(
        [np.histogram(simulator.request_log(r)["done_s"], edges_s)[0] for r in range(32)]
    )
    mean = RATE_RPS * 0.5
    expected = np.full(counts.shape, mean)
    law, case = "M/M/4: departures are Poisson", "rho = 0.75, half seconds"
    assert_counts(law, case, counts, expected)
    assert_counts(law, "rho = 0.75, rows", counts.sum(axis=1), expected.sum(axis=1))
    deviations = (counts - mean) / math.sqrt(mean)
    law = "M/M/4: departures are independent"
    assert_uncorrelated(law, case, deviations[:, 1:], deviations[:, :-1])


def test_a_journey_is_router_delay_twice_the_way_and_the_two_sojourns() -> None:
    """E[latency] = delay + 2 tau + 1 / (mu1 - lam) + 1 / mu2 + C(4, a) / (4 mu2 - lam).

    The constant shift of a Poisson stream is Poisson, so distance changes no queue. Also the time
    to first token: delay + 2 tau + 1 / (mu1 - lam).
    Catches: a way that is counted once, the round trip for one way, a router delay counted twice
    or not at all, a first token at the end of decode.
    """
    delay_s, tau_s = 0.004, 0.03
    decode = Service(0.05)
    scenario = station(
        RATE_RPS,
        prefill=PREFILL,
        decode=decode,
        slots=4,
        warmup_s=10.0,
        horizon_s=100.0,
        router_delay_s=delay_s,
        network={"rtt_s": [[2 * tau_s]]},
    )
    found = played(scenario, ROWS).measurements()
    load = RATE_RPS * decode.mean_s
    first_s = delay_s + 2 * tau_s + 1.0 / GAPS_RPS[0]
    second_s = decode.mean_s + erlang_c(4, load) / (4 / decode.mean_s - RATE_RPS)
    law, case = "delay, M/M/1 -> M/M/4, way back: ", "rho = 0.6 and 0.75, 60 ms both ways"
    latency_s = first_s + second_s
    assert_ratio(
        f"{law}first token, s", case, found.first_token_sum_s, found.arrived, first_s, 0.01
    )
    assert_ratio(f"{law}answer, s", case, found.latency_sum_s, found.arrived, latency_s, 0.02)
