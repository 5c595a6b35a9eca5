"""Latency models that leaves fit while they serve (docs/estimation.md).

Every ``refit_interval_s`` - with the first report at or after it - a cell publishes the model that
fits the requests it served, y the serving latency and n the RIF per live server each met. Samples
fall into 64 equal parts of [0, queue limit], the last of which takes the rest, with weights e^-(age
/ memory). The parameters minimise (``dlb_gym/engine/estimator.py``)

    sum_b W_b (y_b - l(n_b; p))^2 / s2  +  sum_k ((p_k - prior_k) / prior_sd)^2,

here with scipy, started from the better of the prior and the last fit. The prior is the fleet's
mean as of the round before. A round whose replica (round mod L) is down changes nothing.

Where routing follows the models, a difference in the last digits would change the course of
requests. So the models published may be given (the engine's); then every round goes on from those,
and ``fits`` compares each with the reference's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from dlb_gym.latency_model import LatencyModel
from dlb_gym.mechanisms import LatencyEstimate
from tests.hash_model import uniform
from tests.reference.system import Model

Floats = NDArray[np.float64]

RHO_MAX = 0.9
PARTS = 64
LOWEST, HIGHEST = (-14.0, -10.0, -4.0, -4.0), (14.0, 5.0, 4.0, 2.0)
USUAL_SCATTER = 0.5
HALF_WEIGHT_SAMPLES = 10.0
LEAST_WEIGHT = 1e-6
METHODS = ("trf", "dogbox")
"""Scipy's two methods with bounds; each gets stuck at one now and then."""
DITHERED = 7 * 2**33
"""Purpose of the draws of dither."""


class Sample(NamedTuple):
    """A request that was served."""

    done_s: float
    n: float
    latency_s: float


@dataclass(frozen=True)
class Round:
    """What a cell knew after a round: parameters, effective samples, and the model it published."""

    parameters: tuple[float, ...]
    samples: float
    model: Model


class Fit(NamedTuple):
    """A round's model as it was given, and the minimum that the reference finds from there.

    ``excess`` is what the given one costs beyond the best that the reference finds, in variances.
    Samples may leave a valley without a bottom to speak of, and there may be several minima: then
    models differ that fit as well.
    """

    cell: int
    number: int
    given: Model
    own: Model
    excess: float


def _scaled(model: Model, factor: float) -> Model:
    return model[0] * factor, model[1] * factor, model[2], model[3]


def to_model(p: Floats) -> Model:
    """The model of p = (log alpha, log b, logit(knee b / 0.9), log(smoothing / knee))."""
    alpha, b = math.exp(p[0]), math.exp(p[1])
    knee = RHO_MAX / (1.0 + math.exp(-p[2])) / b
    return alpha, alpha * b, knee, math.exp(p[3]) * knee


def from_model(model: Model) -> tuple[float, ...]:
    alpha, beta, knee, smoothing = model
    highest = RHO_MAX * alpha / beta
    knee = min(knee, highest)
    logit = math.log(knee) - math.log(max(highest - knee, 1e-9 * highest))
    p = (math.log(alpha), math.log(beta / alpha), logit, math.log(smoothing / knee))
    return tuple(min(max(x, low), high) for x, low, high in zip(p, LOWEST, HIGHEST, strict=True))


