"""One call moves every replication to its target step.

An interval (t, t + h] of a replication: its roots dispatch the arrivals by the decision in force,
each cell runs alone to t + h, then the roots take in the responses and probes due by t + h. Times
are step x interval, never accumulated. Before an interval changes anything its needs are checked;
where a buffer is too small the call returns which one, the caller enlarges it and calls again.
"""

from __future__ import annotations

import math

from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.cells import run_cell
from dlb_gym.engine.compile import entry, part, stage
from dlb_gym.engine.dispatch import dispatch
from dlb_gym.engine.layout import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    ANSWERED,
    ANSWERED_ARC,
    ARRIVAL_S,
    ARRIVED,
    DECODE_SLOTS,
    DONE_S,
    ERRORS,
    FIRST_TOKEN,
    FIRST_TOKEN_S,
    FIRST_TOKEN_SUM_S,
    FREE,
    HELD_EMITTED_S,
    HELD_ERROR_RATE,
    HELD_RECEIVED,
    HELD_RIF,
    HELD_SERVERS,
    HISTOGRAM_BINS,
    IN_SYSTEM_S,
    INTERVAL_S,
    INTERVAL_SENT,
    KEY,
    KEY_SHIFT,
    LAST_ARRIVAL_S,
    LATENCY,
    LATENCY_SUM_S,
    LOAD_DECAY,
    LOG_ANSWER_S,
    LOG_ARRIVAL_S,
    LOG_CELL,
    LOG_DONE_S,
    LOG_FIRST_TOKEN_S,
    LOG_LEAF_S,
    LOG_ROOT,
    LOG_SEND_NUMBER,
    LOG_SERVER,
    LOG_SIZE,
    LOGGED,
    LOWEST_EXPONENT,
    MEASURE_FROM_S,
    MEASURE_TO_S,
    MEASURED_ERRORS,
    NEXT,
    NONE,
    NUM_CELLS,
    NUM_ROOTS,
    PARTS_PER_OCTAVE,
    PROBE_INTERVAL_S,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    QUEUE_LIMIT,
    REJECTED,
    ROUTER_DELAY_S,
    SERVER,
    WIRE_SIZE,
    Arrivals,
    FloatArray,
    IdArray,
    IntArray,
    Orders,
    Params,
    State,
)

# Status of a call: finished, or the buffer that is too small.
READY, FULL_POOL, FULL_WIRE, FULL_LOG = range(4)


@part
def _last_due(requests: FloatArray, first: int, count: int, until_s: float) -> int:
    stop = first
    while stop < count and requests[stop, ARRIVAL_S] <= until_s:
        stop += 1
    return stop


@part
def _count_bin(histogram: IntArray, value_s: float) -> None:
    mantissa, exponent = math.frexp(value_s)
    part = int((mantissa - 0.5) * (2 * PARTS_PER_OCTAVE))
    index = (exponent - 1 - LOWEST_EXPONENT) * PARTS_PER_OCTAVE + part
    histogram[min(max(index, 0), HISTOGRAM_BINS - 1)] += 1


@part
def _write_log(
    slot: int,
    i: int,
    j: int,
    clock: FloatArray,
    tau_s: FloatArray,
    row: IntArray,
    request: FloatArray,
    log: FloatArray,
) -> None:
    entry = log[row[LOG_SIZE]]
    row[LOG_SIZE] += 1
    entry[LOG_ROOT] = i
    entry[LOG_SEND_NUMBER] = int(request[slot, KEY]) & ((1 << KEY_SHIFT) - 1)
    entry[LOG_CELL] = j
    entry[LOG_SERVER] = request[slot, SERVER]
    entry[LOG_ARRIVAL_S] = request[slot, ARRIVAL_S]
    entry[LOG_LEAF_S] = (request[slot, ARRIVAL_S] + clock[ROUTER_DELAY_S]) + tau_s[i, j]
    entry[LOG_FIRST_TOKEN_S] = request[slot, FIRST_TOKEN_S]
    entry[LOG_DONE_S] = request[slot, DONE_S]
    entry[LOG_ANSWER_S] = request[slot, DONE_S] + tau_s[i, j]


