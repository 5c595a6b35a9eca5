"""Phase two of an interval: each cell runs alone to its end.

With FIFO stages a request's completion is known when its server is chosen (Kiefer and Wolfowitz):
prefill starts at max(leaf time, engine free), decode at max(prefill end, earliest free slot).
Completions wait in a heap for their instant; a server's prefill ends are settled when it is looked
at. Order at one instant: changes, completions, arrivals, probe.

Where clients give up (`max_wait_s`), one whose prefill would start later leaves then; whether it
will is known when it comes.
"""

from __future__ import annotations

import math

import numpy as np

from dlb_gym.engine.batches import of_cell
from dlb_gym.engine.batching import complete_batching, place_batching
from dlb_gym.engine.changes import change_cell
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    BATCHING,
    CELL_SPEED,
    FULL,
    GAVE_UP,
    HIT_TOKENS,
    KIND,
    MAX_WAIT_S,
    RIF_THERE,
    SEED,
    Extras,
)
from dlb_gym.engine.faults import leave
from dlb_gym.engine.heap import pop_done, pop_wire, push_done
from dlb_gym.engine.layout import (
    DECODE_S_PER_TOKEN,
    DECODE_SLOTS,
    DONE_S,
    DONE_SIZE,
    ERROR_RATE,
    FIRST_TOKEN_S,
    KEY,
    KEY_SHIFT,
    LIVE,
    NEXT,
    NEXT_CHANGE,
    NEXT_PROBE,
    NONE,
    NUM_ROOTS,
    OUTPUT_TOKENS,
    PREFILL_HEAD,
    PREFILL_S_PER_TOKEN,
    PREFILL_TAIL,
    PROBE_INTERVAL_S,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    PROMPT_TOKENS,
    QUEUE_LIMIT,
    RIF,
    SERVER,
    TOKENS,
    U_LEAF,
    UNFINISHED,
    WIRE_SIZE,
    FloatArray,
    IdArray,
    IntArray,
    Params,
    State,
)
from dlb_gym.engine.leaf import answer, choose_server, fail, note_outcome, settle_prefills
from dlb_gym.engine.leaves import keep_seen
from dlb_gym.engine.placing import choose_server_all, note_placed, note_served, refuse_early
from dlb_gym.engine.telemetry import fill_report


@part
def _complete(
    until_s: float,
    r: int,
    c: int,
    queue_limit: int,
    arc: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    server: IntArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
    state: State,
    extras: Extras | None,
) -> None:
    """Completions up to and including `until_s`."""
    size = cell[c, DONE_SIZE]
    while size > 0 and done_time[0] <= until_s:
        now_s = done_time[0]
        slot = pop_done(done_time, done_id, size, request)
        size -= 1
        s = int(request[slot, SERVER])
        if extras is not None:
            keep_seen(r, c, s, state, extras)
        settle_prefills(now_s, s, server, request)
        server[s, UNFINISHED] -= 1
        cell[c, RIF] -= 1
        server[s, TOKENS] -= int(request[slot, OUTPUT_TOKENS])
        if extras is not None:
            if extras.request[r, slot, KIND] != NONE:
                server[s, TOKENS] -= int(request[slot, PROMPT_TOKENS])
                leave(slot, request, extras.request[r], extras.leaf[r, c], extras.tally[r, c])
                fail(now_s, c, slot, state.row[r], arc, cell, cell_time, request)
                continue
            note_served(now_s, r, c, slot, queue_limit, state, extras)
        note_outcome(now_s, 0.0, c, cell_time)
        answer(c, slot, arc, request)
    cell[c, DONE_SIZE] = size


