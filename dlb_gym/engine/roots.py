"""Phase one with mechanisms: how a root sends its requests.

In order: those that clients send again, then the interval's arrivals, numbered root by root: what
hashes of the number decide at a root depends on no other root. See `choosing` for their cells.
"""

from __future__ import annotations

import math

from dlb_gym.engine.affinity import forget_replica
from dlb_gym.engine.aversion import spend_aversion, update_aversion
from dlb_gym.engine.choosing import choose
from dlb_gym.engine.compile import part
from dlb_gym.engine.curve import latencies
from dlb_gym.engine.dispatch import enter, note_away, send
from dlb_gym.engine.extras import (
    AFFINITY,
    AVERSION_S,
    AVERTING,
    BUDGET,
    CONDITIONAL,
    DOWN_REPLICAS,
    DOWN_S,
    FORGOT,
    HASHED,
    HIT_TOKENS,
    KIND,
    LATENCY_S,
    LEAF,
    LEAVES,
    PREFIX_TOKENS,
    PROBE_TIMEOUT_S,
    RESENT,
    RETRY,
    RETRY_BURST,
    RETRY_HEAD,
    RETRY_TAIL,
    RETRYING,
    ROOT_REPLICAS,
    SEED,
    SEND_NUMBER,
    SENT_S,
    SESSION,
    SESSION_HASH,
    SPENT,
    TRIES,
    UNREACHABLE,
    UPDATES,
    Extras,
    session_map,
)
from dlb_gym.engine.faults import is_cut, seems_down, tau_at
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import (
    ARRIVAL_COLUMNS,
    ARRIVAL_S,
    ARRIVED,
    FREE,
    HELD_RIF,
    HELD_SERVERS,
    KEY,
    KEY_SHIFT,
    NEXT,
    NONE,
    NUM_CELLS,
    PROBE_INTERVAL_S,
    ROUTER_DELAY_S,
    SENT,
    SMOOTH,
    U_LEAF,
    U_ROUTE,
    Arrivals,
    Orders,
    Params,
    State,
)


@part
def _prepare(
    r: int,
    i: int,
    start_s: float,
    num_cells: int,
    params: Params,
    state: State,
    orders: Orders,
    extras: Extras,
) -> None:
    """What the root's requests of an interval have in common."""
    _forget(r, i, start_s, extras)
    weights = extras.weights[r, i]
    averted = 0.0
    for j in range(num_cells):
        weights[j] = orders.base[r, i, j]
        averted += extras.aversion[r, i, j]
    if averted > 0.0 or extras.flag[r, AFFINITY] == HASHED:
        _note_capacities(r, i, num_cells, params, state, extras)
    if averted > 0.0 and extras.flag[r, SPENT] == 0 and orders.mode[r] <= SMOOTH:
        capacity = extras.arc[r, i, :, LATENCY_S]
        spend_aversion(num_cells, orders.base[r, i], extras.aversion[r, i], capacity, weights)
    if extras.flag[r, AFFINITY] == CONDITIONAL:
        _note_latencies(r, i, num_cells, params, state, extras)


@part
def _forget(r: int, i: int, start_s: float, extras: Extras) -> None:
    """What crashed replicas of a root remembered is gone at the next decision."""
    down = extras.root_down[r, i]
    if extras.root[r, i, FORGOT] == 0 and down[DOWN_S] <= start_s:
        extras.root[r, i, FORGOT] = 1
        for replica in range(int(down[DOWN_REPLICAS])):
            forget_replica(session_map(extras, r, i), replica, extras.flag[r, ROOT_REPLICAS])


@part
def _note_capacities(
    r: int, i: int, num_cells: int, params: Params, state: State, extras: Extras
) -> None:
    """Nominal rates by the reports held, in the column of latencies; 0 where there is no arc."""
    memory = extras.arc[r, i]
    for j in range(num_cells):
        memory[j, LATENCY_S] = 0.0
        if not math.isnan(params.tau_s[r, i, j]):
            memory[j, LATENCY_S] = state.held[r, i, j, HELD_SERVERS] * extras.server_rps[r, j]


@part
def _note_latencies(
    r: int, i: int, num_cells: int, params: Params, state: State, extras: Extras
) -> None:
    """End-to-end latencies by the reports held; infinite where there is no arc."""
    memory = extras.arc[r, i]
    for j in range(num_cells):
        memory[j, LATENCY_S] = math.inf
        if not math.isnan(params.tau_s[r, i, j]):
            n = state.held[r, i, j, HELD_RIF] / max(state.held[r, i, j, HELD_SERVERS], 1)
            model = extras.model[r, i, j]
            latency_s, _ = latencies(n, model[0], model[1], model[2], model[3])
            memory[j, LATENCY_S] = latency_s + extras.rtt_s[r, i, j]


