"""What the leaf's fit minimises, in numpy, for scipy to minimise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dlb_gym.engine.estimator import BINS, USUAL_SCATTER, model_of
from dlb_gym.engine.fitting import HIGHEST, LOWEST
from dlb_gym.latency_model import LatencyModel

FloatArray = NDArray[np.float64]


def curve(model: FloatArray, n: FloatArray) -> FloatArray:
    """The latency of `latency_model`, which the engine cannot import."""
    return np.asarray(LatencyModel(*model).at(n).latency)


def binned(
    n: FloatArray, y: FloatArray, queue_limit: int, weight: FloatArray | None = None
) -> FloatArray:
    """Sums over equal bins of [0, queue limit)."""
    w = np.ones_like(n) if weight is None else weight
    bins = np.zeros((BINS, 4))
    place = np.minimum((n * BINS / queue_limit).astype(int), BINS - 1)
    np.add.at(bins, place, np.column_stack([w, w * n, w * y, w * y * y]))
    return bins


def residuals(p: FloatArray, bins: FloatArray, prior: FloatArray, prior_sd: float) -> FloatArray:
    """What the docstring of `estimator` minimises the square of."""
    weight, n_sum, y_sum, square_sum = bins[bins[:, 0] > 0].T
    usual_s = USUAL_SCATTER * y_sum.sum() / weight.sum()
    scatter = np.maximum(square_sum - y_sum**2 / weight, 0.0).sum()
    variance = (usual_s**2 + scatter) / (1.0 + np.maximum(weight - 1.0, 0.0).sum())
    misfit = curve(model_of(p), n_sum / weight) - y_sum / weight
    return np.concatenate([np.sqrt(weight / variance) * misfit, (p - prior) / prior_sd])


def scipy_fit(
    bins: FloatArray, start: FloatArray, prior: FloatArray, prior_sd: float
) -> tuple[FloatArray, float]:
    """Parameters and cost."""
    solution = least_squares(
        residuals, start, args=(bins, prior, prior_sd), bounds=(LOWEST, HIGHEST),
        xtol=1e-12, ftol=1e-12, gtol=1e-12,
    )  # fmt: skip
    return solution.x, 2.0 * solution.cost
