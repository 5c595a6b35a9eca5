"""Faults that the laws of `tests/laws` notice: queueing theory, counted books, distributions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "slot-never-used-by-law",
        "dlb_gym/engine/cells.py",
        "for k in range(2, 1 + slots):",
        "for k in range(2, slots):",
        (
            "tests/laws/test_work_conservation.py::test_no_place_idles_while_a_request_waits[1-0.8-256]",
            "tests/laws/test_many_servers.py::test_waiting_in_mmc_has_an_atom_and_an_exponential_tail",
        ),
        "the last decode slot of a server is never used",
        jit=True,
    ),
    Mutant(
        "last-slot-first-by-law",
        "dlb_gym/engine/cells.py",
        "sooner = server_free[s, k] < free_s",
        "sooner = server_free[s, k] > free_s",
        (
            "tests/laws/test_many_servers.py::test_mean_sojourn_in_decode_slots_is_that_of_erlang[8-0.8]",
            "tests/laws/test_insensitivity.py::test_with_a_slot_for_everyone_the_number_in_service_is_poisson[deterministic]",
        ),
        "decode takes the slot that is free last",
        jit=True,
    ),
    Mutant(
        "prefill-blocked-by-decode-by-law",
        "dlb_gym/engine/cells.py",
        "    server_free[s, 0] = first_token_s\n",
        "    server_free[s, 0] = first_token_s + decode_s\n",
        (
            "tests/laws/test_work_conservation.py::test_no_place_idles_while_a_request_waits[1-1.5-20]",
        ),
        "a prefill engine stands still while its last request decodes",
        jit=True,
    ),
    Mutant(
        "slots-without-number-by-law",
        "dlb_gym/engine/cells.py",
        "done_s = max(first_token_s, free_s) + decode_s",
        "done_s = first_token_s + decode_s",
        (
            "tests/laws/test_work_conservation.py::test_no_place_idles_while_a_request_waits[1-0.8-256]",
            "tests/laws/test_tandem.py::test_both_stages_of_a_tandem_of_mm1_are_exponential_and_independent",
        ),
        "decode never waits for a slot",
        jit=True,
    ),
    Mutant(
        "prefill-a-tenth-slow-by-law",
        "dlb_gym/engine/cells.py",
        "request[slot, PROMPT_TOKENS] * params.service[r, c, PREFILL_S_PER_TOKEN],\n"
        "        request[slot, OUTPUT_TOKENS] * params.service[r, c, DECODE_S_PER_TOKEN],\n",
        "request[slot, PROMPT_TOKENS] * 1.1 * params.service[r, c, PREFILL_S_PER_TOKEN],\n"
        "        request[slot, OUTPUT_TOKENS] * params.service[r, c, DECODE_S_PER_TOKEN],\n",
        (
            "tests/laws/test_single_server.py::test_mean_sojourn_is_that_of_pollaczek_and_khinchine[exponential-prefill]",
            "tests/laws/test_single_server.py::test_sojourn_times_of_mm1_are_exponential",
        ),
        "prefill takes a tenth longer",
        jit=True,
    ),
    Mutant(
        "queue-limit-one-less-by-law",
        "dlb_gym/engine/cells.py",
        "    s = choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)\n"
        "    if server[s, UNFINISHED] >= params",
        "    s = choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)\n"
        "    if server[s, UNFINISHED] + 1 >= params",
        (
            "tests/laws/test_insensitivity.py::test_a_server_without_places_to_wait_refuses_the_share_of_erlang[8-6.0-exponential]",
        ),
        "a server refuses one request too early",
        jit=True,
    ),
    Mutant(
        "queue-limit-one-more-by-law",
        "dlb_gym/engine/cells.py",
        "    s = choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)\n"
        "    if server[s, UNFINISHED] >= params",
        "    s = choose_server(now_s, request[slot, U_LEAF], cell[c, LIVE], server, request)\n"
        "    if server[s, UNFINISHED] > params",
        (
            "tests/laws/test_insensitivity.py::test_a_server_without_places_to_wait_refuses_the_share_of_erlang[1-0.8-exponential]",
        ),
        "a full server takes one more",
        jit=True,
    ),
    Mutant(
        "busier-of-two-by-law",
        "dlb_gym/engine/leaf.py",
        "return second if server[second, TOKENS] < server[first, TOKENS] else first",
        "return second if server[second, TOKENS] > server[first, TOKENS] else first",
        ("tests/laws/test_power_of_two.py::test_mean_sojourn_is_that_of_the_fixed_point[20]",),
        "power of two choices is turned round",
        jit=True,
    ),
    Mutant(
        "prompts-stay-in-the-count-by-law",
        "dlb_gym/engine/leaf.py",
        "server[s, TOKENS] -= int(request[head, PROMPT_TOKENS])",
        "server[s, TOKENS] -= 0",
        ("tests/laws/test_power_of_two.py::test_mean_sojourn_is_that_of_the_fixed_point[20]",),
        "prompt tokens that are done still count as unfinished",
        jit=True,
    ),
    Mutant(
        "lost-error-by-law",
        "dlb_gym/engine/intake.py",
        "    state.row[r, ERRORS] += 1\n",
        "",
        (
            "tests/laws/test_littles_law.py::test_littles_law_and_the_books_hold_on_every_path[burst]",
        ),
        "errors that reach their root are not counted",
        jit=True,
    ),
    Mutant(
        "integral-without-the-way-back-by-law",
        "dlb_gym/engine/intake.py",
        "row_time[IN_SYSTEM_S] -= end_s - answer_s",
        "row_time[IN_SYSTEM_S] -= end_s - request[slot, DONE_S]",
        (
            "tests/laws/test_littles_law.py::test_littles_law_and_the_books_hold_on_every_path[moderate]",
        ),
        "requests leave the system when they are done, not when answered",
        jit=True,
    ),
    Mutant(
        "rif-of-errors-by-law",
        "dlb_gym/engine/leaf.py",
        "    cell[c, CELL_REJECTED] += 1\n",
        "    cell[c, CELL_REJECTED] += 1\n    cell[c, 0] += 1\n",
        ("tests/laws/test_littles_law.py::test_requests_are_where_the_log_says[burst]",),
        "refused requests count as in flight",
        jit=True,
    ),
    Mutant(
        "biased-routing-draw-by-law",
        "dlb_gym/engine/dispatch.py",
        "            if u < total:",
        "            if u * u < total:",
        (
            "tests/laws/test_arrivals.py::test_a_random_split_leaves_independent_poisson_processes[constant]",
        ),
        "the first cells of a row get more than their share",
        jit=True,
    ),
    Mutant(
        "no-router-delay-by-law",
        "dlb_gym/engine/dispatch.py",
        "leaf_s = (arrival_s + clock[ROUTER_DELAY_S]) + tau_s[j]",
        "leaf_s = arrival_s + tau_s[j]",
        (
            "tests/laws/test_tandem.py::test_a_journey_is_router_delay_twice_the_way_and_the_two_sojourns",
        ),
        "requests reach leaves early",
        jit=True,
    ),
    Mutant(
        "round-trip-for-one-way-by-law",
        "dlb_gym/rates.py",
        "np.where(reachable, rtt_s / 2.0, np.nan)",
        "np.where(reachable, rtt_s, np.nan)",
        (
            "tests/laws/test_tandem.py::test_a_journey_is_router_delay_twice_the_way_and_the_two_sojourns",
        ),
        "everything travels twice as long",
        jit=True,
    ),
    Mutant(
        "stages-swapped-by-law",
        "dlb_gym/system_rows.py",
        "params.service[r, j] = cell.prefill_s_per_token, cell.decode_s_per_token",
        "params.service[r, j] = cell.decode_s_per_token, cell.prefill_s_per_token",
        (
            "tests/laws/test_single_server.py::test_mean_sojourn_is_that_of_pollaczek_and_khinchine[deterministic-decode]",
        ),
        "prompts take the time of outputs and outputs that of prompts",
        jit=True,
    ),
    Mutant(
        "roots-share-a-stream-by-law",
        "dlb_gym/workload.py",
        "random_stream(*self._key, Stream.REQUESTS, root, index)",
        "random_stream(*self._key, Stream.REQUESTS, 0, index)",
        (
            "tests/laws/test_arrivals.py::test_streams_of_seeds_episodes_roots_and_chunks_are_independent",
        ),
        "all roots draw the same requests",
        jit=True,
    ),
    Mutant(
        "seeds-shared-by-law",
        "dlb_gym/streams.py",
        "    words = [seed % _WORD]",
        "    words = [seed // 2 % _WORD]",
        (
            "tests/laws/test_arrivals.py::test_streams_of_seeds_episodes_roots_and_chunks_are_independent",
            "tests/laws/test_arrivals.py::test_counts_in_bins_are_poisson_with_the_integral_of_the_rate[constant]",
        ),
        "two seeds give the same requests",
        jit=True,
    ),
    Mutant(
        "time-zone-reversed-by-law",
        "dlb_gym/demand_profile.py",
        "self._utc_s + utc_offset_h * hour_s",
        "self._utc_s - utc_offset_h * hour_s",
        (
            "tests/laws/test_arrivals.py::test_counts_in_bins_are_poisson_with_the_integral_of_the_rate[daily]",
            "tests/laws/test_arrivals.py::test_rescaled_arrivals_are_a_poisson_process_of_rate_one[daily]",
        ),
        "the daily peak is at the wrong hour",
        jit=True,
    ),
    Mutant(
        "even-arrivals-by-law",
        "dlb_gym/arrivals.py",
        "    arrival_s = rng.random(int(rng.poisson(total)))\n    arrival_s.sort()\n",
        "    arrival_s = rng.random(int(rng.poisson(total)))\n"
        "    arrival_s = (np.arange(arrival_s.size) + 0.5) / max(arrival_s.size, 1)\n",
        (
            "tests/laws/test_arrivals.py::test_rescaled_arrivals_are_a_poisson_process_of_rate_one[constant]",
            "tests/laws/test_single_server.py::test_an_arrival_finds_the_server_idle_as_often_as_it_is[deterministic]",
            "tests/laws/test_tandem.py::test_the_output_of_mmc_is_poisson",
        ),
        "arrivals are evenly spaced",
        jit=True,
    ),
    Mutant(
        "fixed-number-of-arrivals-by-law",
        "dlb_gym/arrivals.py",
        "rng.random(int(rng.poisson(total)))",
        "rng.random(round(total))",
        (
            "tests/laws/test_arrivals.py::test_counts_in_bins_are_poisson_with_the_integral_of_the_rate[constant]",
        ),
        "the number of arrivals in a chunk does not vary",
        jit=True,
    ),
    Mutant(
        "tokens-cut-not-rounded-by-law",
        "dlb_gym/tokens.py",
        "    tokens += 0.5\n",
        "",
        ("tests/laws/test_token_laws.py::test_decode_times_follow_the_law_of_output_tokens[few]",),
        "requests have half a token too few",
        jit=True,
    ),
    Mutant(
        "one-uniform-for-both-choices-by-law",
        "dlb_gym/workload.py",
        "    requests[:, 3:] = rng.random((arrival_s.size, 2))\n",
        "    requests[:, 3:] = rng.random((arrival_s.size, 1))\n",
        (
            "tests/laws/test_token_laws.py::test_prompts_follow_their_law_and_nothing_of_a_request_depends_on_the_rest",
        ),
        "the choice of the server follows from that of the cell",
        jit=True,
    ),
    Mutant(
        "batch-one-too-many-by-law",
        "dlb_gym/engine/batching.py",
        "running < own.limits[MAX_BATCH] and budget > 0",
        "running <= own.limits[MAX_BATCH] and budget > 0",
        (
            "tests/laws/test_batching_laws.py::test_a_batch_of_one_is_a_single_server_of_prompts[M/D/1]",
        ),
        "one more than the largest batch runs",
        jit=True,
    ),
    Mutant(
        "batch-admits-one-at-a-time-by-law",
        "dlb_gym/engine/batching.py",
        "        running += 1\n        slot = int(request[slot, NEXT])\n",
        "        running += 1\n        slot = int(request[slot, NEXT])\n        break\n",
        ("tests/laws/test_batching_laws.py::test_a_batch_without_limit_takes_all_who_wait[5.0]",),
        "a batch grows by one an iteration",
        jit=True,
    ),
    Mutant(
        "one-draft-more-by-law",
        "dlb_gym/engine/batching.py",
        "while accepted < draft_tokens and u < likelihood",
        "while accepted <= draft_tokens and u < likelihood",
        ("tests/laws/test_batching_laws.py::test_drafts_make_the_tokens_of_renewal_theory",),
        "one more draft token may be accepted than are proposed",
        jit=True,
    ),
    Mutant(
        "first-token-twice-by-law",
        "dlb_gym/engine/batching.py",
        "            produced += 1\n            lacking -= 1\n            first += 1\n",
        "            produced += 1\n            first += 1\n",
        ("tests/laws/test_batching_laws.py::test_a_batch_of_one_is_a_single_server_of_tokens",),
        "a request makes one token too many",
        jit=True,
    ),
    Mutant(
        "geometric-rif-by-law",
        "dlb_gym/engine/cells.py",
        "    while size > 0 and done_time[0] <= until_s:\n        now_s = done_time[0]",
        "    while size > 1 and done_time[0] <= until_s:\n        now_s = done_time[0]",
        ("tests/laws/test_single_server.py::test_the_number_in_mm1_is_geometric",),
        "the last request of a cell is never done",
        jit=True,
    ),
)