@part
def _leaf_of(
    r: int, i: int, j: int, now_s: float, params: Params, state: State, extras: Extras
) -> int:
    """Round robin over the replicas of cell j that the root holds for alive."""
    leaves = extras.flag[r, LEAVES]
    first = state.arc[r, i, j, SENT] % leaves
    for turn in range(leaves):
        leaf = (first + turn) % leaves
        if not seems_down(
            now_s,
            leaf,
            leaves,
            params.clock[r, PROBE_INTERVAL_S],
            params.tau_s[r, i, j],
            extras.setting[r, PROBE_TIMEOUT_S],
            extras.leaf_down[r, j, leaf],
        ):
            return int(leaf)
    return int(first)


@part
def _dispatch(
    r: int,
    i: int,
    slot: int,
    now_s: float,
    number: int,
    u: float,
    num_cells: int,
    params: Params,
    state: State,
    orders: Orders,
    extras: Extras,
) -> int:
    """Sends a request now; returns its cell."""
    key = (i << KEY_SHIFT) + number
    more = extras.request[r, slot]
    j = choose(r, i, slot, key, u, num_cells, params, state, orders, extras)
    window = extras.window[r, i, j]
    leaf_s = (now_s + params.clock[r, ROUTER_DELAY_S]) + tau_at(
        now_s, params.tau_s[r, i, j], window
    )
    state.request[r, slot, KEY] = key
    more[SENT_S] = now_s
    more[HIT_TOKENS] = 0.0
    more[KIND] = UNREACHABLE if is_cut(now_s, leaf_s, window) else NONE
    more[LEAF] = _leaf_of(r, i, j, now_s, params, state, extras)
    send(
        j,
        leaf_s,
        slot,
        state.arc[r, i],
        state.cell[r],
        state.wire_time[r],
        state.wire_id[r],
        state.request[r],
    )
    return j


@part
def send_all(
    r: int,
    i: int,
    start_s: float,
    end_s: float,
    first: int,
    stop: int,
    params: Params,
    state: State,
    arrivals: Arrivals,
    orders: Orders,
    extras: Extras,
) -> None:
    """Sends what clients of root i send again at `start_s`, and requests [first, stop)."""
    num_cells = params.shape[r, NUM_CELLS]
    clock, row = params.clock[r], state.row[r]
    _prepare(r, i, start_s, num_cells, params, state, orders, extras)
    number = extras.root[r, i, SEND_NUMBER]
    slot = extras.root[r, i, RETRY_HEAD]
    while slot != NONE:
        following = int(state.request[r, slot, NEXT])
        key = (i << KEY_SHIFT) + number
        u = uniform(extras.flag[r, SEED] + RETRY, key, 0)
        state.request[r, slot, U_LEAF] = uniform(extras.flag[r, SEED] + RETRY, key, 1)
        _dispatch(r, i, slot, start_s, number, u, num_cells, params, state, orders, extras)
        number += 1
        slot = following
    extras.row[r, RESENT] += extras.root[r, i, RETRYING]
    extras.root[r, i, RETRY_HEAD] = NONE
    extras.root[r, i, RETRY_TAIL] = NONE
    extras.root[r, i, RETRYING] = 0
    requests = arrivals.requests[r, i]
    sessions = requests.shape[1] > ARRIVAL_COLUMNS
    for index in range(first, stop):
        row[FREE] -= 1
        slot = int(state.free[r, row[FREE]])
        enter(slot, requests, index, end_s, clock, row, state.row_time[r], state.request[r])
        more = extras.request[r, slot]
        more[TRIES] = 0.0
        more[SESSION] = requests[index, ARRIVAL_COLUMNS] if sessions else -1.0
        more[SESSION_HASH] = requests[index, ARRIVAL_COLUMNS + 1] if sessions else -1.0
        more[PREFIX_TOKENS] = requests[index, ARRIVAL_COLUMNS + 2] if sessions else 0.0
        arrival_s = requests[index, ARRIVAL_S]
        u = requests[index, U_ROUTE]
        j = _dispatch(r, i, slot, arrival_s, number, u, num_cells, params, state, orders, extras)
        number += 1
        note_away(arrival_s, j, params.own_cell[r, i], clock, row)
    row[ARRIVED] += stop - first
    extras.root[r, i, SEND_NUMBER] = number
    earned = extras.setting[r, BUDGET] * (stop - first)
    extras.budget[r, i] = min(extras.budget[r, i] + earned, max(RETRY_BURST, earned))


@part
def update_root(r: int, i: int, now_s: float, params: Params, state: State, extras: Extras) -> None:
    """The control loop of aversion, when it is due."""
    if extras.flag[r, AVERTING] == 0:
        return
    if now_s < (extras.root[r, i, UPDATES] + 1) * extras.setting[r, AVERSION_S]:
        return
    extras.root[r, i, UPDATES] += 1
    update_aversion(
        now_s,
        params.shape[r, NUM_CELLS],
        extras.setting[r],
        params.tau_s[r, i],
        extras.rtt_s[r, i],
        state.held_time[r, i],
        state.arc[r, i],
        extras.arc[r, i],
        extras.aversion[r, i],
    )
