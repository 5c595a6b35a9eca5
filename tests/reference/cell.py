"""A cell of the reference: its leaf routers, what they do with a request, and its reports."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dlb_gym.disturbances import Change
from dlb_gym.mechanisms import Telemetry
from tests.hash_model import uniform
from tests.reference.affinity import PrefixCache, hashed_server
from tests.reference.batching import BatchingServer
from tests.reference.estimation import Estimator, Sample
from tests.reference.events import Agenda
from tests.reference.faults import Replicas
from tests.reference.leaf_rules import LeafRules
from tests.reference.leaves import Leaves
from tests.reference.servers import FifoServer, PlannedServer, Server
from tests.reference.system import Books, Model, Request, System

ERROR_MEMORY_S = 5.0
FAILURE = 6 * 2**33
"""Purpose of the draws that fail a request at once."""
ALONE = Telemetry(
    root_replicas=1, turn_s=0.0, leaf_replicas=1, sync_interval_s=0.0, server_probe_interval_s=0.0
)
"""What a system without telemetry is like: one replica everywhere, nothing late or lost."""
PLAIN_MODEL = (1.0, 1.0, 1.0, 1.0)
"""Stands for latency models where nobody reads them."""


@dataclass(frozen=True)
class Report:
    """What a probe carries; the one of a dead replica never comes."""

    number: int
    emitted_s: float
    rif: int
    servers: int
    received: tuple[int, ...]
    error_rate: float
    model: Model
    backlog: tuple[int, int]
    dead: bool


class Cell:
    """A pool of servers behind the replicas of a leaf router.

    Args:
        number: Of the cell.
        agenda: Of the run.
        system: Of the run.
        replicas: The cell's leaf replicas.
        estimator: Where models are fitted.
        books: Of the run.
        answer: Puts a response on its way back.
    """

    def __init__(
        self,
        number: int,
        agenda: Agenda,
        system: System,
        replicas: Replicas,
        estimator: Estimator | None,
        books: Books,
        answer: Callable[[Request], None],
    ) -> None:
        mechanisms = system.mechanisms
        self._number = number
        self._agenda = agenda
        self._system = system
        self._mechanisms = mechanisms
        self._telemetry = mechanisms.telemetry or ALONE
        self._replicas = replicas
        self._estimator = estimator
        self._books = books
        self._answer = answer
        self.changes = self._schedule()
        self._servers: list[Server] = []
        self._have_servers(max(change.live for change in self.changes))
        self._sync_every = round(self._telemetry.sync_interval_s / system.probe_interval_s)
        self._look_every = round(self._telemetry.server_probe_interval_s / system.probe_interval_s)
        self._leaves = Leaves(replicas.count, self._servers, self._look_every > 0)
        prefill_s = mechanisms.prefix_s_per_token[number] if mechanisms.prefix_s_per_token else 0.0
        self._rules = LeafRules(
            mechanisms.leaf, mechanisms.seed, prefill_s, replicas.count, self._servers,
            self._leaves, books,
        )  # fmt: skip
        self.live = [change.live for change in self.changes if change.time_s == 0.0][-1]
        self._error_fraction = 0.0
        self._received = [0] * len(system.tau_s)
        self._error_rate = 0.0
        self._last_outcome_s = 0.0
        self.rif = 0
        self.model = mechanisms.models[number] if mechanisms.models else PLAIN_MODEL
        affinity = mechanisms.affinity
        self._cache = affinity and PrefixCache(affinity.cache_tokens, affinity.cache_sessions)
        # Until the first report roots hold the one of an empty cell, emitted at 0.
        nobody = (0,) * len(self._received)
        self.reports = [Report(-1, 0.0, 0, self.live, nobody, 0.0, self.model, (0, 0), False)]

    def _schedule(self) -> tuple[Change, ...]:
        if self._mechanisms.schedules is not None:
            return self._mechanisms.schedules[self._number]
        return tuple(
            Change(time_s, live) for time_s, live in self._system.live_servers[self._number]
        )

    @property
    def received(self) -> int:
        """Requests that reached its leaf so far, or would have."""
        return sum(self._received)

    def _have_servers(self, count: int) -> None:
        """So many there are, live or not; none is ever taken away."""
        for number in range(len(self._servers), count):
            self._servers.append(self._new_server(number))

    def _new_server(self, number: int) -> Server:
        system, mechanisms, cell = self._system, self._mechanisms, self._number
        if mechanisms.designs is not None:
            design = mechanisms.designs[cell]
            return BatchingServer(self._agenda, self._leave, design, number, mechanisms.seed)
        what = (
            self._agenda, self._leave, system.decode_slots, system.queue_limit,
            float(system.prefill_s_per_token[cell]), float(system.decode_s_per_token[cell]),
        )  # fmt: skip
        changing = any(change.crash or change.speed != 1.0 for change in self.changes)
        if changing or mechanisms.max_wait_s < math.inf:
            return PlannedServer(*what, mechanisms.max_wait_s)
        return FifoServer(*what)

    # -- what happens to it -----------------------------------------------------------------

    def change(self, change: Change) -> None:
        """Crashes first, then the rest; the highest-numbered servers are those that stop."""
        if change.crash:
            self._crash(range(change.live, len(self._servers)))
        if change.leaf is not None:
            self._leaves.crash(change.leaf)
            self._rules.crash(change.leaf)
        for server in self._servers:
            if not isinstance(server, FifoServer):
                server.change_speed(change.speed)
        self._error_fraction = change.error_fraction
        self._have_servers(change.live)
        self.live = change.live

    def _crash(self, numbers: range) -> None:
        """Servers lose all that they had and kept."""
        victims = [victim for s in numbers for victim in self._servers[s].crash()]
        for victim in sorted(victims, key=lambda victim: victim[:3]):
            self._leave(victim[3], "crashed")
        for s in numbers:
            self._rules.crash_server(s)
            if self._cache is not None:
                self._cache.lose(s)

    # -- requests ---------------------------------------------------------------------------

    def arrive(self, request: Request) -> None:
        """A request is at the leaf, or would be: what was lost on the way counts as received."""
        self._received[request.root] += 1
        request.leaf_s = self._agenda.now_s
        lost = request.kind == "unreachable"
        if lost or self._replicas.is_down(request.replica, self._agenda.now_s):
            self._fail(request, "unreachable")
            return
        if self._error_fraction > 0.0:
            u = uniform(self._mechanisms.seed + FAILURE, request.key, request.tries)
            if u < self._error_fraction:
                self._fail(request, "black_hole")
                return
        chosen = self._choose(request) if self.live > 0 else None
        if chosen is None or not self._servers[chosen].takes(request):
            self._fail(request, "full")
            return
        self._place(request, chosen)

    def _choose(self, request: Request) -> int:
        """By the leaf's rule; with affinity the keeper of the prefix, or the hash's server."""
        affinity, cache, now_s = self._mechanisms.affinity, self._cache, self._agenda.now_s
        kept = None
        if cache is not None and request.session >= 0 and request.prefix > 0:
            kept = cache.find(request.session)
        keeper, cached = (None, 0) if kept is None else (kept[0], min(kept[1], request.prefix))
        if keeper is not None and keeper >= self.live:
            keeper, cached = None, 0
        if affinity is not None and affinity.kind == "consistent_hash" and request.session >= 0:
            chosen = hashed_server(request.session_hash, self.live)
        else:
            chosen = self._rules.choose(request, self.live, keeper, cached, now_s)
            if (
                self._rules.blind
                and keeper is not None
                and keeper != chosen
                and self._returns(request, keeper, cached, chosen)
            ):
                chosen = keeper
        if chosen == keeper and cached > 0:
            assert cache is not None
            request.hit = cached
            cache.use(request.session)  # even if the server turns out to be full
        self._rules.sent(request, chosen, self.live, now_s)
        return chosen

    def _returns(self, request: Request, keeper: int, cached: int, chosen: int) -> bool:
        """Whether affinity takes a request to the server that keeps its prefix."""
        affinity = self._mechanisms.affinity
        assert affinity is not None
        if affinity.kind == "none" or cached == 0:
            return False
        there = self._leaves.tokens(request.replica, keeper) - cached
        return affinity.kind == "sticky" or there <= self._leaves.tokens(request.replica, chosen)

    def _place(self, request: Request, chosen: int) -> None:
        request.server = chosen
        request.rif_there = self.rif / self.live
        self.rif += 1
        self._leaves.add(request)
        self._leaves.place(request.replica, chosen, request.prompt - request.hit + request.output)
        self._servers[chosen].offer(request)

    def _leave(self, request: Request, kind: str | None) -> None:
        """A request leaves its server."""
        self.rif -= 1
        self._leaves.remove(request)
        if kind is not None:
            self._fail(request, kind)
            return
        now_s = request.done_s = self._agenda.now_s
        if self._estimator is not None:
            sample = Sample(now_s, request.rif_there, now_s - request.leaf_s)
            self._estimator.note(self._number, sample)
        self._rules.finish(request, now_s - request.leaf_s)
        if self._cache is not None and request.session >= 0:
            self._cache.store(request.session, request.server, request.prompt + request.output)
        self._note_outcome(failed=False)
        self._answer(request)

    def _fail(self, request: Request, kind: str) -> None:
        """An error leaves for the root; what never reached a leaf is in no leaf's error rate."""
        request.kind = kind
        request.server = -1
        request.failed_s = self._agenda.now_s
        self._books.left_with_error += 1
        if kind != "unreachable":
            self._note_outcome(failed=True)
        self._answer(request)

    def _note_outcome(self, failed: bool) -> None:
        """Move the error rate towards 1 (error) or 0 (completion)."""
        now_s = self._agenda.now_s
        gain = 1.0 - math.exp(-(now_s - self._last_outcome_s) / ERROR_MEMORY_S)
        self._error_rate += gain * (float(failed) - self._error_rate)
        self._last_outcome_s = now_s

    # -- reports ----------------------------------------------------------------------------

    def report(self, number: int) -> None:
        """The next report; what is due at its instant - gathering, look, fit - comes first."""
        now_s = self._agenda.now_s
        replica = number % self._replicas.count
        if self._sync_every > 0 and number % self._sync_every == 0:
            self._leaves.gather()
            self._books.messages += self._replicas.count * (self._replicas.count - 1)
        if self._look_every > 0 and number % self._look_every == 0:
            self._leaves.look()
            self._books.messages += 2 * self._replicas.count * self.live
        if self._estimator is not None and self._estimator.is_due(self._number, now_s):
            self._estimator.refit(
                self._number, now_s, lambda replica: self._replicas.is_down(replica, now_s)
            )
            self.model = self._estimator.rounds[self._number][-1].model
        self.reports.append(
            Report(
                number,
                now_s,
                self._leaves.known_rif(replica) if self._sync_every > 0 else self.rif,
                self.live,
                tuple(self._received),
                self._error_rate,
                self.model,
                self._backlog() if self._telemetry.backlogs else (0, 0),
                self._replicas.is_down(replica, now_s),
            )
        )

    def _backlog(self) -> tuple[int, int]:
        """Tokens to prefill and to decode."""
        prompts = sum(server.prompt_tokens for server in self._servers)
        return prompts, sum(server.tokens for server in self._servers) - prompts
