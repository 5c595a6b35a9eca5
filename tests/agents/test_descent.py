"""The network that makes steps: where it rests, how fast it moves, what it remembers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from agents import networks
from agents.fluid_acting import Acting
from agents.fluid_training import Batch, FluidTraining, exported
from agents.loading import LearnedPolicy, load
from agents.networks import DescentActor
from agents.saved_policy import write_policy
from dlb_gym.actions import to_routing
from dlb_gym.bounds import best_routing
from dlb_gym.latency_model import LatencyModel
from dlb_gym.observation import FIELD_NAMES, Observation
from dlb_gym.policy import TaskSpec
from dlb_gym.policy_check import check_policy
from tests.agents.trained import observations
from tests.scenarios_by_hand import two_cells


def actor_of(seed: int, roots: int = 2, cells: int = 2) -> DescentActor:
    """With weights far from those at the start."""
    torch.manual_seed(seed)
    actor = DescentActor(roots, cells).double()
    torch.nn.init.normal_(actor.factor.weight)
    return actor


def biased(bias: float) -> DescentActor:
    """The untrained network with another factor on its gain."""
    actor = DescentActor(2, 2).double()
    torch.nn.init.constant_(actor.factor.bias, bias)
    return actor


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    write_policy(tmp_path, *exported(actor_of(0), FluidTraining()))
    return tmp_path


def test_whatever_the_weights_the_optimum_stays() -> None:
    """At the equilibrium of the gradient cost, seen without error, used arcs keep their shares."""
    scenario = two_cells(demand={"utilisation": 0.8})
    batch = Batch.of([scenario.model_copy(update={"warmup_s": 0.0})])
    system, best = batch.model.system, best_routing(scenario)
    routing = torch.as_tensor(best.routing)[None]
    rif = torch.as_tensor(best.rif)[None, None].expand(routing.shape)
    seen = torch.stack((rif, system.curves.servers[:, None].expand(routing.shape)), dim=-1)
    used = best.routing > 1e-6
    assert used.sum() == 3  # one root divides its requests
    for seed in range(5):
        moved = Acting(actor_of(seed), batch.view).step(system, routing, seen, 0.1)[0].numpy()
        divided = used.all(axis=1)
        np.testing.assert_allclose(moved[divided], best.routing[divided], atol=1e-9)
        elsewhere = seen * torch.tensor([[1.2, 1.0], [1.0, 1.0]])
        away = Acting(actor_of(seed), batch.view).step(system, routing, elsewhere, 0.1)[0].numpy()
        assert np.abs(away - best.routing)[divided].max() > 1e-4


@pytest.mark.parametrize(("bias", "factor"), [(0.0, 1.0), (1e6, 1.6), (-1e6, 1 / 1.6)])
def test_a_step_is_the_one_of_the_formula(bias: float, factor: float) -> None:
    """Untrained, and with weights so large that they show the bounds."""
    rtt, age, rif = np.array([0.02, 0.2]), np.array([0.012, 0.11]), np.array([9.0, 6.5])
    share, interval = np.array([0.7, 0.3]), 0.1
    model = LatencyModel(*np.array([[1.0, 1.1], [0.1, 0.12], [8.0, 7.0], [1.5, 1.2]]))
    point = model.at(rif)
    cost = point.marginal_latency + rtt
    delay = rtt / 2 + age + interval / 2
    gain = factor * 0.5 * point.rate_slope / (point.rate * point.marginal_slope * delay)
    step = interval * gain * (cost - share @ cost)
    weight = share * np.exp(-0.1 * np.tanh(step / 0.1))
    values = {
        "admissible": np.ones(2), "rtt": rtt, "probe_age": age, "rif": rif,
        "marginal_latency": point.marginal_latency, "routing": share,
        "model_alpha": model.alpha, "model_beta": model.beta, "model_knee": model.knee,
        "model_smoothing": model.smoothing, "arrival_load": np.full(2, 0.6),
        "capacity_load": np.array([0.5, 0.5]), "control_interval": np.full(2, interval),
    }  # fmt: skip
    fields = {name: torch.as_tensor(each)[None, None] for name, each in values.items()}
    logits = biased(bias).logits(fields)[0, 0].numpy()
    np.testing.assert_allclose(logits, np.log(weight / weight.max()), rtol=1e-12)
    assert logits.max() == 0.0
    assert abs(logits.min() - np.log(3 / 7)) > 0.01  # it moved


def test_a_share_never_leaves_a_trickle_and_padding_has_none() -> None:
    seen = observations(1)
    cube = seen.reshape(1, 2, 2, -1)
    cube[..., FIELD_NAMES.index("routing")] = [[1.0, 0.0], [0.5, 0.5]]
    cube[0, 1, 1] = 0.0
    action = DescentActor(2, 2).double().forward_actor(torch.as_tensor(seen)).numpy()
    np.testing.assert_array_equal(action[0], np.float32([0.0, -1.0, 0.0, 0.0]))


def test_any_observation_within_the_bounds_gives_a_finite_action() -> None:
    """Curves without a knee, empty cells and what saturates among them."""
    rng, high = np.random.default_rng(0), Observation(2, 2).space.high
    seen = high * rng.choice([0.0, 1e-9, 0.5, 1.0], (200, len(high)))
    seen.reshape(200, 2, 2, -1)[..., FIELD_NAMES.index("admissible")] = 1.0
    actor = actor_of(0)
    action = actor.forward_actor(torch.as_tensor(seen.astype(np.float32)))
    assert torch.isfinite(action).all()
    assert ((action <= 0.0) & (action >= -1.0)).all()


@pytest.mark.parametrize(("factor", "settles"), [(1.0, True), (1.6, True), (4.0, False)])
def test_half_of_the_critical_gain(
    factor: float, settles: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two equal cells behind a root: below twice the gain a push dies out, far beyond it grows.

    s (s + m') + K e^(-sT) is stable up to K = m'/T for T short against the service.
    """
    scenario = two_cells(
        cells=[
            {"name": "east", "region": "us-east4", "servers": 10},
            {"name": "west", "region": "us-east4", "servers": 10},
        ],
        roots=[{"name": "east", "region": "us-east4", "demand": 1}],
        network={"rtt_s": [[0.1, 0.1]]},
        demand={"utilisation": 0.85},
        warmup_s=0.0,
    )
    batch = Batch.of([scenario], step_s=0.05)
    monkeypatch.setattr(networks, "LARGEST_FACTOR", 2.0)  # a gain that no network can have
    actor = biased(2.0 * math.atanh(math.log(factor) / 2.0))
    pushed = batch.rif * torch.tensor([1.02, 0.98])
    path = batch.model.run(Acting(actor, batch.view), 60.0, rif=pushed)
    gap = (path.rif[:, 0, 0] - path.rif[:, 0, 1]).abs()
    early, late = gap[: len(gap) // 4].max(), gap[-(len(gap) // 4) :].max()
    assert (late < 0.3 * early) == settles
    assert settles or late > 2.0 * early


def test_the_contract_of_policies_holds_bit_for_bit(saved: Path) -> None:
    """Local, relabelled with its cells, the same in a batch, padded and after a restart."""
    policy = load(saved)
    assert policy.information == "local"
    check_policy(policy)


def answered(policy: LearnedPolicy, seen: np.ndarray) -> np.ndarray:
    routing = policy.act(seen).routing
    assert routing is not None
    return routing


def test_a_restart_before_the_first_reset_is_none(saved: Path) -> None:
    load(saved).restart(np.array([True, False]))


def test_it_goes_on_from_its_own_last_routing_and_restart_forgets_it(saved: Path) -> None:
    seen, policy, actor = observations(2), load(saved), actor_of(0)
    policy.reset(TaskSpec(2, 2, Observation(2, 2)), 2, 0)
    cube = seen.reshape(2, 2, 2, -1)
    arcs = np.ones((2, 2, 2), dtype=np.bool_)
    last = np.tile([80 / 112, 32 / 112], (2, 2, 1))  # nominal rates of the cells
    answers = []
    for _ in range(3):
        given = seen.copy()
        given.reshape(cube.shape)[..., FIELD_NAMES.index("routing")] = last
        action = actor.forward_actor(torch.as_tensor(given)).numpy()
        last = to_routing(action.reshape(2, 2, 2), "logits", arcs)
        answers.append(answered(policy, seen))
        np.testing.assert_allclose(answers[-1], last, atol=1e-6)
    assert np.abs(answers[2] - answers[0]).max() > 1e-3
    policy.restart(np.array([True, False]))
    again = answered(policy, seen)
    np.testing.assert_array_equal(again[0], answers[0][0])
    assert np.abs(again[1] - answers[0][1]).max() > 1e-3
    cube[..., FIELD_NAMES.index("routing")] = [1.0, 0.0]  # where few requests went is not read
    policy.restart(np.array([True, True]))
    np.testing.assert_array_equal(answered(policy, seen), answers[0])
