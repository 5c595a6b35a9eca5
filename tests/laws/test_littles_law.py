"""Little's law as an identity of every sample path, and the balance of the books at every step.

For any path that starts and ends empty, whatever happens between (Stidham 1974),

    integral of N(t) dt = sum over requests of the time that each spent in the system,

and at every instant  arrived = answered + errors + waiting or running + on the wires + to retry.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.simulator import Simulator
from tests.laws.intervals import assert_identity
from tests.laws.station import replications
from tests.mechanisms import MECHANISMS, scenario_with
from tests.request_log import books_at, in_system_s

ROWS = 3
END_S = 8.0
BOOKS = "arrived = answered + errors + under way, at every step"
LITTLE = "Little: integral of N(t) dt = sum of T, s"


def three_cells(**changes: Any) -> Scenario:
    """Two roots, three cells of 3, 2 and 1 servers of 8 requests/s, 20 to 90 ms away."""
    places = [
        {"name": f"cell-{j}", "region": "us-east4", "servers": servers}
        for j, servers in enumerate((3, 2, 1))
    ]
    document: dict[str, Any] = {
        "name": "three_cells",
        "cells": places,
        "roots": [{"name": f"cell-{i}", "region": "us-east4", "demand": 1 + i} for i in range(2)],
        "network": {"rtt_s": [[0.02, 0.05, 0.09], [0.05, 0.02, 0.07]]},
        "demand": {"utilisation": 0.8},
        "warmup_s": 0.0,
        "horizon_s": END_S,
    }
    return scenario_from_dict(document | changes)


LOADS: dict[str, dict[str, Any]] = {
    "moderate": {},
    "overload with small queues": {"demand": {"utilisation": 3.0}, "server": {"queue_limit": 9}},
    "smooth": {"dispatch": "smooth", "demand": {"utilisation": 1.1}},
    "burst": {"disturbances": [{"kind": "burst", "start": 0.3, "end": 0.6, "to_utilisation": 2.0}]},
    "outage": {"disturbances": [{"kind": "outage", "cells": ["cell-0"], "start": 0.2, "end": 0.7}]},
    "pulses": {
        "demand": {
            "utilisation": 1.0,
            "profile": {
                "synchronised_fraction": 0.9,
                "synchronised_period_s": 2.0,
                "synchronised_width_s": 0.05,
            },
        }
    },
}


def follow(scenario: Scenario) -> tuple[Simulator, NDArray[np.float64], int]:
    """Plays until all rows are empty; (steps, n) integrals, and the books' worst imbalance.

    Nothing may leave the books: every state is a count and the totals never fall.
    """
    simulator = replications(scenario, ROWS, log=True)
    integrals_s: list[NDArray[np.float64]] = []
    imbalance, before = 0, np.zeros((3, ROWS), dtype=np.int64)
    end_step = scenario.intervals(scenario.warmup_s + scenario.horizon_s)
    left = np.ones(ROWS, dtype=np.bool_)
    while left.any() or simulator.step.min() < end_step:
        simulator.advance(simulator.step + 1)
        integrals_s.append(simulator.truth().in_system_s.copy())
        books = simulator.books()
        totals = np.array([books.arrived, books.answered, books.errors])
        elsewhere = np.array([books.rif, books.to_cells, books.to_roots, books.retrying])
        assert (totals >= before).all()
        assert (elsewhere >= 0).all()
        unaccounted = totals[0] - totals[1] - totals[2] - elsewhere.sum(axis=0)
        imbalance = max(imbalance, int(np.abs(unaccounted).max()))
        left, before = elsewhere.sum(axis=0) > 0, totals
        assert len(integrals_s) < 20 * end_step, "requests are left that never end"
    return simulator, np.array(integrals_s), imbalance


@pytest.mark.parametrize("load", LOADS)
def test_littles_law_and_the_books_hold_on_every_path(load: str) -> None:
    """After every step, against counts of the log; and the integral of N by the end is sum of T.

    With no warm-up every request is measured, so the measured latencies and the errors' times
    together are that sum as well.
    Catches: a lost error, a request counted in two places or none, an answer taken in late, an
    integral that leaves out a way or the requests of another interval.
    """
    scenario = three_cells(**LOADS[load])
    simulator, integrals_s, imbalance = follow(scenario)
    assert_identity(BOOKS, f"{load}, steps", integrals_s.size, imbalance)
    found = simulator.measurements()
    apart = []
    for r in range(ROWS):
        log = simulator.request_log(r)
        spent_s = log["answer_s"] - log["arrival_s"]
        failed = log["server"] < 0
        assert len(spent_s) == found.arrived[r] > 100
        assert failed.sum() == found.errors[r]
        apart.append(abs(integrals_s[:, r].sum() / spent_s.sum() - 1.0))
        assert found.latency_sum_s[r] == pytest.approx(spent_s[~failed].sum(), rel=1e-9)
        for step in range(len(integrals_s)):
            start_s, end_s = step * 0.1, (step + 1) * 0.1
            expected_s = in_system_s(log, start_s, end_s)
            assert integrals_s[step, r] == pytest.approx(expected_s, rel=1e-9, abs=1e-9)
    assert_identity(LITTLE, f"{load}, requests", int(found.arrived.sum()), max(apart), 1e-9)
    assert load != "overload with small queues" or found.errors.sum() > 100


@pytest.mark.parametrize("load", LOADS)
def test_requests_are_where_the_log_says(load: str) -> None:
    """Arrived, on the way, in flight, on the way back, answered, failed: at every tenth step.

    Catches: a request in the wrong place, such as an error that counts as in flight.
    """
    scenario = three_cells(**LOADS[load])
    whole, _, _ = follow(scenario)
    logs = [whole.request_log(r) for r in range(ROWS)]
    simulator = replications(scenario, ROWS)
    counts, wrong = 0, []
    for step in range(10, int(whole.step.max()), 10):
        simulator.advance(np.full(ROWS, step))
        books = simulator.books()._asdict()
        for r, log in enumerate(logs):
            counted = books_at(log, step * scenario.control_interval_s) | {"retrying": 0}
            counts += len(books)
            wrong += [(step, r, n) for n, value in books.items() if int(value[r]) != counted[n]]
    law = "requests are in the place that the log says"
    assert_identity(law, f"{load}, counts", counts, len(wrong))


@pytest.mark.parametrize(
    "mechanism",
    [
        name
        for name in MECHANISMS
        if name in ("retries", "patience", "batching", "server_crash", "black_hole", "partition")
        or name.startswith("everything")
    ],
)
def test_littles_law_and_the_books_hold_with_mechanisms(mechanism: str) -> None:
    """A request's time runs from its first arrival to its last answer, over all retries.

    Catches: a request that a crash, a partition, lost patience or a retry loses or doubles.
    """
    simulator, integrals_s, imbalance = follow(scenario_with(mechanism, horizon_s=10.0))
    assert_identity(f"{BOOKS}; mechanisms", f"{mechanism}, steps", integrals_s.size, imbalance)
    apart = []
    for r in range(ROWS):
        log = simulator.request_log(r)
        spent_s = float((log["answer_s"] - log["arrival_s"]).sum())
        assert len(log["root"]) == simulator.books().arrived[r] > 20
        assert (log["server"] < 0).sum() == simulator.books().errors[r]
        apart.append(abs(integrals_s[:, r].sum() / spent_s - 1.0))
    arrived = int(simulator.books().arrived.sum())
    assert_identity(f"{LITTLE}; mechanisms", f"{mechanism}, requests", arrived, max(apart), 1e-9)
