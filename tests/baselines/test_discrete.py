from __future__ import annotations

import numpy as np
import pytest

from baselines.discrete import Discrete, DiscreteScore
from tests.baselines.scenes import observe, start

SCENE = {
    "rif": [4.0, 2.0, 8.0],
    "serving_latency": [1.0, 1.5, 1.25],
    "marginal_latency": [1.75, 1.75, 1.125],
    "rtt": [0.25, 0.0, 0.5],
}


@pytest.mark.parametrize(
    ("cost", "cell"),
    [("rif", 1), ("latency", 0), ("gradient", 2)],  # least of 4 2 8; 1.25 1.5 1.75; 2 1.75 1.625
)
def test_each_cost_picks_its_cell(cost: str, cell: int) -> None:
    routing = start(Discrete(cost), 1, 3).act(observe(1, 3, **SCENE)).routing
    np.testing.assert_array_equal(routing, np.eye(3)[cell][None, None])


def test_exact_ties_are_split_equally_over_the_arcs() -> None:
    seen = observe(1, 4, rif=[2.0, 1.0, 1.0, 1.0], admissible=[1, 1, 0, 1])
    routing = start(Discrete("rif"), 1, 4).act(seen).routing
    np.testing.assert_array_equal(routing, [[[0.0, 0.5, 0.0, 0.5]]])


def test_scores_hold_the_cost_and_its_slope_per_own_request() -> None:
    # Past a sharp knee l' = beta = 1/8; before it 0. Cell 0 has 40 servers, cell 1 has 20.
    seen = observe(
        1, 2, rif=[10.0, 4.0], request_weight=[1 / 40, 1 / 20], serving_latency=[1.375, 1.0]
    )
    decision = start(DiscreteScore("latency"), 1, 2).act(seen)
    np.testing.assert_array_equal(decision.base, [[[1.375, 1.0]]])
    np.testing.assert_allclose(decision.slope, [[[0.125 / 40, 0.0]]], rtol=1e-7)
    rif = start(DiscreteScore("rif"), 1, 2).act(seen)
    np.testing.assert_allclose(rif.slope, [[[1 / 40, 1 / 20]]], rtol=1e-7)


def test_no_score_policy_answers_a_weights_environment() -> None:
    policy = start(DiscreteScore("rif"), 1, 2)
    with pytest.raises(
        ValueError, match="decides by scores or a table, which no `weights` action can say; eval"
    ):
        policy.predict(observe(1, 2))


def test_an_unknown_cost_names_the_nearest() -> None:
    with pytest.raises(
        ValueError, match="cost = 'latncy' is unknown; nearest valid key: 'latency'; choose"
    ):
        Discrete("latncy")
