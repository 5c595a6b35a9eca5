"""M/M/c: c servers, one queue (Erlang C), and its limits.

With offered load a = lam / mu < c and Erlang's loss formula B (see `erlang`), an arrival waits
with probability and on average

    C(c, a) = B / (1 - (a / c) (1 - B)),    E[W] = C / (c mu - lam),

and W given that it waits is exponential at rate c mu - lam (Kleinrock 1975, 3.5).
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.laws.erlang import erlang_b, erlang_c
from tests.laws.intervals import assert_ratio
from tests.laws.station import Service, by_row, played, station

MEAN_S = 0.05
ROWS = 64


def test_the_formulas_hold_where_they_are_known() -> None:
    """B(1, a) = a / (1 + a), C(1, a) = a, and C(2, 1) = 1/3 by hand."""
    assert math.isclose(erlang_b(1, 0.6), 0.375)
    assert math.isclose(erlang_c(1, 0.6), 0.6)
    assert math.isclose(erlang_c(2, 1.0), 1.0 / 3.0)


@pytest.mark.parametrize(("slots", "rho"), [(2, 0.7), (8, 0.8), (16, 0.9)])
def test_mean_sojourn_in_decode_slots_is_that_of_erlang(slots: int, rho: float) -> None:
    """E[T] = 1 / mu + C(c, c rho) / (c mu - lam).

    Catches: a decode slot too many or too few, requests that go to another slot than the one that
    is free first, slots that are not shared by all requests of a server.
    """
    mu = 1.0 / MEAN_S
    rate_rps = rho * slots * mu
    expected_s = MEAN_S + erlang_c(slots, rho * slots) / (slots * mu - rate_rps)
    scenario = station(
        rate_rps, decode=Service(MEAN_S), slots=slots, warmup_s=20.0, horizon_s=800.0 / slots
    )
    found = played(scenario, ROWS).measurements()
    case = f"c = {slots}, rho = {rho}"
    assert_ratio("M/M/c: E[T], s", case, found.latency_sum_s, found.arrived, expected_s, 0.05)


def test_waiting_in_mmc_has_an_atom_and_an_exponential_tail() -> None:
    """P(W > t) = C exp(-(c mu - lam) t) at c = 4, rho = 0.75, for t = 0 and two mean waits.

    A wait is what a sojourn has beyond the request's own decode time, recovered from the workload.
    Catches: a request that waits although a slot is free, or does not although none is.
    """
    slots, mu = 4, 1.0 / MEAN_S
    rate_rps = 0.75 * slots * mu
    scenario = station(
        rate_rps, decode=Service(MEAN_S), slots=slots, warmup_s=20.0, horizon_s=150.0
    )
    simulator = played(scenario, ROWS, log=True)
    counts = simulator.measurements().arrived
    logs = by_row(simulator, scenario, ROWS)
    waits = [log["done_s"] - log["first_token_s"] - log["decode_s"] for log in logs]
    for t_s, resolution in ((1e-9, 0.03), (2.0 / (slots * mu - rate_rps), 0.15)):
        expected = erlang_c(slots, rate_rps / mu) * math.exp(-(slots * mu - rate_rps) * t_s)
        longer = np.array([(wait > t_s).sum() for wait in waits])
        case = f"c = 4, rho = 0.75, t = {t_s:.2f} s"
        assert_ratio("M/M/c: P(W > t)", case, longer, counts, expected, resolution)
