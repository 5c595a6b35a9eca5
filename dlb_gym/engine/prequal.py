"""Prequal's choice of a server: a pool of probes, and the hot-cold lexicographic rule.

Wydrowski, Kleinberg, Rumble and Archer, "Load is not what you should balance: Introducing Prequal",
NSDI 2024, sections 4 and 5, in its asynchronous mode. Every leaf replica is a client of its own.

A probe says a server's RIF (requests in flight) and the latency that a request at that RIF takes.
For its k-th request, k = 0, 1, ..., a leaf replica

1. drops the probes that are older than `AGE_S` or whose server is gone;
2. chooses. A probe is hot where its RIF exceeds the quantile Q of the RIFs in the last 64 answers,
   sorted number ceil(64 Q). Of cold probes the one with the least (latency, RIF), without any the
   one with the least (RIF, latency), of equals the oldest: its server takes the request, its RIF
   rises by 1, and it has one use less; without any left it leaves the pool. With fewer than 2
   probes: server floor(u k), u the request's uniform and k the number of servers;
3. removes probes number floor(k r) to floor((k + 1) r) - 1, r = `REMOVALS`: those of even number
   are the oldest, the others the worst, which is the hot one with the largest RIF or, if none is
   hot, the one with the largest latency (of equals the oldest);
4. probes floor((k + 1) p) - floor(k p) servers, p = `PROBES`, drawn without repetition. An answer
   replaces what the pool holds of its server; in a full pool it replaces the oldest. It is good for

       b = max(1, (1 + delta) / ((1 - m / n) p - r))

   requests, m the pool's size and n the servers, rounded at random (theory.md section 7; 1.316 for
   n = 100 and the defaults). Where the denominator is not positive, as with up to 24 servers and
   the defaults, answers arrive too slowly to replace what is used, and age alone limits reuse.

Answers to step 4 come at once, since between a leaf and its servers there is no distance here, but
serve from the next request on: the server chosen for this one counts it. They show servers as they
are, whatever the leaf's looks. A server tells the median latency (of an even number the smaller) of
those among its last 16 finished requests whose RIF on arrival was at most max(1, d) away, d the
smallest distance; 0 before any. The paper says "at or near the current RIF": how near, and how many
requests a server and answers a client remember, are ours. Its probes after a time without requests
are left out.
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import MESSAGES, PROBING, REUSING, SEED, Extras
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import KEY, NONE, UNFINISHED, FloatArray, IntArray, State
from dlb_gym.engine.leaf_memory import (
    AGE_S,
    ANSWERS,
    BY_NUMBER,
    BY_SIZE,
    DELTA,
    FINISHED,
    HELD_PROBES,
    POOL,
    PROBE_COLUMNS,
    PROBED,
    PROBED_LATENCY_S,
    PROBED_RIF,
    PROBED_S,
    PROBES,
    QUANTILE,
    REMOVALS,
    RIF_THEN,
    RIFS,
    TOOK_S,
    TURN,
    USES_LEFT,
)


@part
def draw(picks: IntArray, drawn: int, u: float, servers: int) -> int:
    """A server that is not among the first `drawn` of `picks`, ascending, which it joins."""
    s = int(u * (servers - drawn))
    place = 0
    while place < drawn and s >= picks[place]:
        s += 1
        place += 1
    for k in range(drawn, place, -1):
        picks[k] = picks[k - 1]
    picks[place] = s
    return s


@part
def reuse(servers: int, pool: float, probes: float, removals: float, delta: float) -> float:
    """How many requests a probe is good for on average: b above."""
    kept = (1.0 - pool / servers) * probes - removals
    if kept <= 0.0:
        return math.inf
    return max(1.0, (1.0 + delta) / kept)


@part
def note_finished(
    rif: float, latency_s: float, s: int, finished: FloatArray, count: IntArray
) -> None:
    """Server s finished a request that found so many others there."""
    place = count[s] % FINISHED
    finished[s, place, RIF_THEN] = rif
    finished[s, place, TOOK_S] = latency_s
    count[s] += 1


@part
def latency_at(rif: float, finished: FloatArray, count: int, scratch: FloatArray) -> float:
    """What a server tells: the median latency of its requests near that RIF."""
    known = min(count, FINISHED)
    if known == 0:
        return 0.0
    nearest = math.inf
    for k in range(known):
        nearest = min(nearest, abs(finished[k, RIF_THEN] - rif))
    near = 0
    for k in range(known):
        if abs(finished[k, RIF_THEN] - rif) <= max(1.0, nearest):
            place = near
            while place > 0 and scratch[place - 1] > finished[k, TOOK_S]:
                scratch[place] = scratch[place - 1]
                place -= 1
            scratch[place] = finished[k, TOOK_S]
            near += 1
    return float(scratch[(near - 1) // 2])


@part
def note_rif(rif: int, rifs: IntArray, answers: int) -> None:
    """The RIF of one more answer, after so many."""
    place = answers % RIFS
    size = min(answers, RIFS)
    by_size = rifs[BY_SIZE]
    if answers >= RIFS:
        gone = 0
        while by_size[gone] != rifs[BY_NUMBER, place]:
            gone += 1
        size -= 1
        for k in range(gone, size):
            by_size[k] = by_size[k + 1]
    rifs[BY_NUMBER, place] = rif
    while size > 0 and by_size[size - 1] > rif:
        by_size[size] = by_size[size - 1]
        size -= 1
    by_size[size] = rif


@part
def hot_above(rifs: IntArray, answers: int, quantile: float) -> int:
    """The quantile: probes whose RIF exceeds it are hot."""
    size = min(answers, RIFS)
    if size == 0:
        return 0
    return int(rifs[BY_SIZE, max(math.ceil(quantile * size) - 1, 0)])


@part
def best(pool: FloatArray, size: int, limit: int) -> int:
    """Place of the probe that decides, in a pool of at least one."""
    chosen = NONE
    for k in range(size):
        if chosen == NONE:
            chosen = k
            continue
        hot, other = pool[k, PROBED_RIF] > limit, pool[chosen, PROBED_RIF] > limit
        if hot != other:
            better = other
        elif hot:
            better = pool[k, PROBED_RIF] < pool[chosen, PROBED_RIF] or (
                pool[k, PROBED_RIF] == pool[chosen, PROBED_RIF]
                and pool[k, PROBED_LATENCY_S] < pool[chosen, PROBED_LATENCY_S]
            )
        else:
            better = pool[k, PROBED_LATENCY_S] < pool[chosen, PROBED_LATENCY_S] or (
                pool[k, PROBED_LATENCY_S] == pool[chosen, PROBED_LATENCY_S]
                and pool[k, PROBED_RIF] < pool[chosen, PROBED_RIF]
            )
        if better:
            chosen = k
    return chosen


@part
def worst(pool: FloatArray, size: int, limit: int) -> int:
    """Place of the probe that step 3 removes, in a pool of at least one."""
    chosen = 0
    for k in range(1, size):
        hot, other = pool[k, PROBED_RIF] > limit, pool[chosen, PROBED_RIF] > limit
        if hot != other:
            worse = hot
        elif hot:
            worse = pool[k, PROBED_RIF] > pool[chosen, PROBED_RIF]
        else:
            worse = pool[k, PROBED_LATENCY_S] > pool[chosen, PROBED_LATENCY_S]
        if worse:
            chosen = k
    return chosen


@part
def remove(pool: FloatArray, size: int, place: int) -> int:
    """Takes a probe out; returns how many are left."""
    for k in range(place, size - 1):
        for column in range(PROBE_COLUMNS):
            pool[k, column] = pool[k + 1, column]
    return size - 1


@part
def _refresh(pool: FloatArray, size: int, oldest_s: float, servers: int) -> int:
    """Step 1; returns how many are left."""
    kept = 0
    for k in range(size):
        if pool[k, PROBED_S] >= oldest_s and pool[k, PROBED] < servers:
            if kept < k:
                for column in range(PROBE_COLUMNS):
                    pool[kept, column] = pool[k, column]
            kept += 1
    return kept


@part
def choose_probed(
    now_s: float, r: int, c: int, leaf: int, u: float, servers: int, extras: Extras
) -> int:
    """Steps 1 to 3: the server of a request."""
    own = extras.rules
    setting, turn, pool = own.setting[r], own.turn[r, c, leaf], own.pool[r, c, leaf]
    size = _refresh(pool, turn[HELD_PROBES], now_s - setting[AGE_S], servers)
    limit = hot_above(own.rifs[r, c, leaf], turn[ANSWERS], setting[QUANTILE])
    if size < 2:
        s = int(u * servers)
    else:
        k = best(pool, size, limit)
        s = int(pool[k, PROBED])
        pool[k, PROBED_RIF] += 1.0
        pool[k, USES_LEFT] -= 1.0
        if pool[k, USES_LEFT] <= 0.0:
            size = remove(pool, size, k)
    first = math.floor(turn[TURN] * setting[REMOVALS])
    last = math.floor((turn[TURN] + 1) * setting[REMOVALS])
    for number in range(first, last):
        if size > 0:
            size = remove(pool, size, 0 if number % 2 == 0 else worst(pool, size, limit))
    turn[HELD_PROBES] = size
    return s


@part
def probe(
    now_s: float,
    r: int,
    c: int,
    slot: int,
    leaf: int,
    chosen: int,
    servers: int,
    state: State,
    extras: Extras,
) -> None:
    """Step 4, once the server of a request is known."""
    own = extras.rules
    setting, turn, pool = own.setting[r], own.turn[r, c, leaf], own.pool[r, c, leaf]
    first = math.floor(turn[TURN] * setting[PROBES])
    count = min(math.floor((turn[TURN] + 1) * setting[PROBES]) - first, servers)
    uses = reuse(servers, setting[POOL], setting[PROBES], setting[REMOVALS], setting[DELTA])
    seed, key = extras.flag[r, SEED], int(state.request[r, slot, KEY])
    size = turn[HELD_PROBES]
    for k in range(count):
        s = draw(own.picks[r], k, uniform(seed + PROBING, key, k), servers)
        rif = state.server[r, c, s, UNFINISHED]
        if s == chosen:
            rif += 1
        note_rif(rif, own.rifs[r, c, leaf], turn[ANSWERS])
        turn[ANSWERS] += 1
        place = 0
        while place < size and pool[place, PROBED] != s:
            place += 1
        if place < size:
            size = remove(pool, size, place)
        elif size == setting[POOL]:
            size = remove(pool, size, 0)
        pool[size, PROBED] = s
        pool[size, PROBED_RIF] = rif
        pool[size, PROBED_LATENCY_S] = latency_at(
            rif, own.finished[r, c, s], own.finishes[r, c, s], own.load[r]
        )
        pool[size, PROBED_S] = now_s
        whole = uses if uses == math.inf else float(math.floor(uses))
        extra = uniform(seed + REUSING, key, k) < uses - whole if uses < math.inf else False
        pool[size, USES_LEFT] = whole + 1.0 if extra else whole
        size += 1
    turn[HELD_PROBES] = size
    extras.row[r, MESSAGES] += 2 * count
