"""Costs by hand; those of the mean are also read in test_discrete."""

from __future__ import annotations

import math

import numpy as np
import pytest

from baselines.costs import cost, cost_slope, latency_model
from baselines.discrete import Discrete, DiscreteScore
from baselines.flow import Flow
from dlb_gym.observation import Observation
from tests.baselines.scenes import observe, start

# Softplus of alpha 2, beta 1/4, knee 6, smoothing 2: at the knee 2 + log(2) / 2, and the slope 1/8.
SCENE = {
    "rif": [6.0, 2.0, 6.0],
    "rtt": [0.0, 0.25, 0.5],
    "tail_alpha": [2.0, 2.5, 1.25],
    "tail_beta": 0.25,
    "tail_knee": 6.0,
    "tail_smoothing": 2.0,
}
AT_KNEE, BEFORE = 0.5 * math.log(2.0), 0.5 * math.log1p(math.exp(-2.0))
COSTS = [2.0 + AT_KNEE, 2.5 + BEFORE + 0.25, 1.25 + AT_KNEE + 0.5]
SLOPES = [0.125, 0.25 / (1.0 + math.exp(2.0)), 0.125]


def test_the_cost_of_the_tail_is_its_softplus_and_a_round_trip() -> None:
    fields = Observation(1, 3).decode(observe(1, 3, **SCENE))
    np.testing.assert_allclose(cost("p95", fields), [[COSTS]], rtol=1e-7)
    point = latency_model(fields).at(fields["rif"].astype(np.float64))
    np.testing.assert_allclose(cost_slope("p95", fields, point), [[SLOPES]], rtol=1e-7)


def test_discrete_routing_by_the_tail_takes_the_least() -> None:
    """2.35, 2.81 and 2.10: the farthest cell, which neither its mean nor its RIF would choose."""
    seen = observe(1, 3, **SCENE)
    np.testing.assert_array_equal(start(Discrete("p95"), 1, 3).act(seen).routing, [[[0, 0, 1]]])
    scores = start(DiscreteScore("p95"), 1, 3).act(observe(1, 3, **SCENE, request_weight=0.5))
    np.testing.assert_allclose(scores.base, [[COSTS]], rtol=1e-7)
    np.testing.assert_allclose(scores.slope, [[np.array(SLOPES) / 2]], rtol=1e-7)


def test_flow_by_the_tail_divides_by_its_own_slope() -> None:
    """As test_flow: m' = 1 and m = n, T = 0.5, and the steepest tail's slope is 1/8.

    eta = 0.5 k / (T q' sum k n) = 0.5 x 0.5 / (0.5 x 1/8 x 0.5 (6 + 2)) = 1, and h eta = 1/4.
    """
    fields = {
        "rif": [6.0, 2.0], "rtt": [0.125, 0.375], "probe_age": [0.125, 0.375],
        "tail_alpha": [2.0, 1.75 + AT_KNEE - BEFORE], "tail_beta": 0.25,
        "tail_knee": 6.0, "tail_smoothing": 2.0,
    }  # fmt: skip
    routing = start(Flow("p95", max_move=1.0), 1, 2).act(observe(1, 2, **fields)).routing
    # Costs: 2.125 + AT_KNEE, and 1.75 + AT_KNEE + 0.375: equal.
    np.testing.assert_allclose(routing, [[[0.5, 0.5]]], atol=1e-7)
    nearer = fields | {"rtt": [0.25, 0.25]}
    routing = start(Flow("p95", max_move=1.0), 1, 2).act(observe(1, 2, **nearer)).routing
    # Now the second is cheaper by 1/4, and half of h eta / 4 moves.
    np.testing.assert_allclose(routing, [[[0.46875, 0.53125]]], rtol=1e-7)


@pytest.mark.parametrize("name", ["rif", "latency", "gradient"])
def test_no_cost_of_the_paper_reads_the_tail(name: str) -> None:
    policy = start(Flow(name), 1, 3)
    one = policy.act(observe(1, 3, **SCENE)).routing
    policy.restart(np.array([True]))
    other = policy.act(observe(1, 3, **SCENE | {"tail_alpha": 9.0})).routing
    np.testing.assert_array_equal(one, other)
