"""The best fixed routing, from what nobody can know beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dlb_gym.bounds import best_routing
from dlb_gym.decision import Decision
from dlb_gym.equilibrium import InfeasibleError
from dlb_gym.policy import Information, Policy, TaskSpec
from dlb_gym.scenario import Scenario


class StaticOptimum(Policy):
    """x* of program (12): the fixed routing of least mean latency (theory.md section 2).

    It knows every root's mean rate and every cell's latency curve. Requests are split by it as the
    scenario's dispatch says, whatever happens: disturbances do not move it. Where no routing can
    serve the demand, it plays one that overloads the fullest cell least.
    """

    name = "static-optimum"
    information: Information = "oracle"

    def reset(self, spec: TaskSpec, num_replications: int, seed: int) -> None:
        """Start anew for a batch."""
        super().reset(spec, num_replications, seed)
        self._routing: NDArray[np.float64] | None = None

    def reveal(self, scenarios: Sequence[Scenario]) -> None:
        """Solves the program of every row."""
        shape = (self.num_replications, self.spec.num_roots, self.spec.num_cells)
        self._routing = np.zeros(shape)
        for row, scenario in enumerate(scenarios):
            try:
                routing = best_routing(scenario).routing
            except InfeasibleError as error:
                routing = error.routing
            self._routing[row, : routing.shape[0], : routing.shape[1]] = routing

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """The optimum.

        Raises:
            ValueError: Nothing was revealed.
        """
        if self._routing is None:
            raise ValueError(
                f"policy {self.name!r} is an oracle and was told nothing: evaluate it with "
                "dlb_gym.evaluation, or call reveal(scenarios) after reset"
            )
        return Decision(self._routing)
