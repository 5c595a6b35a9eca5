"""The leaf's online latency model: binned samples that fade, a constrained fit, the fleet's prior.

Sample: a request that was served, with n = RIF per live server when it came to the leaf and
y = its serving latency. Samples fall into B bins over n, each with decayed sums

    [W, sum w n, sum w y, sum w y^2],    w = e^-(t - t_done) / memory,

so a fit costs the same however many samples there were. With n_b and y_b a bin's means, the
parameters p minimise (theory.md section 5)

    sum_b W_b (y_b - l(n_b; p))^2 / s2  +  sum_k ((p_k - prior_k) / prior_sd)^2:

a Gaussian prior, which rules where there are few samples and alone where there are none.

**Parameters.** With b = beta / alpha and u = (n - knee) / smoothing, l = alpha + beta smoothing
log(1 + e^u) and

    p = (log alpha, log b, logit(knee b / RHO_MAX), log(smoothing / knee)),

so that every p is a model whose processing rate rises for ever (`latency_model.RHO_MAX`). Theory's
p has log beta in place of log b; the set of models is the same, but a prior on b says what is true
of cells: a slower one is slower past its knee as well, and bends at the same number of requests.
Samples that all lie below the knee then change alpha and leave b, knee and smoothing at the prior.
The Jacobian needs no further function: with sigma the logistic function, c = 1 - knee b / RHO_MAX,
h(u) = log(1 + e^-|u|) + |u| sigma(-|u|) as in `latency_model`, and d = n beta sigma(u),

    dl/dp = (l, d, c (l - alpha - d), beta smoothing h(u)).

**Variance.** s2 is the scatter within bins, pooled: sum_b S_b / sum_b (W_b - 1)+, S_b = sum w y^2 -
(sum w y)^2 / W_b. One variance for all bins, since the scatter of the simulated servers is that of
their requests' sizes: from an idle cell to an overloaded one the mean triples, the standard
deviation rises by a quarter. A bin of weights w <= 1 has W - sum w^2 / W degrees of freedom, at
least (W - 1)+: W - 1/2 in a steady stream, so s2 errs a little to the side of the prior. One more
degree of freedom is spent on a scatter of `USUAL_SCATTER` times the mean latency; it stands in for
a sample of few, and is the floor, so that equal latencies do not count as certain.

What theory asks for and this leaves out: the prior's covariance is diagonal with one standard
deviation, not the fleet's own, and the samples count as independent, though those of one backlog
are not.

**Minimisation.** Levenberg-Marquardt within `LOWEST` and `HIGHEST`, whose steps come from a
Cholesky factor of the damped normal equations, positive definite by the prior. A parameter at its
bound that the gradient would push out is held for the step. Arithmetic is that of scalars in a
fixed order: the same bits compiled or not.
"""

from __future__ import annotations

import math

import numpy as np

from dlb_gym.engine.compile import entry, part
from dlb_gym.engine.layout import FloatArray

RHO_MAX = 0.9  # `latency_model.RHO_MAX`, which kernels cannot import; a test holds them equal

PARAMETERS = 4
LOWEST = (-14.0, -10.0, -4.0, -4.0)
HIGHEST = (14.0, 5.0, 4.0, 2.0)
"""Bounds of p: alpha from 1 us to two weeks, beta from alpha / 22,000 to 148 alpha, knee from 1.8 %
to 98.2 % of its largest, smoothing from 1.8 % of the knee to 7 knees. The third keeps a prior that
sits on the constraint, as the curve of an ideal server does, off the logistic function's flat end,
from which no sample could move it."""

BINS = 64
BIN_COLUMNS = 4
WEIGHT, RIF_SUM, LATENCY_SUM, SQUARE_SUM = range(BIN_COLUMNS)

LEAST_WEIGHT = 1e-6
"""A bin counts as empty below this: one sample after 14 memories."""

MOST_MEMORIES = 300.0
"""Bound on the age of the reference in `note_sample`, so that no sum overflows however rare the
refits are; refits further apart than this lose their samples' order, not their finiteness."""

