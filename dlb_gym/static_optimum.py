"""The best fixed routing of a fluid system: program (12) of the paper with the gradient cost.

With arrival rates lambda_i, one-way latencies tau_ij and cells of rate mu_j(N), the mean end-to-end
latency times the total rate is, by Little's law, what is in cells and on the wire
(theory.md section 2):

    min over x   Psi(x) = sum_j N_j + sum_ij lambda_i x_ij 2 tau_ij,
    mu_j(N_j) = z_j = sum_i lambda_i x_ij,   x_i on the simplex over the arcs of i.

mu_j is concave (see `latency_model`), so Psi is convex, and d Psi / d x_ij is lambda_i times
1/mu_j'(N_j) + 2 tau_ij. It is solved over flows y_ij = lambda_i x_ij. N_j(z_j) is nowhere below its
tangents; with the largest of some tangents in its place, a linear program bounds Psi from below.
Its solution shows where the next tangents are needed (cutting planes, Kelley 1960), and once it is
close, which arcs the best routing uses: Newton's steps on these make the last digits right. A
second bound from below,

    Psi - sum_ij y_ij (c_ij - min_k c_ik),   c_ij = 1/mu_j'(N_j) + 2 tau_ij

(Frank and Wolfe), is reached where equilibrium condition (6) holds. Flows are accepted that are
within `GAP` of the higher bound.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog

from dlb_gym.latency_model import LatencyModel, OperatingPoint

Array = NDArray[np.float64]

FULLEST = 1.0 - 1e-6
"""Share of a cell's largest rate k / beta up to which it can be used."""
GAP = 1e-8
"""Largest gap of a solution; linear programs are solved to about 1e-9."""
SILENT = 1e-7
"""Roots below this share of the busiest count as without arrivals: linear programs cannot tell."""
ROUNDS = 50
CLOSE = 1e-2
"""Gap from which Newton's steps are tried."""
NEWTON_STEPS = 100
POLISHING_STEPS = 4
FIRST_LOADS = 1.0 - 0.5 ** np.arange(8)
"""Where the first tangents are, as shares of the largest rate."""


class InfeasibleError(ValueError):
    """Some roots send more than all the cells that they can reach can serve (Assumption 2).

    Args:
        message: Names these cells.
        routing: (roots, cells), one that overloads the fullest cell least.
    """

    def __init__(self, message: str, routing: Array) -> None:
        super().__init__(message)
        self.routing = routing


class Optimum(NamedTuple):
    """The best fixed routing.

    Attributes:
        routing: x, (roots, cells); a root without arrivals goes to its least cost.
        rif: N, (cells,).
        latency_s: Mean end-to-end latency, Psi / sum lambda.
        gap: Share of Psi by which it is above a bound from below; at most `GAP`.
    """

    routing: Array
    rif: Array
    latency_s: float
    gap: float


class _Program(NamedTuple):
    """The program over arcs a = (root[a], cell[a]).

    Attributes:
        to_cell: (cells, arcs), 1 where an arc leads to a cell.
        of_root: (roots, arcs), 1 where an arc is a root's.
    """

    rates_rps: Array
    servers: Array
    model: LatencyModel
    root: NDArray[np.intp]
    cell: NDArray[np.intp]
    round_trip_s: Array
    to_cell: Array
    of_root: Array

    @property
    def largest_rps(self) -> Array:
        """What the cells can serve, (cells,)."""
        rates: Array = self.servers / self.model.beta
        return rates

    def at(self, flow: Array) -> OperatingPoint:
        """Where cells work with these flows."""
        return _at_rate(self.to_cell @ flow / self.servers, self.model)

    def psi(self, flow: Array) -> float:
        """Requests in cells and on the wire."""
        return float(self.servers @ self.at(flow).n + flow @ self.round_trip_s)

    def cost(self, flow: Array) -> Array:
        """c_ij of the arcs."""
        cost: Array = self.at(flow).marginal_latency[self.cell] + self.round_trip_s
        return cost

    def complete(self, flow: Array) -> Array:
        """Flows in proportion to these that meet the roots' rates, unless a root has none."""
        flow = np.maximum(flow, 0.0)
        sums = self.of_root @ flow
        flows: Array = flow * (self.rates_rps / np.where(sums > 0.0, sums, 1.0))[self.root]
        return flows

    def excess(self, flow: Array) -> float:
        """Sum of flows times what their arcs cost beyond their root's least."""
        cost = self.cost(flow)
        least = np.min(np.where(self.of_root > 0.0, cost, np.inf), axis=1)
        return float(flow @ (cost - least[self.root]))


