from __future__ import annotations

import numpy as np
import pytest

from baselines.static import CapacitySplit, WeightedRandom
from tests.baselines.scenes import observe, start


def test_weighted_random_splits_by_live_servers_over_the_arcs() -> None:
    policy = start(WeightedRandom(), 2, 3)
    seen = observe(2, 3, servers=[0.25, 0.125, 0.5], admissible=[[[1, 1, 1], [1, 1, 0]]])
    expected = [[[2 / 7, 1 / 7, 4 / 7], [2 / 3, 1 / 3, 0.0]]]
    np.testing.assert_allclose(policy.act(seen).routing, expected, rtol=1e-15)


def test_weighted_random_follows_an_outage() -> None:
    policy = start(WeightedRandom(), 1, 2)
    policy.act(observe(1, 2, servers=[0.5, 0.5]))
    after = policy.act(observe(1, 2, servers=[0.5, 0.125]))
    np.testing.assert_array_equal(after.routing, [[[0.8, 0.2]]])


def test_the_capacity_split_keeps_the_first_observation_until_the_row_restarts() -> None:
    policy = start(CapacitySplit(), 1, 2, replications=2)
    policy.act(observe(1, 2, 2, capacity_load=[0.75, 0.25]))
    outage = observe(1, 2, 2, capacity_load=[0.25, 0.25])
    np.testing.assert_array_equal(policy.act(outage).routing, [[[0.75, 0.25]], [[0.75, 0.25]]])
    policy.restart(np.array([False, True]))
    np.testing.assert_array_equal(policy.act(outage).routing, [[[0.75, 0.25]], [[0.5, 0.5]]])


def test_another_batch_without_reset_is_refused() -> None:
    policy = start(WeightedRandom(), 1, 2)
    with pytest.raises(
        ValueError, match="was reset for 1 replications and got an observation of shape"
    ):
        policy.act(observe(1, 2, 3))
