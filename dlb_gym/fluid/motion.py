"""A fluid in motion: one step of the delayed equations (8) (theory.md section 1).

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
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dlb_gym.fluid.delays import Journeys, Lag, Reports, Spanned
from dlb_gym.fluid.path import Means
from dlb_gym.fluid.routing import Dynamics
from dlb_gym.fluid.schedule import CellChange
from dlb_gym.fluid.system import FluidSystem
from dlb_gym.service_curves import ServicePoint, SoftplusCells

Tensor = torch.Tensor


class _Lags(NamedTuple):
    """Delays of one step.

    Attributes:
        requests: Of what is sent in it.
        reports: Of what is seen when it begins.
        travel_s: There and back, of what is sent in it, 0 where it is lost or there is no arc.
        arrives: Whether what is sent arrives at all, (rows, roots, cells); None: all does.
    """

    requests: Lag
    reports: Lag
    travel_s: Tensor
    arrives: Tensor | None = None


class Motion:
    """A system's state, and how it moves.

    Args:
        system: What is in motion. A copy of its own, so that what is derived from its tensors
            belongs to this run: they may be changed, or differentiated through, between runs.
        dynamics: What moves the routing.
        step_s: h.
        rif: N at the start; None: empty, and nothing on the way.
        routing: x at the start.

    Attributes:
        rif: N, (rows, cells).
        routing: x, (rows, roots, cells).
    """

    def __init__(
        self,
        system: FluidSystem,
        dynamics: Dynamics,
        step_s: float,
        rif: Tensor | None,
        routing: Tensor,
    ) -> None:
        system = replace(system)
        self._system, self._dynamics, self._step_s = system, dynamics, step_s
        self._nothing = torch.zeros_like(system.rates_rps[:, 0])
        self._spanned: tuple[Spanned, Spanned] | None = None
        longest_s = max(_largest(system.request_delay_s), _largest(system.report_delay_s))
        if system.schedule is not None and system.schedule.spans is not None:
            spans = system.schedule.spans
            longest_s += spans.longest_extra_s
            self._spanned = (
                Spanned(spans, system.request_delay_s),
                Spanned(spans, system.report_delay_s),
            )
        self._longest = math.ceil(longest_s / step_s)
        self._lags = _Lags(
            self._lag(system.request_delay_s), self._lag(system.report_delay_s), system.travel_s
        )
        self._curves = system.curves
        self._passing: Tensor | None = None
        self._journeys = Journeys(self._longest, system.curves.capacity_rps)
        self.routing = routing
        self.rif = torch.zeros_like(system.curves.capacity_rps) if rif is None else rif
        if rif is not None:
            self._journeys.fill(routing * system.rates_rps[..., None], self._lags.requests)
        self._point = self._curves.at(self.rif)
        self._reports = Reports(self._longest, dynamics.reports(system, self._point))

    def change(self, changes: Sequence[CellChange]) -> Tensor:
        """Makes changes of cells; what crashes lose, as a rate over the step, (rows,).

        Raises:
            ValueError: The curves are none of servers.
        """
        if not changes:
            return self._nothing
        base, current = self._system.curves, self._curves
        if not isinstance(base, SoftplusCells) or not isinstance(current, SoftplusCells):
            raise ValueError(
                f"curves = {type(base).__name__} know no servers, and a disturbance of the "
                "scenario changes these; leave it out or keep the scenario's curves"
            )
        servers, speed = current.servers.clone(), base.model.alpha / current.model.alpha
        passing = torch.ones_like(servers) if self._passing is None else self._passing.clone()
        kept = torch.ones_like(servers)
        for change in changes:
            place = change.row, change.cell
            servers[place], speed[place] = change.servers, change.speed
            passing[place] = change.passing
            kept[place] *= change.kept
        lost = ((1.0 - kept) * self.rif).sum(dim=1) / self._step_s
        self._curves = replace(base.slowed(speed), servers=servers)
        self.rif, self._passing = kept * self.rif, passing
        self._point = self._curves.at(self.rif)
        return lost

    def decide(self, number: int, duration_s: float) -> None:
        """Takes a decision at the start of a step that is to hold for a while."""
        seen = self._reports.seen(self._lags_at(number).reports)
        self.routing = self._dynamics.step(self._system, self.routing, seen, duration_s)

    def step(self, number: int, rates: Tensor, lost: Tensor, smooth: bool) -> Means:
        """Moves on by a step.

        Args:
            number: Of the step.
            rates: lambda_i, means over it, (rows, roots).
            lost: What is lost besides, (rows,).
            smooth: Whether the routing moves within it.
        """
        lags = self._lags_at(number)
        flow, point = self.routing * rates[..., None], None
        if smooth:
            flow, point = self._smooth_flow(number, rates, lags)
        sent = flow if lags.arrives is None else torch.where(lags.arrives, flow, 0.0)
        arriving = self._journeys.send(sent, lags.requests)
        inflow = self._passed(arriving)
        point = self._predicted(inflow) if point is None else point
        served = 0.5 * (self._point.rate_rps + point.rate_rps)
        rif = self.rif + self._step_s * (inflow - served)
        if lags.arrives is not None:
            lost = lost + (flow - sent).sum(dim=(1, 2))
        if self._passing is not None:
            lost = lost + (arriving - inflow).sum(dim=1)
        means = Means(0.5 * (self.rif + rif), flow, sent * lags.travel_s, served, lost)
        self.rif, self._point = rif, self._curves.at(rif)
        self._reports.add(self._dynamics.reports(self._system, self._point))
        return means

    def _smooth_flow(self, number: int, rates: Tensor, lags: _Lags) -> tuple[Tensor, ServicePoint]:
        """Moves a smooth routing on; the mean flow of the step, and the cells at P."""
        start = self.routing
        seen = self._reports.seen(lags.reports)
        predicted = self._dynamics.step(self._system, start, seen, self._step_s)
        flow = 0.5 * (start + predicted) * rates[..., None]
        sent = flow if lags.arrives is None else torch.where(lags.arrives, flow, 0.0)
        point = self._predicted(self._passed(self._journeys.arriving(sent, lags.requests)))
        report = self._dynamics.reports(self._system, point)
        seen_then = self._reports.seen(self._lags_at(number + 1).reports, report)
        middle = 0.5 * (seen + seen_then)
        self.routing = self._dynamics.step(self._system, start, middle, self._step_s)
        return 0.5 * (start + self.routing) * rates[..., None], point

    def _predicted(self, inflow: Tensor) -> ServicePoint:
        """The cells at P."""
        return self._curves.at(self.rif + self._step_s * (inflow - self._point.rate_rps))

    def _passed(self, inflow: Tensor) -> Tensor:
        return inflow if self._passing is None else self._passing * inflow

    def _lags_at(self, number: int) -> _Lags:
        if self._spanned is None:
            return self._lags
        sent, seen = self._spanned
        delay_s = sent.sent_at(number * self._step_s)
        arrives = torch.isfinite(delay_s)
        delay_s = torch.where(arrives, delay_s, 0.0)
        extra_s = delay_s - torch.nan_to_num(self._system.request_delay_s)
        return _Lags(
            self._lag(delay_s),
            self._lag(seen.seen_at(number * self._step_s)),
            torch.where(arrives, self._system.travel_s + 2.0 * extra_s, 0.0),
            arrives,
        )

    def _lag(self, delay_s: Tensor) -> Lag:
        return Lag(torch.nan_to_num(delay_s) / self._step_s, self._longest)


def _largest(delay_s: Tensor) -> float:
    return float(torch.nan_to_num(delay_s.detach()).max())
