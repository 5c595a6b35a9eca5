"""How fast cells work when so many requests are in them: mu_j(N), and the costs that follow.

With N requests in flight, l(N) the serving latency and k_j servers (paper 3.2.3, theory.md 2, 3):

    mu(N) = N / l(N)                                  rate, 1/s
    rif        f = N / k            f' = 1 / k
    latency    f = l                f' = l'
    gradient   f = 1 / mu'(N)       f' = -mu'' / mu'^2

A cost c_ij = f_j(N_j) + g_ij adds what the network takes, g_ij = 2 tau_ij, but for rif.

`SoftplusCells` is the paper's curve, k servers of a `LatencyModel`; `textbook_curves` has others.

Everything is elementwise: arrays of numpy, or of torch with `xp=torch` (never imported here).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, TypeAlias, get_args

import numpy as np

from dlb_gym.latency_model import LatencyModel, OperatingPoint
from dlb_gym.messages import COUNTED, Names

Array: TypeAlias = Any
"""numpy array, or a torch tensor where `xp` is torch."""

Cost = Literal["rif", "latency", "gradient"]
COSTS: tuple[Cost, ...] = get_args(Cost)

BISECTIONS = 200
NEWTON_STEPS = 100


class ServicePoint(Protocol):
    """Cells with N requests in flight. Slopes are derivatives with respect to N."""

    @property
    def rif(self) -> Array:
        """N."""

    @property
    def rate_rps(self) -> Array:
        """mu(N)."""

    @property
    def rate_slope(self) -> Array:
        """mu'(N), 1/s."""

    @property
    def latency_s(self) -> Array:
        """l(N)."""

    @property
    def latency_slope(self) -> Array:
        """l'(N), seconds a request."""

    @property
    def marginal_s(self) -> Array:
        """1 / mu'(N)."""

    @property
    def marginal_slope(self) -> Array:
        """Derivative of 1 / mu'(N), seconds a request."""


class ServiceCurves(Protocol):
    """Curves of cells, parameters of one shape (..., cells)."""

    @property
    def xp(self) -> Any:
        """Array namespace, `numpy` or `torch`."""

    @property
    def servers(self) -> Array:
        """k, the unit of the rif cost."""

    @property
    def capacity_rps(self) -> Array:
        """The least upper bound of mu."""

    @property
    def turning_rif(self) -> Array:
        """N from which mu stops to increase; infinite where it never does."""

    def at(self, rif: Array) -> ServicePoint:
        """The curves at N >= 0 requests in flight."""

    def rif_at(self, rate_rps: Array) -> Array:
        """The least N with mu(N) = rate, for rates below capacity."""

    def mapped(self, function: Callable[[Array], Array], xp: Any) -> Self:
        """The same curves with `function` applied to all parameters."""


def require_cost(name: str) -> Cost:
    """The name of a cost.

    Raises:
        ValueError: There is no such cost.
    """
    for known in COSTS:
        if name == known:
            return known
    raise ValueError(f"cost = {name!r} must be one of {', '.join(COSTS)}")


def cell_cost(point: ServicePoint, cost: Cost, servers: Array) -> Array:
    """f_j(N_j)."""
    if cost == "rif":
        return point.rif / servers
    return point.latency_s if cost == "latency" else point.marginal_s


def cell_cost_slope(point: ServicePoint, cost: Cost, servers: Array) -> Array:
    """f_j'(N_j)."""
    if cost == "rif":
        return 1.0 / servers + 0.0 * point.rif
    return point.latency_slope if cost == "latency" else point.marginal_slope


@dataclass(frozen=True)
class _SoftplusPoint:
    """`ServicePoint` of servers that work at `each`."""

    rif: Array
    servers: Array
    each: OperatingPoint

    @property
    def rate_rps(self) -> Array:
        return self.rif / self.each.latency

    @property
    def rate_slope(self) -> Array:
        return self.each.rate_slope

    @property
    def latency_s(self) -> Array:
        return self.each.latency

    @property
    def latency_slope(self) -> Array:
        return self.each.latency_slope / self.servers

    @property
    def marginal_s(self) -> Array:
        return self.each.marginal_latency

    @property
    def marginal_slope(self) -> Array:
        return self.each.marginal_slope / self.servers


