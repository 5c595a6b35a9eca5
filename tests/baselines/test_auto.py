"""Every switch of dlb-auto, with what a root has seen worked out by hand."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from baselines.auto import (
    GRADIENT_ERROR,
    LATENCY_ERROR,
    LONGEST_LOOP,
    WINDOW,
    Auto,
    PredictiveAuto,
)
from baselines.flow import Flow
from dlb_gym.policy import Policy
from tests.baselines.scenes import observe, start

# Half a request a server is unseen of what was sent within age 1/64 and way 1/64: 16 are sent in a
# zero-load time. Latencies 1, 1.5 and 1.25 and round trips 1/32: 16.5, 24.5 and 20.5 are to be
# outstanding; served are 60 of the 61.5.
LATENCY = np.array([1.0, 1.5, 1.25])
EXPECTED = 16.0 * (LATENCY + 1 / 32)
SERVED = 60.0
SCENE: dict[str, Any] = {
    "probe_age": 1 / 64, "rtt": 1 / 32, "unseen": 0.5, "serving_latency": LATENCY,
    "marginal_latency": [2.0, 2.5, 1.5], "rif": [3.02, 3.0, 3.01], "control_interval": 0.05,
}  # fmt: skip
BY_LATENCY, GRADIENT = np.eye(3)[[0, 2]]
LOOP = 1 / 32 + 0.15
"""Of this scene: way, age and three intervals."""
TRUSTED = round(WINDOW / 0.05)
"""The first decision of which the window has passed."""


def played(policy: Policy, decisions: int, outstanding: Any, **changes: Any) -> Any:
    """The last row of a root that sees one scene all the time."""
    start(policy, 1, 3)
    seen = observe(1, 3, **SCENE | {"outstanding": outstanding} | changes)
    for _ in range(decisions):
        routing = policy.act(seen).routing
    assert routing is not None
    return routing[0, 0]


@cache
def by_rif(decisions: int) -> NDArray[np.float64]:
    """What Flow makes of the scene by RIF, which no doubt of the model changes."""
    row: NDArray[np.float64] = played(Flow("rif"), decisions, 0.0)
    assert 0.0 < row[2] < row[1] < 1.0
    return row


def off_by(error: float) -> NDArray[np.float64]:
    """Requests outstanding of a model that is wrong by this part, too low here and too high there.

    Their sum is the expected one: errors of different cells must not cancel.
    """
    return EXPECTED + error * SERVED * np.array([0.5, -0.25, -0.25])


@pytest.mark.parametrize(
    ("error", "row"),
    [
        (0.0, GRADIENT),
        (GRADIENT_ERROR - 0.01, GRADIENT),
        (GRADIENT_ERROR + 0.01, BY_LATENCY),
        (LATENCY_ERROR - 0.01, BY_LATENCY),
        (LATENCY_ERROR + 0.01, None),
    ],
)
def test_the_cost_is_the_one_that_the_models_error_allows(
    error: float, row: NDArray[np.float64] | None
) -> None:
    assert LOOP < LONGEST_LOOP
    expected = by_rif(TRUSTED + 2) if row is None else row
    assert_array_equal(played(Auto(), TRUSTED + 2, off_by(error)), expected)


def test_gradient_asks_for_closer_agreement_than_latency() -> None:
    assert 0.0 < GRADIENT_ERROR < LATENCY_ERROR < 1.0


def test_before_the_window_has_passed_nothing_is_believed() -> None:
    assert_array_equal(played(Auto(), TRUSTED - 1, EXPECTED), by_rif(TRUSTED - 1))
    assert_array_equal(played(Auto(), TRUSTED, EXPECTED), GRADIENT)


def test_a_root_that_sent_nothing_believes_nothing() -> None:
    found = played(Auto(), 2 * TRUSTED, 0.0, unseen=0.0)
    assert_array_equal(found, by_rif(2 * TRUSTED))


def test_requests_count_as_many_as_there_are_and_not_per_server() -> None:
    """The second cell has eight servers and the third none of the root's requests.

    Wrong are 16.5 x 0.5 of 16 x (1 + 8 x 1.5) = 208 requests in service: 4 %. Per server it would
    be 8.25 of 40: 21 %.
    """
    fields = {"request_weight": [1.0, 1 / 8, 1.0], "unseen": [0.5, 0.5, 0.0]}
    assert_array_equal(played(Auto(), TRUSTED, EXPECTED * [2.0, 1.0, 0.0], **fields), GRADIENT)


def test_trust_is_lost_when_the_window_has_forgotten_enough() -> None:
    """Wrong by all of it, the error of the sums grows as 1 - e^(-t / WINDOW) from there on."""
    policy = Auto()
    played(policy, 8 * TRUSTED, EXPECTED)
    wrong = observe(1, 3, **SCENE, outstanding=off_by(1.0))
    rows = np.array([np.asarray(policy.act(wrong).routing)[0, 0] for _ in range(100)])
    by_gradient, by_latency = (
        math.floor(-TRUSTED * math.log1p(-error)) for error in (GRADIENT_ERROR, LATENCY_ERROR)
    )
    assert 0 < by_gradient < by_latency < 99
    assert_array_equal(rows[:by_gradient], np.broadcast_to(GRADIENT, (by_gradient, 3)))
    assert_array_equal(
        rows[by_gradient:by_latency], np.broadcast_to(BY_LATENCY, (by_latency - by_gradient, 3))
    )
    assert (rows[by_latency:].max(axis=-1) < 1.0).all()


def test_a_long_loop_is_flows_and_starts_at_the_mean_of_what_disc_sent() -> None:
    """Its own split by RIF moves to the cell chosen with the window's memory."""
    policy, discs = Auto(), 40
    played(policy, TRUSTED - 1 + discs, EXPECTED)
    kept = math.exp(-0.05 * discs / WINDOW)
    mean = kept * by_rif(TRUSTED - 1) + (1.0 - kept) * GRADIENT
    # Flow stays where it is if costs are equal.
    far = {"rtt": 0.25, "marginal_latency": 1.0, "outstanding": EXPECTED}
    routing = policy.act(observe(1, 3, **SCENE | far)).routing
    assert routing is not None
    assert_allclose(routing[0, 0], mean, rtol=1e-6)


