"""The leaf's online latency model: binned samples that fade, a constrained fit, the fleet's prior.

Sample: a request that was served, with n = RIF per live server when it came to the leaf and
y = its serving latency. Samples fall into B bins over n, each with decayed sums

    [W, sum w n, sum w y, sum w y^2],    w = e^-(t - t_done) / memory,

so a fit costs the same however many samples there were. With n_b and y_b a bin's means, the
parameters p minimise (theory.md section 5)

    sum_b W_b (y_b - l(n_b; p))^2 / s2  +  sum_k ((p_k - prior_k) / prior_sd)^2:

a Gaussian prior, which rules where there are few samples and alone where there are none. How they
are found: `fitting`.

**Parameters.** With b = beta / alpha and u = (n - knee) / smoothing, l = alpha + beta smoothing
log(1 + e^u) and

    p = (log alpha, log b, logit(knee b / RHO_MAX), log(smoothing / knee)),

so that the processing rate rises for ever, whatever p (`latency_model.RHO_MAX`). Theory has log
beta for log b: the same models, but a prior on b says what is true of cells, that a slower one is
slower past its knee as well and bends at the same number of requests. Samples that all lie below
the knee then change alpha and leave b, knee and smoothing at the prior.

**Variance.** s2 is the scatter within bins, pooled: sum_b S_b / sum_b (W_b - 1)+, S_b = sum w y^2 -
(sum w y)^2 / W_b. One variance for all bins, since the scatter is that of the requests' sizes: from
an idle simulated cell to an overloaded one the mean triples, the standard deviation rises by a
quarter. A bin of weights w <= 1 has W - sum w^2 / W degrees of freedom, at least (W - 1)+; W - 1/2
in a steady stream, so s2 errs a little to the side of the prior. One more degree of freedom counts
a scatter of `USUAL_SCATTER` times the mean latency, which stands in where samples are few and is
the floor: equal latencies do not count as certain.

Left out of what theory asks: the prior has one standard deviation in place of the fleet's
covariance, and samples count as independent, though those of one backlog are not.
"""

from __future__ import annotations

import math

import numpy as np

from dlb_gym.engine.compile import part
from dlb_gym.engine.fitting import (
    HIGHEST,
    LATENCY,
    LOWEST,
    PARAMETERS,
    POINTS,
    PRECISION,
    RHO_MAX,
    N,
    minimise,
)
from dlb_gym.engine.layout import FloatArray

BINS, BIN_COLUMNS = POINTS, 4
WEIGHT, RIF_SUM, LATENCY_SUM, SQUARE_SUM = range(BIN_COLUMNS)

MOST_MEMORIES = 300.0
"""Bound on the age of a reference: no sum overflows, however rare the refits."""
LEAST_WEIGHT = 1e-6
"""A bin counts as empty below this: one sample after 14 memories."""
USUAL_SCATTER = 0.5
"""Standard deviation of latencies over their mean: what one degree of freedom says of it."""
HALF_WEIGHT_SAMPLES = 10.0
"""Effective samples at which a cell counts half as much in the prior as one that is well known."""


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
        means[used, N] = bins[b, RIF_SUM] / weight
        means[used, LATENCY] = mean_s
        means[used, PRECISION] = weight
        used += 1
        samples += weight
        latency_sum_s += bins[b, LATENCY_SUM]
        scatter += max(bins[b, SQUARE_SUM] - bins[b, LATENCY_SUM] * mean_s, 0.0)
        freedom += max(weight - 1.0, 0.0)
    if used > 0:
        usual_s = USUAL_SCATTER * max(latency_sum_s / samples, math.exp(LOWEST[0]))
        precision = (1.0 + freedom) / (usual_s * usual_s + scatter)
        for b in range(used):
            means[b, PRECISION] *= precision
    return used


@part
def fit(
    bins: FloatArray,
    prior: FloatArray,
    prior_sd: float,
    start: FloatArray,
    out: FloatArray,
    scratch: FloatArray,
) -> int:
    """Fits the parameters to the samples in the bins.

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
    used = _summarise(bins, scratch)
    return minimise(scratch, used, prior, prior_sd, start, out)


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
