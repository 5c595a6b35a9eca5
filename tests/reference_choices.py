"""How the reference chooses: cells at a root router, servers at a leaf router.

Written after the tie rules of DESIGN.md section 4; every choice is a function of a uniform drawn
with the request.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from tests.hash_model import uniform

Floats = NDArray[np.float64]
SAMPLED = 2**42
"""Purpose of `drill`'s draws."""


@dataclass(frozen=True)
class Decision:
    """How roots choose cells until the next decision; arrays have shape (roots, cells).

    ``sample`` and ``smooth`` read ``routing``, ``table`` reads ``table``, the others are scores and
    read ``base`` and ``slope``, ``cube`` also ``offset`` and ``drill`` also ``samples``. A decision
    that has spent aversion itself is followed as it is.
    """

    mode: Literal["sample", "smooth", "score", "cube", "drill", "table"]
    routing: Floats | None = None
    base: Floats | None = None
    slope: Floats | None = None
    aversion_spent: bool = False
    offset: Floats | None = None
    samples: int = 0
    token_value: Floats | None = None
    table: NDArray[np.int16] | None = None


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
        self._last: int | None = None

    def adopt(self, decision: Decision) -> None:
        self._decision = decision
        self._sent_since = [0] * len(self._arcs)

    def choose(self, u_route: float) -> int:
        """Cell of the next request."""
        assert self._decision is not None
        if self._decision.mode == "table":
            return self.entry(u_route, 0)
        if self._decision.mode not in ("sample", "smooth"):
            return self.choose_scored(self.scores(), u_route)
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

    def scores(self, discount: Mapping[int, float] | None = None) -> dict[int, float]:
        """(Base - discount) + slope x requests sent since the decision, of every cell with an arc.

        In ``cube`` the third power of offset + slope x requests takes the place of the second term.
        """
        decision = self._decision
        assert decision is not None
        assert decision.base is not None
        assert decision.slope is not None
        scores = {}
        for cell in [cell for cell, arc in enumerate(self._arcs) if arc]:
            base = float(decision.base[self._root, cell]) - (discount or {}).get(cell, 0.0)
            queue = float(decision.slope[self._root, cell]) * self._sent_since[cell]
            if decision.mode == "cube":
                assert decision.offset is not None
                queue += float(decision.offset[self._root, cell])
                queue = queue * queue * queue
            scores[cell] = base + queue
        return scores

    def choose_scored(self, scores: Mapping[int, float], u_route: float) -> int:
        """The least of some cells' scores; in ``drill``, of a sample and of the last winner."""
        assert self._decision is not None
        if self._decision.mode == "drill":
            return self._drill(scores, u_route)
        least = min(scores.values())
        return _pick_tied([cell for cell in scores if scores[cell] == least], u_route)

    def _drill(self, scores: Mapping[int, float], u_route: float) -> int:
        """Candidates in index order are drawn by selection sampling; a later tie wins 1 in n."""
        assert self._decision is not None
        key = round(u_route * 2**53)
        missing = min(self._decision.samples, len(scores))
        seen: list[int] = []
        for place, cell in enumerate(sorted(scores)):
            if uniform(SAMPLED, key, cell) < missing / (len(scores) - place):
                missing -= 1
                seen.append(cell)
            elif cell == self._last:
                seen.append(cell)
        best, ties = seen[0], 1
        for cell in seen[1:]:
            if scores[cell] < scores[best]:
                best, ties = cell, 1
            elif scores[cell] == scores[best]:
                ties += 1
                if uniform(SAMPLED, key, len(self._arcs) + cell) < 1 / ties:
                    best = cell
        self._last = best
        return best

    def entry(self, u: float, step: int) -> int:
        """The table's entry at u, or so many steps farther."""
        assert self._decision is not None
        assert self._decision.table is not None
        entries = self._decision.table[self._root].tolist()
        return int(entries[(math.floor(u * len(entries)) + step) % len(entries)])
