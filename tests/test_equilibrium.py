"""Equilibria against closed forms, independent solvers and the conditions that define them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize

from dlb_gym.central_path import RESIDUAL
from dlb_gym.equilibrium import (
    Equilibrium,
    InfeasibleError,
    check_feasible,
    equilibrium_of,
    price_of_anarchy,
)
from dlb_gym.generator import sample
from dlb_gym.latency_model import LatencyModel
from dlb_gym.messages import Names
from dlb_gym.rates import one_way_s, root_rates_rps
from dlb_gym.scenario_curves import service_curves_of
from dlb_gym.service_curves import COSTS, Cost, ServiceCurves, SoftplusCells, check_increasing
from dlb_gym.textbook_curves import HyperbolicCells, PooledSlots

NAN = np.nan
Array = NDArray[np.float64]

FLAT = (1.0, 0.1, 8.0, 0.5)
"""Latency 1 up to the knee at 8, then 0.1 a request: a largest rate of 10."""


def softplus(servers: Sequence[float], *rows: tuple[float, float, float, float]) -> SoftplusCells:
    return SoftplusCells(np.array(servers, float), LatencyModel(*np.array(rows, float).T))


def hyperbolic(
    largest: Sequence[float], half: Sequence[float], servers: Sequence[float]
) -> HyperbolicCells:
    return HyperbolicCells(*(np.array(each, float) for each in (largest, half, servers)))


def network(*rows: Sequence[float]) -> Array:
    return np.array(rows, float)


def costs_of(curves: ServiceCurves, rif: Array, one_way_s: Array, cost: Cost) -> Array:
    """c_ij, written out; infinite where there is no arc."""
    point = curves.at(rif)
    own = {"rif": rif / curves.servers, "latency": rif / point.rate_rps, "gradient": None}[cost]
    if own is None:  # 1 / mu' by differences
        step = 1e-6 * np.maximum(rif, 1e-3)
        rise = curves.at(rif + step).rate_rps - curves.at(np.maximum(rif - step, 0.0)).rate_rps
        own = (step + np.minimum(step, rif)) / rise
    ways = np.zeros(one_way_s.shape) if cost == "rif" else 2.0 * one_way_s
    return np.where(np.isnan(one_way_s), np.inf, own + ways)


def assert_conditions(
    found: Equilibrium, rates: Array, ways: Array, curves: ServiceCurves, cost: Cost
) -> None:
    """(5) and (6), and Little's law, none of it by the solver's own words."""
    routing = found.routing
    assert (routing >= 0.0).all()
    assert routing.sum(axis=1) == pytest.approx(np.ones(len(rates)), abs=1e-12)
    assert not routing[np.isnan(ways)].any()
    flow = rates[:, None] * routing
    assert curves.at(found.rif).rate_rps == pytest.approx(flow.sum(axis=0), rel=1e-9, abs=1e-12)
    costs = costs_of(curves, np.maximum(found.rif, 1e-9), ways, cost)
    assert found.least_cost == pytest.approx(costs.min(axis=1), rel=1e-5, abs=1e-8)
    used = routing > 1e-6
    least = np.broadcast_to(costs.min(axis=1, keepdims=True), costs.shape)
    assert costs[used] == pytest.approx(least[used], rel=1e-5, abs=1e-8)
    on_the_wire = np.nansum(flow * 2.0 * ways)
    assert found.latency_s == pytest.approx((found.rif.sum() + on_the_wire) / rates.sum())
    assert 0.0 <= found.residual <= RESIDUAL
    assert found.worst_latency_s >= found.latency_s * (1.0 - 1e-12)
    if cost != "rif":
        assert found.worst_latency_s == found.latency_s


@pytest.mark.parametrize("cost", COSTS)
def test_one_hyperbolic_cell_has_a_closed_form(cost: Cost) -> None:
    """N = z K / (M - z); l = (N + K) / M; 1 / mu' = (N + K)^2 / (M K)."""
    curves = hyperbolic([10.0], [4.0], [2.0])
    found = equilibrium_of(np.array([6.0]), network([0.25]), curves, cost)
    assert found.routing.tolist() == [[1.0]]
    assert found.rif == pytest.approx([6.0], rel=1e-12)
    cell = {"rif": 3.0, "latency": 1.0 + 0.5, "gradient": 2.5 + 0.5}[cost]
    assert found.least_cost == pytest.approx([cell], rel=1e-12)
    assert found.latency_s == pytest.approx(1.5, rel=1e-12)


