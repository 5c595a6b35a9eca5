"""Service curves with closed forms, by which theory and simulation are checked.

    HyperbolicCells   mu(N) = m N / (N + K)
    PooledSlots       mu(N) = min(N, c) / S

Like `service_curves`, for arrays of numpy or torch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from dlb_gym.service_curves import Array


@dataclass(frozen=True)
class _HyperbolicPoint:
    """`ServicePoint` of `HyperbolicCells`."""

    rif: Array
    largest_rps: Array
    half_rif: Array

    @property
    def rate_rps(self) -> Array:
        return self.largest_rps * self.rif / (self.rif + self.half_rif)

    @property
    def rate_slope(self) -> Array:
        return self.largest_rps * self.half_rif / (self.rif + self.half_rif) ** 2

    @property
    def latency_s(self) -> Array:
        return (self.rif + self.half_rif) / self.largest_rps

    @property
    def latency_slope(self) -> Array:
        return 1.0 / self.largest_rps + 0.0 * self.rif

    @property
    def marginal_s(self) -> Array:
        return 1.0 / self.rate_slope

    @property
    def marginal_slope(self) -> Array:
        return 2.0 * (self.rif + self.half_rif) / (self.largest_rps * self.half_rif)


@dataclass(frozen=True)
class HyperbolicCells:
    """mu(N) = m N / (N + K), of concave, strictly increasing rate (theory.md section 3).

    Attributes:
        largest_rps: m, > 0.
        half_rif: K, > 0, where half of m is reached.
        servers: k, the unit of the rif cost.
        xp: Array namespace, `numpy` or `torch`.
    """

    largest_rps: Array
    half_rif: Array
    servers: Array
    xp: Any = np

    @property
    def capacity_rps(self) -> Array:
        """Largest rate m."""
        return self.largest_rps

    @property
    def turning_rif(self) -> Array:
        """Nowhere."""
        return self.xp.zeros_like(self.largest_rps) + float("inf")

    def at(self, rif: Array) -> _HyperbolicPoint:
        """The curves at N >= 0."""
        return _HyperbolicPoint(rif, self.largest_rps, self.half_rif)

    def rif_at(self, rate_rps: Array) -> Array:
        """N = z K / (m - z)."""
        return rate_rps * self.half_rif / (self.largest_rps - rate_rps)

    def mapped(self, function: Callable[[Array], Array], xp: Any) -> Self:
        """The same curves with `function` applied to all parameters."""
        parts = {key: function(getattr(self, key)) for key in ("largest_rps", "half_rif")}
        return replace(self, servers=function(self.servers), xp=xp, **parts)


@dataclass(frozen=True)
class _PooledPoint:
    """`ServicePoint` of `PooledSlots`."""

    rif: Array
    slots: Array
    service_s: Array
    xp: Any

    @property
    def rate_rps(self) -> Array:
        return self.xp.minimum(self.rif, self.slots) / self.service_s

    @property
    def rate_slope(self) -> Array:
        nothing = self.xp.zeros_like(self.rif + self.slots)
        return self.xp.where(self.rif < self.slots, 1.0 / self.service_s, nothing)

    @property
    def latency_s(self) -> Array:
        return self.service_s * self.xp.maximum(
            self.rif / self.slots, self.xp.ones_like(self.rif / self.slots)
        )

    @property
    def latency_slope(self) -> Array:
        nothing = self.xp.zeros_like(self.rif + self.slots)
        return self.xp.where(self.rif < self.slots, nothing, self.service_s / self.slots)

    @property
    def marginal_s(self) -> Array:
        endless = self.xp.zeros_like(self.rif + self.slots) + float("inf")
        return self.xp.where(self.rif < self.slots, self.service_s, endless)

    @property
    def marginal_slope(self) -> Array:
        return self.xp.zeros_like(self.rif + self.slots)


@dataclass(frozen=True)
class PooledSlots:
    """mu(N) = min(N, c) / S: c slots that share one queue, each serving a request in S on average.

    It is the limit of c k exponential servers under k-fold arrivals (Kurtz 1970). Past c it is
    flat, so nothing is promised about its equilibria.

    Attributes:
        slots: c, > 0; also the unit of the rif cost.
        service_s: S, > 0.
        xp: Array namespace, `numpy` or `torch`.
    """

    slots: Array
    service_s: Array
    xp: Any = np

    @property
    def servers(self) -> Array:
        """Slots c."""
        return self.slots

    @property
    def capacity_rps(self) -> Array:
        """All slots busy: c / S."""
        return self.slots / self.service_s

    @property
    def turning_rif(self) -> Array:
        """Slots c: all busy from there on."""
        return self.slots

    def at(self, rif: Array) -> _PooledPoint:
        """The curves at N >= 0."""
        return _PooledPoint(rif, self.slots, self.service_s, self.xp)

    def rif_at(self, rate_rps: Array) -> Array:
        """N = z S."""
        return rate_rps * self.service_s

    def mapped(self, function: Callable[[Array], Array], xp: Any) -> Self:
        """The same curves with `function` applied to all parameters."""
        return replace(self, slots=function(self.slots), service_s=function(self.service_s), xp=xp)
