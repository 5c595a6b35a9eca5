"""The latency curve that fits points best, given a prior: what the estimator solves.

With the parameters p of `estimator`, b and u as there, c = 1 - knee b / RHO_MAX, sigma and h(u) as
in `latency_model`, and d = n beta sigma(u), the curve has the derivatives

    dl/dp = j = (l, d, c (l - alpha - d), beta smoothing h(u)),

and with v = n / smoothing and q = beta smoothing sigma(u) sigma(-u) the second derivatives

    j_0   j_1          j_2                        j_3
    .     j_1 + q v^2  -c q v^2                   -q u v
    .     .            (2 c - 1) j_2 + c^2 q v^2  c (j_3 + q u v)
    .     .            .                          j_3 + q u^2.

**Minimisation.** Newton's steps within `LOWEST` and `HIGHEST`, by a Cholesky factor of the cost's
second derivatives; where those are not positive definite, without the curvature of l (the step of
Gauss and Newton, whose matrix is so by the prior). A step that brings too little is halved. The
steps of Gauss and Newton alone would shrink by a factor only, larger the worse a curve fits, and
beyond 1 where latency falls with load; with the curvature of l they shrink quadratically.

Arithmetic is that of scalars in a fixed order: the same bits compiled or not.
"""

from __future__ import annotations

import math

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import FloatArray

RHO_MAX = 0.9  # `latency_model.RHO_MAX`, which kernels cannot import; a test holds them equal

PARAMETERS = 4
LOWEST = (-14.0, -10.0, -4.0, -4.0)
HIGHEST = (14.0, 5.0, 4.0, 2.0)
"""Bounds of p: alpha from 1 us to two weeks, beta from alpha / 22,000 to 148 alpha, knee from 1.8 %
to 98.2 % of its largest, smoothing from 1.8 % of the knee to 7 knees. The third keeps a prior on
the constraint (an ideal server's) off the logistic's flat end, from which no sample could move it.
"""

TOLERANCE, CLOSE = 1e-12, 1e-3
"""A fit ends with a step that promises a decrease below this part of 1 + cost, and is this short.

Such a step is taken unseen: what it leaves is of the order of the square of what it promised.
"""
MAX_ITERATIONS = 200
"""Hardly ever reached: by fits of a narrow, curved valley, where steps are short."""
MOST_STEP = 1.0
"""Largest change of a parameter in a step: derivatives say nothing of e-fold changes."""
POOR_SHARE = 0.25
"""Part of the promised decrease below which the next step is halved."""
BEYOND = 1.0 + 1e-15
"""Factor on the way to a bound, so that what should end there does not end an ulp before it."""
LEAST_PIVOT = 1e-14
"""Part of a diagonal element that a Cholesky pivot keeps, whatever rounding has left of it."""

POINTS = 64
"""Most points of a fit."""

# Rows of scratch memory: points, two systems, a factor, step, free ones, trial. Rows of a system:
# the cost's second derivatives without the curvature of l, what that adds (lower triangles of both)
# and the gradient, all of them halved.
_CURVATURE, _GRADIENT = PARAMETERS, 2 * PARAMETERS
_SYSTEM_ROWS = _GRADIENT + 1
_HERE = POINTS
_THERE = _HERE + _SYSTEM_ROWS
_FACTOR = _THERE + _SYSTEM_ROWS
_STEP, _FREE, _TRIAL = range(_FACTOR + PARAMETERS, _FACTOR + PARAMETERS + 3)
SCRATCH_ROWS, SCRATCH_COLUMNS = _TRIAL + 1, PARAMETERS
N, LATENCY, PRECISION = range(3)
"""Columns of a point."""


