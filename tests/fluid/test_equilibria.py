"""What the dynamics come to, and how: equilibria, the Lyapunov function, Theorem 1's bound."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dlb_gym.bounds import bounds
from dlb_gym.equilibrium import InfeasibleError
from dlb_gym.fluid import Disc, Flow, FluidModel, FluidSystem, equilibrium
from dlb_gym.fluid.convergence import lyapunov, mean_bound, routing_gap, workload_distance
from dlb_gym.fluid.routing import projected, tangent
from dlb_gym.scenario_source import load_scenario
from dlb_gym.service_curves import COSTS, Cost, cell_cost
from tests.fluid.systems import NAN, hyperbolic, joined, random_network, tensor, two_cells

ETA: dict[Cost, float] = {"rif": 0.005, "latency": 0.05, "gradient": 0.01}


def random_start(system: FluidSystem, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """N(0) and x(0)."""
    rng = np.random.default_rng(seed)
    routing = projected(tensor(rng.normal(0.3, 0.5, tuple(system.arcs.shape))), system.arcs)
    return tensor(rng.uniform(0.0, 30.0, tuple(system.curves.servers.shape))), routing


def starts(system: FluidSystem, seed: int) -> tuple[FluidSystem, torch.Tensor, torch.Tensor]:
    """The system in four rows, and a random start of each."""
    batch = joined([system] * 4)
    return batch, *random_start(batch, seed)


@pytest.mark.parametrize(("cost", "eta"), [("rif", 0.02), ("latency", 0.2), ("gradient", 0.06)])
def test_flow_comes_to_its_own_equilibrium_from_anywhere(cost: Cost, eta: float) -> None:
    """To 1e-6 from random starts; the gradient cost's is the best fixed routing."""
    batch = joined([random_network(seed, 2, 3, half=2.0) for seed in (4, 7, 15)])
    rif, routing = random_start(batch, 1)
    model = FluidModel(batch, 0.05)
    path = model.run(Flow(cost, eta), 200.0, rif=rif, routing=routing, record_every=4000)
    rest = equilibrium(model, cost)
    assert (path.rif[0] / rest.rif - 1.0).abs().amax(dim=-1).min() > 0.1
    assert path.rif[-1].numpy() == pytest.approx(rest.rif.numpy(), rel=1e-6)
    if cost != "rif":  # whose routing is not unique
        flows = batch.rates_rps[..., None] * path.routing[-1]
        inside = path.rif[-1].sum(dim=1) + (flows * batch.round_trip_s).sum(dim=(1, 2))
        latency_s = inside / batch.rates_rps.sum(dim=1)
        assert latency_s.numpy() == pytest.approx(rest.latency_s.numpy(), rel=1e-6)


def test_costs_have_equilibria_of_their_own() -> None:
    model = FluidModel(random_network(5))
    best, *others = (equilibrium(model, cost) for cost in ("gradient", "latency", "rif"))
    for other in others:
        assert (other.rif - best.rif).abs().max() > 0.1
        assert other.latency_s > best.latency_s


@pytest.mark.parametrize("cost", COSTS)
def test_an_equilibrium_is_where_flow_stays(cost: Cost) -> None:
    """Delays, missing arcs and a constant history included."""
    model = FluidModel(random_network(7))
    rest = equilibrium(model, cost)
    for flow in (Flow(cost, 10 * ETA[cost]), Flow(cost, ETA[cost], 0.05)):
        path = model.run(flow, 1.0, rif=rest.rif, routing=rest.routing)
        assert path.rif[-1].numpy() == pytest.approx(rest.rif.numpy(), rel=1e-8)
        assert path.routing[-1].numpy() == pytest.approx(rest.routing.numpy(), abs=1e-7)


@pytest.mark.parametrize("cost", COSTS)
def test_any_costs_of_arcs_move_flow_to_their_equilibrium(cost: Cost) -> None:
    """Of the cost's own scale, unrelated to delays."""
    network = random_network(4, 2, 3, half=2.0)
    terms = tensor(np.random.default_rng(1).uniform(0.0, 0.5, (1, 2, 3)))
    system = FluidSystem.from_arrays(network.rates_rps, network.one_way_s, network.curves, terms)
    model = FluidModel(system, 0.05)
    rest = equilibrium(model, cost)
    assert (rest.rif - equilibrium(FluidModel(network), cost).rif).abs().max() > 0.01
    path = model.run(Flow(cost, 2 * ETA[cost]), 1.0, rif=rest.rif, routing=rest.routing)
    assert path.rif[-1].numpy() == pytest.approx(rest.rif.numpy(), rel=1e-8)
    assert path.routing[-1].numpy() == pytest.approx(rest.routing.numpy(), abs=1e-7)


