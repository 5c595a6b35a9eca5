"""Program (12) against closed forms, conditions of optimality and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize

from baselines.optimum import StaticOptimum
from dlb_gym.bounds import best_routing, bounds
from dlb_gym.latency_model import LatencyModel
from dlb_gym.observation import Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import load_scenario, override, scenario_from_dict
from dlb_gym.static_optimum import GAP, InfeasibleError, static_optimum

NAN = np.nan


def model(*rows: tuple[float, float, float, float]) -> LatencyModel:
    return LatencyModel(*np.array(rows).T)


FLAT = (1.0, 0.1, 8.0, 0.5)
"""Latency 1 up to the knee at 8, then 0.1 a request: a largest rate of 10."""


def test_one_cell_is_littles_law() -> None:
    found = static_optimum(np.array([5.0]), np.array([[0.25]]), np.array([2.0]), model(FLAT))
    assert found.routing.tolist() == [[1.0]]
    # 2.5 a server: the n with n / l(n) = 2.5; both ways take 0.5.
    n = optimize.brentq(lambda n: n / model(FLAT).at(n).latency[0] - 2.5, 0.0, 9.0, xtol=1e-14)
    assert found.rif == pytest.approx([2 * n], rel=1e-12)
    assert found.latency_s == pytest.approx(2 * n / 5.0 + 0.5, rel=1e-12)


def test_equal_cells_at_equal_distance_share_by_servers() -> None:
    found = static_optimum(
        np.array([20.0]), np.full((1, 3), 0.1), np.array([1.0, 2.0, 5.0]), model(FLAT, FLAT, FLAT)
    )
    assert found.routing[0] == pytest.approx([1 / 8, 2 / 8, 5 / 8], abs=1e-6)


def test_a_far_cell_is_used_only_past_its_price() -> None:
    """Near, f = 1/m' grows from 1; the far cell costs 1 + 2 x 0.3 more in ways when empty."""
    cells = model(FLAT, FLAT)
    ways = np.array([[0.0, 0.3]])
    at_price = optimize.brentq(lambda n: cells.at(n).marginal_latency[0] - 1.6, 0.0, 20.0)
    threshold = float(at_price / cells.at(at_price).latency[0])
    below = static_optimum(np.array([0.99 * threshold]), ways, np.ones(2), cells)
    assert below.routing == pytest.approx(np.array([[1.0, 0.0]]), abs=1e-7)
    above = static_optimum(np.array([1.05 * threshold]), ways, np.ones(2), cells)
    assert above.rif[0] == pytest.approx(at_price, rel=0.01)
    assert above.routing[0, 1] == pytest.approx(0.05 / 1.05, rel=0.1)


def test_no_routing_of_two_by_two_is_better() -> None:
    """Against a search that knows no gradient."""
    rates, ways = np.array([6.0, 9.0]), np.array([[0.05, 0.2], [0.15, 0.02]])
    servers, cells = np.array([1.0, 1.5]), model(FLAT, (0.8, 0.12, 5.0, 0.7))
    found = static_optimum(rates, ways, servers, cells)

    def psi(x: np.ndarray) -> float:
        flow = np.array([[x[0], rates[0] - x[0]], [x[1], rates[1] - x[1]]])
        if flow.min() < 0:
            return 1e9
        load = flow.sum(axis=0) / servers
        total = 2 * (flow * ways).sum()
        for j in range(2):
            if load[j] >= 1 / cells.beta[j]:
                return 1e9
            curve = LatencyModel(*(getattr(cells, key)[j] for key in FIELDS))
            total += servers[j] * optimize.brentq(
                lambda n, c=curve, q=load[j]: n - q * c.at(n).latency, 0.0, 1e4, xtol=1e-13
            )
        return float(total)

    best = min(
        optimize.minimize(
            psi, start, method="Nelder-Mead", options={"xatol": 1e-9, "fatol": 1e-12}
        ).fun
        for start in ([6.0, 3.0], [3.0, 3.0], [5.0, 0.5])
    )
    assert found.latency_s * rates.sum() == pytest.approx(best, rel=1e-7)
    assert found.latency_s * rates.sum() <= best * (1 + 1e-9)


FIELDS = ("alpha", "beta", "knee", "smoothing")


