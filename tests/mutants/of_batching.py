"""Faults in continuously batching servers and what is known of them beforehand."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BATCHING = "dlb_gym/engine/batching.py"
RATES = "dlb_gym/batching_rates.py"
OF_BATCHING = "tests/test_batching.py::test_"
AGREE = f"{OF_BATCHING}prefix_hits_speeds_and_crashes_agree_with_the_plain_model"
PLAIN = (f"{OF_BATCHING}one_request_by_hand", f"{AGREE}[light]")
DRAFTS = (f"{AGREE}[drafts]",)
OF_RATES = ("tests/test_rates.py::test_a_full_batch_shares_the_base_and_pays_its_own_tokens",)

MUTANTS = (
    Mutant(
        "drafts-accepted-for-ever",
        BATCHING,
        "        likelihood *= acceptance\n",
        "",
        DRAFTS,
        "a draft token once accepted brings all of them",
    ),
    Mutant(
        "kv-cache-without-outputs",
        BATCHING,
        "own.server[s, RESERVED] + prompt + output > own.limits[KV_TOKENS]",
        "own.server[s, RESERVED] + prompt > own.limits[KV_TOKENS]",
        (f"{AGREE}[small cache]",),
        "a batch outgrows the KV cache",
    ),
    Mutant(
        "iteration-without-context",
        BATCHING,
        "+ own.timing[PER_CONTEXT_TOKEN_S] * own.server[s, CONTEXT]\n",
        "+ own.timing[PER_CONTEXT_TOKEN_S]\n",
        PLAIN,
        "long contexts cost no time",
    ),
    Mutant(
        "whole-prompts-at-once",
        BATCHING,
        "        chunk = min(prompt, budget)\n",
        "        chunk = prompt\n",
        (f"{OF_BATCHING}a_long_prompt_is_cut_into_chunks",),
        "a prompt longer than the budget is prefilled in one iteration",
    ),
    Mutant(
        "first-token-for-free",
        BATCHING,
        "            lacking -= 1\n",
        "",
        PLAIN,
        "a request makes one token too many",
    ),
    Mutant(
        "batch-one-smaller",
        BATCHING,
        "running < own.limits[MAX_BATCH] and budget > 0",
        "running < own.limits[MAX_BATCH] - 1 and budget > 0",
        (f"{OF_BATCHING}the_kv_cache_limits_the_batch",),
        "the last place of a batch stays empty",
    ),
    Mutant(
        "patience-from-the-first-iteration",
        BATCHING,
        "now_s > request[slot, LEAF_S] + own.timing[MAX_WAIT_S]",
        "now_s > request[slot, LEAF_S] + 2.0 * own.timing[MAX_WAIT_S]",
        (f"{OF_BATCHING}clients_give_up_at_the_first_boundary_after_their_patience",),
        "clients wait twice as long",
    ),
    Mutant(
        "cached-prefix-is-prefilled",
        BATCHING,
        "    request[slot, PROMPT_LEFT] = prompt - hit_tokens\n",
        "    request[slot, PROMPT_LEFT] = prompt\n",
        (f"{OF_BATCHING}a_cached_prefix_needs_no_prefill_but_cache", *PLAIN),
        "prefix caches save nothing",
    ),
    Mutant(
        "crash-spares-who-waits",
        "dlb_gym/engine/faults.py",
        "        fail_as(now_s, r, c, slot, CRASHED, True, state, extras)\n",
        "",
        PLAIN,
        "requests that waited at a crashed server are lost",
    ),
    Mutant(
        "drafts-of-one-draw",
        BATCHING,
        "int(request[slot, KEY]), lacking)",
        "0, lacking)",
        DRAFTS,
        "all requests have the same luck with their drafts",
    ),
    Mutant(
        "batching-rate-without-base",
        RATES,
        "_work_s(server, tokens) + server.base_s / per_iteration)",
        "_work_s(server, tokens) + server.base_s)",
        OF_RATES,
        "the nominal rate ignores that a batch shares its base",
    ),
    Mutant(
        "context-of-half-the-output",
        RATES,
        "(tokens.output_square - tokens.output) / 2.0",
        "(tokens.output_square - tokens.output)",
        OF_RATES,
        "the mean context of a request is too long",
    ),
)
