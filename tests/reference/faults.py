"""Journeys over arcs that are cut or longer, and replicas that are down (docs/faults.md).

A message keeps the latency of its departure. It is lost if the arc is cut at some instant of the
journey, its end included. Spans begin with their start and end before their end.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlb_gym.disturbances import Down, Window


class Arc:
    """One root's way to one cell and back.

    Args:
        tau_s: One way, when nothing is the matter.
        windows: Of this arc.
    """

    def __init__(self, tau_s: float, windows: Sequence[Window]) -> None:
        self.tau_s = tau_s
        self._windows = windows

    def journey_s(self, leaves_s: float) -> float:
        """How long it takes to travel for what leaves then; shifts that overlap add up."""
        total_s = self.tau_s
        for window in self._windows:
            if window.extra_s < math.inf and window.start_s <= leaves_s < window.end_s:
                total_s += window.extra_s
        return total_s

    def is_cut(self, leaves_s: float, comes_s: float) -> bool:
        """Whether what leaves and would come at these instants is lost."""
        return any(
            window.extra_s == math.inf and window.start_s <= comes_s and leaves_s < window.end_s
            for window in self._windows
        )


class Replicas:
    """The leaf replicas of a cell, as they are and as a root holds them for.

    Replica q sends the reports q, q + L, q + 2 L, ... A root misses a dead one's first report a
    probe timeout after it asked for it, a journey before it was due; it trusts the replica again
    when the first report since has come. Losses, cuts and turns do not change these instants.
    """

    def __init__(self, count: int, probe_interval_s: float, down: Down | None) -> None:
        self.count = count
        self._probe_interval_s = probe_interval_s
        self._down = down

    def is_down(self, replica: int, now_s: float) -> bool:
        down = self._down
        return down is not None and replica < down.replicas and down.start_s <= now_s < down.end_s

    def seems_down(self, replica: int, now_s: float, tau_s: float, timeout_s: float) -> bool:
        """Whether a root that far away would not send to it."""
        if self._down is None or replica >= self._down.replicas:
            return False
        missed_s = self._first_report_s(replica, self._down.start_s) - tau_s + timeout_s
        trusted_s = self._first_report_s(replica, self._down.end_s) + tau_s
        return missed_s <= now_s < trusted_s

    def _first_report_s(self, replica: int, from_s: float) -> float:
        """When its first report at or after an instant is due."""
        number = math.ceil(from_s / self._probe_interval_s)
        while number % self.count != replica:
            number += 1
        return number * self._probe_interval_s


def loses_answer(
    down: Down | None, replicas: int, sent_s: float, answer_s: float, number: int
) -> bool:
    """Whether a root's replica that had a request under way crashed before the answer came.

    Replica ``number`` mod ``replicas`` had it, the number being its session's hash or, without a
    session, its own.
    """
    return (
        down is not None and sent_s < down.start_s <= answer_s and number % replicas < down.replicas
    )
