"""A root's error aversion: how the rates move and how they are spent (docs/aversion.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from dlb_gym.mechanisms import ErrorAversion

AVERT = 3 * 2**33
"""Purpose of the draws that accept a cell."""


class Aversion:
    """Aversion rates of one root over its cells.

    Args:
        law: Its numbers; None: all rates stay 0.
        cells: The cells that the root reaches.
    """

    def __init__(self, law: ErrorAversion | None, cells: Sequence[int]) -> None:
        self._law = law
        self._updates = 0
        self._doubt = dict.fromkeys(cells, 1.0)
        self._answers = {cell: [0, 0] for cell in cells}
        self.rates = dict.fromkeys(cells, 0.0)

    def update(
        self,
        now_s: float,
        error_rates: Mapping[int, float],
        answered: Mapping[int, int],
        silent_s: Mapping[int, float],
    ) -> None:
        """The control loop, when it is due.

        Args:
            now_s: Clock time.
            error_rates: In the reports held.
            answered: Answers of each cell so far.
            silent_s: Age of the reports held beyond their journey.
        """
        law = self._law
        if law is None or now_s < (self._updates + 1) * law.interval_s:
            return
        self._updates += 1
        doubted = {cell: self._doubted(law, cell, answered[cell]) for cell in self.rates}
        weighed = {cell: doubted[cell] * error_rates[cell] for cell in self.rates}
        for cell, rate in self.rates.items():
            excess = weighed[cell] - min(weighed.values()) - law.tolerance
            target = min(law.highest, law.gain * max(excess, 0.0))
            if silent_s[cell] > law.silence_s:
                target = law.highest
            if target > rate:
                self.rates[cell] = rate + law.rise * (target - rate)
            else:
                self.rates[cell] = max(target, rate - law.fall_per_s * law.interval_s)

    def _doubted(self, law: ErrorAversion, cell: int, answers: int) -> float:
        """The doubt factor of a cell after an update."""
        two_ago, one_ago = self._answers[cell]
        self._answers[cell] = [one_ago, answers]
        if answers - two_ago < law.quiet_answers:
            self._doubt[cell] *= math.exp(-law.interval_s / law.recovery_s)
        else:
            self._doubt[cell] = 1.0
        return self._doubt[cell]


def spent(
    routing: Sequence[float], rates: Mapping[int, float], capacity: Mapping[int, float]
) -> list[float]:
    """A routing vector with aversion spent.

    What is averted from a cell goes to the row's other cells in proportion to what they accept, x
    (1 - a); where these accept nothing (to rounding), to the root's other cells in proportion to
    capacity x (1 - a); where there are none, it stays.
    """
    accepted = {cell: routing[cell] * (1.0 - rate) for cell, rate in rates.items()}
    total = sum(accepted.values())
    result = [accepted.get(cell, 0.0) for cell in range(len(routing))]
    for cell, rate in rates.items():
        averted = routing[cell] * rate
        others = total - accepted[cell]
        shares = accepted
        if others <= 1e-12:
            shares = {k: capacity[k] * (1.0 - rates[k]) for k in rates}
            others = sum(share for k, share in shares.items() if k != cell)
        for k in rates:
            if averted > 0.0 and k != cell and others > 0.0:
                share = (routing if shares is accepted else capacity)[k]
                result[k] += averted * share * (1.0 - rates[k]) / others
        if averted > 0.0 and others <= 0.0:
            result[cell] += averted
    return result