def test_one_softplus_cell_is_littles_law() -> None:
    curves = softplus([2.0], FLAT)
    found = equilibrium_of(np.array([5.0]), network([0.25]), curves, "gradient")
    # 2.5 a server: the n with n / l(n) = 2.5; both ways take 0.5.
    n = optimize.brentq(lambda n: n / curves.model.at(n).latency[0] - 2.5, 0.0, 9.0, xtol=1e-14)
    assert found.rif == pytest.approx([2 * n], rel=1e-12)
    assert found.latency_s == pytest.approx(2 * n / 5.0 + 0.5, rel=1e-12)


@pytest.mark.parametrize("cost", COSTS)
def test_two_cells_balance_where_bisection_says(cost: Cost) -> None:
    """Near cell M = 10, K = 4, k = 2; far cell M = 8, K = 2, k = 1 at 0.1 s more."""
    ways = np.array([0.02, 0.12])

    def costs(z: float) -> tuple[float, float]:
        both = []
        for rate, largest, half, servers, way in (
            (z, 10.0, 4.0, 2.0, ways[0]),
            (9.0 - z, 8.0, 2.0, 1.0, ways[1]),
        ):
            n = rate * half / (largest - rate)
            latency = (n + half) / largest
            both.append(
                {
                    "rif": n / servers,
                    "latency": latency + 2 * way,
                    "gradient": latency**2 * largest / half + 2 * way,
                }[cost]
            )
        return both[0], both[1]

    z = optimize.brentq(lambda z: costs(z)[0] - costs(z)[1], 1.01, 8.99, xtol=1e-15, rtol=1e-14)
    curves = hyperbolic([10.0, 8.0], [4.0, 2.0], [2.0, 1.0])
    found = equilibrium_of(np.array([9.0]), ways[None], curves, cost)
    assert found.routing[0, 0] == pytest.approx(z / 9.0, rel=1e-10)
    assert found.least_cost == pytest.approx([costs(z)[0]], rel=1e-10)


@pytest.mark.parametrize("cost", COSTS)
def test_any_costs_of_arcs_can_take_the_networks_place(cost: Cost) -> None:
    """M = 10, K = 4 twice: the second cell is as far, and costs 0.4 of the cost's unit more."""

    def excess(z: float) -> float:
        near, far = (n * 4.0 / (10.0 - n) for n in (z, 9.0 - z))
        costs = {
            "rif": (near, far),
            "latency": ((near + 4) / 10, (far + 4) / 10),
            "gradient": ((near + 4) ** 2 / 40, (far + 4) ** 2 / 40),
        }[cost]
        return costs[0] - costs[1] - 0.4

    z = optimize.brentq(excess, 0.0, 9.0, xtol=1e-15, rtol=1e-14)
    assert 4.51 < z < 8.0
    found = equilibrium_of(
        np.array([9.0]),
        network([0.3, 0.3]),
        hyperbolic([10.0, 10.0], [4.0, 4.0], [1.0, 1.0]),
        cost,
        np.array([[0.1, 0.5]]),
    )
    assert found.routing[0, 0] == pytest.approx(z / 9.0, rel=1e-10)


def test_equal_cells_at_equal_distance_share_by_servers() -> None:
    for cost in COSTS:
        found = equilibrium_of(
            np.array([20.0]), np.full((1, 3), 0.1), softplus([1, 2, 5], FLAT, FLAT, FLAT), cost
        )
        assert found.routing[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=1e-6)