def test_where_flow_stays_is_an_equilibrium() -> None:
    """The tangent velocity is 0 where (6) holds, and nowhere else: here a used arc costs more."""
    model = FluidModel(random_network(7))
    system, rest = model.system, equilibrium(model, "latency")
    routing = torch.where(rest.routing > 1e-9, rest.routing, 0.0)
    cells = cell_cost(system.curves.at(rest.rif), "latency", system.curves.servers)
    costs = cells[:, None] + system.round_trip_s
    assert tangent(routing, -costs, system.arcs).abs().max() < 1e-7
    assert tangent(system.capacity_split(), -costs, system.arcs).abs().max() > 1e-2


def test_disc_slides_to_its_equilibrium_without_delay() -> None:
    """In steps of h it chatters: within the order of h of N*."""
    distances = []
    for step_s in (0.02, 0.005):
        model = FluidModel(two_cells(0.0, rate=8.0), step_s)
        start = tensor([[20.0, 1.0]])
        path = model.run(Disc("gradient"), 40.0, rif=start, routing=tensor([[[1.0, 0.0]]]))
        rest = equilibrium(model, "gradient")
        assert rest.rif.tolist() == [pytest.approx([20.0 / 3.0] * 2)]  # 4 = 10 N / (N + 10)
        distances.append((path.rif[-20:] - rest.rif).abs().max().item())
    assert distances[0] < 0.2
    assert distances[1] < 0.3 * distances[0] * 1.1


def test_disc_swings_where_reports_are_late() -> None:
    """Its gain is infinite (theory.md section 3): all that arrives in a round trip goes one way."""
    model = FluidModel(two_cells(0.1, rate=8.0))
    start, half = tensor([[20.0 / 3.0 + 0.1, 20.0 / 3.0]]), tensor([[[0.5, 0.5]]])
    disc, flow = (
        model.run(each, 40.0, rif=start, routing=half).rif[-100:, 0, 0]
        for each in (Disc("gradient"), Flow("gradient", 0.05))
    )
    # Half a swing: 8 / 2 a second too much for about the round trip of 0.2 s.
    assert 0.4 < 0.5 * (disc.max() - disc.min()) < 1.2
    assert flow.max() - flow.min() < 1e-3


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_the_lyapunov_function_never_rises_at_zero_delay(cost: Cost, seed: int) -> None:
    network = random_network(seed)
    still = network.one_way_s * 0.0
    network = FluidSystem.from_arrays(network.rates_rps, still, network.curves)
    batch, rif, routing = starts(network, seed)
    model = FluidModel(batch, 0.02)
    path = model.run(Flow(cost, 0.1), 20.0, rif=rif, routing=routing, record_every=1)
    values = lyapunov(batch, cost, 0.1, path.rif, path.routing, equilibrium(model, cost))
    assert (values[-1] < 0.8 * values[0]).all()
    assert (values.diff(dim=0) <= 1e-9 * values[0]).all()


def test_distances_by_hand() -> None:
    """mu = 10 N / (N + 10), f = (N + 10)^2 / 100: at N = (10, 5) beside N* = (15, 15) for 12."""
    model = FluidModel(two_cells(0.1))
    rest = equilibrium(model, "gradient")
    assert rest.rif[0].numpy() == pytest.approx([15.0, 15.0])
    rif = tensor([[10.0, 5.0]])
    # f* = 6.25, mu* = 6; f = 4, 2.25; mu = 5, 10/3.
    expected = (4.0 - 6.25) * (5.0 - 6.0) + (2.25 - 6.25) * (10.0 / 3.0 - 6.0)
    assert workload_distance(model.system, "gradient", rif, rest).item() == pytest.approx(expected)
    # Phi: integral of ((s + 10)^2 - 625) / 100 from 15 to 10, and to 5.
    phi = sum(((n + 10) ** 3 - 25**3) / 300 - 6.25 * (n - 15) for n in (10.0, 5.0))
    apart = 12.0 / (2 * 0.05) * 2 * 0.2**2
    value = lyapunov(model.system, "gradient", 0.05, rif, tensor([[[0.7, 0.3]]]), rest)
    assert value.item() == pytest.approx(phi + apart)


