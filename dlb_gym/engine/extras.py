"""The memory of the mechanisms: what a scenario switches on beyond requests, servers and probes.

A batch without mechanisms has none of it (`extras` is None there, and its kernel is compiled
without the branches). Shapes as in `layout`; L leaf replicas, W windows of an arc, F rounds of
fitted models, M sessions a root remembers.
"""

from __future__ import annotations

from typing import NamedTuple

from dlb_gym.engine.affinity import PrefixCache
from dlb_gym.engine.batches import Batches
from dlb_gym.engine.compile import part
from dlb_gym.engine.layout import FloatArray, IntArray
from dlb_gym.engine.leaf_memory import LeafMemory

# Extras.flag: (n, 16). Intervals of SYNC_EVERY and LOOK_EVERY are in reports of a cell, 0 for none;
# SPENT is 1 where the decision in force has dealt with aversion itself. A row uses MAP_ROWS of
# `homes` and CACHE_SLOTS of a cache, however long its neighbours made them.
SEED, ROOT_REPLICAS, LEAVES, SYNC_EVERY, LOOK_EVERY, AVERTING, AFFINITY, ESTIMATING = range(8)
ATTEMPTS, BATCHING, CACHE_TOKENS, SPENT, BACKLOGS, MAP_ROWS, CACHE_SLOTS, LEAF_RULE = range(8, 16)
FLAG_COLUMNS = 16
# Values of AFFINITY: no caches, caches that routing ignores, and the three kinds of routing.
NO_CACHE, UNUSED, CONDITIONAL, STICKY, HASHED = range(5)
# Values of LEAF_RULE (see `leaf_rules`); from VLLM on they look at sessions themselves.
POWER_OF_TWO, POWER, RANDOM, ROUND_ROBIN, LEAST_REQUESTS, RAY, PREQUAL = range(7)
VLLM, VLLM_LOAD_AWARE, AIBRIX, SGLANG, PREBLE, DUALMAP = range(7, 13)
# Extras.setting: (n, 19)
PROBE_LOSS, PROBE_TIMEOUT_S, TURN_S, REFIT_S, MEMORY_S, PRIOR_SD, BACKGROUND, DITHER = range(8)
MAX_WAIT_S, BUDGET, AVERSION_S, TOLERANCE, GAIN, HIGHEST, RISE, FALL, QUIET, DOUBT = range(8, 18)
SILENCE_S = 18
SETTING_COLUMNS = 19
# Extras.change: (n, C, E, 4), beside Params.change_s: what holds from then on, and what happens
# then; LEAF_FAILS is the number of a leaf replica, or -1.
SPEED, ERROR_FRACTION, SERVERS_CRASH, LEAF_FAILS = range(4)
CHANGE_COLUMNS = 4
# Extras.window: (n, R, C, W, 3); an infinite EXTRA_S cuts the arc.
WINDOW_START_S, WINDOW_END_S, EXTRA_S = range(3)
WINDOW_COLUMNS = 3
# Extras.leaf_down: (n, C, L, 2) and Extras.root_down: (n, R, 3): spans, never if they start at
# infinity, and how many root replicas are down.
DOWN_S, UP_S, DOWN_REPLICAS = range(3)

