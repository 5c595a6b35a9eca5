"""Training through the fluid: exact gradients, less latency, and a policy that is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agents import fluid_training
from agents.fluid_acting import Acting
from agents.fluid_training import (
    Batch,
    FluidTraining,
    exported,
    flow_gradient,
    held_out,
    loss,
    main,
    train,
)
from agents.loading import load
from agents.networks import DescentActor
from agents.saved_policy import write_policy
from dlb_gym.bounds import best_routing
from dlb_gym.fluid import Fixed
from dlb_gym.scenario_source import override
from tests.agents.test_descent import actor_of
from tests.scenarios_by_hand import two_cells

SCENARIO = override(two_cells(), {"warmup_s": 0.0, "demand.utilisation": 0.8})


def test_gradients_through_the_whole_path_are_finite_differences() -> None:
    """Fifty decisions, each on what the ones before did to the queues."""
    batch, actor = Batch.of([SCENARIO]), actor_of(1)
    loss(actor, batch, 5.0).backward()  # type: ignore[no-untyped-call]
    checked = 0
    for parameter in actor.parameters():
        flat, gradient = parameter.data.view(-1), parameter.grad
        assert gradient is not None
        for place in (0, len(flat) - 1):
            before, ends = float(flat[place]), []
            for change in (1e-4, -1e-4):
                flat[place] = before + change
                with torch.no_grad():
                    ends.append(float(loss(actor, batch, 5.0)))
            flat[place] = before
            found = float(gradient.view(-1)[place])
            assert found == pytest.approx((ends[0] - ends[1]) / 2e-4, rel=1e-4, abs=1e-11)
            checked += abs(found) > 1e-7
    assert checked >= 5


@pytest.fixture(scope="module")
def trained() -> DescentActor:
    losses: list[float] = []
    training = FluidTraining(iterations=4, rows=2, horizon_s=5.0, learning_rate=0.1)
    actor = train(training, lambda number, value: losses.append(value))
    assert len(losses) == 4
    return actor


def test_a_few_iterations_lower_the_latency_on_systems_not_trained_on(
    trained: DescentActor,
) -> None:
    fresh = Batch.drawn(500, 2)
    with torch.no_grad():
        before = float(loss(DescentActor(10, 10).double(), fresh, 5.0))
        after = float(loss(trained, fresh, 5.0))
    assert after < before - 1e-3 < 1.0


def test_held_out_fluids_come_within_a_hundredth_of_the_optimum(trained: DescentActor) -> None:
    excess = held_out({"it": lambda batch: Acting(trained, batch.view)}, 6, 120.0, 20.0)["it"]
    assert (excess > -1e-6).all()
    assert (excess < 0.01).all()


def test_a_training_repeats_itself() -> None:
    small = FluidTraining(iterations=2, rows=1, horizon_s=2.0, seed=7)
    one, two = train(small).state_dict(), train(small).state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert one["factor.weight"].abs().max() > 0


def test_held_out_latencies_are_above_the_optimum_where_the_split_is_not_best() -> None:
    """The optimum, held fixed, has it; the split's excess is worked out from its own formula."""
    excess = held_out(
        {
            "best": lambda batch: Fixed(best_of(batch)),
            "split": lambda batch: Fixed(batch.model.system.capacity_split()),
        },
        2,
        60.0,
        10.0,
    )
    assert excess["best"].abs().max() < 1e-5
    batch = Batch.drawn(fluid_training.FIRST_HELD_OUT_SEED, 2)
    system = batch.model.system
    sent = system.capacity_split() * system.rates_rps[..., None]
    travel = (sent * system.travel_s).sum(dim=(1, 2))
    split_s = (batch.rif.sum(dim=1) + travel) / system.rates_rps.sum(dim=1)
    least_s = [each.router_delay_s + best_routing(each).latency_s for each in batch.scenarios]
    np.testing.assert_allclose(excess["split"], split_s / torch.tensor(least_s) - 1, rtol=1e-6)
    assert excess["split"].min() > 0.005
    assert all(0.4 <= each.demand.utilisation <= 0.9 for each in batch.scenarios)


def best_of(batch: Batch) -> torch.Tensor:
    routing = torch.zeros_like(batch.model.system.capacity_split())
    for row, scenario in enumerate(batch.scenarios):
        best = best_routing(scenario).routing
        routing[row, : best.shape[0], : best.shape[1]] = torch.as_tensor(best)
    return routing


