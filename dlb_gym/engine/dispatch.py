"""Phase one of an interval: roots send its arrivals by what they knew at its start.

Rules of choice among the cells of a root, u the request's uniform:

- sample: the first positive entry x_j with u < x_1 + ... + x_j; the last positive takes the rest.
- smooth: smooth weighted round robin. Every positive weight is added to its cell's credit, the
  largest credit wins and pays the sum of the weights; weightless cells have credit 0.
- score: the least base_j + slope_j * (own requests sent to j since the decision).

Ties go to number floor(u * ties) of the tied cells in index order.
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.heap import push_wire
from dlb_gym.engine.layout import (
    ARRIVAL_S,
    ARRIVED,
    FREE,
    IN_SYSTEM_S,
    INTERVAL_SENT,
    KEY,
    KEY_SHIFT,
    MEASURE_FROM_S,
    MEASURE_TO_S,
    MEASURED,
    MEASURED_AWAY,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    ROUTER_DELAY_S,
    SAMPLE,
    SENT,
    SMOOTH,
    U_LEAF,
    U_ROUTE,
    WIRE_SIZE,
    FloatArray,
    IdArray,
    IntArray,
)


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
def _least_score(
    base: FloatArray, slope: FloatArray, tau_s: FloatArray, arc: IntArray, u: float, num_cells: int
) -> int:
    least = math.inf
    ties = 0
    for j in range(num_cells):
        if not math.isnan(tau_s[j]):
            score = base[j] + slope[j] * arc[j, INTERVAL_SENT]
            if score < least:
                least = score
                ties = 1
            elif score == least:
                ties += 1
    turn = int(u * ties)
    for j in range(num_cells):
        if not math.isnan(tau_s[j]) and base[j] + slope[j] * arc[j, INTERVAL_SENT] == least:
            if turn == 0:
                return j
            turn -= 1
    return 0


@part
def choose_cell(
    mode: int,
    base: FloatArray,
    slope: FloatArray,
    credit: FloatArray,
    tau_s: FloatArray,
    arc: IntArray,
    u: float,
    num_cells: int,
) -> int:
    """The cell of a request by the decision in force; arrays are the root's."""
    if mode == SAMPLE:
        return _sampled(base, u, num_cells)
    if mode == SMOOTH:
        return _smoothed(base, credit, u, num_cells)
    return _least_score(base, slope, tau_s, arc, u, num_cells)


@part
def enter(
    slot: int,
    requests: FloatArray,
    index: int,
    end_s: float,
    clock: FloatArray,
    row: IntArray,
    row_time: FloatArray,
    request: FloatArray,
) -> None:
    """A request arrives at its root."""
    arrival_s = requests[index, ARRIVAL_S]
    request[slot, ARRIVAL_S] = arrival_s
    request[slot, PROMPT_TOKENS] = requests[index, PROMPT_TOKENS]
    request[slot, OUTPUT_TOKENS] = requests[index, OUTPUT_TOKENS]
    request[slot, U_LEAF] = requests[index, U_LEAF]
    row_time[IN_SYSTEM_S] += end_s - arrival_s
    if clock[MEASURE_FROM_S] < arrival_s <= clock[MEASURE_TO_S]:
        row[MEASURED] += 1


@part
def send(
    j: int,
    leaf_s: float,
    slot: int,
    arc: IntArray,
    cell: IntArray,
    wire_time: FloatArray,
    wire_id: IdArray,
    request: FloatArray,
) -> None:
    """Puts a request on the wire to cell j."""
    push_wire(wire_time[j], wire_id[j], cell[j, WIRE_SIZE], leaf_s, slot, request)
    cell[j, WIRE_SIZE] += 1
    arc[j, SENT] += 1
    arc[j, INTERVAL_SENT] += 1


@part
def note_away(arrival_s: float, j: int, own_cell: int, clock: FloatArray, row: IntArray) -> None:
    """Counts a measured request that another cell than the root's own serves."""
    if j != own_cell and clock[MEASURE_FROM_S] < arrival_s <= clock[MEASURE_TO_S]:
        row[MEASURED_AWAY] += 1


@part
def dispatch(
    i: int,
    end_s: float,
    mode: int,
    base: FloatArray,
    slope: FloatArray,
    requests: FloatArray,
    first: int,
    stop: int,
    clock: FloatArray,
    tau_s: FloatArray,
    own_cell: int,
    num_cells: int,
    row: IntArray,
    row_time: FloatArray,
    arc: IntArray,
    credit: FloatArray,
    cell: IntArray,
    wire_time: FloatArray,
    wire_id: IdArray,
    request: FloatArray,
    free: IdArray,
) -> None:
    """Sends requests [first, stop) of root i; arrays are one row's, `base` to `credit` root i's."""
    for index in range(first, stop):
        u = requests[index, U_ROUTE]
        j = choose_cell(mode, base, slope, credit, tau_s, arc, u, num_cells)
        row[FREE] -= 1
        slot = free[row[FREE]]
        enter(slot, requests, index, end_s, clock, row, row_time, request)
        request[slot, KEY] = (i << KEY_SHIFT) + row[ARRIVED] + index - first
        arrival_s = requests[index, ARRIVAL_S]
        leaf_s = (arrival_s + clock[ROUTER_DELAY_S]) + tau_s[j]
        send(j, leaf_s, slot, arc, cell, wire_time, wire_id, request)
        note_away(arrival_s, j, own_cell, clock, row)
    row[ARRIVED] += stop - first
