"""From an action to a routing matrix.

- weights, in [0, 1]: x_ij = a_ij / sum over the arcs of root i; an all-zero row means uniform.
- logits, in [-1, 1]: x_ij = e^(8 a_ij) / sum over the arcs. The factor lets one of six cells take
  99.9 % of a row; without it no cell of six could take more than 60 %.

Values outside the range count as the nearest bound. A root without arcs (padding) gets zeros.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from dlb_gym import engine
from dlb_gym.policy import Encoding

ENCODINGS: tuple[Encoding, ...] = ("weights", "logits")
LOGIT_SCALE = 8.0

_LOW = {"weights": 0.0, "logits": -1.0}


def action_space(encoding: Encoding, num_roots: int, num_cells: int) -> gym.spaces.Box:
    """Box (roots, cells), float32.

    Raises:
        ValueError: The encoding is unknown.
    """
    if encoding not in ENCODINGS:
        raise ValueError(f"action = {encoding!r} is unknown; choose one of {', '.join(ENCODINGS)}")
    return gym.spaces.Box(_LOW[encoding], 1.0, (num_roots, num_cells), np.float32)


def numbers(action: object) -> NDArray[np.float64]:
    """A fresh array, so that the kernel sees one kind of it, whatever the caller's flags are.

    Raises:
        ValueError: The action holds something else than real numbers.
    """
    try:
        given = np.asarray(action)
        if given.dtype.kind in "biufO":
            return np.array(given, dtype=np.float64, order="C")
        what: object = given.dtype
    except (TypeError, ValueError, OverflowError) as error:
        what = error
    raise ValueError(f"action holds no real numbers ({what}); give an array of floats")


def to_routing(
    action: NDArray[np.floating], encoding: Encoding, admissible: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Routing matrices (n, R, C) of actions (n, R, C).

    Raises:
        ValueError: The shape is wrong, or a value is NaN or infinite.
    """
    values = numbers(action)
    if values.shape != admissible.shape:
        raise ValueError(
            f"action has shape {values.shape}; it must be {admissible.shape}: one number for every "
            "(replication, root, cell)"
        )
    routing = np.empty_like(values)
    scale = LOGIT_SCALE if encoding == "logits" else 0.0
    bad = engine.route(values, _LOW[encoding], scale, admissible, routing)
    if bad >= 0:
        r, i, j = (int(index) for index in np.unravel_index(bad, values.shape))
        raise ValueError(
            f"action of replication {r}, root {i}, cell {j} is {values[r, i, j]}; "
            "every entry must be a finite number"
        )
    return routing
