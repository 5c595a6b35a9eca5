"""The memory of batching servers: arrays, replication axis first, and the names of columns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import DONE_S, FIRST_TOKEN_S, NONE, FloatArray, IdArray, IntArray

# Batches.limits: (n, C, 4)
MAX_BATCH, KV_TOKENS, PREFILL_BUDGET, DRAFT_TOKENS = range(4)
LIMIT_COLUMNS = 4
# Batches.timing: (n, C, 6)
BASE_S, PER_SEQUENCE_S, PER_CONTEXT_TOKEN_S, PREFILL_S, ACCEPTANCE, MAX_WAIT_S = range(6)
TIMING_COLUMNS = 6
# Batches.server: (n, C, S, 9). RUNNING requests, of which the first DECODING have a first token;
# KV tokens RESERVED and in use (CONTEXT); PROMPT_BACKLOG, the tokens to prefill among TOKENS; BUSY,
# 1 during an iteration; the queue of waiting requests, ids or -1; clients that GAVE_UP.
RUNNING, DECODING, RESERVED, CONTEXT, PROMPT_BACKLOG, BUSY, WAIT_HEAD, WAIT_TAIL, GAVE_UP = range(9)
BATCH_COLUMNS = 9
# State.request: what these columns hold until a request has its first token and is done.
PROMPT_LEFT, LEAF_S = FIRST_TOKEN_S, DONE_S


class Batches(NamedTuple):
    """Batching servers, B being the largest batch: what they are, then what changes.

    Attributes:
        limits: (n, C, 4) of a server: requests and KV tokens at most, prompt tokens an iteration,
            draft tokens.
        timing: (n, C, 6) terms of an iteration's time, acceptance of a draft token, longest wait.
        server: (n, C, S, 9) columns named above.
        running: (n, C, S, B) ids of the running requests in order of admission.
        left: (n, C, S, B) output tokens that each of them lacks.
    """

    limits: IntArray
    timing: FloatArray
    server: IntArray
    running: IdArray
    left: IdArray


def allocate_batches(replications: int, cells: int, servers: int, max_batch: int) -> Batches:
    """Zeroed arrays; `clear_batches` makes a row ready."""
    n = (replications, cells)
    return Batches(
        limits=np.zeros((*n, LIMIT_COLUMNS), dtype=np.int64),
        timing=np.zeros((*n, TIMING_COLUMNS), dtype=np.float64),
        server=np.zeros((*n, servers, BATCH_COLUMNS), dtype=np.int64),
        running=np.zeros((*n, servers, max_batch), dtype=np.int32),
        left=np.zeros((*n, servers, max_batch), dtype=np.int32),
    )


def clear_batches(r: int, batches: Batches) -> None:
    """Empties the servers of row r; what they are stays."""
    for array in (batches.server, batches.running, batches.left):
        array[r] = 0
    batches.server[r, ..., WAIT_HEAD] = NONE
    batches.server[r, ..., WAIT_TAIL] = NONE


@part
def of_cell(batches: Batches, r: int, c: int) -> Batches:
    """The batching servers of one cell: the same arrays without their first two axes."""
    return Batches(
        batches.limits[r, c],
        batches.timing[r, c],
        batches.server[r, c],
        batches.running[r, c],
        batches.left[r, c],
    )
