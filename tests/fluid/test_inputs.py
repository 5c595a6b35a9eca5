"""What is no system, no start or no router is refused by name, before or while it moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from dlb_gym.fluid import Disc, Fixed, Flow, FluidModel, FluidSystem
from dlb_gym.textbook_curves import HyperbolicCells, PooledSlots
from tests.fluid.systems import NAN, hyperbolic, pooled, tensor, two_cells
from tests.scenarios_by_hand import two_cells as scenario_of_two

NO_ARC = torch.full((1, 1, 1), torch.nan, dtype=torch.float64)
CURVES = hyperbolic([[10.0]], [[10.0]])
HALF = tensor([[[0.5, 0.5]]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"one_way_s": tensor([[0.1]])},
            r"s has shape \(1, 1\) and must have \(1, 1, 1\): rates_rps gives rows",
        ),
        ({"rates_rps": tensor([1.0])}, r"rates_rps has shape \(1,\) and must have \(rows, roots\)"),
        ({"rates_rps": [[1.0]]}, "rates_rps is of type list; give tensors, and curves with xp="),
        ({"arc_cost": tensor([[1.0]])}, r"arc_cost has shape \(1, 1\) and must have \(1, 1, 1\)"),
        (
            {"curves": HyperbolicCells(*(np.ones((1, 1)) for _ in range(3)))},
            "parameter 0 of curves is of type ndarray; give tensors",
        ),
        (
            {"curves": hyperbolic([10.0], [10.0])},
            r"parameter 0 of curves has shape \(1,\) and must have \(1, 1\)",
        ),
        (
            {"curves": hyperbolic([[10.0]], [[-10.0]])},
            "parameter 1 of curves must be finite and at least 0",
        ),
        ({"curves": hyperbolic([[NAN]], [[10.0]])}, "parameter 0 of curves must be finite"),
        (
            {"rates_rps": tensor([[1.0]]).float()},
            r"curves are of \['torch.float32 on cpu', 'torch.float64 on cpu'\]; give all of them",
        ),
        ({"rates_rps": tensor([[-1.0]])}, "rates_rps must be finite and at least 0"),
        ({"rates_rps": tensor([[NAN]])}, "rates_rps must be finite and at least 0"),
        ({"rates_rps": tensor([[0.0]])}, "row 0 of rates_rps has no arrivals; leave it out"),
        ({"one_way_s": tensor([[[-0.1]]])}, "one_way_s must be at least 0 and finite, or NaN"),
        ({"one_way_s": tensor([[[float("inf")]]])}, "one_way_s must be at least 0 and finite"),
        ({"arc_cost": NO_ARC}, "arc_cost must be finite on every arc; give what each one costs"),
        ({"one_way_s": NO_ARC}, "root 0 of row 0 has arrivals and no arc; give it a finite"),
    ],
)
def test_arrays_that_are_no_system_are_refused(change: dict[str, Any], message: str) -> None:
    arrays = {
        "rates_rps": tensor([[1.0]]), "one_way_s": tensor([[[0.1]]]), "curves": CURVES, **change,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        FluidSystem.from_arrays(**arrays)


@pytest.mark.parametrize(
    ("system", "message"),
    [
        ([], "system holds no scenario; give at least one"),
        ("global_six", "system holds 'global_six'; give a Scenario"),
        ([scenario_of_two(), 3], "system holds '3'; give a Scenario"),
    ],
)
def test_what_is_no_scenario_is_refused(system: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FluidModel(system)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float16])
def test_types_that_would_change_numbers_are_refused(dtype: torch.dtype) -> None:
    with pytest.raises(
        ValueError, match=rf"dtype = {dtype} must be torch.float32 or torch.float64"
    ):
        FluidSystem.from_scenarios([scenario_of_two()], dtype=dtype)


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ({"rif": tensor([5.0, 5.0])}, r"rif has shape \(2,\) and must have \(1, 2\)"),
        ({"rif": [[NAN, 5.0]]}, "rif must be finite"),
        ({"rif": "empty"}, "rif = 'empty' must be numbers"),
        ({"rif": [[-5.0, 5.0]]}, "rif at 0 s is negative or not finite; check rates, curves and"),
        (
            {"routing": tensor([[0.5, 0.5]])},
            r"routing has shape \(1, 2\) and must have \(1, 1, 2\)",
        ),
        ({"routing": [[[0.9, 0.9]]]}, "routing at 0 s is off the simplex over the arcs by 0.8"),
        ({"routing": [[[1.2, -0.2]]]}, "routing at 0 s is off the simplex over the arcs by 0.2"),
    ],
)
def test_starts_that_are_none_are_refused(start: dict[str, Any], message: str) -> None:
    model = FluidModel(two_cells(0.1))
    dynamics = Flow("rif", 1e-9, 1.0) if "routing" in start else Flow("rif", 0.1)
    with pytest.raises(ValueError, match=message):
        model.run(dynamics if "rif" in start else Held(), 1.0, **start)


class Held(Disc):
    """Routing stays what it was."""

    def __init__(self) -> None:
        super().__init__("rif")

    def step(self, system: Any, routing: Any, seen: Any, duration_s: float) -> Any:
        return routing


def test_traffic_where_no_arc_is_is_refused() -> None:
    curves = hyperbolic([[10.0, 10.0]], [[10.0, 10.0]])
    system = FluidSystem.from_arrays(tensor([[4.0]]), tensor([[[0.1, NAN]]]), curves)
    with pytest.raises(ValueError, match=r"off the simplex over the arcs by 0.5; rows must add up"):
        FluidModel(system).run(Fixed(HALF), 1.0)


@pytest.mark.parametrize("shares", [[[0.2, 0.2]], [[NAN, 0.5]]])
def test_a_fixed_routing_off_the_simplex_is_refused(shares: list[list[float]]) -> None:
    with pytest.raises(ValueError, match=r"off the simplex over the arcs|routing must be finite"):
        FluidModel(two_cells(0.1)).run(Fixed(tensor(shares)), 1.0)


@pytest.mark.parametrize("eta", [0.0, -0.1, NAN, tensor([0.1, NAN])])
def test_steps_that_are_none_are_refused(eta: Any) -> None:
    with pytest.raises(ValueError, match=r"eta = .* must be finite and above 0"):
        Flow("rif", eta)


def test_steps_may_be_numbers_arrays_or_tensors_of_roots() -> None:
    curves = hyperbolic([[10.0, 10.0]] * 2, [[10.0, 10.0]] * 2)
    tau_s = tensor([[[0.1, 0.2], [0.2, 0.1]]] * 2)
    model = FluidModel(FluidSystem.from_arrays(tensor([[4.0, 5.0]] * 2), tau_s, curves))
    paths = [
        model.run(Flow("rif", eta), 1.0).routing
        for eta in (
            0.05,
            np.array([0.05, 0.05]),
            tensor([[0.05], [0.05]]),
            tensor([[0.05] * 2] * 2),
        )
    ]
    assert all(torch.equal(path, paths[0]) for path in paths)
    with pytest.raises(ValueError, match=r"eta has shape \(3,\); give a number, one for each root"):
        model.run(Flow("rif", tensor([0.1, 0.1, 0.1])), 1.0)


def test_a_given_history_needs_no_warm_up() -> None:
    model = FluidModel(scenario_of_two(warmup_s=2.0))
    start = {"rif": [[30.0, 1.0]], "routing": [[[0.5, 0.5], [0.5, 0.5]]]}
    path = model.run(Disc("rif"), 0.1, record_every=1, **start)
    assert path.routing[0, 0].tolist() == [[0.0, 1.0], [0.0, 1.0]]


def test_a_run_must_outlast_the_warm_up() -> None:
    model = FluidModel(scenario_of_two(warmup_s=2.0))
    with pytest.raises(
        ValueError, match=r"duration_s = 2.0 ends before the routers decide: warm-up"
    ):
        model.run(Disc("rif"), 2.0)


def test_spans_that_are_no_steps_are_refused() -> None:
    model = FluidModel(pooled(20.0, 0.1), 0.02, allow_nonmonotone=True)
    only = Fixed(tensor([[1.0]]))
    for span_s in (0.05, float("nan"), 0.0):
        with pytest.raises(ValueError, match=r"duration_s = .* must be a whole number of steps of"):
            model.run(only, span_s)
    with pytest.raises(ValueError, match=r"duration_s = None; systems given as arrays have no"):
        model.run(only)
    with pytest.raises(ValueError, match=r"interval_s = 0.03 must be a whole number of steps"):
        model.run(Disc("rif", 0.03), 1.0)
    with pytest.raises(ValueError, match="record_every = 0 must be at least 1"):
        model.run(only, 1.0, record_every=0)
    with pytest.raises(ValueError, match=r"warmup_s = 0.1 must be a whole number of steps of 0.03"):
        FluidModel(scenario_of_two(warmup_s=0.1), 0.03).run(Disc("rif"), 3.0)


def test_a_step_beyond_the_service_time_is_refused() -> None:
    with pytest.raises(ValueError, match=r"step_s = 2.5 is longer than the shortest service.* 2 s"):
        FluidModel(pooled(20.0, 0.1), 2.5, allow_nonmonotone=True)
    with pytest.raises(ValueError, match="step_s = 0 must be finite and above 0"):
        FluidModel(pooled(20.0, 0.1), 0, allow_nonmonotone=True)


def test_disturbed_servers_need_curves_of_servers() -> None:
    outage = {"kind": "outage", "cells": ["west"], "servers_left": 1}
    system = FluidSystem.from_scenarios(
        [scenario_of_two(disturbances=[outage], warmup_s=0.0, horizon_s=2.0)]
    )
    slots = PooledSlots(tensor([[100.0, 40.0]]), tensor([[1.0, 1.0]]), torch)
    model = FluidModel(replace(system, curves=slots), allow_nonmonotone=True)
    with pytest.raises(ValueError, match="curves = PooledSlots know no servers, and a disturbance"):
        model.run(Disc("rif"))


def test_rates_of_a_scenario_can_be_replaced() -> None:
    """Also where its demand moves."""
    profile = {"synchronised_fraction": 0.3}
    scenario = scenario_of_two(
        demand={"utilisation": 0.5, "profile": profile}, warmup_s=0.0, horizon_s=2.0
    )
    system = FluidSystem.from_scenarios([scenario])
    whole, half = (
        FluidModel(replace(system, rates_rps=share * system.rates_rps)).run(Disc("rif")).offered_rps
        for share in (1.0, 0.5)
    )
    assert half.numpy() == pytest.approx(0.5 * whole.numpy(), rel=1e-12)


def test_a_path_of_nothing_answered_has_no_latency() -> None:
    hole = {"kind": "black_hole", "cells": ["east", "west"], "error_fraction": 1.0}
    scenario = scenario_of_two(disturbances=[hole], warmup_s=0.0, horizon_s=10.0)
    path = FluidModel(scenario).run(Disc("rif"))
    with pytest.raises(ValueError, match=r"row 0 answers no requests after since_s = 6.9, so they"):
        path._replace(time_s=torch.where(path.time_s > 6.95, 0.0, path.time_s)).latency_s(6.9)