@part
def _schedule(
    now_s: float,
    c: int,
    s: int,
    slot: int,
    slots: int,
    prefill_s: float,
    decode_s: float,
    cell: IntArray,
    server: IntArray,
    server_free: FloatArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
) -> None:
    """A server takes a request whose stages take so long."""
    first_token_s = max(now_s, server_free[s, 0]) + prefill_s
    server_free[s, 0] = first_token_s
    earliest = 1
    free_s = server_free[s, 1]
    for k in range(2, 1 + slots):
        sooner = server_free[s, k] < free_s
        earliest = k if sooner else earliest
        free_s = server_free[s, k] if sooner else free_s
    done_s = max(first_token_s, free_s) + decode_s
    server_free[s, earliest] = done_s
    request[slot, FIRST_TOKEN_S] = first_token_s
    request[slot, NEXT] = NONE
    if server[s, PREFILL_HEAD] == NONE:
        server[s, PREFILL_HEAD] = slot
    else:
        request[server[s, PREFILL_TAIL], NEXT] = slot
    server[s, PREFILL_TAIL] = slot
    _enqueue(c, s, slot, done_s, cell, server, done_time, done_id, request)


@part
def _enqueue(
    c: int,
    s: int,
    slot: int,
    done_s: float,
    cell: IntArray,
    server: IntArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
) -> None:
    """A request is in flight until `done_s`."""
    request[slot, DONE_S] = done_s
    request[slot, SERVER] = s
    server[s, UNFINISHED] += 1
    server[s, TOKENS] += int(request[slot, PROMPT_TOKENS] + request[slot, OUTPUT_TOKENS])
    push_done(done_time, done_id, cell[c, DONE_SIZE], done_s, slot, request)
    cell[c, DONE_SIZE] += 1
    cell[c, RIF] += 1


@part
def _place(now_s: float, r: int, c: int, slot: int, params: Params, state: State) -> None:
    """Gives a request that reached the leaf to a server, or fails it if that server is full."""
    cell, server, request = state.cell[r], state.server[r, c], state.request[r]
    s = choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)
    if server[s, UNFINISHED] >= params.shape[r, QUEUE_LIMIT]:
        fail(now_s, c, slot, state.row[r], state.arc[r], cell, state.cell_time[r], request)
        return
    _schedule(
        now_s,
        c,
        s,
        slot,
        params.shape[r, DECODE_SLOTS],
        request[slot, PROMPT_TOKENS] * params.service[r, c, PREFILL_S_PER_TOKEN],
        request[slot, OUTPUT_TOKENS] * params.service[r, c, DECODE_S_PER_TOKEN],
        cell,
        server,
        state.server_free[r, c],
        state.done_time[r, c],
        state.done_id[r, c],
        request,
    )


@part
def _place_all(
    now_s: float, r: int, c: int, slot: int, params: Params, state: State, extras: Extras
) -> None:
    """`_place` with mechanisms."""
    cell, server, request = state.cell[r], state.server[r, c], state.request[r]
    if refuse_early(now_s, r, c, slot, state, extras):
        return
    s = choose_server_all(now_s, r, c, slot, params, state, extras)
    keep_seen(r, c, s, state, extras)
    extras.request[r, slot, RIF_THERE] = cell[c, RIF] / cell[c, LIVE]
    prompt = request[slot, PROMPT_TOKENS]
    hit = extras.request[r, slot, HIT_TOKENS]
    if extras.flag[r, BATCHING] > 0:
        place_batching(
            now_s,
            r,
            c,
            s,
            slot,
            int(hit),
            params.shape[r, QUEUE_LIMIT],
            extras.cell[r, c, CELL_SPEED],
            of_cell(extras.batches, r, c),
            state,
            extras,
        )
        if request[slot, SERVER] != NONE:
            note_placed(now_s, r, c, s, slot, prompt, params, state, extras)
        return
    if server[s, UNFINISHED] >= params.shape[r, QUEUE_LIMIT]:
        extras.request[r, slot, KIND] = FULL
        extras.request[r, slot, HIT_TOKENS] = 0.0
        fail(now_s, c, slot, state.row[r], state.arc[r], cell, state.cell_time[r], request)
        return
    note_placed(now_s, r, c, s, slot, prompt, params, state, extras)
    request[slot, PROMPT_TOKENS] = prompt - hit
    server_free = state.server_free[r, c]
    done_time, done_id = state.done_time[r, c], state.done_id[r, c]
    if server_free[s, 0] - now_s > extras.setting[r, MAX_WAIT_S]:
        extras.request[r, slot, KIND] = GAVE_UP
        gone_s = now_s + extras.setting[r, MAX_WAIT_S]
        request[slot, FIRST_TOKEN_S] = gone_s
        _enqueue(c, s, slot, gone_s, cell, server, done_time, done_id, request)
        return
    speed = extras.cell[r, c, CELL_SPEED]
    _schedule(
        now_s,
        c,
        s,
        slot,
        params.shape[r, DECODE_SLOTS],
        (prompt - hit) * params.service[r, c, PREFILL_S_PER_TOKEN] / speed,
        request[slot, OUTPUT_TOKENS] * params.service[r, c, DECODE_S_PER_TOKEN] / speed,
        cell,
        server,
        server_free,
        done_time,
        done_id,
        request,
    )


