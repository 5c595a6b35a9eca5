"""Continuous batching: the kernel beside a plain Python model of the same iterations; CPU time.

Both serve the same requests on the same servers and end at the same times, request by request;
the tests say so, and so does each run of this.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from tests.batching_kernel import DRAFTS, PLAIN, Kernel, log_of, random_jobs
from tests.batching_model import Design, Job, serve

SERVERS = 8
REQUESTS = 4_000
ROUNDS = 5
DESIGNS = {
    "batch of 64": (PLAIN, 35.0),
    "batch of 8": (replace(PLAIN, max_batch=8, queue_limit=64), 9.0),
    "3 drafts": (DRAFTS, 70.0),
    "small cache": (replace(PLAIN, kv_tokens=10_000), 12.0),
}


def _compiled_s(design: Design, jobs: list[Job], times: int) -> float:
    """CPU seconds of one run, which is too short to be timed alone."""
    kernels = [Kernel(design, jobs, SERVERS, 0) for _ in range(times)]
    start_s = time.process_time()
    for kernel in kernels:
        kernel.serve()
    return (time.process_time() - start_s) / times


def _plain_s(design: Design, jobs: list[Job]) -> float:
    fresh = [Job(job.key, job.leaf_s, job.prompt, job.output, job.u_leaf) for job in jobs]
    start_s = time.process_time()
    serve(design, fresh, SERVERS, 0)
    spent_s = time.process_time() - start_s
    if not np.array_equal(log_of(fresh), Kernel(design, jobs, SERVERS, 0).serve()):
        raise RuntimeError("the kernel and the plain model disagree; run tests/test_batching.py")
    return spent_s


def compare(name: str) -> str:
    """A line: medians of several runs that take turns, since a machine's speed drifts."""
    design, rate_rps = DESIGNS[name]
    jobs = random_jobs(REQUESTS, rate_rps, 0)
    _compiled_s(design, jobs, 1)  # compiles
    rounds = [(_compiled_s(design, jobs, 20), _plain_s(design, jobs)) for _ in range(ROUNDS)]
    ratios = sorted(plain / compiled for compiled, plain in rounds)
    kernel_s, plain_s = np.median(rounds, axis=0)
    return (
        f"  {name:12s} {REQUESTS / kernel_s:11,.0f} requests/s, plain Python "
        f"{REQUESTS / plain_s:7,.0f}: {ratios[ROUNDS // 2]:4.0f} x "
        f"({ratios[0]:.0f} to {ratios[-1]:.0f})"
    )


def main() -> None:
    """Prints the table."""
    print(f"batching: requests per CPU second, {SERVERS} servers, one core")
    for name in DESIGNS:
        print(compare(name))
