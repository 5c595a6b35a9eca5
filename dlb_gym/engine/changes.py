"""What a cell's schedule brings about at an instant: speeds, failing requests, crashes."""

from __future__ import annotations

from dlb_gym.engine.affinity import drop_server
from dlb_gym.engine.batches import RUNNING, WAIT_HEAD, of_cell
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    BATCHING,
    CELL_ERROR_FRACTION,
    CELL_SPEED,
    ERROR_FRACTION,
    LEAF,
    LEAF_FAILS,
    SERVERS_CRASH,
    SPEED,
    Extras,
    cell_cache,
)
from dlb_gym.engine.faults import change_speed, crash_servers, fail_batch
from dlb_gym.engine.layout import DONE_SIZE, NEXT, NEXT_CHANGE, NONE, Params, State
from dlb_gym.engine.leaf_rules import forget
from dlb_gym.engine.leaves import keep_seen, lose_rif


@part
def change_cell(now_s: float, r: int, c: int, params: Params, state: State, extras: Extras) -> None:
    """The cell's next change, apart from the number of live servers."""
    index = state.cell[r, c, NEXT_CHANGE]
    change = extras.change[r, c, index]
    live = params.change_live[r, c, index]
    batching = extras.flag[r, BATCHING] > 0
    if change[SERVERS_CRASH] > 0.0:
        _crash(now_s, r, c, live, batching, state, extras)
    replica = int(change[LEAF_FAILS])
    if replica != NONE:
        _lose_leaf(r, c, replica, batching, state, extras)
    speed = extras.cell[r, c, CELL_SPEED]
    if change[SPEED] != speed and not batching:
        change_speed(
            now_s,
            c,
            speed / change[SPEED],
            state.cell[r],
            state.server_free[r, c],
            state.done_time[r, c],
            state.done_id[r, c],
            state.request[r],
            extras.request[r],
        )
    extras.cell[r, c, CELL_SPEED] = change[SPEED]
    extras.cell[r, c, CELL_ERROR_FRACTION] = change[ERROR_FRACTION]


@part
def _crash(
    now_s: float, r: int, c: int, live: int, batching: bool, state: State, extras: Extras
) -> None:
    """Servers from `live` on stop, and what they kept is gone."""
    cache = cell_cache(extras, r, c)
    for s in range(live, len(state.server[r, c])):
        keep_seen(r, c, s, state, extras)
        drop_server(cache, s)
        extras.rules.finishes[r, c, s] = 0
        if batching:
            fail_batch(now_s, r, c, s, of_cell(extras.batches, r, c), state, extras)
    if not batching:
        crash_servers(
            now_s,
            c,
            live,
            state.row[r],
            state.arc[r],
            state.cell[r],
            state.cell_time[r],
            state.server[r, c],
            state.server_free[r, c],
            state.done_time[r, c],
            state.done_id[r, c],
            state.request[r],
            extras.request[r],
            extras.leaf[r, c],
            extras.tally[r, c],
        )


@part
def _lose_leaf(r: int, c: int, replica: int, batching: bool, state: State, extras: Extras) -> None:
    """A leaf replica crashes; nobody answers for its requests."""
    if batching:
        own = of_cell(extras.batches, r, c)
        for s in range(len(own.server)):
            for b in range(own.server[s, RUNNING]):
                _orphan(r, int(own.running[s, b]), replica, extras)
            slot = own.server[s, WAIT_HEAD]
            while slot != NONE:
                _orphan(r, slot, replica, extras)
                slot = int(state.request[r, slot, NEXT])
    else:
        for k in range(state.cell[r, c, DONE_SIZE]):
            _orphan(r, int(state.done_id[r, c, k]), replica, extras)
    lose_rif(replica, extras.leaf[r, c], extras.tally[r, c])
    forget(r, c, replica, extras)


@part
def _orphan(r: int, slot: int, replica: int, extras: Extras) -> None:
    if extras.request[r, slot, LEAF] == replica:
        extras.request[r, slot, LEAF] = NONE
