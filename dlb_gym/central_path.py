"""Equilibria as ends of a central path (see `equilibrium` for the program).

From flows that are positive on all arcs, Newton's method follows (5) and

    c_ij - c_i = s_ij > 0,   x_ij s_ij = t,   t -> 0

(a primal-dual interior-point method; Nocedal and Wright 2006, chapter 14). Its end satisfies (6),
and of several equilibria is one that uses all arcs that any of them uses. With y = lambda x,
q = y / s, r_ij = t / x_ij - (c_ij - c_i) and w_j = d f_j / d z_j = f_j' / mu_j', its steps are

    dy_ij = q_ij (r_ij - dv_j + dc_i),

where those of the cells' costs, dv = w dz, and of the roots', dc, solve a symmetric system with a
row for each cell and each root, z_j = sum_i y_ij and the rates of the roots kept:

    ( sum_i q_ij + 1 / w_j ) dv_j - sum_i q_ij dc_i = sum_i q_ij r_ij,
    ( sum_j q_ij ) dc_i - sum_j q_ij dv_j = -sum_j q_ij r_ij.

Towards the end q grows without bound on arcs that are used, and 1 / w, which alone fixes the level
of dv and dc, is lost in the sums; so those arcs' dy_ij stay unknowns, each with the row of its own.
"""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dlb_gym.service_curves import Cost, ServiceCurves, ServicePoint, cell_cost, cell_cost_slope

Array = NDArray[np.float64]

RESIDUAL = 1e-9
"""Largest residual that is accepted."""
NOTHING = 1e-12
"""Shares of a root's requests below this are 0."""
ENOUGH = 1e-13
"""Slackness at which the path ends, as a share of what requests pay."""
SHRINK = 0.03
"""Of t, from one step to the next."""
NEARLY = 0.97
"""Of the way to where a flow or a slack would be 0 or a cell full."""
STEPS = 200
LEAST_SLOPE = 1e-200
"""In place of the 0 to which the slope of a flat latency is rounded."""


class FlowProgram(NamedTuple):
    """Program (12) over flows y = lambda x, (roots, cells), of roots with arrivals.

    Attributes:
        rates_rps: lambda, (roots, 1), > 0.
        arcs: (roots, cells), whether there is one.
        network: g, (roots, cells); infinite where there is no arc.
        round_trip_s: 2 tau, (roots, cells); 0 where there is no arc.
    """

    rates_rps: Array
    arcs: NDArray[np.bool_]
    network: Array
    round_trip_s: Array
    curves: ServiceCurves
    capacity_rps: Array
    cost: Cost

    @classmethod
    def of(
        cls,
        rates_rps: Array,
        one_way_s: Array,
        curves: ServiceCurves,
        cost: Cost,
        arc_cost: Array | None = None,
    ) -> Self:
        """With rates (roots,) and NaN in `one_way_s` where there is no arc."""
        arcs = ~np.isnan(one_way_s)
        round_trip_s = np.where(arcs, 2.0 * one_way_s, 0.0)
        if arc_cost is None:
            arc_cost = np.zeros_like(round_trip_s) if cost == "rif" else round_trip_s
        network = np.where(arcs, arc_cost, np.inf)
        capacity_rps = np.asarray(curves.capacity_rps, dtype=np.float64)
        return cls(rates_rps[:, None], arcs, network, round_trip_s, curves, capacity_rps, cost)

    def at(self, flow: Array) -> ServicePoint:
        """The cells under flows y, (roots, cells)."""
        return self.curves.at(self.curves.rif_at(flow.sum(axis=0)))

    def fits(self, flow: Array) -> bool:
        """Whether every cell has capacity to spare: there is no RIF of a rate beyond."""
        return bool((flow.sum(axis=0) < self.capacity_rps).all())

    def complete(self, flow: Array) -> Array:
        """Flows in proportion to these that meet the rates; a root without any spreads evenly."""
        sums = flow.sum(axis=1, keepdims=True)
        shares: Array = np.where(sums > 0.0, flow / np.where(sums > 0.0, sums, 1.0), self.even)
        return self.rates_rps * shares

    def trimmed(self, flow: Array) -> Array:
        """These flows without those that are next to nothing, unless it makes them worse."""
        large = np.where(flow > NOTHING * self.rates_rps, flow, 0.0)
        return min(self.complete(large), self.complete(flow), key=self.residual)

    @property
    def even(self) -> Array:
        """Every root's shares spread evenly over its arcs."""
        return evenly(np.where(self.arcs, 0.0, np.inf))

    def cell_costs(self, flow: Array) -> Array:
        """f_j, (cells,)."""
        costs: Array = cell_cost(self.at(flow), self.cost, self.curves.servers)
        return costs

    def costs(self, flow: Array) -> Array:
        """c_ij, (roots, cells), infinite where there is no arc."""
        costs: Array = self.cell_costs(flow) + self.network
        return costs

    def residual(self, flow: Array, costs: Array | None = None) -> float:
        """Complementary slackness, infinite if a cell is full; `costs` are c_ij where known."""
        if not self.fits(flow):
            return np.inf
        costs = self.costs(flow) if costs is None else costs
        paid = np.where(self.arcs, costs, 0.0)
        excess = paid - costs.min(axis=1, keepdims=True)
        return float((flow * excess).sum() / (flow * paid).sum())

    def latency_s(self, flow: Array) -> float:
        """Mean end-to-end latency, by Little's law."""
        inside = self.at(flow).rif.sum() + (flow * self.round_trip_s).sum()
        return float(inside / flow.sum())


