"""What a policy answers: how every root chooses cells until the next decision."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from dlb_gym.reductions import ordered_sum

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Dispatch = Literal["sample", "smooth"]

SIMPLEX_TOLERANCE = 1e-6

FORMS = (
    ("routing",),
    ("routing", "dispatch"),
    ("base", "slope"),
    ("base", "slope", "offset"),
    ("base", "slope", "samples"),
    ("table",),
)


@dataclass(frozen=True)
class Decision:
    """What every root does until the next decision. Arrays are float64 (n, roots, cells).

    One of three forms, n_j counting this root's requests sent to j since the decision:

        routing     requests are split by probabilities
        scores      each request goes to the cell of least score: base_j + slope_j n_j, or with
                    `offset` base_j + (offset_j + slope_j n_j)^3; with `samples` the least of so
                    many arcs, drawn for each request, and of the one that won the last time
        table       a request goes to the cell in its session's entry, or in a random one

    Attributes:
        routing: Routing matrix: rows on the simplex, zero off the arcs.
        dispatch: How requests follow it, "sample" or "smooth"; None: as the scenario says.
        base: Scores before the first request.
        slope: What an own request adds.
        offset: Makes scores cubic.
        samples: Arcs that a request looks at; 0: all.
        token_value: What a prompt token takes off a cell's score if the root last saw the
            request's session there, so that it should be cached; where affinity is "none".
        table: Cells, int16 (n, roots, entries). A table that changes must be a new array.
        aversion_spent: The decision deals with the aversion rates itself; else roots move averted
            mass to a row's other cells (see `engine/aversion.py`), and go on to the next cell of a
            score or table.

    Raises:
        ValueError: The arrays given are none of these forms.
    """

    routing: Array | None = None
    base: Array | None = None
    slope: Array | None = None
    aversion_spent: bool = False
    dispatch: Dispatch | None = None
    offset: Array | None = None
    samples: int = 0
    token_value: Array | None = None
    table: NDArray[np.int16] | None = None

    def __post_init__(self) -> None:
        values = {
            "routing": self.routing,
            "dispatch": self.dispatch,
            "base": self.base,
            "slope": self.slope,
            "offset": self.offset,
            "samples": self.samples or None,
            "table": self.table,
        }
        given = tuple(name for name, value in values.items() if value is not None)
        if given not in FORMS:
            raise ValueError(
                f"a Decision holds {' + '.join(given) or 'nothing'}; give one of these together: "
                f"{', '.join(' + '.join(form) for form in FORMS)}"
            )
        if self.token_value is not None and self.base is None:
            raise ValueError("token_value belongs to scores; give base and slope with it")


def check_decision(decision: Decision, admissible: Mask) -> None:
    """Refuse a decision that no root could carry out.

    Args:
        decision: The decision.
        admissible: Arcs, boolean, shape (n, roots, cells). Roots without any are padding.

    Raises:
        ValueError: Wrong shape or type, NaN or infinity, a routing row that is off the simplex
            (1e-6) or not zero off its arcs, or a table with an entry that is no arc; names the
            replication and the root.
    """
    if decision.routing is not None:
        _check_routing(decision.routing, admissible)
    elif decision.table is not None:
        _check_table(decision.table, admissible)
    else:
        for name in ("base", "slope", "offset", "token_value"):
            array = getattr(decision, name)
            if array is not None:
                _check_array(name, array, admissible)


def _check_routing(routing: Array, admissible: Mask) -> None:
    _check_array("routing", routing, admissible)
    _refuse(routing < 0.0, "routing", "has a negative share", "clip and normalise it")
    stray = ~admissible & (routing != 0.0)
    _refuse(stray, "routing", "sends to a cell that is no arc", "mask it with `admissible`")
    total = ordered_sum(routing)
    expected = admissible.any(axis=-1)
    off = np.abs(total - expected) > SIMPLEX_TOLERANCE
    rule = f"does not sum to 1 within {SIMPLEX_TOLERANCE:g}"
    _refuse(off, "routing", rule, "normalise it (`proportional`, `project_to_simplex`)")


def _check_array(name: str, array: Array, admissible: Mask) -> None:
    if array.shape != admissible.shape or array.dtype != np.float64:
        raise ValueError(
            f"{name} must be float64 of shape (replications, roots, cells) = {admissible.shape}; "
            f"got {array.dtype} of shape {array.shape}"
        )
    _refuse(~np.isfinite(array), name, "holds NaN or infinity", "make every entry finite")


def _check_table(table: NDArray[Any], admissible: Mask) -> None:
    rows, cells = admissible.shape[:2], admissible.shape[2]
    if table.ndim != 3 or table.shape[:2] != rows or 0 in table.shape or table.dtype != np.int16:
        raise ValueError(
            f"table must be int16 of shape (replications, roots, entries) = ({rows[0]}, {rows[1]}, "
            f"at least 1); got {table.dtype} of shape {table.shape}"
        )
    outside = (table < 0) | (table >= cells)
    _refuse(outside, "table", "names a cell that does not exist", f"use 0 to {cells - 1}")
    arcs = np.take_along_axis(admissible, table.astype(np.intp), axis=2)
    stray = ~arcs & admissible.any(axis=-1, keepdims=True)
    _refuse(stray, "table", "sends to a cell that is no arc", "fill it from `admissible`")


def _refuse(bad: Mask, name: str, fault: str, remedy: str) -> None:
    if bad.any():
        replication, root = np.argwhere(bad)[0][:2]
        raise ValueError(f"{name} of replication {replication}, root {root} {fault}; {remedy}")
