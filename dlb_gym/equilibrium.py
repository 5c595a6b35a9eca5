"""Where routing comes to rest: program (12) of the paper, for any cost (theory.md section 2).

With arrival rates lambda_i, one-way latencies tau_ij, cells of increasing rate mu_j(N), increasing
costs f_j(N) and g_ij = 2 tau_ij (0 for the rif cost), an equilibrium (x, N) satisfies

    (5)  mu_j(N_j) = z_j = sum_i lambda_i x_ij,     x_i on the simplex over the arcs of i,
    (6)  c_ij = f_j(N_j) + g_ij >= c_i,             with equality where x_ij > 0.

These are the conditions for a minimum of the convex

    (12) Psi(x) = sum_j p_j(z_j) + sum_ij lambda_i x_ij g_ij,   p_j(z) = integral of f_j(mu_j^-1(s))
                                                                        over s from 0 to z,

whose derivative with respect to x_ij is lambda_i c_ij. With the gradient cost 1/mu_j', p_j(z) = N_j
and, by Little's law, Psi is the mean end-to-end latency times the total rate: the equilibrium is
the best fixed routing. z, N and c_i are unique, and so is the network's part of Psi; x need not be.

**Certificate.** Psi is above its tangents, so any x is worse than the best by no more than

    sum_ij lambda_i x_ij (c_ij - min_k c_ik),

and as a share of what requests pay, sum_ij lambda_i x_ij c_ij >= Psi, this is the `residual`. At
most `RESIDUAL` is accepted; 1e-13 is usual. It needs the costs alone; nothing here evaluates Psi.
It means something where (5) holds, so that is checked too: z_j < capacity, N_j >= 0, mu_j(N_j) =
z_j.

HiGHS finds the routing that leaves the fullest cell as empty as can be, or the cut that cannot be
served; `central_path` goes on from there. Of the rif cost's equilibria, another linear program
picks those of least and of largest network latency.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from dlb_gym.central_path import RESIDUAL, FlowProgram, evenly, followed
from dlb_gym.messages import COUNTED, Names
from dlb_gym.service_curves import Cost, ServiceCurves, check_increasing, require_cost

Array = NDArray[np.float64]

FULLEST = 1.0 - 1e-6
"""Share of a cell's capacity up to which it can be used."""
EXACT = 1e-10
"""To which linear programs are solved, in shares of all requests; the smallest that HiGHS has."""
SILENT = 1e-12
"""Roots below this share of the busiest count as without arrivals."""


BALANCE = 1e-9
"""Largest difference of mu_j(N_j) and z_j, as a share of z_j."""
ROUNDED = -1e-12
"""Residuals from here to 0 are 0."""


class InfeasibleError(ValueError):
    """Some roots send more than all the cells that they can reach can serve (Assumption 2).

    Args:
        message: Names these roots and cells.
        routing: (roots, cells), one that overloads the fullest cell least.
    """

    def __init__(self, message: str, routing: Array) -> None:
        super().__init__(message)
        self.routing = routing


class Equilibrium(NamedTuple):
    """An equilibrium; of the rif cost's, which differ in the network's part, the nearest.

    Attributes:
        routing: x, (roots, cells); a root without arrivals shares its arcs of least cost equally.
        rif: N, (cells,).
        least_cost: c_i, (roots,): seconds, or requests per server for the rif cost.
        latency_s: Mean end-to-end latency, (sum_j N_j + sum_ij lambda_i x_ij 2 tau_ij) /
            sum_i lambda_i.
        worst_latency_s: Largest such latency of any equilibrium: more than `latency_s` for the rif
            cost alone.
        residual: Complementary slackness (see the module), at most `RESIDUAL`.
    """

    routing: Array
    rif: Array
    least_cost: Array
    latency_s: float
    worst_latency_s: float
    residual: float


class PriceOfAnarchy(NamedTuple):
    """Mean latency at a cost's equilibrium, as a multiple of the least of any fixed routing.

    Attributes:
        least: Of the equilibrium of least latency (price of stability).
        largest: Of that of largest latency.
    """

    least: float
    largest: float