@part
def _expand(
    points: FloatArray,
    used: int,
    prior: FloatArray,
    prior_sd: float,
    p: FloatArray,
    system: FloatArray,
) -> float:
    """Cost at p; its derivatives there go into the system."""
    alpha_s = math.exp(p[0])
    tightness = 1.0 / (1.0 + math.exp(-p[2]))
    slack = 1.0 - tightness
    sharpness = math.exp(-p[3])
    relative_slope = math.exp(p[1])
    beta_s = alpha_s * relative_slope
    smoothing = RHO_MAX * tightness / (relative_slope * sharpness)
    bend_s = beta_s * smoothing
    cost = g0 = g1 = g2 = g3 = 0.0
    h00 = h10 = h11 = h20 = h21 = h22 = h30 = h31 = h32 = h33 = 0.0
    qvv = quv = quu = 0.0
    for b in range(used):
        n = points[b, N]
        precision = points[b, PRECISION]
        v = n / smoothing
        u = v - sharpness
        size = abs(u)
        fading = math.exp(-size)
        tail = math.log1p(fading)
        major = 1.0 / (1.0 + fading)
        minor = fading * major
        rise_s = bend_s * (tail + max(u, 0.0))
        j0 = alpha_s + rise_s
        j1 = n * beta_s * (major if u > 0.0 else minor)
        j2 = slack * (rise_s - j1)
        j3 = bend_s * (tail + size * minor)
        residual = j0 - points[b, LATENCY]
        weighted = precision * residual
        cost += weighted * residual
        g0 += weighted * j0
        g1 += weighted * j1
        g2 += weighted * j2
        g3 += weighted * j3
        w0 = precision * j0
        w1 = precision * j1
        w2 = precision * j2
        h00 += w0 * j0
        h10 += w0 * j1
        h20 += w0 * j2
        h30 += w0 * j3
        h11 += w1 * j1
        h21 += w1 * j2
        h31 += w1 * j3
        h22 += w2 * j2
        h32 += w2 * j3
        h33 += precision * j3 * j3
        q = weighted * bend_s * major * minor
        qvv += q * v * v
        quv += q * u * v
        quu += q * u * u
    system[0, 0], system[1, 0], system[2, 0], system[3, 0] = h00, h10, h20, h30
    system[1, 1], system[2, 1], system[3, 1] = h11, h21, h31
    system[2, 2], system[3, 2], system[3, 3] = h22, h32, h33
    curvature, gradient = system[_CURVATURE:], system[_GRADIENT]
    curvature[0, 0], curvature[1, 0], curvature[2, 0], curvature[3, 0] = g0, g1, g2, g3
    curvature[1, 1], curvature[2, 1], curvature[3, 1] = g1 + qvv, -slack * qvv, -quv
    curvature[2, 2] = (slack - tightness) * g2 + slack * slack * qvv
    curvature[3, 2], curvature[3, 3] = slack * (g3 + quv), g3 + quu
    gradient[0], gradient[1], gradient[2], gradient[3] = g0, g1, g2, g3
    ridge = 1.0 / (prior_sd * prior_sd)
    for k in range(PARAMETERS):
        away = p[k] - prior[k]
        cost += ridge * away * away
        gradient[k] += ridge * away
        system[k, k] += ridge
    return cost


@part
def _solve(scratch: FloatArray, curvature: float) -> bool:
    """The step down in the free parameters.

    Args:
        scratch: With the system here, and which parameters are free.
        curvature: 1 with the curvature of l, 0 without.

    Returns:
        Whether the second derivatives are positive definite, as they are without the curvature:
        there is no step if not.
    """
    system, factor = scratch[_HERE:], scratch[_FACTOR:]
    step, free = scratch[_STEP], scratch[_FREE]
    for i in range(PARAMETERS):
        rest = system[_GRADIENT, i] * free[i]
        diagonal = system[i, i] + curvature * free[i] * system[_CURVATURE + i, i]
        for j in range(i):
            element = system[i, j] + curvature * system[_CURVATURE + i, j]
            element *= free[i] * free[j]
            for k in range(j):
                element -= factor[i, k] * factor[j, k]
            element /= factor[j, j]
            factor[i, j] = element
            rest -= element * step[j]
            diagonal -= element * element
        least = LEAST_PIVOT * system[i, i]
        if diagonal < least and curvature > 0.0:
            return False
        factor[i, i] = math.sqrt(max(diagonal, least))
        step[i] = rest / factor[i, i]
    for i in range(PARAMETERS - 1, -1, -1):
        rest = step[i]
        for j in range(i + 1, PARAMETERS):
            rest -= factor[j, i] * step[j]
        step[i] = rest / factor[i, i]
    return True


@part
def _hold(scratch: FloatArray, p: FloatArray) -> bool:
    """Holds the free parameters that the step takes across a bound close by; are there any?"""
    step, free = scratch[_STEP], scratch[_FREE]
    found = False
    for k in range(PARAMETERS):
        end = p[k] - step[k]
        below = end < LOWEST[k] and p[k] - LOWEST[k] <= CLOSE
        above = end > HIGHEST[k] and HIGHEST[k] - p[k] <= CLOSE
        if free[k] > 0.0 and (below or above):
            free[k] = 0.0
            found = True
    return found


