"""Google's public algorithms of global load balancing (service load balancing policies).

Of what its documentation says (docs.cloud.google.com, ServiceLbPolicy.LoadBalancingAlgorithm), with
cells as zones, and a cell's capacity its nominal rate times the headroom:

- waterfall by zone: every root to its nearest cell, what does not fit there to the next, ...
- waterfall by region: the same with regions; the cells of a region are evenly loaded, each root
  keeping to its nearest ones.
- spray to region: the same with regions; each root spreads over all cells of a region.
- spray to world: over all cells in proportion to capacity.

Where several roots ask more of a cell or region than it has, each gets its part in proportion; what
finds no room anywhere is split by capacity. A waterfall minimises no total: see `mnlb_program` for
the plan of least network latency.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from baselines.planned import PERIOD_S, Planned, Reports, require_positive
from dlb_gym.decision import Array, Mask
from dlb_gym.policy import proportional
from dlb_gym.reductions import ordered_sum
from dlb_gym.scenario_checks import nearest_key

Kind = Literal["waterfall-zone", "waterfall-region", "spray-region", "spray-world"]
HEADROOM = 0.85
REGION_RTT_S = 0.01


class Waterfall(Planned):
    """One of the four algorithms, planned as MNLB's weights are (see `planned`).

    Observations name no regions: cells that some root has within `region_rtt_s` are of one region.

    Args:
        kind: The algorithm.
        headroom: Share of a cell's nominal rate that is filled; the default is MNLB's.
        period_s: Time between plans, rounded to control intervals.
        region_rtt_s: Longest round trip within a region.

    Raises:
        ValueError: An argument is unknown or out of range.
    """

    def __init__(
        self,
        kind: str,
        headroom: float = HEADROOM,
        period_s: float = PERIOD_S,
        region_rtt_s: float = REGION_RTT_S,
    ) -> None:
        super().__init__(period_s)
        require_positive("headroom", headroom)
        require_positive("region_rtt_s", region_rtt_s)
        kinds: tuple[Kind, ...] = get_args(Kind)
        if kind not in kinds:
            raise ValueError(
                f"kind = {kind!r} is unknown{nearest_key(kind, kinds)}; choose one of "
                f"{', '.join(kinds)}"
            )
        self.kind, self.headroom, self.region_rtt_s = kind, headroom, region_rtt_s
        self.name = kind

    def plan(self, row: int, reports: Reports) -> Array:
        """The weights of one replication."""
        capacity, arcs = self.headroom * reports.capacity, reports.arcs
        distance = np.where(arcs, reports.zero_load_time_s * reports.rtt, np.inf)
        if self.kind == "spray-world":
            return proportional(np.broadcast_to(capacity, arcs.shape), arcs)
        if self.kind == "waterfall-zone":
            flow = filled(reports.arrivals, capacity, distance)
        else:
            flow = self._by_region(reports, capacity, distance)
        left = np.maximum(reports.arrivals - ordered_sum(flow), 0.0)
        rest = proportional(np.broadcast_to(capacity, arcs.shape), arcs)
        silent = (reports.arrivals <= 0.0)[:, None]  # gets weights as well
        return proportional(np.where(silent, rest, flow + left[:, None] * rest), arcs)

    def _by_region(self, reports: Reports, capacity: Array, distance: Array) -> Array:
        """Flows (roots, cells) through regions and, within each, over its cells."""
        region = regions(distance, self.region_rtt_s)
        members = region[:, None] == np.arange(region.max() + 1)
        of_region = np.min(np.where(members, distance[..., None], np.inf), axis=1)
        to_region = filled(reports.arrivals, ordered_sum(members.T * capacity), of_region)
        flow = np.zeros_like(distance)
        for k in range(members.shape[1]):
            within = members[:, k]
            if self.kind == "spray-region":
                arcs = reports.arcs & within
                share = proportional(np.broadcast_to(capacity, arcs.shape), arcs)
                flow += to_region[:, k, None] * share
            else:
                load = ordered_sum(to_region[:, k])
                total = ordered_sum(np.where(within, capacity, 0.0))
                even = np.where(within, capacity, 0.0) * (load / total if total > 0.0 else 0.0)
                nearest = np.where(within, distance, np.inf)
                flow += filled(to_region[:, k], even, nearest)
        return flow


def filled(demand: Array, capacity: Array, distance: Array) -> Array:
    """Demand poured into places, each root's nearest first.

    Args:
        demand: Of the roots, (roots,), at least 0.
        capacity: Of the places, (places,), at least 0.
        distance: (roots, places); infinite where a root must not go. Equal ones are filled
            together, in proportion to the room they have.

    Returns:
        Flows (roots, places); no place gets more than its capacity, no root sends more than its
        demand.
    """
    flow, left, room = np.zeros_like(distance), demand.copy(), capacity.copy()
    levels = np.sort(distance, axis=1)
    for k in range(distance.shape[1]):
        new = np.isfinite(levels[:, k])
        if k > 0:
            new &= levels[:, k] > levels[:, k - 1]
        here = (distance == levels[:, k, None]) & new[:, None] & (room > 0.0)
        asked = left[:, None] * _split(here, room)
        total = ordered_sum(asked.T)
        given = asked * np.where(total > room, room / np.where(total > 0.0, total, 1.0), 1.0)
        flow += given
        left = np.maximum(left - ordered_sum(given), 0.0)
        room = np.maximum(room - ordered_sum(given.T), 0.0)
    return flow


def _split(places: Mask, room: Array) -> Array:
    """Parts of a root's demand for places, in proportion to their room; none without a place."""
    weight = np.where(places, room, 0.0)
    total = ordered_sum(weight, keepdims=True)
    parts: Array = weight / np.where(total > 0.0, total, 1.0)
    return parts


def regions(distance_s: Array, region_rtt_s: float) -> NDArray[np.int64]:
    """Number of each cell's region, (cells,): cells that one root has near are of one region."""
    near = distance_s <= region_rtt_s
    region = np.arange(distance_s.shape[1])
    for _ in region:  # labels spread along chains of roots, one link a round at least
        for cells in near:
            if cells.any():
                region[cells] = region[cells].min()
                region = region[region]
    return np.unique(region, return_inverse=True)[1].astype(np.int64)
