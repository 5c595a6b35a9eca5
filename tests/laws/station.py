"""One cell as a queueing station: service laws, Poisson arrivals, independent replications.

A disaggregated server is a FIFO prefill stage and after it `slots` decode slots fed from one FIFO
queue; a stage whose requests have no tokens vanishes. Times come from token counts: a mean of
`FINE_TOKENS` tokens makes the grid of service times so fine (1e-5 of their mean) that no interval
here could see it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.simulator import Simulator
from dlb_gym.workload import CHUNK_S, Workload

FINE_TOKENS = 100_000
CONTROL_S = 1.0
ROOMY = 4_096
"""A queue limit that no station here comes near, where none is under test."""


@dataclass(frozen=True)
class Service:
    """A Gamma of service times: shape 1 is exponential, infinity deterministic; mean 0 is none.

    E[S^2] = mean^2 (1 + 1 / shape).
    """

    mean_s: float
    shape: float = 1.0

    @property
    def second_moment_s2(self) -> float:
        return self.mean_s**2 * (1.0 + 1.0 / self.shape)

    @property
    def s_per_token(self) -> float:
        return self.mean_s / FINE_TOKENS if self.mean_s > 0.0 else 1e-9

    @property
    def tokens(self) -> dict[str, float]:
        """The Gamma's own part is so small that it rounds to 0 where there is to be none."""
        if self.mean_s == 0.0:
            return {"loc_tokens": 0, "shape": 1.0, "mean_tokens": 1e-3}
        if math.isinf(self.shape):
            return {"loc_tokens": FINE_TOKENS, "shape": 1.0, "mean_tokens": FINE_TOKENS + 1e-3}
        return {"loc_tokens": 0, "shape": self.shape, "mean_tokens": FINE_TOKENS}


NONE = Service(0.0)


def station(
    rate_rps: float,
    *,
    prefill: Service = NONE,
    decode: Service = NONE,
    slots: int = 1,
    servers: int = 1,
    warmup_s: float,
    horizon_s: float,
    **changes: Any,
) -> Scenario:
    """A cell at no distance from its one root, which offers Poisson arrivals of this rate.

    The scenario states a utilisation: of the stage that fills up first, by its definition.
    """
    busiest_s = max(prefill.mean_s, decode.mean_s / slots) / servers
    document: dict[str, Any] = {
        "name": "station",
        "cells": [
            {
                "name": "cell",
                "region": "us-east4",
                "servers": servers,
                "prefill_s_per_token": prefill.s_per_token,
                "decode_s_per_token": decode.s_per_token,
            }
        ],
        "roots": [{"name": "cell", "region": "us-east4", "demand": 1.0}],
        "network": {"rtt_s": [[0.0]]},
        "tokens": {"prompt": prefill.tokens, "output": decode.tokens},
        "server": {"decode_engines": 1, "slots_per_engine": slots, "queue_limit": ROOMY},
        "demand": {"utilisation": rate_rps * busiest_s},
        "router_delay_s": 0.0,
        "probe_interval_s": CONTROL_S,
        "control_interval_s": CONTROL_S,
        "warmup_s": warmup_s,
        "horizon_s": horizon_s,
    }
    return scenario_from_dict(document | changes)


def replications(scenario: Scenario, rows: int, *, seed: int = 1, log: bool = False) -> Simulator:
    """Empty rows of a scenario with seeds of their own; all requests are split evenly."""
    simulator = Simulator(rows, len(scenario.roots), len(scenario.cells), log=log)
    for r in range(rows):
        simulator.reset_row(r, scenario, seed + r, 0)
    arcs = simulator.admissible
    split = arcs / arcs.sum(axis=-1, keepdims=True)
    simulator.set_routing(split, np.full(rows, layout.SAMPLE))
    return simulator


def instants(simulator: Simulator, scenario: Scenario, every: int = 1) -> Iterator[float]:
    """Moves all rows on by `every` intervals at a time; yields instants of the measured span."""
    warm = scenario.intervals(scenario.warmup_s)
    end = warm + scenario.intervals(scenario.horizon_s)
    for step in [*range(every, end, every), end]:
        simulator.advance(np.full(len(simulator.step), step))
        if step > warm:
            yield step * scenario.control_interval_s


def drain(simulator: Simulator) -> Simulator:
    """Arrivals ended with the horizon: moves on until every request is answered."""
    while True:
        books = simulator.books()
        left = books.arrived - books.answered - books.errors > 0
        if not left.any():
            return simulator
        simulator.advance(simulator.step + left)


def played(scenario: Scenario, rows: int, *, seed: int = 1, log: bool = False) -> Simulator:
    """Whole episodes, drained: every measured request has its answer."""
    simulator = replications(scenario, rows, seed=seed, log=log)
    for _ in instants(simulator, scenario, every=10):
        pass
    return drain(simulator)


def log_with_work(
    simulator: Simulator, scenario: Scenario, r: int, *, seed: int = 1
) -> dict[str, NDArray[np.float64]]:
    """Row r's log by arrival, the warm-up included, and the seconds of work of each request.

    For one root. `prefill_s` and `decode_s` come from the token counts of the workload.
    """
    log = simulator.request_log(r)
    order = np.argsort(log["arrival_s"], kind="stable")
    log = {name: column[order] for name, column in log.items()}
    workload = Workload(scenario, seed + r, 0)
    chunks = math.ceil((scenario.warmup_s + scenario.horizon_s) / CHUNK_S)
    drawn = np.concatenate([workload.chunk(k)[0] for k in range(chunks)])[: len(order)]
    assert np.array_equal(drawn[:, 0], log["arrival_s"])
    log["prefill_s"] = drawn[:, 1] * scenario.cells[0].prefill_s_per_token
    log["decode_s"] = drawn[:, 2] * scenario.cells[0].decode_s_per_token
    return log


def by_row(
    simulator: Simulator, scenario: Scenario, rows: int, *, seed: int = 1
) -> list[dict[str, NDArray[np.float64]]]:
    """`log_with_work` of every row, of the requests that arrived after the warm-up."""
    logs = [log_with_work(simulator, scenario, r, seed=seed) for r in range(rows)]
    late = [log["arrival_s"] > scenario.warmup_s for log in logs]
    return [
        {name: column[mask] for name, column in log.items()}
        for log, mask in zip(logs, late, strict=True)
    ]