USUAL_SCATTER = 0.5
"""Standard deviation of latencies over their mean: what one degree of freedom says of it."""

LEAST_LATENCY_S = 1e-6
"""Mean latency below which scatter is no longer relative to it."""

TOLERANCE = 1e-10
"""A fit ends where its next step promises to lower 1 + cost by less than this part: 1e-5 standard
deviations of the posterior from the minimum, where the cost is small."""

MAX_ITERATIONS = 60
FIRST_DAMPING = 1e-3
LEAST_DAMPING = 1e-12
DAMPING_FACTOR = 10.0
LEAST_PIVOT = 1e-14
"""Part of a diagonal element that a Cholesky pivot keeps whatever rounding has left of it."""

HALF_WEIGHT_SAMPLES = 10.0
"""Effective samples at which a cell counts half as much as a fully observed one in the prior."""

# Rows of a fit's scratch memory: means of bins, two systems, a factor, a step, a trial.
_HERE = BINS
_THERE = _HERE + PARAMETERS + 1
_FACTOR = _THERE + PARAMETERS + 1
_STEP = _FACTOR + PARAMETERS
_TRIAL = _STEP + 1
SCRATCH_ROWS, SCRATCH_COLUMNS = _TRIAL + 1, PARAMETERS + 1
_GRADIENT = PARAMETERS  # row of a system after its matrix
_MEAN_N, _MEAN_S, _PRECISION = range(3)


@part
def note_sample(
    bins: FloatArray,
    now_s: float,
    reference_s: float,
    memory_s: float,
    queue_limit: int,
    n: float,
    latency_s: float,
) -> None:
    """Adds a sample with weight e^((now - reference) / memory): only refits need decay.

    Args:
        bins: (BINS, 4), equal parts of [0, queue limit]; the last one takes the rest.
        now_s: When the request was done.
        reference_s: The instant to which the sums are decayed, at most `now_s`.
        memory_s: Time in which a sample's weight falls to 1 / e.
        queue_limit: Most requests a server holds.
        n: RIF per live server when the request came to the leaf.
        latency_s: Serving latency.
    """
    weight = math.exp(min((now_s - reference_s) / memory_s, MOST_MEMORIES))
    b = min(int(n * BINS / queue_limit), BINS - 1)
    bins[b, WEIGHT] += weight
    bins[b, RIF_SUM] += weight * n
    bins[b, LATENCY_SUM] += weight * latency_s
    bins[b, SQUARE_SUM] += weight * latency_s * latency_s


@part
def decay(bins: FloatArray, elapsed_s: float, memory_s: float) -> None:
    """Moves the reference of the sums on by `elapsed_s`."""
    factor = math.exp(-elapsed_s / memory_s)
    for b in range(BINS):
        for column in range(BIN_COLUMNS):
            bins[b, column] *= factor


@part
def effective_samples(bins: FloatArray) -> float:
    """Sum of the weights, seen from the reference: 1 a sample that came there and then."""
    total = 0.0
    for b in range(BINS):
        total += bins[b, WEIGHT]
    return total


@part
def _summarise(bins: FloatArray, means: FloatArray) -> int:
    """Means n_b, y_b and precisions W_b / s2 of the bins with samples; how many there are."""
    used = 0
    samples = 0.0
    latency_sum_s = 0.0
    scatter = 0.0
    freedom = 0.0
    for b in range(BINS):
        weight = bins[b, WEIGHT]
        if weight < LEAST_WEIGHT:
            continue
        mean_s = bins[b, LATENCY_SUM] / weight
        means[used, _MEAN_N] = bins[b, RIF_SUM] / weight
        means[used, _MEAN_S] = mean_s
        means[used, _PRECISION] = weight
        used += 1
        samples += weight
        latency_sum_s += bins[b, LATENCY_SUM]
        scatter += max(bins[b, SQUARE_SUM] - bins[b, LATENCY_SUM] * mean_s, 0.0)
        freedom += max(weight - 1.0, 0.0)
    if used > 0:
        usual_s = USUAL_SCATTER * max(latency_sum_s / samples, LEAST_LATENCY_S)
        precision = (1.0 + freedom) / (usual_s * usual_s + scatter)
        for b in range(used):
            means[b, _PRECISION] *= precision
    return used


