"""Events of the reference: one list in order of time, and the order within an instant."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum

Action = Callable[[], None]
Order = tuple[float, int]


class Rank(IntEnum):
    """Order of events at one instant."""

    CHANGE = 0
    COMPLETION = 1
    ROOT = 2
    LEAF = 3
    PROBE = 4
    STEP = 5


class Agenda:
    """What is to happen, and the time that it is."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._heap: list[tuple[float, Rank, Order, int, Action]] = []
        self._scheduled = 0

    def at(self, time_s: float, rank: Rank, action: Action, order: Order = (0.0, 0)) -> None:
        """Schedule; events of one instant and rank go by ``order``, then first come."""
        self._scheduled += 1
        heapq.heappush(self._heap, (time_s, rank, order, self._scheduled, action))

    def run_next(self) -> None:
        self.now_s, _, _, _, action = heapq.heappop(self._heap)
        action()
