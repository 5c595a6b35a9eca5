"""Laws that hold whatever the service times are, given their mean.

M/G/c/c (Erlang B): a server with c slots and no place to wait refuses the share B(c, a) of its
arrivals, a = lam E[S] (Sevastyanov 1957). M/G/infinity: the number in service is Poisson(a) at any
instant (Takacs).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from tests.laws.erlang import erlang_b
from tests.laws.intervals import assert_mean, assert_ratio
from tests.laws.station import Service, instants, played, replications, station

MEAN_S = 0.1
ROWS = 32
SHAPES = {"deterministic": math.inf, "exponential": 1.0, "heavy": 0.25}
"""Squared coefficients of variation 0, 1 and 4."""


@pytest.mark.parametrize("law", SHAPES)
@pytest.mark.parametrize(("slots", "load"), [(1, 0.8), (8, 6.0), (8, 14.0)])
def test_a_server_without_places_to_wait_refuses_the_share_of_erlang(
    slots: int, load: float, law: str
) -> None:
    """P(refused) = B(c, a), and the others take E[S] each: no one waits.

    Catches: a queue limit that is off by one, a full server judged by waiting instead of
    unfinished requests, errors that are lost or counted twice, a completion at the very instant of
    an arrival that still counts.
    """
    service = Service(MEAN_S, SHAPES[law])
    scenario = station(
        load / MEAN_S,
        decode=service,
        slots=slots,
        warmup_s=10.0,
        horizon_s=150.0,
        server={"decode_engines": 1, "slots_per_engine": slots, "queue_limit": slots},
    )
    found = played(scenario, ROWS).measurements()
    case = f"c = {slots}, a = {load:g}, {law}"
    lost = erlang_b(slots, load)
    assert_ratio("M/G/c/c: P(lost)", case, found.errors, found.arrived, lost, 0.06)
    served = found.arrived - found.errors
    assert np.array_equal(served, found.latency_histogram.sum(axis=1))
    assert_ratio("M/G/c/c: E[T], s", case, found.latency_sum_s, served, MEAN_S, 0.06)


@pytest.mark.parametrize("law", SHAPES)
def test_with_a_slot_for_everyone_the_number_in_service_is_poisson(law: str) -> None:
    """P(N = n) = exp(-a) a^n / n!, a = 9; 64 slots are never all taken (P < 1e-30).

    Catches: slots that are fewer than stated, a RIF that loses requests, waiting where there is a
    free slot, arrivals that are not Poisson.
    """
    load = 9.0
    scenario = station(
        load / MEAN_S,
        decode=Service(MEAN_S, SHAPES[law]),
        slots=64,
        warmup_s=10.0,
        horizon_s=200.0,
        control_interval_s=0.2,
    )
    simulator = replications(scenario, ROWS)
    seen = np.array([simulator.truth().rif[:, 0].copy() for _ in instants(simulator, scenario)])
    case = f"a = 9, {law}"
    assert_mean("M/G/infinity: E[N]", case, seen.mean(axis=0), load, 0.03)
    squares = ((seen - load) ** 2).mean(axis=0)
    assert_mean("M/G/infinity: Var[N]", case, squares, load, 0.1)
    for n, resolution in ((4, 0.2), (9, 0.08), (14, 0.3)):
        share, expected = (seen == n).mean(axis=0), float(stats.poisson.pmf(n, load))
        assert_mean("M/G/infinity: P(N = n)", f"{case}, n = {n}", share, expected, resolution)