def equilibrium_of(
    rates_rps: Array,
    one_way_s: Array,
    curves: ServiceCurves,
    cost: Cost,
    arc_cost: Array | None = None,
    names: Names = COUNTED,
) -> Equilibrium:
    """Solves (5) and (6).

    Args:
        rates_rps: lambda, (roots,), at least 0, not all 0.
        one_way_s: tau, (roots, cells), NaN where there is no arc; every root has one.
        curves: Of the cells, parameters (cells,), rates that increase for ever.
        cost: f_j.
        arc_cost: g_ij, (roots, cells), in the cost's unit; None: 2 tau, or 0 for the rif cost.
        names: What messages call the system, its roots and its cells.

    Raises:
        InfeasibleError: The demand cannot be served; names the roots and cells of the cut.
        ValueError: Rates, latencies or the cost are not valid, a curve stops to increase, or the
            solver stopped short of the equilibrium, as it may within 0.1 % of capacity.
    """
    require_cost(cost)
    check_increasing(curves, names)
    program, busy, flow = _feasible(rates_rps, one_way_s, curves, cost, arc_cost, names)
    flow = worst = followed(program, flow)
    if cost == "rif" and arc_cost is None:
        flow, worst = (_extreme(program, flow, sign) for sign in (1.0, -1.0))
    residual = max(_certified(program, each, names) for each in (flow, worst))
    everywhere = FlowProgram.of(rates_rps, one_way_s, curves, cost, arc_cost)
    costs = everywhere.network + program.cell_costs(flow)
    routing = evenly(costs)
    routing[busy] = flow / program.rates_rps
    return Equilibrium(
        routing,
        program.at(flow).rif,
        costs.min(axis=1),
        program.latency_s(flow),
        program.latency_s(worst),
        residual,
    )


def check_feasible(
    rates_rps: Array, one_way_s: Array, curves: ServiceCurves, names: Names = COUNTED
) -> None:
    """Refuses demand that no routing can serve (Assumption 2); arguments as `equilibrium_of`.

    Raises:
        InfeasibleError: Names the roots and cells of the cut.
        ValueError: Rates or latencies are not valid.
    """
    _feasible(rates_rps, one_way_s, curves, "latency", None, names)


def price_of_anarchy(
    rates_rps: Array, one_way_s: Array, curves: ServiceCurves, cost: Cost
) -> PriceOfAnarchy:
    """Latency at a cost's equilibria over that at the gradient cost's (`equilibrium_of`).

    Raises:
        InfeasibleError: As there.
        ValueError: As there.
    """
    found = equilibrium_of(rates_rps, one_way_s, curves, cost)
    least_s = equilibrium_of(rates_rps, one_way_s, curves, "gradient").latency_s
    return PriceOfAnarchy(found.latency_s / least_s, found.worst_latency_s / least_s)


def _feasible(
    rates_rps: Array,
    one_way_s: Array,
    curves: ServiceCurves,
    cost: Cost,
    arc_cost: Array | None,
    names: Names,
) -> tuple[FlowProgram, NDArray[np.bool_], Array]:
    """The program of the roots with arrivals, which these are, and flows that it can serve."""
    _check(rates_rps, one_way_s, curves, names)
    busy = rates_rps > SILENT * rates_rps.max()
    own_cost = None if arc_cost is None else arc_cost[busy]
    program = FlowProgram.of(rates_rps[busy], one_way_s[busy], curves, cost, own_cost)
    flow, prices = _widest(program)
    if (flow.sum(axis=0) >= FULLEST * program.capacity_rps).any():
        routing = evenly(np.where(np.isnan(one_way_s), np.inf, one_way_s))
        routing[busy] = flow / program.rates_rps
        raise InfeasibleError(_cut(program, np.flatnonzero(busy), prices, names), routing)
    return program, busy, flow


def _check(rates_rps: Array, one_way_s: Array, curves: ServiceCurves, names: Names) -> None:
    """Refuses what is no demand or no network."""
    shape = (*np.shape(rates_rps), *np.shape(curves.capacity_rps))
    if len(shape) != 2 or one_way_s.shape != shape:
        raise ValueError(
            f"{names.prefix}one_way_s has the shape {one_way_s.shape}, and rates_rps and curves "
            f"need {shape}: one row a root and one column a cell"
        )
    if not (np.isfinite(rates_rps).all() and (rates_rps >= 0.0).all() and rates_rps.any()):
        raise ValueError(
            f"{names.prefix}rates_rps = {rates_rps.tolist()} must be finite, at least 0 and not "
            "all 0"
        )
    wrong = ~np.isnan(one_way_s) & ~((one_way_s >= 0.0) & np.isfinite(one_way_s))
    for root, cell in np.argwhere(wrong)[:1].tolist():
        raise ValueError(
            f"{names.prefix}one_way_s[{names.root(root)}, {names.cell(cell)}] = "
            f"{one_way_s[root, cell]} must be finite and at least 0, or NaN where there is no arc"
        )
    for root in np.flatnonzero(np.isnan(one_way_s).all(axis=1))[:1].tolist():
        raise ValueError(
            f"{names.prefix}root {names.root(root)} has no arc: one_way_s needs a number in every "
            "row"
        )


