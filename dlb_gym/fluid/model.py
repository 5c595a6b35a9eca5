"""The delayed fluid of the paper, (8), moved in steps (theory.md section 1).

    dN_j/dt = sum_i lambda_i(t - tau_ij) x_ij(t - tau_ij) - mu_j(N_j(t)).

A step of length h goes from t to t + h. Flows are constant within it, delayed exactly (`delays`);
N moves by Heun's method, with the inflow a_j of the step,

    P = N + h (a - mu(N)),    N(t + h) = N + h (a - (mu(N) + mu(P)) / 2).

A routing in steps jumps at its decisions and stays in between. A smooth one takes part in Heun's
method: a step with what is seen at t gives P, and another one from the start goes by the mean of
what is seen at t and, with P in place of N(t + h), at t + h. Second order in h while what is
delayed is smooth; differentiable in everything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch

from dlb_gym.equilibrium import check_feasible
from dlb_gym.fluid.delays import Journeys, Lag, Reports, Spanned
from dlb_gym.fluid.path import FluidPath, Recorder
from dlb_gym.fluid.routing import Dynamics
from dlb_gym.fluid.schedule import CellChange
from dlb_gym.fluid.system import FluidSystem
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import ServiceCurves, ServicePoint, SoftplusCells, check_increasing

Tensor = torch.Tensor

STEP_S = 0.01
RATES_AHEAD = 500
"""Steps of which the mean rates are worked out together."""


class _Lags(NamedTuple):
    """Delays of one step.

    Attributes:
        requests: Of what is sent in it.
        reports: Of what is seen when it begins.
        arrives: Whether what is sent arrives at all, (rows, roots, cells); None: all does.
    """

    requests: Lag
    reports: Lag
    arrives: Tensor | None = None


@dataclass
class _Now:
    """What is in motion.

    Attributes:
        passing: Share of what arrives that does not fail, (rows, cells); None: all of it.
    """

    curves: ServiceCurves
    rif: Tensor
    point: ServicePoint
    routing: Tensor
    journeys: Journeys
    reports: Reports
    passing: Tensor | None = None


class FluidModel:
    """A batch of systems as fluids.

    Args:
        system: A scenario, several, or a `FluidSystem`.
        step_s: h, seconds.
        allow_nonmonotone: Accept service curves that stop to increase. Their dynamics can be
            studied (thrashing of a KV cache); nothing is promised about their equilibria.

    Raises:
        InfeasibleError: The mean demand exceeds what the cells in reach can serve (assumption 2).
        ScenarioError: A scenario has what the fluid does not follow.
        ValueError: The step is too long, or a service curve is not increasing.
    """

    def __init__(
        self,
        system: Scenario | Sequence[Scenario] | FluidSystem,
        step_s: float = STEP_S,
        *,
        allow_nonmonotone: bool = False,
    ) -> None:
        if isinstance(system, Scenario):
            system = [system]
        if not isinstance(system, FluidSystem):
            system = FluidSystem.from_scenarios(system)
        for row in range(len(system.rates_rps)):
            _, _, arrays = system.row(row)
            if not allow_nonmonotone:
                check_increasing(arrays[2])
            check_feasible(*arrays)
        self.system, self.step_s = system, step_s
        self._nothing = torch.zeros_like(system.rates_rps[:, 0])
        self._require_short_step()
        longest_s = max(_largest(system.request_delay_s), _largest(system.report_delay_s))
        spans = None if system.schedule is None else system.schedule.spans
        self._spanned = None
        if spans is not None:
            longest_s += spans.longest_extra_s
            self._spanned = (
                Spanned(spans, system.request_delay_s),
                Spanned(spans, system.report_delay_s),
            )
        self._longest = math.ceil(longest_s / step_s)
        self._lags = _Lags(self._lag(system.request_delay_s), self._lag(system.report_delay_s))

    def run(
        self,
        dynamics: Dynamics,
        duration_s: float | None = None,
        *,
        rif: Tensor | None = None,
        routing: Tensor | None = None,
        record_every: int = 10,
    ) -> FluidPath:
        """Lets the fluid flow.

        It starts empty and, where nothing else is asked for, from the split by capacity, which a
        scenario's warm-up keeps. With `rif`, the history is a constant one instead (paper C.1): N
        and x have always been what they are at 0.

        Args:
            dynamics: What moves the routing.
            duration_s: A whole number of steps; None: the scenarios' warm-up, settling and horizon.
            rif: N(0), (rows, cells).
            routing: x(0), (rows, roots, cells).
            record_every: Steps between two records of the path.

        Raises:
            ValueError: A duration or interval is no whole number of steps, or there is none.
        """
        span_s = self.system.duration_s if duration_s is None else duration_s
        steps = self._steps("duration_s", span_s)
        every = 1 if dynamics.interval_s is None else self._steps("interval_s", dynamics.interval_s)
        warm = round(self.system.warmup_s / self.step_s)
        now = self._start(dynamics, rif, routing)
        recorder = Recorder(self.step_s, record_every, self.system.travel_s)
        changes = self._changes()
        for n, rates in enumerate(self._rates(steps)):
            lost = self._change(now, changes.get(n, ()))
            lags = self._lags_at(n)
            decides = n >= warm and not dynamics.is_smooth and (n - warm) % every == 0
            if decides:
                seen = now.reports.seen(lags.reports)
                length_s = every * self.step_s
                now.routing = dynamics.step(self.system, now.routing, seen, length_s)
            recorder.keep(now.rif, now.routing)
            flow, point = now.routing * rates[..., None], None
            if n >= warm and dynamics.is_smooth:
                flow, point = self._smooth_flow(now, dynamics, rates, lags, n)
            recorder.add(*self._move(now, dynamics, flow, point, lags, lost))
        return recorder.path(now.rif, now.routing)

    def _start(self, dynamics: Dynamics, rif: Tensor | None, routing: Tensor | None) -> _Now:
        system = self.system
        split = system.capacity_split() if routing is None else routing
        journeys = Journeys(self._longest, system.curves.capacity_rps)
        start = torch.zeros_like(system.curves.capacity_rps) if rif is None else rif
        if rif is not None:
            flow = torch.where(system.arcs, split * system.rates_rps[..., None], 0.0)
            journeys.fill(flow, self._lags.requests)
        point = system.curves.at(start)
        reports = Reports(self._longest, dynamics.reports(system, point))
        return _Now(system.curves, start, point, split, journeys, reports)

    def _smooth_flow(
        self, now: _Now, dynamics: Dynamics, rates: Tensor, lags: _Lags, n: int
    ) -> tuple[Tensor, ServicePoint]:
        """Moves a smooth routing on by a step; the mean flow within it, and the cells at P."""
        seen = now.reports.seen(lags.reports)
        predicted = dynamics.step(self.system, now.routing, seen, self.step_s)
        flow = 0.5 * (now.routing + predicted) * rates[..., None]
        inflow = _passing(now, now.journeys.arriving(_kept(flow, lags), lags.requests))
        point = self._predicted(now, inflow)
        report = dynamics.reports(self.system, point)
        seen_then = now.reports.seen(self._lags_at(n + 1).reports, report)
        moved = dynamics.step(self.system, now.routing, 0.5 * (seen + seen_then), self.step_s)
        flow = 0.5 * (now.routing + moved) * rates[..., None]
        now.routing = moved
        return flow, point

    def _move(
        self,
        now: _Now,
        dynamics: Dynamics,
        flow: Tensor,
        point: ServicePoint | None,
        lags: _Lags,
        lost: Tensor,
    ) -> tuple[Tensor, ...]:
        """One step of the cells; what `Recorder.add` takes."""
        sent = _kept(flow, lags)
        arriving = now.journeys.send(sent, lags.requests)
        inflow = _passing(now, arriving)
        point = self._predicted(now, inflow) if point is None else point
        served = 0.5 * (now.point.rate_rps + point.rate_rps)
        rif = now.rif + self.step_s * (inflow - served)
        if lags.arrives is not None:
            lost = lost + (flow - sent).sum(dim=(1, 2))
        if now.passing is not None:
            lost = lost + (arriving - inflow).sum(dim=1)
        means = 0.5 * (now.rif + rif), flow, served, lost
        now.rif, now.point = rif, now.curves.at(rif)
        now.reports.add(dynamics.reports(self.system, now.point))
        return means

    def _predicted(self, now: _Now, inflow: Tensor) -> ServicePoint:
        """The cells at P."""
        return now.curves.at(now.rif + self.step_s * (inflow - now.point.rate_rps))

    def _lags_at(self, n: int) -> _Lags:
        if self._spanned is None:
            return self._lags
        sent, seen = self._spanned
        delay_s = sent.sent_at(n * self.step_s)
        arrives = torch.isfinite(delay_s)
        return _Lags(
            self._lag(torch.where(arrives, delay_s, 0.0)),
            self._lag(seen.seen_at(n * self.step_s)),
            arrives,
        )

    def _lag(self, delay_s: Tensor) -> Lag:
        return Lag(torch.nan_to_num(delay_s) / self.step_s, self._longest)

    def _rates(self, steps: int) -> Iterator[Tensor]:
        """Mean rates of every step, (rows, roots)."""
        system = self.system
        schedule = system.schedule
        if schedule is None or schedule.steady_rates:
            for _ in range(steps):
                yield system.rates_rps
            return
        for first in range(0, steps, RATES_AHEAD):
            count = min(RATES_AHEAD, steps - first)
            edges_s = self.step_s * np.arange(first, first + count + 1, dtype=np.float64)
            yield from torch.as_tensor(
                schedule.mean_rates_rps(edges_s),
                dtype=system.rates_rps.dtype,
                device=system.rates_rps.device,
            )

    def _changes(self) -> dict[int, list[CellChange]]:
        """Changes of cells by the step at whose start they happen."""
        steps: dict[int, list[CellChange]] = {}
        schedule = self.system.schedule
        for change in () if schedule is None else schedule.changes:
            steps.setdefault(round(change.time_s / self.step_s), []).append(change)
        return steps

    def _change(self, now: _Now, changes: Sequence[CellChange]) -> Tensor:
        """Makes changes; what crashes lose, as a rate over the step, (rows,)."""
        if not changes:
            return self._nothing
        base, current = self.system.curves, now.curves
        assert isinstance(base, SoftplusCells)
        assert isinstance(current, SoftplusCells)
        servers, speed = current.servers.clone(), base.model.alpha / current.model.alpha
        passing = torch.ones_like(servers) if now.passing is None else now.passing.clone()
        kept = torch.ones_like(servers)
        for change in changes:
            place = change.row, change.cell
            servers[place], speed[place] = change.servers, change.speed
            passing[place], kept[place] = change.passing, change.kept
        lost = ((1.0 - kept) * now.rif).sum(dim=1) / self.step_s
        now.curves = replace(base.slowed(speed), servers=servers)
        now.rif, now.passing = kept * now.rif, passing
        now.point = now.curves.at(now.rif)
        return lost

    def _steps(self, key: str, span_s: float | None) -> int:
        """A span as steps."""
        if span_s is None:
            raise ValueError(f"{key} = None; systems given as arrays have no horizon, so give one")
        steps = round(span_s / self.step_s)
        if steps < 1 or abs(steps * self.step_s - span_s) > 1e-6 * self.step_s:
            raise ValueError(
                f"{key} = {span_s} must be a whole number of steps of {self.step_s} s, at least 1; "
                "change it or step_s"
            )
        return steps

    def _require_short_step(self) -> None:
        """Heun's method must not overshoot where service is fastest: at N = 0, mu being concave."""
        if not 0.0 < self.step_s < math.inf:
            raise ValueError(f"step_s = {self.step_s} must be finite and above 0")
        curves = self.system.curves
        fastest = float(curves.at(torch.zeros_like(curves.capacity_rps)).rate_slope.detach().max())
        if self.step_s * fastest > 1.0:
            raise ValueError(
                f"step_s = {self.step_s} is longer than the shortest service time, "
                f"{1.0 / fastest:.4g} s; give a step_s below that"
            )


def _kept(flow: Tensor, lags: _Lags) -> Tensor:
    return flow if lags.arrives is None else torch.where(lags.arrives, flow, 0.0)


def _passing(now: _Now, inflow: Tensor) -> Tensor:
    return inflow if now.passing is None else now.passing * inflow


def _largest(delay_s: Tensor) -> float:
    return float(torch.nan_to_num(delay_s.detach()).max())