@part
def _linearise(
    means: FloatArray,
    used: int,
    prior: FloatArray,
    prior_sd: float,
    p: FloatArray,
    system: FloatArray,
) -> float:
    """Cost at p; J'WJ in rows 0 to 3 of the system (lower triangle), J'Wr in row 4."""
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
    for b in range(used):
        n = means[b, _MEAN_N]
        precision = means[b, _PRECISION]
        u = n / smoothing - sharpness
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
        residual = j0 - means[b, _MEAN_S]
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
    system[0, 0], system[1, 0], system[2, 0], system[3, 0] = h00, h10, h20, h30
    system[1, 1], system[2, 1], system[3, 1] = h11, h21, h31
    system[2, 2], system[3, 2], system[3, 3] = h22, h32, h33
    system[4, 0], system[4, 1], system[4, 2], system[4, 3] = g0, g1, g2, g3
    ridge = 1.0 / (prior_sd * prior_sd)
    for k in range(PARAMETERS):
        away = p[k] - prior[k]
        cost += ridge * away * away
        system[_GRADIENT, k] += ridge * away
        system[k, k] += ridge
    return cost


@part
def _solve(
    system: FloatArray, damping: float, p: FloatArray, factor: FloatArray, step: FloatArray
) -> float:
    """The step down from p of the damped system; returns the decrease it promises, undamped.

    The gradient g is half the cost's, so a step d = -M^-1 g promises -g'd, M positive definite.
    """
    for i in range(PARAMETERS):
        gradient = system[_GRADIENT, i]
        held = (p[i] <= LOWEST[i] and gradient > 0.0) or (p[i] >= HIGHEST[i] and gradient < 0.0)
        step[i] = 0.0 if held else -gradient
        diagonal = system[i, i] * (1.0 + damping)
        rest = diagonal
        for j in range(i):
            # A held parameter has an empty row and column: the others are solved without it.
            element = 0.0 if held or factor[j, PARAMETERS] != 0.0 else system[i, j]
            for k in range(j):
                element -= factor[i, k] * factor[j, k]
            factor[i, j] = element / factor[j, j]
            rest -= factor[i, j] * factor[i, j]
        factor[i, PARAMETERS] = 1.0 if held else 0.0
        factor[i, i] = math.sqrt(max(rest, LEAST_PIVOT * diagonal))
    for i in range(PARAMETERS):
        for k in range(i):
            step[i] -= factor[i, k] * step[k]
        step[i] /= factor[i, i]
    promised = 0.0
    for backward in range(PARAMETERS):
        i = PARAMETERS - 1 - backward
        for k in range(i + 1, PARAMETERS):
            step[i] -= factor[k, i] * step[k]
        step[i] /= factor[i, i]
        promised -= step[i] * system[_GRADIENT, i]
    return promised


