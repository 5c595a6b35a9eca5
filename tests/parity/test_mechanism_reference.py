"""With every mechanism, too, the engine and the plain reference agree request by request.

Scenarios are drawn, each mechanism on or off, and so are the decisions, in all three modes. Every
request's fate and every root's view at every step are equal, to the last bit.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.parity.mechanism_run import COURSE, Both, play_both
from tests.parity.scenario_cases import MECHANISMS, OnAGrid, on_a_grid, random_scenario

drawn = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],  # shrinking would play hundreds of episodes
)
seeds = st.integers(0, 2**20)

MOST_EXCESS = 0.1
"""What a fit of 60 steps may cost beyond the minimum, in variances, whatever the samples."""
FIT_TOLERANCE = 1e-4
"""How close its parameters are where samples determine them."""


@given(on=st.sets(st.sampled_from(MECHANISMS)).map(frozenset), seed=seeds)
@settings(drawn, max_examples=40)
def test_any_mechanisms_together(on: frozenset[str], seed: int) -> None:
    assert_equal(play_both(random_scenario(seed, on), seed))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_alone(mechanism: str) -> None:
    for seed in range(2):
        assert_equal(play_both(random_scenario(seed, {mechanism}), seed))


@pytest.mark.parametrize("seed", range(2))
def test_models_fitted_online_are_scipys(seed: int) -> None:
    fits = play_both(random_scenario(seed, {"online"}), seed).fits
    assert len(fits) > 2
    for fit in fits:
        np.testing.assert_allclose(fit.given, fit.own, rtol=FIT_TOLERANCE, err_msg=str(fit))


@given(seed=seeds, left_out=st.sampled_from([{"batching"}, {"batching", "retries"}, set()]))
@settings(drawn, max_examples=10)
def test_everything_at_once(seed: int, left_out: set[str]) -> None:
    on = frozenset(MECHANISMS) - left_out - {"noisy"}
    assert_equal(play_both(random_scenario(seed, on), seed))


@given(on=st.sets(st.sampled_from(MECHANISMS)).map(frozenset), seed=seeds)
@settings(drawn, max_examples=20)
def test_instants_that_coincide(on: frozenset[str], seed: int) -> None:
    scenario = on_a_grid(seed, on)
    assert_equal(play_both(scenario, seed, OnAGrid(scenario, seed, 0)))


def assert_equal(both: Both) -> None:
    for step, (got, view) in enumerate(
        zip(both.engine_views, both.expected.views[1:], strict=True), 1
    ):
        for name, value in got.items():
            wanted = getattr(view, name)
            if name == "in_system_integral":  # sums in another order
                np.testing.assert_allclose(value, wanted, rtol=0.0, atol=1e-9)
            else:
                np.testing.assert_array_equal(value, wanted, f"{name} after step {step}")
    got, wanted = both.engine_log, both.expected_log
    for name in COURSE:
        np.testing.assert_array_equal(got[name], wanted[name], name)
    served = ~wanted["error"]
    np.testing.assert_array_equal(
        got["first_token_s"][served], wanted["first_token_s"][served], "first_token_s"
    )
    for fit in both.fits:
        assert fit.excess < MOST_EXCESS, fit
