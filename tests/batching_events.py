"""What other mechanisms do to batching servers - cached prefixes, changes of speed, crashes - in
the compiled parts and in the plain model, one list of events for both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import layout
from dlb_gym.engine.batches import of_cell
from dlb_gym.engine.batching import complete_batching, place_batching
from dlb_gym.engine.faults import fail_batch
from dlb_gym.engine.leaf import choose_server
from tests.batching_kernel import Kernel, log_of
from tests.batching_model import Design, Job, Server, advance
from tests.reference_choices import choose_server as chosen_by_hand

ARRIVAL, SPEED, CRASH = range(3)
Event = tuple[float, int, float]
"""Time, kind, and the job's index, the speed from then on or the server that crashes."""

_njit: Any = numba.njit


@_njit(error_model="numpy")
def _run(
    state: Any, batches: Any, requests: Any, hits: Any, events: Any, seed: int, queue_limit: int
) -> None:
    own = of_cell(batches, 0, 0)
    server, request = state.server[0, 0], state.request[0]
    speed = 1.0
    for k in range(len(events)):
        now_s, kind, value = events[k, 0], int(events[k, 1]), events[k, 2]
        complete_batching(now_s, 0, 0, queue_limit, seed, speed, own, state, None)
        if kind == SPEED:
            speed = value
        elif kind == CRASH:
            fail_batch(now_s, 0, 0, int(value), own, state, None)
        elif kind == ARRIVAL:
            slot = int(value)
            for column in (layout.ARRIVAL_S, layout.PROMPT_TOKENS, layout.OUTPUT_TOKENS):
                request[slot, column] = requests[slot, column]
            request[slot, layout.KEY] = slot
            s = choose_server(
                now_s, requests[slot, layout.U_LEAF], state.cell[0, 0, layout.LIVE], server, request
            )  # fmt: skip
            place_batching(
                now_s, 0, 0, s, slot, hits[slot], queue_limit, speed, own, state, None
            )  # fmt: skip


def run_compiled(
    design: Design, jobs: Sequence[Job], events: Sequence[Event], servers: int, seed: int
) -> tuple[NDArray[np.float64], Kernel]:
    """Server (-1: error), first token and completion of every job, and the memory afterwards."""
    kernel = Kernel(design, jobs, servers, seed)
    hits = np.array([job.hit_tokens for job in jobs], dtype=np.int64)
    table = np.array([*events, (np.inf, SPEED, 1.0)])
    _run(
        kernel.state, kernel.batches, kernel.arrivals.requests[0, 0], hits, table, seed,
        design.queue_limit,
    )  # fmt: skip
    return kernel.log(), kernel


def run_by_hand(
    design: Design, jobs: Sequence[Job], events: Sequence[Event], servers: int, seed: int
) -> NDArray[np.float64]:
    """The same by the plain model."""
    cell = [Server(design, number, seed) for number in range(servers)]
    for now_s, kind, value in events:
        advance(cell, now_s)
        if kind == SPEED:
            for server in cell:
                server.speed = value
        elif kind == CRASH:
            cell[int(value)].crash(now_s)
        else:
            job = jobs[int(value)]
            tokens = [server.unfinished_tokens for server in cell]
            cell[chosen_by_hand(job.u_leaf, tokens)].offer(now_s, job)
    advance(cell, np.inf)
    return log_of(jobs)
