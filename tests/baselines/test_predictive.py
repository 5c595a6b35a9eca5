"""The Smith predictor by hand, and what is built on it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from baselines.predictive import (
    GAIN,
    MEMORY_S,
    TEMPERATURE,
    TEMPERATURE_PER_INTERVAL,
    PredictiveDiscrete,
    PredictiveFlow,
    PredictiveSoftmin,
    PredictiveVector,
)
from dlb_gym.policy import Policy
from tests.baselines.scenes import observe, start

# Sent within age 3/8 and way 1/8, half a zero-load time, which is 4 s; decisions every quarter.
SCENE: dict[str, Any] = {
    "probe_age": 0.375, "rtt": 0.25, "zero_load_time_s": 4.0, "control_interval": 0.25,
}  # fmt: skip
SHARE = 1.0 - math.exp(-1.0 / MEMORY_S)
"""What a decision, a second after the other, counts in the running mean."""


def predicted(policy: Policy, name: str = "rif", cells: int = 2, **fields: Any) -> list[float]:
    """A named field of the first row, as the policy sees it."""
    assert isinstance(policy, PredictiveVector)
    found = policy.fields(observe(1, cells, **SCENE | fields))[name][0, 0]
    return [float(value) for value in found]


def test_an_episodes_first_unseen_requests_are_the_usual_ones() -> None:
    policy = start(PredictiveVector("rif"), 1, 2)
    assert predicted(policy, rif=[3.0, 5.0], unseen=[2.0, 0.25]) == [3.0, 5.0]


def test_the_correction_is_the_gain_times_what_is_unusual() -> None:
    """rho = 2 and 0.5; unseen rise by 1 and fall by 0.125 from what half a time brings."""
    policy = start(PredictiveVector("rif"), 1, 2)
    predicted(policy, unseen=[1.0, 0.25])
    found = predicted(policy, rif=[3.0, 5.0], unseen=[2.0, 0.125])
    assert_allclose(found, [3.0 + GAIN * 1.0, 5.0 - GAIN * 0.125], rtol=1e-6)


def test_the_usual_number_follows_the_probes_age() -> None:
    """A probe that is twice as old hides twice as many, and nothing is corrected."""
    policy = start(PredictiveVector("rif"), 1, 2)
    predicted(policy, unseen=1.0)
    assert_allclose(predicted(policy, rif=4.0, probe_age=0.875, unseen=2.0), [4.0, 4.0])


def test_the_mean_moves_by_time_and_the_decision_reads_it_before() -> None:
    policy = start(PredictiveVector("rif"), 1, 1)
    seen: dict[str, Any] = {"cells": 1, "rif": 4.0}
    predicted(policy, unseen=1.0, **seen)
    assert_allclose(predicted(policy, unseen=2.0, **seen), [4.0 + GAIN], rtol=1e-6)
    # rho went from 2 to 2 + 2 share: of 2 unseen 1 + share are usual.
    expected = 4.0 + GAIN * (1.0 - SHARE)
    assert_allclose(predicted(policy, unseen=2.0, **seen), [expected], rtol=1e-6)
    expected = 4.0 + GAIN * (1.0 - SHARE) ** 2
    assert_allclose(predicted(policy, unseen=2.0, **seen), [expected], rtol=1e-6)


def test_no_cell_is_predicted_to_hold_less_than_nothing() -> None:
    policy = start(PredictiveVector("rif"), 1, 1)
    predicted(policy, cells=1, unseen=4.0)
    assert predicted(policy, cells=1, rif=1.0, unseen=0.0) == [0.0]


def test_costs_are_taken_at_the_predicted_rif() -> None:
    """Past a sharp knee of 7 at 1/8: l(9) = 1 + 2/8, f(9) = l^2 / (alpha - beta knee) = 12.5."""
    policy = start(PredictiveVector("latency"), 1, 1)
    scene: dict[str, Any] = {"cells": 1, "rif": 9.0 - GAIN, "unseen": 2.0, "serving_latency": 77.0}
    predicted(policy, cells=1, unseen=1.0)
    assert_allclose(predicted(policy, "serving_latency", **scene), [1.25], rtol=1e-6)
    policy.restart(np.array([True]))
    predicted(policy, cells=1, unseen=1.0)
    assert_allclose(predicted(policy, "marginal_latency", **scene), [12.5], rtol=1e-6)


def test_a_restarted_row_forgets_and_the_others_do_not() -> None:
    policy = start(PredictiveVector("rif"), 1, 1, replications=2)
    assert isinstance(policy, PredictiveVector)
    policy.fields(observe(1, 1, 2, **SCENE, unseen=1.0))
    policy.restart(np.array([True, False]))
    found = policy.fields(observe(1, 1, 2, **SCENE, rif=4.0, unseen=2.0))["rif"]
    assert_allclose(found[:, 0, 0], [4.0, 4.0 + GAIN], rtol=1e-6)


def second_decision(policy: Policy) -> Any:
    """Cell 1 looks the better by its probe, of RIF 8 against 8.5; a request more is on its way."""
    start(policy, 1, 2)
    policy.act(observe(1, 2, **SCENE, rif=8.0, unseen=1.0))
    return policy.act(observe(1, 2, **SCENE, rif=[8.5, 8.0], unseen=[1.0, 2.0], request_weight=0.5))


@pytest.mark.parametrize("cost", ["rif", "latency", "gradient"])
def test_disc_turns_away_from_what_it_sent_itself(cost: str) -> None:
    assert_array_equal(second_decision(PredictiveVector(cost)).routing, [[[1.0, 0.0]]])


def test_scores_begin_at_the_prediction_and_count_own_requests_from_there() -> None:
    found = second_decision(PredictiveDiscrete("rif"))
    assert_allclose(found.base, [[[8.5, 8.0 + GAIN]]], rtol=1e-6)
    assert_allclose(found.slope, [[[0.5, 0.5]]])
    found = second_decision(PredictiveDiscrete("latency"))
    assert_allclose(found.base, [[[1.0 + 1.5 / 8 + 0.25, 1.0 + (1.0 + GAIN) / 8 + 0.25]]])


def test_flow_moves_away_from_what_it_sent_itself() -> None:
    routing = second_decision(PredictiveFlow("rif")).routing
    assert routing[0, 0, 0] > 0.5


def softmin(policy: PredictiveSoftmin, **fields: Any) -> NDArray[np.float64]:
    routing = start(policy, 1, 3).act(observe(1, 3, **fields)).routing
    assert routing is not None
    return np.asarray(routing[0, 0])


def test_softmin_halves_a_share_for_each_log_2_of_excess_over_the_temperature() -> None:
    """T = temperature + 1.5 h = 1/2; excesses 0, T log 2 and 2 T log 2 of capacities 1, 2 and 4."""
    heat = 0.5
    policy = PredictiveSoftmin("latency", heat - TEMPERATURE_PER_INTERVAL * 0.25)
    found = softmin(
        policy, rtt=heat * math.log(2.0) * np.arange(3), capacity_load=[0.125, 0.25, 0.5]
    )
    assert_allclose(found, [1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


def test_softmin_takes_requests_per_server_for_the_mean_time_that_one_takes() -> None:
    """Mean beta 1/4 of the two arcs: T = 1/2 is two requests per server."""
    policy = PredictiveSoftmin("rif", 0.5 - TEMPERATURE_PER_INTERVAL * 0.25)
    found = softmin(
        policy, rif=[1.0, 1.0 + 2.0 * math.log(3.0), 0.0], model_beta=[0.125, 0.375, 9.0],
        admissible=[1, 1, 0],
    )  # fmt: skip
    assert_allclose(found, [0.75, 0.25, 0.0], rtol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.inf, math.nan])
def test_a_temperature_out_of_range_is_refused(temperature: float) -> None:
    with pytest.raises(ValueError, match=rf"temperature = {temperature} must be finite and above"):
        PredictiveSoftmin("latency", temperature)
    assert PredictiveSoftmin("latency").temperature == TEMPERATURE


def test_an_unknown_cost_names_the_nearest() -> None:
    for policy in (PredictiveVector, PredictiveDiscrete, PredictiveFlow, PredictiveSoftmin):
        with pytest.raises(ValueError, match="'ryf' is unknown; nearest valid key: 'rif'"):
            policy("ryf")
