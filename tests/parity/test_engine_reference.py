"""The compiled engine and the plain reference agree request by request."""

from __future__ import annotations

import numpy as np
import pytest

from dlb_gym.engine import layout
from tests import reference
from tests.parity import cases, engine_run
from tests.parity.random_choices import MODES

HORIZON_S = 6.0
NUM_STEPS = 90  # the arrivals stop at 6 s, the last responses travel until 9 s


@pytest.mark.parametrize("seed", range(14))
@pytest.mark.parametrize("modes", [[mode] for mode in MODES] + [list(MODES)])
def test_every_request_takes_the_same_course(seed: int, modes: list[str]) -> None:
    rng = np.random.default_rng([seed, len(modes[0]), len(modes)])
    system = cases.random_system(rng)
    requests = cases.random_requests(rng, system, HORIZON_S)
    decisions = cases.random_decisions(rng, system, modes, NUM_STEPS)

    expected = reference.simulate(system, requests, lambda step, _: decisions[step], NUM_STEPS)
    views, logs = engine_run.simulate(
        [(system, requests)], lambda step, _: decisions[step], NUM_STEPS
    )

    for step, (got, want) in enumerate(zip(views[0], expected.views[1:], strict=True)):
        for name in ("rif", "servers", "received", "emitted_s", "sent", "answered"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name), f"{name} {step}")
        assert (got.rejected, got.arrived) == (want.rejected, want.arrived)
        np.testing.assert_allclose(got.error_rate, want.error_rate, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(got.in_system_integral, want.in_system_integral, atol=1e-9)

    answered = ~np.isnan(expected.requests["answer_s"])
    log = logs[0]
    assert len(log) == answered.sum()
    ok = ~expected.requests["error"][answered].astype(bool)
    columns = {
        "cell": layout.LOG_CELL,
        "server": layout.LOG_SERVER,
        "leaf_s": layout.LOG_LEAF_S,
        "answer_s": layout.LOG_ANSWER_S,
    }
    for name, column in columns.items():
        np.testing.assert_array_equal(log[:, column], expected.requests[name][answered], name)
    for name, column in {
        "first_token_s": layout.LOG_FIRST_TOKEN_S,
        "done_s": layout.LOG_DONE_S,
    }.items():
        np.testing.assert_array_equal(log[ok, column], expected.requests[name][answered][ok], name)
