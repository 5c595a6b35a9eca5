"""How a leaf chooses a server, where the scenario says otherwise than DLB does.

k servers are up, numbered from 0; u is the request's uniform for its leaf. Of server i a leaf
replica knows w_i unfinished tokens and q_i unfinished requests as of its last look, plus what it
placed since (`leaves`); without looks, as they are. h_i is what the server keeps of the request's
prefix, in tokens: none but one server of a cell keeps any of a session. The request has p prompt
tokens, those of the prefix included.

- power of d: d servers drawn without repetition (all, if d >= k), number 0 by u, number 1 by its
  fraction, number n > 1 by a hash of the request; the least w_i, of equals the first drawn.
  d = 2 is DLB's own (paper 3.1: queued tokens), in `placing` and `leaf`.
- random: server floor(u k).
- round_robin: request number n of a leaf replica goes to server n mod k.
- least_requests: the least q_i, of e equals number floor(u e). AIBrix's least-request. It looks at
  all servers, as do the rules below but for `vllm` with sessions and `dualmap`: O(k) a request.
- ray: power of two on q_i. Ray Serve's PowerOfTwoChoicesRequestRouter; its backing off where both
  servers are full is an error here.
- prequal: see `prequal`.
- vllm: a session's requests by its hash alone, others to the server to which this replica sent the
  fewest requests within the last `WINDOW_S`, of equals the first. vLLM production-stack's session
  router; its hash ring is a jump hash here.
- vllm_load_aware: the largest h_i / p - beta (q_i - mean q) / max(1, mean q), of equals the first.
  vLLM production-stack's loadaware router.
- aibrix: AIBrix's prefix-cache router. The keeper of the prefix if q_i <= mean q + f sd q (over
  all servers) and, where loads are uneven, max q > g (mean q + 1) and max q - min q >= a, its q_i
  is the least; else as least_requests.
- sglang: cache_aware of SGLang's model gateway. The keeper if h_i / p > t, unless loads are uneven:
  max q - min q > a and max q > g min q; else the least q_i, of equals the first. (Its documentation
  sends misses to the worker with the smallest tree, its code, as here, to the least loaded.)
- preble: E2 of Preble (Srivatsa et al., ICLR 2025, section 3.2). Exploits where more is cached than
  is not, h_i > p - h_i: the keeper. Else explores: the least L_i + p - h_i, of equals the first,
  L_i the tokens (prompts less what was cached, and outputs) that this replica gave server i within
  the last `WINDOW_S`. Preble adds times of prefill and decode, which are tokens here, and what
  evictions cost, which no leaf knows here; it also moves and copies prefixes, which is left out.
- dualmap: DualMap (Yuan et al., ICLR 2026, section 3). Two hashes of the session name two servers
  (if they agree, the second is the next one). The keeper, if it is one of them and its time to
  first token, estimated as (w_i + p - h_i) times the prefill of a token, is within the target; else
  the one with the smaller estimate, of equals the first. w_i counts outputs as well. Requests
  without a session: power of two. Longer prefixes for hot ones and moving waiting requests are left
  out.

Sources of the rules from software: ray `python/ray/serve/_private/request_router`, production-stack
`src/vllm_router/routers/routing_logic.py` and pull request 1035, aibrix
`pkg/plugins/gateway/algorithms`, sglang `sgl-model-gateway/src/policies`, preble
`multi_node/global_scheduler_with_time.py`, DualMap `dualmap/scheduler`. Of Preble and DualMap the
code and abstracts were read, and summaries of the papers.

A sliding window moves by sixteenths: it holds the sixteenth of now and the 15 before.
"""

from __future__ import annotations

import math

from dlb_gym.engine.affinity import hashed_server
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    AIBRIX,
    DRAWING,
    DUALMAP,
    LEAF,
    LEAF_RULE,
    LEAST_REQUESTS,
    PREBLE,
    PREQUAL,
    RANDOM,
    RAY,
    REHASHING,
    ROUND_ROBIN,
    SEED,
    SESSION_HASH,
    SGLANG,
    VLLM,
    VLLM_LOAD_AWARE,
    Extras,
)
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import (
    KEY,
    NONE,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    U_LEAF,
    FloatArray,
    State,
)
from dlb_gym.engine.leaf_memory import (
    CHOICES,
    DEVIATIONS,
    FACTOR,
    GAP,
    LOAD_WEIGHT,
    MATCH_SHARE,
    SLO_S,
    TURN,
    WINDOW_BUCKETS,
    WINDOW_S,
    add_to_window,
    windowed,
)
from dlb_gym.engine.leaves import seen_requests, seen_tokens
from dlb_gym.engine.prequal import choose_probed, draw, probe


