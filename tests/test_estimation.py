"""The estimator in the system: what it learns, when roots know it, and what keeps it learning."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.calibration import latency_parameters
from dlb_gym.engine.estimator import from_model, model_of
from dlb_gym.mechanism_rows import initial_models
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override, scenario_from_dict
from dlb_gym.simulator import Simulator
from dlb_gym.views import View
from tests.estimation_by_hand import binned, curve, scipy_fit

STEP_S, PROBE_S = 0.1, 0.01
SEED = 11
Log = dict[str, NDArray[np.float64]]


def system(
    servers: tuple[int, ...] = (2,),
    rtt_s: tuple[float, ...] | None = None,
    utilisation: float = 0.7,
    changes: dict[str, Any] | None = None,
    **estimate: Any,
) -> Scenario:
    """Cells of so many servers, one root, no warm-up; estimation online."""
    document: dict[str, Any] = {
        "name": "system",
        "cells": [
            {"name": f"cell-{j}", "region": "us-east4", "servers": count}
            for j, count in enumerate(servers)
        ],
        "roots": [{"name": "root", "region": "us-east4", "demand": 1.0}],
        "network": {"rtt_s": [list(rtt_s or [0.0] * len(servers))]},
        "demand": {"utilisation": utilisation},
        "latency_estimate": {"kind": "online", **estimate},
        "router_delay_s": 0.0,
        "probe_interval_s": PROBE_S,
        "control_interval_s": STEP_S,
        "warmup_s": 0.0,
        "horizon_s": 400.0,
    }
    return scenario_from_dict(document | (changes or {}))


def started(*rows: Scenario, weights: tuple[float, ...] | None = None, seeds: int = 0) -> Simulator:
    """Rows at clock 0 under a fixed routing; the same seed in all, unless `seeds` rows are asked.

    Args:
        *rows: A scenario for every row, or one for all of `seeds`.
        weights: Of the cells; by servers if left out.
        seeds: Rows of as many seeds.
    """
    scenarios = rows * max(seeds, 1)
    cells = scenarios[0].cells
    simulator = Simulator(len(scenarios), 1, len(cells), log=True)
    for r, scenario in enumerate(scenarios):
        simulator.reset_row(r, scenario, SEED + (r if seeds else 0), 0)
    split = np.array(weights or [cell.servers for cell in cells], dtype=np.float64)
    routing = np.tile(split / split.sum(), (len(scenarios), 1, 1))
    simulator.set_routing(routing, np.zeros(len(scenarios), dtype=np.int64))
    return simulator


def to(simulator: Simulator, time_s: float) -> View:
    rows = len(simulator.step)
    simulator.advance(np.full(rows, round(time_s / STEP_S)))
    return View(*(np.copy(array) for array in simulator.view()))


def samples(log: Log, servers: int) -> tuple[NDArray[np.float64], ...]:
    """RIF per server at the leaf just before each request, latency there, and when it was done."""
    leaf_s, done_s = np.sort(log["leaf_s"]), np.sort(log["done_s"])
    rif = np.searchsorted(leaf_s, log["leaf_s"]) - np.searchsorted(done_s, log["leaf_s"], "right")
    return rif / servers, log["done_s"] - log["leaf_s"], log["done_s"]


def test_the_leafs_fit_is_scipys_fit_of_the_request_log() -> None:
    """Two rounds: samples by their age, then the fleet's prior, which the first fit has moved.

    The root is 0.1 s away, which is no part of a sample, and learns of a fit as much later.
    """
    memory_s, prior_sd, refit_s = 20.0, 0.5, 15.0
    scenario = system(rtt_s=(0.2,), memory_s=memory_s, prior_sd=prior_sd, refit_interval_s=refit_s)
    simulator = started(scenario)
    published = [to(simulator, k * refit_s + 0.2).model[0, 0, 0] for k in (1, 2)]
    to(simulator, 100.0)
    n, y, done_s = samples(simulator.request_log(0), 2)
    first = from_model(latency_parameters(scenario)[0])
    prior = first
    for k, model in enumerate(published, start=1):
        done = done_s <= k * refit_s
        weight = np.exp(-(k * refit_s - done_s[done]) / memory_s)
        bins = binned(n[done], y[done], scenario.server.queue_limit, weight)
        expected, _ = scipy_fit(bins, prior, prior, prior_sd)
        # The next prior is made of scipy's fits, so that their errors of some 1e-6 add up.
        np.testing.assert_allclose(from_model(model), expected, rtol=0, atol=1e-5)
        say = weight.sum() / (weight.sum() + 10.0)
        prior = (first + say * expected) / (1.0 + say)


def test_a_stationary_cell_is_estimated_within_sampling_error() -> None:
    """Fitted on one part of an episode, the model is right on average on the next part.

    The residual's standard error comes from means over 10 s, which hardly depend on one another.
    """
    scenario = system((4,), utilisation=0.8, memory_s=1e5, refit_interval_s=190.0, prior_sd=2.0)
    simulator = started(scenario)
    model = to(simulator, 200.0).model[0, 0, 0]
    to(simulator, 450.0)
    n, y, done_s = samples(simulator.request_log(0), 4)
    misses = []
    for start_s in range(200, 390, 10):
        part = (done_s > start_s) & (done_s <= start_s + 10)
        misses.append((y[part] - curve(model, n[part])).mean())
    error_s = np.std(misses, ddof=1) * np.sqrt(1 / len(misses) + 1 / 19)  # of both parts
    assert abs(np.mean(misses)) < 4 * error_s
    assert error_s < 0.03
    # And over the loads that it saw, whose curve is no softplus: within some per cent.
    edges = np.quantile(n, [0.0, 0.2, 0.5, 0.8, 1.0])
    for low, high in itertools.pairwise(edges):
        part = (done_s > 200.0) & (n >= low) & (n < high)
        assert curve(model, n[part]).mean() == pytest.approx(y[part].mean(), rel=0.06)


def test_a_cell_without_requests_keeps_what_the_fleet_expects() -> None:
    """theory.md section 5: no data, the prior exactly; cell 0's fits move it."""
    scenario = system((2, 2), refit_interval_s=10.0)
    simulator = started(scenario, weights=(1.0, 0.0))
    views = [to(simulator, 10.0 * k) for k in (1, 2)]
    first = from_model(latency_parameters(scenario)[0])
    np.testing.assert_allclose(views[0].model[0, 0, 1], model_of(first), rtol=1e-12)
    # Round 2 of the idle cell: the first prior and cell 0's fit of round 1.
    to(simulator, 60.0)
    _, _, done_s = samples(simulator.request_log(0), 2)
    weight = np.exp(-(10.0 - done_s[done_s <= 10.0]) / 60.0).sum()
    say = weight / (weight + 10.0)
    prior = (first + say * from_model(views[0].model[0, 0, 0])) / (1.0 + say)
    np.testing.assert_allclose(views[1].model[0, 0, 1], model_of(prior), rtol=1e-9)


