"""Whether Flow is stable at an equilibrium, and how large its step may be (theory.md section 3).

Take the limit of small control intervals, (8) and (9), at an equilibrium N*, x* where every unused
arc costs more than its root's used ones (strict complementarity). Small deviations stay within the
supports S_i of x*_i, where the projection onto the tangent cone is P_i = I - 1 1^T / |S_i|. With
a_j = mu_j'(N*_j), b_j = f_j'(N*_j), n the deviation of N, and

    u_j(t) = sum_i lambda_i dx_ij(t - tau_ij)        what arrives too much at cell j,
    dx_ij' = -eta_i sum_k P_i[j,k] b_k n_k(t - tau_ik),

the linearisation is

    n_j' = u_j - a_j n_j,
    u_j' = -sum_i lambda_i eta_i sum_k P_i[j,k] b_k n_k(t - tau_ij - tau_ik).

Only n is delayed, and the characteristic equation is that of theory.md,

    det(s (s I + A) + sum_i lambda_i eta_i D_i(s) P_i D_i(s) B) = 0,   D_i(s) = diag e^(-s tau_ij).

**What cannot happen is left out.** A root sends no more than it gets, sum_j dx_ij = 0. Over every
set E of cells that roots link, in one chain or another, this makes

    sum_(j in E) u_j(t) = sum over i, j in E, k of  lambda_i eta_i P_i[j,k] b_k
                          x integral of n_k over [t - tau_ij - tau_ik, t],

what is too much at the cells is too little on the wire. (n, u) without it have a root at 0 more for
every such set, of initial states that break it. Here the sum replaces those components of u.

**Roots.** The delay equation is a linear semigroup on the history of n over the longest delay; its
generator is discretised by collocation in M + 1 Chebyshev points, delayed values by barycentric
interpolation, integrals by Gauss's rule (Breda, Maset and Vermiglio 2005). The eigenvalues of the
matrix, of size (M + 2) cells less the number of sets, tend to the rightmost characteristic roots
faster than any power of M.

**Sampled loops.** Where a root decides every h seconds from probes of age tau + w, a loop takes
2 tau + w + h / 2 (theory.md section 1): add (w + h / 2) / 2 to every tau.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import null_space
from scipy.optimize import brentq
from scipy.sparse.csgraph import connected_components

from dlb_gym.chebyshev import differentiation, integration, interpolation
from dlb_gym.service_curves import Cost, ServiceCurves, cell_cost, cell_cost_slope

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

TIED = 1e-6
"""Arcs within this share of a root's least cost count as used."""
NODES = (12, 24, 48, 96, 192)
"""M, doubled until the rightmost root agrees with the one before and none can hide."""
AGREE = 1e-9
NOISE = 1e-13
"""Of eigenvalues, in units of the matrix's size, M^2 / T: roots of slow modes agree no better."""
WIDER = 2.0
WIDENINGS = 100
SECANT = 1e-3
"""Share of a gain over which a slope is taken."""


class Loop(NamedTuple):
    """What the linearisation is made of. Arcs outside `support` are never looked at.

    Attributes:
        rates_rps: lambda_i, (roots,).
        one_way_s: tau_ij, (roots, cells): half of what a loop over the arc takes.
        rate_slope: a_j, (cells,), 1/s.
        cost_slope: b_j, (cells,), the derivative of the cost with respect to N_j.
        support: Whether x*_ij > 0, (roots, cells).
        eta: eta_i >= 0, (roots,), 1/(s x unit of the cost): 1/s^2 where it is in seconds.
    """

    rates_rps: Array
    one_way_s: Array
    rate_slope: Array
    cost_slope: Array
    support: Mask
    eta: Array

    def scaled(self, gain: float) -> Loop:
        """The same loop with `gain` times every eta_i."""
        return self._replace(eta=gain * self.eta)


class _Terms(NamedTuple):
    """The delayed feedback: u_into' = -sum of gain x n_of(t - delay_s), all of shape (terms,)."""

    into: NDArray[np.intp]
    of: NDArray[np.intp]
    gain: Array
    delay_s: Array


