"""Flow's step in a scenario: the working rule beside what the linearised system says.

DLB lets eta_i shrink like 1 / (mean network latency) and leaves the constant open. The Flow
baselines take the working rule of `latency_model.step_size`, a closed form made of what a root
sees. Here the constant is sought at the equilibrium (`stability`), where the whole system is known:
a diagnostic, for no policy may know it.

A root decides every h seconds, by a probe that is w = (probe interval) / 2 older than its way on
average, and a request spends the router's delay before it leaves. So a loop over arc (i, j) takes

    T_ij = 2 tau_ij + router delay + w + h / 2.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.equilibrium import equilibrium_of
from dlb_gym.latency_model import STEP_GAIN, STEP_MAX, step_size
from dlb_gym.rates import one_way_s, root_rates_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_curves import service_curves_of
from dlb_gym.service_curves import Cost, ServiceCurves, cell_cost_slope
from dlb_gym.stability import critical_gain, linearised, sufficient_gain

Array = NDArray[np.float64]


class StepSizes(NamedTuple):
    """Steps eta_i, (roots,), in 1/(s x unit of the cost), at most `STEP_MAX`.

    Attributes:
        recommended: eta_i T_i the same for all roots (T_i the mean over a root's arcs), and half of
            where the system starts to oscillate. `STEP_MAX` for all roots says that nothing can
            oscillate at the equilibrium, as where no root has a choice of cells there: any step is
            stable beside it. It is no advice far from it, where other cells come into question:
            there such a step moves all of a root's requests to its cheapest cell within one
            interval, and Flow is Disc. Take `working` there.
        working: Of the working rule, at the equilibrium.
        sufficient: In the same proportions as `recommended`, where theory's (star) ends.
        margin: The factor on `working` at which the system starts to oscillate; infinite if none.
    """

    recommended: Array
    working: Array
    sufficient: Array
    margin: float


def recommended_step_size(scenario: Scenario, cost: Cost) -> StepSizes:
    """Steps at the equilibrium of a cost, under the mean rates and all servers of a scenario.

    Raises:
        InfeasibleError: No routing can serve the demand.
        ValueError: The equilibrium or a characteristic root was missed.
    """
    rates = root_rates_rps(scenario)
    tau_s = one_way_s(scenario)
    curves = service_curves_of(scenario)
    rif = equilibrium_of(rates, tau_s, curves, cost).rif
    sampled_s = 0.5 * (scenario.probe_interval_s + scenario.control_interval_s)
    working = _working_rule(2.0 * tau_s + sampled_s, curves, cost, rif)
    half_loop_s = tau_s + 0.5 * (scenario.router_delay_s + sampled_s)
    inverse = 1.0 / np.nanmean(2.0 * half_loop_s, axis=1)
    loop = linearised(rates, tau_s, curves, cost, rif, inverse)._replace(one_way_s=half_loop_s)
    return StepSizes(
        np.minimum(STEP_GAIN * critical_gain(loop) * inverse, STEP_MAX),
        working,
        np.minimum(sufficient_gain(loop) * inverse, STEP_MAX),
        critical_gain(loop._replace(eta=working)),
    )


def _working_rule(loop_delay_s: Array, curves: ServiceCurves, cost: Cost, rif: Array) -> Array:
    point = curves.at(rif)
    servers = curves.servers
    shape = loop_delay_s.shape
    eta: Array = step_size(
        servers=np.broadcast_to(servers, shape),
        rate=np.broadcast_to(point.rate_rps / servers, shape),
        rate_slope=np.broadcast_to(point.rate_slope, shape),
        cost_slope=np.broadcast_to(cell_cost_slope(point, cost, servers) * servers, shape),
        loop_delay=np.nan_to_num(loop_delay_s),
        admissible=~np.isnan(loop_delay_s),
    )
    return eta[:, 0]
