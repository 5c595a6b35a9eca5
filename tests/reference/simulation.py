"""The reference's run: one agenda for roots, leaves, servers and probes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.disturbances import Down
from tests.reference.autoscaler import Autoscaler
from tests.reference.cell import ALONE, Cell
from tests.reference.estimation import Estimator
from tests.reference.events import Agenda, Rank
from tests.reference.faults import Arc, Replicas
from tests.reference.root import Root
from tests.reference.system import (
    KINDS,
    Books,
    Decide,
    Request,
    Requests,
    Result,
    System,
    View,
)


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
    return Simulation(system, requests, decide).run(num_steps)


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


class Simulation:
    """State of one run.

    Attributes:
        estimator: What its leaves fitted; None where nothing is fitted online.
    """

    def __init__(self, system: System, requests: Requests, decide: Decide) -> None:
        _check(system, requests)
        self._system = system
        self._decide = decide
        self._agenda = Agenda()
        self._books = Books()
        self._requests = _listed(requests)
        mechanisms = system.mechanisms
        telemetry = mechanisms.telemetry or ALONE
        num_roots, num_cells = system.tau_s.shape
        leaves_down = {down.place: down for down in mechanisms.leaves_down}
        roots_down: dict[int, Down] = {down.place: down for down in mechanisms.roots_down}
        replicas = [
            Replicas(telemetry.leaf_replicas, system.probe_interval_s, leaves_down.get(cell))
            for cell in range(num_cells)
        ]
        self.estimator: Estimator | None = None
        if mechanisms.estimate is not None and mechanisms.estimate.kind == "online":
            self.estimator = Estimator(
                mechanisms.estimate, mechanisms.seed, system.queue_limit, telemetry.leaf_replicas,
                mechanisms.models[0], num_cells, mechanisms.given_models,
            )  # fmt: skip
        self._cells = [
            Cell(
                cell,
                self._agenda,
                system,
                replicas[cell],
                self.estimator,
                self._books,
                self._answer,
            )
            for cell in range(num_cells)
        ]
        self._autoscaler = (
            None if mechanisms.autoscaler is None else Autoscaler(self._agenda, system, self._cells)
        )
        self._roots = [
            Root(
                root, self._agenda, system, self._cells, replicas, _arcs(system, root),
                roots_down.get(root), self._books, self._depart,
            )
            for root in range(num_roots)
        ]  # fmt: skip
        self._views: list[View] = []
        self._in_system: set[Request] = set()
        self._interval_before = Books()

    def run(self, num_steps: int) -> Result:
        self._on_step(0, num_steps)
        for number, cell in enumerate(self._cells):
            for change in cell.changes:
                self._agenda.at(change.time_s, Rank.CHANGE, partial(cell.change, change))
            self._agenda.at(0.0, Rank.PROBE, partial(self._on_probe, number, 0))
        for request in self._requests:
            arrive = partial(self._on_root, request)
            self._agenda.at(request.arrival_s, Rank.ROOT, arrive, (0.0, request.root))
        while len(self._views) <= num_steps:
            self._agenda.run_next()
        return Result(_columns(self._requests), self._views)

    def _on_root(self, request: Request) -> None:
        self._in_system.add(request)
        self._roots[request.root].receive(request)

    def _depart(self, request: Request, leaf_s: float) -> None:
        """Requests that reach a leaf together go by root, then by send number."""
        arrive = partial(self._cells[request.cell].arrive, request)
        self._agenda.at(leaf_s, Rank.LEAF, arrive, (0.0, request.key))

    def _answer(self, request: Request) -> None:
        self._roots[request.root].return_to(request)

    def _on_probe(self, cell: int, number: int) -> None:
        self._cells[cell].report(number)
        arcs = int((~np.isnan(self._system.tau_s[:, cell])).sum())
        telemetry = self._system.mechanisms.telemetry or ALONE
        told = telemetry.root_replicas - 1 if telemetry.turn_s == 0.0 else 0
        self._books.messages += (2 + told) * arcs
        next_s = (number + 1) * self._system.probe_interval_s
        self._agenda.at(next_s, Rank.PROBE, partial(self._on_probe, cell, number + 1))

    # -- decisions and views ----------------------------------------------------------------

    def _on_step(self, step: int, num_steps: int) -> None:
        over = []
        if step > 0:
            for root in self._roots:
                root.earn()
                over += root.take_in(step)
        self._views.append(self._view(over))
        if step == num_steps:
            return
        decision = self._decide(step, list(self._views))
        for root in self._roots:
            root.adopt(decision)
        if self._autoscaler is not None:
            self._autoscaler.act(step)
        end_s = (step + 1) * self._system.control_interval_s
        self._agenda.at(end_s, Rank.STEP, partial(self._on_step, step + 1, num_steps))

    def _turn_messages(self) -> int:
        """At the end of a turn a root's replica tells its peers, about all cells at once."""
        telemetry = self._system.mechanisms.telemetry or ALONE
        if telemetry.turn_s == 0.0:
            return 0
        turns = math.floor(self._agenda.now_s / telemetry.turn_s + 1e-9)
        return turns * len(self._roots) * (telemetry.root_replicas - 1)

    def _integral(self, over: list[Request]) -> float:
        """Request seconds that requests were at or behind their roots in the interval that ends."""
        start_s = self._views[-1].time_s if self._views else 0.0
        total_s = 0.0
        for request in self._in_system:
            total_s += self._agenda.now_s - max(request.arrival_s, start_s)
        for request in over:
            total_s -= self._agenda.now_s - request.answer_s
            self._in_system.discard(request)
        return total_s

    def _errors_of_interval(self) -> int:
        """Leaves' errors and those found later; where clients try again, those that are final."""
        books, before = self._books, self._interval_before
        if self._system.mechanisms.retries is not None:
            errors = books.final_errors - before.final_errors
        else:
            errors = books.left_with_error - before.left_with_error
            errors += books.late_errors - before.late_errors
        self._interval_before = Books(
            left_with_error=books.left_with_error,
            late_errors=books.late_errors,
            final_errors=books.final_errors,
        )
        return errors

    def _view(self, over: list[Request]) -> View:
        shape = self._system.tau_s.shape

        def counted(name: str) -> NDArray[np.int64]:
            array = np.zeros(shape, np.int64)
            for i, root in enumerate(self._roots):
                for j, count in getattr(root, name).items():
                    array[i, j] = count
            return array

        ints = {name: np.zeros(shape, np.int64) for name in ("rif", "servers", "received")}
        floats = {
            name: np.zeros(shape) for name in ("error_rate", "emitted_s", "rtt_s", "aversion")
        }
        model, backlog = np.zeros((*shape, 4)), np.zeros((*shape, 2), np.int64)
        for i, root in enumerate(self._roots):
            for j, report in root.held.items():
                ints["rif"][i, j] = report.rif
                ints["servers"][i, j] = report.servers
                ints["received"][i, j] = report.received[i]
                floats["error_rate"][i, j] = report.error_rate
                floats["emitted_s"][i, j] = report.emitted_s
                floats["rtt_s"][i, j] = root.rtt_s(j)
                floats["aversion"][i, j] = root.aversion.rates[j]
                model[i, j], backlog[i, j] = report.model, report.backlog
        return View(
            time_s=self._agenda.now_s,
            **ints,
            **floats,
            model=model,
            backlog=backlog,
            **{name: counted(name) for name in ("sent", "answered", "errors", "interval_sent")},
            in_system_integral=self._integral(over),
            rejected=self._errors_of_interval(),
            arrived=self._books.arrived,
            resent=self._books.resent,
            messages=self._books.messages + self._turn_messages(),
            kinds=tuple(self._books.kinds[kind] for kind in KINDS),
        )


