from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.flow import Flow
from tests.baselines.scenes import observe, start

# Latency is 1 throughout, so m = n and m' = 1 (see scenes.DEFAULTS).
# T = mean of tau + age + h / 2: (0.0625 + 0.125 + 0.125, 0.1875 + 0.375 + 0.125) = 0.5 zero-load
# times. A probe is at least tau old, so its age holds the way back already.
DELAYS = {"rtt": [0.125, 0.375], "probe_age": [0.125, 0.375]}


def test_the_first_step_is_the_one_computed_by_hand() -> None:
    # eta = 0.5 min_j k_j / (T sum_j k_j n_j) = 0.5 x 0.5 / (0.5 x 3) = 1/6;
    # h eta (c - min c) = 0.25 / 6 x (0, 2) = (0, 1/12), half of which moves from cell 1 to cell 0.
    seen = observe(1, 2, rif=[2.0, 4.0], **DELAYS)
    routing = start(Flow("rif"), 1, 2).act(seen).routing
    np.testing.assert_allclose(routing, [[[0.5 + 1 / 24, 0.5 - 1 / 24]]], rtol=1e-14)


def _marginal(n: float) -> float:
    """f = l² / (l - n l') of alpha 1, beta 1/8, knee 7, smoothing 2."""
    latency = 1.0 + 0.25 * math.log1p(math.exp((n - 7.0) / 2.0))
    slope = 0.125 / (1.0 + math.exp((7.0 - n) / 2.0))
    return latency**2 / (latency - n * slope)


def _step_to_cell_1(rif: list[float], steepest: float) -> tuple[float, float]:
    """Share that a gradient step moves, and what it should be with slopes taken at `steepest`."""
    serving, marginal = [1.5, 1.25], [2.5, 1.5]
    seen = observe(
        1,
        2,
        rif=rif,
        serving_latency=serving,
        marginal_latency=marginal,
        model_smoothing=2.0,
        **DELAYS,
    )
    routing = start(Flow("gradient"), 1, 2).act(seen).routing
    assert routing is not None
    slope = (_marginal(steepest + 1e-5) - _marginal(steepest - 1e-5)) / 2e-5
    carried = 0.5 * (rif[0] / serving[0] + rif[1] / serving[1])
    eta = 0.5 * 0.5 / _marginal(steepest) / slope / (0.5 * carried)
    excess = (marginal[0] + 0.125) - (marginal[1] + 0.375)
    return routing[0, 0, 1] - 0.5, 0.25 * eta * excess / 2


def test_a_gradient_step_divides_by_the_slope_of_the_marginal_latency() -> None:
    found, expected = _step_to_cell_1([6.0, 3.0], steepest=6.0)
    assert found == pytest.approx(expected, rel=1e-6)


def test_far_past_the_knee_the_slopes_are_those_at_one_and_a_half_knees() -> None:
    found, expected = _step_to_cell_1([24.0, 3.0], steepest=10.5)
    assert found == pytest.approx(expected, rel=1e-6)


def test_a_row_moves_by_at_most_a_tenth() -> None:
    # eta = 0.25 / (0.5 x 3) = 1/6 would move 0.25 / 6 x 6 / 2 = 1/8.
    seen = observe(1, 2, rif=[6.0, 0.0], **DELAYS)
    routing = start(Flow("rif"), 1, 2).act(seen).routing
    np.testing.assert_allclose(routing, [[[0.4, 0.6]]], rtol=1e-14)


@pytest.mark.parametrize("cost", ["rif", "latency", "gradient"])
def test_an_empty_fleet_moves_by_the_cap_and_stays_on_the_simplex(cost: str) -> None:
    policy = start(Flow(cost), 1, 3)
    seen = observe(1, 3, rif=0.0, rtt=[0.0, 0.25, 0.5], capacity_load=[0.25, 0.25, 0.5])
    for _ in range(20):
        routing = policy.act(seen).routing
    assert routing is not None
    expected = [0.25, 0.25, 0.5] if cost == "rif" else [1.0, 0.0, 0.0]
    np.testing.assert_allclose(routing[0, 0], expected, atol=1e-12)


def test_arrival_rates_are_never_read() -> None:
    rng = np.random.default_rng(1)
    for cost in ("rif", "latency", "gradient"):
        one, two = start(Flow(cost), 2, 3), start(Flow(cost), 2, 3)
        for _ in range(5):
            scene = {"rif": rng.uniform(0, 12, (2, 3)), "rtt": rng.uniform(0, 0.3, (2, 3))}
            quiet = one.act(observe(2, 3, arrival_load=0.0, **scene)).routing
            busy = two.act(observe(2, 3, arrival_load=0.9, **scene)).routing
            np.testing.assert_array_equal(quiet, busy)


def test_a_decision_is_not_changed_by_the_next_one() -> None:
    policy = start(Flow("rif"), 1, 2)
    first = policy.act(observe(1, 2, rif=[2.0, 4.0])).routing
    assert first is not None
    kept = first.copy()
    policy.act(observe(1, 2, rif=[9.0, 0.0]))
    np.testing.assert_array_equal(first, kept)


def test_arguments_out_of_range_are_refused() -> None:
    with pytest.raises(
        ValueError, match=r"max_move = 0\.0 must lie in \(0, 1\]; 0\.\d+ is the default"
    ):
        Flow("rif", max_move=0.0)
    with pytest.raises(ValueError, match="gain = nan must be finite and above 0; 1 is the default"):
        Flow("rif", gain=float("nan"))