@part
def _aim(scratch: FloatArray, p: FloatArray) -> float:
    """The step down from p; what it promises: g'd for a step d, with half the cost's gradient g.

    The whole step brings as much, if the cost is quadratic, and a small part s of it 2 s g'd.
    Parameters that bounds hold go there if that is down, and nowhere if not.
    """
    step, free, gradient = scratch[_STEP], scratch[_FREE], scratch[_HERE + _GRADIENT]
    for k in range(PARAMETERS):
        slope = gradient[k]
        held = (p[k] <= LOWEST[k] and slope > 0.0) or (p[k] >= HIGHEST[k] and slope < 0.0)
        free[k] = 0.0 if held else 1.0
    curvature = 1.0
    looking = True
    while looking:
        if _solve(scratch, curvature):
            looking = _hold(scratch, p)
        else:
            curvature = 0.0
    promise = 0.0
    for k in range(PARAMETERS):
        if free[k] == 0.0:
            way = p[k] - (LOWEST[k] if gradient[k] > 0.0 else HIGHEST[k])
            step[k] = way if abs(way) <= CLOSE else 0.0
        promise += gradient[k] * step[k]
    return promise


@part
def _length(step: FloatArray) -> float:
    """Largest change of a parameter."""
    longest = 0.0
    for k in range(PARAMETERS):
        longest = max(longest, abs(step[k]))
    return longest


@part
def _room(p: FloatArray, step: FloatArray) -> float:
    """The part of the step from p, or its multiple, that ends at the first bound."""
    room = math.inf
    for k in range(PARAMETERS):
        if step[k] > 0.0:
            room = min(room, (p[k] - LOWEST[k]) / step[k] * BEYOND)
        elif step[k] < 0.0:
            room = min(room, (p[k] - HIGHEST[k]) / step[k] * BEYOND)
    return room


@part
def _go(p: FloatArray, step: FloatArray, share: float, out: FloatArray) -> None:
    """Where a part of the step down from p leads."""
    for k in range(PARAMETERS):
        out[k] = min(max(p[k] - share * step[k], LOWEST[k]), HIGHEST[k])


@part
def _try(
    scratch: FloatArray, used: int, prior: FloatArray, prior_sd: float, cost: float, p: FloatArray
) -> float:
    """Moves p and its system to the trial if that costs less; the lower cost."""
    trial = scratch[_TRIAL]
    trial_cost = _expand(scratch, used, prior, prior_sd, trial, scratch[_THERE:])
    if trial_cost >= cost:
        return cost
    for k in range(PARAMETERS):
        p[k] = trial[k]
        for row in range(_SYSTEM_ROWS):
            scratch[_HERE + row, k] = scratch[_THERE + row, k]
    return trial_cost


@part
def minimise(
    scratch: FloatArray,
    used: int,
    prior: FloatArray,
    prior_sd: float,
    start: FloatArray,
    out: FloatArray,
) -> int:
    """Fits the parameters to points, from the better of `start` and the prior.

    Args:
        scratch: At least (SCRATCH_ROWS, SCRATCH_COLUMNS); its first rows are the points, with
            columns `N`, `LATENCY` and `PRECISION`, and the others are overwritten.
        used: How many points there are; without any `out` is the prior.
        prior: (4,) what the parameters are expected to be, within the bounds.
        prior_sd: Standard deviation of the prior, the same for all parameters, > 0.
        start: (4,) finite.
        out: (4,) receives the parameters; none of the arrays above.

    Returns:
        Iterations taken: 0 without points.
    """
    for k in range(PARAMETERS):
        out[k] = prior[k]
    if used == 0:
        return 0
    cost = _expand(scratch, used, prior, prior_sd, out, scratch[_HERE:])
    for k in range(PARAMETERS):
        scratch[_TRIAL, k] = min(max(start[k], LOWEST[k]), HIGHEST[k])
    cost = _try(scratch, used, prior, prior_sd, cost, out)
    step, most = scratch[_STEP], 1.0
    for iteration in range(1, MAX_ITERATIONS + 1):
        promise = _aim(scratch, out)
        length = _length(step)
        if promise <= TOLERANCE * (1.0 + cost) and length <= CLOSE:
            _go(out, step, 1.0, out)
            return iteration
        share = min(most, MOST_STEP / length, _room(out, step))
        _go(out, step, share, scratch[_TRIAL])
        before = cost
        cost = _try(scratch, used, prior, prior_sd, cost, out)
        most = share / 2 if before - cost < POOR_SHARE * share * promise else min(2 * most, 1.0)
    return MAX_ITERATIONS