def test_a_fit_reaches_a_root_with_the_first_report_after_it_and_not_before() -> None:
    """Rows differ in what their estimators believe; decisions do not depend on it.

    A fit at 10 s is in the report of 10 s, which is there at the first decision at or after
    10 s + tau: no field differs earlier, and the model's do then.
    """
    rtt_s = (0.1, 0.5, 0.94)
    plain = system((2, 2, 2), rtt_s, refit_interval_s=10.0)
    other = override(plain, {"latency_estimate.prior_sd": 0.05})
    simulator = started(plain, other)
    first: dict[str, NDArray[np.int64]] = {}
    for step in range(1, 120):
        view = to(simulator, step * STEP_S)
        for name, array in zip(View._fields, view, strict=True):
            if array.ndim < 3:
                differ = np.broadcast_to((array[0] != array[1]).any(), 3)
            else:
                differ = (array[0] != array[1]).reshape(1, 3, -1).any(axis=(0, 2))
            known = first.setdefault(name, np.full(3, 1000))
            known[:] = np.where(differ, np.minimum(known, step), known)
    expected = [math.ceil((10.0 + rtt / 2) / STEP_S - 1e-9) for rtt in rtt_s]
    assert expected == [101, 103, 105]
    np.testing.assert_array_equal(first.pop("model"), expected)
    assert all((steps == 1000).all() for steps in first.values())


def test_only_completed_requests_are_samples_so_a_young_estimate_is_short() -> None:
    """A request of latency y that came at a uniform instant of [0, T] is done by T with (T - y)+.

    So the mean of the samples at T is sum y (T - y)+ / sum (T - y)+ over the latencies of all: far
    below the mean where T is a latency or two, and 1 / T below it later on.
    """
    scenario = system(
        (40,), utilisation=0.04, memory_s=1e6, refit_interval_s=1.0, prior_sd=100.0,
        changes={"horizon_s": 60.0},
    )  # fmt: skip
    simulator = started(scenario, seeds=60)
    times_s = (2.0, 4.0, 20.0)
    published = [to(simulator, time_s).model[:, 0, 0] for time_s in times_s]
    to(simulator, 80.0)
    rows = [samples(simulator.request_log(r), 40) for r in range(60)]
    y = np.concatenate([latency_s for _, latency_s, _ in rows])
    means = {}
    for time_s, models in zip(times_s, published, strict=True):
        estimates = np.array(
            [
                curve(m, n[done_s <= time_s]).mean()
                for m, (n, _, done_s) in zip(models, rows, strict=True)
                if (done_s <= time_s).any()
            ]
        )
        chance = np.maximum(time_s - y, 0.0)
        law_s = (y * chance).sum() / chance.sum()
        assert abs(estimates.mean() - law_s) < 4 * estimates.std(ddof=1) / np.sqrt(60)
        means[time_s] = estimates.mean() / y.mean()
    assert means[2.0] < 0.85
    assert 0.95 < means[20.0] < 1.0


