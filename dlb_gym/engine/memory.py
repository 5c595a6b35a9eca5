"""Allocation, clearing and growth of the engine's arrays."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.engine.layout import NONE, Arrivals, Orders, Params, State

Tuple = TypeVar("Tuple", Params, Arrivals, Orders, State)


class Sizes(NamedTuple):
    """Lengths of the axes: see `layout`. `arrivals` is the capacity of a root's drawn requests."""

    replications: int
    roots: int
    cells: int
    servers: int
    slots: int
    queue: int
    changes: int
    probes: int
    pool: int
    wire: int
    log: int
    arrivals: int


def allocate(sizes: Sizes) -> tuple[Params, State, Arrivals, Orders]:
    """Zeroed arrays of the given sizes; `clear_row` makes a row ready."""
    n, roots, cells, servers = sizes[:4]

    def ints(*shape: int) -> NDArray[np.int64]:
        return np.zeros((n, *shape), dtype=np.int64)

    def floats(*shape: int) -> NDArray[np.float64]:
        return np.zeros((n, *shape), dtype=np.float64)

    def ids(*shape: int) -> NDArray[np.int32]:
        return np.zeros((n, *shape), dtype=np.int32)

    params = Params(
        shape=ints(5),
        clock=floats(7),
        tau_s=floats(roots, cells),
        service=floats(cells, 2),
        own_cell=ints(roots),
        change_s=floats(cells, sizes.changes),
        change_live=ints(cells, sizes.changes),
    )
    done = servers * sizes.queue
    state = State(
        step=ints(),
        row=ints(layout.ROW_COLUMNS),
        row_time=floats(layout.ROW_TIME_COLUMNS),
        arrival_load=floats(roots),
        arc=ints(roots, cells, layout.ARC_COLUMNS),
        received=ints(cells, roots),
        credit=floats(roots, cells),
        last_cell=ints(roots),
        cell=ints(cells, layout.CELL_COLUMNS),
        cell_time=floats(cells, layout.CELL_TIME_COLUMNS),
        server=ints(cells, servers, layout.SERVER_COLUMNS),
        server_free=floats(cells, servers, 1 + sizes.slots),
        wire_time=floats(cells, sizes.wire),
        wire_id=ids(cells, sizes.wire),
        done_time=floats(cells, done),
        done_id=ids(cells, done),
        probe=ints(cells, sizes.probes, layout.PROBE_RECEIVED + roots),
        probe_error_rate=floats(cells, sizes.probes),
        held=ints(roots, cells, 3),
        held_time=floats(roots, cells, 2),
        request=floats(sizes.pool, layout.REQUEST_COLUMNS),
        free=ids(sizes.pool),
        histogram=ints(layout.HISTOGRAMS, layout.HISTOGRAM_BINS),
        log=floats(sizes.log, layout.LOG_COLUMNS),
    )
    arrivals = Arrivals(
        requests=floats(roots, sizes.arrivals, layout.ARRIVAL_COLUMNS),
        first=ints(roots),
        stop=ints(roots),
    )
    orders = Orders(
        mode=ints(),
        base=floats(roots, cells),
        slope=floats(roots, cells),
        offset=floats(roots, cells),
        token_value=floats(roots, cells),
        samples=ints(),
        table=np.zeros((n, roots, 1), dtype=np.int16),
    )
    return params, state, arrivals, orders


def clear_row(r: int, state: State, arrivals: Arrivals) -> None:
    """Empties row r: no request anywhere, clock 0, no probe held."""
    for array in state:
        array[r] = 0
    state.last_cell[r] = NONE
    state.arc[r, ..., layout.ANSWER_HEAD] = NONE
    state.arc[r, ..., layout.ANSWER_TAIL] = NONE
    state.server[r, ..., layout.PREFILL_HEAD] = NONE
    state.server[r, ..., layout.PREFILL_TAIL] = NONE
    pool = state.free.shape[1]
    state.free[r] = np.arange(pool)[::-1]
    state.row[r, layout.FREE] = pool
    arrivals.first[r] = 0
    arrivals.stop[r] = 0


def hold_empty_reports(r: int, params: Params, state: State) -> None:
    """Until the first probe, a root holds the report of an empty cell emitted at clock 0."""
    arcs = ~np.isnan(params.tau_s[r])
    state.held[r, ..., layout.HELD_SERVERS] = np.where(arcs, params.change_live[r, :, 0], 0)


def enlarged(array: NDArray[np.generic], axis: int, length: int) -> NDArray[np.generic]:
    """A copy with one axis lengthened, new entries zero."""
    shape = list(array.shape)
    shape[axis] = length
    larger = np.zeros(shape, dtype=array.dtype)
    larger[tuple(slice(0, size) for size in array.shape)] = array
    return larger


def at_least(arrays: Tuple, axis: int, length: int, *fields: str) -> Tuple:
    """The tuple with the named arrays lengthened along an axis where they are shorter."""
    changes: dict[str, Any] = {
        field: enlarged(getattr(arrays, field), axis, length)
        for field in fields
        if getattr(arrays, field).shape[axis] < length
    }
    return arrays._replace(**changes)


def more_servers(state: State, servers: int) -> State:
    """The state with places for so many servers of a cell, those that are new idle."""
    old = state.server.shape[2]
    state = at_least(state, 2, servers, "server", "server_free")
    state.server[:, :, old:, (layout.PREFILL_HEAD, layout.PREFILL_TAIL)] = NONE
    return state


def enlarge_rings(state: State, length: int) -> State:
    """Longer rings of reports; report m stays where the kernels look for it, at m modulo length."""
    old = state.probe_error_rate.shape[2]
    numbers = state.cell[..., layout.NEXT_PROBE, None] - 1 - np.arange(old)
    r, j, k = np.nonzero(numbers >= 0)
    m = numbers[r, j, k]
    larger = {}
    for name in ("probe", "probe_error_rate"):
        array = getattr(state, name)
        larger[name] = np.zeros((*array.shape[:2], length, *array.shape[3:]), dtype=array.dtype)
        larger[name][r, j, m % length] = array[r, j, m % old]
    return state._replace(**larger)


def enlarge_pool(state: State, length: int) -> State:
    """More requests in the system; the new ids are put on every row's stack of free ones."""
    old = state.free.shape[1]
    state = at_least(state, 1, length, "request", "free")
    new_ids = np.arange(old, length)
    for r in range(len(state.step)):
        free = state.row[r, layout.FREE]
        state.free[r, free : free + length - old] = new_ids
        state.row[r, layout.FREE] += length - old
    return state
