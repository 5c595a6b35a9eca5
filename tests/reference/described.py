"""A scenario in the reference's words.

What both implementations are given: the requests (of a trace with sessions only the file, the
uniforms, and what a burst adds), the disturbances as resolved, one-way latencies,
nominal rates and zero-load times, the models that reports begin with, and the seed of the hashes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dlb_gym.disturbances import resolve
from dlb_gym.mechanism_rows import initial_models
from dlb_gym.mechanisms import Affinity
from dlb_gym.rates import (
    batching_servers,
    nominal_rates_rps,
    offered_rate_rps,
    one_way_s,
    zero_load_times_s,
)
from dlb_gym.scenario import Scenario
from dlb_gym.server_design import ContinuousBatching, Disaggregated
from dlb_gym.streams import Stream, random_stream
from dlb_gym.workload import CHUNK_S, NO_SESSION, Workload
from tests.batching_model import Design
from tests.reference.system import Mechanisms, Model, Requests, System
from tests.reference.trace import Row, replayed

Table = NDArray[np.float64]
Rounding = Callable[[Table], Table]


def described(scenario: Scenario, seed: int) -> System:
    """The system of a scenario's first episode."""
    design = scenario.server
    disturbances = resolve(scenario, seed, 0)
    return System(
        tau_s=one_way_s(scenario),
        prefill_s_per_token=np.array([cell.prefill_s_per_token for cell in scenario.cells]),
        decode_s_per_token=np.array([cell.decode_s_per_token for cell in scenario.cells]),
        live_servers=disturbances.live_servers,
        decode_slots=design.decode_slots if isinstance(design, Disaggregated) else 1,
        queue_limit=design.queue_limit,
        router_delay_s=scenario.router_delay_s,
        probe_interval_s=scenario.probe_interval_s,
        control_interval_s=scenario.control_interval_s,
        mechanisms=_mechanisms(scenario, seed),
    )


def _mechanisms(scenario: Scenario, seed: int) -> Mechanisms:
    disturbances = resolve(scenario, seed, 0)
    affinity = scenario.affinity
    if affinity is None and scenario.demand.has_sessions:
        affinity = Affinity(kind="none")
    start_s = scenario.warmup_s + scenario.settle_s
    servers = np.array([cell.servers for cell in scenario.cells])
    common = Mechanisms(
        seed=int(random_stream(seed, 0, Stream.ENGINE_SEED).integers(2**32)),
        schedules=disturbances.changes,
        windows=disturbances.windows,
        leaves_down=disturbances.leaves_down,
        roots_down=disturbances.roots_down,
        telemetry=scenario.telemetry,
        aversion=scenario.error_aversion,
        affinity=affinity,
        leaf=scenario.leaf,
        retries=scenario.retries,
        estimate=scenario.latency_estimate,
        autoscaler=scenario.autoscaler,
        models=tuple(_model(row) for row in initial_models(scenario, seed, 0)),
        server_rps=tuple((nominal_rates_rps(scenario) / servers).tolist()),
        zero_load_s=tuple(zero_load_times_s(scenario).tolist()),
        measured=(start_s, start_s + scenario.horizon_s),
    )
    design = scenario.server
    if isinstance(design, ContinuousBatching):
        batching = batching_servers(scenario, design)
        return replace(
            common,
            designs=tuple(
                Design(
                    max_batch=each.max_batch, kv_tokens=each.kv_tokens,
                    prefill_budget=each.prefill_budget_tokens, queue_limit=each.queue_limit,
                    base_s=each.base_s, per_sequence_s=each.per_sequence_s,
                    per_context_token_s=each.per_context_token_s,
                    prefill_s_per_token=each.prefill_s_per_token, draft_tokens=each.draft_tokens,
                    acceptance=each.acceptance, max_wait_s=each.max_wait_s,
                )
                for each in batching
            ),
            prefix_s_per_token=tuple(each.prefill_s_per_token for each in batching),
        )  # fmt: skip
    return replace(
        common,
        max_wait_s=math.inf if design.max_wait_s is None else design.max_wait_s,
        prefix_s_per_token=tuple(cell.prefill_s_per_token for cell in scenario.cells),
    )


def _model(row: np.ndarray) -> Model:
    alpha, beta, knee, smoothing = row.tolist()
    return alpha, beta, knee, smoothing


def offered(scenario: Scenario, seed: int, rounded: Rounding | None = None) -> Requests:
    """The requests up to the end of the scenario's first episode.

    Args:
        scenario: The scenario.
        seed: Of the episode.
        rounded: What the workload's rows are rounded by, if they are.

    Raises:
        AssertionError: The workload's requests are not those of the scenario's trace.
    """
    end_s = scenario.warmup_s + scenario.settle_s + scenario.horizon_s
    chunks = math.ceil(end_s / CHUNK_S) + 1
    workload = Workload(scenario, seed, 0)
    drawn = [workload.chunk(k) for k in range(chunks)]
    tables = [np.concatenate([chunk[i] for chunk in drawn]) for i in range(len(scenario.roots))]
    trace = scenario.demand.trace
    if trace is not None and trace.hash_ids_column is not None:
        demand = [root.demand for root in scenario.roots]
        own = replayed(trace, offered_rate_rps(scenario), demand, seed, CHUNK_S, chunks)
        bursts = bool(workload.disturbances.bursts)
        tables = [_traced(rows, table, bursts) for rows, table in zip(own, tables, strict=True)]
    if rounded is not None:
        tables = [rounded(table) for table in tables]
    root = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    table = np.concatenate(tables)
    due = table[:, 0] <= end_s
    root, table = root[due], table[due]
    whole = {
        name: table[:, workload.columns.index(name)].astype(np.int64)
        for name in ("prompt_tokens", "output_tokens", "session", "session_hash", "prefix_tokens")
        if name in workload.columns
    }
    return Requests(
        root=root, arrival_s=table[:, 0], u_route=table[:, 3], u_leaf=table[:, 4], **whole
    )


def _traced(own: list[Row], table: Table, bursts: bool) -> Table:
    """The reference's rows of a trace at a root, and those that a burst adds to them, by arrival.

    At equal times the trace's precede.
    """
    added = Counter(map(tuple, table.tolist()))
    added.subtract(own)
    odd = [row for row, count in added.items() if count < 0 or (count > 0 and not bursts)]
    assert not odd, f"one has these requests of a trace, the other has not: {odd[:4]}"
    extra = [row for row in map(tuple, table.tolist()) if added[row] > 0]
    assert all(row[5:] == NO_SESSION for row in extra), "a burst's requests belong to no session"
    both = np.array([*own, *extra]).reshape(-1, table.shape[1])
    return both[np.argsort(both[:, 0], kind="stable")]