@part
def _take_in_answers(
    i: int,
    j: int,
    end_s: float,
    logged: int,
    clock: FloatArray,
    tau_s: FloatArray,
    row: IntArray,
    row_time: FloatArray,
    arc: IntArray,
    request: FloatArray,
    free: IdArray,
    histogram: IntArray,
    log: FloatArray,
) -> None:
    """Responses of cell j that reach root i by `end_s`."""
    slot = arc[i, j, ANSWER_HEAD]
    while slot != NONE:
        answer_s = request[slot, DONE_S] + tau_s[i, j]
        if answer_s > end_s:
            break
        arrival_s = request[slot, ARRIVAL_S]
        row_time[IN_SYSTEM_S] -= end_s - answer_s
        arc[i, j, ANSWERED_ARC] += 1
        measured = clock[MEASURE_FROM_S] < arrival_s <= clock[MEASURE_TO_S]
        if request[slot, SERVER] == NONE:
            row[ERRORS] += 1
            if measured:
                row[MEASURED_ERRORS] += 1
        else:
            row[ANSWERED] += 1
            if measured:
                latency_s = answer_s - arrival_s
                first_token_s = (request[slot, FIRST_TOKEN_S] + tau_s[i, j]) - arrival_s
                row_time[LATENCY_SUM_S] += latency_s
                row_time[FIRST_TOKEN_SUM_S] += first_token_s
                _count_bin(histogram[LATENCY], latency_s)
                _count_bin(histogram[FIRST_TOKEN], first_token_s)
        if logged != 0:
            _write_log(slot, i, j, clock, tau_s, row, request, log)
        free[row[FREE]] = slot
        row[FREE] += 1
        slot = int(request[slot, NEXT])
    arc[i, j, ANSWER_HEAD] = slot
    if slot == NONE:
        arc[i, j, ANSWER_TAIL] = NONE


@part
def _take_in_probe(
    i: int,
    j: int,
    now_s: float,
    probe_interval_s: float,
    tau: float,
    probe: IntArray,
    probe_error_rate: FloatArray,
    held: IntArray,
    held_time: FloatArray,
) -> None:
    """The newest report m with m * interval + tau <= now; until one, what `held` began with."""
    if tau > now_s:
        return
    m = int((now_s - tau) / probe_interval_s)
    while (m + 1) * probe_interval_s + tau <= now_s:
        m += 1
    while m * probe_interval_s + tau > now_s:
        m -= 1
    k = m & (len(probe_error_rate) - 1)
    held[i, j, HELD_RIF] = probe[k, PROBE_RIF]
    held[i, j, HELD_SERVERS] = probe[k, PROBE_SERVERS]
    held[i, j, HELD_RECEIVED] = probe[k, PROBE_RECEIVED + i]
    held_time[i, j, HELD_EMITTED_S] = m * probe_interval_s
    held_time[i, j, HELD_ERROR_RATE] = probe_error_rate[k]


@stage
def _lacking(r: int, end_s: float, params: Params, state: State, arrivals: Arrivals) -> int:
    """The buffer that the next interval could overflow, or READY if all suffice."""
    due = 0
    until_s = min(end_s, params.clock[r, LAST_ARRIVAL_S])
    for i in range(params.shape[r, NUM_ROOTS]):
        first = arrivals.first[r, i]
        due += _last_due(arrivals.requests[r, i], first, arrivals.stop[r, i], until_s) - first
    if state.row[r, FREE] < due:
        return FULL_POOL
    for j in range(params.shape[r, NUM_CELLS]):
        if state.cell[r, j, WIRE_SIZE] + due > state.wire_time.shape[2]:
            return FULL_WIRE
    if params.shape[r, LOGGED] != 0:
        in_system = state.row[r, ARRIVED] - state.row[r, ANSWERED] - state.row[r, ERRORS]
        if state.row[r, LOG_SIZE] + in_system + due > state.log.shape[1]:
            return FULL_LOG
    return READY


