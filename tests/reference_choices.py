"""How the reference chooses: cells at a root router, servers at a leaf router.

Written after the tie rules of DESIGN.md section 4; every choice is a function of a uniform drawn
with the request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Decision:
    """How roots choose cells until the next decision; arrays have shape (roots, cells).

    ``sample`` and ``smooth`` read ``routing``, ``score`` reads ``base`` and ``slope``. A decision
    that has spent aversion itself is followed as it is.
    """

    mode: Literal["sample", "smooth", "score"]
    routing: Floats | None = None
    base: Floats | None = None
    slope: Floats | None = None
    aversion_spent: bool = False


def choose_server(u_leaf: float, unfinished_tokens: Sequence[int]) -> int:
    """Power of two choices: two distinct servers from one uniform, the less loaded of them.

    Args:
        u_leaf: Uniform in [0, 1).
        unfinished_tokens: Prompt and output tokens still to process, per live server.

    Returns:
        Index of the server; a tie goes to the first drawn.
    """
    live = len(unfinished_tokens)
    first = math.floor(u_leaf * live)
    if live == 1:
        return first
    fraction = u_leaf * live - first
    second = math.floor(fraction * (live - 1))
    if second >= first:
        second += 1
    return second if unfinished_tokens[second] < unfinished_tokens[first] else first


def _sample(weights: Sequence[float], u_route: float) -> int:
    """First positive entry above whose running sum u does not lie; the last takes the rest."""
    total = 0.0
    for cell, weight in enumerate(weights):
        total += weight
        if weight > 0.0 and u_route < total:
            return cell
    return max(cell for cell, weight in enumerate(weights) if weight > 0.0)


def _pick_tied(tied: Sequence[int], u_route: float) -> int:
    return tied[math.floor(u_route * len(tied))]


class Dispatcher:
    """One root's way to choose cells."""

    def __init__(self, root: int, arcs: list[bool]) -> None:
        self._root = root
        self._arcs = arcs
        self._credits = [0.0] * len(arcs)
        self._decision: Decision | None = None
        self._sent_since = [0] * len(arcs)

    def adopt(self, decision: Decision) -> None:
        self._decision = decision
        self._sent_since = [0] * len(self._arcs)

    def choose(self, u_route: float) -> int:
        """Cell of the next request."""
        assert self._decision is not None
        if self._decision.mode == "score":
            scores = self.scores()
            least = min(scores.values())
            return _pick_tied([cell for cell in scores if scores[cell] == least], u_route)
        weights = self._weights(self._decision)
        chooser = _sample if self._decision.mode == "sample" else self._smooth
        return chooser(weights, u_route)

    def count(self, cell: int) -> None:
        """A request was sent to a cell, whoever chose it."""
        self._sent_since[cell] += 1

    def _weights(self, decision: Decision) -> list[float]:
        assert decision.routing is not None
        weights: list[float] = decision.routing[self._root].tolist()
        off_arcs = any(w > 0.0 and not arc for w, arc in zip(weights, self._arcs, strict=True))
        if off_arcs or not any(weight > 0.0 for weight in weights):
            raise ValueError(
                f"routing[{self._root}] = {weights}: a root with arrivals needs a positive entry, "
                "on arcs only; mask the row by the arcs"
            )
        return weights

    def _smooth(self, weights: Sequence[float], u_route: float) -> int:
        """Smooth weighted round robin."""
        total = 0.0
        eligible = []
        for cell, weight in enumerate(weights):
            if weight > 0.0:
                eligible.append(cell)
                self._credits[cell] += weight
                total += weight
            else:
                self._credits[cell] = 0.0
        largest = max(self._credits[cell] for cell in eligible)
        tied = [cell for cell in eligible if self._credits[cell] == largest]
        cell = _pick_tied(tied, u_route)
        self._credits[cell] -= total
        return cell

    def scores(self) -> dict[int, float]:
        """Base + slope x requests sent since the decision, of every cell with an arc."""
        decision = self._decision
        assert decision is not None
        assert decision.base is not None
        assert decision.slope is not None
        base, slope = decision.base[self._root].tolist(), decision.slope[self._root].tolist()
        return {
            cell: base[cell] + slope[cell] * self._sent_since[cell]
            for cell, arc in enumerate(self._arcs)
            if arc
        }