def test_a_far_cell_is_used_only_past_its_price() -> None:
    """Near, f = 1/m' grows from 1; the far cell costs 1 + 2 x 0.3 more in ways when empty."""
    curves, ways = softplus([1, 1], FLAT, FLAT), network([0.0, 0.3])
    cells = curves.model
    at_price = optimize.brentq(lambda n: cells.at(n).marginal_latency[0] - 1.6, 0.0, 20.0)
    threshold = float(at_price / cells.at(at_price).latency[0])
    below = equilibrium_of(np.array([0.99 * threshold]), ways, curves, "gradient")
    assert below.routing.tolist() == [[1.0, 0.0]]
    above = equilibrium_of(np.array([1.05 * threshold]), ways, curves, "gradient")
    assert above.rif[0] == pytest.approx(at_price, rel=0.01)
    assert above.routing[0, 1] == pytest.approx(0.05 / 1.05, rel=0.1)


def test_a_pigou_network_costs_selfish_roots_what_it_costs_by_hand() -> None:
    """Cell 0: M = 10, K = 1, at once; cell 1: latency 1 at any load, in all but name; rate 9.

    Cell 1 has M = 1e6 and K = 1e6, so its latency is (N + 1e6) / 1e6 = 1 but for 1e-6. Cell 0's is
    (N + 1) / 10 = 1 / (10 - z): selfish roots fill it until that is 1, with all 9, and pay 1 each.
    The marginal latency is 10 / (10 - z)^2, which is 1 at z = 10 - sqrt(10) = 6.838: N = 2.162
    there, 2.162 in cell 1, 4.325 / 9 = 0.4805 a request. Roots that balance RIF per server (cell 1
    has a million) fill cell 0 to N = z / (10 - z) = (9 - z) / 1e6, hence not at all.
    """
    curves = hyperbolic([10.0, 1e6], [1.0, 1e6], [1.0, 1e6])
    rates, ways = np.array([9.0]), np.zeros((1, 2))
    best_s = 2.0 * (np.sqrt(10.0) - 1.0) / 9.0
    assert price_of_anarchy(rates, ways, curves, "latency") == pytest.approx(
        (1.0 / best_s, 1.0 / best_s), rel=1e-5
    )
    assert price_of_anarchy(rates, ways, curves, "rif") == pytest.approx(
        (1.0 / best_s, 1.0 / best_s), rel=1e-4
    )
    assert price_of_anarchy(rates, ways, curves, "gradient") == (1.0, 1.0)


@pytest.mark.parametrize("empty", [0.1, 1e-3, 1e-5])
def test_selfish_routing_costs_any_factor_by_pigous_example(empty: float) -> None:
    """Own cell z = N / (N + K), far cell a round trip of 1 away, demand 1 - K (K = empty latency).

    Selfish roots stay at home and take K / (1 - z) = 1. At best K / (1 - z)^2 = 1, and 2 (sqrt K -
    K) requests are in flight: the price is (1 + sqrt K) / (2 sqrt K). The far cell's own latency is
    1e-9 at any load.
    """
    curves = hyperbolic([1.0, 1e9], [empty, 1.0], [1.0, 1.0])
    found = price_of_anarchy(np.array([1.0 - empty]), network([0.0, 0.5]), curves, "latency")
    assert found == pytest.approx([(1.0 + empty**0.5) / (2.0 * empty**0.5)] * 2, rel=1e-3)


def test_rif_costs_any_factor_where_servers_are_far() -> None:
    """Two equal cells z = N / (N + K), demand 1/2 at a root by one: RIF sends half of it away.

    It takes K / (1 - 1/4) and 1 for the half that travels; at home all would take K / (1 - 1/2).
    """
    empty = 1e-4
    curves = hyperbolic([1.0, 1.0], [empty, empty], [1.0, 1.0])
    found = price_of_anarchy(np.array([0.5]), network([0.0, 0.5]), curves, "rif")
    assert found == pytest.approx([(empty / 0.75 + 0.5) / (2.0 * empty)] * 2, rel=1e-9)


