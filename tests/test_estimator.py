"""The leaf's estimator against scipy, closed forms and the statistics of its own samples."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq, least_squares

from dlb_gym.engine import estimator, fitting
from dlb_gym.engine.estimator import BINS, from_model, model_of
from dlb_gym.engine.fitting import HIGHEST, LOWEST, MAX_ITERATIONS
from dlb_gym.latency_model import RHO_MAX, LatencyModel
from tests.estimation_by_hand import scipy_fit

FloatArray = NDArray[np.float64]

LIMIT = 32
MEMORY_S = 60.0
MODEL = np.array([1.0, 0.12, 6.0, 1.5])
PRIOR = from_model(MODEL)
SCATTER = 0.6


@numba.njit(error_model="numpy")
def _fit(
    bins: FloatArray,
    prior: FloatArray,
    prior_sd: float,
    start: FloatArray,
    out: FloatArray,
    scratch: FloatArray,
) -> int:
    return estimator.fit(bins, prior, prior_sd, start, out, scratch)


@numba.njit(error_model="numpy")
def note(
    bins: FloatArray,
    now_s: FloatArray,
    reference_s: float,
    memory_s: float,
    n: FloatArray,
    latency_s: FloatArray,
) -> None:
    for k in range(len(n)):
        estimator.note_sample(bins, now_s[k], reference_s, memory_s, LIMIT, n[k], latency_s[k])


@numba.njit(error_model="numpy")
def decay(bins: FloatArray, elapsed_s: float, memory_s: float) -> float:
    estimator.decay(bins, elapsed_s, memory_s)
    return estimator.effective_samples(bins)


@numba.njit(error_model="numpy")
def to_model(p: FloatArray, out: FloatArray) -> None:
    estimator.to_model(p, out)


@numba.njit(error_model="numpy")
def fleet_prior(fits: FloatArray, samples: FloatArray, first: FloatArray, out: FloatArray) -> None:
    estimator.fleet_prior(fits, samples, first, out)


def fitted(
    bins: FloatArray, prior: FloatArray, prior_sd: float = 0.5, start: FloatArray | None = None
) -> tuple[FloatArray, int]:
    """Parameters and iterations."""
    out = np.empty(4)
    scratch = np.full((fitting.SCRATCH_ROWS, fitting.SCRATCH_COLUMNS), np.nan)
    count = _fit(bins, prior, prior_sd, prior if start is None else start, out, scratch)
    return out, count


def binned(n: FloatArray, latency_s: FloatArray) -> FloatArray:
    """Samples that all came just now."""
    bins = np.zeros((BINS, 4))
    note(bins, np.zeros(len(n)), 0.0, 1.0, n, latency_s)
    return bins


def curve(p: FloatArray, n: FloatArray) -> FloatArray:
    return np.asarray(LatencyModel(*model_of(p)).at(n).latency)


def noisy(rng: np.random.Generator, latency_s: FloatArray) -> FloatArray:
    """The scatter of requests' sizes: the same at every load, skewed, and no latency below 0."""
    shape = 1 / SCATTER**2
    return np.maximum(latency_s + rng.gamma(shape, 1 / shape, len(latency_s)) - 1.0, 1e-3)


def variance(weight: FloatArray, bin_of: FloatArray, latency_s: FloatArray) -> float:
    """Pooled within bins, from the samples themselves; one degree of freedom says half the mean."""
    usual_s = 0.5 * np.average(latency_s, weights=weight)
    scatter, freedom = usual_s**2, 1.0
    for b in np.unique(bin_of):
        w, y = weight[bin_of == b], latency_s[bin_of == b]
        scatter += float(w @ (y - np.average(y, weights=w)) ** 2)
        freedom += max(w.sum() - 1.0, 0.0)
    return scatter / freedom


