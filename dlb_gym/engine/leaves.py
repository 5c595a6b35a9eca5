"""What leaf replicas know of one another and of the servers.

At a gathering each replica learns its peers' RIF, at a look all servers' unfinished tokens and
requests. Neither copies anything: a number that has not changed since is its own record, and one
that is about to change is written down first. So both cost a constant time, and a request pays for
what it changes.
"""

from __future__ import annotations

from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    GATHERED,
    GATHERED_RIF,
    GATHERING,
    LEAF_RIF,
    LEAVES,
    LEAVES_RIF,
    LOOK,
    LOOK_EVERY,
    LOOK_S,
    MESSAGES,
    ORPHANS,
    ORPHANS_KNOWN,
    PLACED_LOOK,
    PLACED_REQUESTS,
    PLACED_TOKENS,
    RIF_BEFORE,
    SEEN_LOOK,
    SEEN_REQUESTS,
    SEEN_TOKENS,
    Extras,
)
from dlb_gym.engine.layout import LIVE, TOKENS, UNFINISHED, IntArray, State
from dlb_gym.engine.leaf import settle_prefills


@part
def change_rif(number: int, change: int, leaf: IntArray, count: IntArray) -> None:
    """The RIF of leaf replica `number` changes; `leaf` and `count` are the cell's."""
    own = leaf[number]
    if own[GATHERED] != count[GATHERING]:
        own[GATHERED] = count[GATHERING]
        own[RIF_BEFORE] = own[LEAF_RIF]
    own[LEAF_RIF] += change
    count[LEAVES_RIF] += change


@part
def lose_rif(number: int, leaf: IntArray, count: IntArray) -> None:
    """A replica's count is gone, here and with its peers, until they next gather."""
    own = leaf[number]
    count[GATHERED_RIF] -= _gathered_rif(number, leaf, count)
    count[LEAVES_RIF] -= own[LEAF_RIF]
    count[ORPHANS] += own[LEAF_RIF]
    count[ORPHANS_KNOWN] = 0
    own[LEAF_RIF] = 0
    own[RIF_BEFORE] = 0
    own[GATHERED] = count[GATHERING]


@part
def gather(count: IntArray) -> None:
    """The replicas of a cell tell one another their RIF; orphaned requests are found."""
    count[GATHERING] += 1
    count[GATHERED_RIF] = count[LEAVES_RIF]
    count[ORPHANS_KNOWN] = 1


@part
def _gathered_rif(number: int, leaf: IntArray, count: IntArray) -> int:
    """RIF of a replica at the last gathering."""
    own = leaf[number]
    return int(own[RIF_BEFORE] if own[GATHERED] == count[GATHERING] else own[LEAF_RIF])


@part
def rif_known(number: int, leaf: IntArray, count: IntArray) -> int:
    """RIF of the cell as replica `number` knows it: its own now, its peers' as gathered."""
    peers_rif = count[GATHERED_RIF] - _gathered_rif(number, leaf, count)
    return int(leaf[number, LEAF_RIF] + peers_rif + count[ORPHANS] * count[ORPHANS_KNOWN])


@part
def look(now_s: float, r: int, c: int, state: State, extras: Extras) -> None:
    """The leaves look at all servers."""
    extras.tally[r, c, LOOK] += 1
    extras.cell[r, c, LOOK_S] = now_s
    extras.row[r, MESSAGES] += 2 * extras.flag[r, LEAVES] * state.cell[r, c, LIVE]


@part
def keep_seen(r: int, c: int, s: int, state: State, extras: Extras) -> None:
    """Server s is about to change: what the last look saw of it is written down."""
    seen = extras.seen[r, c, s]
    if seen[SEEN_LOOK] != extras.tally[r, c, LOOK]:
        settle_prefills(extras.cell[r, c, LOOK_S], s, state.server[r, c], state.request[r])
        seen[SEEN_TOKENS] = state.server[r, c, s, TOKENS]
        seen[SEEN_REQUESTS] = state.server[r, c, s, UNFINISHED]
        seen[SEEN_LOOK] = extras.tally[r, c, LOOK]


@part
def seen_tokens(
    now_s: float, r: int, c: int, leaf: int, s: int, state: State, extras: Extras
) -> int:
    """Unfinished tokens of a server as a leaf sees them: at its last look, plus what it placed.

    With no look interval the leaf sees the server as it is.
    """
    if extras.flag[r, LOOK_EVERY] == 0:
        settle_prefills(now_s, s, state.server[r, c], state.request[r])
        return int(state.server[r, c, s, TOKENS])
    keep_seen(r, c, s, state, extras)
    tokens = extras.seen[r, c, s, SEEN_TOKENS]
    placed = extras.placed[r, c, leaf, s]
    if placed[PLACED_LOOK] == extras.tally[r, c, LOOK]:
        tokens += placed[PLACED_TOKENS]
    return int(tokens)


@part
def seen_requests(r: int, c: int, leaf: int, s: int, state: State, extras: Extras) -> int:
    """Unfinished requests of a server as a leaf sees them, like tokens."""
    if extras.flag[r, LOOK_EVERY] == 0:
        return int(state.server[r, c, s, UNFINISHED])
    keep_seen(r, c, s, state, extras)
    requests = extras.seen[r, c, s, SEEN_REQUESTS]
    placed = extras.placed[r, c, leaf, s]
    if placed[PLACED_LOOK] == extras.tally[r, c, LOOK]:
        requests += placed[PLACED_REQUESTS]
    return int(requests)


@part
def note_placing(r: int, c: int, leaf: int, s: int, tokens: int, extras: Extras) -> None:
    """A leaf remembers a request that it placed on a server since the last look."""
    placed = extras.placed[r, c, leaf, s]
    if placed[PLACED_LOOK] != extras.tally[r, c, LOOK]:
        placed[PLACED_LOOK] = extras.tally[r, c, LOOK]
        placed[PLACED_TOKENS] = 0
        placed[PLACED_REQUESTS] = 0
    placed[PLACED_TOKENS] += tokens
    placed[PLACED_REQUESTS] += 1