def static_optimum(
    rates_rps: Array, one_way_s: Array, servers: Array, model: LatencyModel
) -> Optimum:
    """Solves the program.

    Args:
        rates_rps: lambda_i, (roots,), at least 0, not all 0.
        one_way_s: tau_ij, (roots, cells), NaN where there is no arc; every root has one.
        servers: k_j, (cells,), > 0.
        model: Latency per server of the cells, parameters (cells,), seconds.

    Raises:
        InfeasibleError: The demand cannot be served; names the cells that it overloads.
        ValueError: The solver stopped short of the optimum.
    """
    rates_rps = np.where(rates_rps > SILENT * rates_rps.max(), rates_rps, 0.0)
    root, cell = np.nonzero(~np.isnan(one_way_s))
    roots, cells = one_way_s.shape
    program = _Program(
        rates_rps,
        servers,
        model,
        root,
        cell,
        2.0 * one_way_s[root, cell],
        to_cell=(cell == np.arange(cells)[:, None]).astype(np.float64),
        of_root=(root == np.arange(roots)[:, None]).astype(np.float64),
    )
    best = middle = _widest(program)
    tangents = [load * program.largest_rps for load in FIRST_LOADS] + [program.to_cell @ middle]
    bound = 0.0
    for _ in range(ROUNDS):
        flow, below = _above_tangents(program, tangents)
        # Half-way from flows that keep clear of the poles: so do the tangents' places.
        middle = 0.5 * (middle + flow)
        found = [middle]
        if program.psi(middle) <= (1.0 + CLOSE) * below:
            found.append(_polished(program, flow, middle))
        tangents += [program.to_cell @ each for each in found]
        best = min([best, *found], key=program.psi)
        psi = program.psi(best)
        bound = max(bound, below, psi - program.excess(best))
        if psi - bound <= GAP * psi:
            return Optimum(
                _routing(program, best, program.cost(best)),
                servers * program.at(best).n,
                psi / float(rates_rps.sum()),
                max(0.0, 1.0 - bound / psi),
            )
    raise ValueError(
        f"the static optimum was missed: its gap is {1.0 - bound / psi:.3g} and at most {GAP:g} "
        "is accepted; report this with the scenario"
    )


def _widest(program: _Program) -> Array:
    """The flows that leave the fullest cell as empty as can be."""
    cells, arcs = program.to_cell.shape
    found = _minimised(
        np.append(np.zeros(arcs), 1.0),
        np.column_stack([program.to_cell, -program.largest_rps]),
        np.zeros(cells),
        program,
    )
    flow = program.complete(found.x[:arcs])
    fullest = float(found.x[-1])
    if fullest >= FULLEST:
        overloaded = np.flatnonzero(found.ineqlin.marginals < 0.0).tolist()
        raise InfeasibleError(
            f"the roots that reach no other cells than {overloaded} offer {100 * fullest:.4g} % of "
            "what these can serve, and no routing is stable; lower the demand or add servers or "
            "arcs",
            _routing(program, flow, program.round_trip_s),
        )
    return flow


