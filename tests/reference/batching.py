"""Continuously batching servers in the reference: ``tests.batching_model`` among events."""

from __future__ import annotations

import math

from tests import batching_model
from tests.batching_model import Design, Job
from tests.reference.events import Agenda, Rank
from tests.reference.servers import Leave, Victim
from tests.reference.system import Request


class BatchingServer:
    """A server of the model; its requests leave in order of admission, then those who gave up.
    Iterations that end at one instant end by the number of the server.

    A crash fails first those that run, then those that wait; the iteration under way ends in vain,
    and who comes before waits for that.
    """

    def __init__(
        self, agenda: Agenda, leave: Leave, design: Design, number: int, seed: int
    ) -> None:
        self._agenda = agenda
        self._leave = leave
        self._model = batching_model.Server(design, number, seed)
        self._requests: dict[Job, Request] = {}

    @property
    def requests(self) -> int:
        return len(self._model.waiting) + len(self._model.running)

    @property
    def tokens(self) -> int:
        return self._model.unfinished_tokens

    @property
    def prompt_tokens(self) -> int:
        return sum(job.unread for job in (*self._model.waiting, *self._model.running))

    def takes(self, request: Request) -> bool:
        design = self._model.design
        length = request.prompt + request.output
        return self.requests < design.queue_limit and length <= design.kv_tokens

    def offer(self, request: Request) -> None:
        now_s = self._agenda.now_s
        job = Job(
            key=request.key, leaf_s=now_s, prompt=request.prompt, output=request.output,
            u_leaf=request.u_leaf, hit_tokens=request.hit,
        )  # fmt: skip
        self._requests[job] = request
        idle = self._model.ends_s == math.inf
        self._model.offer(now_s, job)
        if idle:
            self._await_end()

    def _await_end(self) -> None:
        if self._model.ends_s < math.inf:
            self._agenda.at(
                self._model.ends_s, Rank.COMPLETION, self._end, (0.0, self._model.number)
            )

    def _end(self) -> None:
        running, waiting = list(self._model.running), list(self._model.waiting)
        self._model.end()
        for job in running:
            request = self._requests[job]
            request.first_token_s = job.first_token_s
            if not math.isnan(job.done_s):
                self._leave(self._requests.pop(job), None)
        for job in waiting:
            if job.server == batching_model.ERROR:
                self._leave(self._requests.pop(job), "gave_up")
        self._await_end()

    def change_speed(self, speed: float) -> None:
        """Iterations that begin from now on."""
        self._model.speed = speed

    def crash(self) -> list[Victim]:
        jobs = [*self._model.running, *self._model.waiting]
        self._model.crash(self._agenda.now_s)
        return [(0.0, self._model.number, k, self._requests.pop(job)) for k, job in enumerate(jobs)]
