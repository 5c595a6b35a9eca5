"""Continuous batching: the kernel against a plain model, hand computation and queueing laws."""

from __future__ import annotations

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from dlb_gym.engine import batches, layout
from tests.batching_events import (
    ARRIVAL,
    CRASH,
    SPEED,
    Event,
    run_by_hand,
    run_compiled,
)
from tests.batching_kernel import DRAFTS, PLAIN, Kernel, log_of, random_jobs, serve_compiled
from tests.batching_model import ERROR, Design, Job, serve

WORKLOADS = {
    "light": (PLAIN, 10.0),
    "full batch": (replace(PLAIN, max_batch=8, queue_limit=30), 12.0),
    "small cache": (replace(PLAIN, kv_tokens=4_000), 12.0),
    "overload": (replace(PLAIN, max_batch=16, queue_limit=20), 60.0),
    "long prompts": (replace(PLAIN, prefill_budget=64), 12.0),
    "drafts": (DRAFTS, 40.0),
    "drafts in a small cache": (replace(DRAFTS, kv_tokens=5_000, prefill_budget=100), 20.0),
    "impatient": (replace(PLAIN, max_batch=8, queue_limit=40, max_wait_s=1.5), 15.0),
    "one at a time": (replace(PLAIN, max_batch=1), 1.0),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_kernel_and_plain_model_agree_on_every_request(name: str) -> None:
    design, rate_rps = WORKLOADS[name]
    for seed in range(3):
        jobs = random_jobs(1_500, rate_rps, seed)
        compiled = serve_compiled(design, jobs, servers=4, seed=seed)
        serve(design, jobs, servers=4, seed=seed)
        np.testing.assert_array_equal(compiled, log_of(jobs))
        assert (compiled[:, 0] != ERROR).sum() > 100
        if name in ("small cache", "overload", "impatient"):
            assert (compiled[:, 0] == ERROR).sum() > 10


def test_one_request_by_hand() -> None:
    """Prompt 100, output 3: prefill, then contexts of 101 and 102 tokens."""
    first, done = serve_compiled(PLAIN, [Job(0, 1.0, 100, 3, 0.0)])[0, 1:]
    assert first == pytest.approx(1.0 + 0.03 + 2e-4 + 7e-5 * 100, rel=1e-12)
    assert done - first == pytest.approx(2 * (0.03 + 2e-4) + 2e-7 * (101 + 102), rel=1e-12)


def test_a_long_prompt_is_cut_into_chunks() -> None:
    """1200 tokens at 512 an iteration: three of them, the second and third on 512 and 1024."""
    first = serve_compiled(PLAIN, [Job(0, 0.0, 1_200, 1, 0.0)])[0, 1]
    assert first == pytest.approx(3 * (0.03 + 2e-4) + 2e-7 * (512 + 1_024) + 7e-5 * 1_200)


def test_who_comes_during_an_iteration_joins_the_next() -> None:
    """0.0372 s of prefill for the first; then both share: 0.03 + 2 x 2e-4 + 2e-7 x 101 + 0.0035."""
    jobs = [Job(0, 0.0, 100, 3, 0.0), Job(1, 0.01, 50, 1, 0.0)]
    log = serve_compiled(PLAIN, jobs)
    shared_s = 0.03 + 2 * 2e-4 + 2e-7 * 101 + 7e-5 * 50
    assert log[0, 1] == pytest.approx(0.0372, rel=1e-12)
    assert log[1, 1] == log[1, 2] == pytest.approx(0.0372 + shared_s, rel=1e-12)


def test_who_comes_at_the_end_of_an_iteration_misses_the_next() -> None:
    """Completions go before arrivals: the next iteration has begun."""
    end_s = float(serve_compiled(PLAIN, [Job(0, 0.0, 100, 3, 0.0)])[0, 1])
    log = serve_compiled(PLAIN, [Job(0, 0.0, 100, 3, 0.0), Job(1, end_s, 50, 1, 0.0)])
    just_before = serve_compiled(
        PLAIN, [Job(0, 0.0, 100, 3, 0.0), Job(1, float(np.nextafter(end_s, 0)), 50, 1, 0.0)]
    )
    assert just_before[1, 1] < log[1, 1] - 0.03


def test_a_request_without_output_ends_with_its_prefill() -> None:
    log = serve_compiled(PLAIN, [Job(0, 0.0, 100, 0, 0.0)])
    assert log[0, 1] == log[0, 2] == pytest.approx(0.0372)


def test_a_request_longer_than_the_cache_is_an_error_at_once() -> None:
    design = replace(PLAIN, kv_tokens=102)
    log = serve_compiled(design, [Job(0, 1.0, 100, 2, 0.0), Job(1, 1.0, 100, 3, 0.0)])
    assert log[:, 0].tolist() == [0, ERROR]
    assert log[1, 2] == 1.0


def equal_jobs(count: int, rate_rps: float, prompt: int, output: int) -> list[Job]:
    gaps_s = np.random.default_rng(5).exponential(1.0 / rate_rps, count)
    leaf_s = np.cumsum(gaps_s).tolist()
    return [Job(k, leaf_s[k], prompt, output, 0.0) for k in range(count)]


def most_at_once(begin_s: NDArray[np.float64], end_s: NDArray[np.float64]) -> int:
    times_s = np.concatenate([end_s, begin_s])
    steps = np.concatenate([-np.ones(len(end_s)), np.ones(len(begin_s))])
    return int(np.cumsum(steps[np.argsort(times_s, kind="stable")]).max())


@pytest.mark.parametrize(("kv_tokens", "expected"), [(1_599, 7), (1_600, 8), (10**6, 64)])
def test_the_kv_cache_limits_the_batch(kv_tokens: int, expected: int) -> None:
    """Requests of 100 + 100 tokens, far too many: 200 tokens of cache for each that runs."""
    design = replace(PLAIN, kv_tokens=kv_tokens, queue_limit=10**5)
    log = serve_compiled(design, equal_jobs(2_000, 1_000.0, 100, 100))
    assert most_at_once(log[:, 1], log[:, 2]) == expected


def test_speculative_decoding_speeds_decoding_up_by_the_mean_of_accepted_tokens() -> None:
    """Leviathan et al. 2023: (1 - a^(g+1)) / (1 - a) tokens an iteration, alone on a server."""
    design = replace(PLAIN, per_context_token_s=0.0)
    jobs = [Job(k, 1e4 * k, 10, 2_001, 0.0) for k in range(50)]

    def per_token_s(design: Design) -> float:
        log = serve_compiled(design, jobs)
        return float(np.mean(log[:, 2] - log[:, 1])) / 2_000

    plain_s = per_token_s(design)
    assert plain_s == pytest.approx(0.03 + 2e-4, rel=1e-9)
    for drafts, acceptance in [(1, 0.5), (3, 0.7), (7, 0.9), (4, 1.0)]:
        accepted = acceptance ** np.arange(drafts + 1)
        mean = float(accepted.sum())
        if acceptance < 1.0:
            formula = (1 - acceptance ** (drafts + 1)) / (1 - acceptance)
            assert mean == pytest.approx(formula)
        speedup = plain_s / per_token_s(replace(design, draft_tokens=drafts, acceptance=acceptance))
        variance = float(((2 * np.arange(drafts + 1) + 1) * accepted).sum()) - mean**2
        iterations = 50 * 2_000 / mean
        assert speedup == pytest.approx(
            mean, abs=4 * math.sqrt(variance / iterations) + 2e-3 * mean
        )


def lindley(leaf_s: NDArray[np.float64], work_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """When a server that is never idle with work to do is through with each request's work."""
    done_s = np.empty(len(leaf_s))
    free_s = 0.0
    for k in range(len(leaf_s)):
        free_s = max(free_s, leaf_s[k]) + work_s[k]
        done_s[k] = free_s
    return done_s


def test_one_request_at_a_time_is_a_queue_with_one_server() -> None:
    jobs = random_jobs(3_000, 0.12, 7)
    design = replace(PLAIN, max_batch=1, queue_limit=10**5, per_context_token_s=0.0)
    prompt, output = np.array([(job.prompt, job.output) for job in jobs]).T
    chunks = np.maximum(1, -(-prompt // 512))
    work_s = (chunks + np.maximum(output - 1, 0)) * (0.03 + 2e-4) + 7e-5 * prompt
    leaf_s = np.array([job.leaf_s for job in jobs])
    expected = lindley(leaf_s, work_s)
    assert np.mean(expected - leaf_s) > 2 * np.mean(work_s)
    np.testing.assert_allclose(serve_compiled(design, jobs)[:, 2], expected, rtol=1e-9)


def test_batches_conserve_work() -> None:
    """Without a base, requests cost what they cost in any company: busy periods end on time.

    An iteration of each for every token, and its prompt; all fit at once. Whatever is shared, the
    server is through with all work when a server that takes one after another would be.
    """
    design = Design(
        max_batch=4_096,
        kv_tokens=10**9,
        prefill_budget=10**6,
        queue_limit=10**5,
        base_s=0.0,
        per_sequence_s=1e-3,
        per_context_token_s=0.0,
        prefill_s_per_token=1e-4,
    )
    jobs = random_jobs(5_000, 3.3, 11)
    leaf_s = np.array([job.leaf_s for job in jobs])
    work_s = np.array([1e-3 * max(job.output, 1) + 1e-4 * job.prompt for job in jobs])
    through_s = lindley(leaf_s, work_s)
    last_of_period = np.append(through_s[:-1] < leaf_s[1:], True)
    done_s = np.maximum.accumulate(serve_compiled(design, jobs)[:, 2])
    assert 100 < last_of_period.sum() < len(jobs) / 2
    np.testing.assert_allclose(done_s[last_of_period], through_s[last_of_period], rtol=1e-9)


def test_clients_give_up_at_the_first_boundary_after_their_patience() -> None:
    design = replace(PLAIN, max_batch=4, queue_limit=200, max_wait_s=2.0)
    jobs = random_jobs(1_000, 3.0, 3, prompt=100.0)
    kernel = Kernel(design, jobs, 1, 0)
    log = kernel.serve()
    waited_s = log[:, 2] - np.array([job.leaf_s for job in jobs])
    failed = log[:, 0] == ERROR
    longest_s = 0.03 + 4 * 2e-4 + 2e-7 * 20_000 + 7e-5 * 512
    assert failed.sum() > 200
    assert (waited_s[failed] > 2.0).all()
    assert (waited_s[failed] < 2.0 + longest_s).all()
    first_s = log[~failed, 1] - np.array([job.leaf_s for job in jobs])[~failed]
    assert first_s.max() > 1.9
    assert kernel.batches.server[0, 0, 0, batches.GAVE_UP] == failed.sum()
    assert kernel.state.row[0, layout.REJECTED] == failed.sum()


@pytest.mark.parametrize("name", WORKLOADS)
def test_no_token_is_left_in_the_books(name: str) -> None:
    design, rate_rps = WORKLOADS[name]
    kernel = Kernel(design, random_jobs(800, rate_rps, 9), 4, 0)
    kernel.serve()
    counted = [batches.RUNNING, batches.DECODING, batches.RESERVED, batches.CONTEXT,
               batches.PROMPT_BACKLOG, batches.BUSY]  # fmt: skip
    assert not kernel.batches.server[0, 0][:, counted].any()
    assert not kernel.state.server[0, 0][:, [layout.UNFINISHED, layout.TOKENS]].any()
    assert kernel.state.cell[0, 0, layout.RIF] == 0


def digest() -> str:
    """Of two small workloads, for comparison between processes."""
    text = b""
    for name in ("drafts in a small cache", "impatient"):
        design, rate_rps = WORKLOADS[name]
        text += serve_compiled(design, random_jobs(150, rate_rps, 2), 3, 8).tobytes()
    return hashlib.sha256(text).hexdigest()


def test_without_compilation_the_bytes_are_the_same() -> None:
    interpreted = subprocess.run(
        [sys.executable, "-c", "from tests.test_batching import digest; print(digest())"],
        check=True, capture_output=True, text=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert interpreted.stdout.strip() == digest()


def events_of(jobs: list[Job], others: list[Event]) -> list[Event]:
    arrivals: list[Event] = [(job.leaf_s, ARRIVAL, k) for k, job in enumerate(jobs)]
    return sorted([*others, *arrivals], key=lambda event: event[0])


@pytest.mark.parametrize("name", ["light", "small cache", "drafts", "impatient"])
def test_prefix_hits_speeds_and_crashes_agree_with_the_plain_model(name: str) -> None:
    design, rate_rps = WORKLOADS[name]
    jobs = random_jobs(800, rate_rps, 4)
    rng = np.random.default_rng(6)
    for job, share in zip(jobs, rng.random(len(jobs)), strict=True):
        job.hit_tokens = int(share * job.prompt) if share < 0.7 else 0
    span_s = jobs[-1].leaf_s
    others: list[Event] = [(0.2 * span_s, SPEED, 0.5), (0.6 * span_s, SPEED, 1.7)]
    crashes = np.sort(rng.uniform(0.1, 0.9, 12)) * span_s
    others += [(float(at_s), CRASH, k % 3) for k, at_s in enumerate(crashes)]
    events = events_of(jobs, others)
    compiled, kernel = run_compiled(design, jobs, events, 3, 1)
    np.testing.assert_array_equal(compiled, run_by_hand(design, jobs, events, 3, 1))
    assert kernel.state.row[0, layout.REJECTED] == (compiled[:, 0] == ERROR).sum() > 30
    assert not kernel.state.server[0, 0][:, [layout.UNFINISHED, layout.TOKENS]].any()
    assert kernel.state.cell[0, 0, layout.RIF] == 0


def test_a_cached_prefix_needs_no_prefill_but_cache() -> None:
    """Prompt 100, of which 80 are cached: 20 to prefill beside 80 in the cache."""
    jobs = [Job(0, 0.0, 100, 1, 0.0, hit_tokens=80)]
    log, _ = run_compiled(PLAIN, jobs, events_of(jobs, []), 1, 0)
    assert log[0, 1] == pytest.approx(0.03 + 2e-4 + 2e-7 * 80 + 7e-5 * 20, rel=1e-12)


def test_half_the_speed_takes_twice_the_time() -> None:
    jobs = random_jobs(300, 5.0, 2)
    slow = [Job(k, 2 * j.leaf_s, j.prompt, j.output, j.u_leaf) for k, j in enumerate(jobs)]
    log, _ = run_compiled(PLAIN, slow, events_of(slow, [(0.0, SPEED, 0.5)]), 2, 0)
    np.testing.assert_allclose(log[:, 2], 2 * serve_compiled(PLAIN, jobs, 2)[:, 2], rtol=1e-9)
