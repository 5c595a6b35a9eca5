"""DRILL, micro load balancing: a sample of queues and a memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.decision import Decision
from dlb_gym.policy import Information, Policy


class Drill(Policy):
    """DRILL(d, 1): the least loaded of d random cells and the last winner (Ghorbani et al. 2017).

    A request looks at (o_ij + n_j) beta_j / k_j of d cells drawn at random without replacement and
    of the cell that won the last time: the own requests outstanding at a cell, over the rate at
    which it serves. In the switches that DRILL is made for, the queues are those of the outputs
    and exact; what a root knows as exactly of a cell are its own requests there.

    Args:
        cells: d; the paper's default is 2, with a memory of 1.

    Raises:
        ValueError: d is below 1.
    """

    name = "drill"
    information: Information = "local"

    def __init__(self, cells: int = 2) -> None:
        if cells < 1:
            raise ValueError(f"cells = {cells} must be at least 1; 2 is the default")
        self.cells = cells

    def act(self, observation: NDArray[np.float32]) -> Decision:
        """Own work outstanding, of which a request looks at some."""
        fields = self.fields(observation)
        arcs = fields["admissible"] > 0.0
        beta = fields["model_beta"].astype(np.float64)
        return Decision(
            base=np.where(arcs, fields["outstanding"] * beta, 0.0),
            slope=np.where(arcs, fields["request_weight"] * beta, 0.0),
            samples=self.cells,
        )
