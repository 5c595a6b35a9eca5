"""Prequal's hot-cold lexicographic rule among cells."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import latency_model
from dlb_gym.decision import Decision
from dlb_gym.policy import Information, Policy

Q_RIF = 2.0**-0.25
"""The paper's default quantile, about 0.84."""


class Prequal(Policy):
    """Prequal between cells (Wydrowski et al., NSDI 2024, section 4): hot ones last.

    The pool holds one probe a cell, the newest report. A cell is hot if its RIF per server exceeds
    the Q_RIF quantile of the reports held, of n the ceil(Q_RIF n)-th. A request goes to the cold
    cell of least latency l_j(N_j) + 2 tau_ij, and if all are hot, to the least RIF. Prequal's
    quantile is of recent reports of many replicas: of up to six cells none is hot by the default
    here, and the rule is that of least latency.

    As scores: cold cells by latency, hot ones above every latency by RIF. What stands for Prequal's
    reuse limit is that an own request counts at once: it adds the slope of the latency, or its
    share of a server's RIF. A cell turns hot or cold at a decision only. Prequal's own pool, with
    random probes, ages and removals, is the leaf rule `prequal`.

    Args:
        quantile: Q_RIF, in (0, 1].

    Raises:
        ValueError: The quantile is out of range.
    """

    name = "prequal"
    information: Information = "local"

    def __init__(self, quantile: float = Q_RIF) -> None:
        if not 0.0 < quantile <= 1.0:
            raise ValueError(f"quantile = {quantile} must lie in (0, 1]; {Q_RIF:.4g} is Prequal's")
        self.quantile = quantile

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Latencies of cold cells, RIF of hot ones."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        rif = fields["rif"].astype(np.float64)
        latency = np.add(fields["serving_latency"], fields["rtt"], dtype=np.float64)
        ranked = np.sort(np.where(arcs, rif, np.inf), axis=-1)
        count = np.count_nonzero(arcs, axis=-1, keepdims=True)
        place = np.maximum(np.ceil(self.quantile * count).astype(np.intp) - 1, 0)
        hot = rif > np.take_along_axis(ranked, place, axis=-1)
        above = np.max(np.where(arcs, latency, 0.0), axis=-1, keepdims=True) + 1.0
        base = np.where(hot, above + rif, latency)
        each = np.where(hot, 1.0, latency_model(fields).at(rif).latency_slope)
        return Decision(
            base=np.where(arcs, base, 0.0),
            slope=np.where(arcs, each * fields["request_weight"], 0.0),
        )
