"""Softplus latency of a cell, its processing rate, its marginal latency and Flow's step size.

The paper (section 3.3) uses a softplus, flat and then linear, and gives no parameters. Ours is per
server (theory.md section 5), so it survives servers coming and going. With n = N / k requests in
flight per server, u = (n - n0) / s and σ the logistic function:

    l(n)   = alpha + beta s log(1 + e^u)       serving latency
    l'(n)  = beta σ(u)                         l''(n) = beta σ(u) σ(-u) / s
    m(n)   = n / l(n)                          processing rate per server (Little), below 1 / beta
    H(n)   = l - n l'                          headroom; m'(n) = H / l²
    f(n)   = 1 / m'(n) = l² / H                marginal latency, the gradient cost
    f'(n)  = l (n l l'' + 2 l' H) / H²

A cell of k servers has the rate mu(N) = k m(N / k), so mu'(N) = m'(n): latency and marginal latency
are the cell's own, while derivatives of them with respect to N are those here divided by k.

H is evaluated as alpha - beta n0 σ(u) + beta s h(u), h(u) = log(1 + e^-|u|) + |u| σ(-|u|) being the
entropy of a coin that shows heads with probability σ(u). No term cancels, however large n is, and
H >= alpha - beta n0 is plain to see.

Times may be in any one unit. Everything is elementwise: arrays of numpy, or of torch with
`xp=torch` (which this module never imports).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np

Array: TypeAlias = Any
"""numpy array, or a torch tensor where `xp` is torch."""

RHO_MAX = 0.9
"""Largest beta n0 / alpha.

The processing rate rises for ever iff alpha >= beta n0 (H falls towards alpha - beta n0). An ideal
server of K slots sits exactly there, so fits end on that boundary, where f grows like e^(n/s) past
the knee and one overloaded cell sends every root elsewhere at once. Below it, with
rho = beta n0 / alpha, f <= l² / ((1 - rho) alpha): quadratic, which is slow enough growth for the
paper's convergence theorem (assumption 3). theory.md section 5 asks for 0.9, at most 0.95.
"""

STEP_GAIN = 0.5
"""kappa_0 of the step rule: half of the gain at which a short loop starts to oscillate."""

STEP_MAX = 1e6
"""Bound on Flow's step where nothing in flight limits it; far beyond what moves a row fully."""


@dataclass(frozen=True)
class LatencyModel:
    """Four parameters a cell, all of one shape.

    Attributes:
        alpha: Latency of an almost empty server (time), > 0.
        beta: Latency that one more request per server adds past the knee (time), > 0.
        knee: n0, requests per server at the bend, >= 0.
        smoothing: s, width of the bend in requests per server, > 0.
        xp: Array namespace, `numpy` or `torch`.
    """

    alpha: Array
    beta: Array
    knee: Array
    smoothing: Array
    xp: Any = np

    def constrained(self, rho_max: float = RHO_MAX) -> Self:
        """The same model with its knee lowered to where beta n0 <= rho_max alpha."""
        knee = self.xp.minimum(self.knee, rho_max * self.alpha / self.beta)
        return replace(self, knee=knee)

    def at(self, n: Array) -> OperatingPoint:
        """The curves at n requests in flight per server.

        Args:
            n: At least 0, shape broadcast with the parameters.
        """
        return OperatingPoint(n, self)