@pytest.mark.parametrize(("part", "flow"), [(0.999, False), (1.001, True)])
def test_the_mean_loop_decides_between_disc_and_flow(part: float, flow: bool) -> None:
    """Ways of 0.5, 1 and 1.5 times the mean way; one that is no arc is not counted."""
    way = 0.5 * part * (LONGEST_LOOP - 0.15) * np.array([0.5, 1.0, 1.5])
    fields = SCENE | {"rtt": 2 * way, "probe_age": way}
    fields["outstanding"] = 0.5 / (2 * way) * (LATENCY + 2 * way)
    found = played(Auto(), TRUSTED, **fields)
    assert (found.max() < 1.0) == flow
    wider = start(Auto(), 1, 4)
    padded = {name: np.append(np.broadcast_to(v, 3), 9.0) for name, v in fields.items()}
    for _ in range(TRUSTED):
        routing = wider.act(observe(1, 4, **padded, admissible=[1, 1, 1, 0])).routing
    assert routing is not None
    assert_array_equal(routing[0, 0], np.append(found, 0.0))


def test_roots_choose_for_themselves() -> None:
    """What goes on is as the model says for the first root, and twice as much for the second."""
    policy = start(Auto(), 2, 3)
    scene = SCENE | {"outstanding": np.array([EXPECTED, 2 * EXPECTED])}
    for _ in range(TRUSTED):
        routing = policy.act(observe(2, 3, **scene)).routing
    assert routing is not None
    assert_array_equal(routing[0], [GRADIENT, by_rif(TRUSTED)])


def test_a_restarted_row_begins_as_the_first_time() -> None:
    policy = start(Auto(), 1, 3, replications=2)
    seen = observe(1, 3, 2, **SCENE, outstanding=EXPECTED)
    for _ in range(TRUSTED):
        policy.act(seen)
    policy.restart(np.array([True, False]))
    routing = policy.act(seen).routing
    assert routing is not None
    assert_array_equal(routing[:, 0], [by_rif(1), GRADIENT])


def test_the_predictive_one_sees_what_it_sent() -> None:
    """A burst of own requests to the best cell makes it the worst."""
    plain, predictive = Auto(), PredictiveAuto()
    usual, burst = {"outstanding": EXPECTED}, {"outstanding": EXPECTED, "unseen": [0.5, 0.5, 8.0]}
    # Costs at the model's own curve: l = 1 but for the sharp knee at 7.
    model = {"marginal_latency": 1.0, "rif": [6.5, 6.5, 6.0], "rtt": [1 / 32, 1 / 32, 1 / 64]}
    rows = []
    for policy in (plain, predictive):
        played(policy, TRUSTED, EXPECTED, **model)
        routing = policy.act(observe(1, 3, **SCENE | model | usual | burst)).routing
        assert routing is not None
        rows.append(routing[0, 0])
    assert_array_equal(rows, [GRADIENT, [0.5, 0.5, 0.0]])
