"""The end of an interval: roots take in what reached them, and requests are counted.

Latency histograms split an octave by exponent and mantissa: no logarithm, the same bin everywhere.
"""

from __future__ import annotations

import math

from dlb_gym.engine.answers import (
    FAILED,
    SERVED,
    TRIED_AGAIN,
    answer_time_s,
    outcome_of,
    way_back_s,
)
from dlb_gym.engine.compile import part
from dlb_gym.engine.extras import (
    KIND,
    LEAF_S,
    Extras,
)
from dlb_gym.engine.layout import (
    ANSWER_HEAD,
    ANSWER_TAIL,
    ANSWERED,
    ANSWERED_ARC,
    ARRIVAL_S,
    DONE_S,
    ERRORS,
    FIRST_TOKEN,
    FIRST_TOKEN_S,
    FIRST_TOKEN_SUM_S,
    FREE,
    HELD_EMITTED_S,
    HELD_ERROR_RATE,
    HELD_RECEIVED,
    HELD_RIF,
    HELD_SERVERS,
    HISTOGRAM_BINS,
    IN_SYSTEM_S,
    INTERVAL_ANSWERED,
    INTERVAL_FIRST_TOKEN_S,
    KEY,
    KEY_SHIFT,
    LATENCY,
    LATENCY_SUM_S,
    LOG_ANSWER_S,
    LOG_ARRIVAL_S,
    LOG_CELL,
    LOG_DONE_S,
    LOG_FIRST_TOKEN_S,
    LOG_LEAF_S,
    LOG_ROOT,
    LOG_SEND_NUMBER,
    LOG_SERVER,
    LOG_SIZE,
    LOGGED,
    LOWEST_EXPONENT,
    MEASURE_FROM_S,
    MEASURE_TO_S,
    MEASURED_ERRORS,
    NEXT,
    NONE,
    NUM_CELLS,
    NUM_ROOTS,
    OUTPUT_TOKENS,
    PARTS_PER_OCTAVE,
    PROBE_INTERVAL_S,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    ROUTER_DELAY_S,
    SERVER,
    TOKEN_TIME,
    TOKEN_TIME_SUM_S,
    FloatArray,
    IntArray,
    Params,
    State,
)
from dlb_gym.engine.roots import update_root
from dlb_gym.engine.telemetry import hold_report


@part
def _count_bin(histogram: IntArray, value_s: float) -> None:
    mantissa, exponent = math.frexp(value_s)
    part = int((mantissa - 0.5) * (2 * PARTS_PER_OCTAVE))
    index = (exponent - 1 - LOWEST_EXPONENT) * PARTS_PER_OCTAVE + part
    histogram[min(max(index, 0), HISTOGRAM_BINS - 1)] += 1


@part
def _write_log(
    slot: int,
    i: int,
    j: int,
    leaf_s: float,
    answer_s: float,
    row: IntArray,
    request: FloatArray,
    log: FloatArray,
) -> None:
    entry = log[row[LOG_SIZE]]
    row[LOG_SIZE] += 1
    entry[LOG_ROOT] = i
    entry[LOG_SEND_NUMBER] = int(request[slot, KEY]) & ((1 << KEY_SHIFT) - 1)
    entry[LOG_CELL] = j
    entry[LOG_SERVER] = request[slot, SERVER]
    entry[LOG_ARRIVAL_S] = request[slot, ARRIVAL_S]
    entry[LOG_LEAF_S] = leaf_s
    entry[LOG_FIRST_TOKEN_S] = request[slot, FIRST_TOKEN_S]
    entry[LOG_DONE_S] = request[slot, DONE_S]
    entry[LOG_ANSWER_S] = answer_s


@part
def _measure(
    slot: int,
    answer_s: float,
    tau: float,
    row_time: FloatArray,
    request: FloatArray,
    histogram: IntArray,
) -> None:
    """Latency, time to first token and time per output token of an answered request."""
    arrival_s = request[slot, ARRIVAL_S]
    latency_s = answer_s - arrival_s
    first_token_s = (request[slot, FIRST_TOKEN_S] + tau) - arrival_s
    row_time[LATENCY_SUM_S] += latency_s
    row_time[FIRST_TOKEN_SUM_S] += first_token_s
    _count_bin(histogram[LATENCY], latency_s)
    _count_bin(histogram[FIRST_TOKEN], first_token_s)
    output = request[slot, OUTPUT_TOKENS]
    if output > 0.0:
        token_s = (request[slot, DONE_S] - request[slot, FIRST_TOKEN_S]) / output
        row_time[TOKEN_TIME_SUM_S] += token_s
        _count_bin(histogram[TOKEN_TIME], token_s)


@part
def _is_measured(r: int, slot: int, params: Params, state: State) -> bool:
    arrival_s = state.request[r, slot, ARRIVAL_S]
    return bool(params.clock[r, MEASURE_FROM_S] < arrival_s <= params.clock[r, MEASURE_TO_S])