# Extras.row: (n, 4) requests sent again; errors of the interval that are final, and those of them
# that no leaf gave; messages of looks.
RESENT, FINAL_ERRORS, LATE_ERRORS, MESSAGES = range(4)
EXTRA_ROW_COLUMNS = 4
# Extras.errors: (n, 6) measured errors by kind.
FULL, BLACK_HOLE, CRASHED, GAVE_UP, UNREACHABLE, ROOT_CRASHED = range(6)
ERROR_KINDS = 6
# Extras.cached: (n, 4) over measured requests: prompts with a prefix, those that hit, prompt tokens
# and those saved.
ELIGIBLE, HITS, PROMPTED_TOKENS, SAVED_TOKENS = range(4)
CACHED_COLUMNS = 4
# Extras.root: (n, R, 6) the queue of requests to send again, its length, updates of aversion so
# far, 1 once a crash took its part of the map, and the number of the next request it sends.
RETRY_HEAD, RETRY_TAIL, RETRYING, UPDATES, FORGOT, SEND_NUMBER = range(6)
ROOT_COLUMNS = 6
# Extras.arc: (n, R, C, 6) aversion's doubt factor, answers counted at the last two updates, the
# last answer's time, the share of prefixes that hit, and latency as affinity compares it.
TRUST, ANSWERS_BEFORE, ANSWERS_THEN, LAST_ANSWER_S, HIT_RATE, LATENCY_S = range(6)
EXTRA_ARC_COLUMNS = 6
# Extras.cell: (n, C, 4) the last refit and the last look at the servers among others.
CELL_SPEED, CELL_ERROR_FRACTION, REFERENCE_S, LOOK_S = range(4)
EXTRA_CELL_COLUMNS = 4
# Extras.tally: (n, C, 11) rounds of fits, looks and gatherings so far; the reports of the next look
# and gathering (NONE: never) and the leaf replica of the next report; RIF of all leaf replicas now
# and at the last gathering.
ROUND, LOOK, GATHERING, NEXT_LOOK, NEXT_GATHERING, NEXT_LEAF = range(6)
LEAVES_RIF, GATHERED_RIF, ORPHANS, ORPHANS_KNOWN, OUTPUT_BACKLOG = range(6, 11)
TALLY_COLUMNS = 11
# Extras.leaf: (n, C, L, 3) a replica's RIF now and before it changed since gathering GATHERED, and
# Extras.seen: (n, C, S, 3) a server's unfinished tokens, and requests, before they changed since
# look SEEN_LOOK.
LEAF_RIF, RIF_BEFORE, GATHERED = range(3)
LEAF_COLUMNS = 3
SEEN_TOKENS, SEEN_LOOK, SEEN_REQUESTS = range(3)
SEEN_COLUMNS = 3
# Extras.placed: (n, C, L, S, 3) tokens that a leaf placed since a look, which look that was, and
# requests.
PLACED_TOKENS, PLACED_LOOK, PLACED_REQUESTS = range(3)
PLACED_COLUMNS = 3
# Extras.report: (n, C, K, 4)
LOST, REPORT_ROUND, PROMPT_BACKLOG, DECODE_BACKLOG = range(4)
REPORT_COLUMNS = 4
# Extras.request: (n, P, 12). LEAF is a replica or -1; KIND an error or -1; ENTRY where its cell's
# prefix cache had its session when it came, or -1; OTHERS the requests that its server had.
LEAF, KIND, TRIES, SENT_S, LEAF_S, RIF_THERE, SESSION, SESSION_HASH = range(8)
PREFIX_TOKENS, HIT_TOKENS, ENTRY, OTHERS = range(8, 12)
EXTRA_REQUEST_COLUMNS = 12

MODEL_ROUNDS = 8
"""F: rounds of models that a cell remembers for reports on their way."""
RETRY_BURST = 10.0
"""Retries that a root may save up."""

# Purposes of `hashing.uniform` (multiples of 2^32).
LOSS, RETRY, AVERT, EXPLORE, EXPLORED, FAILURE, DITHERED = (k << 33 for k in range(1, 8))
# Those of leaves: further choices, probed servers, uses of an answer, a session's second hash.
DRAWING, PROBING, REUSING, REHASHING = (k << 33 for k in range(16, 20))


class Extras(NamedTuple):
    """See the columns above; what never changes in an episode first.

    Attributes:
        server_rps: (n, C) nominal rate of a server.
        prefill_s: (n, C) time of a prompt token, by which affinity values a prefix.
        first_prior: (n, 4) logarithmic parameters before anything is known.
        budget: (n, R) retries left.
        weights: (n, R, C) routing with aversion spent.
        aversion: (n, R, C).
        rtt_s: (n, R, C) round trip of the report held.
        model: (n, R, C, 4) latency model of the report held.
        backlog: (n, R, C, 2) tokens to prefill and to decode in the report held.
        bins: (n, C, 64, 4) samples, see `estimator`.
        fitted: (n, 2, C, 4) parameters of the last two rounds, by parity.
        samples: (n, 2, C) their effective samples.
        scratch: (n, rows, 5) of the fit.
        models: (n, C, F, 4) models by round.
        homes: (n, R, M, 3) session maps, see `affinity`.
    """

    flag: IntArray
    setting: FloatArray
    server_rps: FloatArray
    prefill_s: FloatArray
    first_prior: FloatArray
    change: FloatArray
    window: FloatArray
    leaf_down: FloatArray
    root_down: FloatArray
    row: IntArray
    errors: IntArray
    cached: FloatArray
    root: IntArray
    budget: FloatArray
    weights: FloatArray
    aversion: FloatArray
    rtt_s: FloatArray
    model: FloatArray
    backlog: FloatArray
    arc: FloatArray
    cell: FloatArray
    tally: IntArray
    leaf: IntArray
    placed: IntArray
    seen: IntArray
    report: IntArray
    request: FloatArray
    bins: FloatArray
    fitted: FloatArray
    samples: FloatArray
    scratch: FloatArray
    models: FloatArray
    homes: IntArray
    cache: PrefixCache
    batches: Batches
    rules: LeafMemory


@part
def cell_cache(extras: Extras, r: int, c: int) -> PrefixCache:
    """The prefix cache of one cell."""
    cache = extras.cache
    return PrefixCache(
        cache.slots[r, c, : extras.flag[r, CACHE_SLOTS]],
        cache.entries[r, c],
        cache.lists[r, c],
    )


@part
def session_map(extras: Extras, r: int, i: int) -> IntArray:
    """The session map of one root."""
    return extras.homes[r, i, : extras.flag[r, MAP_ROWS]]
