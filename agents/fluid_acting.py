"""A network acts in the fluid model: what it would observe there, and the routing it answers.

The fields are those of `observation`, by the same rules: times in zero-load times Z, counts per
server, saturated at the bounds, zero where there is no arc. A fluid's probe was sent half a probe
interval and the way here ago; requests in flight and rates are means, so nothing is random.
Everything is differentiable, also where a decision depends on the one before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from agents.networks import DescentActor
from dlb_gym.fluid import FluidSystem
from dlb_gym.observation import FIELDS
from dlb_gym.rates import nominal_rates_rps, zero_load_time_s
from dlb_gym.scenario import Scenario
from dlb_gym.service_curves import ServicePoint, SoftplusCells

Tensor = torch.Tensor

_HIGH = {field.name: field.high for field in FIELDS}


@dataclass(frozen=True)
class FluidView:
    """What observations of a batch's fluids are measured with.

    Attributes:
        zero_load_time_s: Z, (rows, 1, 1).
        fleet_rps: Nominal rate of all servers, (rows, 1, 1).
        fleet_servers: Number of all servers, (rows, 1, 1).
        server_rps: Nominal rate of one server of each cell, (rows, 1, cells), 0 where padded.
        interval_s: Between two decisions.
    """

    zero_load_time_s: Tensor
    fleet_rps: Tensor
    fleet_servers: Tensor
    server_rps: Tensor
    interval_s: float

    @classmethod
    def of(cls, scenarios: Sequence[Scenario], system: FluidSystem) -> Self:
        """Of the scenarios that a system was made from, in their order.

        Raises:
            ValueError: They differ in the control interval, or something in them changes.
        """
        schedule = system.schedule
        if schedule is not None and not schedule.is_still:
            raise ValueError(
                "scenarios hold disturbances or a demand that moves, and the view of a network "
                "does not follow these; leave them out, or measure with the environment"
            )
        intervals_s = {scenario.control_interval_s for scenario in scenarios}
        if len(intervals_s) != 1:
            raise ValueError(
                f"scenarios of one batch need one control_interval_s, and there are "
                f"{len(intervals_s)}: {sorted(intervals_s)}; give scenarios of the same"
            )
        like = system.curves.servers
        server_rps = np.zeros(tuple(like.shape))
        fleet = np.zeros((3, len(scenarios)))
        for row, scenario in enumerate(scenarios):
            rates_rps = nominal_rates_rps(scenario)
            servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
            server_rps[row, : len(servers)] = rates_rps / servers
            fleet[:, row] = zero_load_time_s(scenario), rates_rps.sum(), servers.sum()

        def tensor(array: NDArray[np.float64]) -> Tensor:
            return torch.as_tensor(array, dtype=like.dtype, device=like.device)

        unit_s, fleet_rps, fleet_servers = tensor(fleet)[..., None, None]
        return cls(unit_s, fleet_rps, fleet_servers, tensor(server_rps)[:, None], intervals_s.pop())

    def fields(self, system: FluidSystem, routing: Tensor, seen: Tensor) -> dict[str, Tensor]:
        """Named fields, (rows, roots, cells): those that a fluid has.

        Args:
            system: Of scenarios, its demand steady.
            routing: The last one.
            seen: Requests in flight and live servers by the probes held, (..., 2).
        """
        rif, servers = seen.unbind(dim=-1)
        unit_s = self.zero_load_time_s
        curves = system.curves
        assert isinstance(curves, SoftplusCells)  # of scenarios
        parts = curves.mapped(lambda parameter: parameter[:, None], torch).model
        model = replace(parts, alpha=parts.alpha / unit_s, beta=parts.beta / unit_s)
        point = model.at(rif / servers)
        fields: dict[str, Any] = {
            "admissible": system.arcs.to(rif.dtype),
            "rtt": system.round_trip_s / unit_s,
            "probe_age": torch.nan_to_num(system.report_delay_s) / unit_s,
            "rif": point.n,
            "servers": servers / self.fleet_servers,
            "serving_latency": point.latency,
            "marginal_latency": point.marginal_latency,
            "model_alpha": model.alpha,
            "model_beta": model.beta,
            "model_knee": model.knee,
            "model_smoothing": model.smoothing,
            "routing": routing,
            "arrival_load": system.rates_rps[..., None] / self.fleet_rps,
            "capacity_load": servers * self.server_rps / self.fleet_rps,
            "control_interval": self.interval_s / unit_s,
        }
        return {
            name: torch.where(system.arcs, values.clamp(max=_HIGH[name]), 0.0)
            for name, values in fields.items()
        }


@dataclass(frozen=True)
class Acting:
    """Dynamics of `dlb_gym.fluid`: a network decides once every control interval.

    Attributes:
        actor: Gives logits from fields.
        view: Of the batch.
    """

    actor: DescentActor
    view: FluidView
    is_smooth = False

    @property
    def interval_s(self) -> float:
        """The control interval."""
        return self.view.interval_s

    def reports(self, system: FluidSystem, point: ServicePoint) -> Tensor:
        """Requests in flight and servers."""
        rif: Tensor = point.rif
        return torch.stack((rif, system.curves.servers.expand_as(rif)), dim=-1)

    def step(self, system: FluidSystem, routing: Tensor, seen: Tensor, duration_s: float) -> Tensor:
        """The network's next routing."""
        fields: Mapping[str, Tensor] = self.view.fields(system, routing, seen)
        shares = torch.softmax(
            torch.where(system.arcs, self.actor.logits(fields), -torch.inf), dim=-1
        )
        return torch.where(system.arcs, shares, 0.0)
