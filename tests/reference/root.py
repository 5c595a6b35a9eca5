"""A root of the reference: how it sends, what it takes in, what it remembers.

At a decision instant a root takes in the answers and then the newest report of cell after cell,
each cell's answers in the order in which they left it; updates its aversion rates; adopts the
decision; and sends what clients send again. Until the next decision it knows no more, apart from
its own sends. How the cell of a request is chosen:

1. its session's, if affinity says so and aversion lets it,
2. else a random one, for background probing,
3. else what the decision says, with aversion spent.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence

from dlb_gym.disturbances import Down
from tests.hash_model import uniform
from tests.reference.affinity import SessionMap, conditional_cell, hashed_cell, latency_s
from tests.reference.aversion import AVERT, Aversion, spent
from tests.reference.cell import ALONE, Cell, Report
from tests.reference.events import Agenda
from tests.reference.faults import Arc, Replicas, loses_answer
from tests.reference.system import Books, Request, System
from tests.reference_choices import Decision, Dispatcher

LOSS, RETRY, EXPLORE, EXPLORED = (k * 2**33 for k in (1, 2, 4, 5))
"""Purposes of draws: lost reports, the uniforms of retries, background probing and its cell."""
TABLE_ENTRY = 2**43
"""Purpose of the draw that gives a session its entry of a table."""
HIT_MEMORY = 0.05
MOST_SAVED_RETRIES = 10.0
KEYS_PER_ROOT = 2**40


class Root:
    """One root and its clients.

    Args:
        number: Of the root.
        agenda: Of the run.
        system: Of the run.
        cells: All cells.
        replicas: The leaf replicas of each cell.
        arcs: From cell to the way there, those that exist.
        down: When some of its replicas are down, if ever.
        books: Of the run.
        depart: Sends a request to its cell's leaf.
    """

    def __init__(
        self,
        number: int,
        agenda: Agenda,
        system: System,
        cells: Sequence[Cell],
        replicas: Sequence[Replicas],
        arcs: dict[int, Arc],
        down: Down | None,
        books: Books,
        depart: Callable[[Request, float], None],
    ) -> None:
        mechanisms = system.mechanisms
        self._number = number
        self._agenda = agenda
        self._system = system
        self._mechanisms = mechanisms
        self._telemetry = mechanisms.telemetry or ALONE
        self._cells = cells
        self._replicas = replicas
        self._arcs = arcs
        self._down = down
        self._books = books
        self._depart = depart
        self._dispatcher = Dispatcher(number, [cell in arcs for cell in range(len(cells))])
        self._decision: Decision | None = None
        self.held: dict[int, Report] = {cell: cells[cell].reports[0] for cell in arcs}
        self.aversion = Aversion(mechanisms.aversion, sorted(arcs))
        self.sent = dict.fromkeys(arcs, 0)
        self.answered = dict.fromkeys(arcs, 0)
        self.errors = dict.fromkeys(arcs, 0)
        self.interval_sent = dict.fromkeys(arcs, 0)
        self._responses: dict[int, deque[Request]] = {cell: deque() for cell in arcs}
        self._last_answer_s = dict.fromkeys(arcs, 0.0)
        self._again: list[Request] = []
        self._next_number = 0
        self._budget = 0.0
        self._earning = 0
        affinity = mechanisms.affinity
        self._map = affinity and SessionMap(affinity.map_sessions)
        self._forgot = False
        self._hit_rate = dict.fromkeys(arcs, 1.0)
        self._latency_s: dict[int, float] = {}
        self._capacity: dict[int, float] = {}

    # -- sending ----------------------------------------------------------------------------

    def adopt(self, decision: Decision) -> None:
        """The decision is in force; what crashed replicas remembered is gone."""
        now_s = self._agenda.now_s
        down = self._down
        if down is not None and not self._forgot and down.start_s <= now_s:
            self._forgot = True
            if self._map is not None:
                self._map.forget(self._telemetry.root_replicas, down.replicas)
        mechanisms = self._mechanisms
        if mechanisms.server_rps:
            self._capacity = {
                cell: report.servers * mechanisms.server_rps[cell]
                for cell, report in self.held.items()
            }
        self._latency_s = {
            cell: latency_s(report.model, report.rif / max(report.servers, 1)) + self.rtt_s(cell)
            for cell, report in self.held.items()
        }
        self._decision = decision
        self._dispatcher.adopt(self._with_aversion_spent(decision))
        self.interval_sent = dict.fromkeys(self._arcs, 0)
        again, self._again = self._again, []
        for request in again:
            self._books.resent += 1
            self._send(request, retry=True)

    def _with_aversion_spent(self, decision: Decision) -> Decision:
        rates = self.aversion.rates
        splits = decision.mode in ("sample", "smooth")
        if not splits or decision.aversion_spent or not any(rates.values()):
            return decision
        assert decision.routing is not None
        routing = decision.routing.copy()
        routing[self._number] = spent(routing[self._number].tolist(), rates, self._capacity)
        return Decision(decision.mode, routing=routing)

    def receive(self, request: Request) -> None:
        """A client sends a request."""
        self._books.arrived += 1
        self._earning += 1
        self._send(request)

    def _send(self, request: Request, retry: bool = False) -> None:
        seed, now_s = self._mechanisms.seed, self._agenda.now_s
        request.number = self._next_number
        request.key = self._number * KEYS_PER_ROOT + request.number
        self._next_number += 1
        if retry:
            request.u_route = uniform(seed + RETRY, request.key, 0)
            request.u_leaf = uniform(seed + RETRY, request.key, 1)
        cell = request.cell = self._choose(request)
        self._dispatcher.count(cell)
        arc = self._arcs[cell]
        request.sent_s = now_s
        leaf_s = (now_s + self._system.router_delay_s) + arc.journey_s(now_s)
        request.kind = "unreachable" if arc.is_cut(now_s, leaf_s) else None
        request.failed_s = request.first_token_s = request.done_s = math.nan
        request.hit = 0
        request.replica = self._replica(cell, now_s)
        self.sent[cell] += 1
        self.interval_sent[cell] += 1
        self._depart(request, leaf_s)

    def _replica(self, cell: int, now_s: float) -> int:
        """Send number n of an arc goes to leaf replica n mod L, or the next that seems alive."""
        replicas, arc = self._replicas[cell], self._arcs[cell]
        turns = [(self.sent[cell] + k) % replicas.count for k in range(replicas.count)]
        for replica in turns:
            timeout_s = self._telemetry.probe_timeout_s
            if not replicas.seems_down(replica, now_s, arc.tau_s, timeout_s):
                return replica
        return turns[0]

    def _choose(self, request: Request) -> int:
        seed = self._mechanisms.seed
        home = self._home(request)
        if home is not None and self._accepts(request, home, draw=len(self._cells)):
            return home
        estimate = self._mechanisms.estimate
        background = 0.0 if estimate is None else estimate.background
        if background > 0.0 and uniform(seed + EXPLORE, request.key, 0) < background:
            arcs = sorted(self._arcs)
            return arcs[math.floor(uniform(seed + EXPLORED, request.key, 0) * len(arcs))]
        decision = self._decision
        assert decision is not None
        if decision.mode == "table":
            return self._accepted_entry(request, decision)
        if decision.mode not in ("sample", "smooth"):
            return self._least_accepted(request, decision)
        return self._dispatcher.choose(request.u_route)

    def _accepted_entry(self, request: Request, decision: Decision) -> int:
        """The entry of the session, or the next whose cell accepts; else the least averted cell."""
        assert decision.table is not None
        u = request.u_route
        if request.session_hash >= 0:
            u = uniform(TABLE_ENTRY, request.session_hash, 0)
        for step in range(decision.table.shape[1]):
            cell = self._dispatcher.entry(u, step)
            if decision.aversion_spent or self._accepts(request, cell, draw=cell):
                return cell
        return self._mildest()

    def _accepts(self, request: Request, cell: int, draw: int) -> bool:
        rate = self.aversion.rates[cell]
        return rate <= 0.0 or uniform(self._mechanisms.seed + AVERT, request.key, draw) >= rate

    def _least_accepted(self, request: Request, decision: Decision) -> int:
        """By score among the cells that accept; else the least averted cell."""
        scores = self._dispatcher.scores(self._prefix_value(request, decision))
        accepted = {
            cell: score
            for cell, score in scores.items()
            if decision.aversion_spent or self._accepts(request, cell, draw=cell)
        }
        return (
            self._dispatcher.choose_scored(accepted, request.u_route)
            if accepted
            else (self._mildest())
        )

    def _prefix_value(self, request: Request, decision: Decision) -> dict[int, float]:
        """What a prefix takes off the score of the cell that had its session last."""
        affinity = self._mechanisms.affinity
        if affinity is None or affinity.kind != "none" or decision.token_value is None:
            return {}
        if request.session_hash < 0 or request.prefix <= 0:
            return {}
        assert self._map is not None
        cell = self._map.home(request.session_hash)
        if cell is None or cell not in self._arcs:
            return {}
        return {cell: float(decision.token_value[self._number, cell]) * request.prefix}

    def _mildest(self) -> int:
        rates = self.aversion.rates
        return min(rates, key=lambda cell: (rates[cell], cell))

    def _home(self, request: Request) -> int | None:
        """The cell that affinity wants for a request."""
        affinity = self._mechanisms.affinity
        if affinity is None or affinity.kind == "none" or request.session_hash < 0:
            return None
        if affinity.kind == "consistent_hash":
            return hashed_cell(request.session_hash, self._capacity)
        assert self._map is not None
        home = self._map.home(request.session_hash)
        if home is None or affinity.kind == "sticky":
            return home
        prefix_s = request.prefix * self._mechanisms.prefix_s_per_token[home]
        return conditional_cell(home, self._hit_rate[home] * prefix_s, self._latency_s)

    # -- taking in --------------------------------------------------------------------------

    def return_to(self, request: Request) -> None:
        """A response leaves its cell: it comes after those that left before it."""
        arc, cell = self._arcs[request.cell], request.cell
        comes_s = request.left_s + arc.journey_s(request.left_s)
        self._last_answer_s[cell] = max(comes_s, self._last_answer_s[cell])
        request.comes_s = self._last_answer_s[cell]
        self._responses[cell].append(request)

    def take_in(self, step: int) -> list[Request]:
        """What has come by now; returns the requests that are over."""
        over = []
        for cell in sorted(self._arcs):
            responses = self._responses[cell]
            while responses and responses[0].comes_s <= self._agenda.now_s:
                request = responses.popleft()
                if self._take_answer(request, cell, step):
                    request.answer_s = request.comes_s
                    over.append(request)
            self.held[cell] = self._newest(cell)
        self.aversion.update(
            self._agenda.now_s,
            {cell: report.error_rate for cell, report in self.held.items()},
            self.answered,
            {
                cell: self._agenda.now_s - report.emitted_s - 0.5 * self.rtt_s(cell)
                for cell, report in self.held.items()
            },
        )
        return over

    def earn(self) -> None:
        """Clients earn retries with the requests of an interval, at its end."""
        retries = self._mechanisms.retries
        if retries is not None:
            earned = retries.budget * self._earning
            self._budget = min(self._budget + earned, max(MOST_SAVED_RETRIES, earned))
        self._earning = 0

    def _take_answer(self, request: Request, cell: int, step: int) -> bool:
        """Whether the request is over; otherwise its client sends it again."""
        self.answered[cell] += 1
        if request.kind is None:
            late = self._lost_on_the_way(request, cell)
            if late is None:
                self._learn(request, cell, step)
                return True
            request.kind, request.server = late, -1
            self._books.late_errors += 1
        self.errors[cell] += 1
        retries = self._mechanisms.retries
        if retries is not None and request.tries < retries.attempts and self._budget >= 1.0:
            request.tries += 1
            self._budget -= 1.0
            self._again.append(request)
            return False
        self._books.final_errors += 1
        start_s, end_s = self._mechanisms.measured
        if start_s < request.arrival_s <= end_s:
            self._books.kinds[request.kind] += 1
        return True

    def _lost_on_the_way(self, request: Request, cell: int) -> str | None:
        """The kind of error that the response of a served request becomes."""
        if self._arcs[cell].is_cut(request.left_s, request.comes_s):
            return "unreachable"
        number = request.number if request.session_hash < 0 else request.session_hash
        replicas = self._telemetry.root_replicas
        if loses_answer(self._down, replicas, request.sent_s, request.comes_s, number):
            return "root_crashed"
        return None

    def _learn(self, request: Request, cell: int, step: int) -> None:
        """Where the session is; and whether its prefix hit, if this was its home."""
        affinity = self._mechanisms.affinity
        if affinity is None or affinity.kind == "consistent_hash":
            return
        if request.session_hash < 0:
            return
        assert self._map is not None
        before = self._map.learn(request.session_hash, cell, step)
        if request.prefix > 0 and before == cell:
            hit = 1.0 if request.hit > 0 else 0.0
            self._hit_rate[cell] += HIT_MEMORY * (hit - self._hit_rate[cell])

    def _newest(self, cell: int) -> Report:
        """The newest report that has come, by the end of the replicas' last turn."""
        by_s = self._agenda.now_s
        turn_s = self._telemetry.turn_s
        if turn_s > 0.0:
            by_s = math.floor(by_s / turn_s + 1e-9) * turn_s
        for report in reversed(self._cells[cell].reports):
            if report.number < 0 or self._has_come(report, cell, by_s):
                return report
        raise AssertionError("the first report is always there")

    def _has_come(self, report: Report, cell: int, by_s: float) -> bool:
        arc = self._arcs[cell]
        comes_s = report.emitted_s + arc.journey_s(report.emitted_s)
        if comes_s > by_s or report.dead or arc.is_cut(report.emitted_s, comes_s):
            return False
        loss = self._telemetry.probe_loss
        key = self._number * 2**16 + cell
        return loss == 0.0 or uniform(self._mechanisms.seed + LOSS, key, report.number) >= loss

    def rtt_s(self, cell: int) -> float:
        """The round trip of the report held."""
        arc = self._arcs[cell]
        report = self.held[cell]
        return 2.0 * (arc.tau_s if report.number < 0 else arc.journey_s(report.emitted_s))