def test_rif_leaves_it_open_who_travels() -> None:
    """Two roots of 4, two equal cells of M = 8, K = 2: N = 2 in each, whoever fills them.

    At best everybody stays at home (0.01 s one way), at worst everybody crosses (0.21 s).
    """
    curves = hyperbolic([8.0, 8.0], [2.0, 2.0], [1.0, 1.0])
    rates, ways = np.array([4.0, 4.0]), network([0.01, 0.21], [0.21, 0.01])
    found = equilibrium_of(rates, ways, curves, "rif")
    assert found.routing == pytest.approx(np.eye(2), abs=1e-12)
    assert found.latency_s == pytest.approx(0.5 + 0.02, rel=1e-12)
    assert found.worst_latency_s == pytest.approx(0.5 + 0.42, rel=1e-12)
    assert price_of_anarchy(rates, ways, curves, "rif") == pytest.approx((1.0, 0.92 / 0.52))


def potential(curves: ServiceCurves, ways: Array, cost: Cost, flow: Array) -> float:
    """Psi."""
    total = 0.0 if cost == "rif" else float(np.nansum(2.0 * ways * flow))
    for j, rate in enumerate(flow.sum(axis=0)):
        total += potential_of_cell(curves.mapped(lambda each, j=j: each[j : j + 1], np), cost, rate)
    return total


def potential_of_cell(cell: ServiceCurves, cost: Cost, rate_rps: float) -> float:
    """p_j(z): N by bisection, then adaptive quadrature of f_j mu_j' over N."""

    def integrand(n: float) -> float:
        point = cell.at(np.array([n]))
        rise = float(point.rate_slope[0])
        f = {"rif": n / float(cell.servers[0]), "latency": float(point.latency_s[0])}
        return f.get(cost, 1.0 / rise) * rise

    def missing(n: float) -> float:
        return float(cell.at(np.array([n])).rate_rps[0]) - rate_rps

    n = float(optimize.brentq(missing, 0.0, 1e7, xtol=1e-13))
    whole, _ = integrate.quad(integrand, 0.0, n, epsabs=1e-11, epsrel=1e-11, limit=200)
    return float(whole)


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize(
    "curves",
    [
        softplus([1.0, 1.5], FLAT, (0.8, 0.12, 5.0, 0.7)),
        hyperbolic([10.0, 12.0], [4.0, 3.0], [1.0, 1.5]),
    ],
    ids=["softplus", "hyperbolic"],
)
def test_an_independent_solver_of_the_program_agrees(curves: ServiceCurves, cost: Cost) -> None:
    """Sequential quadratic programming on Psi itself, with slopes by differences."""
    rates, ways = np.array([6.0, 9.0]), network([0.05, 0.2], [0.15, 0.02])
    found = equilibrium_of(rates, ways, curves, cost)

    def psi(x: Array) -> float:
        flow = rates[:, None] * np.column_stack([x, 1.0 - x])
        return potential(curves, ways, cost, flow)

    capacity = np.asarray(curves.capacity_rps)
    fits = optimize.LinearConstraint(rates, rates.sum() - 0.999 * capacity[1], 0.999 * capacity[0])
    solved = optimize.minimize(
        psi,
        [0.5, 0.5],
        method="SLSQP",
        bounds=[(0.0, 1.0)] * 2,
        constraints=[fits],
        options={"ftol": 1e-14, "maxiter": 200},
    )
    here = potential(curves, ways, cost, rates[:, None] * found.routing)
    assert here <= solved.fun * (1 + 1e-10)
    assert here == pytest.approx(solved.fun, rel=1e-8)
    z = (rates[:, None] * found.routing).sum(axis=0)
    assert rates @ solved.x == pytest.approx(z[0], rel=1e-3)