@pytest.mark.parametrize("seed", range(5))
def test_random_networks_meet_the_equilibrium_condition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    roots, cells = 4, 6
    ways = rng.uniform(0.0, 0.15, (roots, cells))
    ways[rng.random(ways.shape) < 0.3] = NAN
    ways[np.arange(roots), np.arange(roots)] = 0.002
    servers = rng.integers(2, 12, cells).astype(float)
    curves = model(*((a, 0.1 * a, 8.0, 0.6) for a in rng.uniform(0.8, 1.2, cells)))
    largest = servers / curves.beta
    rates = 0.7 * largest[:roots].sum() * rng.dirichlet(np.full(roots, 5.0))
    found = static_optimum(rates, ways, servers, curves)
    assert found.gap <= GAP
    assert found.routing.sum(axis=1) == pytest.approx(np.ones(roots), abs=1e-12)
    flows = rates[:, None] * found.routing
    n = found.rif / servers
    assert flows.sum(axis=0) / servers == pytest.approx(n / curves.at(n).latency, rel=1e-9)
    cost = np.where(np.isnan(ways), np.inf, curves.at(n).marginal_latency + 2 * ways)
    used = flows > 1e-3 * rates.sum()
    least = np.broadcast_to(cost.min(axis=1, keepdims=True), cost.shape)
    assert cost[used] == pytest.approx(least[used], abs=1e-4)


def test_demand_beyond_a_cut_names_its_cells() -> None:
    ways = np.array([[0.01, NAN, NAN], [0.01, 0.01, 0.01]])
    with pytest.raises(
        InfeasibleError, match=r"no other cells than \[0\] offer 120 % of what"
    ) as e:
        static_optimum(np.array([12.0, 1.0]), ways, np.ones(3), model(FLAT, FLAT, FLAT))
    assert e.value.routing[0].tolist() == [1.0, 0.0, 0.0]
    assert e.value.routing[1] @ [1, 0, 0] == pytest.approx(0.0, abs=1e-9)


def test_the_oracle_plays_on_where_nothing_can_serve_the_demand() -> None:
    """120 % of two equal cells: each gets half, whoever sends it."""
    crowded = two_cells(demand={"utilisation": 1.2})
    policy = StaticOptimum()
    policy.reset(TaskSpec(2, 2, Observation(2, 2)), 1, 0)
    policy.reveal([crowded])
    routing = policy.act(np.zeros((1, Observation(2, 2).size), np.float32)).routing
    assert routing is not None
    assert np.array([0.8, 0.2]) @ routing[0] == pytest.approx([0.5, 0.5])


def test_a_root_without_arrivals_goes_to_its_least_cost() -> None:
    ways = np.array([[0.01, 0.1], [0.3, 0.01]])
    found = static_optimum(np.array([5.0, 0.0]), ways, np.ones(2), model(FLAT, FLAT))
    assert found.routing[1].tolist() == [0.0, 1.0]


def test_bounds_of_a_scenario_order_as_they_should() -> None:
    scenario = load_scenario("global_six")
    found = bounds(scenario)
    assert found.fluid_s is not None
    assert found.clairvoyant_s is not None
    assert (
        found.clairvoyant_s
        < found.fluid_s
        == pytest.approx(scenario.router_delay_s + best_routing(scenario).latency_s)
    )
    busier = bounds(override(scenario, {"demand.utilisation": 0.9}))
    assert busier.clairvoyant_s is not None
    assert busier.clairvoyant_s > found.clairvoyant_s  # cells are full: more must travel


def two_cells(**changes: object) -> Scenario:
    """Ten servers each of 8 requests a second and 1.1 s; root a offers 102.4 of the 128 in all."""
    cell = {"region": "x", "servers": 10, "prefill_s_per_token": 2e-4, "decode_s_per_token": 5e-3}
    return scenario_from_dict(
        {
            "name": "two",
            "cells": [{"name": name, **cell} for name in "ab"],
            "roots": [{"name": n, "region": "x", "demand": d} for n, d in (("a", 0.8), ("b", 0.2))],
            "network": {"rtt_s": [[0.0, 0.1], [0.1, 0.0]]},
            "router_delay_s": 0.0,
            **changes,
        }
    )


def test_the_clairvoyant_bound_of_two_cells_by_hand() -> None:
    # 22.4 of root a's requests find no room at home and travel 0.1 s.
    assert bounds(two_cells()).clairvoyant_s == pytest.approx(1.1 + 0.1 * 22.4 / 128)
    # Where demand or capacity move, or come from a trace, only what never waits is certain.
    burst = two_cells(disturbances=[{"kind": "burst", "root": "a"}])
    assert bounds(burst) == (None, pytest.approx(1.1))


