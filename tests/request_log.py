"""What a complete request log says of every instant, counted with numpy alone."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Log = dict[str, NDArray[np.float64]]


def is_error(log: Log) -> NDArray[np.bool_]:
    return log["server"] < 0


def books_at(log: Log, time_s: float) -> dict[str, int]:
    """Requests in every state at an instant; events at the instant have happened."""
    error = is_error(log)
    arrived, at_leaf, done, back = (
        log[name] <= time_s for name in ("arrival_s", "leaf_s", "done_s", "answer_s")
    )
    states = {
        "arrived": arrived,
        "to_cells": arrived & ~at_leaf,
        "rif": at_leaf & ~done & ~error,
        "to_roots": done & at_leaf & ~back,
        "answered": back & ~error,
        "errors": back & error,
    }
    return {name: int(mask.sum()) for name, mask in states.items()}


def in_system_s(log: Log, start_s: float, end_s: float) -> float:
    """Integral of the requests between arrival at a root and answer there, request seconds."""
    spent_s = np.minimum(log["answer_s"], end_s) - np.maximum(log["arrival_s"], start_s)
    return float(np.maximum(spent_s, 0.0).sum())


def between(times_s: NDArray[np.float64], start_s: float, end_s: float) -> NDArray[np.bool_]:
    """In (start, end]."""
    return (times_s > start_s) & (times_s <= end_s)
