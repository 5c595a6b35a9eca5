"""Kurtz's law (1970): k-fold arrivals and slots, N^k(t) / k -> n(t), the fluid.

Pooled exponential slots, where throughput is a function of N: mu(N) = min(N, c) / S. Paths start
empty; then a root's demand jumps past what the cell nearest to it can serve, which fills and
drains. Before that cells have slots to spare, so that with one routing N^k is the number in
M/M/infinity: Poisson of mean k n(t) exactly, which is sqrt(n / k) of standard deviation relative
to k.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.fluid import FluidSystem
from dlb_gym.textbook_curves import PooledSlots
from experiments.fluid_limit import (
    CONTROL_S,
    POOLED_FLOW,
    event_rif,
    fluid_rif,
    fluid_system,
    pooled,
)
from tests.laws.figures import check
from tests.laws.intervals import LEVEL, assert_counts

FOLD = 64
ROWS = 32
HORIZON_S = 20.0
BEFORE_THE_JUMP_S = 5.0
EVERY = 5
"""Control intervals between instants that are looked at."""
ROUTERS: dict[str, tuple[Any, ...]] = {"fixed": (), "flow": POOLED_FLOW}
Array = NDArray[np.float64]

SCENARIO = pooled(FOLD, horizon_s=HORIZON_S)
SYSTEM = fluid_system(SCENARIO, pools=True)


@cache
def by_events(router: str) -> Array:
    """N^k at the ends of control intervals, (intervals, rows, cells)."""
    events = event_rif(SCENARIO, SYSTEM, ROWS, *ROUTERS[router])
    assert not events.failed.any()
    return events.rif


def distance(router: str, system: FluidSystem) -> tuple[float, float]:
    """Of the rows' mean from a fluid, in standard errors, the largest; and the bound on it.

    The bound is that of Student for a normal mean at 99.9 %, for all instants and cells together
    (Bonferroni).
    """
    fluid = fluid_rif(SCENARIO, system, *ROUTERS[router])[EVERY::EVERY]
    rif = by_events(router)[EVERY::EVERY]
    standard_error = rif.std(axis=1, ddof=1) / math.sqrt(ROWS)
    apart = np.abs(rif.mean(axis=1) - fluid) / standard_error
    bound = stats.t.ppf(1.0 - 0.5 * (1.0 - LEVEL) / fluid.size, ROWS - 1)
    return float(apart.max()), float(bound)


def slots_of(system: FluidSystem, slots: float = 1.0, service: float = 1.0) -> FluidSystem:
    """Other slots, by factors."""
    curves = system.curves
    assert isinstance(curves, PooledSlots)
    other = replace(curves, slots=slots * curves.slots, service_s=service * curves.service_s)
    return replace(system, curves=other)


@pytest.mark.parametrize("router", ROUTERS)
def test_the_mean_path_of_many_pooled_slots_is_the_fluids(router: str) -> None:
    """E[N^k(t)] / k = n(t) but for o(1 / sqrt(k)), from empty, through overload and back.

    Catches, in the engine or in the fluid: a delay of requests or of reports, a service time, a
    number of slots, a jump of the demand, a step of Flow that is not what it should be.
    """
    found, bound = distance(router, SYSTEM)
    check(
        "pooled slots, k-fold: E[N(t)] is the fluid's",
        f"k = {FOLD}, {router} routing",
        ROWS,
        theory="0",
        measured=f"{found:.1f} standard errors at most",
        demanded=f"< {bound:.1f}",
        distance=found / bound,
    )


WRONG_FLUIDS = {
    "no delay of requests": replace(SYSTEM, request_delay_s=0.0 * SYSTEM.one_way_s),
    "no delay of reports": replace(SYSTEM, report_delay_s=0.0 * SYSTEM.one_way_s),
    "slots, 5 % fewer": slots_of(SYSTEM, slots=0.95),
    "services, 5 % longer": slots_of(SYSTEM, service=1.05),
}


@pytest.mark.parametrize("router", ROUTERS)
@pytest.mark.parametrize("fault", WRONG_FLUIDS)
def test_a_wrong_fluid_is_farther_away(fault: str, router: str) -> None:
    """The bound is worth something. (A routing that stays asks for no reports.)"""
    found, bound = distance(router, WRONG_FLUIDS[fault])
    blind = router == "fixed" and fault == "no delay of reports"
    assert (found > bound) is not blind


def test_while_slots_are_free_requests_in_flight_are_poisson() -> None:
    """M/M/infinity from empty: mean and variance k n(t), independent between cells (thinning)."""
    now = round(BEFORE_THE_JUMP_S / CONTROL_S)
    counts = by_events("fixed")[now - 1]
    fluid = fluid_rif(SCENARIO, SYSTEM)[now - 1]
    slots = SYSTEM.curves.servers[0].numpy()
    assert (fluid + 4.0 * np.sqrt(fluid) < slots).all()
    law = "pooled slots, k-fold, slots to spare: N(t) is Poisson"
    case = f"k = {FOLD}, t = {BEFORE_THE_JUMP_S:g} s"
    assert_counts(law, case, counts.astype(np.int64), np.broadcast_to(fluid, counts.shape))
