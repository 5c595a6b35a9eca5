"""A decision in the engine's numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision
from dlb_gym.engine import Orders, layout


def write_orders(orders: Orders, decision: Decision, dispatch: NDArray[np.int64]) -> None:
    """Puts a decision with routing or scores in force, in place.

    Args:
        orders: The engine's arrays.
        decision: A valid one.
        dispatch: (n,) SAMPLE or SMOOTH, for routing that does not say.
    """
    if decision.routing is not None:
        orders.base[:] = decision.routing
        orders.mode[:] = dispatch
        if decision.dispatch is not None:
            orders.mode[:] = layout.SMOOTH if decision.dispatch == "smooth" else layout.SAMPLE
    elif decision.base is not None and decision.slope is not None:
        orders.base[:] = decision.base
        orders.slope[:] = decision.slope
        orders.token_value[:] = 0.0 if decision.token_value is None else decision.token_value
        orders.mode[:] = layout.SCORE
        if decision.offset is not None:
            orders.offset[:] = decision.offset
            orders.mode[:] = layout.CUBE
        elif decision.samples > 0:
            orders.samples[:] = decision.samples
            orders.mode[:] = layout.DRILL


def with_table(orders: Orders, table: NDArray[np.int16]) -> Orders:
    """The orders with a decision's table in force, copied."""
    if orders.table.shape != table.shape:
        orders = orders._replace(table=np.zeros(table.shape, dtype=np.int16))
    orders.table[:] = table
    return orders
