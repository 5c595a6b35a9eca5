"""Reports with their imperfections: whose they are, what they know, and which of them arrive.

Report m of a cell is leaf replica m mod L's. Its RIF is that replica's own count now plus its
peers' as of the last gathering; a crashed replica's requests are missing until the next one. A
root holds the newest report that left by its turn's last end less the journey, was not lost, met
no cut arc, and came from a replica that was up.
"""

from __future__ import annotations

import math

from dlb_gym.engine.batches import PROMPT_BACKLOG as TO_PREFILL
from dlb_gym.engine.compile import part
from dlb_gym.engine.estimator import decay, effective_samples, fit, fleet_prior, to_model
from dlb_gym.engine.extras import (
    BACKLOGS,
    BATCHING,
    DECODE_BACKLOG,
    DITHER,
    DITHERED,
    LEAVES,
    LOOK_EVERY,
    LOSS,
    LOST,
    MEMORY_S,
    MODEL_ROUNDS,
    NEXT_GATHERING,
    NEXT_LEAF,
    NEXT_LOOK,
    OUTPUT_BACKLOG,
    PRIOR_SD,
    PROBE_LOSS,
    PROMPT_BACKLOG,
    REFERENCE_S,
    REFIT_S,
    REPORT_ROUND,
    ROUND,
    SEED,
    SYNC_EVERY,
    TURN_S,
    Extras,
)
from dlb_gym.engine.faults import is_cut, is_down, tau_at
from dlb_gym.engine.hashing import uniform
from dlb_gym.engine.layout import (
    HELD_EMITTED_S,
    HELD_ERROR_RATE,
    HELD_RECEIVED,
    HELD_RIF,
    HELD_SERVERS,
    NEXT_PROBE,
    NUM_CELLS,
    PROBE_RECEIVED,
    PROBE_RIF,
    PROBE_SERVERS,
    TOKENS,
    FloatArray,
    Params,
    State,
)
from dlb_gym.engine.leaf import settle_prefills
from dlb_gym.engine.leaves import gather, keep_seen, look, rif_known


@part
def refit(now_s: float, r: int, c: int, num_cells: int, extras: Extras) -> None:
    """The leaves' next round; a round whose replica is down changes nothing.

    The prior is the fleet's as of the round before, which had time to travel.
    """
    number = extras.tally[r, c, ROUND] + 1
    extras.tally[r, c, ROUND] = number
    here, before = number & 1, (number - 1) & 1
    setting = extras.setting[r]
    model = extras.models[r, c, number % MODEL_ROUNDS]
    model[:] = extras.models[r, c, (number - 1) % MODEL_ROUNDS]
    extras.fitted[r, here, c] = extras.fitted[r, before, c]
    extras.samples[r, here, c] = extras.samples[r, before, c]
    if is_down(now_s, extras.leaf_down[r, c, number % extras.flag[r, LEAVES]]):
        return
    bins = extras.bins[r, c]
    decay(bins, now_s - extras.cell[r, c, REFERENCE_S], setting[MEMORY_S])
    extras.cell[r, c, REFERENCE_S] = now_s
    scratch = extras.scratch[r]
    prior = scratch[len(scratch) - 1, :4]
    fleet_prior(
        extras.fitted[r, before, :num_cells],
        extras.samples[r, before, :num_cells],
        extras.first_prior[r],
        prior,
    )
    start = extras.fitted[r, before, c]
    fitted = extras.fitted[r, here, c]
    fit(bins, prior, setting[PRIOR_SD], start, fitted, scratch)
    extras.samples[r, here, c] = effective_samples(bins)
    to_model(fitted, model)
    if setting[DITHER] > 0.0:
        u = uniform(extras.flag[r, SEED] + DITHERED, c, number)
        factor = 1.0 + setting[DITHER] * (2.0 * u - 1.0)
        model[0] *= factor
        model[1] *= factor


@part
def fill_report(
    now_s: float,
    m: int,
    k: int,
    r: int,
    c: int,
    params: Params,
    state: State,
    extras: Extras,
) -> None:
    """What the mechanisms add to report m, which lies at place k of the ring."""
    flag, setting = extras.flag[r], extras.setting[r]
    count = extras.tally[r, c]
    report = extras.report[r, c, k]
    number = count[NEXT_LEAF]
    count[NEXT_LEAF] = 0 if number + 1 == flag[LEAVES] else number + 1
    report[LOST] = 1 if is_down(now_s, extras.leaf_down[r, c, number]) else 0
    if m == count[NEXT_GATHERING]:
        gather(count)
        count[NEXT_GATHERING] += flag[SYNC_EVERY]
    if flag[SYNC_EVERY] > 0:
        state.probe[r, c, k, PROBE_RIF] = rif_known(number, extras.leaf[r, c], count)
    if m == count[NEXT_LOOK]:
        look(now_s, r, c, state, extras)
        count[NEXT_LOOK] += flag[LOOK_EVERY]
    if now_s >= (count[ROUND] + 1) * setting[REFIT_S]:
        refit(now_s, r, c, params.shape[r, NUM_CELLS], extras)
    report[REPORT_ROUND] = count[ROUND]
    if flag[BACKLOGS] > 0:
        _note_backlogs(now_s, r, c, k, state, extras)