def test_the_step_of_flow_is_the_working_rule() -> None:
    """eta_i = min_j a_j / (2 f_j' T_i sum mu), at the split's rest, in seconds."""
    batch = Batch.of([SCENARIO])
    flow = flow_gradient(batch)
    servers = np.array([10.0, 4.0])
    model = fluid_training.SoftplusCells  # of numpy, per cell
    assert isinstance(batch.model.system.curves, model)
    curves = batch.model.system.curves.mapped(lambda each: each[0].numpy(), np)
    point = curves.at(batch.rif[0].numpy())
    tau_s = batch.model.system.one_way_s[0].numpy()
    delay_s = 2 * tau_s + SCENARIO.router_delay_s + SCENARIO.probe_interval_s / 2 + 0.05
    bound = np.min(point.rate_slope / point.marginal_slope)
    expected = 0.5 * bound / (delay_s.mean(axis=1) * point.rate_rps.sum())
    assert isinstance(flow.eta, torch.Tensor)
    np.testing.assert_allclose(flow.eta[0], expected, rtol=1e-9)
    assert (flow.cost, flow.interval_s, len(servers)) == ("gradient", 0.1, 2)


def test_what_is_saved_acts_as_what_was_trained(tmp_path: Path) -> None:
    actor = train(FluidTraining(iterations=1, rows=1, horizon_s=1.0, learning_rate=0.5))
    write_policy(tmp_path, *exported(actor, FluidTraining(seed=3)))
    policy = load(tmp_path)
    assert policy.description.network.kind == "descent"
    trained_on = policy.description.trained_on
    assert (trained_on.family, trained_on.seed, trained_on.steps) == ("appendix_b", 3, 20)
    again = policy.description.network.actor(2, 2).double()
    again.load_state_dict({n: torch.from_numpy(each) for n, each in policy._tensors.items()})
    batch = Batch.of([SCENARIO])
    with torch.no_grad():
        paths = [batch.latency_s(Acting(each, batch.view), 5.0) for each in (actor, again)]
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations": 0}, "iterations = 0 must be finite and above 0"),
        ({"learning_rate": float("nan")}, "learning_rate = nan must be finite and above 0"),
        ({"iterations": 1.5}, "iterations = '1.5' must be a whole number"),
        ({"rows": True}, "rows = 'True' must be a whole number"),
        (
            {"seed": -1},
            r"seed = -1 must be at least 0, and \(seed \+ 1\) x iterations x rows",
        ),
        ({"seed": 999_990}, "systems from there on are kept for evaluation; lower it"),
    ],
)
def test_a_training_that_makes_no_sense_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FluidTraining(**changes)


def test_the_command_trains_saves_and_says_how_near_the_optimum_it_comes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fluid_training, "train", lambda training, show: quick(show))
    folder = tmp_path / "run"
    options = ["--folder", str(folder), "--systems", "2", "--duration", "20"]
    assert main(options) == 0
    said = capsys.readouterr().out
    assert "iteration 1: 0.9000 of the split's latency" in said
    assert [line.split("mean")[0].strip() for line in said.splitlines()[-4:]] == [
        "split by capacity", "flow-gradient", "untrained", "trained"
    ]  # fmt: skip
    assert load(folder).name == "run"
    assert main(options) == 2
    assert (
        "run' is no empty folder; choose another --folder, or delete it" in capsys.readouterr().err
    )


def quick(show: Any) -> DescentActor:
    show(1, 0.9)
    return actor_of(0)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--systems 0", "--systems 0 must be at least 1"),
        ("--first-seed 7", "--first-seed 7 must be at least 1000000: training uses those below"),
        ("--duration 10", "--duration 10.0 must be a multiple of 0.1 s, at least 20"),
        ("--duration 20.05", "--duration 20.05 must be a multiple of 0.1 s, at least 20"),
        ("--duration nan", "--duration nan must be a multiple of 0.1 s, at least 20"),
    ],
)
def test_options_are_judged_before_anything_is_trained(
    option: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    assert main(["--folder", str(folder), *option.split()]) == 2
    assert message in capsys.readouterr().err
    assert not folder.exists()


def test_trainings_of_other_seeds_meet_other_systems() -> None:
    first, second = (FluidTraining(iterations=3, rows=2, seed=seed) for seed in (0, 1))
    assert first.first_system + 3 * 2 == second.first_system


def test_a_view_of_systems_that_change_is_refused() -> None:
    outage = {"kind": "outage", "cells": ["east"], "servers_left": 5}
    with pytest.raises(ValueError, match="scenarios hold disturbances or a demand that moves, and"):
        Batch.of([two_cells(disturbances=[outage], warmup_s=0.0)])