@part
def _emit(
    r: int, c: int, now_s: float, params: Params, state: State, extras: Extras | None
) -> None:
    """Writes the cell's report into the ring of its latest ones (a power of two: no division)."""
    cell, probe = state.cell[r, c], state.probe[r, c]
    num_roots = params.shape[r, NUM_ROOTS]
    m = cell[NEXT_PROBE]
    k = m & (len(state.probe_error_rate[r, c]) - 1)
    probe[k, PROBE_RIF] = cell[RIF]
    probe[k, PROBE_SERVERS] = cell[LIVE]
    state.probe_error_rate[r, c, k] = state.cell_time[r, c, ERROR_RATE]
    for i in range(num_roots):
        probe[k, PROBE_RECEIVED + i] = state.received[r, c, i]
    cell[NEXT_PROBE] += 1
    if extras is not None:
        fill_report(now_s, m, k, r, c, params, state, extras)


@part
def _complete_until(
    until_s: float, r: int, c: int, params: Params, state: State, extras: Extras | None
) -> None:
    """Completions of either kind of server."""
    if extras is not None and extras.flag[r, BATCHING] > 0:
        complete_batching(
            until_s,
            r,
            c,
            params.shape[r, QUEUE_LIMIT],
            extras.flag[r, SEED],
            extras.cell[r, c, CELL_SPEED],
            of_cell(extras.batches, r, c),
            state,
            extras,
        )
        return
    _complete(
        until_s,
        r,
        c,
        params.shape[r, QUEUE_LIMIT],
        state.arc[r],
        state.cell[r],
        state.cell_time[r],
        state.server[r, c],
        state.done_time[r, c],
        state.done_id[r, c],
        state.request[r],
        state,
        extras,
    )


@part
def run_cell(
    r: int, c: int, end_s: float, params: Params, state: State, extras: Extras | None
) -> None:
    """Runs cell c of row r to `end_s`."""
    cell = state.cell[r, c]
    wire_time, wire_id, request = state.wire_time[r, c], state.wire_id[r, c], state.request[r]
    change_s = params.change_s[r, c]
    probe_interval_s = params.clock[r, PROBE_INTERVAL_S]
    while True:
        arrival_s = wire_time[0] if cell[WIRE_SIZE] > 0 else math.inf
        probe_s = cell[NEXT_PROBE] * probe_interval_s
        next_change_s = change_s[cell[NEXT_CHANGE]]
        now_s = min(arrival_s, probe_s, next_change_s)
        over = now_s > end_s
        changes = next_change_s <= now_s
        until_s = end_s if over else now_s
        if changes and not over:
            until_s = np.nextafter(now_s, -math.inf)  # a change precedes its instant's completions
        _complete_until(until_s, r, c, params, state, extras)
        if over:
            break
        if changes:
            if extras is not None:
                change_cell(now_s, r, c, params, state, extras)
            cell[LIVE] = params.change_live[r, c, cell[NEXT_CHANGE]]
            cell[NEXT_CHANGE] += 1
        elif arrival_s <= probe_s:
            slot = pop_wire(wire_time, wire_id, cell[WIRE_SIZE], request)
            cell[WIRE_SIZE] -= 1
            state.received[r, c, int(request[slot, KEY]) >> KEY_SHIFT] += 1
            if extras is None:
                _place(now_s, r, c, slot, params, state)
            else:
                _place_all(now_s, r, c, slot, params, state, extras)
        else:
            _emit(r, c, now_s, params, state, extras)
