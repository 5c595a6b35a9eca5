"""How routers move in the fluid model: Flow, Disc, and a routing that stays (theory.md section 1).

    (2)  x_i <- Proj(x_i - h eta_i c_i)                Flow in steps of h, held in between
    (9)  dx_i/dt = Pi_T(x_i)(-eta_i c_i)               its limit for h -> 0
    (1)  x_i = e_j*, j* in argmin_j c_ij               Disc

with c_ij = f_j(N_j(t - tau_ij)) + g_ij. Pi_T, the projection on the tangent cone of the simplex, is

    v_j = z_j - nu where x_ij > 0,   (z_j - nu)^+ elsewhere,   sum_j v_j = 0.

The limit is integrated through the projection on the simplex itself, Proj(x + h z) = x + h v +
o(h): no share turns negative, and the second stage of Heun's method makes it of second order
between the instants at which an arc starts or ends to be used.

Disc is a differential inclusion. It is followed in small steps without hysteresis: where costs tie,
it slides by chattering between the arcs, at an amplitude of the order of the step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dlb_gym.fluid.system import FluidSystem
from dlb_gym.messages import shown
from dlb_gym.service_curves import Cost, ServicePoint, cell_cost, require_cost

Tensor = torch.Tensor

COST_MAX = 1e12
"""Cost of a cell that nobody should send to: finite, so that what is seen of it can be averaged."""


class Dynamics(Protocol):
    """What moves the routing."""

    @property
    def interval_s(self) -> float | None:
        """Time between decisions; None: every step of the model."""

    @property
    def is_smooth(self) -> bool:
        """Whether the routing moves within steps instead of jumping at decisions."""

    def reports(self, system: FluidSystem, point: ServicePoint) -> Tensor:
        """What cells tell of themselves, (rows, cells, numbers)."""

    def step(self, system: FluidSystem, routing: Tensor, seen: Tensor, duration_s: float) -> Tensor:
        """The next routing, (rows, roots, cells), a tensor that is never changed again.

        Args:
            system: What is routed in.
            routing: The last one.
            seen: What roots see of the cells' reports, (rows, roots, cells, numbers).
            duration_s: How long it is to hold.
        """


@dataclass(frozen=True)
class Fixed:
    """A routing that never moves.

    Attributes:
        routing: (roots, cells) or with rows.
    """

    routing: Tensor
    interval_s = None
    is_smooth = False

    def reports(self, system: FluidSystem, point: ServicePoint) -> Tensor:
        """Nothing."""
        rif: Tensor = point.rif
        return rif[..., None][..., :0]

    def step(self, system: FluidSystem, routing: Tensor, seen: Tensor, duration_s: float) -> Tensor:
        """The same."""
        return self.matrix(system)

    def matrix(self, system: FluidSystem) -> Tensor:
        """The routing of every row.

        Raises:
            ValueError: Its shape is not that of the system, or a share is not finite.
        """
        shape = tuple(system.one_way_s.shape)
        given = torch.as_tensor(self.routing)
        return system.given("routing", given, shape[-given.ndim :]).expand(shape)


@dataclass(frozen=True)
class Flow:
    """Projected gradient descent, in steps (2) or in their limit (9).

    Attributes:
        cost: `rif`, `latency` or `gradient`.
        eta: Step size, a number, (roots,) or (rows, roots), 1/s over the unit of the cost.
        interval_s: Length h of a step; None for the limit.

    Raises:
        ValueError: The cost is unknown, or a step size is not finite and above 0.
    """

    cost: Cost
    eta: Tensor | NDArray[np.float64] | float
    interval_s: float | None = None

    def __post_init__(self) -> None:
        require_cost(self.cost)
        eta = torch.as_tensor(self.eta).detach()
        if not bool((torch.isfinite(eta) & (eta > 0.0)).all()):
            raise ValueError(f"eta = {shown(self.eta)} must be finite and above 0")

    @property
    def is_smooth(self) -> bool:
        """In the limit."""
        return self.interval_s is None

    def reports(self, system: FluidSystem, point: ServicePoint) -> Tensor:
        """f_j(N_j)."""
        return _told(self.cost, system, point)

    def step(self, system: FluidSystem, routing: Tensor, seen: Tensor, duration_s: float) -> Tensor:
        """Proj(x - h eta c)."""
        costs = route_cost(self.cost, system, seen[..., 0])
        return projected(routing - duration_s * self._eta(routing) * costs, system.arcs)

    def _eta(self, routing: Tensor) -> Tensor:
        """(rows or 1, roots or 1, 1)."""
        eta = torch.as_tensor(self.eta, dtype=routing.dtype, device=routing.device)
        rows, roots, _ = routing.shape
        if tuple(eta.shape) not in ((), (roots,), (rows, roots), (rows, 1)):
            raise ValueError(
                f"eta has shape {tuple(eta.shape)}; give a number, one for each root ({roots},), "
                f"or ({rows}, {roots})"
            )
        return eta[..., None]


@dataclass(frozen=True)
class Disc:
    """All to the least cost, shared equally where several are exactly least.

    Attributes:
        cost: `rif`, `latency` or `gradient`.
        interval_s: Time between decisions; None: every step.

    Raises:
        ValueError: The cost is unknown.
    """

    cost: Cost
    interval_s: float | None = None
    is_smooth = False

    def __post_init__(self) -> None:
        require_cost(self.cost)

    def reports(self, system: FluidSystem, point: ServicePoint) -> Tensor:
        """f_j(N_j)."""
        return _told(self.cost, system, point)

    def step(self, system: FluidSystem, routing: Tensor, seen: Tensor, duration_s: float) -> Tensor:
        """e_j*."""
        costs = route_cost(self.cost, system, seen[..., 0])
        costs = torch.where(system.arcs, costs, torch.inf)
        least = (costs == costs.amin(dim=-1, keepdim=True)) & system.arcs
        return least / least.sum(dim=-1, keepdim=True).clamp(min=1)


def _told(cost: Cost, system: FluidSystem, point: ServicePoint) -> Tensor:
    """f_j(N_j) as cells report it, (rows, cells, 1), at most `COST_MAX`.

    Where more requests slow a cell down, or change nothing, one more has no price that would be
    low enough: 1 / mu' <= 0 or infinite counts as `COST_MAX`.
    """
    told: Tensor = cell_cost(point, cost, system.curves.servers)
    if cost == "gradient":
        told = torch.where(told > 0.0, told, COST_MAX)
    return told.clamp(max=COST_MAX)[..., None]


def route_cost(cost: Cost, system: FluidSystem, cells: Tensor) -> Tensor:
    """c_ij = f_j + g_ij, (rows, roots, cells), from f_j as roots see it."""
    return cells + system.network(cost)


def projected(y: Tensor, arcs: Tensor) -> Tensor:
    """Projection of every row on the simplex over its arcs; rows without any become 0.

    x_j = (y_j - theta)^+ with sum_j x_j = 1. For every subset S of the arcs, theta is at least
    (sum_S y - 1) / |S|, and one of the subsets of largest entries attains it:

        theta = max_k (y_(1) + ... + y_(k) - 1) / k,   y_(1) >= y_(2) >= ...
    """
    y = torch.where(arcs, y, -torch.inf)
    lowest = torch.finfo(y.dtype).min
    y = y - y.amax(dim=-1, keepdim=True).clamp(min=lowest)  # a constant moves nothing
    sums = torch.sort(y, dim=-1, descending=True).values.cumsum(dim=-1)
    theta = ((sums - 1.0) / _counts(y.shape[-1], y.dtype, y.device)).amax(dim=-1, keepdim=True)
    return (y - theta.clamp(min=lowest)).clamp(min=0.0)


@lru_cache(maxsize=64)
def _counts(cells: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """1, 2, ... cells, kept: so no tensor of inference mode, which no gradient could pass."""
    with torch.inference_mode(False):
        return torch.arange(1, cells + 1, dtype=dtype, device=device)


def tangent(x: Tensor, z: Tensor, arcs: Tensor) -> Tensor:
    """Projection v of z on the tangent cone of the simplex at x, every row by itself.

    nu is the largest mean of z over the used arcs and any number of the unused of largest z.

    Args:
        x: On the simplex over the arcs, (..., cells).
        z: Any, of that shape.
        arcs: Boolean, of that shape.
    """
    used = x > 0.0
    unused = torch.where(arcs & ~used, z, -torch.inf)
    best = torch.sort(unused, dim=-1, descending=True).values
    first = torch.where(used, z, 0.0).sum(dim=-1, keepdim=True)
    sums = torch.cat((first, first + best.cumsum(dim=-1)), dim=-1)
    count = used.sum(dim=-1, keepdim=True) + torch.arange(x.shape[-1] + 1, device=x.device)
    nu = (sums / count.clamp(min=1)).amax(dim=-1, keepdim=True)
    moved = torch.where(used, z - nu, (unused - nu).clamp(min=0.0))
    return torch.where(arcs, moved, 0.0)
