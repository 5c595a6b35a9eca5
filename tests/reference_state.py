"""State of a cell in the reference: queues and counters that events change, and its reports."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

_ERROR_RATE_MEMORY_S = 5.0


@dataclass(frozen=True)
class Report:
    """What a probe carries."""

    emitted_s: float
    rif: int
    servers: int
    received: tuple[int, ...]
    error_rate: float


@dataclass
class Server:
    """One prefill engine, a pool of decode slots, and a FIFO queue in front of each."""

    prefill_queue: deque[int] = field(default_factory=deque)
    decode_queue: deque[int] = field(default_factory=deque)
    prefilling: bool = False
    decoding: int = 0
    requests: int = 0
    unfinished_tokens: int = 0


@dataclass
class Cell:
    """A pool of servers behind one leaf router."""

    live: int
    servers: list[Server]
    received: list[int]
    initial_report: Report
    rif: int = 0
    error_rate: float = 0.0
    last_outcome_s: float = 0.0
    reports: list[Report] = field(default_factory=list)

    def record_outcome(self, now_s: float, failed: bool) -> None:
        """Move the error rate towards 1 (error) or 0 (completion)."""
        gain = 1.0 - math.exp(-(now_s - self.last_outcome_s) / _ERROR_RATE_MEMORY_S)
        self.error_rate += gain * (float(failed) - self.error_rate)
        self.last_outcome_s = now_s


def new_cell(changes: Sequence[tuple[float, int]], num_roots: int) -> Cell:
    """Empty cell with every server it will ever have, the initial ones live."""
    live = [count for time, count in changes if time == 0.0][-1]
    return Cell(
        live=live,
        servers=[Server() for _ in range(max(count for _, count in changes))],
        received=[0] * num_roots,
        initial_report=Report(0.0, 0, live, (0,) * num_roots, 0.0),
    )
