"""Phase two of an interval: each cell runs alone to its end.

With FIFO stages a request's completion is known when its server is chosen (Kiefer and Wolfowitz):
prefill starts at max(leaf time, engine free), decode at max(prefill end, earliest free slot).
Completions wait in a heap for their instant; a server's prefill ends are settled when it is looked
at. Order at one instant: change of servers, completions, arrivals, probe.
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.heap import pop, pop_wire, push
from dlb_gym.engine.layout import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    CELL_REJECTED,
    DECODE_S_PER_TOKEN,
    DONE_S,
    DONE_SIZE,
    ERROR_RATE,
    ERROR_TIME_S,
    FIRST_TOKEN_S,
    KEY,
    KEY_SHIFT,
    LIVE,
    NEXT,
    NEXT_CHANGE,
    NEXT_PROBE,
    NONE,
    OUTPUT_TOKENS,
    PREFILL_HEAD,
    PREFILL_S_PER_TOKEN,
    PREFILL_TAIL,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    PROMPT_TOKENS,
    REJECTED,
    RIF,
    SERVER,
    TOKENS,
    U_LEAF,
    UNFINISHED,
    WIRE_SIZE,
    FloatArray,
    IdArray,
    IntArray,
)

# Memory of a leaf's error rate, s (theory.md section 6; the paper gives none).
ERROR_MEMORY_S = 5.0


@part
def _settle_prefills(now_s: float, s: int, server: IntArray, request: FloatArray) -> None:
    """Prompt tokens leave the count at the end of prefill."""
    head = server[s, PREFILL_HEAD]
    while head != NONE and request[head, FIRST_TOKEN_S] <= now_s:
        server[s, TOKENS] -= int(request[head, PROMPT_TOKENS])
        head = int(request[head, NEXT])
    server[s, PREFILL_HEAD] = head


@part
def _note_outcome(now_s: float, error: float, c: int, cell_time: FloatArray) -> None:
    """Exponential mean of errors: e += (1 - exp(-dt / 5 s)) (error - e)."""
    rate = cell_time[c, ERROR_RATE]
    if rate != error:
        elapsed_s = now_s - cell_time[c, ERROR_TIME_S]
        cell_time[c, ERROR_RATE] = rate + (1.0 - math.exp(-elapsed_s / ERROR_MEMORY_S)) * (
            error - rate
        )
    cell_time[c, ERROR_TIME_S] = now_s


@part
def _answer(c: int, slot: int, arc: IntArray, request: FloatArray) -> None:
    """Puts a response on the way back; on an arc responses keep their order."""
    i = int(request[slot, KEY]) >> KEY_SHIFT
    request[slot, NEXT] = NONE
    tail = arc[i, c, ANSWER_TAIL]
    if tail == NONE:
        arc[i, c, ANSWER_HEAD] = slot
    else:
        request[tail, NEXT] = slot
    arc[i, c, ANSWER_TAIL] = slot


@part
def _complete(
    until_s: float,
    c: int,
    arc: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    server: IntArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
) -> None:
    """Completions up to and including `until_s`."""
    size = cell[c, DONE_SIZE]
    while size > 0 and done_time[0] <= until_s:
        now_s = done_time[0]
        slot = pop(done_time, done_id, size)
        size -= 1
        s = int(request[slot, SERVER])
        _settle_prefills(now_s, s, server, request)
        server[s, TOKENS] -= int(request[slot, OUTPUT_TOKENS])
        server[s, UNFINISHED] -= 1
        _note_outcome(now_s, 0.0, c, cell_time)
        _answer(c, slot, arc, request)
        cell[c, RIF] -= 1
    cell[c, DONE_SIZE] = size


@part
def _choose_server(now_s: float, u: float, live: int, server: IntArray, request: FloatArray) -> int:
    """Power of two choices on unfinished tokens; a tie goes to the first drawn."""
    scaled = u * live
    first = int(scaled)
    if live == 1:
        return first
    second = int((scaled - first) * (live - 1))
    if second >= first:
        second += 1
    _settle_prefills(now_s, first, server, request)
    _settle_prefills(now_s, second, server, request)
    return second if server[second, TOKENS] < server[first, TOKENS] else first


@part
def _place(
    now_s: float,
    c: int,
    slot: int,
    slots: int,
    queue_limit: int,
    service: FloatArray,
    row: IntArray,
    arc: IntArray,
    received: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    server: IntArray,
    server_free: FloatArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
) -> None:
    """Gives a request that reached the leaf to a server, or fails it if that server is full."""
    received[int(request[slot, KEY]) >> KEY_SHIFT] += 1
    s = _choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)
    if server[s, UNFINISHED] >= queue_limit:
        row[REJECTED] += 1
        cell[c, CELL_REJECTED] += 1
        request[slot, SERVER] = NONE
        request[slot, DONE_S] = now_s
        request[slot, FIRST_TOKEN_S] = now_s
        _note_outcome(now_s, 1.0, c, cell_time)
        _answer(c, slot, arc, request)
        return
    prompt = request[slot, PROMPT_TOKENS]
    output = request[slot, OUTPUT_TOKENS]
    first_token_s = max(now_s, server_free[s, 0]) + prompt * service[c, PREFILL_S_PER_TOKEN]
    server_free[s, 0] = first_token_s
    earliest = 1
    free_s = server_free[s, 1]
    for k in range(2, 1 + slots):
        sooner = server_free[s, k] < free_s
        earliest = k if sooner else earliest
        free_s = server_free[s, k] if sooner else free_s
    done_s = max(first_token_s, free_s) + output * service[c, DECODE_S_PER_TOKEN]
    server_free[s, earliest] = done_s
    request[slot, FIRST_TOKEN_S] = first_token_s
    request[slot, DONE_S] = done_s
    request[slot, SERVER] = s
    request[slot, NEXT] = NONE
    if server[s, PREFILL_HEAD] == NONE:
        server[s, PREFILL_HEAD] = slot
    else:
        request[server[s, PREFILL_TAIL], NEXT] = slot
    server[s, PREFILL_TAIL] = slot
    server[s, UNFINISHED] += 1
    server[s, TOKENS] += int(prompt + output)
    push(done_time, done_id, cell[c, DONE_SIZE], done_s, slot)
    cell[c, DONE_SIZE] += 1
    cell[c, RIF] += 1


@part
def _emit(
    c: int,
    num_roots: int,
    received: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    probe: IntArray,
    probe_error_rate: FloatArray,
) -> None:
    """Writes the cell's report into the ring of its latest ones (a power of two: no division)."""
    k = cell[c, NEXT_PROBE] & (len(probe_error_rate) - 1)
    probe[k, PROBE_RIF] = cell[c, RIF]
    probe[k, PROBE_SERVERS] = cell[c, LIVE]
    probe_error_rate[k] = cell_time[c, ERROR_RATE]
    for i in range(num_roots):
        probe[k, PROBE_RECEIVED + i] = received[i]
    cell[c, NEXT_PROBE] += 1