def random_system(seed: int) -> tuple[Array, Array, ServiceCurves]:
    """Roots, cells and arcs at random, the fullest cell at 30 to 97 % however one routes."""
    rng = np.random.default_rng(seed)
    roots, cells = (int(rng.integers(1, 9)) for _ in range(2))
    ways = rng.uniform(0.0, 10.0 ** rng.uniform(-2.0, 1.0), (roots, cells))
    ways[rng.random(ways.shape) < 0.3] = NAN
    home = rng.integers(0, cells, roots)
    ways[np.arange(roots), home] = 0.0 if seed % 3 == 0 else 0.002
    servers = 10.0 ** rng.uniform(-1.0, 1.0, cells)
    alpha = rng.uniform(0.5, 1.5, cells)
    beta = alpha / rng.uniform(4.0, 12.0, cells)
    curves: ServiceCurves = SoftplusCells(
        servers,
        LatencyModel(alpha, beta, rng.uniform(0.3, 0.95, cells) * alpha / beta,
                     rng.uniform(0.05, 1.0, cells)),
    )  # fmt: skip
    if seed % 2:
        curves = HyperbolicCells(8.0 * servers, servers * rng.uniform(0.5, 5.0, cells), servers)
    rates = rng.dirichlet(np.full(roots, 0.5))
    rates[0] = max(rates[0], 1e-6)
    arriving = np.zeros(cells)
    np.add.at(arriving, home, rates)
    largest = float(np.max(arriving / np.asarray(curves.capacity_rps)))
    return rng.uniform(0.3, 0.97) / largest * rates, ways, curves


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", range(12))
def test_random_networks_meet_the_conditions(seed: int, cost: Cost) -> None:
    rates, ways, curves = random_system(seed)
    found = equilibrium_of(rates, ways, curves, cost)
    assert_conditions(found, rates, ways, curves, cost)
    assert min(price_of_anarchy(rates, ways, curves, cost)) >= 1.0 - 1e-9


@pytest.mark.parametrize("utilisation", [0.3, 0.8, 0.97])
def test_scenarios_of_the_paper_are_certified(utilisation: float) -> None:
    for episode in range(4):
        scenario = sample("appendix_b", 3, episode, {"demand.utilisation": utilisation})
        rates, ways = root_rates_rps(scenario), one_way_s(scenario)
        curves = service_curves_of(scenario)
        latency_s = {}
        for cost in COSTS:
            found = equilibrium_of(rates, ways, curves, cost)
            assert_conditions(found, rates, ways, curves, cost)
            assert found.residual <= 1e-11
            latency_s[cost] = found.latency_s
        assert latency_s["gradient"] <= min(latency_s.values()) * (1.0 + 1e-9)


@pytest.mark.parametrize("cost", COSTS)
def test_cells_far_apart_in_size_distance_and_number(cost: Cost) -> None:
    rng = np.random.default_rng(5)
    small = softplus([10.0, 0.01], FLAT, FLAT), np.array([70.0, 1.0]), network([0, 10], [10, 0])
    many = (
        softplus(rng.uniform(1, 20, 30).tolist(), *[FLAT] * 30),
        rng.dirichlet(np.ones(30)) * 2000.0,
        rng.uniform(0.0, 0.3, (30, 30)),
    )
    for curves, rates, ways in (small, many):
        found = equilibrium_of(rates, ways, curves, cost)
        assert_conditions(found, rates, ways, curves, cost)


@pytest.mark.parametrize("cost", COSTS)
def test_parts_that_share_nothing_are_solved_apart(cost: Cost) -> None:
    curves = hyperbolic([10.0, 8.0, 5.0], [4.0, 2.0, 1.0], [1.0, 1.0, 1.0])
    rates = np.array([9.0, 3.0])
    both = equilibrium_of(rates, network([0.1, 0.2, NAN], [NAN, NAN, 0.0]), curves, cost)
    pair = hyperbolic([10.0, 8.0], [4.0, 2.0], [1.0, 1.0])
    one = equilibrium_of(rates[:1], network([0.1, 0.2]), pair, cost)
    assert both.routing[0, :2] == pytest.approx(one.routing[0], rel=1e-9)
    assert both.rif[2] == pytest.approx(3.0 * 1.0 / 2.0, rel=1e-12)  # z K / (M - z)


