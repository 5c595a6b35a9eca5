"""Allocation, clearing and growth of the mechanisms' arrays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from dlb_gym.engine import estimator, extras, fitting, layout
from dlb_gym.engine.affinity import allocate_cache, allocate_map, clear_cache, move_caches
from dlb_gym.engine.batches import allocate_batches, clear_batches
from dlb_gym.engine.extras import Extras
from dlb_gym.engine.layout import NEXT_PROBE, NONE, Params, State
from dlb_gym.engine.leaf_memory import allocate_leaf_memory


class ExtraSizes(NamedTuple):
    """Lengths of the axes: see `layout`, `extras` and `leaf_memory`; all at least 1."""

    replications: int
    roots: int
    cells: int
    servers: int
    changes: int
    probes: int
    pool: int
    leaves: int
    windows: int
    map_sessions: int
    cache_sessions: int
    max_batch: int
    leaf_windows: int = 1
    leaf_probes: int = 1


def allocate_extras(sizes: ExtraSizes) -> Extras:
    """Zeroed arrays; `clear_extras` makes a row ready."""
    n, roots, cells, servers = sizes[:4]

    def ints(*shape: int) -> Any:
        return np.zeros((n, *shape), dtype=np.int64)

    def floats(*shape: int) -> Any:
        return np.zeros((n, *shape))

    return Extras(
        flag=ints(extras.FLAG_COLUMNS),
        setting=floats(extras.SETTING_COLUMNS),
        server_rps=floats(cells),
        prefill_s=floats(cells),
        first_prior=floats(fitting.PARAMETERS),
        change=floats(cells, sizes.changes, extras.CHANGE_COLUMNS),
        window=floats(roots, cells, sizes.windows, extras.WINDOW_COLUMNS),
        leaf_down=floats(cells, sizes.leaves, 2),
        root_down=floats(roots, 3),
        row=ints(extras.EXTRA_ROW_COLUMNS),
        errors=ints(extras.ERROR_KINDS),
        cached=floats(extras.CACHED_COLUMNS),
        root=ints(roots, extras.ROOT_COLUMNS),
        budget=floats(roots),
        weights=floats(roots, cells),
        aversion=floats(roots, cells),
        rtt_s=floats(roots, cells),
        model=floats(roots, cells, 4),
        backlog=floats(roots, cells, 2),
        arc=floats(roots, cells, extras.EXTRA_ARC_COLUMNS),
        cell=floats(cells, extras.EXTRA_CELL_COLUMNS),
        tally=ints(cells, extras.TALLY_COLUMNS),
        leaf=ints(cells, sizes.leaves, extras.LEAF_COLUMNS),
        placed=ints(cells, sizes.leaves, servers, extras.PLACED_COLUMNS),
        seen=ints(cells, servers, extras.SEEN_COLUMNS),
        report=ints(cells, sizes.probes, extras.REPORT_COLUMNS),
        request=floats(sizes.pool, extras.EXTRA_REQUEST_COLUMNS),
        bins=floats(cells, estimator.BINS, estimator.BIN_COLUMNS),
        fitted=floats(2, cells, fitting.PARAMETERS),
        samples=floats(2, cells),
        scratch=floats(fitting.SCRATCH_ROWS + 1, fitting.SCRATCH_COLUMNS),
        models=floats(cells, extras.MODEL_ROUNDS, 4),
        homes=allocate_map((n, roots), sizes.map_sessions),
        cache=allocate_cache((n, cells), servers, sizes.cache_sessions),
        batches=allocate_batches(n, cells, servers, sizes.max_batch),
        rules=allocate_leaf_memory(
            (n, cells), servers, sizes.leaves, sizes.leaf_windows, sizes.leaf_probes
        ),
    )


def clear_extras(r: int, memory: Extras) -> None:
    """Empties row r: no mechanism is on, nothing is remembered, no fault is to come."""
    for name, field in memory._asdict().items():
        if name not in ("cache", "batches", "rules", "homes"):
            field[r] = 0
    memory.setting[r, extras.REFIT_S] = math.inf
    memory.setting[r, extras.MAX_WAIT_S] = math.inf
    memory.flag[r, extras.ROOT_REPLICAS] = 1
    memory.flag[r, extras.LEAVES] = 1
    memory.change[r, ..., extras.SPEED] = 1.0
    memory.change[r, ..., extras.LEAF_FAILS] = NONE
    memory.window[r, ..., : extras.EXTRA_S] = math.inf
    memory.leaf_down[r] = math.inf
    memory.root_down[r, :, :2] = math.inf
    memory.root[r, ..., (extras.RETRY_HEAD, extras.RETRY_TAIL)] = NONE
    memory.arc[r, ..., extras.TRUST] = 1.0
    memory.arc[r, ..., extras.HIT_RATE] = 1.0
    memory.cell[r, :, extras.CELL_SPEED] = 1.0
    memory.tally[r, :, (extras.NEXT_LOOK, extras.NEXT_GATHERING)] = NONE
    memory.homes[r] = NONE
    clear_cache(type(memory.cache)(*(array[r] for array in memory.cache)))
    clear_batches(r, memory.batches)
    for array in memory.rules:
        array[r] = 0


def publish(r: int, memory: Extras, params: Params, model: Any, parameters: Any) -> None:
    """Row r begins with these latency models, (C, 4), and their logarithmic parameters, (C, 4)."""
    memory.models[r] = model[:, None]
    memory.model[r] = model
    memory.fitted[r] = parameters
    memory.rtt_s[r] = 2.0 * np.nan_to_num(params.tau_s[r])


def enlarged_extras(memory: Extras, sizes: ExtraSizes, state: State) -> Extras:
    """The same rows in longer arrays; reports move to where a longer ring has them."""
    larger = allocate_extras(sizes)
    for r in range(sizes.replications):
        clear_extras(r, larger)
    for name in Extras._fields:
        old, new = getattr(memory, name), getattr(larger, name)
        if name == "cache":
            move_caches(old, new)
        elif isinstance(old, tuple):
            for source, target in zip(old, new, strict=True):
                target[tuple(slice(0, size) for size in source.shape)] = source
        elif name != "report":
            new[tuple(slice(0, size) for size in old.shape)] = old
    _move_reports(memory.report, larger.report, state)
    return larger


def _move_reports(old: Any, new: Any, state: State) -> None:
    numbers = state.cell[..., NEXT_PROBE, None] - 1 - np.arange(old.shape[2])
    r, j, k = np.nonzero(numbers >= 0)
    m = numbers[r, j, k]
    new[r, j, m % new.shape[2]] = old[r, j, m % old.shape[2]]


def take_over(r: int, memory: Extras, params: Params, state: State) -> None:
    """What cleared extras would hold of row r, had they been there from its clock 0 on.

    Without mechanisms all errors are those of full servers.
    """
    request, more = state.request[r], memory.request[r]
    memory.errors[r, extras.FULL] = state.row[r, layout.MEASURED_ERRORS]
    memory.root[r, :, extras.SEND_NUMBER] = state.row[r, layout.ARRIVED]
    more[:, (extras.LEAF, extras.TRIES, extras.PREFIX_TOKENS, extras.HIT_TOKENS)] = 0.0
    more[:, (extras.KIND, extras.SESSION, extras.SESSION_HASH, extras.ENTRY)] = NONE
    more[:, extras.SENT_S] = request[:, layout.ARRIVAL_S]
    root = request[:, layout.KEY].astype(np.int64) >> layout.KEY_SHIFT
    sent_s = request[:, layout.ARRIVAL_S] + params.clock[r, layout.ROUTER_DELAY_S]
    for c in range(params.shape[r, layout.NUM_CELLS]):
        mine = state.done_id[r, c, : state.cell[r, c, layout.DONE_SIZE]]
        more[mine, extras.LEAF_S] = sent_s[mine] + params.tau_s[r, root[mine], c]
        memory.leaf[r, c, 0, extras.LEAF_RIF] = len(mine)
        memory.tally[r, c, extras.LEAVES_RIF] = len(mine)
        tokens = int(request[mine, layout.OUTPUT_TOKENS].sum())
        memory.tally[r, c, extras.OUTPUT_BACKLOG] = tokens
        for i in range(params.shape[r, layout.NUM_ROOTS]):
            slot = int(state.arc[r, i, c, layout.ANSWER_HEAD])
            while slot != NONE:
                more[slot, extras.LEAF_S] = sent_s[slot] + params.tau_s[r, i, c]
                if request[slot, layout.SERVER] == NONE:
                    more[slot, extras.KIND] = extras.FULL
                slot = int(request[slot, layout.NEXT])