@part
def run_cell(
    c: int,
    end_s: float,
    num_roots: int,
    slots: int,
    queue_limit: int,
    probe_interval_s: float,
    service: FloatArray,
    change_s: FloatArray,
    change_live: IntArray,
    row: IntArray,
    arc: IntArray,
    received: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    server: IntArray,
    server_free: FloatArray,
    wire_time: FloatArray,
    wire_id: IdArray,
    done_time: FloatArray,
    done_id: IdArray,
    probe: IntArray,
    probe_error_rate: FloatArray,
    request: FloatArray,
) -> None:
    """Runs cell c to `end_s`; arrays are one row's, `received` and from `server` on the cell's."""
    while True:
        arrival_s = wire_time[0] if cell[c, WIRE_SIZE] > 0 else math.inf
        probe_s = cell[c, NEXT_PROBE] * probe_interval_s
        next_change_s = change_s[cell[c, NEXT_CHANGE]]
        if next_change_s <= min(arrival_s, probe_s, end_s):
            cell[c, LIVE] = change_live[cell[c, NEXT_CHANGE]]
            cell[c, NEXT_CHANGE] += 1
        elif arrival_s <= min(probe_s, end_s):
            _complete(arrival_s, c, arc, cell, cell_time, server, done_time, done_id, request)
            slot = pop_wire(wire_time, wire_id, cell[c, WIRE_SIZE], request)
            cell[c, WIRE_SIZE] -= 1
            _place(
                arrival_s,
                c,
                slot,
                slots,
                queue_limit,
                service,
                row,
                arc,
                received,
                cell,
                cell_time,
                server,
                server_free,
                done_time,
                done_id,
                request,
            )
        elif probe_s <= end_s:
            _complete(probe_s, c, arc, cell, cell_time, server, done_time, done_id, request)
            _emit(c, num_roots, received, cell, cell_time, probe, probe_error_rate)
        else:
            break
    _complete(end_s, c, arc, cell, cell_time, server, done_time, done_id, request)