def linearised(
    rates_rps: Array,
    one_way_s: Array,
    curves: ServiceCurves,
    cost: Cost,
    rif: Array,
    eta: Array,
) -> Loop:
    """The loop at the equilibrium with N* in the cells.

    An arc belongs to the support if its cost is its root's least, up to `TIED`. That is what x* > 0
    says under strict complementarity. Where x* is not unique (as with the rif cost, for which all
    arcs are alike), it is the support of all equilibria but those at the rim.

    Args:
        rates_rps: lambda_i, (roots,).
        one_way_s: tau_ij, (roots, cells), NaN where there is no arc; every root has one.
        curves: Of the cells, (cells,).
        cost: What Flow equalises.
        rif: N*, (cells,).
        eta: eta_i, (roots,).
    """
    point = curves.at(rif)
    network_s = np.zeros_like(one_way_s) if cost == "rif" else 2.0 * one_way_s
    costs = cell_cost(point, cost, curves.servers) + network_s
    costs = np.where(np.isnan(one_way_s), np.inf, costs)
    support = costs <= (1.0 + TIED) * costs.min(axis=1, keepdims=True)
    slope = cell_cost_slope(point, cost, curves.servers)
    return Loop(rates_rps, one_way_s, point.rate_slope, slope, support, eta)


def rightmost_root(loop: Loop) -> complex:
    """The characteristic root of largest real part, in 1/s; of a pair the one above the real axis.

    Deviations from the equilibrium decay like e^(s t) if its real part is below 0, and grow if it
    is above.

    Raises:
        ValueError: An eta_i is no step, or the loop oscillates too fast for the discretisation.
    """
    _require_steps(loop)
    terms = _terms(loop)
    before = np.nan
    for nodes in NODES:
        grid = _discretised(loop, terms, nodes)
        root = grid.root(1.0)
        if grid.agrees(root, before, 1.0):
            return root
        before = root.real
    raise _missed(terms, before)


def critical_gain(loop: Loop) -> float:
    """The factor on all eta_i at which the rightmost root crosses the imaginary axis.

    It is bracketed from (star) upwards in steps of `WIDER`. Infinite where nothing oscillates: no
    root has a choice of cells, no cost rises, or no loop takes time.

    Raises:
        ValueError: A cell's rate does not increase, or as `rightmost_root`.
    """
    low = sufficient_gain(loop)
    terms = _terms(loop)
    if not (terms.delay_s > 0.0).any():
        return np.inf
    finer, root = _discretised(loop, terms, NODES[0]), complex(np.nan)
    for nodes in NODES[1:]:
        grid, finer = finer, _discretised(loop, terms, nodes)
        crossing = _crossing(grid, low)
        if crossing == np.inf:
            return np.inf
        root = finer.root(crossing)
        if finer.agrees(root, 0.0, crossing):
            # One step of Newton's towards the crossing of the finer grid, with the coarser's slope.
            step = SECANT * crossing
            slope = max(grid.root(crossing + step).real / step, np.finfo(np.float64).tiny)
            return float(crossing - np.clip(root.real / slope, -step, step))
    raise _missed(terms, root.real)


def sufficient_gain(loop: Loop) -> float:
    """The factor on all eta_i below which a network is stable for sure: (star) of theory.md 3c.

        b_j sum_i lambda_i eta_i < a_j^2 / (1 + 2 a_j max_i tau_ij)   for every cell j,

    over the roots i that use j and have a choice. Infinite where no cost rises.

    Raises:
        ValueError: A cell's rate does not increase, or an eta_i is no step.
    """
    _require_steps(loop)
    for cell in np.flatnonzero(~(loop.rate_slope > 0.0))[:1]:
        raise ValueError(
            f"rate_slope of cell {cell} = {loop.rate_slope[cell]:g} must be above 0: theory "
            "promises nothing where a rate does not increase; lower the demand on it"
        )
    using = loop.support & (loop.support.sum(axis=1) > 1)[:, None]
    inflow = np.where(using, (loop.rates_rps * loop.eta)[:, None], 0.0).sum(axis=0)
    farthest_s = np.max(np.where(using, loop.one_way_s, 0.0), axis=0)
    a = loop.rate_slope
    return _least(a**2 / (1.0 + 2.0 * a * farthest_s), loop.cost_slope * inflow)


