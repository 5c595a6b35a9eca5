"""The best fixed routing of a fluid system: program (12) of the paper with the gradient cost.

With arrival rates lambda_i, one-way latencies tau_ij and cells of rate mu_j(N), the mean end-to-end
latency times the total rate is, by Little's law, what is in cells and on the wire
(theory.md section 2):

    min over x   Psi(x) = sum_j N_j + sum_ij lambda_i x_ij 2 tau_ij,
    mu_j(N_j) = z_j = sum_i lambda_i x_ij,   x_i on the simplex over the arcs of i.

mu_j is concave (see `latency_model`), so Psi is convex, and d Psi / d x_ij is lambda_i times
1/mu_j'(N_j) + 2 tau_ij. It is solved over flows y_ij = lambda_i x_ij by scipy's SLSQP, from the
flows of a linear program that keeps cells as far from their largest rate as can be; a few Newton
steps among the arcs then used make its last digits right. Whatever found it, a solution is judged
by

    gap = sum_ij y_ij (c_ij - min_k c_ik) / Psi,   c_ij = 1/mu_j'(N_j) + 2 tau_ij:

by convexity no routing is better by more than this share (Frank and Wolfe), and it is 0 exactly
where equilibrium condition (6) holds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import LinearConstraint, linprog, minimize
from scipy.sparse import coo_array

from dlb_gym.latency_model import LatencyModel, OperatingPoint

Array = NDArray[np.float64]

FULLEST = 1.0 - 1e-6
"""Share of a cell's largest rate k / beta up to which it can be used."""
GAP = 1e-9
"""Largest gap of a solution."""
NEWTON_STEPS = 100
POLISHING_STEPS = 3
USED = 1e-7
"""Flow of an arc in use, as a share of the largest root's."""


class InfeasibleError(ValueError):
    """Some roots send more than all the cells that they can reach can serve (Assumption 2)."""


class Optimum(NamedTuple):
    """The best fixed routing.

    Attributes:
        routing: x, (roots, cells); of a root without arrivals, its least cost.
        rif: N, (cells,).
        latency_s: Mean end-to-end latency, Psi / sum lambda.
        gap: See the module; at most `GAP`.
    """

    routing: Array
    rif: Array
    latency_s: float
    gap: float


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
    total_rps = float(rates_rps.sum())
    root, cell = np.nonzero(~np.isnan(one_way_s))
    network_s = 2.0 * one_way_s[root, cell]
    start = _widest(rates_rps, root, cell, servers / model.beta)
    sums = coo_array((np.ones(len(root)), (cell, np.arange(len(root))))).toarray()
    shares = coo_array((np.ones(len(root)), (root, np.arange(len(root))))).toarray()

    def psi(flow: Array) -> tuple[float, Array]:
        point = _at_rate(sums @ flow / servers, model)
        value = float(servers @ point.n + flow @ network_s)
        return value / total_rps, (point.marginal_latency[cell] + network_s) / total_rps

    constraints: Any = [
        LinearConstraint(shares, rates_rps, rates_rps),
        LinearConstraint(sums, -np.inf, FULLEST * servers / model.beta),
    ]
    found = minimize(
        psi,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0.0, None)] * len(root),
        constraints=constraints,
        options={"maxiter": 1000, "ftol": 1e-15},
    )
    flow = _polished(np.maximum(found.x, 0.0), sums, shares, network_s, rates_rps, servers, model)
    flow *= (rates_rps / np.where(rates_rps > 0.0, shares @ flow, 1.0))[root]
    return _judged(flow, root, cell, network_s, rates_rps, servers, model, one_way_s.shape)


def _polished(
    flow: Array,
    sums: Array,
    shares: Array,
    network_s: Array,
    rates_rps: Array,
    servers: Array,
    model: LatencyModel,
) -> Array:
    """Newton's steps on the arcs that carry anything.

    With H the second derivatives of Psi and G the roots' sums, a step d solves H d + G^T c =
    -grad Psi and G d = lambda - G y; of several (flows may circle without a cost) the shortest.
    """
    used = flow > USED * rates_rps.max()
    to_cell, of_root = sums[:, used], shares[:, used]
    for _ in range(POLISHING_STEPS):
        point = _at_rate(sums @ flow / servers, model)
        curvature = point.marginal_slope / (point.rate_slope * servers)
        hessian = to_cell.T @ (curvature[:, None] * to_cell)
        rows = len(of_root)
        system = np.block([[hessian, of_root.T], [of_root, np.zeros((rows, rows))]])
        gradient = to_cell.T @ point.marginal_latency + network_s[used]
        right = np.concatenate([-gradient, rates_rps - shares @ flow])
        step = np.linalg.lstsq(system, right, rcond=None)[0][: used.sum()]
        flow[used] = np.maximum(flow[used] + step, 0.0)
    flow[~used] = 0.0
    return flow


def _judged(
    flow: Array,
    root: NDArray[np.intp],
    cell: NDArray[np.intp],
    network_s: Array,
    rates_rps: Array,
    servers: Array,
    model: LatencyModel,
    shape: tuple[int, ...],
) -> Optimum:
    """The optimum of flows over arcs (root, cell), if their gap is small."""
    flows, cost = np.zeros(shape), np.full(shape, np.inf)
    flows[root, cell] = flow
    point = _at_rate(flows.sum(axis=0) / servers, model)
    cost[root, cell] = point.marginal_latency[cell] + network_s
    least = cost.min(axis=1, keepdims=True)
    psi = float(servers @ point.n + flow @ network_s)
    gap = float(flow @ (cost - least)[root, cell]) / psi
    if not gap <= GAP:
        raise ValueError(
            f"the static optimum was missed: its gap is {gap:.3g} and at most {GAP:g} is accepted; "
            "report this with the scenario"
        )
    best = (cost == least) / (cost == least).sum(axis=1, keepdims=True)
    active = rates_rps[:, None] > 0.0
    routing = np.where(active, flows / np.where(active, rates_rps[:, None], 1.0), best)
    return Optimum(routing, servers * point.n, psi / float(rates_rps.sum()), gap)


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


def _widest(
    rates_rps: Array, root: NDArray[np.intp], cell: NDArray[np.intp], largest_rps: Array
) -> Array:
    """Flows over the arcs that leave the fullest cell as empty as can be."""
    arcs, cells = len(root), len(largest_rps)
    rows = np.concatenate([cell, np.arange(cells)])
    columns = np.concatenate([np.arange(arcs), np.full(cells, arcs)])
    values = np.concatenate([np.ones(arcs), -largest_rps])
    # linprog takes sparse matrices; its type stubs know dense ones only.
    filled: Any = coo_array((values, (rows, columns)), (cells, arcs + 1)).tocsr()
    whole: Any = coo_array((np.ones(arcs), (root, np.arange(arcs))), (len(rates_rps), arcs + 1))
    found: Any = linprog(
        np.concatenate([np.zeros(arcs), [1.0]]),
        A_ub=filled,
        b_ub=np.zeros(cells),
        A_eq=whole.tocsr(),
        b_eq=rates_rps,
        method="highs",
    )
    fullest = float(found.x[-1])
    if fullest >= FULLEST:
        overloaded = np.flatnonzero(found.ineqlin.marginals < 0.0).tolist()
        raise InfeasibleError(
            f"the roots that reach no other cells than {overloaded} offer {100 * fullest:.4g} % of "
            "what these can serve, and no routing is stable; lower the demand or add servers or "
            "arcs"
        )
    return np.asarray(found.x[:arcs])
