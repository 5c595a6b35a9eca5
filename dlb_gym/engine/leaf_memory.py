"""What the rules by which leaves choose servers remember: arrays, and the names of their columns.

Shapes as in `layout` and `extras`; P probes that a leaf replica may hold. Arrays that no row's rule
needs have length 1.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import FloatArray, IntArray

MOST_CHOICES = 64
"""Servers that are drawn for one request, at most."""
WINDOW_BUCKETS = 16
"""Parts of a sliding window, which moves by one of them at a time."""
RIFS = 64
"""Answers to probes whose RIF a leaf replica remembers."""
FINISHED = 16
"""Finished requests that a server remembers."""

# LeafMemory.setting: (n, 14), by rule; see `leaf_rules` and `prequal`.
CHOICES, POOL, AGE_S, PROBES, REMOVALS, DELTA, QUANTILE = range(7)
WINDOW_S, LOAD_WEIGHT, MATCH_SHARE, GAP, FACTOR, DEVIATIONS, SLO_S = range(7, 14)
RULE_SETTINGS = 14
# LeafMemory.turn: (n, C, L, 3) requests that a replica has placed, probes that it holds, answers to
# probes that it had.
TURN, HELD_PROBES, ANSWERS = range(3)
TURN_COLUMNS = 3
# LeafMemory.window: (n, C, L, S, 18) the bucket of the last look, the sum of all, and the buckets.
LAST_BUCKET, WINDOW_TOTAL, FIRST_BUCKET = range(3)
WINDOW_COLUMNS = FIRST_BUCKET + WINDOW_BUCKETS
# LeafMemory.pool: (n, C, L, P, 5), the oldest probe first.
PROBED, PROBED_RIF, PROBED_LATENCY_S, PROBED_S, USES_LEFT = range(5)
PROBE_COLUMNS = 5
# LeafMemory.rifs: (n, C, L, 2, 64) RIFs of the last answers: by their number, and by size.
BY_NUMBER, BY_SIZE = range(2)
# LeafMemory.finished: (n, C, S, 16, 2), by the number of the request mod 16.
RIF_THEN, TOOK_S = range(2)


class LeafMemory(NamedTuple):
    """See the columns above; what never changes in an episode first.

    Attributes:
        setting: (n, 14) what the rule's numbers are.
        picks: (n, 64) scratch: servers drawn for a request, in ascending order.
        load: (n, at least S and 64) scratch: what servers are compared by.
        finishes: (n, C, S) requests that a server has finished.
    """

    setting: FloatArray
    picks: IntArray
    load: FloatArray
    turn: IntArray
    window: IntArray
    pool: FloatArray
    rifs: IntArray
    finished: FloatArray
    finishes: IntArray


def allocate_leaf_memory(
    axes: tuple[int, int], servers: int, leaves: int, windows: int, probes: int
) -> LeafMemory:
    """Zeroed arrays, which is how a row begins.

    Args:
        axes: Replications and cells.
        servers: Servers of the largest cell.
        leaves: Leaf replicas of a cell.
        windows: Columns of a sliding window: `WINDOW_COLUMNS`, or 1 where no rule has any.
        probes: Probes that a replica may hold, 1 where no rule probes.
    """
    n = axes[0]
    probing = probes > 1
    return LeafMemory(
        setting=np.zeros((n, RULE_SETTINGS)),
        picks=np.zeros((n, MOST_CHOICES), dtype=np.int64),
        load=np.zeros((n, max(servers, RIFS))),
        turn=np.zeros((*axes, leaves, TURN_COLUMNS), dtype=np.int64),
        window=np.zeros((*axes, leaves, servers, windows), dtype=np.int64),
        pool=np.zeros((*axes, leaves, probes, PROBE_COLUMNS)),
        rifs=np.zeros((*axes, leaves, 2, RIFS if probing else 1), dtype=np.int64),
        finished=np.zeros((*axes, servers, FINISHED if probing else 1, 2)),
        finishes=np.zeros((*axes, servers), dtype=np.int64),
    )


@part
def windowed(now_s: float, width_s: float, window: IntArray) -> int:
    """The sum in a sliding window, which moves on to now."""
    bucket = math.floor(now_s / width_s)
    for k in range(min(bucket - window[LAST_BUCKET], WINDOW_BUCKETS)):
        place = FIRST_BUCKET + (bucket - k) % WINDOW_BUCKETS
        window[WINDOW_TOTAL] -= window[place]
        window[place] = 0
    window[LAST_BUCKET] = bucket
    return int(window[WINDOW_TOTAL])


@part
def add_to_window(amount: int, window: IntArray) -> None:
    """Adds to the bucket of the last look."""
    window[WINDOW_TOTAL] += amount
    window[FIRST_BUCKET + window[LAST_BUCKET] % WINDOW_BUCKETS] += amount
