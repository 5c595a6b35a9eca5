"""Runs the compiled engine on the reference's own inputs, one row per (system, requests) pair."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym import engine
from dlb_gym.engine import layout
from tests.parity.random_choices import ENTRIES
from tests.reference import Decide, Decision, Requests, System

MODES = {
    "sample": layout.SAMPLE,
    "smooth": layout.SMOOTH,
    "score": layout.SCORE,
    "cube": layout.CUBE,
    "drill": layout.DRILL,
    "table": layout.TABLE,
}


class EngineView(NamedTuple):
    """The reference's view fields, as the engine holds them after a step."""

    rif: NDArray[np.int64]
    servers: NDArray[np.int64]
    received: NDArray[np.int64]
    error_rate: NDArray[np.float64]
    emitted_s: NDArray[np.float64]
    sent: NDArray[np.int64]
    answered: NDArray[np.int64]
    in_system_integral: float
    rejected: int
    arrived: int


def build(
    cases: list[tuple[System, Requests]],
) -> tuple[engine.Params, engine.State, engine.Arrivals, engine.Orders]:
    """Engine arrays for the cases, padded to the largest of them."""
    roots = max(system.tau_s.shape[0] for system, _ in cases)
    cells = max(system.tau_s.shape[1] for system, _ in cases)
    servers = max(max(k for _, k in c) for system, _ in cases for c in system.live_servers)
    changes = max(len(c) for system, _ in cases for c in system.live_servers)
    offered = max(len(requests.root) for _, requests in cases)
    probes = max(
        math.ceil(np.nanmax(system.tau_s) / system.probe_interval_s) + 3 for system, _ in cases
    )
    sizes = engine.Sizes(
        replications=len(cases),
        roots=roots,
        cells=cells,
        servers=servers,
        slots=max(system.decode_slots for system, _ in cases),
        queue=max(system.queue_limit for system, _ in cases),
        changes=changes + 1,
        probes=1 << (probes - 1).bit_length(),
        pool=offered,
        wire=offered,
        log=offered,
        arrivals=offered,
    )
    params, state, arrivals, orders = engine.allocate(sizes)
    orders = orders._replace(table=np.zeros((len(cases), roots, ENTRIES), dtype=np.int16))
    params.tau_s[:] = np.nan
    params.change_s[:] = np.inf
    params.own_cell[:] = layout.NONE
    for r, (system, requests) in enumerate(cases):
        num_roots, num_cells = system.tau_s.shape
        params.shape[r] = num_roots, num_cells, system.decode_slots, system.queue_limit, 1
        params.clock[r, : layout.LOAD_DECAY] = (
            system.control_interval_s,
            system.probe_interval_s,
            system.router_delay_s,
            -1.0,
            math.inf,
            math.inf,
        )
        params.tau_s[r, :num_roots, :num_cells] = system.tau_s
        params.service[r, :num_cells, 0] = system.prefill_s_per_token
        params.service[r, :num_cells, 1] = system.decode_s_per_token
        for j, schedule in enumerate(system.live_servers):
            for e, (time_s, live) in enumerate(schedule):
                params.change_s[r, j, e], params.change_live[r, j, e] = time_s, live
        engine.clear_row(r, state, arrivals)
        engine.hold_empty_reports(r, params, state)
        for i in range(num_roots):
            mine = requests.root == i
            count = int(mine.sum())
            arrivals.stop[r, i] = count
            columns = (
                requests.arrival_s,
                requests.prompt_tokens,
                requests.output_tokens,
                requests.u_route,
                requests.u_leaf,
            )
            for column, values in enumerate(columns):
                arrivals.requests[r, i, :count, column] = values[mine]
    return params, state, arrivals, orders


def set_orders(orders: engine.Orders, r: int, decision: Decision) -> None:
    """Puts a reference decision into row r."""
    orders.mode[r] = MODES[decision.mode]
    orders.samples[r] = decision.samples
    base = decision.base if decision.routing is None else decision.routing
    for array, given in (
        (orders.base, base),
        (orders.slope, decision.slope),
        (orders.offset, decision.offset),
    ):
        if given is not None:
            array[r, : given.shape[0], : given.shape[1]] = given
    if decision.table is not None:
        orders.table[r, : decision.table.shape[0]] = decision.table


def view(r: int, system: System, state: engine.State) -> EngineView:
    """Row r's view, cut to the system's own size."""
    window = (r, slice(0, system.tau_s.shape[0]), slice(0, system.tau_s.shape[1]))
    held, held_time, arc = state.held[window], state.held_time[window], state.arc[window]
    return EngineView(
        rif=held[..., layout.HELD_RIF],
        servers=held[..., layout.HELD_SERVERS],
        received=held[..., layout.HELD_RECEIVED],
        error_rate=held_time[..., layout.HELD_ERROR_RATE],
        emitted_s=held_time[..., layout.HELD_EMITTED_S],
        sent=arc[..., layout.SENT],
        answered=arc[..., layout.ANSWERED_ARC],
        in_system_integral=float(state.row_time[r, layout.IN_SYSTEM_S]),
        rejected=int(state.row[r, layout.REJECTED]),
        arrived=int(state.row[r, layout.ARRIVED]),
    )


def simulate(
    cases: list[tuple[System, Requests]], decide: Decide, num_steps: int
) -> tuple[list[list[EngineView]], list[NDArray[np.float64]]]:
    """Views of every row after every step, and each row's log in (root, send) order."""
    params, state, arrivals, orders = build(cases)
    views: list[list[EngineView]] = [[] for _ in cases]
    for step in range(num_steps):
        for r in range(len(cases)):
            set_orders(orders, r, decide(step, []))
        target = np.full(len(cases), step + 1, dtype=np.int64)
        assert engine.advance(params, state, arrivals, orders, None, target)[0] == engine.READY
        for r, (system, _) in enumerate(cases):
            views[r].append(EngineView(*(np.copy(v) for v in view(r, system, state))))
    logs = []
    for r in range(len(cases)):
        log = state.log[r, : state.row[r, layout.LOG_SIZE]]
        order = np.lexsort((log[:, layout.LOG_SEND_NUMBER], log[:, layout.LOG_ROOT]))
        logs.append(log[order])
    return views, logs
