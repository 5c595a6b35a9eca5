"""Systems whose every request is written down: what comes, when and where is known by hand.

A prompt token takes 1 ms and an output token 10 ms, so a request of (100, 50) takes 0.1 s of
prefill and 0.5 s of decode. Roots decide every 0.1 s; reports come every 10 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.simulator import Simulator
from dlb_gym.workload import CHUNK_S, Workload

Request = tuple[float, int, int]
"""Arrival at the root, prompt tokens, output tokens."""
Routing = Sequence[Sequence[float]]

PREFILL_S, DECODE_S = 1e-3, 1e-2
TAU_S = 0.05
STEP_S = 0.1
SMOOTH = 1


def system(
    servers: Sequence[int] = (1,), roots: int = 1, tau_s: float = TAU_S, **changes: Any
) -> Scenario:
    """Cells of so many servers, every root equally far from each; no warm-up, 10 s of horizon."""
    document: dict[str, Any] = {
        "name": "scripted",
        "cells": [
            {
                "name": f"cell-{j}",
                "region": "us-east4",
                "servers": count,
                "prefill_s_per_token": PREFILL_S,
                "decode_s_per_token": DECODE_S,
            }
            for j, count in enumerate(servers)
        ],
        "roots": [{"name": f"root-{i}", "region": "us-east4", "demand": 1.0} for i in range(roots)],
        "network": {"rtt_s": [[2 * tau_s] * len(servers)] * roots},
        "router_delay_s": 0.0,
        "probe_interval_s": 0.01,
        "control_interval_s": STEP_S,
        "warmup_s": 0.0,
        "horizon_s": 10.0,
    }
    return scenario_from_dict(document | changes)


class Script(Workload):
    """Gives the requests of a list, root by root, instead of drawn ones; u is 0.25, 0.75, ..."""

    def __init__(self, scenario: Scenario, requests: Sequence[Sequence[Request]]) -> None:
        super().__init__(scenario, 0, 0)
        self._tables = [
            np.array(
                [(*each, (0.25, 0.75)[k % 2], 0.25) for k, each in enumerate(own)],
                dtype=np.float64,
            ).reshape(-1, 5)
            for own in requests
        ]

    def chunk(self, index: int) -> list[NDArray[np.float64]]:
        return [table[table[:, 0] // CHUNK_S == index] for table in self._tables]


class Played:
    """A scripted system in motion, under one routing; without one all goes to cell 0.

    Args:
        scenario: Without sessions.
        requests: Of each root in turn.
        routing: A row for every root.
    """

    def __init__(
        self,
        scenario: Scenario,
        *requests: Sequence[Request],
        routing: Routing | None = None,
    ) -> None:
        roots, cells = len(scenario.roots), len(scenario.cells)
        self.simulator = Simulator(1, roots, cells, log=True)
        self.simulator.reset_row(0, scenario, 0, 0)
        self.simulator._workloads[0] = Script(scenario, requests)
        if routing is None:
            routing = [[1.0] + [0.0] * (cells - 1)] * roots
        self.simulator.set_routing(np.array([routing], dtype=np.float64), np.array([SMOOTH]))

    def to(self, time_s: float) -> Played:
        """Moves on to an instant, a whole number of decisions."""
        self.simulator.advance(np.array([round(time_s / STEP_S)]))
        return self

    @property
    def log(self) -> dict[str, NDArray[np.float64]]:
        """Answered requests, by their arrival."""
        log = self.simulator.request_log(0)
        order = np.argsort(log["arrival_s"], kind="stable")
        return {name: column[order] for name, column in log.items()}

    def errors(self) -> list[int]:
        """Measured errors by kind."""
        counts: list[int] = self.simulator.measurements().errors_by_kind[0].tolist()
        return counts

    def balance(self) -> None:
        """Nothing is lost from the books."""
        assert_balanced(self.simulator)


def assert_balanced(simulator: Simulator) -> None:
    books = simulator.books()
    states = (books.answered, books.errors, books.rif, books.to_cells, books.to_roots)
    np.testing.assert_array_equal(books.arrived, sum(states) + books.retrying)
    assert all((state >= 0).all() for state in (*states, books.retrying))