@dataclass(frozen=True)
class OperatingPoint:
    """The curves of a latency model at n requests in flight per server, each worked out once.

    One exponential e^-|u| serves them all: nothing overflows, and softplus is exact in both limits.
    |u| is written by cases, so that torch's derivatives are right at the knee too.

    Attributes:
        n: Requests in flight per server.
        model: The model.
    """

    n: Array
    model: LatencyModel

    @cached_property
    def _u(self) -> Array:
        return (self.n - self.model.knee) / self.model.smoothing

    @cached_property
    def _beyond(self) -> Array:
        return self._u > 0

    @cached_property
    def _size(self) -> Array:
        """|u|."""
        return self.model.xp.where(self._beyond, self._u, -self._u)

    @cached_property
    def _decay(self) -> Array:
        """e^-|u|."""
        return self.model.xp.exp(-self._size)

    @cached_property
    def _tail(self) -> Array:
        """log(1 + e^-|u|)."""
        return self.model.xp.log1p(self._decay)

    @cached_property
    def _sides(self) -> tuple[Array, Array]:
        """The logistic function at |u| and at -|u|."""
        major = 1 / (1 + self._decay)
        return major, self._decay * major

    @cached_property
    def _logistic(self) -> Array:
        """The logistic function at u."""
        return self.model.xp.where(self._beyond, *self._sides)

    @cached_property
    def latency(self) -> Array:
        """l(n), time."""
        xp, model = self.model.xp, self.model
        positive = xp.where(self._beyond, self._u, xp.zeros_like(self._u))
        return model.alpha + model.beta * model.smoothing * (self._tail + positive)

    @property
    def latency_slope(self) -> Array:
        """l'(n), time per (request per server)."""
        return self.model.beta * self._logistic

    @property
    def latency_curvature(self) -> Array:
        """l''(n)."""
        major, minor = self._sides
        return self.model.beta / self.model.smoothing * major * minor

    @cached_property
    def headroom(self) -> Array:
        """H(n), time; falls from l(0) to alpha - beta n0."""
        model = self.model
        entropy = self._tail + self._size * self._sides[1]
        bend = model.beta * model.smoothing
        return model.alpha - model.beta * model.knee * self._logistic + bend * entropy

    @property
    def rate(self) -> Array:
        """m(n), requests per time and server."""
        return self.n / self.latency

    @property
    def rate_slope(self) -> Array:
        """m'(n) = mu'(N), per time."""
        return self.headroom / self.latency**2

    @property
    def marginal_latency(self) -> Array:
        """f(n) = 1 / mu'(N), time: what one more request per unit of time costs all (3.2.3)."""
        return self.latency**2 / self.headroom

    @property
    def marginal_slope(self) -> Array:
        """f'(n), time per (request per server)."""
        convexity = self.n * self.latency * self.latency_curvature
        slope = self.latency_slope * self.headroom
        return self.latency * (convexity + 2 * slope) / self.headroom**2


def step_size(
    *,
    servers: Array,
    rate: Array,
    rate_slope: Array,
    cost_slope: Array,
    loop_delay: Array,
    admissible: Array,
    xp: Any = np,
) -> Array:
    """Flow's step, theory.md section 3's working rule, for every root.

    With a_j = mu_j'(N_j), f_j' the derivative of cell j's cost with respect to N_j, T_i the mean
    loop delay of root i's arcs, and sum_j mu_j(N_j) in place of the offered rate (no policy needs
    to know arrivals):

        eta_i = kappa_0 min_j a_j / (f_j' T_i sum_j mu_j(N_j)).

    It is half the gain at which two equal cells behind one root begin to oscillate while the loop
    is short against the service. With f_j' = f'(n_j) / k_j and mu_j = k_j m(n_j),

        eta_i = kappa_0 min_j k_j m'(n_j) / (f'(n_j) T_i sum_j k_j m(n_j)):

    the scale of k cancels, so `servers` may be counts or fractions of the fleet. The unit of eta
    is 1 / (time x unit of the cost): with the control interval h in the same time, h eta cost is a
    pure number, a change of routing shares.

    The caller chooses where the slopes are taken: near the equilibrium to be kept stable.

    An empty fleet puts no bound on the step (no rate, no slope of the cost); then STEP_MAX does.
    Cells without a server carry nothing and bound nothing.

    Args:
        servers: k_j, shape (..., roots, cells), any unit.
        rate: m(n_j) per server, 1 / time.
        rate_slope: m'(n_j), 1 / time.
        cost_slope: Derivative of the cost with respect to n_j: 1 for RIF per server, l' or f'.
        loop_delay: Of each arc, time, > 0: one way there (tau), the age of the probe held (tau and
            what it waited since), half a control interval.
        admissible: Boolean; arcs. The other arguments need only be finite elsewhere.
        xp: Array namespace, `numpy` or `torch`.

    Returns:
        eta_i, shape (..., roots, 1), finite and > 0.
    """
    nothing = xp.zeros_like(rate)
    carried = _sum(xp.where(admissible, servers * rate, nothing))
    arcs = _sum(xp.where(admissible, xp.ones_like(rate), nothing))
    delay = _sum(xp.where(admissible, loop_delay, nothing)) / xp.clip(arcs, 1, None)
    serving = admissible & (servers > 0) & (rate_slope > 0)
    a = xp.where(serving, servers * rate_slope, xp.ones_like(rate))
    gain = xp.where(serving, cost_slope / a, nothing)
    inverse = xp.amax(gain, -1)[..., None] * carried * delay / STEP_GAIN
    return 1 / xp.clip(inverse, 1 / STEP_MAX, None)


def _sum(values: Array) -> Array:
    """Sum over cells from left to right: padding and batch size never change a bit."""
    return values.cumsum(-1)[..., -1:]
