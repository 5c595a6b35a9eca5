from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from dlb_gym.latency_model import RHO_MAX, STEP_MAX, LatencyModel, OperatingPoint, step_size

MODEL = LatencyModel(*(np.array(value) for value in (1.0, 0.1, 8.0, 1.5)))
GRID = np.linspace(0.0, 60.0, 601)


def _difference(values: str, n: np.ndarray) -> np.ndarray:
    step = 1e-4
    up, down = getattr(MODEL.at(n + step), values), getattr(MODEL.at(n - step), values)
    return (up - down) / (2 * step)


def test_latency_is_the_softplus_written_out() -> None:
    expected = [1.0 + 0.15 * math.log(1.0 + math.exp((n - 8.0) / 1.5)) for n in GRID]
    np.testing.assert_allclose(MODEL.at(GRID).latency, expected, rtol=1e-14)


def test_at_the_knee_the_numbers_are_those_of_a_hand_computation() -> None:
    point = MODEL.at(np.array(8.0))
    assert point.latency == pytest.approx(1.0 + 0.15 * math.log(2.0), rel=1e-15)
    assert point.latency_slope == pytest.approx(0.05, rel=1e-15)
    assert point.latency_curvature == pytest.approx(0.1 / 6.0, rel=1e-15)
    assert point.headroom == pytest.approx(0.6 + 0.15 * math.log(2.0), rel=1e-15)


@pytest.mark.parametrize(
    ("curve", "derivative"),
    [
        ("latency", "latency_slope"),
        ("latency_slope", "latency_curvature"),
        ("rate", "rate_slope"),
        ("marginal_latency", "marginal_slope"),
    ],
)
def test_derivatives_agree_with_finite_differences(curve: str, derivative: str) -> None:
    n = GRID[1:]
    np.testing.assert_allclose(
        getattr(MODEL.at(n), derivative), _difference(curve, n), rtol=1e-6, atol=1e-9
    )


def test_marginal_latency_is_l_squared_over_l_minus_n_slope() -> None:
    point = MODEL.at(GRID)
    expected = point.latency**2 / (point.latency - GRID * point.latency_slope)
    np.testing.assert_allclose(point.marginal_latency, expected, rtol=1e-12)


def test_the_rate_rises_concavely_to_one_over_beta_and_the_marginal_latency_rises() -> None:
    point = MODEL.at(np.linspace(0.0, 400.0, 4001))
    assert (np.diff(point.rate) > 0).all()
    assert (np.diff(point.rate_slope) < 0).all()
    assert (np.diff(point.marginal_latency) > 0).all()
    assert MODEL.at(np.array(1e9)).rate == pytest.approx(1 / 0.1, rel=1e-6)


def test_an_empty_cell_costs_its_latency() -> None:
    point = MODEL.at(np.array(0.0))
    assert point.marginal_latency == pytest.approx(point.latency, rel=1e-14)
    assert point.rate == 0.0


def test_extremes_keep_their_digits_and_overflow_nowhere() -> None:
    sharp = LatencyModel(*(np.array(value) for value in (1.0, 0.125, 7.0, 2.0**-20)))
    low, high = sharp.at(np.array(0.0)), sharp.at(np.array(2.0**20))
    assert (low.latency, low.latency_slope, low.headroom) == (1.0, 0.0, 1.0)
    assert high.latency == 1.0 + 0.125 * (2.0**20 - 7.0)
    assert (high.latency_slope, high.headroom) == (0.125, 0.125)
    # f' = 2 l l' / H, exactly.
    latency = Fraction(1) + Fraction(1, 8) * (2**20 - 7)
    assert high.marginal_slope == float(2 * latency)


def test_a_knee_beyond_the_bound_is_lowered_to_it_and_bounds_the_marginal_latency() -> None:
    ideal = LatencyModel(*(np.array(value) for value in (1.0, 0.125, 8.0, 0.25)))
    capped = ideal.constrained()
    assert capped.knee == pytest.approx(RHO_MAX * 8.0)
    point = capped.at(GRID)
    bound = point.latency**2 / ((1 - RHO_MAX) * 1.0)
    assert (point.marginal_latency <= bound * (1 + 1e-12)).all()
    assert MODEL.constrained().knee == MODEL.knee


def test_torch_arrays_give_the_same_numbers_and_the_same_derivatives() -> None:
    torch = pytest.importorskip("torch")
    grid = np.append(GRID, 8.0)
    numbers = [torch.tensor(value, dtype=torch.float64) for value in (1.0, 0.1, 8.0, 1.5)]
    n = torch.tensor(grid, requires_grad=True)
    point: OperatingPoint = LatencyModel(*numbers, xp=torch).at(n)
    (slope,) = torch.autograd.grad(point.marginal_latency.sum(), n)
    expected = MODEL.at(grid)
    np.testing.assert_allclose(point.latency.detach().numpy(), expected.latency, rtol=1e-14)
    np.testing.assert_allclose(slope.numpy(), expected.marginal_slope, rtol=1e-10)


def _hyperbolic_step(round_trip: float, scale: float = 1.0) -> float:
    """Theory section 3a: one root, two equal cells of rate 10 N / (N + 10), offered 12."""
    shape = (1, 2)
    eta = step_size(
        servers=np.full(shape, scale),
        rate=np.full(shape, 6.0),
        rate_slope=np.full(shape, 100.0 / 25.0**2),
        cost_slope=np.full(shape, 2 * 25.0 / 100.0),
        loop_delay=np.full(shape, round_trip),
        admissible=np.ones(shape, dtype=np.bool_),
    )
    return float(eta[0, 0])


@pytest.mark.parametrize(("one_way", "critical"), [(0.05, 0.26738), (0.5, 0.02735), (5.0, 0.00318)])
def test_the_step_is_safely_below_the_gain_at_which_two_cells_oscillate(
    one_way: float, critical: float
) -> None:
    # a = 0.16, f' = 0.5, 12 requests a second: eta = 0.5 x 0.16 / (0.5 x 12 x 2 tau).
    eta = _hyperbolic_step(2 * one_way)
    assert eta == pytest.approx(0.5 * 0.16 / (6.0 * 2 * one_way), rel=1e-14)
    assert 0.4 * critical < eta <= 0.5 * critical


def test_the_scale_of_the_servers_cancels() -> None:
    assert _hyperbolic_step(0.1, scale=1 / 64) == _hyperbolic_step(0.1)


def test_the_step_reads_arcs_only_and_the_stiffest_cell_rules() -> None:
    # Cell 2 is no arc and cell 3 has no server. Cells 0 and 1: k m' / f' = 2 and 0.5.
    eta = step_size(
        servers=np.array([[2.0, 1.0, 9.0, 0.0]]),
        rate=np.array([[3.0, 4.0, 99.0, 1.0]]),
        rate_slope=np.array([[1.0, 1.0, 1e-9, 1e-9]]),
        cost_slope=np.array([[1.0, 2.0, 5.0, 5.0]]),
        loop_delay=np.array([[0.1, 0.2, 77.0, 0.3]]),
        admissible=np.array([[True, True, False, True]]),
    )
    assert eta.shape == (1, 1)
    assert eta[0, 0] == pytest.approx(0.5 * 0.5 / (0.2 * 10.0), rel=1e-14)


def test_nothing_in_flight_gives_the_largest_step() -> None:
    zeros, ones = np.zeros((1, 2)), np.ones((1, 2))
    eta = step_size(
        servers=ones,
        rate=zeros,
        rate_slope=ones,
        cost_slope=zeros,
        loop_delay=ones,
        admissible=ones > 0,
    )
    assert eta[0, 0] == STEP_MAX
