"""The fluid model of scenarios or of any network: what it accepts, and how it is run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from dlb_gym.equilibrium import check_feasible
from dlb_gym.fluid.inputs import scenarios_in
from dlb_gym.fluid.motion import Motion
from dlb_gym.fluid.path import FluidPath, Recorder
from dlb_gym.fluid.routing import Dynamics, Fixed
from dlb_gym.fluid.schedule import CellChange
from dlb_gym.fluid.system import FluidSystem
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import check_increasing

Tensor = torch.Tensor
Given: TypeAlias = Tensor | NDArray[np.float64]

STEP_S = 0.01
RATES_AHEAD = 500
"""Steps of which the mean rates are worked out together."""
WHOLE = 1e-3
"""Of a step: what may be missing to a whole number of them, shares to 1, or shares to be 0."""


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
        if not isinstance(system, FluidSystem):
            system = FluidSystem.from_scenarios(scenarios_in(system))
        for row in range(len(system.rates_rps)):
            _, _, names, arrays = system.row(row)
            if not allow_nonmonotone:
                check_increasing(arrays[2], names)
            check_feasible(*arrays, names)
        self.system, self.step_s = system, step_s
        self._require_short_step()

    def run(
        self,
        dynamics: Dynamics,
        duration_s: float | None = None,
        *,
        rif: Given | None = None,
        routing: Given | None = None,
        record_every: int = 10,
    ) -> FluidPath:
        """Lets the fluid flow.

        It starts empty and, where nothing else is asked for, from the split by capacity, which a
        scenario's warm-up keeps. With `rif`, the history is a constant one instead (paper C.1): N
        and x have always been what they are at 0, and routers decide from then on.

        Args:
            dynamics: What moves the routing.
            duration_s: A whole number of steps; None: the scenarios' warm-up, settling and horizon.
            rif: N(0), (rows, cells).
            routing: x(0), (rows, roots, cells); None: the split by capacity, or with `rif` the
                routing of `Fixed`.
            record_every: Steps between two records of the path.

        Raises:
            ValueError: A span is no whole number of steps, there is no duration or none after
                warm-up, a start is not valid, or the state gets out of bounds.
        """
        span_s = self.system.duration_s if duration_s is None else duration_s
        steps = self._steps("duration_s", span_s)
        every = 1 if dynamics.interval_s is None else self._steps("interval_s", dynamics.interval_s)
        warm_s = self.system.warmup_s if rif is None else 0.0
        warm = self._steps("warmup_s", warm_s, least=0)
        if steps <= warm:
            raise ValueError(
                f"duration_s = {span_s} ends before the routers decide: warm-up takes "
                f"{warm_s} s; make it longer"
            )
        recorder = Recorder(self.step_s, record_every)
        changes = self._changes()
        moving = self._started(dynamics, rif, routing)
        for n, rates in enumerate(self._rates(steps)):
            lost = moving.change(changes.get(n, ()))
            if n >= warm and not dynamics.is_smooth and (n - warm) % every == 0:
                moving.decide(n, every * self.step_s)
            if recorder.is_due:
                self._keep(recorder, moving, n)
            smooth = n >= warm and dynamics.is_smooth
            recorder.add(moving.step(n, rates, lost, smooth))
        self._keep(recorder, moving, steps)
        return recorder.path()

    def _started(self, dynamics: Dynamics, rif: Given | None, routing: Given | None) -> Motion:
        system = self.system
        if routing is not None:
            shares = system.given("routing", routing, tuple(system.one_way_s.shape))
        elif rif is not None and isinstance(dynamics, Fixed):
            shares = dynamics.matrix(system)
        else:
            shares = system.capacity_split()
        shape = tuple(system.curves.capacity_rps.shape)
        start = None if rif is None else system.given("rif", rif, shape)
        return Motion(system, dynamics, self.step_s, start, shares)

    def _keep(self, recorder: Recorder, moving: Motion, number: int) -> None:
        """Records the state, unless it makes no sense."""
        shares, arcs = moving.routing.detach(), self.system.arcs
        off = torch.where(arcs, (-shares).clamp(min=0.0), shares.abs()).amax()
        some = arcs.any(dim=-1)
        apart = torch.where(some, (shares.sum(dim=-1) - 1.0).abs(), 0.0).amax()
        if not bool(torch.maximum(off, apart) <= WHOLE):
            raise ValueError(
                f"routing at {number * self.step_s:g} s is off the simplex over the arcs by "
                f"{float(torch.maximum(off, apart)):.3g}; rows must add up to 1, with shares of at "
                "least 0 and none where no arc is"
            )
        if not bool((moving.rif.detach() >= -WHOLE).all()) or not bool(
            torch.isfinite(moving.rif.detach()).all()
        ):
            raise ValueError(
                f"rif at {number * self.step_s:g} s is negative or not finite; check rates, curves "
                "and start, or shorten step_s"
            )
        recorder.keep(moving.rif, moving.routing)

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
            relative, extra_rps = (
                torch.as_tensor(each, dtype=system.rates_rps.dtype, device=system.rates_rps.device)
                for each in schedule.mean_rates(edges_s)
            )
            yield from relative * system.rates_rps + extra_rps

    def _changes(self) -> dict[int, list[CellChange]]:
        """Changes of cells by the step at whose start they happen, the nearest one."""
        steps: dict[int, list[CellChange]] = {}
        schedule = self.system.schedule
        for change in () if schedule is None else schedule.changes:
            steps.setdefault(round(change.time_s / self.step_s), []).append(change)
        return steps

    def _steps(self, key: str, span_s: float | None, least: int = 1) -> int:
        """A span as steps."""
        if span_s is None:
            raise ValueError(f"{key} = None; systems given as arrays have no horizon, so give one")
        steps = round(span_s / self.step_s) if math.isfinite(span_s) else -1
        if steps < least or abs(steps * self.step_s - span_s) > WHOLE * self.step_s:
            raise ValueError(
                f"{key} = {span_s} must be a whole number of steps of {self.step_s} s, at least "
                f"{least}; change it or step_s"
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
