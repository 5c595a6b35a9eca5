"""Rows of scenarios in motion.

The simulator owns the replications: it turns a scenario, a seed and an episode into the engine's
numbers, draws requests ahead of the clock, enlarges what is too small, and shows the system twice:
`view()` is what roots know, with its delays; `truth()` is what is.

Row r's clock starts at 0 with warm-up. Nothing here decides or rewards.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym import accounts, engine
from dlb_gym.autoscaler import Scaler
from dlb_gym.calibration import latency_parameters, tail_parameters
from dlb_gym.decision import Decision
from dlb_gym.engine import extras, layout, memory
from dlb_gym.measurements import Measurements
from dlb_gym.mechanism_rows import (
    check_protocol,
    late_by_s,
    sizes_for,
    uses_mechanisms,
    write_row,
)
from dlb_gym.orders import with_table, write_orders
from dlb_gym.rates import nominal_rates_rps, one_way_s, zero_load_time_s
from dlb_gym.reductions import ordered_sum
from dlb_gym.scenario import Scenario
from dlb_gym.server_design import Disaggregated
from dlb_gym.system_rows import write_params
from dlb_gym.views import Books, Counts, Truth, View
from dlb_gym.workload import CHUNK_S, NO_SESSION, Workload

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FIRST_POOL = 256
FIRST_WIRE = 64
"""Starting capacities; the engine asks for more when it needs it."""


class Simulator:
    """A batch of independent replications, padded to common sizes.

    Args:
        num_replications: n, rows of the batch, at least 1.
        num_roots: R, at least the roots of every scenario to come.
        num_cells: C, at least the cells of every scenario to come.
        log: Keep one record of every answered request (see `request_log`).

    Attributes:
        admissible: (n, R, C) arcs.

    Raises:
        ValueError: A size is below 1.
    """

    def __init__(
        self, num_replications: int, num_roots: int, num_cells: int, log: bool = False
    ) -> None:
        for key, value in (
            ("num_replications", num_replications),
            ("num_roots", num_roots),
            ("num_cells", num_cells),
        ):
            if value < 1:
                raise ValueError(f"{key} = {value} must be at least 1")
        n, roots, cells = num_replications, num_roots, num_cells
        self._logged = log
        self._params, self._state, self._arrivals, self._orders = engine.allocate(
            engine.Sizes(
                replications=n, roots=roots, cells=cells, servers=1, slots=1, queue=1, changes=2,
                probes=2, pool=FIRST_POOL, wire=FIRST_WIRE, log=FIRST_POOL if log else 0,
                arrivals=FIRST_POOL,
            )
        )  # fmt: skip
        self._params.tau_s[:] = np.nan
        self._params.clock[:, layout.INTERVAL_S] = 1.0
        self.admissible: NDArray[np.bool_] = np.zeros((n, roots, cells), dtype=np.bool_)
        self._rtt_s = np.zeros((n, roots, cells))
        self._workloads: list[Workload | None] = [None] * n
        self._drawn_s = np.full(n, math.inf)
        self._table: NDArray[np.int16] | None = None
        self._extras: engine.Extras | None = None
        self._extra_sizes = engine.ExtraSizes(n, roots, cells, *[1] * 9)
        self._scalers: list[Scaler | None] = [None] * n
        self._model = np.ones((n, roots, cells, 4))
        self._tail = np.ones((n, cells, 4))
        self._zeros = np.zeros((n, roots, cells))
        self._no_backlog = np.zeros((n, roots, cells, 2))
        self._server_rps = np.zeros((n, cells))
        self._fleet_rps = np.ones(n)
        self._fleet_servers = np.ones(n)
        self._zero_load_time_s = np.ones(n)
        self._interval_s = np.ones(n)
        self._piece_steps = np.ones(n, dtype=np.int64)
        self._view: View | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Copies and pickles make windows on their own arrays."""
        return self.__dict__ | {"_view": None}

    @property
    def step(self) -> IntArray:
        """(n,) intervals since clock 0."""
        return self._state.step

    @property
    def time_s(self) -> FloatArray:
        """(n,) clock."""
        return self._state.step * self._interval_s

    def reset_row(self, r: int, scenario: Scenario, seed: int, episode: int) -> None:
        """Starts an episode in row r: an empty system at clock 0.

        Raises:
            ValueError: The scenario has more roots or cells than the batch.
            ScenarioError: A disturbance cannot be brought about, or the protocol does not suit the
                network.
            TraceError: The scenario's trace cannot be used.
        """
        roots, cells = self._params.tau_s.shape[1:]
        if len(scenario.roots) > roots or len(scenario.cells) > cells:
            raise ValueError(
                f"scenario {scenario.name!r} has {len(scenario.roots)} roots and "
                f"{len(scenario.cells)} cells; this batch holds at most {roots} and {cells}"
            )
        workload = Workload(scenario, seed, episode)
        tau_s = one_way_s(scenario)
        disturbances = workload.disturbances
        check_protocol(scenario, disturbances)
        scaler = None if scenario.autoscaler is None else Scaler(scenario)
        self._view = None
        self._make_room(scenario, workload, tau_s, scaler)
        write_params(r, self._params, scenario, disturbances, tau_s)
        self._params.shape[r, layout.LOGGED] = self._logged
        self.admissible[r] = ~np.isnan(self._params.tau_s[r])
        self._rtt_s[r] = 2.0 * np.where(self.admissible[r], self._params.tau_s[r], 0.0)
        self._write_facts(r, scenario)
        engine.clear_row(r, self._state, self._arrivals)
        engine.hold_empty_reports(r, self._params, self._state)
        self._workloads[r] = workload
        self._scalers[r] = scaler
        if self._extras is not None:
            engine.clear_extras(r, self._extras)
            write_row(r, self._extras, self._params, scenario, disturbances, seed, episode)
        self._drawn_s[r] = 0.0

    def _make_room(
        self, scenario: Scenario, workload: Workload, tau_s: FloatArray, scaler: Scaler | None
    ) -> None:
        """Lengthens the axes that this scenario needs longer."""
        disturbances = workload.disturbances
        changes = 1 + max(len(each) for each in disturbances.changes)
        servers = max(change.live for each in disturbances.changes for change in each)
        if scaler is not None:
            changes, servers = max(changes, scaler.most_changes), scaler.most_servers
        design = scenario.server
        queued = servers * design.queue_limit
        slots = design.decode_slots if isinstance(design, Disaggregated) else 1
        late_s = float(np.nanmax(tau_s)) + late_by_s(scenario, disturbances)
        reports = math.ceil(late_s / scenario.probe_interval_s) + 3
        probes = 1 << (reports - 1).bit_length()
        self._params = memory.at_least(self._params, 2, changes, "change_s", "change_live")
        state = memory.more_servers(self._state, servers)
        state = memory.at_least(state, 3, 1 + slots, "server_free")
        state = memory.at_least(state, 2, queued, "done_time", "done_id")
        if state.probe.shape[2] < probes:
            state = memory.enlarge_rings(state, probes)
        self._state = state
        width = self._arrivals.requests.shape[3]
        self._arrivals = memory.at_least(self._arrivals, 3, len(workload.columns), "requests")
        if self._arrivals.requests.shape[3] > width:
            self._arrivals.requests[..., width:] = NO_SESSION
        if self._extras is not None or uses_mechanisms(scenario):
            self._make_extras(sizes_for(scenario, disturbances, self._extra_sizes))

    def _make_extras(self, sizes: engine.ExtraSizes) -> None:
        """Mechanisms' arrays as long as the others and as `sizes` says; rows keep theirs."""
        state = self._state
        sizes = sizes._replace(
            servers=state.server.shape[2],
            changes=self._params.change_s.shape[2],
            probes=state.probe.shape[2],
            pool=state.request.shape[1],
        )
        if self._extras is None:
            self._extras = engine.allocate_extras(sizes)
            for r in range(len(state.step)):
                engine.clear_extras(r, self._extras)
                engine.take_over(r, self._extras, self._params, state)
                self._extras.rtt_s[r] = self._rtt_s[r]
                self._extras.model[r] = self._model[r]
                self._extras.models[r] = self._model[r, 0, :, None]
        elif sizes != self._extra_sizes:
            self._extras = engine.enlarged_extras(self._extras, sizes, self._state)
        self._extra_sizes = sizes

    def _write_facts(self, r: int, scenario: Scenario) -> None:
        cells = len(scenario.cells)
        servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
        rates_rps = nominal_rates_rps(scenario)
        self._model[r] = 1.0
        self._model[r, :, :cells] = latency_parameters(scenario)
        self._tail[r] = 1.0
        self._tail[r, :cells] = tail_parameters(scenario)
        self._server_rps[r] = 0.0
        self._server_rps[r, :cells] = rates_rps / servers
        self._fleet_rps[r] = rates_rps.sum()
        self._fleet_servers[r] = servers.sum()
        self._zero_load_time_s[r] = zero_load_time_s(scenario)
        self._interval_s[r] = scenario.control_interval_s
        self._piece_steps[r] = max(1, math.floor(0.5 * CHUNK_S / scenario.control_interval_s))

    def set_routing(
        self, routing: FloatArray, dispatch: IntArray, aversion_spent: bool = False
    ) -> None:
        """The decision in force from now on.

        Args:
            routing: (n, R, C).
            dispatch: (n,) SAMPLE or SMOOTH.
            aversion_spent: It deals with the aversion rates itself: roots follow it as it is.
        """
        self._orders.base[:] = routing
        self._orders.mode[:] = dispatch
        self._spend(aversion_spent)

    def follow(self, decision: Decision, dispatch: IntArray) -> None:
        """The decision in force from now on.

        Args:
            decision: A valid one (see `check_decision`). A table is copied when it is another
                array than before.
            dispatch: (n,) SAMPLE or SMOOTH, for routing that does not say.
        """
        if decision.table is None:
            write_orders(self._orders, decision, dispatch)
        else:
            if decision.table is not self._table:
                self._orders = with_table(self._orders, decision.table)
                self._table = decision.table
            self._orders.mode[:] = layout.TABLE
        self._spend(decision.aversion_spent)

    def _spend(self, spent: bool) -> None:
        if self._extras is not None:
            self._extras.flag[:, extras.SPENT] = spent

    def advance(self, target_step: IntArray) -> None:
        """Moves every row to its target step, (n,), under the decision in force."""
        if all(scaler is None for scaler in self._scalers):
            self._advance(target_step)
            return
        while (self.step < target_step).any():
            next_step = target_step.copy()
            for r, scaler in enumerate(self._scalers):
                if scaler is not None and self.step[r] < target_step[r]:
                    scaler.act(r, self._params, self._state, self._view_model(r))
                    next_step[r] = min(target_step[r], scaler.next_step(self.step[r]))
            self._advance(next_step)

    def _view_model(self, r: int) -> FloatArray:
        """The cells' own latency models in row r, (C, 4)."""
        if self._extras is None:
            return np.asarray(self._model[r, 0])
        rounds = self._extras.tally[r, :, extras.ROUND] % extras.MODEL_ROUNDS
        return np.asarray(self._extras.models[r, np.arange(len(rounds)), rounds])

    def _advance(self, target_step: IntArray) -> None:
        """By pieces, so that however far the target is, few requests wait in memory."""
        while True:
            piece = np.minimum(target_step, self.step + self._piece_steps)
            self.draw_until(piece * self._interval_s)
            status, _ = engine.advance(
                self._params, self._state, self._arrivals, self._orders, self._extras, piece
            )
            if status != engine.READY:
                self._enlarge(status)
            elif (piece == target_step).all():
                return

    def draw_until(self, end_s: float | FloatArray) -> None:
        """Draws every row's requests up to the instants `end_s`; `advance` does it by itself."""
        lacking = self._drawn_s <= end_s
        if lacking.any():
            until_s = np.broadcast_to(end_s, lacking.shape)
            for r in np.flatnonzero(lacking):
                self._draw(int(r), float(until_s[r]))

    def _draw(self, r: int, until_s: float) -> None:
        """Draws row r's requests past `until_s`, unless its last arrival is before."""
        workload = self._workloads[r]
        last_s = self._params.clock[r, layout.LAST_ARRIVAL_S]
        while self._drawn_s[r] <= min(until_s, last_s) and workload is not None:
            index = round(self._drawn_s[r] / CHUNK_S)
            for i, requests in enumerate(workload.chunk(index)):
                self._append(r, i, requests)
            self._drawn_s[r] = CHUNK_S * (index + 1)
        if self._drawn_s[r] > last_s:
            self._drawn_s[r] = math.inf

    def _append(self, r: int, i: int, requests: FloatArray) -> None:
        first, stop = self._arrivals.first[r, i], self._arrivals.stop[r, i]
        left = stop - first
        needed = left + len(requests)
        if needed > self._arrivals.requests.shape[2]:
            self._arrivals = memory.at_least(self._arrivals, 2, 2 * needed, "requests")
        buffer = self._arrivals.requests[r, i]
        buffer[:left] = buffer[first:stop].copy()
        buffer[left:needed, : requests.shape[1]] = requests
        if requests.shape[1] < buffer.shape[1]:
            buffer[left:needed, requests.shape[1] :] = NO_SESSION
        self._arrivals.first[r, i] = 0
        self._arrivals.stop[r, i] = needed

    def _enlarge(self, status: int) -> None:
        self._view = None
        if status == engine.FULL_POOL:
            self._state = memory.enlarge_pool(self._state, 2 * self._state.request.shape[1])
            if self._extras is not None:
                self._make_extras(self._extra_sizes)
        elif status == engine.FULL_WIRE:
            length = 2 * self._state.wire_time.shape[2]
            self._state = memory.at_least(self._state, 2, length, "wire_time", "wire_id")
        else:
            length = 2 * self._state.log.shape[1]
            self._state = memory.at_least(self._state, 1, length, "log")

    def view(self) -> View:
        """What roots know now. Its arrays change with the next interval."""
        if self._view is None:
            self._view = self._new_view()
        emitted_s = self._state.held_time[..., layout.HELD_EMITTED_S]
        return self._view._replace(probe_age_s=self.time_s[:, None, None] - emitted_s)

    def _new_view(self) -> View:
        """Windows on the arrays of now; they hold until an array is replaced by a longer one."""
        state, extra = self._state, self._extras
        return View(
            admissible=self.admissible,
            rtt_s=self._rtt_s if extra is None else extra.rtt_s,
            probe_age_s=state.held_time[..., layout.HELD_EMITTED_S],
            rif=state.held[..., layout.HELD_RIF],
            servers=state.held[..., layout.HELD_SERVERS],
            received=state.held[..., layout.HELD_RECEIVED],
            error_rate=state.held_time[..., layout.HELD_ERROR_RATE],
            model=self._model if extra is None else extra.model,
            aversion=self._zeros if extra is None else extra.aversion,
            backlog_tokens=self._no_backlog if extra is None else extra.backlog,
            sent=state.arc[..., layout.SENT],
            answered=state.arc[..., layout.ANSWERED_ARC],
            interval_sent=state.arc[..., layout.INTERVAL_SENT],
            arrival_rps=state.arrival_load,
            tail=self._tail,
            server_rps=self._server_rps,
            fleet_rps=self._fleet_rps,
            fleet_servers=self._fleet_servers,
            zero_load_time_s=self._zero_load_time_s,
            control_interval_s=self._interval_s,
        )

    def truth(self) -> Truth:
        """The system as it is; for rewards and pictures, never for a policy."""
        return accounts.truth(self._state)

    def books(self) -> Books:
        """Where every request is."""
        return accounts.books(self._state, self._extras)

    def measurements(self) -> Measurements:
        """Sums and histograms over the measured requests so far."""
        return accounts.measurements(self._state, self._extras)

    def counts(self) -> Counts | None:
        """What the mechanisms counted so far; None where no row has any."""
        return accounts.counts(self._params, self._state, self._extras)

    def live_capacity(self, r: int, until_s: float) -> float:
        """Requests that row r's live servers can serve in its measured span, at nominal rates.

        Args:
            r: The row.
            until_s: Clock time at which the span ends, if that is before the horizon.
        """
        params, clock = self._params, self._params.clock[r]
        start_s, end_s = clock[layout.MEASURE_FROM_S], min(until_s, clock[layout.MEASURE_TO_S])
        times_s = np.clip(params.change_s[r], start_s, max(end_s, start_s))
        spans_s = np.diff(times_s, axis=1, append=max(end_s, start_s))
        live_s = ordered_sum(spans_s * params.change_live[r])
        return float(ordered_sum(live_s * self._server_rps[r]))

    def request_log(self, r: int) -> dict[str, FloatArray]:
        """Columns of row r's answered requests, in the order in which the answers were taken in.

        Raises:
            ValueError: The simulator was made without `log=True`.
        """
        if not self._logged:
            raise ValueError("no request log was kept; make the simulator with log=True")
        return accounts.request_log(self._state, r)
