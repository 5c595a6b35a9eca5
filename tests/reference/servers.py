"""Disaggregated servers, twice: queues that events move, and plans that faults change.

``FifoServer`` is the paper's server taken literally: one prefill engine and a pool of decode slots,
each behind a queue. It predicts nothing. ``PlannedServer`` is the same server where something may
happen to what waits: it knows at once when each request will have its first token and be done, and

- a slow-down stretches all that is to come: what was due in t is due in t x old / new speed;
- a client who would wait longer than its patience for prefill leaves then, and until then has its
  place and its tokens; a slow-down does not move that instant;
- a crash fails all requests.

Requests that leave a cell at one instant leave in the order of their first tokens (who gave up, of
that instant), then by root and send number; a crash fails those of its servers in the order in
which they would have left.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

from tests.reference.events import Agenda, Rank
from tests.reference.system import Request

Leave = Callable[[Request, str | None], None]
"""What a server calls when a request leaves it, with the kind of error if it was not served."""


FIRST = (-1.0, 0)
"""At one instant prefills end before requests do."""
Victim = tuple[float, float, int, Request]
"""A request that a crash fails, behind what orders a cell's victims."""


class Server(Protocol):
    """What a cell asks of a server, whatever it is."""

    @property
    def requests(self) -> int:
        """Waiting or running."""

    @property
    def tokens(self) -> int:
        """Yet to process: prompts without what is cached, and outputs."""

    @property
    def prompt_tokens(self) -> int:
        """Those of prompts."""

    def takes(self, request: Request) -> bool:
        """Whether there is room for a request."""

    def offer(self, request: Request) -> None:
        """It reaches the server."""

    def change_speed(self, speed: float) -> None:
        """From now on."""

    def crash(self) -> list[Victim]:
        """Forgets its requests; what a cell's victims are sorted by, and each of them."""


class FifoServer:
    """One prefill engine, a pool of decode slots, and a FIFO queue in front of each."""

    def __init__(
        self,
        agenda: Agenda,
        leave: Leave,
        slots: int,
        queue_limit: int,
        prefill_s_per_token: float,
        decode_s_per_token: float,
    ) -> None:
        self._agenda = agenda
        self._leave = leave
        self._slots = slots
        self._queue_limit = queue_limit
        self._prefill_s_per_token = prefill_s_per_token
        self._decode_s_per_token = decode_s_per_token
        self._prefill_queue: deque[Request] = deque()
        self._decode_queue: deque[Request] = deque()
        self._prefilling = False
        self._decoding = 0
        self.requests = 0
        self.tokens = 0
        self.prompt_tokens = 0

    def takes(self, request: Request) -> bool:
        return self.requests < self._queue_limit

    def offer(self, request: Request) -> None:
        self.requests += 1
        self.prompt_tokens += request.prompt - request.hit
        self.tokens += request.prompt - request.hit + request.output
        self._prefill_queue.append(request)
        self._serve_prefill()

    def _serve_prefill(self) -> None:
        if self._prefilling or not self._prefill_queue:
            return
        request = self._prefill_queue.popleft()
        self._prefilling = True
        work_s = (request.prompt - request.hit) * self._prefill_s_per_token
        end_s = self._agenda.now_s + work_s
        self._agenda.at(end_s, Rank.COMPLETION, partial(self._end_prefill, request), FIRST)

    def _end_prefill(self, request: Request) -> None:
        request.first_token_s = self._agenda.now_s
        self._prefilling = False
        self.prompt_tokens -= request.prompt - request.hit
        self.tokens -= request.prompt - request.hit
        self._decode_queue.append(request)
        self._serve_decode()
        self._serve_prefill()

    def _serve_decode(self) -> None:
        if self._decoding == self._slots or not self._decode_queue:
            return
        request = self._decode_queue.popleft()
        self._decoding += 1
        work_s = request.output * self._decode_s_per_token
        end_s = self._agenda.now_s + work_s
        end = partial(self._end_decode, request)
        self._agenda.at(end_s, Rank.COMPLETION, end, (request.first_token_s, request.key))

    def _end_decode(self, request: Request) -> None:
        self._decoding -= 1
        self.requests -= 1
        self.tokens -= request.output
        self._leave(request, None)
        self._serve_decode()

    def change_speed(self, speed: float) -> None:
        raise NotImplementedError("queues predict nothing; use PlannedServer")

    def crash(self) -> list[Victim]:
        raise NotImplementedError("queues predict nothing; use PlannedServer")