def followed(program: FlowProgram, flow: Array) -> Array:
    """The end of the central path, from flows that overload no cell.

    Accept it by its `residual` alone: where rounding errors are large it may be above `RESIDUAL`.
    """
    arcs, rates_rps = program.arcs, program.rates_rps
    flow = _inner(program, flow)
    costs = np.where(arcs, program.costs(flow), 0.0)
    level = np.full_like(rates_rps, -costs.max())
    slack = np.where(arcs, costs - level, 1.0)
    units = (rates_rps * arcs).sum()
    best, least = flow, np.inf
    for _ in range(STEPS):
        slackness, end = float((flow * slack).sum()), ENOUGH * float((rates_rps * level).sum())
        step = _step(program, flow, level, slack, max(SHRINK * slackness, 0.5 * end) / units)
        if slackness <= end and least <= RESIDUAL and step.residual >= 0.5 * least:
            break
        if step.residual < least:
            best, least = flow, step.residual
        room = program.capacity_rps - flow.sum(axis=0)
        fastest = max(
            float(np.max(-step.flow[arcs] / flow[arcs])),
            float(np.max(-step.slack[arcs] / slack[arcs])),
            float(np.max(step.flow.sum(axis=0) / room)),
        )
        share = min(1.0, NEARLY / max(fastest, NEARLY))
        moved = program.complete(flow + share * step.flow)
        if not program.fits(moved):  # a nearly singular system: rounding fills a cell
            break
        flow = moved
        level, slack = level + share * step.level, slack + share * step.slack
    return program.trimmed(best)


class _Step(NamedTuple):
    """Newton's step of flows y, levels c_i and slacks s, and the residual before it."""

    flow: Array
    level: Array
    slack: Array
    residual: float


def _step(program: FlowProgram, flow: Array, level: Array, slack: Array, target: float) -> _Step:
    """The step towards t = target (see the module)."""
    arcs = program.arcs
    point = program.at(flow)
    costs = cell_cost(point, program.cost, program.curves.servers) + program.network
    slope = cell_cost_slope(point, program.cost, program.curves.servers)
    wanted = target * program.rates_rps / np.where(arcs, flow, np.inf)
    away = np.where(arcs, wanted - costs + level, 0.0)
    q = flow / slack
    flatness = point.rate_slope / np.maximum(slope, LEAST_SLOPE)
    to_flow, to_level = _solved(q, away, flatness)
    to_slack = np.where(arcs, wanted - slack - to_flow / np.where(arcs, q, 1.0), 0.0)
    return _Step(to_flow, to_level, to_slack, program.residual(flow, costs))


def _solved(q: Array, away: Array, flatness: Array) -> tuple[Array, Array]:
    """Steps of the flows and of the roots' costs, with `flatness` 1 / w (see the module)."""
    roots, cells = q.shape
    root, cell = np.nonzero(q > flatness)
    nodes, stiff = cells + roots, len(root)
    soft = q.copy()
    soft[root, cell] = 0.0
    system = np.zeros((nodes + stiff, nodes + stiff))
    system[:cells, :cells] = np.diag(soft.sum(axis=0) + flatness)
    system[cells:nodes, cells:nodes] = np.diag(soft.sum(axis=1))
    system[:cells, cells:nodes], system[cells:nodes, :cells] = -soft.T, -soft
    each = nodes + np.arange(stiff)
    system[cell, each] = system[each, cell] = -1.0
    system[cells + root, each] = system[each, cells + root] = 1.0
    system[each, each] = -1.0 / q[root, cell]
    pull = soft * away
    right = np.concatenate([pull.sum(axis=0), -pull.sum(axis=1), -away[root, cell]])
    solved = np.linalg.solve(system, right)
    to_level = solved[cells:nodes, None]
    to_flow = pull + soft * (to_level - solved[:cells])
    to_flow[root, cell] = solved[nodes:]
    return to_flow, to_level


def _inner(program: FlowProgram, flow: Array) -> Array:
    """Flows over all arcs that fill no cell more than half-way from these to its capacity."""
    even = program.rates_rps * program.even
    room = program.capacity_rps - flow.sum(axis=0)
    added = (even - flow).sum(axis=0)
    share = 0.5 / max(1.0, float(np.max(added / room)))
    inner: Array = flow + share * (even - flow)
    return inner


def evenly(costs: Array) -> Array:
    """Every root's shares spread evenly over its arcs of least cost."""
    least = costs == costs.min(axis=1, keepdims=True)
    shares: Array = least / least.sum(axis=1, keepdims=True)
    return shares
