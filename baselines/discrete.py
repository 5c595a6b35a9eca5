"""Discrete routing: everything to the cell of least cost (paper 3.2.2, equation (1))."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import cost, cost_slope, latency_model, require_cost
from dlb_gym.policy import Decision, Information, Policy, split_ties


class Discrete(Policy):
    """x_i is one-hot at the arc of least cost; arcs that tie exactly share equally.

    The paper decides per request, on the newest probe. Here the vector is held for a control
    interval, which is the same where that equals the probe interval; held longer, each root sends
    a whole interval's requests to one cell. `DiscreteScore` softens that.

    Args:
        cost: `rif`, `latency` or `gradient`.

    Raises:
        ValueError: There is no such cost.
    """

    information: Information = "local"

    def __init__(self, cost: str) -> None:
        self.cost = require_cost(cost)
        self.name = f"disc-{self.cost}"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """One-hot rows."""
        fields = self.fields(observation)
        return Decision(split_ties(cost(self.cost, fields), fields["admissible"] > 0.0))


class DiscreteScore(Discrete):
    """Discrete routing that counts what it sends between decisions (`score` dispatch).

    Each request goes to the cell with the least c_ij + (dc_ij / dN_j) x (this root's requests sent
    to j since the decision): the cost, to first order, as if those requests were in the cell.

    dc_ij / dN_j is the cost's slope per server divided by the k_j of the probe held.

    Args:
        cost: `rif`, `latency` or `gradient`.

    Raises:
        ValueError: There is no such cost.
    """

    def __init__(self, cost: str) -> None:
        super().__init__(cost)
        self.name += "-score"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Costs and their slopes per own request; zero where no arc is."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        point = latency_model(fields).at(fields["rif"].astype(np.float64))
        return Decision(
            base=np.where(arcs, cost(self.cost, fields), 0.0),
            slope=np.where(arcs, cost_slope(self.cost, point) * fields["request_weight"], 0.0),
        )