def test_the_routing_gap_by_hand() -> None:
    """One root, near and far: all go near, where f* = l = (N + 10) / 10 = 1.25; far costs 1 + 2."""
    curves = hyperbolic([[10.0, 10.0]], [[10.0, 10.0]])
    system = FluidSystem.from_arrays(tensor([[2.0]]), tensor([[[0.0, 1.0]]]), curves)
    rest = equilibrium(FluidModel(system), "latency")
    assert rest.routing[0, 0].tolist() == [1.0, 0.0]
    assert rest.least_cost.item() == pytest.approx(1.25)
    gap = routing_gap(system, "latency", tensor([[[0.9, 0.1]]]), rest)
    assert gap.item() == pytest.approx(2.0 * 0.1 * (1.0 + 2.0 - 1.25))


def test_theorem_1s_bound_by_hand() -> None:
    """V(0) = 10, T = 100, F = 2, C = 3, two arcs of 0.1 s under 12 a second: 2.4 s of sending.

    (10 + 3 F 2.4) / 100 + 4 C F (0.05 x 2.4) = 0.244 + 2.88.
    """
    bound = mean_bound(two_cells(0.1), 0.05, tensor([10.0]), 100.0, (tensor([2.0]), tensor([3.0])))
    assert bound.item() == pytest.approx(3.124)


@pytest.mark.parametrize("eta", [0.003, 0.03])
def test_theorem_1s_bound_holds(eta: float) -> None:
    """With F and C taken from the path itself; theory.md section 4."""
    batch, rif, routing = starts(random_network(9), 3)
    model = FluidModel(batch, 0.05)
    path = model.run(Flow("gradient", eta), 100.0, rif=rif, routing=routing, record_every=5)
    rest = equilibrium(model, "gradient")
    distance = workload_distance(batch, "gradient", path.rif[:-1], rest)
    gap = routing_gap(batch, "gradient", path.routing[:-1], rest)
    costs = batch.curves.at(path.rif).marginal_s
    at_rest = batch.curves.at(rest.rif).marginal_s
    largest = (costs - at_rest).abs().amax(dim=(0, 2))
    apart = (costs.amax(dim=(0, 2)) - costs.amin(dim=(0, 2))) + batch.round_trip_s.amax(dim=(1, 2))
    start = lyapunov(batch, "gradient", eta, rif, routing, rest)
    bound = mean_bound(batch, eta, start, 100.0, (largest, apart))
    mean = (distance + gap).mean(dim=0)
    assert (mean > 0.0).all()
    assert (mean <= bound).all()


def test_demand_beyond_a_cut_names_it() -> None:
    """Root 2 of row 1 reaches cell 1 alone, of 10 a second; root 0 and cell 0 are padding there."""
    curves = hyperbolic([[10.0] * 3] * 2, [[10.0] * 3] * 2)
    padded = [[NAN, NAN, NAN], [NAN, 0.1, 0.1], [NAN, 0.1, NAN]]
    tau_s = tensor([[[0.1] * 3] * 3, padded])
    rates = tensor([[1.0, 1.0, 1.0], [0.0, 1.0, 12.0]])
    with pytest.raises(
        InfeasibleError,
        match=r"row 1: roots \[2\] offer 12 requests/s and reach cells \[1\] alone, which",
    ):
        FluidModel(FluidSystem.from_arrays(rates, tau_s, curves))


def test_scenarios_and_padding_have_equilibria() -> None:
    """Rows of two sizes; the best routing's latency is the scenario's own fluid bound."""
    scenarios = [load_scenario("residency"), load_scenario("global_six")]
    rest = equilibrium(FluidModel(scenarios), "gradient")
    assert (rest.residual <= 1e-9).all()
    expected = [bounds(scenario).fluid_s for scenario in scenarios]
    assert rest.latency_s.numpy() == pytest.approx(expected, rel=1e-9)
    assert (rest.rif[0, len(scenarios[0].cells) :] == 0.0).all()
