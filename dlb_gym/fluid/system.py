"""The system that the fluid model moves: rates, delays and service curves as tensors.

Rows are systems side by side; smaller ones are padded with roots without arcs and cells that none
reaches. A request sent at t arrives at t + `request_delay_s`, a root sees a cell as it was
`report_delay_s` ago: both are tau_ij for systems given as arrays (theory.md section 1). Those of
scenarios also know the router's delay and the mean age of the newest probe, half its interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray

from dlb_gym.fluid.inputs import check_arrays, require_float, scenarios_in, tensor_like
from dlb_gym.fluid.schedule import Schedule
from dlb_gym.latency_model import LatencyModel
from dlb_gym.messages import Names
from dlb_gym.rates import one_way_s, root_rates_rps
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_curves import service_curves_of
from dlb_gym.service_curves import Cost, ServiceCurves, SoftplusCells

Tensor = torch.Tensor
Array = NDArray[np.float64]


class Row(NamedTuple):
    """A system without its padding, for `dlb_gym.equilibrium`.

    Attributes:
        roots: Their numbers in the batch.
        cells: Theirs.
        names: What messages call them.
        arrays: Rates, one-way latencies and curves, in numpy.
    """

    roots: NDArray[np.intp]
    cells: NDArray[np.intp]
    names: Names
    arrays: tuple[Array, Array, ServiceCurves]


@dataclass(frozen=True)
class FluidSystem:
    """A batch of systems.

    Attributes:
        rates_rps: lambda_i, (rows, roots), means without bursts.
        one_way_s: tau_ij, (rows, roots, cells), NaN where there is no arc.
        request_delay_s: From the arrival at the root to that at the cell, of that shape.
        report_delay_s: Age of the state that the root sees, of that shape.
        curves: mu_j, parameters (rows, cells).
        arc_cost: g_ij, (rows, roots, cells), of every cost; None: the paper's, 2 tau_ij for the
            latency and gradient costs and 0 for rif.
        warmup_s: How long the split by capacity stays in force before a policy decides.
        duration_s: Of the longest scenario, to whose end all rows go on; None for arrays.
        schedule: What changes; None if nothing does.
    """

    rates_rps: Tensor
    one_way_s: Tensor
    request_delay_s: Tensor
    report_delay_s: Tensor
    curves: ServiceCurves
    arc_cost: Tensor | None = None
    warmup_s: float = 0.0
    duration_s: float | None = None
    schedule: Schedule | None = None

    @classmethod
    def from_arrays(
        cls,
        rates_rps: Tensor,
        one_way_s: Tensor,
        curves: ServiceCurves,
        arc_cost: Tensor | None = None,
    ) -> Self:
        """A batch that never changes.

        Args:
            rates_rps: (rows, roots).
            one_way_s: (rows, roots, cells), NaN where there is no arc.
            curves: Of torch, parameters (rows, cells).
            arc_cost: (rows, roots, cells), finite where there is an arc; None: the paper's.

        Raises:
            ValueError: Shapes disagree, or a number is out of range.
        """
        check_arrays(rates_rps, one_way_s, curves, arc_cost)
        return cls(rates_rps, one_way_s, one_way_s, one_way_s, curves, arc_cost)

    @classmethod
    def from_scenarios(
        cls,
        scenarios: Sequence[Scenario],
        seed: int = 0,
        episode: int = 0,
        dtype: torch.dtype = torch.float64,
        device: str | torch.device = "cpu",
    ) -> Self:
        """A row for every scenario; row r has seed + r, as in the environment.

        Raises:
            ScenarioError: A scenario has what a fluid does not follow (`fluid.schedule`).
            TraceError: A trace cannot be used.
            ValueError: There is no scenario, they differ in warm-up, or the type is not floating.
        """
        require_float(dtype)
        scenarios = scenarios_in(scenarios)
        warmups_s = {scenario.warmup_s for scenario in scenarios}
        if len(warmups_s) > 1:
            raise ValueError(
                f"scenarios of one batch need one warmup_s, and there are {len(warmups_s)}: "
                f"{sorted(warmups_s)}; change them or make a batch of each"
            )
        rows, roots = len(scenarios), max(len(each.roots) for each in scenarios)
        cells = max(len(each.cells) for each in scenarios)
        rates = np.zeros((rows, roots))
        tau_s, router_s, probe_s = (
            np.full((rows, roots, cells), np.nan),
            np.zeros(rows),
            np.zeros(rows),
        )
        servers, parameters = np.ones((rows, cells)), np.ones((4, rows, cells))
        for row, scenario in enumerate(scenarios):
            size = (len(scenario.roots), len(scenario.cells))
            rates[row, : size[0]] = root_rates_rps(scenario)
            tau_s[row, : size[0], : size[1]] = one_way_s(scenario)
            own = service_curves_of(scenario)
            servers[row, : size[1]] = own.servers
            for number, key in enumerate(("alpha", "beta", "knee", "smoothing")):
                parameters[number, row, : size[1]] = getattr(own.model, key)
            router_s[row], probe_s[row] = scenario.router_delay_s, scenario.probe_interval_s
        request_s = tau_s + router_s[:, None, None]

        def tensor(array: Array) -> Tensor:
            return torch.as_tensor(array, dtype=dtype, device=device)

        model = LatencyModel(*parameters)
        return cls(
            tensor(rates),
            tensor(tau_s),
            tensor(request_s),
            tensor(tau_s + 0.5 * probe_s[:, None, None]),
            SoftplusCells(servers, model).mapped(tensor, torch),
            warmup_s=scenarios[0].warmup_s,
            duration_s=max(each.warmup_s + each.settle_s + each.horizon_s for each in scenarios),
            schedule=Schedule(scenarios, (rows, roots, cells), request_s, seed, episode),
        )

    @cached_property
    def arcs(self) -> Tensor:
        """Whether there is an arc, (rows, roots, cells)."""
        return ~torch.isnan(self.one_way_s)

    @cached_property
    def round_trip_s(self) -> Tensor:
        """2 tau_ij, 0 where there is no arc."""
        return 2.0 * torch.nan_to_num(self.one_way_s)

    def network(self, cost: Cost) -> Tensor:
        """g_ij of a cost, (rows, roots, cells), finite everywhere."""
        if self.arc_cost is not None:
            return torch.where(self.arcs, self.arc_cost, 0.0)
        return torch.zeros_like(self.round_trip_s) if cost == "rif" else self.round_trip_s

    @cached_property
    def travel_s(self) -> Tensor:
        """There and back again, 0 where there is no arc."""
        return torch.nan_to_num(self.request_delay_s + self.one_way_s)

    def given(self, key: str, value: object, shape: tuple[int, ...]) -> Tensor:
        """Numbers that a user gives, as a tensor of the system's kind.

        Raises:
            ValueError: They have another shape, or one is not finite.
        """
        return tensor_like(key, value, shape, self.rates_rps)

    def capacity_split(self) -> Tensor:
        """x_ij in proportion to the capacity of the cells that a root reaches."""
        capacity = torch.where(self.arcs, self.curves.capacity_rps[:, None], 0.0)
        return capacity / capacity.sum(dim=-1, keepdim=True).clamp(
            min=torch.finfo(capacity.dtype).tiny
        )

    def row(self, number: int) -> Row:
        """One system without its padding."""
        arcs = self.arcs[number].cpu().numpy()
        roots, cells = np.flatnonzero(arcs.any(axis=1)), np.flatnonzero(arcs.any(axis=0))

        def own(parameter: Tensor) -> Array:
            return to_numpy(parameter[number])[cells]

        rates_rps, one_way_s = to_numpy(self.rates_rps[number]), to_numpy(self.one_way_s[number])
        arrays = rates_rps[roots], one_way_s[np.ix_(roots, cells)], self.curves.mapped(own, np)
        place = f"row {number}" if len(self.rates_rps) > 1 else ""
        return Row(roots, cells, Names(roots, cells, place), arrays)


def to_numpy(tensor: Tensor) -> Array:
    """Its numbers, in double precision."""
    return np.asarray(tensor.detach().cpu(), dtype=np.float64)
