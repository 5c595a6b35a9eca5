"""What affinity remembers and decides (docs/affinity.md, paper 3.5)."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from tests.hash_model import uniform

WAYS = 4
CHOOSE_CELL, CHOOSE_SERVER = 2**40, 2**41
"""Purposes of the draws of consistent hashing."""


class PrefixCache:
    """Prefixes that the servers of a cell keep: session to (server, tokens), the latest used last.

    A session is kept by one server at a time. What a server keeps of it never shrinks, and is at
    most what fits. Where a server keeps too many tokens its longest unused sessions leave; where
    the cell remembers too many sessions, the longest unused one of the server that wants to keep
    another, or the cell's if it has none.
    """

    def __init__(self, most_tokens: int, most_sessions: int) -> None:
        self._most_tokens = most_tokens
        self._most_sessions = most_sessions
        self._kept: OrderedDict[int, tuple[int, int]] = OrderedDict()

    def find(self, session: int) -> tuple[int, int] | None:
        return self._kept.get(session)

    def use(self, session: int) -> None:
        self._kept.move_to_end(session)

    def store(self, session: int, server: int, tokens: int) -> None:
        """A server computed so many tokens of a session."""
        tokens = min(tokens, self._most_tokens)
        if tokens <= 0:
            return
        if session in self._kept:
            holder, before = self._kept.pop(session)
            if holder == server:
                tokens = max(tokens, before)
        elif len(self._kept) == self._most_sessions:
            own = self._sessions_of(server)
            del self._kept[own[0] if own else next(iter(self._kept))]
        self._kept[session] = server, tokens
        while self._tokens_of(server) > self._most_tokens:
            del self._kept[self._sessions_of(server)[0]]

    def lose(self, server: int) -> None:
        """A server lost all it kept."""
        for session in self._sessions_of(server):
            del self._kept[session]

    def _sessions_of(self, server: int) -> list[int]:
        return [session for session, (holder, _) in self._kept.items() if holder == server]

    def _tokens_of(self, server: int) -> int:
        return sum(tokens for holder, tokens in self._kept.values() if holder == server)


class SessionMap:
    """Homes of sessions at a root: scheduling hash to cell, in sets of four places.

    A hash is learned into the place it has, or the one of its set whose content was learned at the
    earliest decision; empty places precede all, and the first one counts among equals. So many sets
    of them are there that the sessions asked for fit, a power of two.
    """

    def __init__(self, sessions: int) -> None:
        sets = 1
        while WAYS * sets < sessions:
            sets *= 2
        self._sets: list[list[tuple[int, int, int] | None]] = [[None] * WAYS for _ in range(sets)]

    def _set_of(self, session_hash: int) -> list[tuple[int, int, int] | None]:
        """By 32 bits that look random."""
        x = ((session_hash % 2**32) * 0x2C1B3C6D + (session_hash // 2**32) * 0x297A2D39) % 2**32
        x = ((x ^ (x >> 15)) * 0x297A2D39) % 2**32
        return self._sets[(x ^ (x >> 16)) % len(self._sets)]

    def home(self, session_hash: int) -> int | None:
        for place in self._set_of(session_hash):
            if place is not None and place[0] == session_hash:
                return place[1]
        return None

    def learn(self, session_hash: int, cell: int, step: int) -> int | None:
        """Returns the home before."""
        places = self._set_of(session_hash)
        before = self.home(session_hash)
        if before is not None:
            way = next(k for k, place in enumerate(places) if place and place[0] == session_hash)
        else:
            learned = [-1 if place is None else place[2] for place in places]
            way = learned.index(min(learned))
        places[way] = session_hash, cell, step
        return before

    def forget(self, replicas: int, lost: int) -> None:
        """The first ``lost`` of ``replicas`` root replicas lost the hashes that were theirs."""
        for places in self._sets:
            for way, place in enumerate(places):
                if place is not None and place[0] % replicas < lost:
                    places[way] = None


def hashed_cell(session_hash: int, capacity: Mapping[int, float]) -> int | None:
    """Weighted rendezvous: the least exponential draw, each cell's at the rate of its capacity."""
    draws = {
        cell: -math.log(1.0 - uniform(CHOOSE_CELL, session_hash, cell)) / weight
        for cell, weight in capacity.items()
        if weight > 0.0
    }
    return min(draws, key=lambda cell: (draws[cell], cell)) if draws else None


def hashed_server(session_hash: int, live: int) -> int:
    """Lamping and Veach's jump hash: from each bucket on to the next one that it jumps to."""
    bucket, following, draw = 0, 0, 0
    while following < live:
        bucket = following
        u = uniform(CHOOSE_SERVER, session_hash, draw)
        following = math.floor((bucket + 1) / (1.0 - u))
        draw += 1
    return bucket


def conditional_cell(home: int, saved_s: float, latency_s: Mapping[int, float]) -> int:
    """The home, while what it takes there less what the prefix saves is below all others' times.

    Otherwise the best alternative; of several equal ones the one with the highest number.
    """
    others = {cell: time_s for cell, time_s in latency_s.items() if cell != home}
    if not others or latency_s[home] - saved_s < min(others.values()):
        return home
    return max(cell for cell, time_s in others.items() if time_s == min(others.values()))


def latency_s(model: Sequence[float], n: float) -> float:
    """The softplus latency at n requests in flight a server (``dlb_gym/latency_model.py``)."""
    alpha, beta, knee, smoothing = model
    u = (n - knee) / smoothing
    return alpha + beta * smoothing * (math.log1p(math.exp(-abs(u))) + max(u, 0.0))
