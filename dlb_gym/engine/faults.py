"""Faults inside the kernels: cut and longer arcs, replicas that are down, servers that crash.

A slow-down maps every future instant of a cell: what was due in t is due in t x old / new speed.
A crash takes requests out of the heap of completions. Both are rare, so a pass over the cell's
requests is cheap, and times stay wall-clock times.
"""

from __future__ import annotations

import math

from dlb_gym.engine.batches import (
    CONTEXT,
    DECODING,
    PROMPT_BACKLOG,
    RESERVED,
    RUNNING,
    WAIT_HEAD,
    Batches,
)
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    CRASHED,
    DOWN_S,
    EXTRA_S,
    KIND,
    LEAF,
    ORPHANS,
    OUTPUT_BACKLOG,
    UP_S,
    WINDOW_END_S,
    WINDOW_START_S,
    Extras,
)
from dlb_gym.engine.heap import pop_done, push_done
from dlb_gym.engine.layout import (
    DONE_S,
    DONE_SIZE,
    FIRST_TOKEN_S,
    NEXT,
    NONE,
    OUTPUT_TOKENS,
    PREFILL_HEAD,
    PREFILL_TAIL,
    RIF,
    SERVER,
    TOKENS,
    UNFINISHED,
    FloatArray,
    IdArray,
    IntArray,
    State,
)
from dlb_gym.engine.leaf import fail
from dlb_gym.engine.leaves import change_rif


@part
def tau_at(now_s: float, tau_s: float, window: FloatArray) -> float:
    """One-way latency of what leaves now; `window` is the arc's, (W, 3)."""
    for w in range(len(window)):
        inside = window[w, WINDOW_START_S] <= now_s < window[w, WINDOW_END_S]
        if inside and window[w, EXTRA_S] < math.inf:
            tau_s += window[w, EXTRA_S]
    return tau_s


@part
def is_cut(from_s: float, to_s: float, window: FloatArray) -> bool:
    """Whether the arc is cut at some instant of a journey."""
    for w in range(len(window)):
        meets = window[w, WINDOW_START_S] <= to_s and from_s < window[w, WINDOW_END_S]
        if meets and window[w, EXTRA_S] == math.inf:
            return True
    return False


@part
def is_down(now_s: float, down: FloatArray) -> bool:
    """Whether a replica with this span is down."""
    return bool(down[DOWN_S] <= now_s < down[UP_S])


@part
def seems_down(
    now_s: float,
    leaf: int,
    leaves: int,
    probe_interval_s: float,
    tau_s: float,
    timeout_s: float,
    down: FloatArray,
) -> bool:
    """Whether a root holds a leaf replica for dead.

    Report m is leaf m mod L's. The root learns of the crash when the first probe that found it dead
    times out, and of the recovery with the first report since.
    """
    if down[DOWN_S] == math.inf:
        return False
    found_s = _first_turn_s(down[DOWN_S], leaf, leaves, probe_interval_s) - tau_s + timeout_s
    if now_s < found_s:
        return False
    return now_s < _first_turn_s(down[UP_S], leaf, leaves, probe_interval_s) + tau_s


@part
def _first_turn_s(from_s: float, leaf: int, leaves: int, probe_interval_s: float) -> float:
    """The first instant at or after `from_s` at which a leaf replica reports."""
    if from_s == math.inf:
        return math.inf
    m = math.ceil(from_s / probe_interval_s)
    return (m + (leaf - m) % leaves) * probe_interval_s


@part
def leave(
    slot: int, request: FloatArray, extra: FloatArray, leaf: IntArray, count: IntArray
) -> None:
    """A request is no longer in flight: its leaf's count and the cell's backlog know."""
    number = int(extra[slot, LEAF])
    if number == NONE:
        count[ORPHANS] -= 1
    else:
        change_rif(number, -1, leaf, count)
    count[OUTPUT_BACKLOG] -= int(request[slot, OUTPUT_TOKENS])


