"""With every mechanism, too, the engine and the plain reference agree request by request.

Scenarios are drawn, each mechanism on or off, and so are the decisions, in all modes. Every
request's fate and every root's view at every step are equal, to the last bit.
"""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.parity.mechanism_run import COURSE, Both, play_both
from tests.parity.scenario_cases import MECHANISMS, SCHEDULED, on_a_grid, random_scenario, rounded

drawn = settings(
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.generate],  # shrinking would play hundreds of episodes
)
seeds = st.integers(0, 2**20)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where traces are written."""
    return tmp_path_factory.mktemp("traces")


FIT_TOLERANCE = 1e-6
"""How close every parameter of a fitted model is to scipy's."""
MOST_EXCESS = 1e-9
"""What a fit may cost beyond the least cost that scipy finds from elsewhere, in variances."""


@given(on=st.sets(st.sampled_from(MECHANISMS)).map(frozenset), seed=seeds)
@settings(drawn, max_examples=40)
def test_any_mechanisms_together(on: frozenset[str], seed: int, folder: Path) -> None:
    assert_equal(play_both(random_scenario(seed, on, folder), seed))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_each_mechanism_alone(mechanism: str, folder: Path) -> None:
    for seed in range(2):
        assert_equal(play_both(random_scenario(seed, {mechanism}, folder), seed))


@pytest.mark.parametrize("seed", range(2, 14))
def test_servers_come_and_go_by_either_rule(seed: int, folder: Path) -> None:
    """Enough episodes for every limit and every cut of an order to matter in one of them."""
    assert_equal(play_both(random_scenario(seed, {"autoscaler"}, folder), seed))


@pytest.mark.parametrize("seed", range(2))
def test_models_fitted_online_are_scipys(seed: int, folder: Path) -> None:
    both = play_both(random_scenario(seed, {"online"}, folder), seed)
    assert len(both.fits) > 2
    assert_equal(both)


@given(
    seed=seeds,
    left_out=st.sampled_from([{"batching"}, {"batching", "retries"}, set()]),
    sessions=st.sampled_from(["sessions", "trace"]),
    servers_by=st.sampled_from([{"autoscaler"}, SCHEDULED]),
)
@settings(drawn, max_examples=12)
def test_everything_at_once(
    seed: int, left_out: set[str], sessions: str, servers_by: Set[str], folder: Path
) -> None:
    """All that a scenario can have: sessions drawn or read, servers scaled or struck by faults."""
    chosen = {sessions, *servers_by}
    others = frozenset(MECHANISMS) - {"noisy", "sessions", "trace", "autoscaler"} - SCHEDULED
    on = (others | chosen) - left_out
    assert_equal(play_both(random_scenario(seed, on, folder), seed))


@given(on=st.sets(st.sampled_from(MECHANISMS)).map(frozenset), seed=seeds)
@settings(drawn, max_examples=20)
def test_instants_that_coincide(on: frozenset[str], seed: int, folder: Path) -> None:
    assert_equal(play_both(on_a_grid(seed, on, folder), seed, rounded))


@pytest.mark.parametrize("seed", [1, 2])
def test_requests_that_end_together_leave_in_a_stated_order(seed: int, folder: Path) -> None:
    """Clients that give up at one instant, and try again in that order."""
    assert_equal(play_both(on_a_grid(seed, {"patience", "retries"}, folder), seed, rounded))


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
        np.testing.assert_allclose(fit.given, fit.own, rtol=FIT_TOLERANCE, err_msg=str(fit))
        assert fit.excess < MOST_EXCESS, fit
