"""Autoscaling: slow control of the number of servers (paper 6).

Every `interval_s` a cell's load over the interval that ended is looked at, and servers are ordered
(they serve `delay_s` later) or released (they take nothing new from now on, and finish). With k
servers live and o ordered or live, utilisation U = requests received / (interval x nominal rate of
the live),

    utilisation:       o* = ceil(k U / target), as horizontal autoscalers do it
    marginal_latency:  o* = o + 1 where the marginal latency at the cell's RIF per server exceeds
                       target x zero-load time, o - 1 where it is below its square root, in steps of
                       a tenth of the cell

within `least_share` of the scenario's servers and, the fleet together, 1 + `extra_servers` times
theirs: where cells want more than that, those with the largest want are served first. An autoscaler
is beside the cells: it knows their state without delay, as it acts for minutes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.engine.layout import Params, State
from dlb_gym.latency_model import LatencyModel
from dlb_gym.rates import nominal_rates_rps, zero_load_times_s
from dlb_gym.scenario import Scenario

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STEP_SHARE = 0.1
"""Part of a cell that "marginal_latency" adds or releases at a time (ours)."""
ROUNDING = 1e-9
"""What products of decimal fractions are off by: 45 x 1.4 is 63 servers, and 62.99... as floats."""


class Scaler:
    """The autoscaler of one episode.

    Args:
        scenario: With an autoscaler.

    Attributes:
        most_servers: Servers that a cell may come to have.
        most_changes: Changes that a cell's schedule may come to have.
    """

    def __init__(self, scenario: Scenario) -> None:
        rule = scenario.autoscaler
        if rule is None:
            raise ValueError(f"scenario {scenario.name!r} has no autoscaler; add one")
        self._rule = rule
        self._servers = np.array([cell.servers for cell in scenario.cells], dtype=np.int64)
        self._server_rps = nominal_rates_rps(scenario) / self._servers
        self._zero_load_s = zero_load_times_s(scenario)
        self._every = scenario.intervals(rule.interval_s)
        self._interval_s = scenario.control_interval_s
        most = float(self._servers.sum()) * (1.0 + rule.extra_servers)
        self._cap = math.floor(most + ROUNDING)
        least = np.ceil(self._servers * rule.least_share - ROUNDING)
        self._least = np.maximum(least, 1).astype(np.int64)
        self._ordered = self._servers.copy()
        self._received = np.zeros(len(self._servers), dtype=np.int64)
        # All others at their least: releases elsewhere make room under the cap.
        self.most_servers = self._cap - int((self._least.sum() - self._least).min())
        episode_s = scenario.warmup_s + scenario.settle_s + scenario.horizon_s
        self.most_changes = 3 + math.ceil(episode_s / rule.interval_s)
        self._last_step = scenario.intervals(episode_s)

    def next_step(self, step: int) -> int:
        """The step after this one at which it acts again."""
        return int((step // self._every + 1) * self._every)

    def act(self, r: int, params: Params, state: State, models: FloatArray) -> None:
        """Orders and releases servers of row r, if it is time to; not after the episode's end."""
        step = int(state.step[r])
        if step % self._every != 0 or not 0 < step < self._last_step:
            return
        cells = len(self._servers)
        received = state.received[r, :cells].sum(axis=1)
        live = state.cell[r, :cells, layout.LIVE]
        if self._rule.kind == "utilisation":
            wanted = self._by_utilisation(received - self._received, live)
        else:
            wanted = self._by_marginal_latency(state.cell[r, :cells, layout.RIF], live, models)
        self._received = received
        target = self._within_limits(np.maximum(wanted, self._least))
        for j in range(cells):
            self._reschedule(r, j, step * self._interval_s, int(target[j]), params, state)
        self._ordered = target

    def _by_utilisation(self, received: IntArray, live: IntArray) -> IntArray:
        span_s = self._every * self._interval_s
        utilisation = received / (span_s * self._server_rps * np.maximum(live, 1))
        wanted = np.ceil(live * utilisation / self._rule.target_utilisation - ROUNDING)
        return np.asarray(wanted, dtype=np.int64)

    def _by_marginal_latency(self, rif: IntArray, live: IntArray, models: FloatArray) -> IntArray:
        curve = LatencyModel(*models[: len(live)].T)
        marginal = curve.at(rif / np.maximum(live, 1)).marginal_latency / self._zero_load_s
        step = np.maximum(np.round(self._servers * STEP_SHARE), 1).astype(np.int64)
        target = self._rule.target_marginal
        up, down = marginal > target, marginal < math.sqrt(target)
        return np.asarray(self._ordered + np.where(up, step, 0) - np.where(down, step, 0))

    def _within_limits(self, wanted: IntArray) -> IntArray:
        """Servers of every cell; the fleet's cap goes to the largest relative want first."""
        target = np.minimum(wanted, self._ordered)
        spare = self._cap - int(target.sum())
        want = (wanted - target) / np.maximum(target, 1)
        for j in np.argsort(-want, kind="stable"):
            extra = min(int(wanted[j] - target[j]), spare)
            target[j] += max(extra, 0)
            spare -= max(extra, 0)
        return target

    def _reschedule(
        self, r: int, j: int, now_s: float, target: int, params: Params, state: State
    ) -> None:
        """Adds to the cell's coming changes; what a release leaves of orders under way stays.

        A change at this very instant comes after its events: the cell ran up to it already.
        """
        times_s, lives = params.change_s[r, j], params.change_live[r, j]
        following = int(state.cell[r, j, layout.NEXT_CHANGE])
        last = int(np.searchsorted(times_s, math.inf))
        ordered, live = int(self._ordered[j]), int(state.cell[r, j, layout.LIVE])
        soon_s = math.nextafter(now_s, math.inf)
        if target < ordered:
            np.minimum(lives[following:last], target, out=lives[following:last])
            if live > target:
                times_s[following + 1 : last + 1] = times_s[following:last].copy()
                lives[following + 1 : last + 1] = lives[following:last].copy()
                times_s[following], lives[following] = soon_s, target
        elif target > ordered:
            times_s[last], lives[last] = max(now_s + self._rule.delay_s, soon_s), target