def _arcs(system: System, root: int) -> dict[int, Arc]:
    return {
        cell: Arc(
            float(tau_s),
            [w for w in system.mechanisms.windows if (w.root, w.cell) == (root, cell)],
        )
        for cell, tau_s in enumerate(system.tau_s[root])
        if not math.isnan(tau_s)
    }


def _listed(requests: Requests) -> list[Request]:
    columns: list[list[Any]] = [
        requests.root.tolist(), requests.arrival_s.tolist(), requests.prompt_tokens.tolist(),
        requests.output_tokens.tolist(), requests.u_route.tolist(), requests.u_leaf.tolist(),
    ]  # fmt: skip
    sessions = (requests.session, requests.session_hash, requests.prefix_tokens)
    columns += [column.tolist() for column in sessions if column is not None]
    return [Request(index, *row) for index, row in enumerate(zip(*columns, strict=True))]


def _columns(requests: list[Request]) -> dict[str, NDArray[Any]]:
    columns: dict[str, NDArray[Any]] = {
        name: np.array([getattr(request, name) for request in requests], kind)
        for name, kind in (
            ("cell", np.int64), ("server", np.int64), ("leaf_s", float), ("first_token_s", float),
            ("done_s", float), ("failed_s", float), ("answer_s", float), ("kind", object),
        )
    }  # fmt: skip
    columns["error"] = columns["kind"] != None  # noqa: E711 - elementwise
    return columns