def by_scipy(
    n: FloatArray, latency_s: FloatArray, precision: FloatArray, prior_sd: float
) -> tuple[Any, Any]:
    """Solution and residuals of the same problem; the bounds are open ones there."""

    def residuals(p: FloatArray) -> FloatArray:
        misfit = np.sqrt(precision) * (curve(p, n) - latency_s)
        return np.concatenate([misfit, (p - PRIOR) / prior_sd])

    bounds = np.array(LOWEST) - 1e-9, np.array(HIGHEST) + 1e-9
    tight: dict[str, Any] = {"xtol": 1e-15, "ftol": 1e-15, "gtol": 1e-12, "max_nfev": 1000}
    return least_squares(residuals, PRIOR, method="trf", bounds=bounds, **tight), residuals


def polished(
    p: FloatArray, n: FloatArray, latency_s: FloatArray, precision: FloatArray, prior_sd: float
) -> FloatArray:
    """The minimum next to p by Newton's method, with torch's derivatives of `latency_model`.

    Scipy ends where the cost is least to its last digit: parameters then have half as many.
    """
    points = [torch.from_numpy(np.ascontiguousarray(a)) for a in (n, latency_s, precision, PRIOR)]

    def cost(q: torch.Tensor) -> torch.Tensor:
        knee = RHO_MAX * torch.sigmoid(q[2]) * torch.exp(-q[1])
        scale, slope = torch.exp(q[0]), torch.exp(q[0] + q[1])
        model = LatencyModel(scale, slope, knee, torch.exp(q[3]) * knee, xp=torch)
        misfit = model.at(points[0]).latency - points[1]
        away = (q - points[3]) / prior_sd
        return (points[2] * misfit * misfit).sum() + (away * away).sum()

    p = np.clip(p, LOWEST, HIGHEST)
    for _ in range(4):
        q = torch.from_numpy(p)
        slope = torch.autograd.functional.jacobian(cost, q).numpy()
        free = ~(((p <= LOWEST) & (slope > 0)) | ((p >= HIGHEST) & (slope < 0)))
        hessian = torch.autograd.functional.hessian(cost, q).numpy()[np.ix_(free, free)]
        assert (np.linalg.eigvalsh(hessian) > 0).all()
        p = p.copy()
        p[free] -= np.linalg.solve(hessian, slope[free])
    return p


RANGES = {"idle": (0.0, 3.0), "knee": (0.0, 14.0), "overload": (9.0, 31.0), "all": (0.0, 40.0)}


def assert_scipys(n: FloatArray, latency_s: FloatArray, prior_sd: float) -> None:
    """The fit is scipy's as far as scipy goes, and the minimum by Newton's method beyond."""
    bins = binned(n, latency_s)
    bin_of = np.minimum(np.floor(2 * n), BINS - 1)
    s2 = variance(np.ones(len(n)), bin_of, latency_s)
    weight, mean_n, mean_s = (bins[bins[:, 0] > 0, k] for k in range(3))
    problem = (mean_n / weight, mean_s / weight, weight / s2, prior_sd)
    scipys, residuals = by_scipy(*problem)
    p, iterations = fitted(bins, PRIOR, prior_sd)
    assert iterations <= 30
    assert (residuals(p) ** 2).sum() <= 2 * scipys.cost * (1 + 1e-12) + 1e-12
    np.testing.assert_allclose(p, scipys.x, rtol=0, atol=1e-5 * prior_sd)
    np.testing.assert_allclose(p, polished(scipys.x, *problem), rtol=0, atol=1e-9 * prior_sd)


