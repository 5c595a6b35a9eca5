"""The six DLB policies with a Smith predictor: costs at the RIF that a probe would show on arrival.

A probe held says nothing of the root's own requests that its cell had not received when it left.
With S_ij those unseen requests per server, and d_ij = probe age + tau_ij the time in which they
were sent, costs are taken at

    n_j = N_j / k_j + gain (S_ij - rho_ij d_ij),   rho_ij = the running mean of S_ij / d_ij,

over `memory_s` seconds: what is usually under way is in N_j already, and only the deviation is news
(../shared/learning.md: raw S over-corrects on long arcs; a gain of 1.5 did best in a prototype).
O. J. M. Smith (1957) corrects a delayed loop so: by what was done and does not show yet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields, cost, latency_model, require_cost
from baselines.discrete import Discrete, DiscreteScore
from baselines.flow import Flow
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec, proportional
from dlb_gym.reductions import ordered_sum

GAIN = 1.5
MEMORY_S = 2.0
TEMPERATURE = 0.01
"""Of the softmin, in zero-load times, at decisions without pause."""
TEMPERATURE_PER_INTERVAL = 1.5
"""What a control interval adds to it, in its own length: held longer, a split must be milder.

In `global_six` and four of `appendix_b` at 80 %, 0.01 to 0.03 did best with decisions every 20 ms,
0.1 to 0.3 with decisions every 100 ms."""


class Predicting(Policy):
    """A policy whose fields show each cell with the root's own unseen requests.

    Replaces `rif`, `serving_latency` and `marginal_latency`; comes before the policy in a class's
    bases.

    Attributes:
        gain: Of the deviation.
        memory_s: Of the running mean.
    """

    gain = GAIN
    memory_s = MEMORY_S

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._rate = np.zeros((num_replications, spec.num_roots, spec.num_cells))
        self._new = np.ones(num_replications, dtype=np.bool_)

    def restart(self, rows: Mask) -> None:
        """Forget the running means of these rows."""
        super().restart(rows)
        self._new = self._new | rows

    def fields(self, observation: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
        """Named arrays, costs and RIF as predicted; to be read once a decision."""
        fields = super().fields(observation)
        model = latency_model(fields)
        rif = np.maximum(fields["rif"] + self.gain * self._deviation(fields), 0.0)
        point = model.at(rif)
        arcs = fields["admissible"] > 0.0
        predicted = {
            "rif": rif,
            "serving_latency": point.latency,
            "marginal_latency": point.marginal_latency,
        }
        return fields | {
            name: np.where(arcs, values, 0.0).astype(np.float32)
            for name, values in predicted.items()
        }

    def _deviation(self, fields: Fields) -> Array:
        """S - rho d, and rho goes on; zero in a row's first decision."""
        sent_within = fields["probe_age"].astype(np.float64) + 0.5 * fields["rtt"]
        unseen = fields["unseen"].astype(np.float64)
        rate = unseen / np.where(sent_within > 0.0, sent_within, np.inf)
        interval_s = fields["control_interval"].astype(np.float64) * fields["zero_load_time_s"]
        share = 1.0 - np.exp(-interval_s / self.memory_s)
        before = np.where(self._new[:, None, None], rate, self._rate)
        self._new = np.zeros_like(self._new)
        deviation: Array = unseen - before * sent_within
        self._rate = before + share * (rate - before)
        return deviation


class PredictiveDiscrete(Predicting, DiscreteScore):
    """`DiscreteScore` at the predicted RIF: decides per request.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.

    Raises:
        ValueError: There is no such cost.
    """

    def __init__(self, cost: str) -> None:
        super().__init__(cost)
        self.name = f"predictive-disc-{self.cost}-score"


class PredictiveVector(Predicting, Discrete):
    """`Discrete` at the predicted RIF: one-hot for a whole control interval.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.

    Raises:
        ValueError: There is no such cost.
    """

    def __init__(self, cost: str) -> None:
        super().__init__(cost)
        self.name = f"predictive-disc-{self.cost}"


class PredictiveFlow(Predicting, Flow):
    """`Flow` at the predicted RIF.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.

    Raises:
        ValueError: There is no such cost.
    """

    def __init__(self, cost: str) -> None:
        super().__init__(cost)
        self.name = f"predictive-flow-{self.cost}"


class PredictiveSoftmin(Predicting):
    """A softmin of the predicted cost, weighted by capacity.

        x_ij ~ capacity_j exp(-(c_ij - min_k c_ik) / T),   T = temperature + 1.5 h,

    with the control interval h and T in zero-load times. Requests per server are no times: under
    load a server takes beta for each, so the cost `rif` is divided by T over the mean beta of the
    root's arcs.

    Args:
        cost: `rif`, `latency`, `gradient` or `p95`.
        temperature: Of decisions without pause, > 0.

    Raises:
        ValueError: There is no such cost, or the temperature is not positive and finite.
    """

    information: Information = "local"

    def __init__(self, cost: str, temperature: float = TEMPERATURE) -> None:
        self.cost = require_cost(cost)
        if not 0.0 < temperature < np.inf:
            raise ValueError(
                f"temperature = {temperature} must be finite and above 0; {TEMPERATURE} is the "
                "default"
            )
        self.temperature = temperature
        self.name = f"predictive-softmin-{self.cost}"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Weights that fall with the cost's excess over the least."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        costs = np.where(arcs, cost(self.cost, fields), np.inf)
        least = costs.min(axis=-1, keepdims=True, initial=np.inf)
        excess = np.where(arcs, costs, 0.0) - np.where(np.isfinite(least), least, 0.0)
        heat = self._heat(fields, arcs)
        weights = fields["capacity_load"] * np.exp(-np.maximum(excess, 0.0) / heat)
        return Decision(proportional(np.where(arcs, weights, 0.0), arcs))

    def _heat(self, fields: Fields, arcs: Mask) -> Array:
        """T, in the unit of the cost."""
        interval = fields["control_interval"].astype(np.float64)
        heat = self.temperature + TEMPERATURE_PER_INTERVAL * interval
        if self.cost != "rif":
            return heat
        count = np.count_nonzero(arcs, axis=-1, keepdims=True)
        beta = ordered_sum(np.where(arcs, fields["model_beta"], np.float64(0.0)), keepdims=True)
        per_request: Array = np.where(count > 0, beta / np.maximum(count, 1), 1.0)
        return heat / per_request