def test_background_requests_go_to_a_cell_at_random() -> None:
    """With all weight on cell 0 of 3, others get background x 2 / 3 of the requests."""
    background = 0.3
    simulator = started(system((6, 2, 2), background=background), weights=(1.0, 0.0, 0.0))
    sent = to(simulator, 120.0).sent[0, 0]
    total = sent.sum()
    for j in (1, 2):
        share = background / 3
        assert abs(sent[j] / total - share) < 4 * math.sqrt(share * (1 - share) / total)


def test_dither_scales_what_is_published_and_nothing_that_is_learned() -> None:
    """Factors 1 + d u, u uniform on [-1, 1], drawn at every fit and cell; bends stay."""
    plain = system((2, 2, 2), refit_interval_s=1.0)
    dithered = override(plain, {"latency_estimate.dither": 0.2})
    simulator = started(plain, dithered)
    factors = []
    for second in range(1, 101):
        alpha, beta, knee, smoothing = np.moveaxis(to(simulator, float(second)).model[:, 0], -1, 0)
        np.testing.assert_array_equal(knee[0], knee[1])
        np.testing.assert_array_equal(smoothing[0], smoothing[1])
        np.testing.assert_allclose(alpha[1] / alpha[0], beta[1] / beta[0], rtol=1e-12)
        factors.append(alpha[1] / alpha[0])
    u = (np.concatenate(factors) - 1.0) / 0.2
    assert stats.kstest(u, stats.uniform(-1.0, 2.0).cdf).pvalue > 1e-3


def test_replicas_take_turns_at_fitting_and_a_dead_ones_round_changes_nothing() -> None:
    """Of two replicas, number 0 is down; it would have fitted in rounds 2 and 4."""
    scenario = system(
        refit_interval_s=5.0,
        changes={
            "horizon_s": 30.0,
            "telemetry": {"leaf_replicas": 2},
            "disturbances": [{"kind": "leaf_crash", "replicas": 1, "start": 0.0, "end": 1.0}],
        },
    )
    simulator = started(scenario)
    models = [to(simulator, 5.0 * k + 0.1).model[0, 0, 0] for k in range(5)]
    changed = [bool((models[k] != models[k - 1]).any()) for k in range(1, 5)]
    assert changed == [True, False, True, False]


def test_noise_multiplies_a_cells_parameters_by_one_factor() -> None:
    """Paper 5.4: (1 + eps xi) theta with xi uniform on [-1, 1]; the bend stays admissible."""
    epsilon = 0.5
    plain = load_scenario("global_six")
    noisy = override(plain, {"latency_estimate": {"kind": "noisy", "epsilon": epsilon}})
    oracle = latency_parameters(plain)
    factors = []
    for seed in range(60):
        ratio = initial_models(noisy, seed, 0) / oracle
        for column in (1, 3):
            np.testing.assert_allclose(ratio[:, column], ratio[:, 0], rtol=1e-12)
        alpha, beta, knee, _ = initial_models(noisy, seed, 0).T
        bound = 0.9 * alpha / beta
        np.testing.assert_allclose(knee, np.minimum(ratio[:, 0] * oracle[:, 2], bound), rtol=1e-12)
        factors.append(ratio[:, 0])
    xi = (np.concatenate(factors) - 1.0) / epsilon
    assert stats.kstest(xi, stats.uniform(-1.0, 2.0).cdf).pvalue > 1e-3
    columns = np.array(factors)
    assert np.abs(np.corrcoef(columns.T)[np.triu_indices(6, 1)]).max() < 4 / math.sqrt(60)


def test_noisy_models_are_in_the_first_reports_and_stay() -> None:
    scenario = system((2, 2), changes={"latency_estimate": {"kind": "noisy", "epsilon": 0.3}})
    simulator = started(scenario)
    expected = initial_models(scenario, SEED, 0)
    for time_s in (0.1, 30.0):
        np.testing.assert_array_equal(to(simulator, time_s).model[0, 0], expected)


def test_online_begins_with_the_same_model_for_all_cells() -> None:
    """The mean of the cells' logarithms, by servers: what is known before a request was served."""
    scenario = override(load_scenario("global_six"), {"latency_estimate": {"kind": "online"}})
    models = initial_models(scenario, SEED, 0)
    servers = np.array([cell.servers for cell in scenario.cells])
    logs = np.array([from_model(model) for model in latency_parameters(scenario)])
    mean = model_of(servers @ logs / servers.sum())
    np.testing.assert_allclose(models, np.tile(mean, (6, 1)), rtol=1e-12)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"refit_interval_s": 0.05}, "latency_estimate.refit_interval_s = 0.05"),
        ({"kind": "exact"}, "latency_estimate.kind"),
        ({"background": 0.6}, "latency_estimate.background"),
        ({"prior_sd": 0.0}, "latency_estimate.prior_sd"),
    ],
)
def test_bad_estimates_are_refused_by_their_key(table: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        system(**table)
