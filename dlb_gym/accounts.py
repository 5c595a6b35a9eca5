"""The engine's arrays as accounts: the truth, where requests are, what was measured and counted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dlb_gym.engine import extras, layout
from dlb_gym.engine.extras import Extras
from dlb_gym.engine.layout import Params, State
from dlb_gym.measurements import Measurements
from dlb_gym.views import Books, Counts, Truth

LOG_COLUMNS = {
    "root": layout.LOG_ROOT,
    "cell": layout.LOG_CELL,
    "server": layout.LOG_SERVER,
    "arrival_s": layout.LOG_ARRIVAL_S,
    "leaf_s": layout.LOG_LEAF_S,
    "first_token_s": layout.LOG_FIRST_TOKEN_S,
    "done_s": layout.LOG_DONE_S,
    "answer_s": layout.LOG_ANSWER_S,
}
"""Columns of the request log; server -1 marks an error."""


def request_log(state: State, r: int) -> dict[str, NDArray[np.float64]]:
    """Columns of row r's answered requests, in the order in which the answers were taken in."""
    log = state.log[r, : state.row[r, layout.LOG_SIZE]]
    return {name: log[:, column].copy() for name, column in LOG_COLUMNS.items()}


def truth(state: State) -> Truth:
    """The system as it is; for rewards and pictures, never for a policy."""
    return Truth(
        rif=state.cell[..., layout.RIF],
        live_servers=state.cell[..., layout.LIVE],
        received=state.received.swapaxes(1, 2),
        in_system_s=state.row_time[:, layout.IN_SYSTEM_S],
        rejected=state.row[:, layout.REJECTED],
        answered=state.row[:, layout.INTERVAL_ANSWERED],
        first_token_sum_s=state.row_time[:, layout.INTERVAL_FIRST_TOKEN_S],
    )


def books(state: State, memory: Extras | None) -> Books:
    """Where every request is."""
    row, arc = state.row, state.arc
    rif = state.cell[..., layout.RIF].sum(axis=1)
    sent, gone = (
        arc[..., column].sum(axis=(1, 2)) for column in (layout.SENT, layout.ANSWERED_ARC)
    )
    received = state.received.sum(axis=(1, 2))
    retrying = np.zeros_like(rif)
    if memory is not None:
        retrying = memory.root[..., extras.RETRYING].sum(axis=1)
    return Books(
        arrived=row[:, layout.ARRIVED],
        answered=row[:, layout.ANSWERED],
        errors=row[:, layout.ERRORS],
        rif=rif,
        to_cells=sent - received,
        to_roots=received - rif - gone,
        retrying=retrying,
    )


def measurements(state: State, memory: Extras | None) -> Measurements:
    """Sums and histograms over the measured requests so far."""
    row, row_time = state.row, state.row_time
    return Measurements(
        arrived=row[:, layout.MEASURED],
        arrived_away=row[:, layout.MEASURED_AWAY],
        errors=row[:, layout.MEASURED_ERRORS],
        latency_sum_s=row_time[:, layout.LATENCY_SUM_S],
        first_token_sum_s=row_time[:, layout.FIRST_TOKEN_SUM_S],
        latency_histogram=state.histogram[:, layout.LATENCY],
        first_token_histogram=state.histogram[:, layout.FIRST_TOKEN],
        token_time_sum_s=row_time[:, layout.TOKEN_TIME_SUM_S],
        token_time_histogram=state.histogram[:, layout.TOKEN_TIME],
        errors_by_kind=_errors_by_kind(state, memory),
    )


def _errors_by_kind(state: State, memory: Extras | None) -> NDArray[np.int64]:
    """(n, kinds); without mechanisms a full server is the only reason."""
    if memory is not None:
        return memory.errors
    kinds = np.zeros((len(state.step), extras.ERROR_KINDS), dtype=np.int64)
    kinds[:, extras.FULL] = state.row[:, layout.MEASURED_ERRORS]
    return kinds


def counts(params: Params, state: State, memory: Extras | None) -> Counts | None:
    """What the mechanisms counted so far; None where no row has any."""
    if memory is None:
        return None
    cached = memory.cached
    return Counts(
        messages=_messages(params, state, memory),
        resent=memory.row[:, extras.RESENT],
        eligible=cached[:, extras.ELIGIBLE],
        hits=cached[:, extras.HITS],
        prompt_tokens=cached[:, extras.PROMPTED_TOKENS],
        saved_tokens=cached[:, extras.SAVED_TOKENS],
    )


def _messages(params: Params, state: State, memory: Extras) -> NDArray[np.int64]:
    """(n,) messages of telemetry, those that the paper's section 5.1 counts.

    A probe and its answer for every report and arc, L (L - 1) for every gathering of a cell's leaf
    replicas, 2 for every look of one at a server and every probe of the rule "prequal". At the end
    of a turn the root replica whose it was tells each peer about all cells at once; without turns
    it passes on every report.
    """
    flag, turn_s = memory.flag, memory.setting[:, extras.TURN_S]
    arcs = (~np.isnan(params.tau_s)).sum(axis=1)
    reports = (state.cell[..., layout.NEXT_PROBE] * arcs).sum(axis=1)
    now_s = state.step * params.clock[:, layout.INTERVAL_S]
    ended = np.floor(np.divide(now_s, turn_s, where=turn_s > 0, out=np.zeros(len(turn_s))) + 1e-9)
    turns = ended.astype(np.int64) * params.shape[:, layout.NUM_ROOTS]
    tellings = (flag[:, extras.ROOT_REPLICAS] - 1) * np.where(turn_s > 0, turns, reports)
    leaves = flag[:, extras.LEAVES]
    gatherings = leaves * (leaves - 1) * memory.tally[..., extras.GATHERING].sum(axis=1)
    return np.asarray(2 * reports + tellings + gatherings + memory.row[:, extras.MESSAGES])
