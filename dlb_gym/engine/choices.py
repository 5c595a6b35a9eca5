"""How a root chooses the cell of a request by the decision in force.

u is the request's uniform, n_j counts the root's own requests sent to j since the decision:

- sample: the first positive entry x_j with u < x_1 + ... + x_j; the last positive takes the rest.
- smooth: smooth weighted round robin. Every positive weight is added to its cell's credit, the
  largest credit wins and pays the sum of the weights; weightless cells have credit 0.
- score: the least base_j + slope_j n_j.
- cube: the least base_j + (offset_j + slope_j n_j)^3.
- drill: the least score of `samples` arcs drawn at random and of the one that won the last time.
- table: entry floor(u M) of a table of M cells.

Ties go to number floor(u * ties) of the tied cells in index order, but for those of `drill`, which
hashes of u decide, as they draw its arcs.
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.hashing import SAMPLED_ARCS, uniform
from dlb_gym.engine.layout import (
    CUBE,
    DRILL,
    INTERVAL_SENT,
    NONE,
    SAMPLE,
    SMOOTH,
    TABLE,
    CellArray,
    FloatArray,
    IntArray,
)

_KEYS = 9007199254740992.0  # 2^53: u is a multiple of its inverse


@part
def _sampled(weights: FloatArray, u: float, num_cells: int) -> int:
    total = 0.0
    last = 0
    for j in range(num_cells):
        if weights[j] > 0.0:
            total += weights[j]
            last = j
            if u < total:
                return j
    return last


@part
def _smoothed(weights: FloatArray, credit: FloatArray, u: float, num_cells: int) -> int:
    total = 0.0
    largest = -math.inf
    ties = 0
    for j in range(num_cells):
        if weights[j] > 0.0:
            total += weights[j]
            credit[j] += weights[j]
            if credit[j] > largest:
                largest = credit[j]
                ties = 1
            elif credit[j] == largest:
                ties += 1
        else:
            credit[j] = 0.0
    turn = int(u * ties)
    for j in range(num_cells):
        if weights[j] > 0.0 and credit[j] == largest:
            if turn == 0:
                credit[j] -= total
                return j
            turn -= 1
    return 0


@part
def _score(
    mode: int, j: int, base: FloatArray, slope: FloatArray, offset: FloatArray, arc: IntArray
) -> float:
    added = slope[j] * arc[j, INTERVAL_SENT]
    if mode == CUBE:
        q = offset[j] + added
        return float(base[j] + q * q * q)
    return float(base[j] + added)


@part
def _least_score(
    mode: int,
    base: FloatArray,
    slope: FloatArray,
    offset: FloatArray,
    tau_s: FloatArray,
    arc: IntArray,
    u: float,
    num_cells: int,
) -> int:
    least = math.inf
    ties = 0
    for j in range(num_cells):
        if not math.isnan(tau_s[j]):
            score = _score(mode, j, base, slope, offset, arc)
            if score < least:
                least = score
                ties = 1
            elif score == least:
                ties += 1
    turn = int(u * ties)
    for j in range(num_cells):
        if not math.isnan(tau_s[j]) and _score(mode, j, base, slope, offset, arc) == least:
            if turn == 0:
                return j
            turn -= 1
    return 0


@part
def _drilled(
    base: FloatArray,
    slope: FloatArray,
    samples: int,
    last: int,
    tau_s: FloatArray,
    arc: IntArray,
    u: float,
    num_cells: int,
) -> int:
    """Arcs of infinite base are none. Selection sampling (Knuth's algorithm S) draws the others."""
    left = 0
    for j in range(num_cells):
        if not math.isnan(tau_s[j]) and base[j] < math.inf:
            left += 1
    wanted = min(samples, left)
    key = int(u * _KEYS)
    best = NONE
    least = math.inf
    ties = 0
    for j in range(num_cells):
        if math.isnan(tau_s[j]) or base[j] == math.inf:
            continue
        drawn = uniform(SAMPLED_ARCS, key, j) * left < wanted
        left -= 1
        if drawn:
            wanted -= 1
        if not drawn and j != last:
            continue
        score = base[j] + slope[j] * arc[j, INTERVAL_SENT]
        if score < least:
            best = j
            least = score
            ties = 1
        elif score == least:
            ties += 1
            if uniform(SAMPLED_ARCS, key, num_cells + j) * ties < 1.0:
                best = j
    return best


@part
def choose_cell(
    mode: int,
    base: FloatArray,
    slope: FloatArray,
    offset: FloatArray,
    samples: int,
    table: CellArray,
    i: int,
    last_cell: IntArray,
    credit: FloatArray,
    tau_s: FloatArray,
    arc: IntArray,
    u: float,
    num_cells: int,
) -> int:
    """The cell of a request by the decision in force; arrays are root i's, `last_cell` the row's.

    NONE where all scores are infinite.
    """
    if mode == SAMPLE:
        return _sampled(base, u, num_cells)
    if mode == SMOOTH:
        return _smoothed(base, credit, u, num_cells)
    if mode == TABLE:
        return int(table[int(u * len(table))])
    if mode == DRILL:
        j = _drilled(base, slope, samples, last_cell[i], tau_s, arc, u, num_cells)
        last_cell[i] = j
        return j
    return _least_score(mode, base, slope, offset, tau_s, arc, u, num_cells)
