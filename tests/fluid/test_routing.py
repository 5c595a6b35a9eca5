"""Projections and the routers' steps against brute force and their defining properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import brentq

from dlb_gym.fluid import Disc, Fixed, Flow, FluidModel
from dlb_gym.fluid.routing import projected, tangent
from tests.fluid.systems import random_network, tensor, two_cells


def sampled(seed: int, rows: int = 200, cells: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Points and arcs; every row has an arc."""
    rng = np.random.default_rng(seed)
    arcs = rng.random((rows, cells)) < 0.8
    arcs[np.arange(rows), rng.integers(cells, size=rows)] = True
    return tensor(rng.normal(0.0, 1.0, (rows, cells))), torch.tensor(arcs)


def test_the_projection_is_the_one_by_its_threshold() -> None:
    """theta by bisection on sum (y - theta)^+ = 1."""
    y, arcs = sampled(0)
    found = projected(y, arcs)
    for row in range(len(y)):
        own = y[row][arcs[row]].numpy()
        theta = brentq(
            lambda t, own=own: np.maximum(own - t, 0.0).sum() - 1.0, own.min() - 1.0, own.max(),
            xtol=1e-15,
        )  # fmt: skip
        assert found[row][arcs[row]].numpy() == pytest.approx(np.maximum(own - theta, 0), abs=1e-12)
        assert (found[row][~arcs[row]] == 0.0).all()


def test_what_inference_mode_did_first_hinders_no_gradient() -> None:
    """Eleven cells, which no other test has: nothing of them is kept yet."""
    y, arcs = torch.zeros(1, 11, dtype=torch.float64), torch.ones(1, 11, dtype=torch.bool)
    with torch.inference_mode():
        projected(y, arcs)
    variable = y.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(projected(variable, arcs)[0, 0], variable)
    assert gradient[0].tolist() == pytest.approx([10 / 11] + [-1 / 11] * 10)


def test_a_row_without_arcs_sends_nothing() -> None:
    arcs = torch.tensor([[False, False], [True, True]])
    assert projected(tensor([[1.0, 2.0], [0.3, 0.7]]), arcs).tolist() == [[0.0, 0.0], [0.3, 0.7]]


def test_the_tangent_cone_is_where_small_steps_go() -> None:
    """(Proj(x + e z) - x) / e for small e, at points on faces of the simplex."""
    y, arcs = sampled(1)
    z, _ = sampled(2)
    x = projected(2.0 * y, arcs)
    assert (x[arcs] == 0.0).any()
    v = tangent(x, z, arcs)
    step = 1e-7
    assert ((projected(x + step * z, arcs) - x) / step).numpy() == pytest.approx(
        v.numpy(), abs=1e-7
    )
    assert v.sum(dim=-1).abs().max() < 1e-13


def test_the_tangent_velocity_keeps_the_papers_inequalities() -> None:
    """(x - x')^T v <= (x - x')^T z for x' on the simplex; |v| <= max z - min z over the arcs."""
    (y, arcs), (other, _), (z, _) = sampled(3), sampled(4), sampled(5)
    x, elsewhere = projected(2.0 * y, arcs), projected(2.0 * other, arcs)
    v = tangent(x, z, arcs)
    away = x - elsewhere
    assert ((away * v).sum(dim=-1) <= (away * torch.where(arcs, z, 0.0)).sum(dim=-1) + 1e-12).all()
    highest = torch.where(arcs, z, -torch.inf).amax(dim=-1)
    lowest = torch.where(arcs, z, torch.inf).amin(dim=-1)
    assert (v.abs().amax(dim=-1) <= highest - lowest + 1e-12).all()


def test_a_constant_on_all_costs_moves_nothing() -> None:
    (y, arcs), (z, _) = sampled(6), sampled(7)
    x = projected(y, arcs)
    assert tangent(x, z + 7.0, arcs).numpy() == pytest.approx(
        tangent(x, z, arcs).numpy(), abs=1e-12
    )


def test_one_step_of_flow_by_hand() -> None:
    """Costs 1/mu' = (N + 10)^2 / 100 + 2 tau: 4 + .2 and 2.25 + .2 for N = 10 and 5.

    h eta = 0.01 moves the difference of the shares by 0.01 (4 - 2.25), half of it from each.
    """
    system = two_cells(0.1)
    seen = Flow("gradient", 0.1).reports(system, system.curves.at(tensor([[10.0, 5.0]])))
    assert seen.flatten().tolist() == [4.0, 2.25]
    half = tensor([[[0.5, 0.5]]])
    moved = Flow("gradient", 0.1).step(system, half, seen[:, None], 0.1)
    assert moved.flatten().tolist() == pytest.approx([0.5 - 0.00875, 0.5 + 0.00875], abs=1e-15)


@pytest.mark.parametrize(("cost", "expected"), [("rif", [10.0, 5.0]), ("latency", [2.0, 1.5])])
def test_the_other_costs_by_hand(cost: str, expected: list[float]) -> None:
    """N / k with k = 1; l = (N + 10) / 10."""
    system = two_cells(0.1)
    seen = Disc(cost).reports(system, system.curves.at(tensor([[10.0, 5.0]])))
    assert seen.flatten().tolist() == expected


def test_disc_takes_the_least_and_shares_ties() -> None:
    system = two_cells(0.1)
    for reports, expected in (([3.0, 2.0], [0.0, 1.0]), ([2.0, 2.0], [0.5, 0.5])):
        seen = tensor(reports).view(1, 1, 2, 1)
        x = Disc("rif").step(system, tensor([[[0.5, 0.5]]]), seen, 0.1)
        assert x.flatten().tolist() == expected


def test_a_fixed_routing_stays() -> None:
    path = FluidModel(two_cells(0.1)).run(Fixed(tensor([[0.2, 0.8]])), 0.5, record_every=1)
    assert (path.routing[1:] == tensor([0.2, 0.8])).all()


@pytest.mark.parametrize("dynamics", [Flow, Disc])
def test_an_unknown_cost_is_named(dynamics: type) -> None:
    with pytest.raises(ValueError, match="cost = 'price' must be one of rif, latency"):
        dynamics("price", **({"eta": 0.1} if dynamics is Flow else {}))


def test_routing_stays_on_the_arcs() -> None:
    system = random_network(3)
    assert torch.isnan(system.one_way_s).any()
    for dynamics in (Flow("gradient", 0.01), Flow("latency", 0.1, 0.1), Disc("rif")):
        path = FluidModel(system).run(dynamics, 5.0)
        assert (path.routing[:, ~system.arcs] == 0.0).all()
        assert (path.routing >= 0.0).all()
        assert path.routing.sum(dim=-1).numpy() == pytest.approx(1.0, abs=1e-12)
