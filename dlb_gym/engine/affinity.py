"""What affinity remembers: prefixes on servers, homes of sessions at roots; and what hashing does.

**Prefix cache of a cell.** All servers of a cell share one table: session -> (server, tokens kept,
use). A session has one home per cell: what another server keeps of it counts as gone
once the session moves. Each server keeps a list of its entries from the longest unused to the last
used, and evicts from its front until its tokens fit its capacity; an entry larger than that keeps
what fits. The table is open addressing with linear probing at a load of at most one half, where a
deletion moves later entries of its run back (no tombstones), so that every operation takes a
constant time on average. Entries come from a pool; where it is exhausted, the server's own longest
unused entry makes room, or the cell's if that server has none.

**Session map of a root.** Scheduling hash -> cell in sets of four, of which a new hash replaces the
longest unlearned. Root replica q of Q holds the hashes with hash mod Q = q, and loses them when it
crashes.

**Consistent hashing**, the contrast (paper 3.5). Weighted rendezvous: cell j's key is
-log(1 - u_j) / w_j with u_j uniform in (hash, j); the smallest wins. Keys are exponential with rate
w_j, so cell j wins with probability w_j / sum(w), and when a cell leaves only its sessions move.
Servers, whose highest numbers come and go, are chosen by Lamping and Veach's jump hash: from n to
n + 1 servers one session in n + 1 moves, to the new one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dlb_gym.engine.compile import part
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import NONE, FloatArray, IntArray

# PrefixCache.slots: the hash of a session above the number of its entry, so that a search reads no
# entry but its own.
ENTRY_BITS = 20
# PrefixCache.entries: (entries, 6); OLDER and NEWER are entries of the same server, or NONE; USE
# grows with every use of the cell's cache.
ENTRY_SESSION, ENTRY_SERVER, ENTRY_TOKENS, OLDER, NEWER, USE = range(6)
ENTRY_COLUMNS = 6
# PrefixCache.lists: (servers + 1, 3). The last row is the pool's: OLDEST is its first free entry
# (chained by NEWER), NEWEST counts uses, LIST_TOKENS is the number of entries in use.
OLDEST, NEWEST, LIST_TOKENS = range(3)
LIST_COLUMNS = 3
# Session map: (4 x sets, 2), sets a power of two; a home is its stamp above its cell, or NONE.
MAP_HASH, MAP_HOME = range(2)
MAP_COLUMNS = 2
CELL_BITS = 16
WAYS = 4

# Purposes of `hashing.uniform` (multiples of 2^32).
CHOOSE_CELL, CHOOSE_SERVER = 1 << 40, 1 << 41

_ENTRY = (1 << ENTRY_BITS) - 1
_CELL = (1 << CELL_BITS) - 1
_WORD = 0xFFFFFFFF
_FIRST, _SECOND = 0x2C1B3C6D, 0x297A2D39  # below 2^30, as sums of two products stay below 2^63


class PrefixCache(NamedTuple):
    """The prefix cache of one cell; as `allocate_cache` makes it, more axes come first.

    Attributes:
        slots: (slots,) hashes of sessions and their entries, by hash, or NONE.
        entries: (entries, 6) see the columns above.
        lists: (servers + 1, 3) see the columns above.
    """

    slots: IntArray
    entries: IntArray
    lists: IntArray


def allocate_cache(axes: tuple[int, ...], servers: int, entries: int) -> PrefixCache:
    """Empty caches, one for each index of `axes` (replications and cells, say).

    Args:
        axes: Lengths of the leading axes.
        servers: Servers of the largest cell.
        entries: Sessions that a cell can remember, at least 1.
    """
    cache = PrefixCache(
        slots=np.zeros((*axes, cache_slots(entries)), dtype=np.int64),
        entries=np.zeros((*axes, entries, ENTRY_COLUMNS), dtype=np.int64),
        lists=np.zeros((*axes, servers + 1, LIST_COLUMNS), dtype=np.int64),
    )
    clear_cache(cache)
    return cache


def clear_cache(cache: PrefixCache) -> None:
    """Empties caches (of one row, if given one row's arrays)."""
    cache.slots[:] = NONE
    cache.entries[:] = NONE
    cache.entries[..., :-1, NEWER] = np.arange(1, cache.entries.shape[-2])
    cache.lists[:] = NONE
    cache.lists[..., -1, :] = 0
    cache.lists[..., LIST_TOKENS] = 0


def cache_slots(entries: int) -> int:
    """Slots of a cache of so many sessions: a power of two, at least twice as many."""
    return 1 << (2 * entries - 1).bit_length()


def limit_cache(cache: PrefixCache, entries: int) -> None:
    """Empty caches with longer arrays than they need remember so many sessions."""
    cache.entries[..., entries - 1, NEWER] = NONE


def move_caches(old: PrefixCache, new: PrefixCache) -> None:
    """Writes caches into longer arrays; the pool's list stays the last one."""
    for source, target in zip(old[:2], new[:2], strict=True):
        target[tuple(slice(0, size) for size in source.shape)] = source
    new.lists[..., : old.lists.shape[-2] - 1, :] = old.lists[..., :-1, :]
    new.lists[..., -1, :] = old.lists[..., -1, :]


def map_rows(sessions: int) -> int:
    """Rows of a session map for at least `sessions` >= 1 sessions."""
    return WAYS * (1 << (-(-sessions // WAYS) - 1).bit_length())


def allocate_map(axes: tuple[int, ...], sessions: int) -> IntArray:
    """Empty session maps, each for at least `sessions` >= 1 sessions; NONE in all places clears."""
    return np.full((*axes, map_rows(sessions), MAP_COLUMNS), NONE, dtype=np.int64)


@part
def _scattered(number: int) -> int:
    """32 bits that look random, of a number in [0, 2^53)."""
    x = ((number & _WORD) * _FIRST + (number >> 32) * _SECOND) & _WORD
    x = ((x ^ (x >> 15)) * _SECOND) & _WORD
    return x ^ (x >> 16)


@part
def find(cache: PrefixCache, session: int) -> int:
    """The entry of a session >= 0, or NONE."""
    mask = len(cache.slots) - 1
    scattered = _scattered(session)
    k = scattered & mask
    while cache.slots[k] != NONE:
        if cache.slots[k] >> ENTRY_BITS == scattered:
            e = cache.slots[k] & _ENTRY
            if cache.entries[e, ENTRY_SESSION] == session:
                return int(e)
        k = (k + 1) & mask
    return NONE


@part
def _take_out(cache: PrefixCache, e: int) -> None:
    """Takes an entry out of its server's list."""
    s = cache.entries[e, ENTRY_SERVER]
    older, newer = cache.entries[e, OLDER], cache.entries[e, NEWER]
    if older == NONE:
        cache.lists[s, OLDEST] = newer
    else:
        cache.entries[older, NEWER] = newer
    if newer == NONE:
        cache.lists[s, NEWEST] = older
    else:
        cache.entries[newer, OLDER] = older
    cache.lists[s, LIST_TOKENS] -= cache.entries[e, ENTRY_TOKENS]


@part
def _put_last(cache: PrefixCache, e: int, s: int, tokens: int) -> None:
    """Makes an entry the last used one of server s."""
    last = cache.lists[s, NEWEST]
    cache.entries[e, ENTRY_SERVER] = s
    cache.entries[e, ENTRY_TOKENS] = tokens
    cache.entries[e, OLDER] = last
    cache.entries[e, NEWER] = NONE
    if last == NONE:
        cache.lists[s, OLDEST] = e
    else:
        cache.entries[last, NEWER] = e
    cache.lists[s, NEWEST] = e
    cache.lists[s, LIST_TOKENS] += tokens
    pool = len(cache.lists) - 1
    cache.entries[e, USE] = cache.lists[pool, NEWEST]
    cache.lists[pool, NEWEST] += 1


@part
def _drop(cache: PrefixCache, e: int) -> None:
    """Forgets an entry and gives its place back to the pool."""
    mask = len(cache.slots) - 1
    scattered = _scattered(cache.entries[e, ENTRY_SESSION])
    hole = scattered & mask
    while cache.slots[hole] != (scattered << ENTRY_BITS) + e:
        hole = (hole + 1) & mask
    k = (hole + 1) & mask
    while cache.slots[k] != NONE:
        start = (cache.slots[k] >> ENTRY_BITS) & mask
        # Probing for this entry, from its start on, must not meet the hole.
        if ((k - start) & mask) >= ((k - hole) & mask):
            cache.slots[hole] = cache.slots[k]
            hole = k
        k = (k + 1) & mask
    cache.slots[hole] = NONE
    _take_out(cache, e)
    cache.entries[e, ENTRY_SESSION] = NONE
    pool = len(cache.lists) - 1
    cache.entries[e, NEWER] = cache.lists[pool, OLDEST]
    cache.lists[pool, OLDEST] = e
    cache.lists[pool, LIST_TOKENS] -= 1


@part
def _free_entry(cache: PrefixCache, s: int) -> int:
    """An entry from the pool, or the one that makes room for server s."""
    pool = len(cache.lists) - 1
    if cache.lists[pool, OLDEST] == NONE:
        oldest = cache.lists[s, OLDEST]
        if oldest == NONE:
            longest = cache.lists[pool, NEWEST]
            for other in range(pool):
                front = cache.lists[other, OLDEST]
                if front != NONE and cache.entries[front, USE] < longest:
                    oldest = front
                    longest = cache.entries[front, USE]
        _drop(cache, oldest)
    e = cache.lists[pool, OLDEST]
    cache.lists[pool, OLDEST] = cache.entries[e, NEWER]
    cache.lists[pool, LIST_TOKENS] += 1
    return int(e)


@part
def touch(cache: PrefixCache, e: int) -> None:
    """Notes that an entry is used now."""
    s, tokens = cache.entries[e, ENTRY_SERVER], cache.entries[e, ENTRY_TOKENS]
    _take_out(cache, e)
    _put_last(cache, e, s, tokens)


@part
def store(
    cache: PrefixCache, session: int, entry: int, s: int, tokens: int, capacity_tokens: int
) -> None:
    """Server s now keeps `tokens` of a session >= 0: a new entry, a longer one, or a moved one.

    `entry` is where the session was last seen, or NONE: a search less if it is still there.

    What server s kept of the session never shrinks: an earlier turn may finish after a later one.
    """
    kept = min(tokens, capacity_tokens)
    if kept <= 0:
        return
    e = entry
    if e == NONE or cache.entries[e, ENTRY_SESSION] != session:
        e = find(cache, session)
    if e == NONE:
        e = _free_entry(cache, s)
        mask = len(cache.slots) - 1
        scattered = _scattered(session)
        k = scattered & mask
        while cache.slots[k] != NONE:
            k = (k + 1) & mask
        cache.slots[k] = (scattered << ENTRY_BITS) + e
        cache.entries[e, ENTRY_SESSION] = session
    else:
        if cache.entries[e, ENTRY_SERVER] == s:
            kept = max(kept, cache.entries[e, ENTRY_TOKENS])
        _take_out(cache, e)
    _put_last(cache, e, s, kept)
    while cache.lists[s, LIST_TOKENS] > capacity_tokens:
        _drop(cache, int(cache.lists[s, OLDEST]))


@part
def drop_server(cache: PrefixCache, s: int) -> None:
    """Server s lost all it kept."""
    while cache.lists[s, OLDEST] != NONE:
        _drop(cache, int(cache.lists[s, OLDEST]))


@part
def _first_way(homes: IntArray, session_hash: int) -> int:
    """First row of the set of a hash."""
    return WAYS * (_scattered(session_hash) & (len(homes) // WAYS - 1))


@part
def home(homes: IntArray, session_hash: int) -> int:
    """The cell of a scheduling hash >= 0, or NONE."""
    first = _first_way(homes, session_hash)
    for k in range(first, first + WAYS):
        if homes[k, MAP_HASH] == session_hash:
            return int(homes[k, MAP_HOME] & _CELL)
    return NONE


@part
def learn(homes: IntArray, session_hash: int, cell: int, stamp: int) -> int:
    """The home of a hash >= 0 is a cell, as of `stamp` >= 0, which grows with time.

    Returns:
        The home before, or NONE.
    """
    first = _first_way(homes, session_hash)
    place = first
    before = NONE
    for k in range(first, first + WAYS):
        if homes[k, MAP_HASH] == session_hash:
            place = k
            before = int(homes[k, MAP_HOME] & _CELL)
            break
        # A free way has NONE, below any stamp.
        if homes[k, MAP_HOME] >> CELL_BITS < homes[place, MAP_HOME] >> CELL_BITS:
            place = k
    homes[place, MAP_HASH] = session_hash
    homes[place, MAP_HOME] = (stamp << CELL_BITS) + cell
    return before


@part
def forget_replica(homes: IntArray, replica: int, replicas: int) -> None:
    """Root replica number `replica` of `replicas` lost its part of the map."""
    for k in range(len(homes)):
        if homes[k, MAP_HASH] != NONE and homes[k, MAP_HASH] % replicas == replica:
            homes[k, MAP_HASH] = NONE
            homes[k, MAP_HOME] = NONE


@part
def rendezvous(session_hash: int, weights: FloatArray, num_cells: int) -> int:
    """The cell of a hash among those with a positive weight; NONE if there is none."""
    best = NONE
    least = math.inf
    for j in range(num_cells):
        if weights[j] > 0.0:
            key = -math.log(1.0 - uniform(CHOOSE_CELL, session_hash, j)) / weights[j]
            if key < least:
                best = j
                least = key
    return best


@part
def hashed_server(session_hash: int, live: int) -> int:
    """The server of a hash among servers 0 to live - 1."""
    chosen = 0
    following = 0
    draw = 0
    while following < live:
        chosen = following
        following = int((chosen + 1) / (1.0 - uniform(CHOOSE_SERVER, session_hash, draw)))
        draw += 1
    return chosen