@part
def change_speed(
    now_s: float,
    c: int,
    ratio: float,
    cell: IntArray,
    server_free: FloatArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
    extra: FloatArray,
) -> None:
    """What was due in t is due in t x ratio; clients that gave up keep their instant."""
    for s in range(len(server_free)):
        for k in range(server_free.shape[1]):
            if server_free[s, k] > now_s:
                server_free[s, k] = now_s + (server_free[s, k] - now_s) * ratio
    size = cell[c, DONE_SIZE]
    for k in range(size):
        slot = int(done_id[k])
        if extra[slot, KIND] == NONE:
            request[slot, DONE_S] = now_s + (request[slot, DONE_S] - now_s) * ratio
            if request[slot, FIRST_TOKEN_S] > now_s:
                ahead_s = request[slot, FIRST_TOKEN_S] - now_s
                request[slot, FIRST_TOKEN_S] = now_s + ahead_s * ratio
    _rebuild(size, done_time, done_id, request)


@part
def _rebuild(size: int, done_time: FloatArray, done_id: IdArray, request: FloatArray) -> None:
    """The heap of the first `size` ids, by their times."""
    for k in range(size):
        slot = int(done_id[k])
        push_done(done_time, done_id, k, request[slot, DONE_S], slot, request)


@part
def crash_servers(
    now_s: float,
    c: int,
    live: int,
    row: IntArray,
    arc: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    server: IntArray,
    server_free: FloatArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
    extra: FloatArray,
    leaf: IntArray,
    count: IntArray,
) -> None:
    """Servers from `live` on stop: what they had not finished fails, in the order it was due."""
    size = cell[c, DONE_SIZE]
    for k in range(size - 1, -1, -1):  # sorts: what is due first comes last
        done_id[k] = pop_done(done_time, done_id, k + 1, request)
    for k in range(size - 1, -1, -1):
        slot = int(done_id[k])
        if request[slot, SERVER] >= live:
            done_id[k] = NONE
            extra[slot, KIND] = CRASHED
            leave(slot, request, extra, leaf, count)
            fail(now_s, c, slot, row, arc, cell, cell_time, request)
    kept = 0
    for k in range(size):
        if done_id[k] != NONE:
            done_id[kept] = done_id[k]
            kept += 1
    cell[c, RIF] -= size - kept
    cell[c, DONE_SIZE] = kept
    _rebuild(kept, done_time, done_id, request)
    for s in range(live, len(server)):
        server[s, UNFINISHED] = 0
        server[s, TOKENS] = 0
        server[s, PREFILL_HEAD] = NONE
        server[s, PREFILL_TAIL] = NONE
        for k in range(server_free.shape[1]):
            server_free[s, k] = now_s


@part
def fail_as(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    kind: int,
    in_flight: bool,
    state: State,
    extras: Extras | None,
) -> None:
    """An error of a kind; `in_flight` if a server had the request."""
    request = state.request[r]
    if extras is not None:
        extras.request[r, slot, KIND] = kind
        if in_flight:
            leave(slot, request, extras.request[r], extras.leaf[r, c], extras.tally[r, c])
    fail(now_s, c, slot, state.row[r], state.arc[r], state.cell[r], state.cell_time[r], request)


@part
def fail_batch(
    now_s: float, r: int, c: int, s: int, own: Batches, state: State, extras: Extras | None
) -> None:
    """A crash: all requests of a server fail, first those that run, then those that wait.

    The iteration under way stays in the heap and ends without anybody. A request that reaches the
    server sooner, where it is back already, waits for that end as for any other.
    """
    cell, server, request = state.cell[r], state.server[r, c], state.request[r]
    for b in range(own.server[s, RUNNING]):
        fail_as(now_s, r, c, int(own.running[s, b]), CRASHED, True, state, extras)
    slot = own.server[s, WAIT_HEAD]
    while slot != NONE:
        following = int(request[slot, NEXT])
        fail_as(now_s, r, c, slot, CRASHED, True, state, extras)
        slot = following
    cell[c, RIF] -= server[s, UNFINISHED]
    server[s, UNFINISHED] = 0
    server[s, TOKENS] = 0
    own.server[s, WAIT_HEAD] = NONE
    own.server[s, RUNNING] = 0
    own.server[s, DECODING] = 0
    own.server[s, RESERVED] = 0
    own.server[s, CONTEXT] = 0
    own.server[s, PROMPT_BACKLOG] = 0
