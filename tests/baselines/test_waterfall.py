"""Google's algorithms, with plans worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from baselines.mnlb_program import least_network_latency
from baselines.planned import Reports
from baselines.waterfall import Waterfall, filled, regions

INF = np.inf
# Cells 0 and 1 are one region, cell 2 another; seconds.
RTT_S = np.array([[0.001, 0.004, 0.1], [0.12, 0.11, 0.002]])


def plan(
    kind: str, arrivals: list[float], capacity: list[float], rtt_s: NDArray[np.float64] = RTT_S
) -> NDArray[np.float64]:
    """Weights with a headroom of 1."""
    reports = Reports(np.array(arrivals), np.array(capacity), rtt_s / 2, 2.0, rtt_s < INF)
    return Waterfall(kind, headroom=1.0).plan(0, reports)


def test_by_zone_fills_the_nearest_cell_then_the_next() -> None:
    # Root 0: 4 to cell 0, 2 to cell 1, 2 of its 8 to cell 2, where root 1 leaves 2 of 4.
    assert_allclose(
        plan("waterfall-zone", [8.0, 2.0], [4.0, 2.0, 4.0]), [[0.5, 0.25, 0.25], [0, 0, 1.0]]
    )


def test_by_region_loads_the_cells_of_a_region_evenly() -> None:
    # 3 for a region of 4 + 2: cells get 2 and 1, and the nearer is filled first.
    assert_allclose(
        plan("waterfall-region", [3.0, 2.0], [4.0, 2.0, 4.0]), [[2 / 3, 1 / 3, 0], [0, 0, 1.0]]
    )
    # Root 1 overflows: 2 of its 6 go to the other region, which then serves 5 of 6: 10/3 and 5/3.
    # Root 0 asks its nearest, cell 0, for all its 3 while root 1 asks cell 1 for its 2, of which
    # it gets 5/3; then there is a third left, in cell 0.
    found = plan("waterfall-region", [3.0, 6.0], [4.0, 2.0, 4.0])
    assert_allclose(found, [[1.0, 0, 0], [1 / 18, 5 / 18, 2 / 3]])


def test_spraying_spreads_every_root_over_all_cells_of_the_region() -> None:
    found = plan("spray-region", [3.0, 6.0], [4.0, 2.0, 4.0])
    assert_allclose(found, [[2 / 3, 1 / 3, 0], [2 / 9, 1 / 9, 2 / 3]])
    assert_allclose(plan("spray-world", [3.0, 6.0], [4.0, 2.0, 4.0]), [[0.4, 0.2, 0.4]] * 2)


def test_roots_that_ask_too_much_of_a_cell_share_it_in_proportion() -> None:
    near = np.array([[0.01, 0.05], [0.01, 0.05]])
    # 6 and 3 ask 3 of cell 0: 2 and 1.
    found = plan("waterfall-zone", [6.0, 3.0], [3.0, 9.0], near)
    assert_allclose(found, [[1 / 3, 2 / 3], [1 / 3, 2 / 3]])


def test_what_finds_no_room_is_split_by_capacity() -> None:
    one = np.array([[0.01, 0.05]])
    # 6 for 3 + 1: 3, 1 and the other 2 as 1.5 and 0.5.
    assert_allclose(plan("waterfall-zone", [6.0], [3.0, 1.0], one), [[0.75, 0.25]])


def test_a_root_without_arrivals_gets_weights_and_arcs_bind() -> None:
    rtt_s = np.array([[0.01, 0.05, INF], [0.01, INF, 0.05]])
    found = plan("waterfall-zone", [0.0, 1.0], [3.0, 1.0, 1.0], rtt_s)
    assert_allclose(found, [[0.75, 0.25, 0.0], [1.0, 0.0, 0.0]])


def test_a_waterfall_is_not_the_plan_of_least_network_latency() -> None:
    """Root 0 takes the cell that root 1 needs more: 1 + 10 against 2 + 1 for the program."""
    rtt_s = np.array([[1.0, 2.0], [1.001, 10.0]])
    arrivals, capacity = np.array([1.0, 1.0]), np.array([1.0, 1.0])
    poured = filled(arrivals, capacity, rtt_s)
    assert_allclose(poured, [[0.5, 0.5], [0.5, 0.5]])
    program = least_network_latency(
        arrivals=arrivals, capacity=capacity, rtt=rtt_s, admissible=rtt_s < INF, headroom=1.0
    )
    assert_allclose(program, [[0, 1], [1, 0]], atol=1e-12)
    assert (poured * rtt_s).sum() == pytest.approx((1 + 2 + 1.001 + 10) / 2)
    assert (program * rtt_s).sum() == pytest.approx(3.001)


def test_pouring_keeps_to_capacities_and_demands() -> None:
    rng = np.random.default_rng(0)
    for _ in range(200):
        shape = (int(rng.integers(1, 6)), int(rng.integers(1, 6)))
        distance = rng.choice([0.1, 0.2, 0.3, INF], shape)
        demand, capacity = rng.uniform(0, 2, shape[0]), rng.uniform(0, 2, shape[1])
        flow = filled(demand, capacity, distance)
        assert (flow >= 0).all()
        assert (flow[np.isinf(distance)] == 0).all()
        assert (flow.sum(axis=1) <= demand + 1e-12).all()
        assert (flow.sum(axis=0) <= capacity + 1e-12).all()


def test_regions_spread_along_chains_of_roots() -> None:
    near = np.array([[1, 1, INF, INF, INF], [INF, 1, 1, INF, INF], [INF, INF, INF, 5, 1]])
    assert_array_equal(regions(near, 1.0), [0, 0, 0, 1, 2])


def test_wrong_arguments_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"kind = 'waterfall-zones' is unknown; nearest.*; c"):
        Waterfall("waterfall-zones")
    for key in ("headroom", "period_s", "region_rtt_s"):
        with pytest.raises(ValueError, match=rf"{key} = 0.0 must be finite and above 0; leave it"):
            Waterfall("spray-world", **{key: 0.0})