class Estimator:
    """The fits of all cells of a system.

    Args:
        settings: Of the estimate.
        seed: Of the hashes.
        queue_limit: Of a server.
        replicas: Leaf replicas of a cell.
        first: The model that all cells begin with.
        cells: How many.
        given: (cell, round) to the model published, in place of the own fit.
    """

    def __init__(
        self,
        settings: LatencyEstimate,
        seed: int,
        queue_limit: int,
        replicas: int,
        first: Model,
        cells: int,
        given: Callable[[int, int], Model] | None,
    ) -> None:
        self._settings = settings
        self._seed = seed
        self._queue_limit = queue_limit
        self._replicas = replicas
        self._given = given
        self._samples: list[list[Sample]] = [[] for _ in range(cells)]
        self._first = from_model(first)
        self.rounds = [[Round(self._first, 0.0, first)] for _ in range(cells)]
        self.fits: list[Fit] = []

    def note(self, cell: int, sample: Sample) -> None:
        self._samples[cell].append(sample)

    def is_due(self, cell: int, now_s: float) -> bool:
        return now_s >= len(self.rounds[cell]) * self._settings.refit_interval_s

    def refit(self, cell: int, now_s: float, is_down: Callable[[int], bool]) -> None:
        """The next round of a cell."""
        number = len(self.rounds[cell])
        last = self.rounds[cell][-1]
        if is_down(number % self._replicas):
            self.rounds[cell].append(last)
            return
        bins = self._binned(cell, now_s)
        prior, noise = self._prior(number - 1), self._dither(cell, number)
        if self._given is None:
            parameters, _, _ = self._fitted(bins, prior, np.array(last.parameters))
            model = _scaled(to_model(parameters), noise)
        else:
            model = self._given(cell, number)
            parameters = np.array(from_model(_scaled(model, 1.0 / noise)))
            near, least, cost = self._fitted(bins, prior, parameters)
            _, other, _ = self._fitted(bins, prior, np.array(last.parameters), METHODS[:1])
            own = _scaled(to_model(near), noise)
            self.fits.append(Fit(cell, number, model, own, cost - min(least, other)))
        samples = sum(row[0] for row in bins)
        self.rounds[cell].append(Round(tuple(parameters.tolist()), samples, model))

    def _dither(self, cell: int, number: int) -> float:
        """Factor of published latencies, alpha and beta together."""
        u = uniform(self._seed + DITHERED, cell, number)
        return 1.0 + self._settings.dither * (2.0 * u - 1.0)

    def _prior(self, number: int) -> Floats:
        """The mean of a round's fits and of the first prior, cells weighed by n / (n + 10)."""
        total, mean = 1.0, np.array(self._first)
        for rounds in self.rounds:
            weight = rounds[number].samples / (rounds[number].samples + HALF_WEIGHT_SAMPLES)
            total += weight
            mean = mean + weight / total * (np.array(rounds[number].parameters) - mean)
        return mean

    def _binned(self, cell: int, now_s: float) -> list[list[float]]:
        """Sums of w, w n, w y and w y^2 of the parts that have samples."""
        sums: dict[int, list[float]] = {}
        for sample in self._samples[cell]:
            part = min(int(sample.n * PARTS / self._queue_limit), PARTS - 1)
            w = math.exp(-(now_s - sample.done_s) / self._settings.memory_s)
            n, y = sample.n, sample.latency_s
            before = sums.get(part, [0.0] * 4)
            sums[part] = [a + b for a, b in zip(before, (w, w * n, w * y, w * y * y), strict=True)]
        return [sums[part] for part in sorted(sums)]

    def _fitted(
        self,
        bins: list[list[float]],
        prior: Floats,
        start: Floats,
        methods: Sequence[str] = METHODS,
    ) -> tuple[Floats, float, float]:
        """The minimum found from the better of a start and the prior, its cost, the start's."""
        bins = [row for row in bins if row[0] >= LEAST_WEIGHT]
        if not bins:
            return prior, 0.0, 0.0
        weight, n_sum, y_sum, square_sum = np.array(bins).T
        usual_s = USUAL_SCATTER * y_sum.sum() / weight.sum()
        scatter = np.maximum(square_sum - y_sum**2 / weight, 0.0).sum()
        variance = (usual_s**2 + scatter) / (1.0 + np.maximum(weight - 1.0, 0.0).sum())

        def residuals(p: Floats) -> Floats:
            misfit = LatencyModel(*to_model(p)).at(n_sum / weight).latency - y_sum / weight
            away = (p - prior) / self._settings.prior_sd
            return np.concatenate([np.sqrt(weight / variance) * misfit, away])

        starts = (np.clip(start, LOWEST, HIGHEST), prior)
        costs = [float(np.square(residuals(p)).sum()) for p in starts]
        better = starts[costs.index(min(costs))]
        solutions = [
            least_squares(
                residuals, better, bounds=(LOWEST, HIGHEST), method=method,
                xtol=1e-14, ftol=1e-14, gtol=1e-14,
            )
            for method in methods
        ]  # fmt: skip
        best = min(solutions, key=lambda solution: float(solution.cost))
        return np.asarray(best.x), 2.0 * float(best.cost), costs[0]
