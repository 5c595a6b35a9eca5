"""A request at a leaf with mechanisms: bounced, failed at once, or given to a server.

Affinity in the cell (paper 3.5): the server that keeps the session's prefix is taken while its
unfinished tokens less those that the prefix saves do not exceed the other choice's, which is the
leaf rule's. Rules that look at sessions themselves choose alone.
"""

from __future__ import annotations

from dlb_gym.engine.affinity import (
    ENTRY_SERVER,
    ENTRY_TOKENS,
    find,
    hashed_server,
    store,
    touch,
)
from dlb_gym.engine.compile import part
from dlb_gym.engine.estimator import note_sample
from dlb_gym.engine.extras import (
    AFFINITY,
    BATCHING,
    BLACK_HOLE,
    CACHE_TOKENS,
    CELL_ERROR_FRACTION,
    CONDITIONAL,
    ELIGIBLE,
    ENTRY,
    ESTIMATING,
    FAILURE,
    HASHED,
    HIT_TOKENS,
    HITS,
    KIND,
    LEAF,
    LEAF_RULE,
    LEAF_S,
    MEMORY_S,
    NO_CACHE,
    OTHERS,
    OUTPUT_BACKLOG,
    POWER_OF_TWO,
    PREFIX_TOKENS,
    PREQUAL,
    PROMPTED_TOKENS,
    REFERENCE_S,
    RIF_THERE,
    SAVED_TOKENS,
    SEED,
    SESSION,
    SESSION_HASH,
    TRIES,
    UNREACHABLE,
    UNUSED,
    VLLM,
    Extras,
    cell_cache,
)
from dlb_gym.engine.faults import is_down, leave
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import (
    ARRIVAL_S,
    CELL_REJECTED,
    DONE_S,
    FIRST_TOKEN_S,
    KEY,
    LIVE,
    MEASURE_FROM_S,
    MEASURE_TO_S,
    NONE,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    REJECTED,
    SERVER,
    U_LEAF,
    UNFINISHED,
    Params,
    State,
)
from dlb_gym.engine.leaf import answer, fail
from dlb_gym.engine.leaf_rules import choose_by_rule, note_choice
from dlb_gym.engine.leaves import change_rif, note_placing, seen_tokens
from dlb_gym.engine.prequal import note_finished


@part
def note_served(
    now_s: float, r: int, c: int, slot: int, queue_limit: int, state: State, extras: Extras
) -> None:
    """A request is done: a sample for the estimator, a context for the cache."""
    request, more = state.request[r], extras.request[r, slot]
    leave(slot, request, extras.request[r], extras.leaf[r, c], extras.tally[r, c])
    if extras.flag[r, ESTIMATING] > 0:
        note_sample(
            extras.bins[r, c],
            now_s,
            extras.cell[r, c, REFERENCE_S],
            extras.setting[r, MEMORY_S],
            queue_limit,
            more[RIF_THERE],
            now_s - more[LEAF_S],
        )
    if extras.flag[r, LEAF_RULE] == PREQUAL:
        latency_s, s = now_s - more[LEAF_S], int(request[slot, SERVER])
        own = extras.rules
        note_finished(more[OTHERS], latency_s, s, own.finished[r, c], own.finishes[r, c])
    session = int(more[SESSION])
    if extras.flag[r, AFFINITY] > NO_CACHE and session >= 0:
        context = int(request[slot, PROMPT_TOKENS] + request[slot, OUTPUT_TOKENS])
        if extras.flag[r, BATCHING] == 0:
            context += int(more[HIT_TOKENS])
        store(
            cell_cache(extras, r, c),
            session,
            int(more[ENTRY]),
            int(request[slot, SERVER]),
            context,
            extras.flag[r, CACHE_TOKENS],
        )


@part
def refuse_early(now_s: float, r: int, c: int, slot: int, state: State, extras: Extras) -> bool:
    """Whether a request ends before any server sees it."""
    request, more = state.request[r], extras.request[r, slot]
    more[LEAF_S] = now_s
    down = extras.leaf_down[r, c, int(more[LEAF])]
    if more[KIND] == UNREACHABLE or is_down(now_s, down):
        more[KIND] = UNREACHABLE
        _bounce(now_s, r, c, slot, state)
        return True
    fraction = extras.cell[r, c, CELL_ERROR_FRACTION]
    if fraction > 0.0:
        u = uniform(extras.flag[r, SEED] + FAILURE, int(request[slot, KEY]), int(more[TRIES]))
        if u < fraction:
            more[KIND] = BLACK_HOLE
            fail(
                now_s,
                c,
                slot,
                state.row[r],
                state.arc[r],
                state.cell[r],
                state.cell_time[r],
                request,
            )
            return True
    return False


