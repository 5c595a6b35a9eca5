"""Discrete routing: everything to the cell of least cost (paper 3.2.2, equation (1))."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import cost, cost_slope, latency_model, require_cost
from dlb_gym.decision import Decision
from dlb_gym.policy import Information, Policy, split_ties
from dlb_gym.reductions import ordered_sum


class Discrete(Policy):
    """x_i is one-hot at the arc of least cost; arcs that tie exactly share equally.

    The paper decides per request, on the newest probe. Here the vector is held for a control
    interval, which is the same where that equals the probe interval; held longer, each root sends
    a whole interval's requests to one cell. `DiscreteScore` softens that.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.

    Raises:
        ValueError: There is no such cost.
    """

    information: Information = "local"

    def __init__(self, cost: str) -> None:
        self.cost = require_cost(cost)
        self.name = f"disc-{self.cost}"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """One-hot rows, but for what aversion moves on."""
        fields = self.fields(observation)
        costs, arcs = cost(self.cost, fields), fields["admissible"] > 0.0
        if not fields["aversion"].any():
            return Decision(split_ties(costs, arcs))
        averted = spend_in_order(costs, fields["aversion"].astype(np.float64), arcs)
        return Decision(averted, aversion_spent=True)


def spend_in_order(
    costs: NDArray[np.float64], aversion: NDArray[np.float64], arcs: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Discrete routing that goes through the cells by cost, accepting each with 1 - a_j.

    With cells sorted by cost, x_1 = 1 - a_1, x_2 = a_1 (1 - a_2), and so on; g cells that tie are
    tried together, each with 1 / g of what comes to them. What no cell accepted goes to the arcs
    of least aversion.

    Args:
        costs: Shape (..., cells).
        aversion: Probabilities of the same shape.
        arcs: Boolean, of the same shape.
    """
    costs = np.where(arcs, costs, np.inf)
    mine, other = costs[..., :, None], costs[..., None, :]
    tied = (mine == other) & arcs[..., None, :]
    size = np.maximum(tied.sum(axis=-1), 1)
    passed_on = ordered_sum(tied * aversion[..., None, :]) / size
    # A group of g cells passes its mean aversion on once: each member brings the g-th root.
    root = np.where(arcs, passed_on, 1.0) ** (1.0 / size)
    reaching = np.where(other < mine, root[..., None, :], 1.0).prod(axis=-1)
    shares = np.where(arcs, reaching * (1.0 - aversion) / size, 0.0)
    left = 1.0 - ordered_sum(shares)[..., None]
    mildest = split_ties(np.where(arcs, aversion, np.inf), arcs)
    return np.asarray(shares + np.maximum(left, 0.0) * mildest)


class GMSR(Discrete):
    """Greatest marginal service rate: everything to the least 1 / mu_j'(N_j) (arXiv 2411.17103).

    Discrete routing by the gradient cost without a network term.
    """

    def __init__(self) -> None:
        super().__init__("marginal")
        self.name = "gmsr"


class DiscreteScore(Discrete):
    """Discrete routing that counts what it sends between decisions (`score` dispatch).

    Each request goes to the cell with the least c_ij + (dc_ij / dN_j) x (this root's requests sent
    to j since the decision): the cost, to first order, as if those requests were in the cell.

    dc_ij / dN_j is the cost's slope per server divided by the k_j of the probe held.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.

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
        slopes = cost_slope(self.cost, fields, point)
        return Decision(
            base=np.where(arcs, cost(self.cost, fields), 0.0),
            slope=np.where(arcs, slopes * fields["request_weight"], 0.0),
        )
