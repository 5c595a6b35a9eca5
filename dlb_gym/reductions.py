"""Sums whose value does not depend on batch size or padding.

`numpy.sum` adds pairwise from eight terms on, so a padded row and a bare one could differ in the
last bit. `numpy.add.accumulate` adds strictly from left to right; trailing zeros change nothing.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def ordered_sum(
    values: NDArray[np.float64], axis: int = -1, keepdims: bool = False
) -> NDArray[np.float64]:
    """Left-to-right sum along an axis.

    Args:
        values: Array of any shape; the axis must not be empty.
        axis: The axis to add along.
        keepdims: Keep the axis with length 1.
    """
    running = np.add.accumulate(values, axis=axis)
    return np.asarray(running.take([-1] if keepdims else -1, axis=axis))