def test_a_cell_without_an_arc_stays_empty() -> None:
    curves = hyperbolic([10.0, 8.0], [4.0, 2.0], [1.0, 1.0])
    found = equilibrium_of(np.array([5.0]), network([0.1, NAN]), curves, "latency")
    assert found.routing.tolist() == [[1.0, 0.0]]
    assert found.rif == pytest.approx([4.0, 0.0], abs=1e-12)


@pytest.mark.parametrize("little", [0.0, 1e-15, 1e-9])
def test_a_root_of_few_arrivals_or_none_goes_to_its_least_cost(little: float) -> None:
    ways = network([0.01, 0.1], [0.3, 0.01], [0.2, 0.2])
    curves = softplus([1, 1], FLAT, FLAT)
    found = equilibrium_of(np.array([5.0, little, 0.0]), ways, curves, "gradient")
    assert found.routing[1] == pytest.approx([0.0, 1.0], abs=1e-9)
    assert found.least_cost[1] == pytest.approx(1.0 + 0.02, rel=1e-3)
    assert found.routing[2].tolist() == [0.0, 1.0]  # cell 1 is emptier


@pytest.mark.parametrize(("fullest", "unit_s"), [(0.001, 1.0), (0.99, 0.01), (0.99, 30.0)])
@pytest.mark.parametrize("cost", COSTS)
def test_any_load_and_scale_is_solved(fullest: float, unit_s: float, cost: Cost) -> None:
    """Ten roots, one of them almost silent, and ten cells: no request does better elsewhere."""
    rng = np.random.default_rng(0)
    ways = rng.uniform(0.0, 0.15, (10, 10))
    servers = rng.integers(1, 20, 10).astype(float)
    rows = [(a, 0.1 * a, 8.5, 0.6) for a in unit_s * rng.uniform(0.8, 1.2, 10)]
    curves = softplus(servers.tolist(), *rows)
    rates = rng.dirichlet(np.ones(10)) * np.append(np.ones(9), 1e-9)
    rates *= fullest * float(curves.capacity_rps.sum()) / rates.sum()
    found = equilibrium_of(rates, ways, curves, cost)
    assert_conditions(found, rates, ways, curves, cost)


def test_demand_beyond_a_cut_names_its_roots_and_cells() -> None:
    ways = network([0.01, NAN, NAN], [0.01, 0.01, 0.01], [NAN, NAN, 0.3])
    with pytest.raises(
        InfeasibleError,
        match=r"roots \[0\] offer 12 requests/s and reach cells \[0\] alone, which can serve 10",
    ) as caught:
        equilibrium_of(np.array([12.0, 1.0, 0.0]), ways, softplus([1] * 3, *[FLAT] * 3), "latency")
    assert caught.value.routing[0].tolist() == [1.0, 0.0, 0.0]
    assert caught.value.routing[1, 0] == pytest.approx(0.0, abs=1e-9)
    assert caught.value.routing[2].tolist() == [0.0, 0.0, 1.0]


def test_a_cut_of_several_is_named_whole() -> None:
    """Roots 0 and 2 send 25 to cells 1 and 2 (20 together); root 1 has a cell of its own."""
    ways = network([NAN, 0.0, 0.1], [0.0, NAN, 0.1], [NAN, 0.2, NAN])
    with pytest.raises(
        InfeasibleError, match=r"roots \[0, 2\] offer 25 .* cells \[1, 2\] alone, whi"
    ):
        equilibrium_of(np.array([18.0, 5.0, 7.0]), ways, softplus([1] * 3, *[FLAT] * 3), "rif")


