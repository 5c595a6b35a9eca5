"""Rewards, metrics and spans of the task, against hand computation from the request log."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.decision import Decision
from dlb_gym.episodes import episode_source
from dlb_gym.measurements import ERROR_KINDS, bin_edges_s, quantile_s
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import scenario_from_dict
from dlb_gym.sizes import Axes
from dlb_gym.task import Task
from dlb_gym.trace import describe_trace
from dlb_gym.views import Counts
from tests.request_log import between, in_system_s, is_error
from tests.short_episodes import ring

# Two cells of 4 servers: nominal 2 x 32/s, Z = 500 * 2e-4 + 200 * 5e-3 = 1.1 s.
RATE_RPS, ZERO_LOAD_S, INTERVAL_S, PENALTY = 0.8 * 64, 1.1, 0.1, 10.0
BIN = 1 / 64


def make(rows: int = 1, **changes: Any) -> Task:
    return Task(episode_source(ring(2, **changes)), rows, log=True)


def uniform(task: Task) -> NDArray[np.float64]:
    return np.where(task.admissible, 0.5, 0.0)


def played(task: Task, steps: int, seed: int = 0) -> dict[str, NDArray[np.float64]]:
    """Reward terms (steps,) of row 0 under a uniform split; the task is then drained."""
    task.reset(seeds=[seed + r for r in range(task.num_replications)])
    moved = [task.step_routing(uniform(task)) for _ in range(steps)]
    assert [bool(step.truncated[0]) for step in moved] == [False] * (steps - 1) + [True]
    task.drain()
    terms = {name: np.array([s.reward_terms[name][0] for s in moved]) for name in moved[0][3]}
    np.testing.assert_allclose([step.reward[0] for step in moved], sum(terms.values()), rtol=1e-12)
    return terms


def test_every_reward_is_the_mean_number_in_system_over_rate_and_zero_load_time() -> None:
    task = make(horizon_s=4.0)
    terms = played(task, 40)
    log = task.simulator.request_log(0)
    edges = np.array([0.1 * k for k in range(10, 51)])
    expected = [
        -in_system_s(log, start, end) / INTERVAL_S / (RATE_RPS * ZERO_LOAD_S)
        for start, end in itertools.pairwise(edges)
    ]
    np.testing.assert_allclose(terms["in_system"], expected, rtol=1e-9)
    assert not terms["errors"].any()


def test_by_littles_law_the_rewards_of_an_episode_add_up_to_its_latencies() -> None:
    """From an empty system: integral of N over the horizon = latencies - what is left at its end.

    With latency l_k in seconds, H the horizon and r_k the time request k spends after H,
    mean(-reward) H = sum_k (l_k - r_k) / (rate Z).
    """
    task = make(horizon_s=8.0, warmup_s=0.0)
    terms = played(task, 80)
    log = task.simulator.request_log(0)
    latency_s = log["answer_s"] - log["arrival_s"]
    left_s = np.maximum(log["answer_s"] - 8.0, 0.0)
    assert len(latency_s) > 300
    mean = -terms["in_system"].mean()
    assert mean * 8.0 == pytest.approx((latency_s - left_s).sum() / (RATE_RPS * ZERO_LOAD_S))
    assert mean == pytest.approx(latency_s.mean() / ZERO_LOAD_S, rel=0.25)


def test_each_error_costs_its_penalty_when_its_leaf_refuses_it() -> None:
    task = make(horizon_s=4.0, demand={"utilisation": 1.2}, server={"queue_limit": 2})
    terms = played(task, 40)
    log = task.simulator.request_log(0)
    refused_s = log["leaf_s"][is_error(log)]
    counts = [between(refused_s, 0.1 * k, 0.1 * (k + 1)).sum() for k in range(10, 50)]
    assert sum(counts) > 20
    rate_rps = 1.2 * 64
    expected = -PENALTY * np.array(counts) / (rate_rps * INTERVAL_S)
    np.testing.assert_allclose(terms["errors"], expected, rtol=1e-12)


def test_metrics_are_numpys_on_the_request_log() -> None:
    task = make(horizon_s=8.0, server={"queue_limit": 10}, demand={"utilisation": 1.0})
    played(task, 80)
    metrics = task.summary(0)
    log = task.simulator.request_log(0)
    measured = between(log["arrival_s"], 1.0, 9.0)
    error = is_error(log)
    ok = measured & ~error
    latency_s = (log["answer_s"] - log["arrival_s"])[ok]
    tau_s = np.where(log["root"] == log["cell"], 0.0, 0.05)
    ttft_s = (log["first_token_s"] + tau_s - log["arrival_s"])[ok]
    assert metrics["requests"] == measured.sum()
    assert metrics["answered"] == ok.sum()
    assert metrics["errors"] == (measured & error).sum() > 0
    assert metrics["unfinished"] == 0
    assert metrics["error_rate"] == pytest.approx((measured & error).sum() / measured.sum())
    assert metrics["utilisation"] == pytest.approx(measured.sum() / (64 * 8.0))
    away = measured & (log["root"] != log["cell"])
    assert metrics["cross_cell_share"] == pytest.approx(away.sum() / measured.sum())
    assert metrics["in_system_at_end"] == 0
    assert metrics["zero_load_time_s"] == pytest.approx(ZERO_LOAD_S)
    for prefix, values in (("latency", latency_s), ("ttft", ttft_s)):
        assert metrics[f"{prefix}_mean_s"] == pytest.approx(values.mean(), rel=1e-9)
        for name, quantile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
            # Off by less than a bin from the order statistics on either side.
            low, high = (
                np.percentile(values, quantile, method="lower"),
                np.percentile(values, quantile, method="higher"),
            )
            assert low * (1 - BIN) <= metrics[f"{prefix}_{name}_s"] <= high * (1 + BIN)
    assert all(type(value) in (int, float) for value in metrics.values())


def test_quantiles_are_linear_within_a_bin_by_hand() -> None:
    """Four latencies in the bin from 2 s, which is 1/32 s wide, and four in the one from 4 s."""
    histogram = np.zeros(len(bin_edges_s()) - 1, dtype=np.int64)
    histogram[np.searchsorted(bin_edges_s(), [2.0, 4.0])] = 4
    seen = quantile_s(histogram, [0.125, 0.25, 0.5, 0.75, 1.0])
    assert seen.tolist() == [2 + 1 / 128, 2 + 1 / 64, 2 + 1 / 32, 4 + 1 / 32, 4 + 1 / 16]


def test_time_per_output_token_runs_from_the_first_token_to_the_last(tmp_path: Path) -> None:
    """Half of the trace's requests have 400 output tokens, the others none and no such time."""
    trace = tmp_path / "trace.csv"
    rows = [f"{k},500,{400 * (k % 2)}" for k in range(400)]
    trace.write_text("\n".join(["arrival_time,prompt_len,output_len", *rows]) + "\n")
    demand = {"utilisation": 1.0, "trace": describe_trace(trace).model_dump()}
    task = make(horizon_s=8.0, demand=demand)
    played(task, 80)
    metrics, log = task.summary(0), task.simulator.request_log(0)
    decode_s = log["done_s"] - log["first_token_s"]
    ok = between(log["arrival_s"], 1.0, 9.0) & ~is_error(log)
    tpot_s = decode_s[ok & (decode_s > 1.99)] / 400  # 2 s of decode; no wait is as long
    assert tpot_s.max() > 1.5 * tpot_s.min()
    assert 0.4 * ok.sum() < len(tpot_s) < 0.6 * ok.sum()
    assert metrics["answered"] == ok.sum() > 300
    assert metrics["tpot_mean_s"] == pytest.approx(tpot_s.mean(), rel=1e-9)
    for name, quantile in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
        low = np.percentile(tpot_s, quantile, method="lower")
        high = np.percentile(tpot_s, quantile, method="higher")
        assert low * (1 - BIN) <= metrics[f"tpot_{name}_s"] <= high * (1 + BIN)
    assert metrics["tpot_p50_s"] >= 5e-3 * (1 - BIN)  # the engine's own pace, without any wait


