"""The engine's memory: named tuples of arrays, replication axis first, and the names of columns.

Integer columns live in int64 arrays and times in float64 arrays; a column is a module constant, so
the kernels read `arc[i, j, SENT]`. Shapes: n replications, R roots, C cells, S servers a cell,
P requests in the system, W messages on the wire to a cell, D = S * queue limit, K probe slots (a
power of two).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
IdArray = NDArray[np.int32]
CellArray = NDArray[np.int16]

# Dispatch modes (Orders.mode).
SAMPLE, SMOOTH, SCORE, CUBE, DRILL, TABLE = range(6)

# Params.shape: (n, 5)
NUM_ROOTS, NUM_CELLS, DECODE_SLOTS, QUEUE_LIMIT, LOGGED = range(5)
# Params.clock: (n, 7)
INTERVAL_S, PROBE_INTERVAL_S, ROUTER_DELAY_S, MEASURE_FROM_S, MEASURE_TO_S, LAST_ARRIVAL_S = range(
    6
)
LOAD_DECAY = 6
# Params.service: (n, C, 2)
PREFILL_S_PER_TOKEN, DECODE_S_PER_TOKEN = range(2)

# Arrivals.requests: (n, R, capacity, 5); with sessions three more columns: session, scheduling
# hash, prefix tokens
ARRIVAL_S, PROMPT_TOKENS, OUTPUT_TOKENS, U_ROUTE, U_LEAF = range(5)
ARRIVAL_COLUMNS = 5

# State.row: (n, 10)
ARRIVED, ANSWERED, ERRORS, REJECTED, FREE, LOG_SIZE, MEASURED, MEASURED_AWAY = range(8)
MEASURED_ERRORS, INTERVAL_ANSWERED = 8, 9
ROW_COLUMNS = 10
# State.row_time: (n, 5)
IN_SYSTEM_S, LATENCY_SUM_S, FIRST_TOKEN_SUM_S, TOKEN_TIME_SUM_S, INTERVAL_FIRST_TOKEN_S = range(5)
ROW_TIME_COLUMNS = 5
# State.received: (n, C, R) requests of each root that reached the cell's leaf.
# State.arc: (n, R, C, 5); a request id or -1 in the answer columns
SENT, ANSWERED_ARC, INTERVAL_SENT, ANSWER_HEAD, ANSWER_TAIL = range(5)
ARC_COLUMNS = 5
# State.cell: (n, C, 7)
RIF, LIVE, NEXT_CHANGE, WIRE_SIZE, DONE_SIZE, NEXT_PROBE, CELL_REJECTED = range(7)
CELL_COLUMNS = 7
# State.cell_time: (n, C, 2)
ERROR_RATE, ERROR_TIME_S = range(2)
CELL_TIME_COLUMNS = 2
# State.server: (n, C, S, 4); request ids or -1 in the prefill columns
UNFINISHED, TOKENS, PREFILL_HEAD, PREFILL_TAIL = range(4)
SERVER_COLUMNS = 4
# State.probe: (n, C, K, 2 + R), received counts last
PROBE_RIF, PROBE_SERVERS, PROBE_RECEIVED = range(3)
# State.held: (n, R, C, 3) and State.held_time: (n, R, C, 2)
HELD_RIF, HELD_SERVERS, HELD_RECEIVED = range(3)
HELD_EMITTED_S, HELD_ERROR_RATE = range(2)
# State.request: (n, P, 8), one cache line a request. Columns 0 to 2 are those of an arrival, and
# column 4 is its U_LEAF until a server is chosen. KEY = root * 2^40 + send number orders requests
# that reach a leaf at the same time; SERVER and NEXT (in a queue of requests) are ids or -1.
KEY, FIRST_TOKEN_S, DONE_S, SERVER, NEXT = range(3, 8)
REQUEST_COLUMNS = 8
KEY_SHIFT = 40
# State.log: (n, L, 9)
(
    LOG_ROOT,
    LOG_SEND_NUMBER,
    LOG_CELL,
    LOG_SERVER,
    LOG_ARRIVAL_S,
    LOG_LEAF_S,
    LOG_FIRST_TOKEN_S,
    LOG_DONE_S,
    LOG_ANSWER_S,
) = range(9)
LOG_COLUMNS = 9

# Latency histogram: octaves of [2^-20, 2^20) s in 64 equal parts, exact in every arithmetic.
LATENCY, FIRST_TOKEN, TOKEN_TIME = range(3)
HISTOGRAMS = 3
PARTS_PER_OCTAVE = 64
LOWEST_EXPONENT = -20
OCTAVES = 40
HISTOGRAM_BINS = OCTAVES * PARTS_PER_OCTAVE

NONE = -1


class Params(NamedTuple):
    """What does not change during an episode.

    Attributes:
        shape: (n, 5) roots and cells in use, decode slots, queue limit, 1 if logged.
        clock: (n, 7) intervals, router delay, measured span, last arrival, load decay.
        tau_s: (n, R, C) one-way latencies; NaN where there is no arc.
        service: (n, C, 2) seconds per prompt and output token.
        own_cell: (n, R) the cell that shares the root's name, or -1.
        change_s: (n, C, E) times at which the number of live servers changes, infinity after.
        change_live: (n, C, E) live servers from then on.
    """

    shape: IntArray
    clock: FloatArray
    tau_s: FloatArray
    service: FloatArray
    own_cell: IntArray
    change_s: FloatArray
    change_live: IntArray


class Arrivals(NamedTuple):
    """Requests drawn and not yet dispatched: `requests[r, i, first:stop]`."""

    requests: FloatArray
    first: IntArray
    stop: IntArray


class Orders(NamedTuple):
    """The decision in force; see `choices`.

    Attributes:
        mode: (n,) how cells are chosen.
        base: (n, R, C) routing, or scores.
        slope: (n, R, C) what an own request adds to them.
        offset: (n, R, C) of `cube`.
        token_value: (n, R, C) what a cached prompt token takes off a score.
        samples: (n,) arcs that `drill` draws.
        table: (n, R, M) cells, of `table`.
    """

    mode: IntArray
    base: FloatArray
    slope: FloatArray
    offset: FloatArray
    token_value: FloatArray
    samples: IntArray
    table: CellArray


class State(NamedTuple):
    """What changes; the columns are named above.

    `free` is a stack of unused request ids, `last_cell` (n, R) what `drill` remembers, or NONE.
    """

    step: IntArray
    row: IntArray
    row_time: FloatArray
    arrival_load: FloatArray
    arc: IntArray
    received: IntArray
    credit: FloatArray
    last_cell: IntArray
    cell: IntArray
    cell_time: FloatArray
    server: IntArray
    server_free: FloatArray
    wire_time: FloatArray
    wire_id: IdArray
    done_time: FloatArray
    done_id: IdArray
    probe: IntArray
    probe_error_rate: FloatArray
    held: IntArray
    held_time: FloatArray
    request: FloatArray
    free: IdArray
    histogram: IntArray
    log: FloatArray