def test_messages_speak_of_the_callers_roots_and_cells() -> None:
    """Of a caller that left away roots 0, 2, 3 and cells 0, 1, 2, 4 of its row 1."""
    names = Names(np.array([1, 4]), np.array([3, 5]), "row 1")
    rates, ways = np.array([1.0, 12.0]), network([0.1, 0.2], [NAN, 0.1])
    curves = softplus([1, 1], FLAT, FLAT)
    told = (
        r"^row 1: roots \[4\] offer 12 requests/s and reach cells \[5\] alone, which can serve 10"
    )
    with pytest.raises(InfeasibleError, match=told):
        check_feasible(rates, ways, curves, names)
    with pytest.raises(InfeasibleError, match=told):
        equilibrium_of(rates, ways, curves, "latency", names=names)
    with pytest.raises(ValueError, match=r"^row 1: one_way_s\[4, 3\] = -1\.0 must be finite"):
        check_feasible(rates, network([0.1, 0.2], [-1.0, 0.1]), curves, names)
    with pytest.raises(ValueError, match=r"^row 1: root 4 has no arc: one_way_s needs a number"):
        check_feasible(rates, network([0.1, 0.2], [NAN, NAN]), curves, names)
    with pytest.raises(ValueError, match=r"^row 1: one_way_s has the shape \(2, 1\), and rates"):
        check_feasible(rates, np.zeros((2, 1)), curves, names)
    with pytest.raises(ValueError, match=r"^row 1: rates_rps = \[-1\.0, 12\.0\] must be finite"):
        check_feasible(np.array([-1.0, 12.0]), ways, curves, names)
    turns = PooledSlots(np.array([np.inf, 4.0]), np.ones(2))
    told = "^row 1: the service curve of cell 5 stops to increase at N = 4 requests in flight"
    with pytest.raises(ValueError, match=told):
        check_increasing(turns, names)
    with pytest.raises(ValueError, match=told):
        equilibrium_of(rates, ways, turns, "latency", names=names)


def test_what_is_no_demand_network_or_curve_is_refused() -> None:
    curves = softplus([1, 1], FLAT, FLAT)
    for rates in ([np.inf, 1.0], [-1.0, 1.0], [0.0, 0.0], [NAN, 1.0]):
        with pytest.raises(
            ValueError, match=r"rates_rps = .* must be finite, at least 0 and not al"
        ):
            equilibrium_of(np.array(rates), np.zeros((2, 2)), curves, "rif")
    with pytest.raises(
        ValueError,
        match=r"one_way_s has the shape \(2, 1\), and rates_rps and curves need \(2, 2\): one",
    ):
        equilibrium_of(np.ones(2), np.zeros((2, 1)), curves, "rif")
    for bad in (-0.1, np.inf):
        with pytest.raises(
            ValueError, match=r"one_way_s\[1, 0\] = .* must be finite and at least 0, or NaN where"
        ):
            equilibrium_of(np.ones(2), network([0, 0], [bad, 0]), curves, "rif")
    with pytest.raises(
        ValueError, match="root 1 has no arc: one_way_s needs a number in every row"
    ):
        equilibrium_of(np.ones(2), network([0, 0], [NAN, NAN]), curves, "rif")
    unknown: Any = "speed"
    with pytest.raises(ValueError, match="cost = 'speed' must be one of rif, latency, gradient"):
        equilibrium_of(np.ones(1), np.zeros((1, 2)), curves, unknown)
    flat = PooledSlots(np.array([4.0]), np.array([1.0]))
    with pytest.raises(ValueError, match="curve of cell 0 stops to increase at N = 4"):
        equilibrium_of(np.ones(1), np.zeros((1, 1)), flat, "latency")


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("shape", ["softplus", "hyperbolic"])
def test_a_full_network_of_most_unequal_parts_is_solved_or_refused(shape: str, cost: Cost) -> None:
    """Rates apart by 5e8 and capacities by 5e4, at 99.999 %: rounding once filled a cell 208 fold.

    No equilibrium may be wrong; whether there is one is left open.
    """
    capacity = np.array([208.822008, 148.377726, 4.64751115, 230055.468])
    rates = np.array([213.467385, 43259.3489, 7.97386047e-05])
    ways = network(
        [2.52869290e-02, NAN, 4.18289882e-02, NAN],
        [0.0, 5.25130827, 2.04053565e-02, 5.74676752],
        [0.0, 0.0, 89.4003929, 1.15417228e-04],
    )
    curves: ServiceCurves = hyperbolic(capacity.tolist(), [10.0] * 4, [1.0] * 4)
    if shape == "softplus":
        servers = np.array([20.0, 15.0, 1.0, 40.0])
        beta = servers / capacity
        curves = SoftplusCells(
            servers, LatencyModel(10.0 * beta, beta, np.full(4, 9.0), np.ones(4))
        )
    assert curves.capacity_rps == pytest.approx(capacity)
    try:
        found = equilibrium_of(rates, ways, curves, cost)
    except ValueError as refusal:
        if "the equilibrium was missed" not in str(refusal):
            raise
        return
    z = (rates[:, None] * found.routing).sum(axis=0)
    assert (z < capacity).all()
    assert (found.rif >= 0.0).all()
    assert curves.at(found.rif).rate_rps == pytest.approx(z, rel=2e-9)
    assert 0.0 <= found.residual <= RESIDUAL
    assert found.worst_latency_s >= found.latency_s > 0.0


