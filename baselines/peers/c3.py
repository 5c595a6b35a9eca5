"""C3: replica selection by a cubic penalty on queues."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec

MEMORY_S = 1.0
"""Of the running means. C3 gives each answer a weight (0.9 in its simulator and in Cassandra, 0.3
in Elasticsearch); here a decision sees many answers or none, so the memory is a time."""


class C3(Policy):
    """C3 (Suresh et al., NSDI 2015): argmin_j R - 1/mu + q^3 / mu, q = 1 + clients o + N.

    Per server: o_ij own requests outstanding and N_j the mean RIF of the probes held, both over
    k_j, 1/mu = beta_j the time that a server takes for a request under load, and clients the number
    of routers that act alike, each cell's own: as many as the root has arcs (Cassandra's C3 takes
    the number of endpoints, too). An own request adds
    clients / k_j to q at once.

    R is the mean response time of the root's own requests. The observation does not carry it, so
    it is Little's law on what it does: mean requests outstanding over the mean rate at which they
    are sent, unseen requests over the time within which they were sent.

    C3's rate control is left out: roots hold no request back.
    """

    name = "c3"
    information: Information = "local"

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        shape = (num_replications, spec.num_roots, spec.num_cells)
        self._outstanding, self._rate, self._rif = (np.zeros(shape) for _ in range(3))
        self._new = np.ones(num_replications, dtype=np.bool_)

    def restart(self, rows: Mask) -> None:
        """Forget the means of these rows."""
        self._new = self._new | rows

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Cubic scores, which count own requests."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        self._observe(fields)
        beta = np.where(arcs, fields["model_beta"], 0.0).astype(np.float64)
        clients = np.count_nonzero(arcs, axis=-1, keepdims=True)
        queue = 1.0 + clients * fields["outstanding"] + self._rif
        root = np.cbrt(beta)
        idle = np.add(fields["serving_latency"], fields["rtt"], dtype=np.float64)
        sends = self._rate > 0.0
        response = np.where(sends, self._outstanding / np.where(sends, self._rate, 1.0), idle)
        return Decision(
            base=np.where(arcs, response - beta, 0.0),
            slope=np.where(arcs, clients * fields["request_weight"] * root, 0.0),
            offset=np.where(arcs, queue * root, 0.0),
        )

    def _observe(self, fields: Fields) -> None:
        """Running means go on; a row's first values are its means."""
        within = fields["probe_age"].astype(np.float64) + 0.5 * fields["rtt"]
        interval_s = fields["control_interval"].astype(np.float64) * fields["zero_load_time_s"]
        share = 1.0 - np.exp(-interval_s / MEMORY_S)
        new, self._new = self._new[:, None, None], np.zeros_like(self._new)
        rate = fields["unseen"] / np.where(within > 0.0, within, np.inf)
        self._outstanding = _moved(self._outstanding, fields["outstanding"], share, new)
        self._rate = _moved(self._rate, rate, share, new)
        self._rif = _moved(self._rif, fields["rif"], share, new)


def _moved(mean: Array, value: NDArray[np.floating], share: Array, new: Mask) -> Array:
    return np.where(new, value, mean + share * (value - mean)).astype(np.float64)