@pytest.mark.parametrize("prior_sd", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("load", RANGES)
@pytest.mark.parametrize("seed", range(3))
def test_a_fit_is_scipys_on_the_same_bins(load: str, prior_sd: float, seed: int) -> None:
    rng = np.random.default_rng([seed, *load.encode()])
    for count in (1, 2, 5, 20, 100, 1_000, 10_000):
        truth = PRIOR + rng.normal(0.0, 0.5, 4)
        n = rng.uniform(*RANGES[load], count)
        assert_scipys(n, noisy(rng, curve(truth, n)), prior_sd)


@pytest.mark.parametrize("falls_by", [0.3, 0.7, 0.95])
def test_a_fit_is_scipys_where_latency_falls_with_load(falls_by: float) -> None:
    """No curve fits: there Gauss and Newton's steps do not come to rest."""
    rng = np.random.default_rng(9)
    for count in (20, 200, 2_000):
        n = rng.uniform(0.0, 31.0, count)
        assert_scipys(n, noisy(rng, 3.0 * (1.0 - falls_by * n / 31.0)), 0.5)


@pytest.mark.parametrize("short_of_it", [0.0, 4e-16, 1e-9, 1e-4, 0.1])
def test_a_parameter_that_samples_drive_to_its_bound_ends_there(short_of_it: float) -> None:
    """A knee as late as may be, from a prior that is there, or almost."""
    prior = np.array([0.0, math.log(1 / 8), HIGHEST[2] - short_of_it, -2.0])
    rng = np.random.default_rng(10)
    n = rng.uniform(0.0, 16.0, 5_000)
    p, iterations = fitted(binned(n, noisy(rng, np.maximum(1.0, n / 8.0))), prior)
    assert p[2] == HIGHEST[2]
    assert iterations <= 12


@pytest.mark.parametrize("seed", range(4))
def test_a_fit_is_scipys_on_the_samples_themselves(seed: int) -> None:
    """Two servers: the bins, half a request wide, hold one n each, and binning loses nothing."""
    rng = np.random.default_rng(seed)
    truth = PRIOR + rng.normal(0.0, 0.3, 4)
    n = rng.integers(0, 48, 800) / 2
    latency_s = noisy(rng, curve(truth, n))
    done_s = np.sort(rng.uniform(0.0, 100.0, 800))
    bins = np.zeros((BINS, 4))
    note(bins, done_s, 0.0, MEMORY_S, n, latency_s)
    decay(bins, 100.0, MEMORY_S)
    weight = np.exp((done_s - 100.0) / MEMORY_S)
    scipys, residuals = by_scipy(n, latency_s, weight / variance(weight, n, latency_s), 0.5)
    p, _ = fitted(bins, PRIOR)
    assert (residuals(p) ** 2).sum() <= 2 * scipys.cost * (1 + 1e-12)
    np.testing.assert_allclose(p, scipys.x, rtol=0, atol=1e-6)


def test_without_samples_the_parameters_are_the_prior_bit_for_bit() -> None:
    start = PRIOR + 1.0
    p, iterations = fitted(np.zeros((BINS, 4)), PRIOR, 0.5, start)
    assert (p.tobytes(), iterations) == (PRIOR.tobytes(), 0)
    bins = binned(np.array([3.0]), np.array([7.0]))
    decay(bins, 20 * MEMORY_S, MEMORY_S)  # so long ago that it is forgotten
    assert fitted(bins, PRIOR)[0].tobytes() == PRIOR.tobytes()


@pytest.mark.parametrize("count", [1, 4, 50, 3_000])
def test_samples_of_an_idle_cell_move_alpha_alone(count: int) -> None:
    """Far below a sharp knee l = alpha, and log alpha solves an equation in one unknown."""
    prior = from_model(np.array([1.0, 0.1, 8.0, 0.2]))
    latency_s = np.random.default_rng(count).gamma(4.0, 0.5, count)  # twice the prior's
    mean_s = latency_s.mean()
    scatter = ((latency_s - mean_s) ** 2).sum()
    s2 = ((0.5 * mean_s) ** 2 + scatter) / count

    def slope(log_alpha: float) -> float:
        alpha_s = math.exp(log_alpha)
        return float(count / s2 * (alpha_s - mean_s) * alpha_s + (log_alpha - prior[0]) / 0.5**2)

    p, _ = fitted(binned(np.full(count, 2.0), latency_s), prior)
    assert p[0] == pytest.approx(brentq(slope, -5.0, 5.0, xtol=1e-14), abs=1e-9)
    np.testing.assert_allclose(p[1:], prior[1:], atol=1e-7)
    alpha, beta, knee, smoothing = model_of(p)
    np.testing.assert_allclose([beta / alpha, knee, smoothing], [0.1, 8.0, 0.2], rtol=1e-7)


def test_seconds_or_milliseconds_the_fit_is_the_same() -> None:
    rng = np.random.default_rng(5)
    n = rng.uniform(0.0, 16.0, 300)
    latency_s = noisy(rng, curve(PRIOR + 0.3, n))
    p, _ = fitted(binned(n, latency_s), PRIOR)
    in_ms, _ = fitted(binned(n, 1_000 * latency_s), from_model(MODEL * [1_000, 1_000, 1, 1]))
    np.testing.assert_allclose(in_ms - p, [math.log(1_000), 0, 0, 0], atol=1e-9)


def test_curves_are_found_with_the_bias_and_the_error_of_shrunk_least_squares() -> None:
    """To first order: bias -A^-1 R (truth - prior), covariance A^-1 I A^-1, A = I + R.

    I is the samples' information and R the prior's, so the bias falls like 1 / samples and the
    error like 1 / sqrt(samples).
    """
    rng = np.random.default_rng(11)
    away = np.array([0.2, -0.2, 0.3, -0.2])
    truth, prior_sd = PRIOR + away, 1.0
    at = np.array([0.5, 4.0, 8.0, 12.0, 20.0])

    def jacobian(n: FloatArray) -> FloatArray:
        steps = 1e-5 * np.eye(4)
        return np.stack([curve(truth + h, n) - curve(truth - h, n) for h in steps], axis=-1) / 2e-5

    replications, spreads, biases = 200, [], []
    for count in (2_000, 8_000, 32_000):
        errors = np.empty((replications, len(at)))
        for k in range(replications):
            n = rng.uniform(0.0, 24.0, count)
            p, _ = fitted(binned(n, noisy(rng, curve(truth, n))), PRIOR, prior_sd)
            errors[k] = curve(p, at) - curve(truth, at)
        information = jacobian(n).T @ jacobian(n) / SCATTER**2
        gain = jacobian(at) @ np.linalg.inv(information + np.eye(4) / prior_sd**2)
        bias = -gain @ away / prior_sd**2
        spread = np.sqrt(((gain @ information) * gain).sum(axis=-1))
        np.testing.assert_allclose(errors.std(axis=0), spread, rtol=0.15)
        np.testing.assert_array_less(np.abs(errors.mean(axis=0) - bias), 0.3 * spread)
        spreads.append(errors.std(axis=0))
        biases.append(np.abs(errors.mean(axis=0)).max())
    np.testing.assert_allclose(spreads[2] / spreads[1], 0.5, atol=0.1)
    assert biases[2] < 0.004


@pytest.mark.parametrize("since", [0.0, 0.5, 1.0, 3.0])
def test_a_step_is_forgotten_as_e_to_the_minus_t_over_memory(since: float) -> None:
    """A steady stream whose latency steps from 1 to 2: its faded mean is 2 - e^(-t / memory)."""
    change_s = 12 * MEMORY_S
    end_s = change_s + since * MEMORY_S
    done_s = np.arange(0.0, end_s, 0.05)
    latency_s = np.where(done_s < change_s, 1.0, 2.0)
    bins = np.zeros((BINS, 4))
    reference_s = 0.0
    for now_s in [*np.arange(10.0, end_s, 10.0), end_s]:
        of_round = (done_s >= reference_s) & (done_s < now_s)
        n = np.full(of_round.sum(), 1.0)
        note(bins, done_s[of_round], reference_s, MEMORY_S, n, latency_s[of_round])
        samples = decay(bins, now_s - reference_s, MEMORY_S)
        reference_s = now_s
    assert samples == pytest.approx(20 * MEMORY_S, rel=2e-3)
    prior = from_model(np.array([1.5, 0.1, 8.0, 0.2]))
    p, _ = fitted(bins, prior)
    assert math.exp(p[0]) == pytest.approx(2.0 - math.exp(-since), rel=4e-3)


def test_weights_do_not_depend_on_when_the_refits_were() -> None:
    rng = np.random.default_rng(2)
    done_s, n, latency_s = np.sort(rng.uniform(0, 90, 200)), rng.uniform(0, 40, 200), np.ones(200)
    once, often = np.zeros((BINS, 4)), np.zeros((BINS, 4))
    note(once, done_s, 0.0, 20.0, n, latency_s)
    decay(once, 90.0, 20.0)
    for k in range(9):
        of_round = (done_s >= 10 * k) & (done_s < 10 * k + 10)
        note(often, done_s[of_round], 10.0 * k, 20.0, n[of_round], latency_s[of_round])
        decay(often, 10.0, 20.0)
    np.testing.assert_allclose(often, once, rtol=1e-12)
    weight = np.exp((done_s - 90) / 20)
    expected = np.bincount(np.minimum(2 * n, BINS - 1).astype(int), weight, BINS)
    np.testing.assert_allclose(once[:, estimator.WEIGHT], expected, rtol=1e-12)


def test_a_start_that_no_longer_holds_ends_where_the_prior_does() -> None:
    rng = np.random.default_rng(3)
    n = rng.uniform(0.0, 20.0, 400)
    bins = binned(n, noisy(rng, curve(PRIOR, n)))
    p, _ = fitted(bins, PRIOR)
    for start in (np.array(LOWEST), np.array(HIGHEST), p, p + 0.2):
        again, _ = fitted(bins, PRIOR, 0.5, start)
        np.testing.assert_allclose(again, p, rtol=0, atol=1e-9)
    assert fitted(bins, PRIOR, 0.5, p)[1] == 1


def test_a_prior_on_the_constraint_gives_way_to_samples_of_an_earlier_knee() -> None:
    """An ideal server of 8 slots as prior; a cell that bends at half of what it may."""
    prior = from_model(np.array([1.0, 1 / 8, 8.0, 0.8]))
    truth = np.array([1.0, 1 / 8, 3.6, 0.8])
    rng = np.random.default_rng(4)
    n = rng.uniform(0.0, 16.0, 5_000)
    bins = binned(n, noisy(rng, LatencyModel(*truth).at(n).latency))
    p, _ = fitted(bins, prior)
    at = np.array([0.0, 3.0, 6.0, 16.0])
    np.testing.assert_allclose(curve(p, at), LatencyModel(*truth).at(at).latency, rtol=0.05)
    assert prior[2] == HIGHEST[2]
    expected, _ = scipy_fit(bins, prior, prior, 0.5)
    np.testing.assert_allclose(p, expected, rtol=0, atol=1e-5)


def extremes() -> list[tuple[FloatArray, FloatArray]]:
    """n and latency of samples that no queue would give."""
    ramp = np.linspace(0.0, 31.0, 200)
    return [
        (np.array([0.0]), np.array([0.0])),
        (ramp, np.zeros(200)),
        (ramp, np.full(200, 1.0)),
        (ramp, np.full(200, 1e-9)),
        (ramp, np.full(200, 1e9)),
        (ramp, 40.0 - ramp),
        (ramp, np.where(ramp > 15, 1e4, 1e-4)),
        (ramp, np.where(ramp < 15, 1e4, 1e-4)),
        (ramp, ramp**6),
        (np.full(100, 1e6), np.full(100, 5.0)),
        (np.full(100_000, 31.0), np.full(100_000, 2.0)),
        (np.repeat([1.0, 30.0], 50_000), np.repeat([1.0, 1.0001], 50_000)),
    ]


@pytest.mark.parametrize("prior_sd", [1e-3, 0.5, 100.0])
@pytest.mark.parametrize("case", range(len(extremes())))
def test_any_samples_leave_a_finite_model_that_keeps_the_constraint(
    case: int, prior_sd: float
) -> None:
    n, latency_s = extremes()[case]
    for fading in (0.0, 5.0, 13.0):
        bins = binned(n, latency_s)
        decay(bins, fading, 1.0)
        for start in (PRIOR, np.array(LOWEST) - 5.0, np.array(HIGHEST) + 5.0):
            p, iterations = fitted(bins, PRIOR, prior_sd, start)
            assert iterations <= MAX_ITERATIONS
            assert (p >= LOWEST).all()
            assert (p <= HIGHEST).all()
            alpha, beta, knee, smoothing = model_of(p)
            assert min(alpha, beta, knee, smoothing) > 0
            assert beta * knee / alpha < RHO_MAX


def test_a_reference_too_old_overflows_nothing() -> None:
    bins = np.zeros((BINS, 4))
    note(bins, np.array([1e7, 1e7 + 1]), 0.0, 1.0, np.array([1.0, 20.0]), np.array([1e3, 2e3]))
    assert np.isfinite(bins).all()
    decay(bins, 1e7 + 1, 1.0)
    assert fitted(bins, PRIOR)[0].tobytes() == PRIOR.tobytes()


def test_parameters_and_models_are_one_another() -> None:
    assert fitting.RHO_MAX == RHO_MAX
    rng = np.random.default_rng(6)
    p = rng.uniform(LOWEST, HIGHEST, (200, 4))
    model = np.empty_like(p)
    for row, out in zip(p, model, strict=True):
        to_model(row, out)
    np.testing.assert_allclose(model_of(p), model, rtol=1e-13)
    np.testing.assert_allclose(from_model(model), p, atol=1e-9)
    beyond = LatencyModel(*(model * [1, 1, 3, 1]).T)
    held = beyond.constrained()
    clipped = LatencyModel(*model_of(from_model(model * [1, 1, 3, 1])).T)
    np.testing.assert_allclose(clipped.alpha, held.alpha, rtol=1e-12)
    np.testing.assert_allclose(clipped.beta, held.beta, rtol=1e-12)
    np.testing.assert_allclose(clipped.knee, held.knee, rtol=0.019)  # 1 - logistic(4) = 0.018


def prior_of(fits: FloatArray, samples: FloatArray, first: FloatArray) -> FloatArray:
    out = np.empty(4)
    fleet_prior(fits, samples, first, out)
    return out


def test_the_fleets_prior_is_a_mean_of_what_was_observed_and_first_believed() -> None:
    first = np.array([0.0, -2.0, 1.0, -1.0])
    fits = first + np.array([[1.0], [3.0]])
    nothing = np.zeros(2)
    assert prior_of(fits, nothing, first).tobytes() == first.tobytes()
    # 10 samples count one half, 90 count 0.9: (0.5 x 1 + 0.9 x 3) / (1 + 0.5 + 0.9).
    expected = first + 3.2 / 2.4
    np.testing.assert_allclose(prior_of(fits, np.array([10.0, 90.0]), first), expected, rtol=1e-14)
    np.testing.assert_allclose(prior_of(fits, np.full(2, 1e12), first), first + 4 / 3, rtol=1e-9)


def test_cells_that_cannot_see_their_knee_do_not_outvote_the_one_that_can() -> None:
    """They give back the prior they were given; the mean ends between first prior and the one."""
    first, prior = np.zeros(4), np.zeros(4)
    for _ in range(200):
        fits = np.tile(prior, (6, 1))
        fits[2, 2] = 1.0
        prior = prior_of(fits, np.full(6, 1e9), first)
    np.testing.assert_allclose(prior, [0.0, 0.0, 0.5, 0.0], atol=1e-6)


def digest() -> str:
    """Of every number of six cells' first ten refits."""
    rng = np.random.default_rng(8)
    bins, fits, samples = np.zeros((6, BINS, 4)), np.tile(PRIOR, (6, 1)), np.zeros(6)
    prior, seen = PRIOR.copy(), hashlib.sha256()
    truth = PRIOR + rng.normal(0.0, 0.3, (6, 4))
    for round_ in range(10):
        prior = prior_of(fits, samples, PRIOR)
        for c in range(6):
            n = rng.uniform(0.0, 4.0 * (c + 1), 40)
            done_s = 10.0 * round_ + np.sort(rng.uniform(0.0, 10.0, 40))
            note(bins[c], done_s, 10.0 * round_, MEMORY_S, n, noisy(rng, curve(truth[c], n)))
            samples[c] = decay(bins[c], 10.0, MEMORY_S)
            fits[c], iterations = fitted(bins[c], prior, 0.5, fits[c])
            model = np.empty(4)
            to_model(fits[c], model)
            for part in (bins[c], fits[c], model, np.array([iterations, samples[c]])):
                seen.update(part.tobytes())
        seen.update(prior.tobytes())
    return seen.hexdigest()


def test_kernels_as_plain_python_give_the_same_bytes() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.test_estimator"],
        cwd=Path(__file__).resolve().parents[1],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest()


if __name__ == "__main__":
    print(digest())  # noqa: T201 - read by the parent process