def _certified(program: FlowProgram, flow: Array, names: Names) -> float:
    """The residual of flows that meet (5) and (6); refuses any others, and nonsense."""
    served_rps = flow.sum(axis=0)
    point = program.at(flow)
    residual = program.residual(flow)
    wrong: dict[str, Array] = {
        "its load is not below its capacity": ~(served_rps < program.capacity_rps),
        "its RIF is not a number of at least 0": ~(np.isfinite(point.rif) & (point.rif >= 0.0)),
        "its rate at its RIF is not its load": ~(
            abs(point.rate_rps - served_rps) <= BALANCE * served_rps
        ),
    }
    for failed, at in wrong.items():
        for cell in np.flatnonzero(at)[:1].tolist():
            raise ValueError(
                f"{names.prefix}the equilibrium was missed: cell {names.cell(cell)} has "
                f"{point.rif[cell]:.6g} requests in flight, a load of {served_rps[cell]:.6g} and "
                f"a capacity of {program.capacity_rps[cell]:.6g} requests/s, and {failed}; lower "
                "the demand, or report this with the rates, latencies and curves"
            )
    if not ROUNDED <= residual <= RESIDUAL:
        raise ValueError(
            f"{names.prefix}the equilibrium was missed: its residual is {residual:.3g} and at "
            f"most {RESIDUAL:g} is accepted; lower the demand, or report this with the rates, "
            "latencies and curves"
        )
    return max(residual, 0.0)


def _widest(program: FlowProgram) -> tuple[Array, Array]:
    """The flows that leave the fullest cell as empty as can be, and the cells' prices, (cells,).

    A cell has a price, at most 0, if more of its capacity would make the fullest cell emptier.
    """
    root, cell = np.nonzero(program.arcs)
    roots, cells = program.arcs.shape
    unit_rps = program.rates_rps.sum()
    of_root = (root == np.arange(roots)[:, None]).astype(np.float64)
    to_cell = (cell == np.arange(cells)[:, None]).astype(np.float64)
    found = _minimised(
        np.append(np.zeros(len(root)), 1.0),
        A_ub=np.column_stack([to_cell, -program.capacity_rps / unit_rps]),
        b_ub=np.zeros(cells),
        A_eq=np.column_stack([of_root, np.zeros(roots)]),
        b_eq=program.rates_rps[:, 0] / unit_rps,
    )
    flow = np.zeros(program.arcs.shape)
    flow[root, cell] = found.x[:-1]
    return program.complete(flow), found.ineqlin.marginals


def _cut(program: FlowProgram, busy: NDArray[np.intp], prices: Array, names: Names) -> str:
    """Says which roots, of those with arrivals, reach no other cells than the full ones."""
    full = prices < 0.5 * prices.min()  # all that have one have the same
    inside = ~program.arcs[:, ~full].any(axis=1)
    offered_rps = float(program.rates_rps[inside].sum())
    served_rps = float(program.capacity_rps[full].sum())
    roots = [names.root(root) for root in busy[inside].tolist()]
    cells = [names.cell(cell) for cell in np.flatnonzero(full).tolist()]
    return (
        f"{names.prefix}roots {roots} offer {offered_rps:.6g} requests/s and reach cells {cells} "
        f"alone, which can serve {served_rps:.6g}: no routing is stable; lower the demand or add "
        "servers or arcs"
    )


def _extreme(program: FlowProgram, flow: Array, sign: float) -> Array:
    """Flows that fill the cells alike, of least (sign 1) or largest (-1) network latency."""
    root, cell = np.nonzero(program.arcs)
    of_root = (root == np.arange(len(flow))[:, None]).astype(np.float64)
    to_cell = (cell == np.arange(flow.shape[1])[:, None]).astype(np.float64)
    sent_rps, served_rps = program.rates_rps[:, 0], flow.sum(axis=0)
    unit_rps = sent_rps.sum()
    found = _minimised(
        sign * program.round_trip_s[root, cell],
        A_ub=to_cell,
        b_ub=served_rps / unit_rps + EXACT,  # rounding must not make it infeasible
        A_eq=of_root,
        b_eq=sent_rps / unit_rps,
    )
    carried = unit_rps * np.maximum(found.x, 0.0)
    # The smallest corrections that make the sums right to the last digit, of other arcs too.
    rows, sums = np.vstack([of_root, to_cell]), np.append(sent_rps, served_rps)
    weight = np.sqrt(carried + EXACT * flow[root, cell])
    unit = np.sqrt(np.maximum(sums, np.finfo(np.float64).tiny))
    scaled = rows * weight / unit[:, None]
    for _ in range(3):
        missing = (sums - rows @ carried) / unit
        carried = np.maximum(
            carried + weight * np.linalg.lstsq(scaled, missing, rcond=None)[0], 0.0
        )
    extreme = np.zeros(flow.shape)
    extreme[root, cell] = carried
    return program.trimmed(extreme)


def _minimised(objective: Array, **constraints: Any) -> Any:
    """The solution of a linear program in numbers of at least 0."""
    exact: Any = {"primal_feasibility_tolerance": EXACT, "dual_feasibility_tolerance": EXACT}
    found: Any = linprog(objective, **constraints, method="highs", options=exact)
    if found.x is None:
        raise ValueError(
            f"a linear program of the equilibrium found no solution ({found.message}); report this "
            "with the rates, latencies and curves"
        )
    return found
