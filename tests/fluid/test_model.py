"""The fluid against closed forms, an independent solver of delay equations, and conservation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp

from dlb_gym.fluid import Disc, Fixed, Flow, FluidModel, FluidPath, FluidSystem
from tests.fluid.systems import hyperbolic, pooled, random_network, tensor

ONLY = Fixed(tensor([[1.0]]))


def test_a_cell_fills_up_as_its_exponential_says() -> None:
    """dN/dt = lambda - N / S from lambda's arrival at tau on: N = lambda S (1 - e^(-(t-tau)/S))."""
    path = FluidModel(pooled(20.0, 0.35), 0.02, allow_nonmonotone=True).run(ONLY, 6.0)
    after = (path.time_s - 0.35).clamp(min=0.0)
    expected = 40.0 * (1.0 - torch.exp(-after / 2.0))
    assert path.rif[:, 0, 0].numpy() == pytest.approx(expected.numpy(), abs=1e-3)
    assert path.rif[-1].item() == pytest.approx(40.0 * (1.0 - np.exp(-5.65 / 2.0)), rel=1e-5)


def test_beyond_its_slots_a_cell_grows_by_what_it_cannot_serve() -> None:
    """100 slots of 2 s serve 50 a second; of 60 arriving, 10 a second stay."""
    model = FluidModel(pooled(40.0, 0.0), 0.02, allow_nonmonotone=True)
    model.system.rates_rps.fill_(60.0)
    path = model.run(ONLY, 4.0, rif=tensor([[150.0]]))
    assert path.rif[-1].item() == pytest.approx(150.0 + 4.0 * 10.0, rel=1e-12)


NETWORK = {
    "rates": [7.0, 6.0],
    "tau": [[0.05, 0.21], [0.13, 0.08]],
    "largest": [10.0, 12.0],
    "half": [8.0, 11.0],
    "eta": [0.03, 0.05],
}
START = {"rif": [14.0, 9.0], "routing": [[0.6, 0.4], [0.3, 0.7]]}


def modelled(step_s: float, until_s: float) -> FluidPath:
    system = FluidSystem.from_arrays(
        tensor([NETWORK["rates"]]),
        tensor([NETWORK["tau"]]),
        hyperbolic([NETWORK["largest"]], [NETWORK["half"]]),
    )
    return FluidModel(system, step_s).run(
        Flow("gradient", tensor([NETWORK["eta"]])),
        until_s,
        rif=tensor([START["rif"]]),
        routing=tensor([START["routing"]]),
    )


def solved(until_s: float) -> tuple[np.ndarray, np.ndarray]:
    """N and x at the end, by the method of steps; interior routing, so (9) is a mean taken off."""
    rates, tau, largest, half, eta = (np.array(each) for each in NETWORK.values())
    pieces: list[tuple[float, Callable[[float], np.ndarray]]] = []
    first = np.concatenate([np.ravel(START["rif"]), np.ravel(START["routing"])])

    def at(time_s: float) -> np.ndarray:
        if time_s <= 0.0:
            return first
        return next(piece for end_s, piece in pieces if time_s <= end_s + 1e-12)(time_s)

    def slope(time_s: float, state: np.ndarray) -> np.ndarray:
        rif, moves = state[:2], np.zeros((2, 2))
        inflow = np.zeros(2)
        for i in range(2):
            for j in range(2):
                before = at(time_s - tau[i, j])
                inflow[j] += rates[i] * before[2 + 2 * i + j]
                marginal = (before[j] + half[j]) ** 2 / (largest[j] * half[j])
                moves[i, j] = -eta[i] * (marginal + 2 * tau[i, j])
        moves -= moves.mean(axis=1, keepdims=True)
        served = largest * rif / (rif + half)
        return np.concatenate([inflow - served, moves.ravel()])

    now_s, state = 0.0, first
    while now_s < until_s - 1e-9:
        end_s = min(now_s + tau.min(), until_s)
        piece = solve_ivp(
            slope, (now_s, end_s), state, method="DOP853", dense_output=True, rtol=1e-11, atol=1e-12
        )
        pieces.append((end_s, piece.sol))
        now_s, state = end_s, piece.y[:, -1]
    return state[:2], state[2:].reshape(2, 2)


def test_it_agrees_with_an_independent_solver_and_is_of_second_order() -> None:
    rif, routing = solved(2.0)
    assert (routing > 0.05).all()
    errors = []
    for step_s in (0.02, 0.01, 0.005):
        path = modelled(step_s, 2.0)
        error = np.abs(path.rif[-1, 0].numpy() - rif).max()
        errors.append(max(error, np.abs(path.routing[-1, 0].numpy() - routing).max()))
    assert errors[-1] < 2e-5
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert (orders > 1.7).all()