@part
def _count_error(r: int, slot: int, params: Params, state: State, extras: Extras | None) -> None:
    state.row[r, ERRORS] += 1
    if _is_measured(r, slot, params, state):
        state.row[r, MEASURED_ERRORS] += 1
        if extras is not None:
            extras.errors[r, int(extras.request[r, slot, KIND])] += 1


@part
def _count_answer(
    r: int,
    i: int,
    j: int,
    slot: int,
    answer_s: float,
    params: Params,
    state: State,
    extras: Extras | None,
) -> None:
    request, row_time = state.request[r], state.row_time[r]
    tau = params.tau_s[r, i, j]
    if extras is not None:
        tau = way_back_s(r, i, j, slot, answer_s, tau, state, extras)
    state.row[r, ANSWERED] += 1
    state.row[r, INTERVAL_ANSWERED] += 1
    first_s = request[slot, FIRST_TOKEN_S] + tau
    row_time[INTERVAL_FIRST_TOKEN_S] += first_s - request[slot, ARRIVAL_S]
    if _is_measured(r, slot, params, state):
        _measure(slot, answer_s, tau, row_time, request, state.histogram[r])


@part
def _take_in_answers(
    r: int, i: int, j: int, end_s: float, params: Params, state: State, extras: Extras | None
) -> None:
    """Responses of cell j that reach root i by `end_s`."""
    clock, row, row_time = params.clock[r], state.row[r], state.row_time[r]
    arc, request = state.arc[r, i, j], state.request[r]
    tau = params.tau_s[r, i, j]
    slot = arc[ANSWER_HEAD]
    while slot != NONE:
        answer_s = request[slot, DONE_S] + tau
        if extras is not None:
            answer_s = answer_time_s(r, i, j, slot, tau, state, extras)
        if answer_s > end_s:
            break
        following = int(request[slot, NEXT])
        arc[ANSWERED_ARC] += 1
        outcome = FAILED if request[slot, SERVER] == NONE else SERVED
        if extras is not None:
            outcome = outcome_of(r, i, j, slot, answer_s, state.step[r], state, extras)
        if outcome == TRIED_AGAIN:
            slot = following
            continue
        row_time[IN_SYSTEM_S] -= end_s - answer_s
        if outcome == FAILED:
            _count_error(r, slot, params, state, extras)
        else:
            _count_answer(r, i, j, slot, answer_s, params, state, extras)
        if params.shape[r, LOGGED] != 0:
            leaf_s = (request[slot, ARRIVAL_S] + clock[ROUTER_DELAY_S]) + tau
            if extras is not None:
                leaf_s = extras.request[r, slot, LEAF_S]
            _write_log(slot, i, j, leaf_s, answer_s, row, request, state.log[r])
        state.free[r, row[FREE]] = slot
        row[FREE] += 1
        slot = following
    arc[ANSWER_HEAD] = slot
    if slot == NONE:
        arc[ANSWER_TAIL] = NONE


@part
def _take_in_probe(
    i: int,
    j: int,
    now_s: float,
    probe_interval_s: float,
    tau: float,
    probe: IntArray,
    probe_error_rate: FloatArray,
    held: IntArray,
    held_time: FloatArray,
) -> None:
    """The newest report m with m * interval + tau <= now; until one, what `held` began with."""
    if tau > now_s:
        return
    m = int((now_s - tau) / probe_interval_s)
    while (m + 1) * probe_interval_s + tau <= now_s:
        m += 1
    while m * probe_interval_s + tau > now_s:
        m -= 1
    k = m & (len(probe_error_rate) - 1)
    held[i, j, HELD_RIF] = probe[k, PROBE_RIF]
    held[i, j, HELD_SERVERS] = probe[k, PROBE_SERVERS]
    held[i, j, HELD_RECEIVED] = probe[k, PROBE_RECEIVED + i]
    held_time[i, j, HELD_EMITTED_S] = m * probe_interval_s
    held_time[i, j, HELD_ERROR_RATE] = probe_error_rate[k]


@part
def take_in(r: int, end_s: float, params: Params, state: State, extras: Extras | None) -> None:
    """Responses and reports that reach the roots of row r by `end_s`."""
    for i in range(params.shape[r, NUM_ROOTS]):
        for j in range(params.shape[r, NUM_CELLS]):
            tau = params.tau_s[r, i, j]
            if math.isnan(tau):
                continue
            _take_in_answers(r, i, j, end_s, params, state, extras)
            probe_interval_s = params.clock[r, PROBE_INTERVAL_S]
            if extras is None:
                _take_in_probe(
                    i,
                    j,
                    end_s,
                    probe_interval_s,
                    tau,
                    state.probe[r, j],
                    state.probe_error_rate[r, j],
                    state.held[r],
                    state.held_time[r],
                )
            else:
                hold_report(end_s, r, i, j, probe_interval_s, tau, state, extras)
        if extras is not None:
            update_root(r, i, end_s, params, state, extras)
