"""Splits that no queue moves: by servers, by capacity, to the nearest cell."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from baselines.costs import Fields
from dlb_gym.decision import Array, Decision, Mask
from dlb_gym.policy import Information, Policy, TaskSpec, proportional, split_ties


class WeightedRandom(Policy):
    """The paper's Rand (B.1): x_ij = k_j / sum of k over the arcs of i.

    k_j is the probed number of live servers, so it follows outages, one network latency late.
    """

    name = "random"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Split by probed live servers."""
        fields = self.fields(observation)
        return Decision(proportional(_float64(fields["servers"]), fields["admissible"] > 0.0))


class RoundRobin(Policy):
    """Smooth weighted round robin, nginx's: requests follow the split by probed capacity in turns.

    With every request the weights x_ij are added to credits; the cell of the largest credit gets
    it and pays their sum. x_ij is proportional to cell j's nominal rate by the probe held.
    """

    name = "wrr"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The split by probed capacity, taken in turns."""
        fields = self.fields(observation)
        capacity = _float64(fields["capacity_load"])
        return Decision(proportional(capacity, fields["admissible"] > 0.0), dispatch="smooth")


class Nearest(Policy):
    """Everything to the cell of the shortest round trip, whatever it holds; equal ones share."""

    name = "nearest"
    information: Information = "local"

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """One-hot rows, but for ties."""
        fields = self.fields(observation)
        return Decision(split_ties(_float64(fields["rtt"]), fields["admissible"] > 0.0))


class CapacitySplit(Policy):
    """x_ij proportional to cell j's nominal rate when the episode's first probe left it.

    Policies that start there and move on build on it.
    """

    name = "capacity"
    information: Information = "static"

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._routing = np.zeros((num_replications, spec.num_roots, spec.num_cells))
        self._unset = np.ones(num_replications, dtype=np.bool_)

    def restart(self, rows: Mask) -> None:
        """Take the split anew from the next observation of these rows."""
        self._unset = self._unset | rows

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The split of the episode's first observation."""
        if self._unset.any():
            self._start(self.fields(observation))
        return Decision(self._routing)

    def _start(self, fields: Fields) -> None:
        """Put the rows whose episode starts at the split."""
        first = proportional(_float64(fields["capacity_load"]), fields["admissible"] > 0.0)
        self._routing = np.where(self._unset[:, None, None], first, self._routing)
        self._unset = np.zeros_like(self._unset)


def _float64(field: NDArray[np.float32]) -> Array:
    return field.astype(np.float64)