@part
def _note_backlogs(now_s: float, r: int, c: int, k: int, state: State, extras: Extras) -> None:
    """Tokens yet to prefill and to decode in all servers of the cell, into the report at place k.

    A batching server counts those of outputs down one by one, a disaggregated one at the end.
    """
    server = state.server[r, c]
    total = 0
    prompts = 0
    for s in range(len(server)):
        keep_seen(r, c, s, state, extras)
        settle_prefills(now_s, s, server, state.request[r])
        total += server[s, TOKENS]
        if extras.flag[r, BATCHING] > 0:
            prompts += extras.batches.server[r, c, s, TO_PREFILL]
    if extras.flag[r, BATCHING] == 0:
        prompts = total - extras.tally[r, c, OUTPUT_BACKLOG]
    extras.report[r, c, k, PROMPT_BACKLOG] = prompts
    extras.report[r, c, k, DECODE_BACKLOG] = total - prompts


@part
def _turn(now_s: float, turn_s: float) -> int:
    """Turns that have ended."""
    return math.floor(now_s / turn_s + 1e-9)


@part
def hold_report(
    now_s: float,
    r: int,
    i: int,
    j: int,
    probe_interval_s: float,
    tau_s: float,
    state: State,
    extras: Extras,
) -> None:
    """Takes in the newest report that root i has by now."""
    turn_s = extras.setting[r, TURN_S]
    by_s = now_s
    if turn_s > 0.0:
        by_s = _turn(now_s, turn_s) * turn_s
    window = extras.window[r, i, j]
    ring = len(state.probe_error_rate[r, j])
    held_time = state.held_time[r, i, j]
    m = math.floor((by_s - tau_s) / probe_interval_s) + 1
    last = max(0, int(state.cell[r, j, NEXT_PROBE]) - ring)
    while m >= last:
        emitted_s = m * probe_interval_s
        if emitted_s < held_time[HELD_EMITTED_S]:
            return
        if _arrived(m, emitted_s, by_s, r, i, j, tau_s, window, state, extras):
            break
        m -= 1
    if m < last:
        return
    k = m & (ring - 1)
    report = state.probe[r, j, k]
    state.held[r, i, j, HELD_RIF] = report[PROBE_RIF]
    state.held[r, i, j, HELD_SERVERS] = report[PROBE_SERVERS]
    state.held[r, i, j, HELD_RECEIVED] = report[PROBE_RECEIVED + i]
    held_time[HELD_EMITTED_S] = m * probe_interval_s
    held_time[HELD_ERROR_RATE] = state.probe_error_rate[r, j, k]
    more = extras.report[r, j, k]
    model = extras.models[r, j, more[REPORT_ROUND] % MODEL_ROUNDS]
    for parameter in range(4):
        extras.model[r, i, j, parameter] = model[parameter]
    extras.backlog[r, i, j, 0] = more[PROMPT_BACKLOG]
    extras.backlog[r, i, j, 1] = more[DECODE_BACKLOG]
    extras.rtt_s[r, i, j] = 2.0 * tau_at(m * probe_interval_s, tau_s, window)


@part
def _arrived(
    m: int,
    emitted_s: float,
    by_s: float,
    r: int,
    i: int,
    j: int,
    tau_s: float,
    window: FloatArray,
    state: State,
    extras: Extras,
) -> bool:
    arrives_s = emitted_s + tau_at(emitted_s, tau_s, window)
    if arrives_s > by_s:
        return False
    if extras.report[r, j, m & (len(state.probe_error_rate[r, j]) - 1), LOST] != 0:
        return False
    if is_cut(emitted_s, arrives_s, window):
        return False
    loss = extras.setting[r, PROBE_LOSS]
    if loss > 0.0:
        key = (i << 16) + j  # whatever sizes the arrays are padded to
        return bool(uniform(extras.flag[r, SEED] + LOSS, key, m) >= loss)
    return True
