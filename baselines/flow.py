"""Flow routing: projected gradient descent on the routing probabilities (paper 3.2.2)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields, cost, cost_slope, latency_model, require_cost
from baselines.static import CapacitySplit
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.latency_model import OperatingPoint, step_size
from dlb_gym.policy import Information, project_to_simplex

MAX_MOVE = 0.1
STEADY_KNEES = 1.5
"""Slopes are taken up to this multiple of the knee, where a cell works at about 93 % of its largest
rate (rho_max = 0.9): equilibria of fleets with any headroom lie below."""


class Flow(CapacitySplit):
    """x_i <- Proj(x_i - h eta_i c_i), h the control interval (theory.md section 1, equation (2)).

    eta_i is the working rule of `dlb_gym.latency_model.step_size`, inversely proportional to the
    root's mean loop delay. The rule describes the neighbourhood of an equilibrium, so the slopes
    are taken at min(n_j, 1.5 knee): farther on they explode, and a single overloaded cell would
    shrink the step to nothing just when traffic must leave it. Costs explode there too, so a row
    moves towards its projection by at most `max_move` in any entry, which keeps it on the simplex.
    An episode starts at the split proportional to probed capacity. Arrival rates are never read.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.
        max_move: Largest change of an entry per update, in (0, 1].
        gain: Factor on eta_i, > 0.

    Raises:
        ValueError: An argument is out of range.
    """

    information: Information = "local"

    def __init__(self, cost: str, max_move: float = MAX_MOVE, gain: float = 1.0) -> None:
        self.cost = require_cost(cost)
        if not 0.0 < max_move <= 1.0:
            raise ValueError(f"max_move = {max_move} must lie in (0, 1]; {MAX_MOVE} is the default")
        if not 0.0 < gain < np.inf:
            raise ValueError(f"gain = {gain} must be finite and above 0; 1 is the default")
        self.max_move, self.gain = max_move, gain
        self.name = f"flow-{self.cost}"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Move every row one step down its costs."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        if self._unset.any():
            self._start(fields)
        self._routing = self._stepped(fields, arcs)
        return Decision(self._routing)

    def _stepped(self, fields: Fields, arcs: Mask) -> Array:
        """The routing after one step."""
        target = project_to_simplex(self._routing - self._displacement(fields, arcs), arcs)
        move = target - self._routing
        largest = np.max(np.abs(move), axis=-1, keepdims=True)
        share = self.max_move / np.maximum(largest, self.max_move)
        stepped: Array = self._routing + share * move
        return stepped

    def _displacement(self, fields: Fields, arcs: Mask) -> Array:
        """The step h eta c, less its least entry: the projection ignores a constant."""
        rif = fields["rif"].astype(np.float64)
        interval = fields["control_interval"].astype(np.float64)
        model = latency_model(fields)
        steady = model.at(np.minimum(rif, STEADY_KNEES * model.knee))
        eta = step_size(
            servers=fields["servers"].astype(np.float64),
            rate=rif / np.where(arcs, fields["serving_latency"], 1.0),
            rate_slope=steady.rate_slope,
            cost_slope=self._slopes(fields, steady),
            loop_delay=0.5 * fields["rtt"] + fields["probe_age"] + 0.5 * interval,
            admissible=arcs,
        )
        costs = self._costs(fields)
        least = np.min(np.where(arcs, costs, np.inf), axis=-1, keepdims=True)
        displacement: Array = self.gain * eta * interval * np.where(arcs, costs - least, 0.0)
        return displacement

    def _costs(self, fields: Fields) -> Array:
        return cost(self.cost, fields)

    def _slopes(self, fields: Fields, steady: OperatingPoint) -> Array:
        return cost_slope(self.cost, fields, steady)


class DGD(Flow):
    """DGD-LB: Flow by 1 / mu_j'(N_j) + tau_ij, the way there alone (arXiv 2504.10693).

    Its own step sizes are not published in what we could read; this one takes Flow's.
    """

    def __init__(self) -> None:
        super().__init__("one-way")
        self.name = "dgd-lb"