def test_errors_of_full_servers_are_of_that_kind() -> None:
    task = make(horizon_s=4.0, demand={"utilisation": 1.2}, server={"queue_limit": 2})
    played(task, 40)
    metrics = task.summary(0)
    by_kind = {kind: metrics[f"errors_{kind}"] for kind in ERROR_KINDS}
    assert by_kind == dict.fromkeys(ERROR_KINDS, 0) | {"full": metrics["errors"]}
    assert metrics["errors"] > 0


def test_what_mechanisms_counted_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any a row has the same names, nothing sent and no shares."""
    task = make(horizon_s=1.0)
    played(task, 10)
    metrics = task.summary(0)
    names = ("messages", "resent", "prefix_share", "prefix_hit_rate", "prefill_saved")
    assert [metrics[name] for name in names] == [0] * 5
    requests = metrics["requests"]
    counted = (70, 3, requests / 4, requests / 8, 5000.0, 2000.0)
    counts = Counts(*(np.array([value]) for value in counted))
    monkeypatch.setattr(task.simulator, "counts", lambda: counts)
    metrics = task.summary(0)
    assert [metrics[name] for name in names] == [70, 3, 0.25, 0.5, 0.4]


def test_utilisation_counts_the_servers_that_are_live() -> None:
    """In [3, 4) of 4 s cell-0 has 1 server of 4: capacity 64 * 3 + (8 + 32) * 1."""
    outage = {"kind": "outage", "cells": ["cell-0"], "start": 0.75, "end": 1.0}
    task = make(horizon_s=4.0, disturbances=[outage])
    played(task, 40)
    measured = between(task.simulator.request_log(0)["arrival_s"], 1.0, 5.0).sum()
    assert task.summary(0)["utilisation"] == pytest.approx(measured / (64 * 3 + 40))


def test_utilisation_is_080_in_expectation() -> None:
    """Arrivals of all rows are Poisson with mean 0.8 x capacity: a 99.9 % interval."""
    task = make(rows=40, horizon_s=10.0, warmup_s=0.0)
    task.reset(seeds=list(range(40)))
    for _ in range(100):
        task.step_routing(uniform(task))
    capacity = 64 * 10.0 * 40
    arrived = sum(task.summary(r)["utilisation"] for r in range(40)) / 40 * capacity
    low, high = stats.poisson.interval(0.999, 0.8 * capacity)
    assert low <= arrived <= high
    assert high - low < 0.05 * capacity


def test_settling_is_played_and_rewarded_but_not_measured() -> None:
    task = make(horizon_s=2.0, settle_s=1.0, warmup_s=1.0)
    played(task, 30)
    log = task.simulator.request_log(0)
    assert task.summary(0)["requests"] == between(log["arrival_s"], 2.0, 4.0).sum()
    assert log["arrival_s"].max() <= 4.0
    assert task.summary(0)["utilisation"] == pytest.approx(
        between(log["arrival_s"], 2.0, 4.0).sum() / (64 * 2.0)
    )


def test_a_warm_start_has_served_warmup_seconds_under_the_capacity_split() -> None:
    task = make(horizon_s=1.0, warmup_s=5.0)
    task.reset(seeds=[0])
    assert task.simulator.time_s.tolist() == [5.0]
    assert task.simulator.books().answered[0] > 150
    cold = make(horizon_s=1.0, warmup_s=0.0)
    cold.reset(seeds=[0])
    assert cold.simulator.books().arrived.tolist() == [0]
    uneven = ring(2, horizon_s=1.0, warmup_s=20.0)
    uneven["cells"][1]["servers"] = 12
    task = Task(episode_source(uneven), 1)
    task.reset(seeds=[0])
    sent = task.simulator.view().sent[0].sum(axis=0)
    low, high = stats.binom.interval(0.999, sent.sum(), 0.75)
    assert low <= sent[1] <= high


def test_draining_answers_every_request_that_arrived_by_the_horizon() -> None:
    task = make(rows=3, horizon_s=2.0, demand={"utilisation": 1.2}, server={"queue_limit": 6})
    task.reset(seeds=[1, 2, 3])
    for _ in range(20):
        task.step_routing(uniform(task))
    before = task.simulator.books()
    waiting = (before.arrived - before.answered - before.errors).copy()
    arrived = before.arrived.copy()
    assert (waiting > 0).all()
    task.drain()
    after = task.simulator.books()
    np.testing.assert_array_equal(after.arrived, arrived)
    np.testing.assert_array_equal(after.answered + after.errors, arrived)
    for row in range(3):
        assert task.summary(row)["unfinished"] == 0
        assert task.simulator.request_log(row)["arrival_s"].max() <= 3.0


def test_draining_waits_for_requests_that_are_all_on_their_way() -> None:
    """All go to the other cell, 1 s away: at the horizon of 0.5 s no cell has any."""
    network = {"rtt_s": [[0.0, 2.0], [2.0, 0.0]]}
    task = make(horizon_s=0.5, warmup_s=0.0, network=network)
    task.reset(seeds=[0])
    for _ in range(5):
        task.step_routing(np.array([[[0.0, 1.0], [1.0, 0.0]]]))
    books = task.simulator.books()
    assert books.rif[0] == 0
    assert books.to_cells[0] == books.arrived[0] > 10
    task.drain()
    books = task.simulator.books()
    assert books.answered[0] == books.arrived[0]


def test_an_episode_in_which_nothing_arrives_has_well_formed_metrics() -> None:
    task = make(horizon_s=0.1, warmup_s=0.0, demand={"utilisation": 1e-6})
    task.reset(seeds=[0])
    step = task.step_routing(uniform(task))
    assert step.truncated.tolist() == [True]
    metrics = task.summary(0)
    assert (metrics["requests"], metrics["utilisation"], metrics["error_rate"]) == (0, 0.0, 0.0)
    assert np.isnan(
        [metrics[key] for key in ("latency_mean_s", "latency_p99_s", "ttft_p50_s", "tpot_p95_s")]
    ).all()
    task.drain()


def test_an_invalid_decision_is_refused_and_changes_nothing() -> None:
    task, twin = make(), make()
    for each in (task, twin):
        each.reset(seeds=[0])
    half = uniform(task)
    for routing, message in (
        (half * 1.01, "does not sum to 1"),
        (-half, "negative share"),
        (half[:, :1], "routing must be float64 of shape"),
        (np.full_like(half, np.nan), "NaN or infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            task.step(Decision(routing))
    one, two = task.step(Decision(half)), twin.step(Decision(half))
    assert one.observation.tobytes() == two.observation.tobytes()
    for seeds, message in (
        ([1, 2], "2 seeds for 1 rows; give one seed for every row"),
        ([-1], "seed = -1 is negative"),
    ):
        with pytest.raises(ValueError, match=message):
            task.reset(seeds=seeds)
    assert task.reset().tobytes() == twin.reset().tobytes()


def test_a_table_is_checked_again_when_an_episode_brings_other_arcs() -> None:
    class Narrowing:
        """Root 0 loses cell 1 in the second episode."""

        max_roots = max_cells = 2
        axes = Axes(2, 2)

        def scenario(self, row: int, seed: int, episode: int) -> Scenario:
            document = ring(2)
            if episode > 0:
                document["roots"][0]["reachable"] = ["cell-0"]
            return scenario_from_dict(document)

    task = Task(Narrowing(), 1)
    decision = Decision(table=np.ones((1, 2, 1), dtype=np.int16))
    task.reset(seeds=[0])
    task.step(decision)
    task.reset()
    with pytest.raises(ValueError, match="table of replication 0, root 0 sends to a cell that is"):
        task.step(decision)
