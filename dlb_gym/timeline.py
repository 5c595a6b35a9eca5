"""What a replication looked like over time: RIF, utilisation and routing in equal windows.

A window is a whole number of control intervals, about a second where the span allows, and there
are at most 300 of them. In a window of W seconds, with A_j arrivals at the leaf of cell j, S_ij
requests sent by root i to cell j, and m_j the nominal rate of the cell's live servers,

    rif_j = mean RIF at the ends of the window's intervals
    utilisation_j = A_j / (m_j W)
    routing_ij = S_ij / sum_j S_ij.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.rates import nominal_rates_rps
from dlb_gym.scenario import Scenario
from dlb_gym.task import Task

FloatArray = NDArray[np.float64]

MAX_WINDOWS = 300
FEWEST_WINDOWS = 60
WINDOW_S = 1.0
DIGITS = 4


class Timeline:
    """Records row r of a task, from now on.

    Args:
        task: The task, at the end of its warm-up.
        row: The row to record.
        scenario: Its scenario.
    """

    def __init__(self, task: Task, row: int, scenario: Scenario) -> None:
        self._task, self._row, self._scenario = task, row, scenario
        span_s = scenario.settle_s + scenario.horizon_s
        window_s = min(max(WINDOW_S, span_s / MAX_WINDOWS), span_s / FEWEST_WINDOWS)
        interval_s = scenario.control_interval_s
        self._intervals = max(1, math.ceil(window_s / interval_s - 1e-9))
        self._server_rps = nominal_rates_rps(scenario) / [c.servers for c in scenario.cells]
        self._start_s = scenario.warmup_s + scenario.settle_s
        self._columns: dict[str, list[Any]] = {
            "time_s": [], "rif": [], "utilisation": [], "share": [], "routing": []
        }  # fmt: skip
        self._open_window()

    def _counts(self) -> tuple[FloatArray, FloatArray]:
        """Requests sent by root and cell (R, C), and received by cell (C,), so far."""
        roots, cells = len(self._scenario.roots), len(self._scenario.cells)
        sent = self._task.simulator.view().sent[self._row, :roots, :cells]
        received = self._task.simulator.truth().received[self._row, :, :cells].sum(axis=0)
        return sent.astype(np.float64), received.astype(np.float64)

    def _open_window(self) -> None:
        cells = len(self._scenario.cells)
        self._opened = self._counts()
        self._taken = 0
        self._rif, self._live = np.zeros(cells), np.zeros(cells)

    def record(self) -> None:
        """Takes in the interval that just ended."""
        truth = self._task.simulator.truth()
        cells = len(self._scenario.cells)
        self._rif += truth.rif[self._row, :cells]
        self._live += truth.live_servers[self._row, :cells]
        self._taken += 1
        if self._taken == self._intervals:
            self._close_window()
            self._open_window()

    def _close_window(self) -> None:
        (sent_before, received_before), (sent, received) = self._opened, self._counts()
        sent, received = sent - sent_before, received - received_before
        span_s = self._taken * self._scenario.control_interval_s
        capacity = self._live / self._taken * self._server_rps * span_s
        now_s = float(self._task.simulator.time_s[self._row])
        row = {
            "time_s": now_s - span_s / 2 - self._start_s,
            "rif": self._rif / self._taken,
            "utilisation": received / np.maximum(capacity, np.finfo(float).tiny),
            "share": sent.sum(axis=0) / max(sent.sum(), 1.0),
            "routing": sent / np.maximum(sent.sum(axis=1, keepdims=True), 1.0),
        }
        for name, value in row.items():
            self._columns[name].append(np.round(value, DIGITS).tolist())

    def columns(self) -> dict[str, Any]:
        """JSON: names, windows' middles (s since measuring began), values and disturbances."""
        if self._taken:
            self._close_window()
            self._taken = 0
        horizon_s = self._scenario.horizon_s
        return {
            "cells": [cell.name for cell in self._scenario.cells],
            "roots": [root.name for root in self._scenario.roots],
            "disturbances": [
                {"kind": d.kind, "start_s": d.start * horizon_s, "end_s": d.end * horizon_s}
                for d in self._scenario.disturbances
            ],
            **self._columns,
        }
