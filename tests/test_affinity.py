"""The memory of affinity against dictionaries, and consistent hashing against its laws."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.engine import affinity
from dlb_gym.engine.affinity import (
    ENTRY_SERVER,
    ENTRY_TOKENS,
    LIST_TOKENS,
    NEWER,
    OLDEST,
    PrefixCache,
    allocate_cache,
    allocate_map,
    clear_cache,
)
from dlb_gym.engine.layout import NONE

compiled: Any = numba.njit  # its stubs do not know that it decorates


@compiled
def find(cache: PrefixCache, session: int) -> int:
    return affinity.find(cache, session)


@compiled
def store(cache: PrefixCache, session: int, entry: int, s: int, tokens: int, capacity: int) -> None:
    affinity.store(cache, session, entry, s, tokens, capacity)


@compiled
def touch(cache: PrefixCache, e: int) -> None:
    affinity.touch(cache, e)


@compiled
def drop_server(cache: PrefixCache, s: int) -> None:
    affinity.drop_server(cache, s)


@compiled
def place_of(session: int) -> int:
    return affinity._scattered(session)


@compiled
def drop(cache: PrefixCache, e: int) -> None:
    affinity._drop(cache, e)


@compiled
def home(homes: NDArray[np.int64], session_hash: int) -> int:
    return affinity.home(homes, session_hash)


@compiled
def learn(homes: NDArray[np.int64], session_hash: int, cell: int, stamp: int) -> None:
    affinity.learn(homes, session_hash, cell, stamp)


@compiled
def forget_replica(homes: NDArray[np.int64], replica: int, replicas: int) -> None:
    affinity.forget_replica(homes, replica, replicas)


@compiled
def set_of(homes: NDArray[np.int64], session_hash: int) -> int:
    return affinity._first_way(homes, session_hash)


@compiled
def chosen_cells(
    hashes: NDArray[np.int64], weights: NDArray[np.float64], cells: NDArray[np.int64]
) -> None:
    for k in range(len(hashes)):
        cells[k] = affinity.rendezvous(hashes[k], weights, len(weights))


@compiled
def chosen_servers(hashes: NDArray[np.int64], live: int, servers: NDArray[np.int64]) -> None:
    for k in range(len(hashes)):
        servers[k] = affinity.hashed_server(hashes[k], live)


class Model:
    """The prefix cache in words of Python: per server, sessions from the longest unused on."""

    def __init__(self, servers: int, entries: int, capacity: int) -> None:
        self.kept: list[OrderedDict[int, int]] = [OrderedDict() for _ in range(servers)]
        self.used: dict[int, int] = {}  # by session, when: the number of the step
        self.entries = entries
        self.capacity = capacity

    def server_of(self, session: int) -> int | None:
        return next((s for s, kept in enumerate(self.kept) if session in kept), None)

    def store(self, session: int, s: int, tokens: int, now: int) -> None:
        tokens = min(tokens, self.capacity)
        if tokens <= 0:
            return
        before = self.server_of(session)
        if before is not None:
            kept = self.kept[before].pop(session)
            tokens = max(tokens, kept) if before == s else tokens
        elif sum(map(len, self.kept)) == self.entries:
            fronts = {next(iter(kept)): s for s, kept in enumerate(self.kept) if kept}
            giver = s if self.kept[s] else fronts[min(fronts, key=lambda front: self.used[front])]
            self.kept[giver].popitem(last=False)
        self.kept[s][session] = tokens
        self.used[session] = now
        while sum(self.kept[s].values()) > self.capacity:
            self.kept[s].popitem(last=False)

    def touch(self, session: int, now: int) -> None:
        s = self.server_of(session)
        if s is not None:
            self.kept[s].move_to_end(session)
            self.used[session] = now


def agree(cache: PrefixCache, model: Model, sessions: NDArray[np.int64]) -> None:
    """Every session's entry, every server's list in order, and the counts."""
    uses: dict[int, int] = {}
    for session in sessions.tolist():
        e, s = find(cache, session), model.server_of(session)
        assert (e == NONE) == (s is None)
        if s is not None:
            assert cache.entries[e, ENTRY_SERVER] == s
            assert cache.entries[e, ENTRY_TOKENS] == model.kept[s][session]
            uses[model.used[session]] = int(cache.entries[e, affinity.USE])
    in_order = [uses[now] for now in sorted(uses)]
    assert in_order == sorted(set(in_order))
    for s, kept in enumerate(model.kept):
        listed, e = [], cache.lists[s, OLDEST]
        while e != NONE:
            listed.append(int(cache.entries[e, affinity.ENTRY_SESSION]))
            e = cache.entries[e, NEWER]
        assert listed == list(kept)
        assert cache.lists[s, LIST_TOKENS] == sum(kept.values()) <= model.capacity
    assert cache.lists[-1, LIST_TOKENS] == sum(map(len, model.kept))
    assert np.count_nonzero(cache.slots != NONE) == sum(map(len, model.kept))


@pytest.mark.parametrize(
    ("servers", "entries", "capacity", "count"),
    [
        (3, 64, 2_000, 40),  # tokens decide
        (4, 16, 10**9, 60),  # the pool decides
        (8, 5, 1_500, 12),  # both, and servers without entries of their own
        (1, 1, 900, 3),
    ],
)
def test_the_prefix_cache_does_what_a_dictionary_does(
    servers: int, entries: int, capacity: int, count: int
) -> None:
    rng = np.random.default_rng(servers)
    sessions = np.concatenate((rng.integers(2**53, size=count // 2), np.arange(count // 2)))
    cache = PrefixCache(*(array[0, 1] for array in allocate_cache((1, 2), servers, entries)))
    model = Model(servers, entries, capacity)
    hints = dict.fromkeys(sessions.tolist(), NONE)  # where sessions once were; most of it stale
    for step in range(3_000):
        session = int(rng.choice(sessions))
        action = rng.random()
        if action < 0.7:
            s, tokens = int(rng.integers(servers)), int(rng.integers(-5, 1_000))
            store(cache, session, hints[session], s, tokens, capacity)
            model.store(session, s, tokens, step)
        elif action < 0.99:
            hints[session] = e = find(cache, session)
            if e != NONE:
                touch(cache, e)
            model.touch(session, step)
        else:
            s = int(rng.integers(servers))
            drop_server(cache, s)
            model.kept[s].clear()
        if step % 50 == 0:
            agree(cache, model, sessions)
    agree(cache, model, sessions)


def test_sessions_whose_places_collide_survive_each_others_deletion() -> None:
    cache = allocate_cache((), 1, 8)
    mask = len(cache.slots) - 1
    place = {k: place_of(k) & mask for k in range(2_000)}
    # Five that start at the table's last place, so that their run wraps around, and two behind.
    crowd = [k for k in place if place[k] == mask][:5] + [k for k in place if place[k] == 1][:2]
    for gone in crowd:
        clear_cache(cache)
        for k in crowd:
            store(cache, k, NONE, 0, 1, 100)
        store(cache, gone, find(cache, gone), 0, 1, 100)
        drop(cache, find(cache, gone))
        assert find(cache, gone) == NONE
        assert all(find(cache, k) != NONE for k in crowd if k != gone)
        run = [(mask + d) & mask for d in range(len(crowd) + 1)]
        assert [cache.slots[k] != NONE for k in run] == [True] * (len(crowd) - 1) + [False] * 2


def test_an_entry_moves_grows_and_is_cut_to_what_fits() -> None:
    cache = allocate_cache((), 2, 4)
    for server, tokens, kept in ((0, 500, 500), (0, 300, 500), (0, 1_200, 1_000), (1, 200, 200)):
        store(cache, 7, NONE, server, tokens, 1_000)
        e = find(cache, 7)
        assert (cache.entries[e, ENTRY_SERVER], cache.entries[e, ENTRY_TOKENS]) == (server, kept)
    assert cache.lists[:, LIST_TOKENS].tolist() == [0, 200, 1]


def test_places_of_consecutive_sessions_are_spread_evenly() -> None:
    # Ids of one root run on within a chunk; chunks are far apart.
    sessions = [2**24 * chunk + k for chunk in range(0, 600, 6) for k in range(100)]
    places = np.array([place_of(k) for k in sessions])
    counts = np.bincount(places % 1_024, minlength=1_024)
    assert stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.parametrize("capacity", [1, 4, 50])
def test_the_session_map_does_what_a_dictionary_of_sets_does(capacity: int) -> None:
    rng = np.random.default_rng(capacity)
    homes = allocate_map((2,), capacity)[1]
    assert capacity <= len(homes) < 2 * max(capacity, 4)
    model: dict[int, OrderedDict[int, int]] = {}
    hashes = rng.integers(2**53, size=2 * capacity + 6).tolist()
    for stamp in range(4_000):
        h = int(rng.choice(hashes))
        ways = model.setdefault(set_of(homes, h), OrderedDict())
        if rng.random() < 0.6:
            learn(homes, h, stamp % 7, stamp)
            ways[h] = stamp % 7
            ways.move_to_end(h)
            if len(ways) > 4:
                ways.popitem(last=False)
        elif rng.random() < 0.02:
            replica = int(rng.integers(3))
            forget_replica(homes, replica, 3)
            model = {
                k: OrderedDict((x, c) for x, c in v.items() if x % 3 != replica)
                for k, v in model.items()
            }
        assert home(homes, h) == model[set_of(homes, h)].get(h, NONE)
    known = {h: home(homes, h) for h in hashes if home(homes, h) != NONE}
    assert known == {h: c for ways in model.values() for h, c in ways.items()}


def cells_of(hashes: NDArray[np.int64], weights: list[float]) -> NDArray[np.int64]:
    cells = np.empty_like(hashes)
    chosen_cells(hashes, np.array(weights), cells)
    return cells


def test_rendezvous_shares_by_weight_and_moves_only_what_it_must() -> None:
    hashes = np.random.default_rng(1).integers(2**53, size=40_000)
    weights = [3.0, 0.0, 1.0, 4.0, 2.0]
    cells = cells_of(hashes, weights)
    counts = np.bincount(cells, minlength=5)
    assert counts[1] == 0
    positive = [0, 2, 3, 4]
    assert stats.chisquare(counts[positive], 4_000 * np.array([3, 1, 4, 2])).pvalue > 1e-3
    # Cell 3 leaves: its sessions alone move, to the others by weight.
    without = cells_of(hashes, [3.0, 0.0, 1.0, 0.0, 2.0])
    assert np.array_equal(without[cells != 3], cells[cells != 3])
    moved = np.bincount(without[cells == 3], minlength=5)[[0, 2, 4]]
    assert stats.chisquare(moved, moved.sum() / 6 * np.array([3, 1, 2])).pvalue > 1e-3
    # A cell doubles: sessions move to it alone.
    doubled = cells_of(hashes, [3.0, 0.0, 2.0, 4.0, 2.0])
    assert set(doubled[doubled != cells].tolist()) == {2}
    assert cells_of(hashes[:1], [0.0, 0.0]).tolist() == [NONE]


def test_the_jump_hash_is_even_and_moves_only_what_it_must() -> None:
    hashes = np.random.default_rng(2).integers(2**53, size=40_000)
    before = np.zeros_like(hashes)  # all of one server
    for live in range(2, 13):
        servers = np.empty_like(hashes)
        chosen_servers(hashes, live, servers)
        assert stats.chisquare(np.bincount(servers, minlength=live)).pvalue > 1e-3
        moved = servers != before
        assert set(servers[moved].tolist()) <= {live - 1}
        low, high = stats.binom.interval(0.9999, hashes.size, 1 / live)
        assert low <= moved.sum() <= high
        before = servers
