"""A plain event-driven reference of the simulated system, for one replication.

The system of DESIGN.md section 4 is modelled literally: one heap of events, one FIFO queue per
stage and server, counters that events change. Nothing here is fast and nothing is predicted: a
completion is known when it happens. It exists to be compared with the engine request by request,
with exact equality of times, so every time is formed by one fixed expression::

    leaf    = (arrival + router_delay) + tau
    prefill = max(leaf, engine free) + prompt_tokens * prefill_s_per_token
    done    = max(prefill, earliest slot free) + output_tokens * decode_s_per_token
    answer  = done + tau            (an error: leaf + tau)
    step k  = k * h,  probe m = m * p,  and probe m is held at t if m * p + tau <= t

Events of one instant take place in the order of the ``_Rank`` members. Because a decision is the
last thing to happen at its instant, a request that arrives at ``k * h`` still follows decision
``k - 1``; decision 0 alone precedes everything, so the first interval contains clock 0.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.reference_choices import Decision, Dispatcher, choose_server
from tests.reference_state import Report, Server, new_cell

__all__ = ["Decision", "Requests", "Result", "System", "View", "simulate"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class System:
    """What serves: network, cells and intervals.

    Attributes:
        tau_s: One-way network latency, shape (roots, cells), nan where there is no arc.
        prefill_s_per_token: Shape (cells,).
        decode_s_per_token: Shape (cells,).
        live_servers: Per cell ((time, live count from that instant on), ...), the first at 0.
        decode_slots: Pooled slots of one server, over all its decode engines.
        queue_limit: Requests waiting or running on one server at which it is full.
        router_delay_s: Time a request spends in the root router.
        probe_interval_s: Time between two emissions of a cell.
        control_interval_s: Time between two decisions.
    """

    tau_s: Floats
    prefill_s_per_token: Floats
    decode_s_per_token: Floats
    live_servers: tuple[tuple[tuple[float, int], ...], ...]
    decode_slots: int
    queue_limit: int
    router_delay_s: float
    probe_interval_s: float
    control_interval_s: float


@dataclass(frozen=True)
class Requests:
    """What is offered: columns of equal length, sorted by root, then by arrival time."""

    root: Ints
    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    u_route: Floats
    u_leaf: Floats


@dataclass(frozen=True)
class View:
    """What roots know at a decision instant, and the books of the interval that ends there.

    Arrays have shape (roots, cells) and are zero where there is no arc. ``rif``, ``servers``,
    ``received`` and ``error_rate`` are those of the probe held, which left the cell at
    ``emitted_s``; ``sent``, ``answered`` (errors included) and ``errors`` are the root's own
    counts so far. ``in_system_integral`` is in request seconds, ``rejected`` counts the errors
    that leaves gave in the interval, ``arrived`` the requests that reached a root so far.
    """

    time_s: float
    rif: Ints
    servers: Ints
    received: Ints
    error_rate: Floats
    emitted_s: Floats
    sent: Ints
    answered: Ints
    errors: Ints
    in_system_integral: float
    rejected: int
    arrived: int


@dataclass(frozen=True)
class Result:
    """Request columns in the order of the input, and one view per decision instant, both ends.

    Columns: ``cell``, ``server`` (-1 for an error), ``leaf_s``, ``first_token_s``, ``done_s``,
    ``answer_s``, ``error``; nan or -1 for what has not happened by the end of the last interval.
    """

    requests: dict[str, NDArray[Any]]
    views: list[View]


Decide = Callable[[int, list[View]], Decision]


def simulate(system: System, requests: Requests, decide: Decide, num_steps: int) -> Result:
    """Run ``num_steps`` control intervals from an empty system at clock 0.

    Args:
        system: The system that serves.
        requests: The requests offered; those after the last interval are left out.
        decide: Called at step k (time k * h) with k and the views 0 to k.
        num_steps: Number of control intervals.

    Returns:
        The request columns and ``num_steps + 1`` views.

    Raises:
        ValueError: If columns are out of order, a cell has no live count at clock 0, or a
            decision gives a request no cell to go to.
    """
    _check(system, requests)
    return _Simulation(system, requests, decide).run(num_steps)


def _check(system: System, requests: Requests) -> None:
    for cell, changes in enumerate(system.live_servers):
        times = [time for time, _ in changes]
        if not times or times[0] != 0.0 or times != sorted(times):
            raise ValueError(
                f"live_servers[{cell}] = {changes}: times must start at 0 and never fall; "
                "give ((0.0, count), ...) in time order"
            )
    keys = list(zip(requests.root.tolist(), requests.arrival_s.tolist(), strict=True))
    if keys != sorted(keys) or any(time < 0.0 for _, time in keys):
        raise ValueError(
            "requests: rows must be sorted by root, then arrival_s, none before clock 0; "
            "order the columns by np.lexsort((arrival_s, root))"
        )


class _Rank(IntEnum):
    """Order of events at one instant."""

    LIVE_SERVERS = 0
    COMPLETION = 1
    ROOT = 2
    LEAF = 3
    PROBE = 4
    ANSWER = 5
    STEP = 6


class _Simulation:
    """State of one run; each method ``_on_...`` is what one kind of event does."""

    def __init__(self, system: System, requests: Requests, decide: Decide) -> None:
        self._system = system
        self._decide = decide
        self._tau: list[list[float]] = system.tau_s.tolist()
        num_roots, num_cells = system.tau_s.shape
        self._cells = [new_cell(changes, num_roots) for changes in system.live_servers]
        self._dispatchers = [
            Dispatcher(root, [not math.isnan(tau) for tau in row])
            for root, row in enumerate(self._tau)
        ]
        self._root: list[int] = requests.root.tolist()
        self._arrival: list[float] = requests.arrival_s.tolist()
        self._prompt: list[int] = requests.prompt_tokens.tolist()
        self._output: list[int] = requests.output_tokens.tolist()
        self._u_route: list[float] = requests.u_route.tolist()
        self._u_leaf: list[float] = requests.u_leaf.tolist()

        count = len(self._root)
        self._columns: dict[str, NDArray[Any]] = {
            name: np.full(count, -1, np.int64) for name in ("cell", "server")
        }
        for name in ("leaf_s", "first_token_s", "done_s", "answer_s"):
            self._columns[name] = np.full(count, np.nan)
        self._columns["error"] = np.zeros(count, np.bool_)

        self._counts = {
            name: np.zeros((num_roots, num_cells), np.int64)
            for name in ("sent", "answered", "errors")
        }
        self._views: list[View] = []
        self._arrived = self._in_system = self._rejected = 0
        self._integral = self._integrated_to_s = 0.0
        self._heap: list[tuple[float, _Rank, int, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._now = 0.0

    def run(self, num_steps: int) -> Result:
        self._on_step(0, num_steps)
        for cell, changes in enumerate(self._system.live_servers):
            for time, live in changes:
                self._at(time, _Rank.LIVE_SERVERS, partial(self._on_live, cell, live))
            self._at(0.0, _Rank.PROBE, partial(self._on_probe, cell, 0))
        for index, (root, time) in enumerate(zip(self._root, self._arrival, strict=True)):
            self._at(time, _Rank.ROOT, partial(self._on_root, index), root)
        while len(self._views) <= num_steps:
            self._now, _, _, _, action = heapq.heappop(self._heap)
            action()
        return Result(self._columns, self._views)

    def _at(
        self, time_s: float, rank: _Rank, action: Callable[[], None], order: int | None = None
    ) -> None:
        """Schedule; events of one instant and rank go by ``order``, then first come."""
        self._scheduled += 1
        heapq.heappush(self._heap, (time_s, rank, order or 0, self._scheduled, action))

    # -- roots ------------------------------------------------------------------------------

    def _on_step(self, step: int, num_steps: int) -> None:
        self._views.append(self._view())
        if step == num_steps:
            return
        decision = self._decide(step, list(self._views))
        for dispatcher in self._dispatchers:
            dispatcher.adopt(decision)
        end_s = (step + 1) * self._system.control_interval_s
        self._at(end_s, _Rank.STEP, partial(self._on_step, step + 1, num_steps))

    def _on_root(self, index: int) -> None:
        root = self._root[index]
        self._change_in_system(+1)
        self._arrived += 1
        cell = self._dispatchers[root].choose(self._u_route[index])
        self._columns["cell"][index] = cell
        self._counts["sent"][root, cell] += 1
        leaf_s = (self._now + self._system.router_delay_s) + self._tau[root][cell]
        # Sends of one root keep their order among equal leaf times: they are scheduled in it.
        self._at(leaf_s, _Rank.LEAF, partial(self._on_leaf, index, cell), root)

    def _on_answer(self, index: int, cell: int, failed: bool) -> None:
        root = self._root[index]
        self._change_in_system(-1)
        self._counts["answered"][root, cell] += 1
        self._counts["errors"][root, cell] += failed
        self._columns["answer_s"][index] = self._now

    def _change_in_system(self, change: int) -> None:
        self._integral += self._in_system * (self._now - self._integrated_to_s)
        self._integrated_to_s = self._now
        self._in_system += change

    # -- cells ------------------------------------------------------------------------------

    def _on_live(self, cell: int, live: int) -> None:
        self._cells[cell].live = live

    def _on_leaf(self, index: int, cell: int) -> None:
        state = self._cells[cell]
        state.received[self._root[index]] += 1
        self._columns["leaf_s"][index] = self._now
        tokens = [server.unfinished_tokens for server in state.servers[: state.live]]
        chosen = choose_server(self._u_leaf[index], tokens) if tokens else None
        if chosen is None or state.servers[chosen].requests >= self._system.queue_limit:
            self._reject(index, cell)
            return
        server = state.servers[chosen]
        self._columns["server"][index] = chosen
        state.rif += 1
        server.requests += 1
        server.unfinished_tokens += self._prompt[index] + self._output[index]
        server.prefill_queue.append(index)
        self._serve_prefill(cell, server)

    def _reject(self, index: int, cell: int) -> None:
        self._columns["error"][index] = True
        self._rejected += 1
        self._cells[cell].record_outcome(self._now, failed=True)
        self._send_answer(index, cell, failed=True)

    def _send_answer(self, index: int, cell: int, failed: bool) -> None:
        answer_s = self._now + self._tau[self._root[index]][cell]
        self._at(answer_s, _Rank.ANSWER, partial(self._on_answer, index, cell, failed))

    def _serve_prefill(self, cell: int, server: Server) -> None:
        if server.prefilling or not server.prefill_queue:
            return
        index = server.prefill_queue.popleft()
        server.prefilling = True
        work_s = self._prompt[index] * float(self._system.prefill_s_per_token[cell])
        end_s = self._now + work_s
        self._at(end_s, _Rank.COMPLETION, partial(self._on_prefill_end, index, cell, server))

    def _on_prefill_end(self, index: int, cell: int, server: Server) -> None:
        self._columns["first_token_s"][index] = self._now
        server.prefilling = False
        server.unfinished_tokens -= self._prompt[index]
        server.decode_queue.append(index)
        self._serve_decode(cell, server)
        self._serve_prefill(cell, server)

    def _serve_decode(self, cell: int, server: Server) -> None:
        if server.decoding == self._system.decode_slots or not server.decode_queue:
            return
        index = server.decode_queue.popleft()
        server.decoding += 1
        work_s = self._output[index] * float(self._system.decode_s_per_token[cell])
        end_s = self._now + work_s
        self._at(end_s, _Rank.COMPLETION, partial(self._on_decode_end, index, cell, server))

    def _on_decode_end(self, index: int, cell: int, server: Server) -> None:
        state = self._cells[cell]
        self._columns["done_s"][index] = self._now
        server.decoding -= 1
        server.requests -= 1
        server.unfinished_tokens -= self._output[index]
        state.rif -= 1
        state.record_outcome(self._now, failed=False)
        self._send_answer(index, cell, failed=False)
        self._serve_decode(cell, server)

    # -- probes and views -------------------------------------------------------------------

    def _on_probe(self, cell: int, number: int) -> None:
        state = self._cells[cell]
        received = tuple(state.received)
        report = Report(self._now, state.rif, state.live, received, state.error_rate)
        state.reports.append(report)
        next_s = (number + 1) * self._system.probe_interval_s
        self._at(next_s, _Rank.PROBE, partial(self._on_probe, cell, number + 1))

    def _held(self, cell: int, tau_s: float) -> Report:
        """The newest report that has reached a root tau away."""
        for report in reversed(self._cells[cell].reports):
            if report.emitted_s + tau_s <= self._now:
                return report
        return self._cells[cell].initial_report

    def _view(self) -> View:
        self._change_in_system(0)
        shape = self._system.tau_s.shape
        rif, servers, received = (np.zeros(shape, np.int64) for _ in range(3))
        error_rate, emitted_s = np.zeros(shape), np.zeros(shape)
        for root, cell in np.argwhere(~np.isnan(self._system.tau_s)).tolist():
            report = self._held(cell, self._tau[root][cell])
            rif[root, cell] = report.rif
            servers[root, cell] = report.servers
            received[root, cell] = report.received[root]
            error_rate[root, cell] = report.error_rate
            emitted_s[root, cell] = report.emitted_s
        view = View(
            time_s=self._now,
            rif=rif,
            servers=servers,
            received=received,
            error_rate=error_rate,
            emitted_s=emitted_s,
            **{name: count.copy() for name, count in self._counts.items()},
            in_system_integral=self._integral,
            rejected=self._rejected,
            arrived=self._arrived,
        )
        self._integral, self._rejected = 0.0, 0
        return view