def _require_steps(loop: Loop) -> None:
    """Refuses what is no step: one below 0 would pass for one that never oscillates."""
    if np.shape(loop.eta) != np.shape(loop.rates_rps):
        raise ValueError(
            f"eta has the shape {np.shape(loop.eta)}, and rates_rps needs "
            f"{np.shape(loop.rates_rps)}: give one step a root"
        )
    for root in np.flatnonzero(~(np.isfinite(loop.eta) & (loop.eta >= 0.0)))[:1].tolist():
        raise ValueError(
            f"eta[{root}] = {loop.eta[root]:g} must be finite and at least 0; give root {root} a "
            "step above 0, or 0 if it keeps its routing"
        )


def one_root_step(
    rate_rps: float, rate_slope: Array, cost_slope: Array, loop_delay_s: Array
) -> float:
    """The eta below which a single root is stable for sure, theory.md 3b.

        eta < min_j a_j^2 / ((1 + a_j T_j) lambda b_j),   T_j = 2 tau_j.

    Args:
        rate_rps: lambda > 0.
        rate_slope: a_j > 0 of the cells that it uses, 1/s.
        cost_slope: b_j of these.
        loop_delay_s: T_j of these.
    """
    return _least(rate_slope**2 / (1.0 + rate_slope * loop_delay_s), rate_rps * cost_slope)


def equal_delay_gain(rate_slope: float, loop_delay_s: float) -> float:
    """The gain kappa at which s^2 + a s + kappa e^(-s T) starts to oscillate, theory.md 3a.

        kappa_c = (a / T) theta / sin theta,   theta tan theta = a T,   0 < theta < pi / 2.

    Where all a_j = a and all loops take T, kappa is the largest eigenvalue of
    B^(1/2) (sum_i lambda_i eta_i P_i) B^(1/2): lambda eta (b_1 + b_2) / 2 for one root and two
    cells.

    Args:
        rate_slope: a > 0, 1/s.
        loop_delay_s: T >= 0; without delay nothing oscillates.

    Returns:
        kappa_c, 1/s^2.
    """
    if loop_delay_s == 0.0:
        return np.inf
    product = rate_slope * loop_delay_s
    theta = brentq(
        lambda angle: angle * np.sin(angle) - product * np.cos(angle), 0.0, np.pi / 2, xtol=1e-15
    )
    return float(rate_slope / loop_delay_s * theta / np.sin(theta))


def _least(above: Array, below: Array) -> float:
    """Min above / below where below > 0."""
    rising = below > 0.0
    return float(np.min(above[rising] / below[rising], initial=np.inf))


def _terms(loop: Loop) -> _Terms:
    linked = _linked(loop)
    choices = np.maximum(linked.sum(axis=1), 1)[:, None, None]
    both = linked[:, :, None] & linked[:, None, :]
    projector = both * (np.eye(linked.shape[1]) - 1.0 / choices)
    gain = (loop.rates_rps * loop.eta)[:, None, None] * projector * loop.cost_slope
    root, into, of = np.nonzero(gain)
    delay_s = loop.one_way_s[root, into] + loop.one_way_s[root, of]
    return _Terms(into, of, gain[root, into, of], delay_s)


def _linked(loop: Loop) -> Mask:
    """The arcs whose flow moves, (roots, cells)."""
    moves: Mask = loop.support & (loop.rates_rps * loop.eta > 0.0)[:, None]
    return moves


