"""A scenario's roots, cells and protocol in the engine's numbers; mechanisms: `mechanism_rows`."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.disturbances import Disturbances
from dlb_gym.engine import layout
from dlb_gym.engine.layout import Params
from dlb_gym.scenario import Scenario
from dlb_gym.server_design import Disaggregated

ARRIVAL_MEMORY_S = 1.0
"""Memory of a root's exponential mean of its own arrivals."""


def write_params(
    r: int,
    params: Params,
    scenario: Scenario,
    disturbances: Disturbances,
    tau_s: NDArray[np.float64],
) -> None:
    """Writes what row r's system is; whether it is logged stays as it was.

    Args:
        r: The row.
        params: Large enough for the scenario.
        scenario: The scenario.
        disturbances: Of the episode.
        tau_s: (roots, cells) one-way latencies, NaN where there is no arc.
    """
    roots, cells = tau_s.shape
    design = scenario.server
    slots = design.decode_slots if isinstance(design, Disaggregated) else 1
    params.shape[r, : layout.LOGGED] = roots, cells, slots, design.queue_limit
    start_s = scenario.warmup_s + scenario.settle_s
    end_s = start_s + scenario.horizon_s
    params.clock[r] = (
        scenario.control_interval_s,
        scenario.probe_interval_s,
        scenario.router_delay_s,
        start_s,
        end_s,
        end_s,
        math.exp(-scenario.control_interval_s / ARRIVAL_MEMORY_S),
    )
    params.tau_s[r] = np.nan
    params.tau_s[r, :roots, :cells] = tau_s
    params.own_cell[r] = layout.NONE
    names = [cell.name for cell in scenario.cells]
    for i, root in enumerate(scenario.roots):
        if root.name in names:
            params.own_cell[r, i] = names.index(root.name)
    params.service[r] = 0.0
    params.change_s[r] = math.inf
    params.change_live[r] = 0
    for j, cell in enumerate(scenario.cells):
        params.service[r, j] = cell.prefill_s_per_token, cell.decode_s_per_token
        for e, change in enumerate(disturbances.changes[j]):
            params.change_s[r, j, e] = change.time_s
            params.change_live[r, j, e] = change.live
