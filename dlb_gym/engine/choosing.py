"""How a root chooses the cell of a request with mechanisms.

The cell is the session's, if affinity says so and aversion lets it; else a random one, for
background probing; else what the decision in force says, with aversion spent: a routing matrix was
changed beforehand; through the cells by score, or by entry of a table, a request goes to the first
that accepts it, which cell j does with probability 1 - a_j, and if none does to the least averted
one. Where scores value cached tokens and affinity leaves caches to them ("none"), a request's
prefix counts for the cell where the root last saw its session.

Conditional affinity (paper 3.5) stays at home h while

    l_h + 2 tau_h - P(hit) prefix t_p  <  min over j != h of (l_j + 2 tau_j),

with l_j the latency model at the RIF held, P(hit) the root's experience with h and t_p the time of
a prompt token there, and else moves to the best alternative.
"""

from __future__ import annotations

import math

from dlb_gym.engine.affinity import home, rendezvous
from dlb_gym.engine.choices import choose_cell
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    AFFINITY,
    AVERT,
    AVERTING,
    BACKGROUND,
    CONDITIONAL,
    EXPLORE,
    EXPLORED,
    HASHED,
    HIT_RATE,
    LATENCY_S,
    PREFIX_TOKENS,
    SEED,
    SESSION_HASH,
    SPENT,
    UNUSED,
    Extras,
    session_map,
)
from dlb_gym.engine.hashing import TABLE_ENTRY, uniform
from dlb_gym.engine.layout import NONE, SCORE, TABLE, Orders, Params, State


@part
def _home(r: int, i: int, slot: int, num_cells: int, extras: Extras) -> int:
    """The cell that affinity wants for a request, or NONE."""
    kind = extras.flag[r, AFFINITY]
    session_hash = int(extras.request[r, slot, SESSION_HASH])
    if kind < CONDITIONAL or session_hash < 0:
        return NONE
    memory = extras.arc[r, i]
    if kind == HASHED:
        return rendezvous(session_hash, memory[:, LATENCY_S], num_cells)
    here = home(session_map(extras, r, i), session_hash)
    if here == NONE or kind != CONDITIONAL:
        return here
    prefix_s = extras.request[r, slot, PREFIX_TOKENS] * extras.prefill_s[r, here]
    best = here
    least_s = memory[here, LATENCY_S] - memory[here, HIT_RATE] * prefix_s
    for j in range(num_cells):
        if j != here and memory[j, LATENCY_S] <= least_s:
            best = j
            least_s = memory[j, LATENCY_S]
    return best


@part
def _accepts(r: int, i: int, j: int, key: int, draw: int, extras: Extras) -> bool:
    """Whether aversion lets a request go to cell j."""
    rate = extras.aversion[r, i, j]
    return bool(rate <= 0.0 or uniform(extras.flag[r, SEED] + AVERT, key, draw) >= rate)


@part
def _prefix_home(r: int, i: int, slot: int, extras: Extras) -> int:
    """The cell where the root last saw a request's session and its prefix counts, or NONE."""
    more = extras.request[r, slot]
    if extras.flag[r, AFFINITY] != UNUSED or more[PREFIX_TOKENS] <= 0.0:
        return NONE
    return home(session_map(extras, r, i), int(more[SESSION_HASH]))


@part
def _adjust_scores(
    r: int,
    i: int,
    slot: int,
    key: int,
    num_cells: int,
    params: Params,
    orders: Orders,
    extras: Extras,
) -> bool:
    """A request's own scores; whether aversion leaves any cell."""
    base = extras.weights[r, i]
    averting = extras.flag[r, AVERTING] > 0 and extras.flag[r, SPENT] == 0
    kept = _prefix_home(r, i, slot, extras)
    left = 0
    for j in range(num_cells):
        base[j] = orders.base[r, i, j]
        if math.isnan(params.tau_s[r, i, j]):
            continue
        if averting and not _accepts(r, i, j, key, j, extras):
            base[j] = math.inf
            continue
        left += 1
        if j == kept:
            base[j] -= orders.token_value[r, i, j] * extras.request[r, slot, PREFIX_TOKENS]
    return left > 0


@part
def _mildest(r: int, i: int, num_cells: int, params: Params, extras: Extras) -> int:
    """The arc of least aversion; of equal ones the first."""
    mildest = NONE
    for j in range(num_cells):
        arc = not math.isnan(params.tau_s[r, i, j])
        if arc and (mildest == NONE or extras.aversion[r, i, j] < extras.aversion[r, i, mildest]):
            mildest = j
    return mildest


@part
def _from_table(
    r: int,
    i: int,
    slot: int,
    key: int,
    u: float,
    num_cells: int,
    params: Params,
    orders: Orders,
    extras: Extras,
) -> int:
    """The entry of a request's session, or of u without one; the next whose cell is accepted."""
    table = orders.table[r, i]
    session_hash = int(extras.request[r, slot, SESSION_HASH])
    if session_hash >= 0:
        u = uniform(TABLE_ENTRY, session_hash, 0)
    entry = int(u * len(table))
    if extras.flag[r, AVERTING] == 0 or extras.flag[r, SPENT] > 0:
        return int(table[entry])
    for step in range(len(table)):
        j = int(table[(entry + step) % len(table)])
        if _accepts(r, i, j, key, j, extras):
            return j
    return _mildest(r, i, num_cells, params, extras)


@part
def choose(
    r: int,
    i: int,
    slot: int,
    key: int,
    u: float,
    num_cells: int,
    params: Params,
    state: State,
    orders: Orders,
    extras: Extras,
) -> int:
    """The cell of a request."""
    j = _home(r, i, slot, num_cells, extras)
    arc = j != NONE and not math.isnan(params.tau_s[r, i, j])
    if arc and _accepts(r, i, j, key, num_cells, extras):
        return j
    background = extras.setting[r, BACKGROUND]
    if background > 0.0 and uniform(extras.flag[r, SEED] + EXPLORE, key, 0) < background:
        arcs = 0
        for j in range(num_cells):
            arcs += 0 if math.isnan(params.tau_s[r, i, j]) else 1
        turn = int(uniform(extras.flag[r, SEED] + EXPLORED, key, 0) * arcs)
        for j in range(num_cells):
            if not math.isnan(params.tau_s[r, i, j]):
                if turn == 0:
                    return j
                turn -= 1
    if orders.mode[r] == TABLE:
        return _from_table(r, i, slot, key, u, num_cells, params, orders, extras)
    if orders.mode[r] >= SCORE and not _adjust_scores(
        r, i, slot, key, num_cells, params, orders, extras
    ):
        return _mildest(r, i, num_cells, params, extras)
    return choose_cell(
        orders.mode[r],
        extras.weights[r, i],
        orders.slope[r, i],
        orders.offset[r, i],
        orders.samples[r],
        orders.table[r, i],
        i,
        state.last_cell[r],
        state.credit[r, i],
        params.tau_s[r, i],
        state.arc[r, i],
        u,
        num_cells,
    )