class PlannedServer:
    """The same server by plans: request to (instant of the first token, instant of leaving)."""

    def __init__(
        self,
        agenda: Agenda,
        leave: Leave,
        slots: int,
        queue_limit: int,
        prefill_s_per_token: float,
        decode_s_per_token: float,
        max_wait_s: float = math.inf,
    ) -> None:
        self._agenda = agenda
        self._leave = leave
        self._queue_limit = queue_limit
        self._prefill_s_per_token = prefill_s_per_token
        self._decode_s_per_token = decode_s_per_token
        self._max_wait_s = max_wait_s
        self._speed = 1.0
        self._engine_free_s = 0.0
        self._slot_free_s = [0.0] * slots
        self._plans: dict[Request, tuple[float, float]] = {}
        self._unread: set[Request] = set()

    @property
    def requests(self) -> int:
        return len(self._plans)

    @property
    def prompt_tokens(self) -> int:
        return sum(request.prompt - request.hit for request in self._unread)

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + sum(request.output for request in self._plans)

    def takes(self, request: Request) -> bool:
        return self.requests < self._queue_limit

    def offer(self, request: Request) -> None:
        self._unread.add(request)
        now_s = self._agenda.now_s
        if self._engine_free_s - now_s > self._max_wait_s:
            self._plan(request, math.inf, now_s + self._max_wait_s)
            return
        prefill_s = (request.prompt - request.hit) * self._prefill_s_per_token / self._speed
        decode_s = request.output * self._decode_s_per_token / self._speed
        first_token_s = max(now_s, self._engine_free_s) + prefill_s
        slot = self._slot_free_s.index(min(self._slot_free_s))
        done_s = max(first_token_s, self._slot_free_s[slot]) + decode_s
        self._engine_free_s = first_token_s
        self._slot_free_s[slot] = done_s
        self._plan(request, first_token_s, done_s)

    def _plan(self, request: Request, first_token_s: float, leaves_s: float) -> None:
        """Plans may change: an event finds out whether it is still what is planned."""
        plan = first_token_s, leaves_s
        self._plans[request] = plan
        if self._agenda.now_s <= first_token_s < math.inf:
            self._agenda.at(
                first_token_s, Rank.COMPLETION, partial(self._read, request, plan), FIRST
            )
        order = min(first_token_s, leaves_s), request.key
        self._agenda.at(leaves_s, Rank.COMPLETION, partial(self._end, request, plan), order)

    def _read(self, request: Request, plan: tuple[float, float]) -> None:
        if self._plans.get(request) is plan:
            request.first_token_s = plan[0]
            self._unread.discard(request)

    def _end(self, request: Request, plan: tuple[float, float]) -> None:
        if self._plans.get(request) is not plan:
            return
        del self._plans[request]
        self._unread.discard(request)
        self._leave(request, "gave_up" if plan[0] == math.inf else None)

    def change_speed(self, speed: float) -> None:
        if speed == self._speed:
            return
        ratio = self._speed / speed
        self._speed = speed
        now_s = self._agenda.now_s

        def stretched(time_s: float) -> float:
            return now_s + (time_s - now_s) * ratio if time_s > now_s else time_s

        self._engine_free_s = stretched(self._engine_free_s)
        self._slot_free_s = [stretched(free_s) for free_s in self._slot_free_s]
        for request, (first_token_s, leaves_s) in list(self._plans.items()):
            if first_token_s < math.inf:
                self._plan(request, stretched(first_token_s), stretched(leaves_s))

    def crash(self) -> list[Victim]:
        victims = [
            (leaves_s, min(first_token_s, leaves_s), request.key, request)
            for request, (first_token_s, leaves_s) in self._plans.items()
        ]
        self._plans, self._unread = {}, set()
        self._engine_free_s = self._agenda.now_s
        self._slot_free_s = [self._agenda.now_s] * len(self._slot_free_s)
        return victims
