"""What a leaf does whatever its servers are: it chooses one, answers, fails, remembers errors."""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    CELL_REJECTED,
    DONE_S,
    ERROR_RATE,
    ERROR_TIME_S,
    FIRST_TOKEN_S,
    KEY,
    KEY_SHIFT,
    NEXT,
    NONE,
    PREFILL_HEAD,
    PROMPT_TOKENS,
    REJECTED,
    SERVER,
    TOKENS,
    FloatArray,
    IntArray,
)

# Memory of a leaf's error rate, s (theory.md section 6; the paper gives none).
ERROR_MEMORY_S = 5.0


@part
def settle_prefills(now_s: float, s: int, server: IntArray, request: FloatArray) -> None:
    """Prompt tokens leave the count at the end of prefill (a batching server queues none here)."""
    head = server[s, PREFILL_HEAD]
    while head != NONE and request[head, FIRST_TOKEN_S] <= now_s:
        server[s, TOKENS] -= int(request[head, PROMPT_TOKENS])
        head = int(request[head, NEXT])
    server[s, PREFILL_HEAD] = head


@part
def choose_server(now_s: float, u: float, live: int, server: IntArray, request: FloatArray) -> int:
    """Power of two choices on unfinished tokens; a tie goes to the first drawn."""
    scaled = u * live
    first = int(scaled)
    if live == 1:
        return first
    second = int((scaled - first) * (live - 1))
    if second >= first:
        second += 1
    settle_prefills(now_s, first, server, request)
    settle_prefills(now_s, second, server, request)
    return second if server[second, TOKENS] < server[first, TOKENS] else first


@part
def note_outcome(now_s: float, error: float, c: int, cell_time: FloatArray) -> None:
    """Exponential mean of errors: e += (1 - exp(-dt / 5 s)) (error - e)."""
    rate = cell_time[c, ERROR_RATE]
    if rate != error:
        elapsed_s = now_s - cell_time[c, ERROR_TIME_S]
        cell_time[c, ERROR_RATE] = rate + (1.0 - math.exp(-elapsed_s / ERROR_MEMORY_S)) * (
            error - rate
        )
    cell_time[c, ERROR_TIME_S] = now_s


@part
def answer(c: int, slot: int, arc: IntArray, request: FloatArray) -> None:
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
def fail(
    now_s: float,
    c: int,
    slot: int,
    row: IntArray,
    arc: IntArray,
    cell: IntArray,
    cell_time: FloatArray,
    request: FloatArray,
) -> None:
    """An error on its way back: of a request that no server has, or has any longer."""
    row[REJECTED] += 1
    cell[c, CELL_REJECTED] += 1
    request[slot, SERVER] = NONE
    request[slot, DONE_S] = now_s
    request[slot, FIRST_TOKEN_S] = now_s
    note_outcome(now_s, 1.0, c, cell_time)
    answer(c, slot, arc, request)
