"""Phase one of an interval: roots send its arrivals by what they knew at its start."""

from __future__ import annotations

from dlb_gym.engine.choices import choose_cell
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
    SENT,
    U_LEAF,
    U_ROUTE,
    WIRE_SIZE,
    CellArray,
    FloatArray,
    IdArray,
    IntArray,
)


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
    offset: FloatArray,
    samples: int,
    table: CellArray,
    last_cell: IntArray,
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
        j = choose_cell(
            mode,
            base,
            slope,
            offset,
            samples,
            table,
            i,
            last_cell,
            credit,
            tau_s,
            arc,
            u,
            num_cells,
        )
        row[FREE] -= 1
        slot = free[row[FREE]]
        enter(slot, requests, index, end_s, clock, row, row_time, request)
        request[slot, KEY] = (i << KEY_SHIFT) + row[ARRIVED] + index - first
        arrival_s = requests[index, ARRIVAL_S]
        leaf_s = (arrival_s + clock[ROUTER_DELAY_S]) + tau_s[j]
        send(j, leaf_s, slot, arc, cell, wire_time, wire_id, request)
        note_away(arrival_s, j, own_cell, clock, row)
    row[ARRIVED] += stop - first
