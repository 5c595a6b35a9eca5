"""Continuous batching servers: all running requests move together, iteration by iteration.

With B requests running, W tokens in the server's KV cache and Q prompt tokens to prefill now, an
iteration that starts at t ends at

    t + (base + per_sequence B + per_context_token W + prefill_per_token Q) / speed,

all taken at t. At its end every decoding request has made 1 token more, or 1 + K where a draft
model proposes g tokens of which each is accepted with probability a until one is not (speculative
decoding; Leviathan, Kalman and Matias 2023): P(K >= k) = a^k for k <= g, so the mean of 1 + K is
(1 - a^(g+1)) / (1 - a). A server has at most one iteration under way, so a cell's heap of
completions holds servers by the ends of their iterations.

Rules, where honest implementations could differ:

- Between two iterations, in this order: requests end, clients give up, waiting ones are admitted.
- Admission is first come, first served, while fewer than `max_batch` run, some of the iteration's
  budget of prompt tokens is left, and the request's prompt and output tokens fit into the KV cache
  beside those of the running ones. Who does not fit blocks those behind. The output tokens are
  oracle knowledge, as in the leaf's count of unfinished tokens.
- The budget goes to prompts in order of admission (chunked prefill); so at most one prompt is cut.
- The first token comes at the end of the iteration that ends the prefill, others with the
  iterations after it. A request ends with its last token, or with its prefill if it has none.
- An idle server starts at the instant at which a request reaches it; a busy one looks at what has
  come at the end of its iteration, but not at what comes at that very instant (completions go
  before arrivals).
- A client gives up if its request still waits at the first end of an iteration later than
  leaf time + `max_wait_s`: an error then and there, not before.
- A request longer than the KV cache, like one that finds `queue_limit` unfinished, is an error at
  once.
- The tokens of a cached prefix (`hit_tokens`) are in use from admission on and need no prefill.

A token leaves the server's unfinished ones when it is prefilled or made. In all parts `own` holds
the cell's batching servers (`of_cell`) and `seed` is the row's. Without `extras` (see `alone`) no
mechanism learns of what happens.
"""

from __future__ import annotations

from dlb_gym.engine.batches import (
    ACCEPTANCE,
    BASE_S,
    BUSY,
    CONTEXT,
    DECODING,
    DRAFT_TOKENS,
    GAVE_UP,
    KV_TOKENS,
    LEAF_S,
    MAX_BATCH,
    MAX_WAIT_S,
    PER_CONTEXT_TOKEN_S,
    PER_SEQUENCE_S,
    PREFILL_BUDGET,
    PREFILL_S,
    PROMPT_BACKLOG,
    PROMPT_LEFT,
    RESERVED,
    RUNNING,
    WAIT_HEAD,
    WAIT_TAIL,
    Batches,
)
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import FULL, Extras
from dlb_gym.engine.extras import GAVE_UP as PATIENCE
from dlb_gym.engine.faults import fail_as
from dlb_gym.engine.hashing import DRAFTS, uniform
from dlb_gym.engine.heap import pop, push
from dlb_gym.engine.layout import (
    DONE_S,
    DONE_SIZE,
    FIRST_TOKEN_S,
    KEY,
    NEXT,
    NONE,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    RIF,
    SERVER,
    TOKENS,
    UNFINISHED,
    FloatArray,
    IdArray,
    IntArray,
    State,
)
from dlb_gym.engine.leaf import answer, note_outcome
from dlb_gym.engine.leaves import keep_seen
from dlb_gym.engine.placing import note_served


@part
def _accepted(u: float, acceptance: float, draft_tokens: int) -> int:
    """K with P(K >= k) = acceptance^k up to the number of drafts, from a uniform number."""
    accepted = 0
    likelihood = acceptance
    while accepted < draft_tokens and u < likelihood:
        accepted += 1
        likelihood *= acceptance
    return accepted


