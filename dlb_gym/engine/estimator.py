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

so that the processing rate rises for ever, whatever p (`latency_model.RHO_MAX`). Theory has log
beta for log b: the same models, but a prior on b says what is true of cells, that a slower one is
slower past its knee as well and bends at the same number of requests. Samples that all lie below
the knee then change alpha and leave b, knee and smoothing at the prior. With c = 1 - knee b /
RHO_MAX, sigma and h(u) as in `latency_model`, and d = n beta sigma(u), the Jacobian is

    dl/dp = (l, d, c (l - alpha - d), beta smoothing h(u)).

**Variance.** s2 is the scatter within bins, pooled: sum_b S_b / sum_b (W_b - 1)+, S_b = sum w y^2 -
(sum w y)^2 / W_b. One variance for all bins, since the scatter is that of the requests' sizes: from
an idle simulated cell to an overloaded one the mean triples, the standard deviation rises by a
quarter. A bin of weights w <= 1 has W - sum w^2 / W degrees of freedom, at least (W - 1)+; W - 1/2
in a steady stream, so s2 errs a little to the side of the prior. One more degree of freedom counts
a scatter of `USUAL_SCATTER` times the mean latency, which stands in where samples are few and is
the floor: equal latencies do not count as certain.

Left out of what theory asks: the prior has one standard deviation in place of the fleet's
covariance, and samples count as independent, though those of one backlog are not.

