"""Stability of Flow against closed forms, the characteristic equation and the delay equations."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import lambertw

from dlb_gym.latency_model import LatencyModel
from dlb_gym.service_curves import SoftplusCells, require_cost
from dlb_gym.stability import (
    Loop,
    critical_gain,
    equal_delay_gain,
    linearised,
    one_root_step,
    rightmost_root,
    sufficient_gain,
)
from dlb_gym.textbook_curves import HyperbolicCells

NAN = np.nan
FREQUENCIES = np.geomspace(1e-2, 1e2, 6000)


def two_cells(tau_s: float, time_unit: float = 1.0) -> Loop:
    """Theory.md 3a: mu = 10 N / (N + 10), 6 of 12 requests a second each, so N = 15."""
    curves = HyperbolicCells(np.full(2, 10.0 / time_unit), np.full(2, 10.0), np.ones(2))
    return linearised(
        np.array([12.0 / time_unit]),
        np.full((1, 2), tau_s * time_unit),
        curves,
        "gradient",
        np.full(2, 15.0),
        np.ones(1),
    )


def random_loop(seed: int, cells: int = 5) -> Loop:
    """Three roots, delays from 0.01 to 1 s; every root uses two cells at least."""
    rng = np.random.default_rng(seed)
    used = rng.random((3, cells)) < 0.6
    used[:, :2] = True
    return Loop(
        rates_rps=rng.uniform(1.0, 5.0, 3),
        one_way_s=np.where(used, rng.uniform(0.01, 1.0, (3, cells)), NAN),
        rate_slope=rng.uniform(0.3, 3.0, cells),
        cost_slope=rng.uniform(0.1, 1.0, cells),
        support=used,
        eta=rng.uniform(0.05, 0.15, 3),
    )


def open_loop(loop: Loop, s: np.ndarray) -> np.ndarray:
    """(s (s I + A))^-1 sum_i lambda_i eta_i D_i P_i D_i B, as theory.md section 3 writes it.

    Shape (..., cells, cells) for s of shape (...).
    """
    s = np.asarray(s)[..., None]
    total = np.zeros((), complex)
    for i, used in enumerate(loop.support):
        projector = np.diag(used.astype(float)) - np.outer(used, used) / used.sum()
        delay = np.exp(-s * np.where(used, loop.one_way_s[i], 0.0))
        feedback = delay[..., :, None] * projector * delay[..., None, :]
        total = total + loop.rates_rps[i] * loop.eta[i] * feedback
    inverse = 1.0 / (s * (s + loop.rate_slope))
    whole: np.ndarray = inverse[..., :, None] * total * loop.cost_slope
    return whole


@pytest.mark.parametrize(("tau_s", "printed"), [(0.05, 0.26738), (0.5, 0.02735), (5.0, 0.00318)])
def test_two_equal_cells_oscillate_where_theory_says(tau_s: float, printed: float) -> None:
    loop = two_cells(tau_s)
    # mu' = 100 / 25^2; f = 1 / mu', f' = 2 x 25 / 100: kappa = 12 eta 0.5.
    assert loop.rate_slope == pytest.approx([0.16, 0.16])
    assert loop.cost_slope == pytest.approx([0.5, 0.5])
    found = critical_gain(loop)
    assert found == pytest.approx(printed, abs=5.01e-6)
    assert found == pytest.approx(equal_delay_gain(0.16, 2.0 * tau_s) / 6.0, rel=1e-9)
    assert rightmost_root(loop.scaled(0.97 * found)).real < 0.0
    assert rightmost_root(loop.scaled(1.03 * found)).real > 0.0


@pytest.mark.parametrize("product", [1e-6, 1e-3, 1.0, 30.0, 1e4])
def test_the_closed_form_puts_a_pair_on_the_imaginary_axis(product: float) -> None:
    """By hand: with s = i w, w^2 = kappa cos(w T) and a w = kappa sin(w T)."""
    a, delay_s = 0.7, product / 0.7
    kappa = equal_delay_gain(a, delay_s)
    squared = 0.5 * (np.hypot(a**2, 2.0 * kappa) - a**2)  # w^4 + a^2 w^2 = kappa^2
    if product < 1.0:  # the difference cancels; kappa / a is then its root
        squared = kappa**2 / (0.5 * (np.hypot(a**2, 2.0 * kappa) + a**2))
    angle = np.sqrt(squared) * delay_s
    assert kappa * np.cos(angle) == pytest.approx(squared, rel=1e-9)
    assert kappa * np.sin(angle) == pytest.approx(a * np.sqrt(squared), rel=1e-9)
    assert angle < np.pi / 2
    assert 1.0 < kappa * delay_s / a < np.pi / 2  # theory.md 3a


@pytest.mark.parametrize("kappa", [0.01, 0.3, 20.0])
def test_a_double_integrator_has_lambert_roots(kappa: float) -> None:
    """Without outflow s^2 + kappa e^(-s T) = 0: s T / 2 = W(i sqrt(kappa) T / 2)."""
    delay_s = 1.4
    loop = Loop(
        rates_rps=np.array([kappa]),
        one_way_s=np.full((1, 2), 0.5 * delay_s),
        rate_slope=np.zeros(2),
        cost_slope=np.ones(2),
        support=np.ones((1, 2), bool),
        eta=np.ones(1),
    )
    root = 2.0 / delay_s * lambertw(0.5j * np.sqrt(kappa) * delay_s)
    assert rightmost_root(loop) == pytest.approx(root, rel=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_without_delay_it_is_the_plain_matrix_over_arcs(seed: int) -> None:
    """N' = sum_i lambda_i dx_i - A N, dx_i' = -eta_i P_i B N, with a 0 for what cannot move."""
    loop = random_loop(seed)
    loop = loop._replace(one_way_s=np.where(loop.support, 0.0, NAN))
    root, cell = np.nonzero(loop.support)
    arcs, cells = len(root), len(loop.rate_slope)
    matrix = np.zeros((cells + arcs,) * 2)
    matrix[:cells, :cells] = -np.diag(loop.rate_slope)
    matrix[cell, cells + np.arange(arcs)] = loop.rates_rps[root]
    same = root[:, None] == root
    projector = np.eye(arcs) - same / loop.support.sum(axis=1)[root][:, None]
    matrix[cells:, :cells] = (
        -loop.eta[root][:, None] * projector * loop.cost_slope[cell] @ np.eye(cells)[cell]
    )
    roots = np.linalg.eigvals(matrix)
    moving = roots[np.abs(roots) > 1e-7]
    alone = int((~loop.support.any(axis=0)).sum())
    assert len(moving) == 2 * cells - 1 - alone  # the linked cells are one set
    found = rightmost_root(loop)
    assert found.real == pytest.approx(moving.real.max(), rel=1e-9)
    assert critical_gain(loop) == np.inf


@pytest.mark.parametrize("gain", [1.0, 0.1, 0.001])
def test_slow_roots_of_short_loops_are_exact_too(gain: float) -> None:
    """Real ones, found on the axis, of modes far slower than the longest delay."""
    loop = Loop(
        rates_rps=np.array([114.0]),
        one_way_s=np.array([[0.129, 0.0276]]),
        rate_slope=np.array([0.114, 0.0316]),
        cost_slope=np.array([0.0078, 0.0120]),
        support=np.ones((1, 2), bool),
        eta=np.array([0.00029 * gain]),
    )
    root = brentq(
        lambda s: np.linalg.det(np.eye(2) + open_loop(loop, s)).real,
        -0.0108 * gain,
        -1e-7 * gain,
        xtol=1e-18,
    )
    assert rightmost_root(loop) == pytest.approx(root, rel=1e-7)


@pytest.mark.parametrize("seed", range(5))
def test_the_rightmost_root_is_one_and_none_is_farther_right(seed: int) -> None:
    """By the argument principle: roots right of a line are what the determinant winds round 0."""
    loop = random_loop(seed)
    loop = loop.scaled(2.0 * critical_gain(loop))
    root = rightmost_root(loop)
    assert root.real > 0.05  # so that the poles at 0 and -a_j stay left of the lines
    whole = np.linalg.svd(np.eye(5) + open_loop(loop, root), compute_uv=False)
    assert whole[-1] < 1e-9 * whole[0]

    def to_the_right_of(line: float) -> int:
        upwards = np.sinh(np.linspace(0.0, np.arcsinh(1e4), 4000))
        values = np.linalg.det(np.eye(5) + open_loop(loop, line + 1j * upwards))
        turned = np.angle(values[1:] / values[:-1])
        assert np.abs(turned).max() < 1.0
        return -round(turned.sum() / np.pi)  # below the axis it is the mirror image

    assert to_the_right_of(root.real + 0.02) == 0
    assert to_the_right_of(root.real - 0.02) == 2


@pytest.mark.parametrize("seed", range(8))
def test_the_critical_gain_is_where_an_eigenlocus_first_meets_minus_one(seed: int) -> None:
    """Nyquist: det(I + gain x open loop(i w)) = 0 for an eigenvalue -1 / gain of the open loop."""
    loop = random_loop(seed)
    eigenvalues = np.linalg.eigvals(open_loop(loop, 1j * FREQUENCIES))
    before, after = eigenvalues[:-1], eigenvalues[1:]
    pairs = np.argmin(np.abs(before[:, :, None] - after[:, None, :]), axis=-1)
    after = np.take_along_axis(after, pairs, axis=-1)
    crosses = before.imag * after.imag < 0.0
    before, after = before[crosses], after[crosses]
    share = before.imag / (before.imag - after.imag)
    met = before.real + share * (after.real - before.real)
    first = np.min(-1.0 / met[met < -1e-6])
    assert critical_gain(loop) == pytest.approx(first, rel=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_the_delay_equations_decay_below_the_critical_gain_and_grow_above(seed: int) -> None:
    loop = random_loop(seed)
    below, above = growth_rates(loop, critical_gain(loop) * np.array([0.97, 1.03]))
    assert below < 0.0 < above


def growth_rates(loop: Loop, gains: np.ndarray) -> np.ndarray:
    """How fast the largest deviation of N grows, 1/s, under each gain.

    (8) and (9) linearised arc by arc, in Heun's steps of a fiftieth of the shortest time.
    """
    step_s, steps = 0.02, 15_000
    root, cell = np.nonzero(loop.support)
    lag = np.round(loop.one_way_s[root, cell] / step_s).astype(int)
    arcs = np.arange(len(root))
    rif = np.zeros((steps + 1, 5, len(gains)))
    routing = np.zeros((steps + 1, len(root), len(gains)))
    rif[0] = np.array([[1.0], [-0.5], [0.3], [-0.2], [0.1]])
    into = (cell == np.arange(5)[:, None]) * loop.rates_rps[root]
    same = (root[:, None] == root) / loop.support.sum(axis=1)[root]
    turned = -(loop.eta[root][:, None] * (np.eye(len(root)) - same)) * loop.cost_slope[cell]

    def slopes(k: int) -> tuple[np.ndarray, np.ndarray]:
        """At step k, from what was one lag ago; nothing deviates before the start."""
        ago, known = np.maximum(k - lag, 0), (k >= lag)[:, None]
        arrived, seen = routing[ago, arcs] * known, rif[ago, cell] * known
        return into @ arrived - loop.rate_slope[:, None] * rif[k], gains * (turned @ seen)

    for k in range(steps):
        first = slopes(k)
        rif[k + 1], routing[k + 1] = rif[k] + step_s * first[0], routing[k] + step_s * first[1]
        second = slopes(k + 1)
        rif[k + 1] = rif[k] + 0.5 * step_s * (first[0] + second[0])
        routing[k + 1] = routing[k] + 0.5 * step_s * (first[1] + second[1])
    third = steps // 3
    largest = np.abs(rif).max(axis=1)[-2 * third :].reshape(2, third, -1).max(axis=1)
    rates: np.ndarray = np.log(largest[1] / largest[0]) / (third * step_s)
    return rates


@pytest.mark.parametrize("seed", range(10))
def test_star_is_sufficient_on_random_networks(seed: int) -> None:
    loop = random_loop(100 + seed)
    assert rightmost_root(loop.scaled(0.999 * sufficient_gain(loop))).real < 0.0


def test_star_by_hand() -> None:
    """Root 1 has one cell only and root 2 is silent: neither moves."""
    loop = Loop(
        rates_rps=np.array([3.0, 100.0, 0.0]),
        one_way_s=np.array([[0.5, 2.0, NAN], [9.0, NAN, NAN], [7.0, 7.0, 7.0]]),
        rate_slope=np.array([2.0, 1.0, 1.0]),
        cost_slope=np.array([0.1, 0.2, 5.0]),
        support=np.array([[True, True, False], [True, False, False], [False, False, True]]),
        eta=np.array([0.5, 1.0, 1.0]),
    )
    # Cell 0: 4 / (1 + 2) / (0.1 x 1.5) = 8.9; cell 1: 1 / (1 + 4) / (0.2 x 1.5) = 2 / 3.
    assert sufficient_gain(loop) == pytest.approx(2.0 / 3.0)
    # A root of 3 / s alone: 4 / 3 / 0.3 = 4.4 and 1 / 5 / 0.6 = 1 / 3.
    step = one_root_step(3.0, loop.rate_slope[:2], loop.cost_slope[:2], np.array([1.0, 4.0]))
    assert step == pytest.approx(1.0 / 3.0)


@pytest.mark.parametrize("seed", range(5))
def test_one_root_is_stable_below_its_bound(seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, tau = rng.uniform(0.1, 3.0, 4), rng.uniform(0.1, 3.0, 4), rng.uniform(0.0, 2.0, 4)
    eta = one_root_step(5.0, a, b, 2.0 * tau)
    loop = Loop(np.array([5.0]), tau[None], a, b, np.ones((1, 4), bool), np.array([0.999 * eta]))
    assert rightmost_root(loop).real < 0.0


@pytest.mark.parametrize("unit", [0.01, 7.0, 3600.0])
def test_times_scale(unit: float) -> None:
    """In another unit of time eta, in 1/s^2, is another number, and nothing else changes."""
    loop, scaled = two_cells(0.5), two_cells(0.5, unit)
    assert critical_gain(scaled) * unit**2 == pytest.approx(critical_gain(loop), rel=1e-9)
    assert sufficient_gain(scaled) * unit**2 == pytest.approx(sufficient_gain(loop), rel=1e-12)


def test_where_nothing_oscillates_any_step_is_stable() -> None:
    loop = two_cells(0.5)
    silent = loop._replace(rates_rps=np.zeros(1))
    single = loop._replace(support=np.array([[True, False]]))
    flat = loop._replace(cost_slope=np.zeros(2))
    at_once = loop._replace(one_way_s=np.zeros((1, 2)))
    for each in (silent, single, flat, at_once):
        assert critical_gain(each) == np.inf
    # What does not move decays as the cells do; where costs are flat nothing brings it back.
    assert rightmost_root(silent) == pytest.approx(-0.16)
    assert rightmost_root(single) == pytest.approx(-0.16)
    assert rightmost_root(flat).real == pytest.approx(0.0, abs=1e-12)
    # s^2 + 0.16 s + 6 = 0.
    assert rightmost_root(at_once) == pytest.approx(-0.08 + 1j * np.sqrt(6.0 - 0.0064))


def test_cells_that_nobody_uses_decay_alone_and_networks_apart_do_not_meet() -> None:
    one, other = random_loop(1, 3), random_loop(2, 3)
    apart = np.zeros((3, 3), bool)
    both = Loop(
        rates_rps=np.concatenate([one.rates_rps, other.rates_rps]),
        one_way_s=np.block([[one.one_way_s, np.full((3, 4), NAN)],
                            [np.full((3, 4), NAN), other.one_way_s]]),
        rate_slope=np.concatenate([one.rate_slope, [1e-3], other.rate_slope]),
        cost_slope=np.concatenate([one.cost_slope, [1.0], other.cost_slope]),
        support=np.block([[one.support, np.zeros((3, 1), bool), apart],
                          [apart, np.zeros((3, 1), bool), other.support]]),
        eta=np.concatenate([one.eta, other.eta]),
    )  # fmt: skip
    gains = critical_gain(one), critical_gain(other)
    assert critical_gain(both) == pytest.approx(min(gains), rel=1e-9)
    assert rightmost_root(both.scaled(0.1 * min(gains))) == pytest.approx(-1e-3, rel=1e-6)
    wild = both.scaled(2.0 * min(gains))
    alone = [rightmost_root(each.scaled(2.0 * min(gains))) for each in (one, other)]
    assert rightmost_root(wild) == pytest.approx(max(alone, key=lambda s: s.real), rel=1e-8)


def test_the_linearisation_takes_the_slopes_and_ties_of_its_cost() -> None:
    """At N = 16 in two servers of l(n) = 1 + 0.1 softplus(n - 8): u = 0, softplus = log 2."""
    curves = SoftplusCells(
        np.full(2, 2.0),
        LatencyModel(np.ones(2), np.full(2, 0.1), np.full(2, 8.0), np.ones(2)),
    )
    latency = 1.0 + 0.1 * np.log(2.0)
    a = (latency - 8.0 * 0.05) / latency**2
    tau_s = np.array([[0.1, 0.1 + 1e-9], [0.1, 0.11], [0.2, NAN]])
    used = [[True, True], [True, False], [True, False]]
    everywhere = [[True, True], [True, True], [True, False]]
    for cost, slope, support in (("rif", 0.5, everywhere), ("latency", 0.05 / 2.0, used)):
        loop = linearised(
            np.ones(3), tau_s, curves, require_cost(cost), np.full(2, 16.0), np.ones(3)
        )
        assert loop.rate_slope == pytest.approx([a, a])
        assert loop.cost_slope == pytest.approx([slope, slope])
        assert loop.support.tolist() == support


def test_a_cell_past_its_peak_is_refused() -> None:
    loop = two_cells(0.5)._replace(rate_slope=np.array([0.2, -0.1]))
    told = r"rate_slope of cell 1 = -0\.1 must be above 0: theory promises nothing where a rate"
    with pytest.raises(ValueError, match=told):
        critical_gain(loop)


@pytest.mark.parametrize("asked", [critical_gain, sufficient_gain, rightmost_root])
def test_what_is_no_step_is_refused(asked: Callable[[Loop], object]) -> None:
    """A negative one turns the feedback round: its loop would pass for stable at any gain."""
    loop = two_cells(0.5)
    for eta in (-1.0, NAN, np.inf):
        told = rf"^eta\[0\] = {eta:g} must be finite and at least 0; give root 0 a step above 0, or"
        with pytest.raises(ValueError, match=told):
            asked(loop._replace(eta=np.array([eta])))
    told = r"^eta has the shape \(2,\), and rates_rps needs \(1,\): give one step a root"
    with pytest.raises(ValueError, match=told):
        asked(loop._replace(eta=np.ones(2)))


def test_a_critical_gain_is_checked_on_a_finer_grid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlb_gym.stability.AGREE", 0.0)
    monkeypatch.setattr("dlb_gym.stability.NOISE", 0.0)
    told = r"rightmost characteristic root was missed: .* with 192 nodes still differs"
    with pytest.raises(ValueError, match=told):
        critical_gain(two_cells(0.5))


def test_a_fast_pair_beside_long_delays_is_not_overlooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pairs of cells apart, 0.1 s and 60 s away, the near one oscillates.

    Few nodes of 60 s do not see it, and agree on a slow root of the other, which is stable.
    """
    short_s, delay_s, a = 0.1, 60.0, 3.0
    loop = Loop(
        rates_rps=np.array([2.0, 2e-6]),
        one_way_s=np.array([[short_s, short_s, NAN, NAN], [NAN, NAN, delay_s, delay_s]]) / 2.0,
        rate_slope=np.full(4, a),
        cost_slope=np.ones(4),
        support=np.array([[True, True, False, False], [False, False, True, True]]),
        eta=np.ones(2),
    )
    gain = 1.1 * equal_delay_gain(a, short_s) / 2.0  # kappa = lambda eta (b + b) / 2
    monkeypatch.setattr("dlb_gym.stability.NODES", (12, 24))
    told = "rightmost characteristic root was missed: -.* with 24 nodes still differs from that"
    with pytest.raises(ValueError, match=told):
        rightmost_root(loop.scaled(gain))
    monkeypatch.setattr("dlb_gym.stability.NODES", (96, 192))
    near = loop._replace(one_way_s=np.where(loop.one_way_s > 1.0, 10.0, loop.one_way_s))
    assert rightmost_root(near.scaled(gain)).real > 0.01


def test_a_loop_that_is_too_fast_to_resolve_is_refused() -> None:
    told = r"rightmost characteristic root was missed: .* lower eta or the longest delay \(1 s\)"
    with pytest.raises(ValueError, match=told):
        rightmost_root(two_cells(0.5).scaled(1e200))