def test_steps_of_flow_come_to_their_limit() -> None:
    """A held step sees half a step later on average: first order."""
    limit = modelled(0.01, 2.0)
    distances = []
    for interval_s in (0.04, 0.02, 0.01):
        system = FluidModel(
            FluidSystem.from_arrays(
                tensor([NETWORK["rates"]]),
                tensor([NETWORK["tau"]]),
                hyperbolic([NETWORK["largest"]], [NETWORK["half"]]),
            )
        )
        flow = Flow("gradient", tensor([NETWORK["eta"]]), interval_s)
        held = system.run(flow, 2.0, rif=tensor([START["rif"]]), routing=tensor([START["routing"]]))
        distances.append((held.routing[-1] - limit.routing[-1]).abs().max().item())
    assert distances[-1] < 1e-3
    assert np.log2(np.array(distances[:-1]) / distances[1:]) == pytest.approx([1.0, 1.0], abs=0.25)


@pytest.mark.parametrize("dynamics", [Flow("gradient", 0.02), Flow("rif", 0.01, 0.05), Disc("rif")])
def test_requests_are_conserved(dynamics: Flow | Disc) -> None:
    """Offered = served + in cells + on the way there, all from an empty start."""
    system = random_network(11)
    path = FluidModel(system).run(dynamics, 3.0, record_every=1)
    offered, served = (0.01 * each.sum().item() for each in (path.offered_rps, path.served_rps))
    before, after = path.routing[:-1], path.routing[1:]
    sent = 0.5 * (before + after) if dynamics.is_smooth else before
    steps = torch.nan_to_num(system.one_way_s) / 0.01
    ago = torch.arange(len(sent), 0, -1, dtype=torch.float64).view(-1, 1, 1, 1)
    still_there = (steps - ago + 1.0).clamp(0.0, 1.0)  # share of a step's flow that is on its way
    on_the_way = 0.01 * (still_there * system.rates_rps[..., None] * sent).sum().item()
    in_system = offered - served
    assert in_system == pytest.approx(path.rif[-1].sum().item() + on_the_way, rel=1e-11)


def test_a_row_of_a_batch_is_what_it_is_alone() -> None:
    """Also when it is padded with a root and cells that none reaches."""
    small, large = random_network(1, roots=2, cells=3), random_network(2, roots=3, cells=5)
    rates, tau_s = torch.zeros(2, 3, dtype=torch.float64), torch.full((2, 3, 5), torch.nan)
    tau_s = tau_s.double()
    ones = torch.ones(2, 5, dtype=torch.float64)
    curves = hyperbolic(ones, ones)
    for row, system in enumerate((small, large)):
        _, roots, cells = system.one_way_s.shape
        rates[row, :roots], tau_s[row, :roots, :cells] = system.rates_rps, system.one_way_s
        curves.largest_rps[row, :cells] = system.curves.largest_rps
        curves.half_rif[row, :cells] = system.curves.half_rif
    batch = FluidModel(FluidSystem.from_arrays(rates, tau_s, curves)).run(
        Flow("gradient", 0.02), 4.0
    )
    for row, system in enumerate((small, large)):
        alone = FluidModel(system).run(Flow("gradient", 0.02), 4.0)
        _, roots, cells = system.one_way_s.shape
        assert batch.rif[:, row, :cells].numpy() == pytest.approx(
            alone.rif[:, 0].numpy(), rel=1e-12
        )
        assert batch.routing[:, row, :roots, :cells].numpy() == pytest.approx(
            alone.routing[:, 0].numpy(), abs=1e-13
        )
        assert batch.latency_s(1.0)[row].item() == pytest.approx(alone.latency_s(1.0).item())
    assert (batch.rif[:, 0, 3:] == 0.0).all()


def test_mean_latency_is_littles() -> None:
    """At rest: N = z S = 40 in the cell, so 2 s of service and twice 0.35 s on the way."""
    system = pooled(20.0, 0.35)
    model = FluidModel(system, 0.05, allow_nonmonotone=True)
    path = model.run(ONLY, 1.0, rif=tensor([[40.0]]), routing=tensor([[[1.0]]]))
    assert path.rif.flatten().tolist() == pytest.approx([40.0] * len(path.rif), rel=1e-12)
    assert path.latency_s().item() == pytest.approx(2.7, rel=1e-12)
    assert path.in_system.flatten().tolist() == pytest.approx([54.0] * 2, rel=1e-12)


def test_records_are_means_between_states() -> None:
    model = FluidModel(pooled(20.0, 0.0), 0.05, allow_nonmonotone=True)
    fine, coarse = (model.run(ONLY, 1.5, record_every=every) for every in (1, 20))
    assert coarse.time_s.tolist() == pytest.approx([0.0, 1.0, 1.5])
    assert coarse.span_s.tolist() == pytest.approx([1.0, 0.5])
    assert coarse.rif[1].item() == fine.rif[20].item()
    assert coarse.served_rps[0].item() == pytest.approx(fine.served_rps[:20].mean().item())
    assert coarse.latency_s(1.0).item() == pytest.approx(fine.latency_s(1.0).item())
    with pytest.raises(ValueError, match=r"since_s = 1.5 must come before the last span.* at 1 s"):
        coarse.latency_s(1.5)