**Minimisation.** Levenberg-Marquardt within `LOWEST` and `HIGHEST`, its steps by a Cholesky factor
of the damped normal equations, positive definite by the prior. Arithmetic is that of scalars in a
fixed order: the same bits compiled or not.
"""

from __future__ import annotations

import math

import numpy as np

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

BINS, BIN_COLUMNS = 64, 4
WEIGHT, RIF_SUM, LATENCY_SUM, SQUARE_SUM = range(BIN_COLUMNS)

MOST_MEMORIES = 300.0
"""Bound on the age of a reference: no sum overflows, however rare the refits."""
LEAST_WEIGHT = 1e-6
"""A bin counts as empty below this: one sample after 14 memories."""
USUAL_SCATTER = 0.5
"""Standard deviation of latencies over their mean: what one degree of freedom says of it."""
HALF_WEIGHT_SAMPLES = 10.0
"""Effective samples at which a cell counts half as much in the prior as one that is well known."""

TOLERANCE = 1e-10
"""A fit ends with a step that promises a decrease below this part of 1 + cost."""
MAX_ITERATIONS = 60
MOST_STEP = 1.0
"""Largest change of a parameter in a step: a linearisation says nothing of e-fold changes."""
FIRST_DAMPING, LEAST_DAMPING, DAMPING_FACTOR = 1e-3, 1e-12, 10.0
GOOD_SHARE, POOR_SHARE = 0.75, 0.25
"""Parts of the promised decrease above which damping falls and below which it rises."""
LEAST_PIVOT = 1e-14
"""Part of a diagonal element that a Cholesky pivot keeps, whatever rounding has left of it."""

# Rows of scratch memory: means, two systems (matrix, gradient), a factor, step, free ones, trial.
_HERE = BINS
_THERE = _HERE + PARAMETERS + 1
_FACTOR = _THERE + PARAMETERS + 1
_STEP, _FREE, _TRIAL = range(_FACTOR + PARAMETERS, _FACTOR + PARAMETERS + 3)
SCRATCH_ROWS, SCRATCH_COLUMNS = _TRIAL + 1, PARAMETERS
_GRADIENT = PARAMETERS
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
    samples = latency_sum_s = scatter = freedom = 0.0
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
        usual_s = USUAL_SCATTER * max(latency_sum_s / samples, math.exp(LOWEST[0]))
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
def _solve(scratch: FloatArray, damping: float, p: FloatArray) -> None:
    """The step down from p of the damped system; a parameter that its bound holds is left out."""
    system, factor = scratch[_HERE:], scratch[_FACTOR:]
    step, free = scratch[_STEP], scratch[_FREE]
    for i in range(PARAMETERS):
        slope = system[_GRADIENT, i]
        held = (p[i] <= LOWEST[i] and slope > 0.0) or (p[i] >= HIGHEST[i] and slope < 0.0)
        free[i] = 0.0 if held else 1.0
    for i in range(PARAMETERS):
        rest = system[_GRADIENT, i] * free[i]
        diagonal = system[i, i] * (1.0 + damping)
        for j in range(i):
            element = system[i, j] * free[i] * free[j]
            for k in range(j):
                element -= factor[i, k] * factor[j, k]
            element /= factor[j, j]
            factor[i, j] = element
            rest -= element * step[j]
            diagonal -= element * element
        factor[i, i] = math.sqrt(max(diagonal, LEAST_PIVOT * system[i, i]))
        step[i] = rest / factor[i, i]
    for i in range(PARAMETERS - 1, -1, -1):
        rest = step[i]
        for j in range(i + 1, PARAMETERS):
            rest -= factor[j, i] * step[j]
        step[i] = rest / factor[i, i]


@part
def _propose(scratch: FloatArray, damping: float, p: FloatArray) -> float:
    """Makes p's next trial; returns the decrease of cost that it promises.

    The gradient g is half the cost's: a step d promises g'd, or up to twice that if damped.
    """
    _solve(scratch, damping, p)
    longest = MOST_STEP
    for k in range(PARAMETERS):
        longest = max(longest, abs(scratch[_STEP, k]))
    promise = 0.0
    for k in range(PARAMETERS):
        step = scratch[_STEP, k] * (MOST_STEP / longest)
        trial = min(max(p[k] - step, LOWEST[k]), HIGHEST[k])
        scratch[_TRIAL, k] = trial
        promise += scratch[_HERE + _GRADIENT, k] * (p[k] - trial)
    return promise


@part
def _try(
    scratch: FloatArray, used: int, prior: FloatArray, prior_sd: float, cost: float, p: FloatArray
) -> float:
    """Moves p and its system to the trial if that costs less; the lower cost."""
    trial = scratch[_TRIAL]
    trial_cost = _linearise(scratch, used, prior, prior_sd, trial, scratch[_THERE:])
    if trial_cost >= cost:
        return cost
    for k in range(PARAMETERS):
        p[k] = trial[k]
        for row in range(PARAMETERS + 1):
            scratch[_HERE + row, k] = scratch[_THERE + row, k]
    return trial_cost


@part
def fit(
    bins: FloatArray,
    prior: FloatArray,
    prior_sd: float,
    start: FloatArray,
    out: FloatArray,
    scratch: FloatArray,
) -> int:
    """Fits the parameters to the samples in the bins, from the better of `start` and the prior.

    Args:
        bins: (BINS, 4), decayed to the instant of the fit.
        prior: (4,) what the parameters are expected to be, within the bounds.
        prior_sd: Standard deviation of the prior, the same for all parameters, > 0.
        start: (4,) finite; the last fit, say.
        out: (4,) receives the parameters; none of the arrays above.
        scratch: At least (SCRATCH_ROWS, SCRATCH_COLUMNS), overwritten.

    Returns:
        Iterations taken: 0 without samples, when `out` is the prior.
    """
    for k in range(PARAMETERS):
        out[k] = prior[k]
    used = _summarise(bins, scratch)
    if used == 0:
        return 0
    cost = _linearise(scratch, used, prior, prior_sd, out, scratch[_HERE:])
    for k in range(PARAMETERS):
        scratch[_TRIAL, k] = min(max(start[k], LOWEST[k]), HIGHEST[k])
    cost = _try(scratch, used, prior, prior_sd, cost, out)
    damping = FIRST_DAMPING
    for iteration in range(1, MAX_ITERATIONS + 1):
        promise = _propose(scratch, damping, out)
        # What damping has taken from the promise is given back: short steps are no sign of an end.
        if promise * (1.0 + damping) <= TOLERANCE * (1.0 + cost):
            for k in range(PARAMETERS):
                out[k] = scratch[_TRIAL, k]
            return iteration
        before = cost
        cost = _try(scratch, used, prior, prior_sd, cost, out)
        if before - cost > GOOD_SHARE * promise:
            damping = max(damping / DAMPING_FACTOR, LEAST_DAMPING)
        elif before - cost < POOR_SHARE * promise:
            damping *= DAMPING_FACTOR
    return MAX_ITERATIONS


@part
def to_model(p: FloatArray, out: FloatArray) -> None:
    """Writes alpha (s), beta (s), knee and smoothing (requests per server) of parameters p."""
    relative_slope = math.exp(p[1])
    out[0] = math.exp(p[0])
    out[1] = out[0] * relative_slope
    out[2] = RHO_MAX / (1.0 + math.exp(-p[2])) / relative_slope
    out[3] = math.exp(p[3]) * out[2]


def model_of(p: FloatArray) -> FloatArray:
    """As `to_model`, outside the kernels: (..., 4) to (..., 4)."""
    scale, slope, logit, ratio = np.moveaxis(np.asarray(p, np.float64), -1, 0)
    alpha_s, relative_slope = np.exp(scale), np.exp(slope)
    knee = RHO_MAX / (1.0 + np.exp(-logit)) / relative_slope
    return np.stack([alpha_s, alpha_s * relative_slope, knee, np.exp(ratio) * knee], axis=-1)


def from_model(model: FloatArray) -> FloatArray:
    """Parameters (..., 4) of models (..., 4), knees first lowered to the constraint, in bounds."""
    alpha_s, beta_s, knee, smoothing = np.moveaxis(np.asarray(model, np.float64), -1, 0)
    highest = RHO_MAX * alpha_s / beta_s
    knee = np.minimum(knee, highest)
    logit = np.log(knee) - np.log(np.maximum(highest - knee, 1e-9 * highest))
    p = [np.log(alpha_s), np.log(beta_s / alpha_s), logit, np.log(smoothing / knee)]
    return np.asarray(np.clip(np.stack(p, axis=-1), LOWEST, HIGHEST))


@part
def fleet_prior(fits: FloatArray, samples: FloatArray, first: FloatArray, out: FloatArray) -> None:
    """What a cell's parameters are expected to be: the mean of the fleet's last round of fits.

    Cell c counts n_c / (n_c + `HALF_WEIGHT_SAMPLES`): the precision 1 / (s0^2 + s^2 / n) of its fit
    as an observation of the fleet's mean, times s0^2, where cells vary by s0. The first prior is
    one more cell, fully observed: without samples the mean stays there. Theory weighs with whole
    covariances; one number a cell does, since a parameter that a cell's samples say nothing of
    comes back as the prior it was given, which slows the mean's way but not where it leads.

    Args:
        fits: (C, 4) parameters of the last round.
        samples: (C,) effective samples behind them.
        first: (4,) what is expected of a cell before anything is known.
        out: (4,) receives the prior; none of the arrays above.
    """
    for k in range(PARAMETERS):
        total = 1.0
        mean = first[k]
        for c in range(len(samples)):
            weight = samples[c] / (samples[c] + HALF_WEIGHT_SAMPLES)
            total += weight
            mean += weight / total * (fits[c, k] - mean)
        out[k] = mean
