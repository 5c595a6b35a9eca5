"""The service curves of a scenario's cells, as theory takes them (see `service_curves`)."""

from __future__ import annotations

import numpy as np

from dlb_gym.calibration import latency_parameters
from dlb_gym.latency_model import LatencyModel
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import SoftplusCells


def service_curves_of(scenario: Scenario) -> SoftplusCells:
    """The cells' latency curves as calibrated, with all servers that the scenario gives them.

    Raises:
        ScenarioError: As `latency_parameters`.
        TraceError: As there.
    """
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    return SoftplusCells(servers, LatencyModel(*latency_parameters(scenario).T))
