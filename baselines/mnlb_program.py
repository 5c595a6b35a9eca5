"""MNLB's linear program (theory.md section 6), solved by HiGHS.

With arrivals lambda_i, capacities C_j and headroom rho, over the arcs,

    min   sum_ij lambda_i w_ij rtt_ij + M sum_j u_j + M² v
    s.t.  sum_j w_ij = 1,   sum_i lambda_i w_ij <= rho C_j + u_j,   u_j <= v C_j,   all >= 0.

Where the headroom suffices u = v = 0. Where it does not, M >> max rtt minimises the largest
relative overflow v first (as theory.md asks; the sum alone would pile the excess on the nearest
cells), then its sum, then network latency.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_array

from dlb_gym.decision import Array, Mask
from dlb_gym.policy import proportional
from dlb_gym.reductions import ordered_sum

OVERFLOW_PRICE = 1e3
"""M, in units of the largest round trip."""

LEAST_SHARE = 1e-3
"""Roots are planned for as if they had at least this share of the mean root's arrivals, and cells
may overflow as if they had at least this share of the largest cell's capacity: a root without
arrivals gets weights as well, and a solution always exists."""

Indices = NDArray[np.intp]


def least_network_latency(
    *, arrivals: Array, capacity: Array, rtt: Array, admissible: Mask, headroom: float
) -> Array:
    """Weights w_ij.

    Args:
        arrivals: lambda_i, shape (roots,), at least 0, not all 0.
        capacity: C_j, shape (cells,), in the unit of the arrivals, at least 0, not all 0.
        rtt: Round trips, shape (roots, cells), any unit.
        admissible: Arcs, shape (roots, cells).
        headroom: rho.

    Returns:
        Shape (roots, cells); rows on the simplex over their arcs, zero for roots without any.

    Raises:
        ValueError: HiGHS finds no optimum (it exists for finite input).
    """
    used_roots, used_cells = admissible.any(axis=1), admissible.any(axis=0)
    load = np.maximum(arrivals, LEAST_SHARE * ordered_sum(arrivals) / np.count_nonzero(used_roots))
    root, cell = np.nonzero(admissible)
    # Padding leaves no trace: rows and columns are numbered over what has an arc.
    row, column = (np.cumsum(used_roots) - 1)[root], (np.cumsum(used_cells) - 1)[cell]
    share = _solve(
        load=load[root],
        price=load[root] * rtt[root, cell] / (np.max(rtt[root, cell]) or 1.0),
        root=row,
        cell=column,
        capacity=capacity[used_cells],
        headroom=headroom,
    )
    weights = np.zeros(admissible.shape)
    weights[root, cell] = np.maximum(share, 0.0)
    return proportional(weights, admissible)


def _solve(
    *, load: Array, price: Array, root: Indices, cell: Indices, capacity: Array, headroom: float
) -> Array:
    """The program over arcs a = (root[a], cell[a]); variables w (arcs), u (cells), v.

    Args:
        load: lambda of the arc's root, shape (arcs,).
        price: lambda rtt of the arc, shape (arcs,).
        root: Root of the arc, numbered without gaps.
        cell: Cell of the arc, numbered without gaps.
        capacity: C_j, shape (cells,).
        headroom: rho.

    Returns:
        w, shape (arcs,).
    """
    arcs, cells, roots = len(root), len(capacity), int(root.max()) + 1
    each, ones = np.arange(cells), np.ones(cells)
    floored = np.maximum(capacity, LEAST_SHARE * capacity.max())
    values = np.concatenate([load, -ones, ones, -floored])
    rows = np.concatenate([cell, each, cells + each, cells + each])
    columns = np.concatenate([np.arange(arcs), arcs + each, arcs + each, 0 * each + arcs + cells])
    variables = arcs + cells + 1
    # linprog takes sparse matrices; its type stubs know dense ones only.
    filled: Any = coo_array((values, (rows, columns)), shape=(2 * cells, variables)).tocsr()
    whole: Any = coo_array((np.ones(arcs), (root, np.arange(arcs))), (roots, variables)).tocsr()
    solution = linprog(
        np.concatenate([price, OVERFLOW_PRICE * ones, [OVERFLOW_PRICE**2]]),
        A_ub=filled,
        b_ub=np.concatenate([headroom * capacity, 0.0 * ones]),
        A_eq=whole,
        b_eq=np.ones(roots),
        method="highs",
    )
    if solution.x is None:
        raise ValueError(
            f"MNLB's linear program has no optimum ({solution.message}); "
            "arrivals, capacities and round trips must be finite and at least 0, not all 0"
        )
    return np.asarray(solution.x[:arcs], dtype=np.float64)