def test_the_clairvoyant_bound_is_the_luckiest_roots_where_shares_change() -> None:
    # Cell b takes 0.6 s: root a's requests do best there, in 0.7 s. A burst at b makes more of the
    # requests b's, and so do its hours.
    cells = [
        {"name": name, "region": "us-east4", "servers": 10, "prefill_s_per_token": 2e-4,
         "decode_s_per_token": decode_s}
        for name, decode_s in (("a", 5e-3), ("b", 2.5e-3))
    ]  # fmt: skip
    outage = two_cells(cells=cells, disturbances=[{"kind": "outage", "cells": ["a"]}])
    assert bounds(outage).clairvoyant_s == pytest.approx(0.8 * 0.7 + 0.2 * 0.6)
    burst = two_cells(cells=cells, disturbances=[{"kind": "burst", "root": "b"}])
    assert bounds(burst).clairvoyant_s == pytest.approx(0.6)
    roots = [{"name": name, "region": "us-east4", "demand": 1.0} for name in "ab"]
    for profile in ({"diurnal_amplitude": 0.5}, {"weekend_factor": 0.5}):
        daily = two_cells(cells=cells, roots=roots, demand={"profile": profile})
        assert bounds(daily).clairvoyant_s == pytest.approx(0.6)
    pulses = {"profile": {"synchronised_fraction": 0.5}}
    assert bounds(two_cells(cells=cells, demand=pulses)).clairvoyant_s == pytest.approx(0.68)


def test_systems_without_bounds_say_so() -> None:
    crowded = override(load_scenario("global_six"), {"demand.utilisation": 1.2})
    assert bounds(crowded) == (None, None)
    sessions = override(load_scenario("global_six"), {"demand.sessions": {}})
    assert bounds(sessions) == (None, None)


@pytest.mark.parametrize(("fullest", "unit_s"), [(0.001, 1.0), (0.99, 0.01), (0.99, 30.0)])
def test_any_load_and_scale_is_solved(fullest: float, unit_s: float) -> None:
    """Ten roots, one of them almost silent, and ten cells."""
    rng = np.random.default_rng(0)
    ways = rng.uniform(0.0, 0.15, (10, 10))
    servers = rng.integers(1, 20, 10).astype(float)
    curves = model(*((a, 0.1 * a, 8.5, 0.6) for a in unit_s * rng.uniform(0.8, 1.2, 10)))
    rates = rng.dirichlet(np.ones(10)) * np.append(np.ones(9), 1e-9)
    rates *= fullest * float((servers / curves.beta).sum()) / rates.sum()
    found = static_optimum(rates, ways, servers, curves)
    assert found.gap <= GAP
    flows = rates[:, None] * found.routing
    assert found.routing.sum(axis=1) == pytest.approx(np.ones(10), abs=1e-9)

    def psi(moved: np.ndarray) -> np.ndarray:
        """Of flows (n, roots, cells), by bisection."""
        wanted = moved.sum(axis=1) / servers
        low, high = np.zeros_like(wanted), np.full_like(wanted, 1e6)
        for _ in range(80):
            middle = 0.5 * (low + high)
            under = middle / curves.at(middle).latency < wanted
            low, high = np.where(under, middle, low), np.where(under, high, middle)
        return (low * servers).sum(axis=-1) + 2 * (moved * ways).sum(axis=(1, 2))

    here = psi(flows[None])[0]
    assert found.latency_s * rates.sum() == pytest.approx(here, rel=1e-7)
    for share in (0.5, 0.01):  # of a flow, to any other cell
        root, source, target = (index.ravel() for index in np.indices((10, 10, 10)))
        moved = np.repeat(flows[None], len(root), axis=0)
        moving = share * flows[root, source]
        moved[np.arange(len(root)), root, source] -= moving
        moved[np.arange(len(root)), root, target] += moving
        fits = (moved.sum(axis=1) < servers / curves.beta).all(axis=-1)
        assert (psi(moved[fits]) >= here * (1 - 1e-7)).all()


def test_what_is_no_optimum_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    args = (np.array([20.0]), np.array([[0.1, 0.2]]), np.array([1.0, 2.0]), model(FLAT, FLAT))
    with monkeypatch.context() as without:
        without.setattr("dlb_gym.static_optimum.GAP", -1.0)
        with pytest.raises(
            ValueError, match=r"optimum was missed: its gap is .* and at most -1 is"
        ):
            static_optimum(*args)
    monkeypatch.setattr(
        "dlb_gym.static_optimum.linprog",
        lambda *_, **__: optimize.OptimizeResult(x=None, message="no luck"),
    )
    told = r"static optimum found no solution \(no luck\); rates, latencies and servers must be fin"
    with pytest.raises(ValueError, match=told):
        static_optimum(*args)