class Scaled(HyperbolicCells):
    """A curve whose inverse is off by a factor."""

    factor = 1.0

    def rif_at(self, rate_rps: Array) -> Array:
        rif: Array = self.factor * super().rif_at(rate_rps)
        return rif


@pytest.mark.parametrize(
    ("flow", "factor", "told"),
    [
        (
            [[10.0, 2.0]],
            1.0,
            "10 and a capacity of 10 requests/s, and its load is not below its ca",
        ),
        ([[6.0, 6.0]], -1.0, "6 and a capacity of 10 requests/s, and its RIF is not a number of a"),
        ([[6.0, 6.0]], NAN, "6 and a capacity of 10 requests/s, and its RIF is not a number of at"),
        (
            [[6.0, 6.0]],
            1.0 + 1e-6,
            "a load of 6 and .*, and its rate at its RIF is not its load; lower the demand, or",
        ),
    ],
)
def test_flows_without_equilibrium_of_the_cells_are_refused(
    monkeypatch: pytest.MonkeyPatch, flow: list[list[float]], factor: float, told: str
) -> None:
    monkeypatch.setattr("dlb_gym.equilibrium.followed", lambda *_: np.array(flow))
    monkeypatch.setattr(Scaled, "factor", factor)
    curves = Scaled(np.full(2, 10.0), np.full(2, 10.0), np.ones(2))
    with (
        np.errstate(divide="ignore", invalid="ignore"),
        pytest.raises(ValueError, match=f"equilibrium was missed: cell 0 has .*{told}"),
    ):
        equilibrium_of(np.array([12.0]), network([0.0, 0.0]), curves, "latency")


def test_a_residual_below_0_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dlb_gym.central_path.FlowProgram.residual", lambda *_: -1e-6)
    with pytest.raises(ValueError, match="missed: its residual is -1e-06 and at most 1e-09 is acc"):
        equilibrium_of(
            np.array([12.0]), network([0.0, 0.1]), softplus([1, 2], FLAT, FLAT), "latency"
        )


def test_what_is_no_equilibrium_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    args: Any = np.array([20.0]), network([0.1, 0.2]), softplus([1, 2], FLAT, FLAT), "gradient"
    with monkeypatch.context() as without:
        without.setattr("dlb_gym.central_path.STEPS", 2)
        with pytest.raises(
            ValueError, match=r"equilibrium was missed: its residual is .* and at most"
        ):
            equilibrium_of(*args)
    monkeypatch.setattr(
        "dlb_gym.equilibrium.linprog",
        lambda *_, **__: optimize.OptimizeResult(x=None, message="no luck"),
    )
    with pytest.raises(
        ValueError, match=r"program of the equilibrium found no solution \(no luck\)"
    ):
        equilibrium_of(*args)
