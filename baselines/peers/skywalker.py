"""SkyWalker's order of regions."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision
from dlb_gym.policy import Information, Policy

REGION_RTT_S = 0.01
TIER = 1e6
"""Above any load."""


class SkyWalker(Policy):
    """SkyWalker without its queue: own region, then others, where a place is free.

    SkyWalker (SkyPilot's load balancer of that name) prefers replicas of its own region that have
    no request waiting, then forwards to a region that has such a replica, and else keeps the
    request until one frees a place. Roots hold no queue here, so the request then goes to its own
    region: hence the name. Within each of the three choices the least N_j / k_j wins, and an own
    request counts at once.

    No request waits in a cell while N_j / k_j is below its knee. The own region are the cells
    within `region_rtt_s`, or the nearest cell where there is none. Prefixes are left to the
    scenario's affinity.

    Args:
        region_rtt_s: Longest round trip within a region.

    Raises:
        ValueError: It is negative or not finite.
    """

    name = "skywalker-unqueued"
    information: Information = "local"

    def __init__(self, region_rtt_s: float = REGION_RTT_S) -> None:
        if not 0.0 <= region_rtt_s < np.inf:
            raise ValueError(
                f"region_rtt_s = {region_rtt_s} must be finite and at least 0; {REGION_RTT_S} is "
                "the default"
            )
        self.region_rtt_s = region_rtt_s

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Scores in three tiers, by load within each."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        rtt_s = np.where(arcs, fields["rtt"] * fields["zero_load_time_s"], np.inf)
        nearest_s = rtt_s.min(axis=-1, keepdims=True, initial=np.inf)
        own = rtt_s <= np.maximum(nearest_s, self.region_rtt_s)
        free = fields["rif"] < fields["model_knee"]
        tier = np.where(free, np.where(own, 0.0, 1.0), np.where(own, 2.0, 3.0))
        return Decision(
            base=np.where(arcs, TIER * tier + fields["rif"], 0.0),
            slope=np.where(arcs, fields["request_weight"], 0.0).astype(np.float64),
        )