@part
def first_least(load: FloatArray, servers: int) -> int:
    """The server with the least load, of equals the first."""
    chosen = 0
    for s in range(1, servers):
        if load[s] < load[chosen]:
            chosen = s
    return chosen


@part
def any_least(load: FloatArray, servers: int, u: float) -> int:
    """The server with the least load, of equals by the uniform."""
    least = load[first_least(load, servers)]
    ties = 0
    for s in range(servers):
        if load[s] == least:
            ties += 1
    turn = int(u * ties)
    chosen = 0
    for s in range(servers):
        if load[s] == least:
            if turn == 0:
                chosen = s
            turn -= 1
    return chosen


@part
def keeps_aibrix(load: FloatArray, servers: int, keeper: int, setting: FloatArray) -> bool:
    """Whether AIBrix sends a request to the keeper of its prefix."""
    total, squares = 0.0, 0.0
    lowest, highest = load[0], load[0]
    for s in range(servers):
        total += load[s]
        squares += load[s] * load[s]
        lowest = min(lowest, load[s])
        highest = max(highest, load[s])
    # Everything times the number of servers: whole numbers, but for the root.
    uneven = highest * servers > setting[FACTOR] * (total + servers)
    if uneven and highest - lowest >= setting[GAP] and load[keeper] > lowest:
        return False
    spread = math.sqrt(servers * squares - total * total)
    return bool(servers * load[keeper] - total <= setting[DEVIATIONS] * spread)


@part
def keeps_sglang(
    load: FloatArray, servers: int, cached: int, prompt: float, setting: FloatArray
) -> bool:
    """Whether SGLang sends a request to the keeper of its prefix."""
    lowest, highest = load[0], load[0]
    for s in range(servers):
        lowest = min(lowest, load[s])
        highest = max(highest, load[s])
    if highest - lowest > setting[GAP] and highest > setting[FACTOR] * lowest:
        return False
    return bool(cached / prompt > setting[MATCH_SHARE])


@part
def weigh(
    load: FloatArray, servers: int, keeper: int, cached: int, prompt: float, weight: float
) -> None:
    """Turns requests into what vllm_load_aware minimises."""
    total = 0.0
    for s in range(servers):
        total += load[s]
    mean = total / servers
    for s in range(servers):
        load[s] = weight * ((load[s] - mean) / max(1.0, mean))
    if keeper != NONE:
        load[keeper] -= cached / prompt


@part
def _power(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    leaf: int,
    servers: int,
    choices: int,
    requests: bool,
    state: State,
    extras: Extras,
) -> int:
    """The best of some servers, by requests or by tokens."""
    u = state.request[r, slot, U_LEAF]
    key = int(state.request[r, slot, KEY])
    picks = extras.rules.picks[r]
    chosen = 0
    least = 0
    for k in range(min(choices, servers)):
        s = draw(picks, k, u, servers)
        if requests:
            load = seen_requests(r, c, leaf, s, state, extras)
        else:
            load = seen_tokens(now_s, r, c, leaf, s, state, extras)
        if k == 0 or load < least:
            chosen = s
            least = load
        if k == 0:
            u = u * servers - int(u * servers)
        else:
            u = uniform(extras.flag[r, SEED] + DRAWING, key, k + 1)
    return chosen


@part
def _dualmap(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    leaf: int,
    servers: int,
    keeper: int,
    cached: int,
    state: State,
    extras: Extras,
) -> int:
    session_hash = int(extras.request[r, slot, SESSION_HASH])
    first = hashed_server(session_hash, servers)
    second = hashed_server(int(uniform(REHASHING, session_hash, 0) * 4294967296.0), servers)
    if second == first:
        second = (first + 1) % servers
    chosen, least = first, math.inf
    for turn in range(2):
        s = first if turn == 0 else second
        tokens = seen_tokens(now_s, r, c, leaf, s, state, extras)
        tokens += int(state.request[r, slot, PROMPT_TOKENS])
        if s == keeper:
            tokens -= cached
            if tokens * extras.prefill_s[r, c] <= extras.rules.setting[r, SLO_S]:
                return s
        if tokens < least:
            chosen, least = s, tokens
    return chosen


@part
def _compare(
    now_s: float,
    r: int,
    c: int,
    leaf: int,
    servers: int,
    windows: bool,
    state: State,
    extras: Extras,
) -> None:
    """Writes down what a replica knows of all servers: a window's sums, or requests."""
    own = extras.rules
    width_s = own.setting[r, WINDOW_S] / WINDOW_BUCKETS
    for s in range(servers):
        if windows:
            own.load[r, s] = windowed(now_s, width_s, own.window[r, c, leaf, s])
        else:
            own.load[r, s] = seen_requests(r, c, leaf, s, state, extras)


