"""Policies of systems that people run, with decisions and tables worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from baselines.peers.c3 import C3, MEMORY_S
from baselines.peers.drill import Drill
from baselines.peers.gorgo import Gorgo
from baselines.peers.prequal import Prequal
from baselines.peers.skywalker import SkyWalker
from baselines.peers.tables import EqualCostHashing, Maglev, fill_in_turns
from dlb_gym.decision import Decision
from dlb_gym.policy import Policy
from tests.baselines.scenes import observe, start


def decided(policy: Policy, cells: int, **fields: object) -> Decision:
    return start(policy, 1, cells).act(observe(1, cells, **fields))


def row(array: Any) -> list[float]:
    assert array is not None
    return array[0, 0].tolist()


def test_maglev_fills_the_table_of_its_paper() -> None:
    """Table 1 of the paper: seven entries, before and after B1 is removed."""
    offsets, skips = [3, 0, 3], [4, 2, 1]
    assert fill_in_turns(7, [1, 1, 1], offsets, skips).tolist() == [1, 0, 1, 0, 2, 2, 0]
    assert fill_in_turns(7, [1, 0, 1], offsets, skips).tolist() == [0, 0, 0, 0, 2, 2, 2]


def test_maglev_shares_entries_by_weight_and_keeps_most_when_a_cell_goes() -> None:
    capacity = np.array([4.0, 3.0, 2.0, 1.0])
    before = Maglev().filled(tuple(capacity))
    shares = np.bincount(before, minlength=4) / len(before)
    assert_allclose(shares, capacity / 10, atol=2 / len(before))
    after = Maglev().filled((4.0, 3.0, 2.0, 0.0))
    assert 3 not in after
    moved = np.mean((before != after) & (before != 3))
    # The paper's figure 12 keeps it below a few per cent with tables 100 times the backends.
    assert 0.0 < moved < 0.05


def test_roots_of_equal_capacities_build_equal_tables_and_only_when_these_change() -> None:
    policy = start(Maglev(101), 2, 3)
    seen = observe(2, 3, capacity_load=[0.5, 0.25, 0.25])
    first = policy.act(seen).table
    assert first is not None
    assert_array_equal(first[0, 0], first[0, 1])
    assert policy.act(seen).table is first
    outage = np.array([[[0.5, 0.25, 0.125], [0.5, 0.25, 0.25]]])  # the second root cannot know yet
    second = policy.act(observe(2, 3, capacity_load=outage)).table
    assert second is not None
    assert_array_equal(second[0, 1], first[0, 1])
    assert (second[0, 0] != first[0, 0]).any()
    assert (first[0, 0] == first[0, 1]).all()  # what was answered before stays


def test_a_table_has_arcs_only_even_where_they_have_no_server_left() -> None:
    arcs = [[[0, 1, 1]]]
    for capacity in ([0.5, 0.25, 0.25], [0.5, 0.0, 0.0]):
        table = decided(Maglev(7), 3, admissible=arcs, capacity_load=capacity).table
        assert set(row(table)) == {1, 2}


@pytest.mark.parametrize("entries", [0, 1, 9, 1024])
def test_maglevs_tables_have_a_prime_number_of_entries(entries: int) -> None:
    with pytest.raises(
        ValueError,
        match=f"entries = {entries} must be "
        "(a prime, so that a cell's order meets every entry|at least 1); 1021 is the default",
    ):
        Maglev(entries)


def test_ecmp_takes_the_hash_modulo_the_live_cells_so_that_most_keys_move() -> None:
    policy = EqualCostHashing(20)
    four, five = policy.filled((3.0, 1.0, 2.0, 9.0, 0.0)), policy.filled((1.0,) * 5)
    assert four.tolist() == [0, 1, 2, 3] * 5
    assert five.tolist() == [0, 1, 2, 3, 4] * 4
    # Of 20 hashes, 0 to 3 alone have the same rest modulo 4 and 5: n / (n + 1) of them move.
    assert np.mean(four != five) == 4 / 5


def test_drill_looks_at_own_work_of_two_cells() -> None:
    found = decided(
        Drill(), 2, outstanding=[2.0, 4.0], model_beta=[0.5, 0.25], request_weight=[0.5, 0.25]
    )
    assert (row(found.base), row(found.slope)) == ([1.0, 1.0], [0.25, 0.0625])
    assert found.samples == 2
    with pytest.raises(ValueError, match="cells = 0 must be at least 1; 2 is the default"):
        Drill(0)


def test_prequal_takes_cold_cells_by_latency_before_hot_ones_by_rif() -> None:
    # Three cells: the 0.84 quantile of RIF is the third of three; the 0.5 quantile the second.
    fields = {"rif": [1.0, 2.0, 3.0], "serving_latency": [3.0, 2.0, 1.0], "rtt": [0.0, 0.5, 0.25]}
    assert row(decided(Prequal(), 3, **fields).base) == [3.0, 2.5, 1.25]
    found = decided(Prequal(0.5), 3, **fields, request_weight=[1.0, 1.0, 0.25])
    assert row(found.base) == [3.0, 2.5, 3.0 + 1.0 + 3.0]
    # Latency is flat below the knee; a hot cell's RIF grows by a quarter of a request per server.
    assert_allclose(row(found.slope), [0.0, 0.0, 0.25], atol=1e-12)
    with pytest.raises(ValueError, match=r"quantile = 0\.0 must lie in \(0, 1\]; 0\.8409 is"):
        Prequal(0.0)


@pytest.mark.parametrize(("cells", "hot"), [(2, 0), (6, 0), (7, 1), (10, 1), (13, 2)])
def test_prequals_hot_cells_are_those_above_the_quantile(cells: int, hot: int) -> None:
    base = row(decided(Prequal(), cells, rif=np.arange(cells)).base)
    assert sum(score > 1.0 for score in base) == hot  # cold ones have latency 1


def test_c3_scores_as_its_public_clients_do() -> None:
    """Cassandra's C3: response - service + (1 + clients x outstanding + queue)^3 x service.

    Two arcs, so two clients. One request a unit of time is sent to either cell: half a request is
    unseen within age 1/4 and way 1/4; so responses take 2 and 1.
    """
    found = decided(
        C3(), 2, outstanding=[2.0, 1.0], unseen=0.5, probe_age=0.25, rtt=0.5, rif=[3.0, 0.0],
        model_beta=[1 / 8, 1.0], request_weight=[0.5, 1.0],
    )  # fmt: skip
    base, slope, offset = (np.array(row(a)) for a in (found.base, found.slope, found.offset))
    for own in (0, 2):
        queue = np.array([1 + 2 * (2 + own * 0.5) + 3, 1 + 2 * (1 + own)])
        expected = np.array([2 - 1 / 8, 1 - 1]) + queue**3 * np.array([1 / 8, 1.0])
        assert_allclose(base + (offset + slope * own) ** 3, expected, rtol=1e-6)


def test_c3_means_move_by_time_and_start_anew() -> None:
    policy = start(C3(), 1, 1)
    fields: dict[str, Any] = {"probe_age": 0.25, "rtt": 0.5, "unseen": 0.5, "rif": 0.0}
    policy.act(observe(1, 1, outstanding=2.0, **fields))
    later = observe(1, 1, outstanding=4.0, **fields, control_interval=0.25)
    share = 1 - np.exp(-0.25 / MEMORY_S)
    found = policy.act(later)
    assert row(found.base) == pytest.approx([2 + share * 2 - 0.125])
    policy.restart(np.array([True]))
    assert row(policy.act(later).base) == pytest.approx([4 - 0.125])


def test_skywalker_prefers_its_region_then_a_free_place_elsewhere() -> None:
    # Zero-load time 1 s: cells 0 and 1 are within 10 ms. Knee 4.
    fields = {"rtt": [0.001, 0.008, 0.2], "model_knee": 4.0}
    free = decided(SkyWalker(), 3, **fields, rif=[3.0, 2.0, 0.0])
    assert row(free.base) == [3.0, 2.0, 1e6]
    full_here = decided(SkyWalker(), 3, **fields, rif=[4.0, 5.0, 3.5])
    assert row(full_here.base) == [2e6 + 4.0, 2e6 + 5.0, 1e6 + 3.5]
    full = decided(SkyWalker(), 3, **fields, rif=[4.0, 5.0, 4.5], request_weight=0.5)
    assert row(full.base) == [2e6 + 4.0, 2e6 + 5.0, 3e6 + 4.5]
    assert row(full.slope) == [0.5] * 3
    alone = decided(SkyWalker(0.0), 3, **fields, rif=[4.0, 2.0, 0.0])
    assert row(alone.base) == [2e6 + 4.0, 1e6 + 2.0, 1e6]
    with pytest.raises(ValueError, match=r"region_rtt_s = -1\.0 must be finite and at least 0"):
        SkyWalker(-1.0)


def test_gorgo_adds_up_tokens() -> None:
    # 0.276 tokens a millisecond of 100 and 20 ms; half of 500 tokens a request outstanding.
    found = decided(
        Gorgo(), 3, rtt=[0.1, 0.02, 0.0], outstanding=[0.0, 2.0, 0.0],
        request_weight=[0.5, 1.0, 1.0], admissible=[[[1, 1, 0]]],
    )  # fmt: skip
    assert_allclose(row(found.base), [27.6, 5.52 + 500.0, 0.0], rtol=1e-6)
    assert row(found.slope) == [125.0, 250.0, 0.0]
    assert row(found.token_value) == [1.0, 1.0, 0.0]
    with pytest.raises(ValueError, match=r"queue_weight = inf must be finite and at least 0"):
        Gorgo(queue_weight=float("inf"))