def _above_tangents(program: _Program, touched: list[Array]) -> tuple[Array, float]:
    """The best flows, were N_j the largest of its tangents at some rates; and Psi then."""
    cells, arcs = program.to_cell.shape
    rows, right = [np.hstack([program.to_cell, np.zeros((cells, cells))])], []
    right.append(FULLEST * program.largest_rps)
    for rates_rps in touched:
        point = _at_rate(rates_rps / program.servers, program.model)
        slope = point.marginal_latency
        rows.append(np.hstack([slope[:, None] * program.to_cell, -np.eye(cells)]))
        right.append(slope * rates_rps - program.servers * point.n)
    cost = np.append(program.round_trip_s, np.ones(cells))
    found = _minimised(cost, np.vstack(rows), np.concatenate(right), program)
    return program.complete(found.x[:arcs]), float(found.fun)


def _minimised(cost: Array, rows: Array, right: Array, program: _Program) -> Any:
    """A linear program's solution; flows come first and meet the roots' rates."""
    others = len(cost) - program.of_root.shape[1]
    found: Any = linprog(
        cost,
        A_ub=rows,
        b_ub=right,
        A_eq=np.hstack([program.of_root, np.zeros((len(program.of_root), others))]),
        b_eq=program.rates_rps,
        method="highs",
    )
    if found.x is None:
        raise ValueError(
            f"a linear program of the static optimum found no solution ({found.message}); rates, "
            "latencies and servers must be finite"
        )
    return found


def _polished(program: _Program, flow: Array, start: Array) -> Array:
    """Newton's steps on the arcs that carry anything.

    With H the second derivatives of Psi and G the roots' sums, a step d solves H d + G^T c =
    -grad Psi and G d = lambda - G y; of several (flows may circle without a cost) the shortest.
    """
    used = flow > 0.0
    flow = np.where(used, start, 0.0)
    to_cell, of_root = program.to_cell[:, used], program.of_root[:, used]
    for _ in range(POLISHING_STEPS):
        point = program.at(flow)
        curvature = point.marginal_slope / (point.rate_slope * program.servers)
        hessian = to_cell.T @ (curvature[:, None] * to_cell)
        rows = len(of_root)
        system = np.block([[hessian, of_root.T], [of_root, np.zeros((rows, rows))]])
        gradient = to_cell.T @ point.marginal_latency + program.round_trip_s[used]
        right = np.concatenate([-gradient, program.rates_rps - program.of_root @ flow])
        step = np.linalg.lstsq(system, right, rcond=None)[0][: used.sum()]
        room = program.largest_rps - program.to_cell @ flow
        share = 1.0 / max(1.0, 2.0 * float(np.max(to_cell @ step / room)))
        flow[used] = np.maximum(flow[used] + share * step, 0.0)
    flow = program.complete(flow)
    whole = np.allclose(program.of_root @ flow, program.rates_rps, rtol=1e-9, atol=0.0)
    return flow if whole and (program.to_cell @ flow < program.largest_rps).all() else start


def _routing(program: _Program, flow: Array, cost: Array) -> Array:
    """Flows as shares (roots, cells); roots without any go to their least cost."""
    shape = (len(program.of_root), len(program.to_cell))
    flows, costs = np.zeros(shape), np.full(shape, np.inf)
    flows[program.root, program.cell], costs[program.root, program.cell] = flow, cost
    sums = flows.sum(axis=1, keepdims=True)
    least = costs == costs.min(axis=1, keepdims=True)
    idle = least / least.sum(axis=1, keepdims=True)
    return np.where(sums > 0.0, flows / np.where(sums > 0.0, sums, 1.0), idle)


def _at_rate(per_server_rps: Array, model: LatencyModel) -> OperatingPoint:
    """Where servers work that serve so many requests a second: the n with n / l(n) = q.

    g(n) = n - q l(n) is concave and rises for q < 1 / beta, so Newton's steps from n = 0 come from
    below and never pass the root.
    """
    n = np.zeros_like(per_server_rps)
    for _ in range(NEWTON_STEPS):
        point = model.at(n)
        step = (per_server_rps * point.latency - n) / (1.0 - per_server_rps * point.latency_slope)
        n = n + step
        if (np.abs(step) <= 1e-15 * (1.0 + n)).all():
            break
    return model.at(n)
