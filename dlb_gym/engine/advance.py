"""One call moves every replication to its target step.

An interval (t, t + h] of a replication: its roots dispatch the arrivals by the decision in force,
each cell runs alone to t + h, then the roots take in the responses and probes due by t + h. Times
are step x interval, never accumulated. Before an interval changes anything its needs are checked;
where a buffer is too small the call returns which one, the caller enlarges it and calls again.
"""

from __future__ import annotations

import math
from typing import Any

from dlb_gym.engine.answers import (
    FAILED,
    SERVED,
    TRIED_AGAIN,
    answer_time_s,
    outcome_of,
    way_back_s,
)
from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.cells import run_cell
from dlb_gym.engine.compile import entry, part
from dlb_gym.engine.dispatch import dispatch
from dlb_gym.engine.extras import (
    ATTEMPTS,
    FINAL_ERRORS,
    KIND,
    LATE_ERRORS,
    LEAF_S,
    RETRYING,
    Extras,
)
from dlb_gym.engine.layout import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    ANSWERED,
    ANSWERED_ARC,
    ARRIVAL_S,
    ARRIVED,
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
    INTERVAL_ANSWERED,
    INTERVAL_FIRST_TOKEN_S,
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
    OUTPUT_TOKENS,
    PARTS_PER_OCTAVE,
    PROBE_INTERVAL_S,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    REJECTED,
    ROUTER_DELAY_S,
    SERVER,
    TOKEN_TIME,
    TOKEN_TIME_SUM_S,
    WIRE_SIZE,
    Arrivals,
    FloatArray,
    IntArray,
    Orders,
    Params,
    State,
)
from dlb_gym.engine.roots import send_all, update_root
from dlb_gym.engine.telemetry import hold_report

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
    leaf_s: float,
    answer_s: float,
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
    entry[LOG_LEAF_S] = leaf_s
    entry[LOG_FIRST_TOKEN_S] = request[slot, FIRST_TOKEN_S]
    entry[LOG_DONE_S] = request[slot, DONE_S]
    entry[LOG_ANSWER_S] = answer_s


@part
def _measure(
    slot: int,
    answer_s: float,
    tau: float,
    row_time: FloatArray,
    request: FloatArray,
    histogram: IntArray,
) -> None:
    """Latency, time to first token and time per output token of an answered request."""
    arrival_s = request[slot, ARRIVAL_S]
    latency_s = answer_s - arrival_s
    first_token_s = (request[slot, FIRST_TOKEN_S] + tau) - arrival_s
    row_time[LATENCY_SUM_S] += latency_s
    row_time[FIRST_TOKEN_SUM_S] += first_token_s
    _count_bin(histogram[LATENCY], latency_s)
    _count_bin(histogram[FIRST_TOKEN], first_token_s)
    output = request[slot, OUTPUT_TOKENS]
    if output > 0.0:
        token_s = (request[slot, DONE_S] - request[slot, FIRST_TOKEN_S]) / output
        row_time[TOKEN_TIME_SUM_S] += token_s
        _count_bin(histogram[TOKEN_TIME], token_s)


@part
def _is_measured(r: int, slot: int, params: Params, state: State) -> bool:
    arrival_s = state.request[r, slot, ARRIVAL_S]
    return bool(params.clock[r, MEASURE_FROM_S] < arrival_s <= params.clock[r, MEASURE_TO_S])


@part
def _count_error(r: int, slot: int, params: Params, state: State, extras: Extras | None) -> None:
    state.row[r, ERRORS] += 1
    if _is_measured(r, slot, params, state):
        state.row[r, MEASURED_ERRORS] += 1
        if extras is not None:
            extras.errors[r, int(extras.request[r, slot, KIND])] += 1


@part
def _count_answer(
    r: int,
    i: int,
    j: int,
    slot: int,
    answer_s: float,
    params: Params,
    state: State,
    extras: Extras | None,
) -> None:
    request, row_time = state.request[r], state.row_time[r]
    tau = params.tau_s[r, i, j]
    if extras is not None:
        tau = way_back_s(r, i, j, slot, answer_s, tau, state, extras)
    state.row[r, ANSWERED] += 1
    state.row[r, INTERVAL_ANSWERED] += 1
    first_s = request[slot, FIRST_TOKEN_S] + tau
    row_time[INTERVAL_FIRST_TOKEN_S] += first_s - request[slot, ARRIVAL_S]
    if _is_measured(r, slot, params, state):
        _measure(slot, answer_s, tau, row_time, request, state.histogram[r])


@part
def _take_in_answers(
    r: int, i: int, j: int, end_s: float, params: Params, state: State, extras: Extras | None
) -> None:
    """Responses of cell j that reach root i by `end_s`."""
    clock, row, row_time = params.clock[r], state.row[r], state.row_time[r]
    arc, request = state.arc[r, i, j], state.request[r]
    tau = params.tau_s[r, i, j]
    slot = arc[ANSWER_HEAD]
    while slot != NONE:
        answer_s = request[slot, DONE_S] + tau
        if extras is not None:
            answer_s = answer_time_s(r, i, j, slot, tau, state, extras)
        if answer_s > end_s:
            break
        following = int(request[slot, NEXT])
        arc[ANSWERED_ARC] += 1
        outcome = FAILED if request[slot, SERVER] == NONE else SERVED
        if extras is not None:
            outcome = outcome_of(r, i, j, slot, answer_s, state.step[r], state, extras)
        if outcome == TRIED_AGAIN:
            slot = following
            continue
        row_time[IN_SYSTEM_S] -= end_s - answer_s
        if outcome == FAILED:
            _count_error(r, slot, params, state, extras)
        else:
            _count_answer(r, i, j, slot, answer_s, params, state, extras)
        if params.shape[r, LOGGED] != 0:
            leaf_s = (request[slot, ARRIVAL_S] + clock[ROUTER_DELAY_S]) + tau
            if extras is not None:
                leaf_s = extras.request[r, slot, LEAF_S]
            _write_log(slot, i, j, leaf_s, answer_s, row, request, state.log[r])
        state.free[r, row[FREE]] = slot
        row[FREE] += 1
        slot = following
    arc[ANSWER_HEAD] = slot
    if slot == NONE:
        arc[ANSWER_TAIL] = NONE


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


