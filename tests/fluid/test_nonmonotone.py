"""Curves that stop to increase: refused, or studied without a promise."""

from __future__ import annotations

import pytest
import torch

from dlb_gym.fluid import Disc, Fixed, Flow, FluidModel, FluidSystem
from dlb_gym.latency_model import LatencyModel
from dlb_gym.service_curves import SoftplusCells
from dlb_gym.textbook_curves import PooledSlots
from tests.fluid.systems import pooled, tensor, two_cells

ONLY = Fixed(tensor([[1.0]]))


def thrashing(rate: float) -> FluidSystem:
    """Latency 1 up to 8 requests, then 0.2 a request: l = 1 + 0.2 (n - 8) far beyond.

    mu = n / l falls towards 5 from its peak near the knee: alpha = 1 < beta n0 = 1.6.
    """
    parameters = (tensor([[value]]) for value in (1.0, 0.2, 8.0, 0.5))
    curves = SoftplusCells(tensor([[1.0]]), LatencyModel(*parameters, xp=torch))
    return FluidSystem.from_arrays(tensor([[rate]]), tensor([[[0.1]]]), curves)


def test_the_point_where_a_curve_turns_is_named() -> None:
    """H = alpha - beta n0 s(u) + beta s h(u) = 0 at n = 8.3575, where mu is 7.42."""
    system = thrashing(6.0)
    turning = system.curves.turning_rif.item()
    nearby = system.curves.at(tensor([turning - 1e-3, turning, turning + 1e-3])).rate_rps
    assert nearby[0, 1] > nearby[0, 0]
    assert nearby[0, 1] > nearby[0, 2]
    with pytest.raises(
        ValueError,
        match=rf"curve of cell 0 stops to increase at N = {turning:.6g} .* allow_nonmonotone=True",
    ):
        FluidModel(system)


def test_flat_curves_are_refused_where_they_become_flat() -> None:
    with pytest.raises(ValueError, match=r"stops to increase at N = 100 requests"):
        FluidModel(pooled(20.0, 0.1))


def test_a_thrashing_cell_has_two_fates() -> None:
    """6 a second: below the peak the cell recovers; beyond the second crossing it never does.

    n = 6 l(n) again at l = 1 + 0.2 (n - 8): n = 6 (0.2 n - 0.6), so n = 18.
    """
    model = FluidModel(thrashing(6.0), 0.1, allow_nonmonotone=True)
    low, high = (
        model.run(ONLY, 60.0, rif=tensor([[start]]), routing=tensor([[[1.0]]])).rif[-1].item()
        for start in (17.0, 19.0)
    )
    assert low == pytest.approx(6.0, rel=0.01)
    assert high > 25.0


def test_no_router_goes_for_a_cell_that_thrashes() -> None:
    """Its 1 / mu' is negative, which is no price: beside a healthy cell it is the dearest."""
    parameters = (tensor([[value, value]]) for value in (1.0, 0.2, 8.0, 0.5))
    curves = SoftplusCells(tensor([[1.0, 1.0]]), LatencyModel(*parameters, xp=torch))
    system = FluidSystem.from_arrays(tensor([[3.0]]), tensor([[[0.1, 0.1]]]), curves)
    model = FluidModel(system, 0.1, allow_nonmonotone=True)
    start = {"rif": tensor([[20.0, 2.0]]), "routing": tensor([[[0.5, 0.5]]])}
    path = model.run(Disc("gradient"), 30.0, **start)
    assert path.routing[0, 0, 0].tolist() == [0.0, 1.0]
    assert path.rif[-1].max() < 8.0
    for step in (Flow("gradient", 0.02), Flow("gradient", 0.02, 0.5)):
        path = model.run(step, 30.0, **start)
        assert path.routing[1, 0, 0, 0] < 0.01
        assert path.rif[-1].max() < 8.0


def test_costs_without_a_bound_move_all_traffic_and_lose_none() -> None:
    """Slots that are all busy: one more request adds no throughput, at any price."""
    curves = PooledSlots(tensor([[10.0, 10.0]]), tensor([[1.0, 1.0]]), torch)
    system = FluidSystem.from_arrays(tensor([[8.0]]), tensor([[[0.1, 0.1]]]), curves)
    model = FluidModel(system, allow_nonmonotone=True)
    start = {"rif": tensor([[15.0, 5.0]]), "routing": tensor([[[0.5, 0.5]]])}
    for dynamics in (Flow("gradient", 0.02), Disc("gradient")):
        path = model.run(dynamics, 1.0, **start)
        assert torch.isfinite(path.rif).all()
        assert path.offered_rps.numpy() == pytest.approx(8.0)
    huge = {"rif": tensor([[1e12, 1.0]]), "routing": tensor([[[0.5, 0.5]]])}
    path = FluidModel(two_cells(0.1)).run(Flow("gradient", 0.02), 1.0, **huge)
    assert path.routing[-1, 0, 0].tolist() == [0.0, 1.0]