@part
def _finish(
    now_s: float,
    r: int,
    c: int,
    s: int,
    slot: int,
    queue_limit: int,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """The last token is made: the answer leaves and the KV cache is freed."""
    request = state.request[r]
    length = int(request[slot, PROMPT_TOKENS] + request[slot, OUTPUT_TOKENS])
    own.server[s, RESERVED] -= length
    own.server[s, CONTEXT] -= length
    state.server[r, c, s, UNFINISHED] -= 1
    state.cell[r, c, RIF] -= 1
    if extras is not None:
        note_served(now_s, r, c, slot, queue_limit, state, extras)
    request[slot, DONE_S] = now_s
    note_outcome(now_s, 0.0, c, state.cell_time[r])
    answer(c, slot, state.arc[r], request)


@part
def _decode(
    now_s: float,
    r: int,
    c: int,
    s: int,
    seed: int,
    queue_limit: int,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """The tokens that decoding requests make in an iteration; who is done leaves the batch."""
    request = state.request[r]
    drafts = own.limits[DRAFT_TOKENS]
    produced = 0
    kept = 0
    for b in range(own.server[s, DECODING]):
        slot = int(own.running[s, b])
        lacking = int(own.left[s, b])
        tokens = 1
        if drafts > 0:  # the tokens lacking number the draws: they differ in every iteration
            u = uniform(seed + DRAFTS, int(request[slot, KEY]), lacking)
            tokens = min(lacking, 1 + _accepted(u, own.timing[ACCEPTANCE], drafts))
        produced += tokens
        if tokens == lacking:
            _finish(now_s, r, c, s, slot, queue_limit, own, state, extras)
        else:
            own.running[s, kept] = slot
            own.left[s, kept] = lacking - tokens
            kept += 1
    own.server[s, DECODING] = kept
    own.server[s, CONTEXT] += produced
    state.server[r, c, s, TOKENS] -= produced


@part
def _prefill(
    now_s: float,
    r: int,
    c: int,
    s: int,
    decoded: int,
    queue_limit: int,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """The iteration's prompt tokens and the first tokens of requests; `decoded` stood before them.

    Those that go on close ranks behind the DECODING that are left.
    """
    request = state.request[r]
    budget = own.limits[PREFILL_BUDGET]
    produced = 0
    first = own.server[s, DECODING]
    kept = first
    for b in range(decoded, own.server[s, RUNNING]):
        slot = int(own.running[s, b])
        lacking = int(own.left[s, b])
        prompt = int(request[slot, PROMPT_LEFT])
        chunk = min(prompt, budget)
        budget -= chunk
        if chunk < prompt:
            request[slot, PROMPT_LEFT] = prompt - chunk
        else:
            request[slot, FIRST_TOKEN_S] = now_s
            if lacking <= 1:
                produced += lacking
                _finish(now_s, r, c, s, slot, queue_limit, own, state, extras)
                continue
            produced += 1
            lacking -= 1
            first += 1
        own.running[s, kept] = slot
        own.left[s, kept] = lacking
        kept += 1
    prefilled = own.limits[PREFILL_BUDGET] - budget
    own.server[s, RUNNING] = kept
    own.server[s, DECODING] = first
    own.server[s, CONTEXT] += prefilled + produced
    own.server[s, PROMPT_BACKLOG] -= prefilled
    state.server[r, c, s, TOKENS] -= prefilled + produced


@part
def _let_give_up(
    now_s: float,
    r: int,
    c: int,
    s: int,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """Requests that waited too long leave; the oldest stands at the head."""
    cell, server, request = state.cell[r], state.server[r, c], state.request[r]
    slot = own.server[s, WAIT_HEAD]
    while slot != NONE and now_s > request[slot, LEAF_S] + own.timing[MAX_WAIT_S]:
        following = int(request[slot, NEXT])
        prompt = int(request[slot, PROMPT_LEFT])
        own.server[s, PROMPT_BACKLOG] -= prompt
        own.server[s, GAVE_UP] += 1
        server[s, TOKENS] -= prompt + int(request[slot, OUTPUT_TOKENS])
        server[s, UNFINISHED] -= 1
        cell[c, RIF] -= 1
        fail_as(now_s, r, c, slot, PATIENCE, True, state, extras)
        slot = following
    own.server[s, WAIT_HEAD] = slot


@part
def _admit(s: int, own: Batches, request: FloatArray) -> int:
    """Lets waiting requests in; returns the prompt tokens of the next iteration."""
    running = own.server[s, RUNNING]
    budget = own.limits[PREFILL_BUDGET]
    if running > own.server[s, DECODING]:
        budget -= min(budget, int(request[own.running[s, running - 1], PROMPT_LEFT]))
    slot = own.server[s, WAIT_HEAD]
    while slot != NONE and running < own.limits[MAX_BATCH] and budget > 0:
        prompt = int(request[slot, PROMPT_TOKENS])
        output = int(request[slot, OUTPUT_TOKENS])
        if own.server[s, RESERVED] + prompt + output > own.limits[KV_TOKENS]:
            break
        prompt_left = int(request[slot, PROMPT_LEFT])
        own.server[s, RESERVED] += prompt + output
        own.server[s, CONTEXT] += prompt - prompt_left
        budget -= min(budget, prompt_left)
        own.running[s, running] = slot
        own.left[s, running] = output
        running += 1
        slot = int(request[slot, NEXT])
    own.server[s, WAIT_HEAD] = slot
    own.server[s, RUNNING] = running
    return int(own.limits[PREFILL_BUDGET] - budget)


@part
def _begin(
    now_s: float,
    c: int,
    s: int,
    speed: float,
    own: Batches,
    cell: IntArray,
    done_time: FloatArray,
    done_id: IdArray,
    request: FloatArray,
) -> None:
    """Admits and starts an iteration; with nothing to run the server is idle."""
    prefill_tokens = _admit(s, own, request)
    running = own.server[s, RUNNING]
    own.server[s, BUSY] = 0
    if running == 0:
        return
    duration_s = (
        own.timing[BASE_S]
        + own.timing[PER_SEQUENCE_S] * running
        + own.timing[PER_CONTEXT_TOKEN_S] * own.server[s, CONTEXT]
        + own.timing[PREFILL_S] * prefill_tokens
    ) / speed
    push(done_time, done_id, cell[c, DONE_SIZE], now_s + duration_s, s)
    cell[c, DONE_SIZE] += 1
    own.server[s, BUSY] = 1


@part
def complete_batching(
    until_s: float,
    r: int,
    c: int,
    queue_limit: int,
    seed: int,
    speed: float,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """Iterations that end by `until_s`, that instant included; those after them start at `speed`.

    The heap of `done_time` and `done_id` holds the ends of iterations and their servers.
    """
    cell, done_time, done_id = state.cell[r], state.done_time[r, c], state.done_id[r, c]
    while cell[c, DONE_SIZE] > 0 and done_time[0] <= until_s:
        now_s = float(done_time[0])
        s = pop(done_time, done_id, cell[c, DONE_SIZE])
        cell[c, DONE_SIZE] -= 1
        if extras is not None:
            keep_seen(r, c, s, state, extras)
        decoded = own.server[s, DECODING]
        _decode(now_s, r, c, s, seed, queue_limit, own, state, extras)
        _prefill(now_s, r, c, s, decoded, queue_limit, own, state, extras)
        _let_give_up(now_s, r, c, s, own, state, extras)
        _begin(now_s, c, s, speed, own, cell, done_time, done_id, state.request[r])


@part
def place_batching(
    now_s: float,
    r: int,
    c: int,
    s: int,
    slot: int,
    hit_tokens: int,
    queue_limit: int,
    speed: float,
    own: Batches,
    state: State,
    extras: Extras | None,
) -> None:
    """Gives a request to the server chosen for it, or fails it if that server is full or too small.

    `hit_tokens` of its prompt, at most all of them, are in the server's prefix cache.
    """
    cell, server, request = state.cell[r], state.server[r, c], state.request[r]
    prompt = int(request[slot, PROMPT_TOKENS])
    output = int(request[slot, OUTPUT_TOKENS])
    if server[s, UNFINISHED] >= queue_limit or prompt + output > own.limits[KV_TOKENS]:
        fail_as(now_s, r, c, slot, FULL, False, state, extras)
        return
    request[slot, SERVER] = s
    request[slot, LEAF_S] = now_s
    request[slot, PROMPT_LEFT] = prompt - hit_tokens
    request[slot, NEXT] = NONE
    if own.server[s, WAIT_HEAD] == NONE:
        own.server[s, WAIT_HEAD] = slot
    else:
        request[own.server[s, WAIT_TAIL], NEXT] = slot
    own.server[s, WAIT_TAIL] = slot
    own.server[s, PROMPT_BACKLOG] += prompt - hit_tokens
    server[s, TOKENS] += prompt - hit_tokens + output
    server[s, UNFINISHED] += 1
    cell[c, RIF] += 1
    if own.server[s, BUSY] == 0:
        _begin(now_s, c, s, speed, own, cell, state.done_time[r, c], state.done_id[r, c], request)