@part
def _lacking(
    r: int,
    end_s: float,
    params: Params,
    state: State,
    arrivals: Arrivals,
    extras: Extras | None,
) -> int:
    """The buffer that the next interval could overflow, or READY if all suffice."""
    due = 0
    until_s = min(end_s, params.clock[r, LAST_ARRIVAL_S])
    for i in range(params.shape[r, NUM_ROOTS]):
        first = arrivals.first[r, i]
        due += _last_due(arrivals.requests[r, i], first, arrivals.stop[r, i], until_s) - first
    if state.row[r, FREE] < due:
        return FULL_POOL
    if extras is not None:
        for i in range(params.shape[r, NUM_ROOTS]):
            due += extras.root[r, i, RETRYING]
    for j in range(params.shape[r, NUM_CELLS]):
        if state.cell[r, j, WIRE_SIZE] + due > state.wire_time.shape[2]:
            return FULL_WIRE
    if params.shape[r, LOGGED] != 0:
        in_system = state.row[r, ARRIVED] - state.row[r, ANSWERED] - state.row[r, ERRORS]
        if state.row[r, LOG_SIZE] + in_system + due > state.log.shape[1]:
            return FULL_LOG
    return READY


@part
def _send(
    r: int,
    start_s: float,
    end_s: float,
    params: Params,
    state: State,
    arrivals: Arrivals,
    orders: Orders,
    extras: Extras | None,
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
        if extras is None:
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
        else:
            send_all(r, i, start_s, end_s, first, stop, params, state, arrivals, orders, extras)
        arrivals.first[r, i] = stop
        load = state.arrival_load[r, i]
        rate_rps = (stop - first) / clock[INTERVAL_S]
        state.arrival_load[r, i] = rate_rps + clock[LOAD_DECAY] * (load - rate_rps)


@part
def _take_in(r: int, end_s: float, params: Params, state: State, extras: Extras | None) -> None:
    for i in range(params.shape[r, NUM_ROOTS]):
        for j in range(params.shape[r, NUM_CELLS]):
            tau = params.tau_s[r, i, j]
            if math.isnan(tau):
                continue
            _take_in_answers(r, i, j, end_s, params, state, extras)
            probe_interval_s = params.clock[r, PROBE_INTERVAL_S]
            if extras is None:
                _take_in_probe(
                    i,
                    j,
                    end_s,
                    probe_interval_s,
                    tau,
                    state.probe[r, j],
                    state.probe_error_rate[r, j],
                    state.held[r],
                    state.held_time[r],
                )
            else:
                hold_report(end_s, r, i, j, probe_interval_s, tau, state, extras)
        if extras is not None:
            update_root(r, i, end_s, params, state, extras)


@part
def _settle_errors(r: int, state: State, extras: Any) -> None:
    """Errors of an interval that count: where clients try again, those that are final."""
    if extras.flag[r, ATTEMPTS] > 0:
        state.row[r, REJECTED] = extras.row[r, FINAL_ERRORS]
    else:
        state.row[r, REJECTED] += extras.row[r, LATE_ERRORS]
    extras.row[r, FINAL_ERRORS] = 0
    extras.row[r, LATE_ERRORS] = 0


@entry
def advance(
    params: Params,
    state: State,
    arrivals: Arrivals,
    orders: Orders,
    extras: Extras | None,
    target_step: IntArray,
) -> tuple[int, int]:
    """Moves every row to its target step.

    Args:
        params: What the rows' episodes are.
        state: Where they stand; changed in place.
        arrivals: Must hold every arrival up to the end of the target steps.
        orders: The decision in force, the same in all the steps of this call.
        extras: The mechanisms, or None where no row has any: that kernel is compiled without them.
        target_step: (n,) step of each row to reach; a row already there stays.

    Returns:
        (READY, n) when all rows are there, else the buffer to enlarge and the row that needs it;
        calling again goes on where this call stopped.
    """
    facts, system = borrowed(params), borrowed(state)
    offered, decided = borrowed(arrivals), borrowed(orders)
    more = borrowed(extras)
    for r in range(len(target_step)):
        while system.step[r] < target_step[r]:
            start_s = system.step[r] * facts.clock[r, INTERVAL_S]
            end_s = (system.step[r] + 1) * facts.clock[r, INTERVAL_S]
            lacking = _lacking(r, end_s, facts, system, offered, more)
            if lacking != READY:
                return lacking, r
            in_system = system.row[r, ARRIVED] - system.row[r, ANSWERED] - system.row[r, ERRORS]
            system.row_time[r, IN_SYSTEM_S] = in_system * facts.clock[r, INTERVAL_S]
            system.row_time[r, INTERVAL_FIRST_TOKEN_S] = 0.0
            system.row[r, INTERVAL_ANSWERED] = 0
            system.row[r, REJECTED] = 0
            _send(r, start_s, end_s, facts, system, offered, decided, more)
            for j in range(facts.shape[r, NUM_CELLS]):
                run_cell(r, j, end_s, facts, system, more)
            _take_in(r, end_s, facts, system, more)
            if extras is not None:
                _settle_errors(r, system, more)
            system.step[r] += 1
    return READY, len(target_step)
