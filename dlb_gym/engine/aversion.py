"""Error aversion at a root (paper 3.4; the law is theory.md section 6's).

Every `interval` D, with e_j the error rate in the report held from cell j and r_j its doubt factor,

    d_j  = (r_j e_j - min_k r_k e_k - tolerance)^+          over the root's arcs
    a*_j = min(highest, gain d_j);  highest if cell j fell silent
    a_j <- a_j + rise (a*_j - a_j) upwards,  max(a*_j, a_j - fall D) downwards.

Recovery: fewer than `quiet` answers from j in the last two intervals multiply r_j by
e^(-D / recovery), since a cell that gets nothing shows nothing; otherwise r_j is 1.

Spending: of a routing vector x, the averted mass x_j a_j of cell j goes to the row's other cells in
proportion to x_k (1 - a_k), or where there is none to the root's other cells by capacity times
(1 - a_k).
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    ANSWERS_BEFORE,
    ANSWERS_THEN,
    AVERSION_S,
    DOUBT,
    FALL,
    GAIN,
    HIGHEST,
    QUIET,
    RISE,
    SILENCE_S,
    TOLERANCE,
    TRUST,
)
from dlb_gym.engine.layout import (
    ANSWERED_ARC,
    HELD_EMITTED_S,
    HELD_ERROR_RATE,
    FloatArray,
    IntArray,
)


@part
def update_aversion(
    now_s: float,
    num_cells: int,
    setting: FloatArray,
    tau_s: FloatArray,
    rtt_s: FloatArray,
    held_time: FloatArray,
    arc: IntArray,
    memory: FloatArray,
    aversion: FloatArray,
) -> None:
    """One update of a root; arrays are its own, over cells. `rtt_s` is that of the report held."""
    least = math.inf
    for j in range(num_cells):
        if not math.isnan(tau_s[j]):
            answers = float(arc[j, ANSWERED_ARC])
            if answers - memory[j, ANSWERS_BEFORE] < setting[QUIET]:
                memory[j, TRUST] *= setting[DOUBT]
            else:
                memory[j, TRUST] = 1.0
            memory[j, ANSWERS_BEFORE] = memory[j, ANSWERS_THEN]
            memory[j, ANSWERS_THEN] = answers
            least = min(least, memory[j, TRUST] * held_time[j, HELD_ERROR_RATE])
    for j in range(num_cells):
        if not math.isnan(tau_s[j]):
            excess = memory[j, TRUST] * held_time[j, HELD_ERROR_RATE] - least - setting[TOLERANCE]
            target = min(setting[HIGHEST], setting[GAIN] * max(excess, 0.0))
            if now_s - held_time[j, HELD_EMITTED_S] - 0.5 * rtt_s[j] > setting[SILENCE_S]:
                target = setting[HIGHEST]
            if target > aversion[j]:
                aversion[j] += setting[RISE] * (target - aversion[j])
            else:
                aversion[j] = max(target, aversion[j] - setting[FALL] * setting[AVERSION_S])


@part
def spend_aversion(
    num_cells: int,
    base: FloatArray,
    aversion: FloatArray,
    capacity: FloatArray,
    weights: FloatArray,
) -> None:
    """Writes a root's routing vector with aversion spent; `capacity` is 0 where there is no arc."""
    accepted = 0.0
    for j in range(num_cells):
        weights[j] = base[j] * (1.0 - aversion[j])
        accepted += weights[j]
    for j in range(num_cells):
        averted = base[j] * aversion[j]
        if averted > 0.0:
            _spread(j, averted, accepted, num_cells, base, aversion, capacity, weights)


@part
def _spread(
    j: int,
    averted: float,
    accepted: float,
    num_cells: int,
    base: FloatArray,
    aversion: FloatArray,
    capacity: FloatArray,
    weights: FloatArray,
) -> None:
    """Gives the averted mass of cell j to others; to itself where there is no other."""
    others = accepted - base[j] * (1.0 - aversion[j])
    if others > 1e-12:
        for k in range(num_cells):
            if k != j:
                weights[k] += averted * base[k] * (1.0 - aversion[k]) / others
        return
    others = 0.0
    for k in range(num_cells):
        if k != j:
            others += capacity[k] * (1.0 - aversion[k])
    if others <= 0.0:
        weights[j] += averted
        return
    for k in range(num_cells):
        if k != j:
            weights[k] += averted * capacity[k] * (1.0 - aversion[k]) / others
