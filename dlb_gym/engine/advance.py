"""One call moves every replication to its target step.

An interval (t, t + h] of a replication: its roots dispatch the arrivals by the decision in force,
each cell runs alone to t + h, then the roots take in the responses and probes due by t + h. Times
are step x interval, never accumulated. Before an interval changes anything its needs are checked;
where a buffer is too small the call returns which one, the caller enlarges it and calls again.
"""

from __future__ import annotations

from typing import Any

from dlb_gym.engine.borrow import borrowed
from dlb_gym.engine.cells import run_cell
from dlb_gym.engine.compile import entry, part
from dlb_gym.engine.dispatch import dispatch
from dlb_gym.engine.extras import (
    ATTEMPTS,
    FINAL_ERRORS,
    LATE_ERRORS,
    RETRYING,
    Extras,
)
from dlb_gym.engine.intake import take_in
from dlb_gym.engine.layout import (
    ANSWERED,
    ARRIVAL_S,
    ARRIVED,
    ERRORS,
    FREE,
    IN_SYSTEM_S,
    INTERVAL_ANSWERED,
    INTERVAL_FIRST_TOKEN_S,
    INTERVAL_S,
    INTERVAL_SENT,
    LAST_ARRIVAL_S,
    LOAD_DECAY,
    LOG_SIZE,
    LOGGED,
    NUM_CELLS,
    NUM_ROOTS,
    REJECTED,
    WIRE_SIZE,
    Arrivals,
    FloatArray,
    IntArray,
    Orders,
    Params,
    State,
)
from dlb_gym.engine.roots import send_all

# Status of a call: finished, or the buffer that is too small.
READY, FULL_POOL, FULL_WIRE, FULL_LOG = range(4)


@part
def _last_due(requests: FloatArray, first: int, count: int, until_s: float) -> int:
    stop = first
    while stop < count and requests[stop, ARRIVAL_S] <= until_s:
        stop += 1
    return stop


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
                orders.offset[r, i],
                orders.samples[r],
                orders.table[r, i],
                state.last_cell[r],
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
            take_in(r, end_s, facts, system, more)
            if extras is not None:
                _settle_errors(r, system, more)
            system.step[r] += 1
    return READY, len(target_step)
