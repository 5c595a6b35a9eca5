"""Random decisions of every form."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym import decision as ours
from tests.reference import Decision

MODES = ("sample", "smooth", "score", "cube", "drill", "table")
ENTRIES = 12
"""Of a table."""


def random_decision(
    rng: np.random.Generator, admissible: NDArray[np.bool_], mode: str, spent: bool = False
) -> Decision:
    """Scores on few levels, so that many tie; tables and routing over the arcs of each root."""
    given: dict[str, Any] = {"mode": mode, "aversion_spent": spent}
    if mode in ("sample", "smooth"):
        return Decision(routing=random_routing(rng, admissible), **given)
    if mode == "table":
        rows = [rng.choice(np.flatnonzero(arcs), ENTRIES) for arcs in admissible]
        return Decision(table=np.array(rows, dtype=np.int16), **given)
    given["base"] = rng.integers(0, 3, admissible.shape).astype(float)
    given["slope"] = rng.choice([0.5, 1.0], admissible.shape)
    if rng.random() < 0.5:
        given["token_value"] = rng.choice([0.0, 2.0**-7, 2.0**-5], admissible.shape)
    if mode == "cube":
        given["offset"] = rng.choice([0.0, 0.5, 2.0], admissible.shape)
    if mode == "drill":
        given["samples"] = int(rng.integers(1, 4))
    return Decision(**given)


def random_routing(rng: np.random.Generator, admissible: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Rows on the simplex, zero off the arcs, some entries zero."""
    weights = np.where(admissible, rng.integers(0, 5, admissible.shape), 0).astype(float)
    empty = weights.sum(axis=1) == 0
    weights[empty] = admissible[empty]
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def in_force(decision: Decision) -> ours.Decision:
    """The reference's decision as a policy would answer it, for one row."""
    arrays = {
        name: None if array is None else array[None]
        for name in ("routing", "base", "slope", "offset", "token_value", "table")
        for array in [getattr(decision, name)]
    }
    return ours.Decision(
        **arrays,
        samples=decision.samples,
        dispatch=decision.mode if decision.mode in ("sample", "smooth") else None,
        aversion_spent=decision.aversion_spent,
    )
