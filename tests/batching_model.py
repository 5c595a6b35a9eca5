"""Continuous batching in plain Python: one cell of servers, iteration by iteration.

Written from the rules in words, with a list of running requests and a queue of waiting ones per
server. It is compared with the kernel request by request, with exact equality of times, so an
iteration's time is formed by one fixed expression::

    end = start + (base + per_sequence * requests + per_context_token * tokens in the KV cache
                   + prefill_per_token * prompt tokens) / speed

It is also what the kernel's speed is measured against.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.hash_model import uniform
from tests.reference_choices import choose_server

ERROR = -1


@dataclass(frozen=True)
class Design:
    """A server: limits, terms of an iteration's time, speculative decoding, patience."""

    max_batch: int
    kv_tokens: int
    prefill_budget: int
    queue_limit: int
    base_s: float
    per_sequence_s: float
    per_context_token_s: float
    prefill_s_per_token: float
    draft_tokens: int = 0
    acceptance: float = 0.0
    max_wait_s: float = math.inf


@dataclass(eq=False)
class Job:
    """A request at the leaf; `server` is ERROR where it got no answer."""

    key: int
    leaf_s: float
    prompt: int
    output: int
    u_leaf: float
    hit_tokens: int = 0
    server: int = ERROR
    first_token_s: float = math.nan
    done_s: float = math.nan
    unread: int = 0
    made: int = 0

    @property
    def length(self) -> int:
        return self.prompt + self.output

    def fail(self, now_s: float) -> None:
        self.server, self.first_token_s, self.done_s = ERROR, now_s, now_s


@dataclass(eq=False)
class Server:
    design: Design
    number: int
    seed: int
    speed: float = 1.0
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    ends_s: float = math.inf
    unfinished_tokens: int = 0

    def offer(self, now_s: float, job: Job) -> None:
        unfinished = len(self.waiting) + len(self.running)
        if unfinished >= self.design.queue_limit or job.length > self.design.kv_tokens:
            job.fail(now_s)
            return
        job.server = self.number
        job.unread = job.prompt - job.hit_tokens
        self.unfinished_tokens += job.unread + job.output
        self.waiting.append(job)
        if self.ends_s == math.inf:
            self.begin(now_s)

    def begin(self, now_s: float) -> None:
        design = self.design
        budget = design.prefill_budget - sum(job.unread for job in self.running)
        reserved = sum(job.length for job in self.running)
        while self.waiting and len(self.running) < design.max_batch and budget > 0:
            if reserved + self.waiting[0].length > design.kv_tokens:
                break
            job = self.waiting.popleft()
            self.running.append(job)
            reserved += job.length
            budget -= job.unread
        if not self.running:
            self.ends_s = math.inf
            return
        in_cache = sum(job.prompt - job.unread + job.made for job in self.running)
        prompt_tokens = design.prefill_budget - max(budget, 0)
        duration_s = (
            design.base_s
            + design.per_sequence_s * len(self.running)
            + design.per_context_token_s * in_cache
            + design.prefill_s_per_token * prompt_tokens
        ) / self.speed
        self.ends_s = now_s + duration_s

    def end(self) -> None:
        """The iteration under way ends, and the next begins."""
        now_s = self.ends_s
        budget = self.design.prefill_budget
        going_on = []
        for job in self.running:
            if math.isnan(job.first_token_s):
                chunk = min(job.unread, budget)
                budget -= chunk
                job.unread -= chunk
                made = 0
                if job.unread == 0:
                    job.first_token_s = now_s
                    made = min(1, job.output)
            else:
                chunk = 0
                made = min(job.output - job.made, self.tokens_of(job))
            job.made += made
            self.unfinished_tokens -= chunk + made
            if job.unread == 0 and job.made == job.output:
                job.done_s = now_s
            else:
                going_on.append(job)
        self.running = going_on
        while self.waiting and now_s > self.waiting[0].leaf_s + self.design.max_wait_s:
            job = self.waiting.popleft()
            self.unfinished_tokens -= job.unread + job.output
            job.fail(now_s)
        self.begin(now_s)

    def tokens_of(self, job: Job) -> int:
        """One token, and one more for each draft token in a row that is accepted."""
        if self.design.draft_tokens == 0:
            return 1
        u = uniform(self.seed + 2**32, job.key, job.output - job.made)
        accepted = 0
        while accepted < self.design.draft_tokens and u < self.design.acceptance ** (accepted + 1):
            accepted += 1
        return 1 + accepted

    def crash(self, now_s: float) -> None:
        """All its requests fail; the iteration under way ends in vain."""
        for job in (*self.running, *self.waiting):
            job.fail(now_s)
        self.running, self.unfinished_tokens = [], 0
        self.waiting.clear()


def advance(servers: Iterable[Server], until_s: float) -> None:
    """Iterations that end by an instant; servers do not influence one another between arrivals."""
    for server in servers:
        while server.ends_s <= until_s and server.ends_s < math.inf:
            server.end()


def serve(design: Design, jobs: Iterable[Job], servers: int, seed: int) -> list[Server]:
    """Serves jobs, in order of time, to the last token."""
    cell = [Server(design, number, seed) for number in range(servers)]
    for job in jobs:
        advance(cell, job.leaf_s)
        chosen = choose_server(job.u_leaf, [server.unfinished_tokens for server in cell])
        cell[chosen].offer(job.leaf_s, job)
    advance(cell, math.inf)
    return cell
