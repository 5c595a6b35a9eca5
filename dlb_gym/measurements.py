"""What is measured of an episode's requests: sums and log-spaced histograms.

Memory does not grow with the horizon. A histogram's bins split every octave of [2^-20, 2^20) s into
64 equal parts, so a quantile is off by less than 1.6 %.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.reductions import ordered_sum

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


ERROR_KINDS = ("full", "black_hole", "crashed", "gave_up", "unreachable", "root_crashed")
"""Servers full; a cell that fails requests at once; the server crashed; the client waited too long;
nothing was heard of the cell any more; the root crashed. In the engine's order."""


class Measurements(NamedTuple):
    """Sums over requests that arrived after settling and up to the horizon, (n,) each.

    Attributes:
        arrived: Requests.
        arrived_away: Those sent to another cell than the root's own.
        errors: Error responses taken in.
        latency_sum_s: End-to-end latencies of the answered ones.
        first_token_sum_s: Their times to first token, both journeys included.
        latency_histogram: (n, bins), see `quantile_s`.
        first_token_histogram: (n, bins).
        token_time_sum_s: Their times per output token, from the first token to the last; those
            without output have none.
        token_time_histogram: (n, bins).
        errors_by_kind: (n, kinds), see ERROR_KINDS.
    """

    arrived: IntArray
    arrived_away: IntArray
    errors: IntArray
    latency_sum_s: FloatArray
    first_token_sum_s: FloatArray
    latency_histogram: IntArray
    first_token_histogram: IntArray
    token_time_sum_s: FloatArray
    token_time_histogram: IntArray
    errors_by_kind: IntArray


@cache
def bin_edges_s() -> FloatArray:
    """Edges of the histograms' bins, seconds: each octave in 64 equal parts."""
    parts = 1.0 + np.arange(layout.PARTS_PER_OCTAVE) / layout.PARTS_PER_OCTAVE
    octaves = np.exp2(np.arange(layout.OCTAVES) + layout.LOWEST_EXPONENT)
    edges = (octaves[:, None] * parts[None, :]).ravel()
    edges = np.append(edges, np.exp2(layout.LOWEST_EXPONENT + layout.OCTAVES))
    edges.flags.writeable = False  # all callers share it
    return edges


def slowest_sum_s(histogram: IntArray, share: float) -> FloatArray:
    """Sum over the slowest `share` of every row's latencies, each counted at its bin's middle.

    Where the share is no whole number of latencies, the fastest of them counts in part.

    Args:
        histogram: (n, bins).
        share: In (0, 1].

    Returns:
        (n,), 0 where nothing was counted.
    """
    edges = bin_edges_s()
    # A column that is empty in all rows adds nothing, and most are.
    slowest_first = np.flatnonzero(histogram.any(axis=0))[::-1]
    counts = np.take(histogram, slowest_first, axis=1)  # in rows, as what follows runs along them
    slower = np.cumsum(counts, axis=1) - counts
    wanted = share * counts.sum(axis=1, keepdims=True)
    taken = np.clip(wanted - slower, 0.0, counts)
    middles = (edges[slowest_first] + edges[slowest_first + 1]) / 2.0
    return ordered_sum(np.append(np.zeros((len(counts), 1)), taken * middles, axis=1))


def within(histogram: IntArray, limit_s: float) -> FloatArray:
    """How many of every row's latencies (n, bins) are below a limit, linear within its bin; (n,).

    Args:
        histogram: (n, bins).
        limit_s: Within the range of the bins.
    """
    edges = bin_edges_s()
    index = int(np.searchsorted(edges, limit_s, side="right")) - 1
    part = (limit_s - edges[index]) / (edges[index + 1] - edges[index])
    below = histogram[:, :index].sum(axis=1)
    return np.asarray(below + part * histogram[:, index])


def quantile_s(histogram: IntArray, quantiles: Sequence[float]) -> FloatArray:
    """Quantiles of a histogram (bins,), linear within a bin; NaN where nothing was counted."""
    running = np.concatenate(([0], np.cumsum(histogram)))
    if running[-1] == 0:
        return np.full(len(quantiles), np.nan)
    ranks = np.asarray(quantiles) * running[-1]
    occupied = np.flatnonzero(histogram)
    bins = occupied[np.searchsorted(running[occupied + 1], ranks)]
    inside = (ranks - running[bins]) / histogram[bins]
    edges = bin_edges_s()
    return np.asarray(edges[bins] + np.clip(inside, 0.0, 1.0) * (edges[bins + 1] - edges[bins]))