@dataclass(frozen=True)
class SoftplusCells:
    """k servers of a latency model each: mu(N) = N / l(N / k).

    Attributes:
        servers: k, > 0.
        model: Of one server, seconds; its `xp` is that of the curves.
    """

    servers: Array
    model: LatencyModel

    @property
    def xp(self) -> Any:
        """Array namespace."""
        return self.model.xp

    @property
    def capacity_rps(self) -> Array:
        """Least upper bound: k / beta, or the peak where mu turns."""
        turning = self.turning_rif
        turns = self.xp.isfinite(turning)
        peak = self.at(self.xp.where(turns, turning, self.xp.zeros_like(turning))).rate_rps
        return self.xp.where(turns, peak, self.servers / self.model.beta)

    @property
    def turning_rif(self) -> Array:
        """Where the headroom H(n) ends; it falls towards alpha - beta n0 (see `latency_model`)."""
        xp, model = self.xp, self.model
        zero = xp.zeros_like(model.alpha + self.servers)
        ends = model.alpha - model.beta * model.knee + zero < 0
        if not bool(ends.any()):
            return zero + float("inf")
        high = model.knee + model.smoothing + zero
        while bool((ends & (model.at(high).headroom > 0)).any()):
            high = 2 * high
        low = zero
        for _ in range(BISECTIONS if bool(ends.any()) else 0):
            middle = 0.5 * (low + high)
            rises = model.at(middle).headroom > 0
            low, high = xp.where(rises, middle, low), xp.where(rises, high, middle)
        return xp.where(ends, self.servers * low, zero + float("inf"))

    def at(self, rif: Array) -> _SoftplusPoint:
        """The curves at N >= 0."""
        return _SoftplusPoint(rif, self.servers, self.model.at(rif / self.servers))

    def rif_at(self, rate_rps: Array) -> Array:
        """N of a rate below capacity.

        n - q l(n), q the rate per server, is concave and rises as long as q l' < 1, which holds
        from n = 0 to its first root: Newton's steps from 0 come from below and never pass it.
        """
        rate = rate_rps / self.servers
        n = self.xp.zeros_like(rate + self.model.alpha)
        rounding = 4.0 * float(self.xp.finfo(n.dtype).eps)
        for _ in range(NEWTON_STEPS):
            point = self.model.at(n)
            missing = rate * point.latency - n
            n = n + missing / (1.0 - rate * point.latency_slope)
            if bool((abs(missing) <= rounding * n).all()):
                break
        return self.servers * n

    def mapped(self, function: Callable[[Array], Array], xp: Any) -> Self:
        """The same curves with `function` applied to all parameters."""
        keys = ("alpha", "beta", "knee", "smoothing")
        parts = {key: function(getattr(self.model, key)) for key in keys}
        return replace(self, servers=function(self.servers), model=LatencyModel(**parts, xp=xp))

    def slowed(self, speed: Array) -> Self:
        """The same servers, each at `speed` times its speed."""
        model = self.model
        slow = replace(model, alpha=model.alpha / speed, beta=model.beta / speed)
        return replace(self, model=slow)


def check_increasing(curves: ServiceCurves, names: Names = COUNTED) -> None:
    """Refuses curves that stop to increase; `names` is what the message calls the cells.

    Raises:
        ValueError: Names the cell and the RIF.
    """
    turning = np.asarray(curves.turning_rif)
    for place in np.argwhere(np.isfinite(turning))[:1]:
        rif = float(turning[tuple(place)])
        raise ValueError(
            f"{names.prefix}the service curve of cell {names.cell(int(place[-1]))} stops to "
            f"increase at N = {rif:.6g} requests in flight, so theory promises nothing "
            "(assumption 1); raise alpha above beta x knee, or pass allow_nonmonotone=True to "
            "study its dynamics alone"
        )