@part
def fit(
    bins: FloatArray,
    prior: FloatArray,
    prior_sd: float,
    start: FloatArray,
    out: FloatArray,
    scratch: FloatArray,
) -> int:
    """The most likely parameters, given samples and prior.

    Args:
        bins: (BINS, 4) samples, decayed to now.
        prior: (4,) their expected values.
        prior_sd: The prior's standard deviation, the same for all.
        start: (4,) where to begin: the last fit.
        out: (4,) receives the parameters; exactly the prior where there is no sample.
        scratch: (SCRATCH_ROWS, SCRATCH_COLUMNS), overwritten.

    Returns:
        Iterations.
    """
    used = _summarise(bins, scratch)
    for k in range(PARAMETERS):
        origin = start[k] if used > 0 else prior[k]
        out[k] = min(max(origin, LOWEST[k]), HIGHEST[k])
    if used == 0:
        return 0
    here, there = scratch[_HERE:_THERE], scratch[_THERE:_FACTOR]
    factor, step, trial = scratch[_FACTOR:_STEP], scratch[_STEP], scratch[_TRIAL]
    cost = _linearise(scratch, used, prior, prior_sd, out, here)
    damping = FIRST_DAMPING
    for iteration in range(MAX_ITERATIONS):
        promised = _solve(here, damping, out, factor, step)
        if promised <= TOLERANCE * (1.0 + cost):
            return iteration
        for k in range(PARAMETERS):
            trial[k] = min(max(out[k] + step[k], LOWEST[k]), HIGHEST[k])
        trial_cost = _linearise(scratch, used, prior, prior_sd, trial, there)
        if trial_cost < cost:
            cost = trial_cost
            for k in range(PARAMETERS):
                out[k] = trial[k]
                for row in range(PARAMETERS + 1):
                    here[row, k] = there[row, k]
            damping = max(damping / DAMPING_FACTOR, LEAST_DAMPING)
        else:
            damping *= DAMPING_FACTOR
    return MAX_ITERATIONS


@part
def to_model(p: FloatArray, out: FloatArray) -> None:
    """Writes alpha, beta, knee and smoothing of parameters p."""
    relative_slope = math.exp(p[1])
    out[0] = math.exp(p[0])
    out[1] = out[0] * relative_slope
    out[2] = RHO_MAX / (1.0 + math.exp(-p[2])) / relative_slope
    out[3] = math.exp(p[3]) * out[2]


@part
def fleet_prior(fits: FloatArray, samples: FloatArray, first: FloatArray, out: FloatArray) -> None:
    """What a cell's parameters are expected to be: the mean of the fleet's last round.

    A cell with S effective samples counts S / (S + HALF_WEIGHT_SAMPLES), and the first prior as one
    more cell. Theory asks for the inverse of each fit's covariance as its weight; this keeps what
    matters of it: no samples, no say.

    Args:
        fits: (C, 4) parameters of the last round.
        samples: (C,) effective samples behind them.
        first: (4,) the prior before anything was known.
        out: (4,) receives the prior.
    """
    total = 1.0
    for k in range(PARAMETERS):
        out[k] = first[k]
    for c in range(len(samples)):
        weight = samples[c] / (samples[c] + HALF_WEIGHT_SAMPLES)
        total += weight
        for k in range(PARAMETERS):
            out[k] += weight * fits[c, k]
    for k in range(PARAMETERS):
        out[k] /= total


def from_model(model: FloatArray) -> FloatArray:
    """Parameters (4,) of a model (alpha, beta, knee, smoothing); a knee beyond bounds moves in."""
    alpha, beta, knee, smoothing = (float(value) for value in model)
    tightness = min(max(knee * beta / alpha / RHO_MAX, 1e-9), 1.0 - 1e-9)
    p = np.array(
        [
            math.log(alpha),
            math.log(beta / alpha),
            math.log(tightness / (1.0 - tightness)),
            math.log(smoothing / knee),
        ]
    )
    return np.asarray(np.clip(p, LOWEST, HIGHEST))


def model_of(p: FloatArray) -> FloatArray:
    """As `to_model`, outside the kernels."""
    relative_slope = math.exp(p[1])
    alpha = math.exp(p[0])
    knee = RHO_MAX / (1.0 + math.exp(-p[2])) / relative_slope
    return np.array([alpha, alpha * relative_slope, knee, math.exp(p[3]) * knee])


@entry
def fit_once(
    bins: FloatArray, prior: FloatArray, prior_sd: float, start: FloatArray, out: FloatArray
) -> int:
    """`fit` for whoever is outside the kernels (benchmarks, tests)."""
    return fit(bins, prior, prior_sd, start, out, np.zeros((SCRATCH_ROWS, SCRATCH_COLUMNS)))