@part
def _without_comparing(
    rule: int,
    r: int,
    slot: int,
    servers: int,
    keeper: int,
    cached: int,
    state: State,
    extras: Extras,
) -> int:
    """The server that a session alone decides for, or NONE."""
    session_hash = int(extras.request[r, slot, SESSION_HASH])
    if rule == VLLM and session_hash >= 0:
        return hashed_server(session_hash, servers)
    if rule == PREBLE and cached > state.request[r, slot, PROMPT_TOKENS] - cached:
        return keeper
    return NONE


@part
def _comparing(
    now_s: float,
    rule: int,
    r: int,
    c: int,
    slot: int,
    servers: int,
    keeper: int,
    cached: int,
    state: State,
    extras: Extras,
) -> int:
    """The server of the rules that look at all of them."""
    setting, load = extras.rules.setting[r], extras.rules.load[r]
    prompt = state.request[r, slot, PROMPT_TOKENS]
    leaf = int(extras.request[r, slot, LEAF])
    _compare(now_s, r, c, leaf, servers, rule in (VLLM, PREBLE), state, extras)
    if keeper != NONE:
        if rule == AIBRIX and keeps_aibrix(load, servers, keeper, setting):
            return keeper
        if rule == SGLANG and keeps_sglang(load, servers, cached, prompt, setting):
            return keeper
        if rule == PREBLE:
            load[keeper] -= cached
    if rule == VLLM_LOAD_AWARE:
        weigh(load, servers, keeper, cached, prompt, setting[LOAD_WEIGHT])
    if rule in (LEAST_REQUESTS, AIBRIX):
        return any_least(load, servers, state.request[r, slot, U_LEAF])
    return first_least(load, servers)


@part
def choose_by_rule(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    servers: int,
    keeper: int,
    cached: int,
    state: State,
    extras: Extras,
) -> int:
    """The server of a request by the row's rule, which is not power of two on tokens.

    `keeper` is the server that keeps `cached` > 0 tokens of its prefix, or NONE and 0.
    """
    rule = extras.flag[r, LEAF_RULE]
    if rule in (LEAST_REQUESTS, VLLM, VLLM_LOAD_AWARE, AIBRIX, SGLANG, PREBLE):
        chosen = _without_comparing(rule, r, slot, servers, keeper, cached, state, extras)
        if chosen == NONE:
            chosen = _comparing(now_s, rule, r, c, slot, servers, keeper, cached, state, extras)
        return chosen
    leaf = int(extras.request[r, slot, LEAF])
    u = state.request[r, slot, U_LEAF]
    if rule == RANDOM:
        return int(u * servers)
    if rule == ROUND_ROBIN:
        return int(extras.rules.turn[r, c, leaf, TURN] % servers)
    if rule == PREQUAL:
        return choose_probed(now_s, r, c, leaf, u, servers, extras)
    if rule == DUALMAP and extras.request[r, slot, SESSION_HASH] >= 0.0:
        return _dualmap(now_s, r, c, slot, leaf, servers, keeper, cached, state, extras)
    choices = int(extras.rules.setting[r, CHOICES])
    return _power(now_s, r, c, slot, leaf, servers, choices, rule == RAY, state, extras)


@part
def note_choice(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    s: int,
    hit: int,
    servers: int,
    state: State,
    extras: Extras,
) -> None:
    """What a replica remembers of a request that it sends to server s, `hit` tokens cached there.

    Whether the server takes it, a replica learns later.
    """
    own, rule = extras.rules, extras.flag[r, LEAF_RULE]
    leaf = int(extras.request[r, slot, LEAF])
    if rule == PREQUAL:
        probe(now_s, r, c, slot, leaf, s, servers, state, extras)
    if rule in (VLLM, PREBLE):
        amount = 1
        if rule == PREBLE:
            request = state.request[r, slot]
            amount = int(request[PROMPT_TOKENS] + request[OUTPUT_TOKENS]) - hit
        window = own.window[r, c, leaf, s]
        windowed(now_s, own.setting[r, WINDOW_S] / WINDOW_BUCKETS, window)
        add_to_window(amount, window)
    own.turn[r, c, leaf, TURN] += 1


@part
def forget(r: int, c: int, leaf: int, extras: Extras) -> None:
    """A leaf replica crashed: another takes its place, which remembers nothing."""
    own = extras.rules
    own.turn[r, c, leaf, :] = 0
    own.window[r, c, leaf, :, :] = 0