@stage
def _send(
    r: int, end_s: float, params: Params, state: State, arrivals: Arrivals, orders: Orders
) -> None:
    """Phase one for row r; also the exponential mean of each root's arrival rate."""
    clock = params.clock[r]
    num_cells = params.shape[r, NUM_CELLS]
    until_s = min(end_s, clock[LAST_ARRIVAL_S])
    for i in range(params.shape[r, NUM_ROOTS]):
        first = arrivals.first[r, i]
        stop = _last_due(arrivals.requests[r, i], first, arrivals.stop[r, i], until_s)
        for j in range(num_cells):
            state.arc[r, i, j, INTERVAL_SENT] = 0
        dispatch(
            i,
            end_s,
            orders.mode[r],
            orders.base[r, i],
            orders.slope[r, i],
            arrivals.requests[r, i],
            first,
            stop,
            clock,
            params.tau_s[r, i],
            params.own_cell[r, i],
            num_cells,
            state.row[r],
            state.row_time[r],
            state.arc[r, i],
            state.credit[r, i],
            state.cell[r],
            state.wire_time[r],
            state.wire_id[r],
            state.request[r],
            state.free[r],
        )
        arrivals.first[r, i] = stop
        load = state.arrival_load[r, i]
        rate_rps = (stop - first) / clock[INTERVAL_S]
        state.arrival_load[r, i] = rate_rps + clock[LOAD_DECAY] * (load - rate_rps)


@stage
def _run_cells(r: int, end_s: float, params: Params, state: State) -> None:
    for j in range(params.shape[r, NUM_CELLS]):
        run_cell(
            j,
            end_s,
            params.shape[r, NUM_ROOTS],
            params.shape[r, DECODE_SLOTS],
            params.shape[r, QUEUE_LIMIT],
            params.clock[r, PROBE_INTERVAL_S],
            params.service[r],
            params.change_s[r, j],
            params.change_live[r, j],
            state.row[r],
            state.arc[r],
            state.received[r, j],
            state.cell[r],
            state.cell_time[r],
            state.server[r, j],
            state.server_free[r, j],
            state.wire_time[r, j],
            state.wire_id[r, j],
            state.done_time[r, j],
            state.done_id[r, j],
            state.probe[r, j],
            state.probe_error_rate[r, j],
            state.request[r],
        )


@stage
def _take_in(r: int, end_s: float, params: Params, state: State) -> None:
    for i in range(params.shape[r, NUM_ROOTS]):
        for j in range(params.shape[r, NUM_CELLS]):
            tau = params.tau_s[r, i, j]
            if math.isnan(tau):
                continue
            _take_in_answers(
                i,
                j,
                end_s,
                params.shape[r, LOGGED],
                params.clock[r],
                params.tau_s[r],
                state.row[r],
                state.row_time[r],
                state.arc[r],
                state.request[r],
                state.free[r],
                state.histogram[r],
                state.log[r],
            )
            _take_in_probe(
                i,
                j,
                end_s,
                params.clock[r, PROBE_INTERVAL_S],
                tau,
                state.probe[r, j],
                state.probe_error_rate[r, j],
                state.held[r],
                state.held_time[r],
            )


@entry
def advance(
    params: Params, state: State, arrivals: Arrivals, orders: Orders, target_step: IntArray
) -> tuple[int, int]:
    """Moves every row to its target step.

    Args:
        params: What the rows' episodes are.
        state: Where they stand; changed in place.
        arrivals: Must hold every arrival up to the end of the target steps.
        orders: The decision in force, the same in all the steps of this call.
        target_step: (n,) step of each row to reach; a row already there stays.

    Returns:
        (READY, n) when all rows are there, else the buffer to enlarge and the row that needs it;
        calling again goes on where this call stopped.
    """
    params, state = borrowed(params), borrowed(state)
    arrivals, orders = borrowed(arrivals), borrowed(orders)
    for r in range(len(target_step)):
        while state.step[r] < target_step[r]:
            end_s = (state.step[r] + 1) * params.clock[r, INTERVAL_S]
            lacking = _lacking(r, end_s, params, state, arrivals)
            if lacking != READY:
                return lacking, r
            in_system = state.row[r, ARRIVED] - state.row[r, ANSWERED] - state.row[r, ERRORS]
            state.row_time[r, IN_SYSTEM_S] = in_system * params.clock[r, INTERVAL_S]
            state.row[r, REJECTED] = 0
            _send(r, end_s, params, state, arrivals, orders)
            _run_cells(r, end_s, params, state)
            _take_in(r, end_s, params, state)
            state.step[r] += 1
    return READY, len(target_step)