class _Discretised(NamedTuple):
    """The matrices whose eigenvalues are characteristic roots, M = `nodes`.

    Their state: n at times in [-`longest_s`, 0] (which fall from 0), cell by cell, then u but for
    its sums over sets of linked cells.

    Attributes:
        own: Without feedback.
        fed: What the feedback adds, for a gain of 1.
        row_sum: Largest row sum of the feedback's absolute values, for a gain of 1, 1/s^2.
    """

    own: Array
    fed: Array
    nodes: int
    longest_s: float
    row_sum: float

    def root(self, gain: float) -> complex:
        """The rightmost eigenvalue; of a pair the one above the real axis."""
        roots: Any = np.linalg.eigvals(self.own + gain * self.fed)
        root = roots[np.argmax(roots.real)]
        return complex(root.real, abs(root.imag))

    def agrees(self, root: complex, before: float, gain: float) -> bool:
        """Whether half the nodes found this root, of real part `before`, and could see any other.

        A root that does not decay has |s|^2 <= the largest row sum of |feedback|, and half the
        nodes lie pi^2 T / M^2 apart where they are densest, at 0.
        """
        if self.longest_s == 0.0:
            return True
        seen = self.nodes**2 >= np.pi**2 * np.sqrt(gain * self.row_sum) * self.longest_s
        agree = AGREE * abs(root) + NOISE * self.nodes**2 / self.longest_s
        return bool(seen and abs(root.real - before) <= agree)


def _discretised(loop: Loop, terms: _Terms, nodes: int) -> _Discretised:
    longest_s = float(terms.delay_s.max(initial=0.0))
    if longest_s == 0.0:
        nodes = 0
    times_s = 0.5 * longest_s * (np.cos(np.pi * np.arange(nodes + 1) / max(nodes, 1)) - 1.0)
    cells, points = len(loop.rate_slope), len(times_s)
    sums = _sums(loop)
    rest = null_space(sums.T)
    delays_s, which = np.unique(terms.delay_s, return_inverse=True)
    feedback = _spread(terms, interpolation(times_s, -delays_s)[which], cells)
    on_the_wire = _spread(terms, integration(times_s, delays_s)[which], cells)
    size = points * cells
    own = np.zeros((size + rest.shape[1],) * 2)
    own[cells:size, :size] = np.kron(differentiation(times_s)[1:], np.eye(cells))
    own[:cells, :cells] -= np.diag(loop.rate_slope)
    own[:cells, size:] = rest
    fed = np.zeros_like(own)
    fed[:cells, :size] = sums @ sums.T @ on_the_wire
    fed[size:, :size] = -rest.T @ feedback
    row_sum = float(np.bincount(terms.into, np.abs(terms.gain), 1).max())
    return _Discretised(own, fed, nodes, longest_s, row_sum)


def _crossing(grid: _Discretised, low: float) -> float:
    """The gain above `low` at which a grid's rightmost root crosses the imaginary axis."""

    def growth(gain: float) -> float:
        return grid.root(gain).real

    for _ in range(WIDENINGS):
        high = WIDER * low
        if growth(high) > 0.0:
            if growth(low) >= 0.0:  # too coarse a grid
                return low
            crossing: float = brentq(growth, low, high, xtol=1e-10 * low, rtol=1e-10)
            return crossing
        low = high
    return np.inf


def _missed(terms: _Terms, before: float) -> ValueError:
    return ValueError(
        f"the rightmost characteristic root was missed: {before:.6g} with {NODES[-1]} nodes still "
        "differs from that with half of them, or they are too few to see what grows; lower eta "
        f"or the longest delay ({terms.delay_s.max():g} s)"
    )


def _sums(loop: Loop) -> Array:
    """Orthonormal indicators of the sets of linked cells, (cells, sets)."""
    linked = _linked(loop).astype(np.float64)
    sets, label = connected_components(linked.T @ linked, directed=False)
    within = (label[:, None] == np.arange(sets)).astype(np.float64)
    sums: Array = within / np.sqrt(within.sum(axis=0))
    return sums


def _spread(terms: _Terms, weights: Array, cells: int) -> Array:
    """Weights of the terms, (terms, points), as a matrix (cells, points x cells)."""
    points = weights.shape[1]
    spread = np.zeros((cells, points, cells))
    places = terms.into[:, None], np.arange(points), terms.of[:, None]
    np.add.at(spread, places, terms.gain[:, None] * weights)
    return spread.reshape(cells, -1)