@part
def _bounce(now_s: float, r: int, c: int, slot: int, state: State) -> None:
    """An error that no leaf gave, so that no leaf's error rate shows it."""
    request = state.request[r]
    state.row[r, REJECTED] += 1
    state.cell[r, c, CELL_REJECTED] += 1
    request[slot, SERVER] = NONE
    request[slot, DONE_S] = now_s
    request[slot, FIRST_TOKEN_S] = now_s
    answer(c, slot, state.arc[r], request)


@part
def _two_choices(
    now_s: float, r: int, c: int, leaf: int, u: float, live: int, state: State, extras: Extras
) -> int:
    """Power of two choices on the tokens that the leaf sees; a tie goes to the first drawn."""
    scaled = u * live
    first = int(scaled)
    if live == 1:
        return first
    second = int((scaled - first) * (live - 1))
    if second >= first:
        second += 1
    tokens = seen_tokens(now_s, r, c, leaf, first, state, extras)
    return second if seen_tokens(now_s, r, c, leaf, second, state, extras) < tokens else first


@part
def choose_server_all(
    now_s: float, r: int, c: int, slot: int, params: Params, state: State, extras: Extras
) -> int:
    """The server of a request; notes how much of its prompt is cached there."""
    more = extras.request[r, slot]
    live = state.cell[r, c, LIVE]
    leaf = int(more[LEAF])
    kind, rule = extras.flag[r, AFFINITY], extras.flag[r, LEAF_RULE]
    session = int(more[SESSION])
    more[HIT_TOKENS] = 0.0
    more[ENTRY] = NONE
    keeper = NONE
    cached = 0
    if kind != NO_CACHE and session >= 0 and more[PREFIX_TOKENS] > 0.0:
        cache = cell_cache(extras, r, c)
        entry = find(cache, session)
        more[ENTRY] = entry
        if entry != NONE and cache.entries[entry, ENTRY_SERVER] < live:
            keeper = int(cache.entries[entry, ENTRY_SERVER])
            cached = min(int(more[PREFIX_TOKENS]), int(cache.entries[entry, ENTRY_TOKENS]))
    if kind == HASHED and session >= 0:
        s = hashed_server(int(more[SESSION_HASH]), live)
    else:
        if rule == POWER_OF_TWO:
            u = state.request[r, slot, U_LEAF]
            s = _two_choices(now_s, r, c, leaf, u, live, state, extras)
        else:
            s = choose_by_rule(now_s, r, c, slot, live, keeper, cached, state, extras)
        if kind > UNUSED and rule < VLLM and keeper != NONE and keeper != s:
            there = seen_tokens(now_s, r, c, leaf, keeper, state, extras) - cached
            if kind != CONDITIONAL or there <= seen_tokens(now_s, r, c, leaf, s, state, extras):
                s = keeper
    if s == keeper:
        more[HIT_TOKENS] = cached
        touch(cell_cache(extras, r, c), int(more[ENTRY]))
    if rule != POWER_OF_TWO:
        more[OTHERS] = state.server[r, c, s, UNFINISHED]
        note_choice(now_s, r, c, slot, s, int(more[HIT_TOKENS]), live, state, extras)
    return s


@part
def note_placed(
    now_s: float,
    r: int,
    c: int,
    s: int,
    slot: int,
    prompt: float,
    params: Params,
    state: State,
    extras: Extras,
) -> None:
    """A server took a request of `prompt` tokens, cached ones included."""
    request, more = state.request[r], extras.request[r, slot]
    hit = more[HIT_TOKENS]
    leaf = int(more[LEAF])
    change_rif(leaf, 1, extras.leaf[r, c], extras.tally[r, c])
    extras.tally[r, c, OUTPUT_BACKLOG] += int(request[slot, OUTPUT_TOKENS])
    note_placing(r, c, leaf, s, int(prompt - hit + request[slot, OUTPUT_TOKENS]), extras)
    arrival_s = request[slot, ARRIVAL_S]
    if params.clock[r, MEASURE_FROM_S] < arrival_s <= params.clock[r, MEASURE_TO_S]:
        cached = extras.cached[r]
        cached[PROMPTED_TOKENS] += prompt
        if more[PREFIX_TOKENS] > 0.0:
            cached[ELIGIBLE] += 1.0
        if hit > 0.0:
            cached[HITS] += 1.0
            cached[SAVED_TOKENS] += hit
