"""MNLB, the centralised balancer the paper replaces: a linear program every ten seconds."""

from __future__ import annotations

import numpy as np

from baselines.mnlb_program import least_network_latency
from baselines.planned import PERIOD_S, Planned, Reports, require_positive
from dlb_gym.decision import Array, Mask
from dlb_gym.policy import TaskSpec

HEADROOM = 0.85


class MNLB(Planned):
    """Weights of least network latency subject to capacity (theory.md section 6; paper 1.1, 6).

    The paper gives the objective and the period; the linear program is in `mnlb_program`, how
    reports and weights travel in `planned`.

    Args:
        headroom: Share of a cell's nominal rate the plan may fill.
        period_s: Time between solutions, rounded to control intervals.
        arrival_noise: Each root's arrival estimate is off by a factor drawn evenly from
            1 - arrival_noise to 1 + arrival_noise at each solution.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self, headroom: float = HEADROOM, period_s: float = PERIOD_S, arrival_noise: float = 0.0
    ) -> None:
        require_positive("headroom", headroom)
        super().__init__(period_s)
        if not 0.0 <= arrival_noise < 1.0:
            raise ValueError(f"arrival_noise = {arrival_noise} must lie in [0, 1); 0 turns it off")
        self.headroom, self.arrival_noise = headroom, arrival_noise
        self.name = "mnlb" if headroom == HEADROOM else f"mnlb-{100 * headroom:g}"

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._noise = [_noise_stream(seed + row) for row in range(num_replications)]

    def restart(self, rows: Mask) -> None:
        """Forget reports and plans of these rows; their noise repeats from its seed."""
        super().restart(rows)
        for row in np.flatnonzero(rows).tolist():
            self._noise[row] = _noise_stream(self._seed + row)

    def plan(self, row: int, reports: Reports) -> Array:
        """The program's weights for arrivals as they were, but for the noise."""
        arrivals = reports.arrivals
        if self.arrival_noise > 0.0:
            wobble = self._noise[row].uniform(-1.0, 1.0, arrivals.shape)
            arrivals = arrivals * (1.0 + self.arrival_noise * wobble)
        return least_network_latency(
            arrivals=arrivals,
            capacity=reports.capacity,
            rtt=reports.rtt,
            admissible=reports.arcs,
            headroom=self.headroom,
        )


def _noise_stream(seed: int) -> np.random.Generator:
    """A stream apart from those that draw the workload from the same seed."""
    return np.random.default_rng([seed, int.from_bytes(b"mnlb")])
