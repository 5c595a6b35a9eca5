"""The batching kernel beside its plain model: random requests, and one way to run them compiled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dlb_gym import engine
from dlb_gym.engine import layout
from tests.batching_model import Design, Job

COLUMNS = [layout.SERVER, layout.FIRST_TOKEN_S, layout.DONE_S]


class Kernel:
    """Rows of memory for one cell, ready to serve the jobs once."""

    def __init__(self, design: Design, jobs: Sequence[Job], servers: int, seed: int) -> None:
        self.queue_limit = design.queue_limit
        self.seed = np.array([seed], dtype=np.int64)
        self.state, self.arrivals = self._memory(len(jobs), servers)
        self.batches = engine.allocate_batches(1, 1, servers, design.max_batch)
        engine.clear_batches(0, self.batches)
        self.batches.limits[:] = (
            design.max_batch,
            design.kv_tokens,
            design.prefill_budget,
            design.draft_tokens,
        )
        self.batches.timing[:] = (
            design.base_s,
            design.per_sequence_s,
            design.per_context_token_s,
            design.prefill_s_per_token,
            design.acceptance,
            design.max_wait_s,
        )
        for slot, job in enumerate(jobs):
            columns = (job.leaf_s, job.prompt, job.output, 0.0, job.u_leaf)
            self.arrivals.requests[0, 0, slot] = columns
        self.arrivals.stop[0, 0] = len(jobs)

    @staticmethod
    def _memory(jobs: int, servers: int) -> tuple[engine.State, engine.Arrivals]:
        sizes = engine.Sizes(
            replications=1, roots=1, cells=1, servers=servers, slots=1, queue=2, changes=2,
            probes=2, pool=max(jobs, 1), wire=1, log=0, arrivals=max(jobs, 1),
        )  # fmt: skip
        _, state, arrivals, _ = engine.allocate(sizes)
        engine.clear_row(0, state, arrivals)
        state.cell[..., layout.LIVE] = servers
        return state, arrivals

    def serve(self) -> NDArray[np.float64]:
        """Server (-1: error), first token and completion of every job."""
        engine.serve_alone(self.state, self.batches, self.arrivals, self.seed, self.queue_limit)
        return self.log()

    def log(self) -> NDArray[np.float64]:
        return self.state.request[0, : self.arrivals.stop[0, 0]][:, COLUMNS]


def serve_compiled(
    design: Design, jobs: Sequence[Job], servers: int = 1, seed: int = 0
) -> NDArray[np.float64]:
    """Server (-1: error), first token and completion of every job."""
    return Kernel(design, jobs, servers, seed).serve()


def log_of(jobs: Sequence[Job]) -> NDArray[np.float64]:
    """The same of jobs that the plain model served."""
    return np.array([(job.server, job.first_token_s, job.done_s) for job in jobs])


def random_jobs(
    count: int, rate_rps: float, seed: int, prompt: float = 500.0, output: float = 200.0
) -> list[Job]:
    """Poisson arrivals; Gamma tokens of shapes 1.5 and 2, some requests without prompt or output.

    Every tenth request comes at the very time of the one before.
    """
    rng = np.random.default_rng(seed)
    gaps_s = rng.exponential(1.0 / rate_rps, count) * (np.arange(count) % 10 != 9)
    leaf_s = np.cumsum(gaps_s)
    prompts = np.floor(rng.gamma(1.5, prompt / 1.5, count) + 0.5) * (rng.random(count) > 0.02)
    outputs = np.floor(rng.gamma(2.0, output / 2.0, count) + 0.5) * (rng.random(count) > 0.02)
    u_leaf = rng.random(count)
    return [
        Job(k, float(leaf_s[k]), int(prompts[k]), int(outputs[k]), float(u_leaf[k]))
        for k in range(count)
    ]


PLAIN = Design(
    max_batch=64,
    kv_tokens=1_000_000,
    prefill_budget=512,
    queue_limit=128,
    base_s=0.03,
    per_sequence_s=2e-4,
    per_context_token_s=2e-7,
    prefill_s_per_token=7e-5,
)
DRAFTS = replace(PLAIN, draft_tokens=3, acceptance=0.7)
