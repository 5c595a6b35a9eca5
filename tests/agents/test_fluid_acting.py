"""What a network sees of a fluid is what it would observe of the engine in the same state."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agents.fluid_acting import FluidView
from dlb_gym.episodes import FixedScenarios
from dlb_gym.fluid import FluidSystem
from dlb_gym.observation import Observation
from dlb_gym.rates import zero_load_time_s
from dlb_gym.scenario_source import override
from dlb_gym.task import Task
from tests.scenarios_by_hand import two_cells

SCENARIO = override(two_cells(), {"warmup_s": 3.0, "horizon_s": 2.0, "demand.utilisation": 0.9})
EQUAL = (
    "admissible", "rtt", "rif", "servers", "serving_latency", "marginal_latency", "model_alpha",
    "model_beta", "model_knee", "model_smoothing", "capacity_load", "control_interval", "routing",
)  # fmt: skip


def test_the_fields_are_those_of_the_environment_in_the_same_state() -> None:
    """Requests in flight and servers are taken from an observation, everything else follows."""
    observed = Observation(2, 2).decode(Task(FixedScenarios([SCENARIO]), 1).reset(seeds=[3]))
    system = FluidSystem.from_scenarios([SCENARIO])
    servers = torch.tensor([10.0, 4.0], dtype=torch.float64).expand(1, 2, 2)
    rif = torch.as_tensor(observed["rif"].astype(np.float64)) * servers
    assert rif.min() > 0
    routing = torch.as_tensor(observed["routing"].astype(np.float64))
    view = FluidView.of([SCENARIO], system)
    fields = view.fields(system, routing, torch.stack((rif, servers), dim=-1))
    for name in EQUAL:
        np.testing.assert_allclose(fields[name], observed[name], rtol=1e-5, err_msg=name)
    # 112 requests a second are the fleet's nominal rate, of which 0.9 come, 3 to 1.
    expected = [[[0.9 * 0.75] * 2, [0.9 * 0.25] * 2]]
    np.testing.assert_allclose(fields["arrival_load"], expected, rtol=1e-12)
    # A probe has travelled and then waits for the next one, in the mean half their interval.
    unit_s = zero_load_time_s(SCENARIO)
    aged = (fields["probe_age"].numpy() - 0.5 * fields["rtt"].numpy()) * unit_s
    np.testing.assert_allclose(aged, 0.5 * SCENARIO.probe_interval_s, rtol=1e-9)
    seen_s = (observed["probe_age"] - 0.5 * observed["rtt"]) * unit_s
    assert ((seen_s > -1e-6) & (seen_s < SCENARIO.probe_interval_s + 1e-6)).all()


def test_fields_saturate_and_padding_is_zero() -> None:
    one = two_cells(roots=[{"name": "east", "region": "us-east4", "demand": 1}])
    system = FluidSystem.from_scenarios([SCENARIO, override(one, {"warmup_s": 3.0})])
    seen = torch.full((2, 2, 2, 2), 1e5, dtype=torch.float64)
    seen[..., 1] = 10.0
    view = FluidView.of([SCENARIO, one], system)
    fields = view.fields(system, torch.zeros(2, 2, 2, dtype=torch.float64), seen)
    assert fields["rif"][0].unique().tolist() == [1000.0]
    assert fields["marginal_latency"][0].unique().tolist() == [10_000.0]
    for name, values in fields.items():
        assert (values[1, 1] == 0.0).all(), name
        assert torch.isfinite(values).all(), name


def test_one_batch_has_one_control_interval() -> None:
    other = override(SCENARIO, {"control_interval_s": 0.2})
    system = FluidSystem.from_scenarios([SCENARIO, other])
    with pytest.raises(
        ValueError,
        match=r"scenarios of one batch need one control_interval_s, and there are 2: "
        r"\[0\.1, 0\.2\]; give scenarios of the same",
    ):
        FluidView.of([SCENARIO, other], system)
