"""A scenario as theory sees it: how much each root sends, and how fast its cells work.

Its one-way latencies are `rates.one_way_s`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.calibration import latency_parameters
from dlb_gym.latency_model import LatencyModel
from dlb_gym.rates import demand_shares, offered_rate_rps
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import SoftplusCells


def root_rates_rps(scenario: Scenario) -> NDArray[np.float64]:
    """lambda_i, each root's mean rate, (roots,)."""
    return offered_rate_rps(scenario) * demand_shares(scenario)


def service_curves_of(scenario: Scenario) -> SoftplusCells:
    """The cells' latency curves as calibrated, with all servers that the scenario gives them.

    Raises:
        ScenarioError: As `latency_parameters`.
        TraceError: As there.
    """
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    return SoftplusCells(servers, LatencyModel(*latency_parameters(scenario).T))
