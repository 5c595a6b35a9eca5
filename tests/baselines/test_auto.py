"""Every switch of dlb-auto, with what a root has seen worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from baselines.auto import GRADIENT_ERROR, LATENCY_ERROR, LONGEST_DELAY, WINDOW, Auto
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
    "marginal_latency": [2.0, 2.5, 1.5], "rif": [6.0, 2.0, 4.0], "control_interval": 0.05,
}  # fmt: skip
RIF, BY_LATENCY, GRADIENT = np.eye(3)[[1, 0, 2]]
LOOP = 1 / 32 + 0.05
"""Of this scene: way, age and interval."""


def played(outstanding: Any, time: float, **changes: Any) -> tuple[Policy, NDArray[np.float64]]:
    """Decisions of a root that sees one scene all the time; the last one's row."""
    policy = start(Auto(), 1, 3)
    fields = SCENE | {"outstanding": outstanding} | changes
    seen = observe(1, 3, **fields)
    for _ in range(round(time / fields["control_interval"])):
        routing = policy.act(seen).routing
    assert routing is not None
    return policy, routing[0, 0]


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
        (LATENCY_ERROR + 0.01, RIF),
    ],
)
def test_the_cost_is_the_one_that_the_models_error_allows(
    error: float, row: NDArray[np.float64]
) -> None:
    assert LOOP < LONGEST_DELAY
    _, found = played(off_by(error), WINDOW + 0.1)
    assert_allclose(found, row)


def test_gradient_asks_for_closer_agreement_than_latency() -> None:
    assert 0.0 < GRADIENT_ERROR < LATENCY_ERROR < 1.0


def test_before_the_window_has_passed_nothing_is_believed() -> None:
    _, early = played(EXPECTED, WINDOW - 0.1)
    assert_allclose(early, RIF)


def test_a_root_that_sent_nothing_believes_nothing() -> None:
    _, found = played(0.0, 2 * WINDOW, unseen=0.0)
    assert_allclose(found, RIF)


def test_requests_count_as_many_as_there_are_and_not_per_server() -> None:
    """The second cell has eight servers and the third none of the root's requests.

    Wrong are 16.5 x 0.5 of 16 x (1 + 8 x 1.5) = 208 requests in service: 4 %. Per server it would
    be 8.25 of 40: 21 %.
    """
    fields = {"request_weight": [1.0, 1 / 8, 1.0], "unseen": [0.5, 0.5, 0.0]}
    _, found = played(EXPECTED * [1.5, 1.0, 0.0], WINDOW + 0.1, **fields)
    assert_allclose(found, GRADIENT)


def test_trust_is_lost_when_the_window_has_forgotten_enough() -> None:
    """Wrong by all of it, e grows as 1 - 2^-x over x half-lives of the window from there on."""
    policy, _ = played(EXPECTED, 20 * WINDOW)
    wrong = observe(1, 3, **SCENE, outstanding=off_by(1.0))
    rows = [np.asarray(policy.act(wrong).routing)[0, 0] for _ in range(100)]
    # 1 - e^(-0.05 m / WINDOW) passes an error after m = -20 WINDOW log(1 - error) decisions.
    after = [-20 * WINDOW * np.log1p(-error) for error in (GRADIENT_ERROR, LATENCY_ERROR)]
    expected = [
        GRADIENT if m <= after[0] else BY_LATENCY if m <= after[1] else RIF for m in range(1, 101)
    ]
    assert_allclose(rows, expected)
    assert 0 < after[0] < after[1] < 100


def test_a_long_loop_is_flows_and_starts_at_the_mean_of_what_disc_sent() -> None:
    """The split by capacity moves to the cell chosen with the window's memory: 1 - e^(-t/W)."""
    policy, _ = played(0.0, 2.0, unseen=0.0)
    kept = np.exp(-2.0 / WINDOW)
    mean = kept / 3 + (1 - kept) * RIF
    # Flow on equal costs stays where it is.
    far = SCENE | {"rtt": 0.25, "probe_age": 0.125, "rif": 1.0, "outstanding": 0.0, "unseen": 0.0}
    routing = policy.act(observe(1, 3, **far)).routing
    assert routing is not None
    assert_allclose(routing[0, 0], mean)


@pytest.mark.parametrize(("half_delay", "flow"), [(0.499, False), (0.501, True)])
def test_the_mean_loop_decides_between_disc_and_flow(half_delay: float, flow: bool) -> None:
    """Ways of 0.5, 1 and 1.5 times the mean way; an arc less is not counted."""
    way = half_delay * (LONGEST_DELAY - 0.05) * np.array([0.5, 1.0, 1.5])
    fields = SCENE | {"rtt": 2 * way, "probe_age": way, "outstanding": 0.0}
    routing = start(Auto(), 1, 3).act(observe(1, 3, **fields)).routing
    assert routing is not None
    assert (routing[0, 0].max() < 1.0) == flow
    padded = {name: np.append(np.broadcast_to(v, 3), 9.0) for name, v in fields.items()}
    wider = start(Auto(), 1, 4).act(observe(1, 4, **padded, admissible=[1, 1, 1, 0])).routing
    np.testing.assert_array_equal(wider, np.pad(routing, ((0, 0), (0, 0), (0, 1))))


def test_roots_choose_for_themselves() -> None:
    """Of two roots one is near and has a model that is right; the other knows and is nothing."""
    policy = start(Auto(), 2, 3)
    outstanding = np.array([EXPECTED, 2 * EXPECTED])
    scene = SCENE | {"outstanding": outstanding}
    for _ in range(round(WINDOW / 0.05) + 1):
        routing = policy.act(observe(2, 3, **scene)).routing
    assert routing is not None
    assert_allclose(routing[0], [GRADIENT, RIF])
