"""Two latencies to measure policies against, from a scenario's true rates.

**Fluid optimum.** The mean latency of the best fixed routing, if cells behaved as their latency
curves say (`equilibrium`, with the gradient cost). No fixed routing can beat it by much; it is no
bound in the strict sense, as the curves are those of Poisson arrivals, and a policy that evens
arrivals out, or follows queues, may do better. Curves are fits: at low load, where nothing waits,
this latency may even come out half a percent below the clairvoyant bound.

**Clairvoyant bound.** Each cell's servers as one pool in which nothing waits: a request that root i
sends to cell j takes the router's delay, 2 tau_ij and the mean zero-load time S_j of the cell. In
the long run no cell serves more than its nominal rate, so

    min sum_ij y_ij (2 tau_ij + S_j) / Lambda,   sum_j y_ij = lambda_i,  sum_i y_ij <= nominal_j,

is below the mean latency of answered requests of every policy that does not know a request's tokens
before it chooses a cell, as roots do not, and that loses none. Where demand or capacity change, a
queue may carry work from one time to another, so the second constraint is dropped: the bound is
then that of cells without limits, and where the roots' shares of the requests change, that of the
luckiest root. All this is true of means: the requests of a short run may be lighter than others,
and so may be those of the part of a trace that an episode replays.

Neither is defined where servers keep prefixes (a request may then take less than its zero-load
time); the fluid optimum neither where rates or capacity change, or the demand cannot be served.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from dlb_gym.disturbance_models import Burst
from dlb_gym.equilibrium import Equilibrium, InfeasibleError, equilibrium_of
from dlb_gym.rates import nominal_rates_rps, one_way_s, root_rates_rps, zero_load_times_s
from dlb_gym.scenario import DemandProfile, Scenario
from dlb_gym.scenario_curves import service_curves_of

Array = NDArray[np.float64]


class Bounds(NamedTuple):
    """Mean end-to-end latencies, seconds; None where there is none (see the module)."""

    fluid_s: float | None
    clairvoyant_s: float | None


@lru_cache(maxsize=1024)
def bounds(scenario: Scenario) -> Bounds:
    """The latencies of a scenario."""
    if scenario.demand.has_sessions:
        return Bounds(None, None)
    steady = is_steady(scenario)
    fluid_s = None
    if steady:
        try:
            fluid_s = scenario.router_delay_s + best_routing(scenario).latency_s
        except InfeasibleError:
            fluid_s = None
    return Bounds(fluid_s, _clairvoyant_s(scenario, limited=steady))


def is_steady(scenario: Scenario) -> bool:
    """Whether rates and capacity stay what they are."""
    return (
        not scenario.disturbances
        and scenario.autoscaler is None
        and scenario.demand.trace is None
        and scenario.demand.profile == DemandProfile()
    )


def keeps_shares(scenario: Scenario) -> bool:
    """Whether every root's share of the requests stays what it is."""
    profile = scenario.demand.profile
    return (
        not any(isinstance(each, Burst) for each in scenario.disturbances)
        and profile.diurnal_amplitude == 0.0
        and profile.weekend_factor == 1.0
    )


@lru_cache(maxsize=1024)
def best_routing(scenario: Scenario) -> Equilibrium:
    """The best fixed routing under the scenario's mean rates and all its servers.

    Raises:
        InfeasibleError: No routing can serve the demand.
    """
    rates_rps, curves = root_rates_rps(scenario), service_curves_of(scenario)
    return equilibrium_of(rates_rps, one_way_s(scenario), curves, "gradient")


def _clairvoyant_s(scenario: Scenario, limited: bool) -> float | None:
    """The linear program; None if its constraints cannot be met."""
    tau_s, demand = one_way_s(scenario), root_rates_rps(scenario)
    alone_s = 2.0 * tau_s + zero_load_times_s(scenario)
    if not limited:
        least_s = np.nanmin(alone_s, axis=1)
        mean_s = demand @ least_s / demand.sum() if keeps_shares(scenario) else least_s.min()
        return float(scenario.router_delay_s + mean_s)
    root, cell = np.nonzero(~np.isnan(tau_s))
    found: Any = linprog(
        alone_s[root, cell] / demand.sum(),
        A_ub=(cell == np.arange(tau_s.shape[1])[:, None]).astype(np.float64),
        b_ub=nominal_rates_rps(scenario),
        A_eq=(root == np.arange(tau_s.shape[0])[:, None]).astype(np.float64),
        b_eq=demand,
        method="highs",
    )
    return None if found.x is None else float(scenario.router_delay_s + found.fun)
