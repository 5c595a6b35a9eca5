"""Faults in the engine's mechanisms: aversion, affinity, crashes, retries, random events."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "dlb_gym/engine/"
AFFINITY = f"{ENGINE}affinity.py"
ANSWERS = f"{ENGINE}answers.py"
AVERSION = f"{ENGINE}aversion.py"
CHANGES = f"{ENGINE}changes.py"
FAULTS = f"{ENGINE}faults.py"
LEAF_MEMORY = f"{ENGINE}leaf_memory.py"
LEAF_RULES = f"{ENGINE}leaf_rules.py"
PREQUAL = f"{ENGINE}prequal.py"
HASHING = f"{ENGINE}hashing.py"
PLACING = f"{ENGINE}placing.py"
ROOTS = f"{ENGINE}roots.py"
CHOOSING = f"{ENGINE}choosing.py"
OF_AVERSION = "tests/test_aversion.py::test_"
OF_AFFINITY = "tests/test_affinity.py::test_"
OF_ROUTING = "tests/test_session_routing.py::test_"
OF_FAULTS = "tests/test_faults.py::test_"
OF_LEAVES = "tests/test_leaf_rules.py::test_"
OF_PREQUAL = "tests/test_prequal.py::test_"
CACHE = (f"{OF_AFFINITY}the_prefix_cache_does_what_a_dictionary_does",)
MAP = (f"{OF_AFFINITY}the_session_map_does_what_a_dictionary_of_sets_does",)
JOURNEYS = (f"{OF_FAULTS}journeys_in_a_latency_shift_take_longer_and_answers_keep_their_order",)
CRASH = (
    f"{OF_FAULTS}a_crash_fails_what_its_servers_had_not_finished_at_that_instant",
    f"{OF_FAULTS}the_books_and_the_load_of_a_crashed_server_are_empty",
)
CUT = (
    f"{OF_FAULTS}whatever_travels_while_the_arc_is_cut_becomes_an_error_when_it_would_have_come",
)

MUTANTS = (
    Mutant(
        "aversion-to-absolute-errors",
        AVERSION,
        " - least - setting[TOLERANCE]",
        " - setting[TOLERANCE]",
        (f"{OF_AVERSION}what_all_cells_do_nobody_is_avoided_for",),
        "an error rate that all cells share makes roots avoid all of them",
    ),
    Mutant(
        "quiet-cells-never-trusted-again",
        AVERSION,
        "            memory[j, TRUST] *= setting[DOUBT]\n",
        "            memory[j, TRUST] *= 1.0\n",
        (f"{OF_AVERSION}the_error_rate_of_a_quiet_cell_is_doubted",),
        "a cell once avoided is avoided for ever",
    ),
    Mutant(
        "aversion-jumps",
        AVERSION,
        "aversion[j] += setting[RISE] * (target - aversion[j])",
        "aversion[j] = target",
        (f"{OF_AVERSION}aversion_rises_by_half_of_the_way_to_its_target",),
        "aversion rises at once",
    ),
    Mutant(
        "silence-without-journey",
        AVERSION,
        "held_time[j, HELD_EMITTED_S] - 0.5 * rtt_s[j] > setting[SILENCE_S]",
        "held_time[j, HELD_EMITTED_S] > setting[SILENCE_S]",
        (f"{OF_AVERSION}a_silent_cell_is_avoided_whatever_it_said_last",),
        "far cells count as silent",
    ),
    Mutant(
        "averted-mass-to-averted-cells",
        AVERSION,
        "weights[k] += averted * base[k] * (1.0 - aversion[k]) / others",
        "weights[k] += averted * base[k] / others",
        (f"{OF_AVERSION}averted_mass_goes_to_the_rows_other_cells_in_proportion",),
        "a routing row no longer adds up to 1",
    ),
    Mutant(
        "aversion-inverted",
        CHOOSING,
        "key, draw) >= rate)",
        "key, draw) < rate)",
        (
            f"{OF_AVERSION}scores_go_through_the_cells_in_their_order",
            f"{OF_AVERSION}where_no_cell_is_accepted_the_least_averted_arc_is_taken",
        ),
        "roots accept a cell as often as they should refuse it",
    ),
    Mutant(
        "rendezvous-by-inverse-weight",
        AFFINITY,
        "session_hash, j)) / weights[j]",
        "session_hash, j)) * weights[j]",
        (f"{OF_AFFINITY}rendezvous_shares_by_weight_and_moves_only_what_it_must",),
        "small cells get the sessions",
    ),
    Mutant(
        "deletion-breaks-a-run",
        AFFINITY,
        "if ((k - start) & mask) >= ((k - hole) & mask):",
        "if ((k - start) & mask) > ((k - hole) & mask):",
        (*CACHE, f"{OF_AFFINITY}sessions_whose_places_collide_survive_each_others_deletion"),
        "sessions are lost when another one is forgotten",
    ),
    Mutant(
        "the-newest-makes-room",
        AFFINITY,
        "        _drop(cache, int(cache.lists[s, OLDEST]))\n\n\n@part\ndef drop_server",
        "        _drop(cache, int(cache.lists[s, NEWEST]))\n\n\n@part\ndef drop_server",
        CACHE,
        "a full server forgets what it has just learned",
    ),
    Mutant(
        "contexts-shrink",
        AFFINITY,
        "            kept = max(kept, cache.entries[e, ENTRY_TOKENS])\n",
        "            kept = min(kept, cache.entries[e, ENTRY_TOKENS])\n",
        CACHE,
        "a longer context of a session is not kept",
    ),
    Mutant(
        "map-forgets-the-newest",
        AFFINITY,
        "homes[k, MAP_HOME] >> CELL_BITS < homes[place, MAP_HOME]",
        "homes[k, MAP_HOME] >> CELL_BITS > homes[place, MAP_HOME]",
        MAP,
        "a root forgets the session that it learned last",
    ),
    Mutant(
        "another-replicas-map-is-lost",
        AFFINITY,
        "homes[k, MAP_HASH] % replicas == replica:",
        "homes[k, MAP_HASH] % replicas != replica:",
        MAP,
        "a crashed root replica takes its peers' memory along",
    ),
    Mutant(
        "home-in-spite-of-the-way",
        ROOTS,
        "latency_s + extras.rtt_s[r, i, j]",
        "latency_s",
        (f"{OF_ROUTING}a_session_stays_while_the_prefill_saved_outweighs_the_way",),
        "conditional affinity ignores the network",
    ),
    Mutant(
        "prefixes-worth-nothing",
        CHOOSING,
        "memory[here, LATENCY_S] - memory[here, HIT_RATE] * prefix_s",
        "memory[here, LATENCY_S]",
        (f"{OF_ROUTING}a_session_stays_while_the_prefill_saved_outweighs_the_way",),
        "sessions leave home for any shorter queue",
    ),
    Mutant(
        "misses-away-count-at-home",
        ANSWERS,
        "more[PREFIX_TOKENS] > 0.0 and before == j:",
        "more[PREFIX_TOKENS] > 0.0:",
        (f"{OF_ROUTING}what_misses_away_from_home_says_nothing_about_home",),
        "a cell's share of hits falls when sessions move there",
    ),
    Mutant(
        "hit-memory-doubled",
        ANSWERS,
        "HIT_MEMORY = 0.05",
        "HIT_MEMORY = 0.1",
        (f"{OF_ROUTING}a_miss_at_home_lowers_what_a_prefix_is_worth",),
        "roots believe the last prefix twice as much",
    ),
    Mutant(
        "server-affinity-at-any-price",
        PLACING,
        "seen_tokens(now_s, r, c, leaf, keeper, state, extras) - cached",
        "seen_tokens(now_s, r, c, leaf, keeper, state, extras) - 2 * cached",
        (f"{OF_ROUTING}a_turn_leaves_a_server_with_more_work_than_its_prefix_saves",),
        "a prefix counts twice against a queue",
    ),
    Mutant(
        "hits-beyond-the-prefix",
        PLACING,
        "cached = min(int(more[PREFIX_TOKENS]), int(cache.entries[entry, ENTRY_TOKENS]))",
        "cached = int(cache.entries[entry, ENTRY_TOKENS])",
        (f"{OF_ROUTING}no_more_hits_than_was_said_before",),
        "a turn saves more than it shares with the turns before",
    ),
    Mutant(
        "reuse-by-the-other-formula",
        PREQUAL,
        "(1.0 + delta) / kept",
        "1.0 + delta / kept",
        (f"{OF_PREQUAL}a_probe_is_good_for_as_many_requests_as_the_paper_says",),
        "Prequal's probes decide more often than its formula says",
    ),
    Mutant(
        "own-request-not-probed",
        PREQUAL,
        "            rif += 1\n",
        "            rif += 0\n",
        (f"{OF_PREQUAL}probes_serve_from_the_next_request_on_while_they_are_fresh",),
        "Prequal's probes do not count the request that they go with",
    ),
    Mutant(
        "exploits-at-a-tie",
        LEAF_RULES,
        "cached > state.request[r, slot, PROMPT_TOKENS] - cached",
        "cached >= state.request[r, slot, PROMPT_TOKENS] - cached",
        (f"{OF_LEAVES}preble_exploits_where_more_is_cached_than_is_not",),
        "Preble goes to the keeper where half of a prompt is cached",
    ),
    Mutant(
        "window-never-moves",
        LEAF_MEMORY,
        "        window[WINDOW_TOTAL] -= window[place]\n",
        "",
        (f"{OF_LEAVES}vllm_counts_requests_within_its_window",),
        "requests count for ever",
    ),
    Mutant(
        "even-loads-by-ratio-alone",
        LEAF_RULES,
        "if highest - lowest > setting[GAP] and highest > setting[FACTOR] * lowest:",
        "if highest > setting[FACTOR] * lowest:",
        (f"{OF_LEAVES}sglang_goes_where_more_than_its_share_is_cached",),
        "SGLang's rule takes any difference for an imbalance",
    ),
    Mutant(
        "black-hole-of-half-the-share",
        PLACING,
        "        if u < fraction:",
        "        if u < 0.5 * fraction:",
        (f"{OF_FAULTS}a_black_hole_fails_its_share_at_once",),
        "half of the failing requests are served",
    ),
    Mutant(
        "latency-shift-ends-late",
        FAULTS,
        "window[w, WINDOW_START_S] <= now_s < window[w, WINDOW_END_S]",
        "window[w, WINDOW_START_S] <= now_s",
        JOURNEYS,
        "a longer way stays longer",
    ),
    Mutant(
        "cut-only-at-the-start",
        FAULTS,
        "meets = window[w, WINDOW_START_S] <= to_s and",
        "meets = window[w, WINDOW_START_S] <= from_s and",
        CUT,
        "what is under way when an arc is cut arrives",
    ),
    Mutant(
        "answers-overtake",
        ANSWERS,
        "return float(max(direct_s, extras.arc[r, i, j, LAST_ANSWER_S]))",
        "return float(direct_s)",
        (f"{OF_FAULTS}an_answer_waits_for_those_that_left_before_it",),
        "an answer overtakes one that left before it",
    ),
    Mutant(
        "slow-cell-keeps-its-pace",
        FAULTS,
        "request[slot, DONE_S] = now_s + (request[slot, DONE_S] - now_s) * ratio",
        "request[slot, DONE_S] = now_s + (request[slot, DONE_S] - now_s)",
        (f"{OF_FAULTS}a_request_in_service_takes_the_rest_of_its_time_at_the_cells_new_speed",),
        "what runs when a cell slows down ends as planned",
    ),
    Mutant(
        "slow-cell-starts-as-planned",
        FAULTS,
        "server_free[s, k] = now_s + (server_free[s, k] - now_s) * ratio",
        "server_free[s, k] = server_free[s, k]",
        (f"{OF_FAULTS}who_waits_at_a_slow_cell_starts_when_those_before_are_through",),
        "who comes to a slow cell starts before those ahead are through",
    ),
    Mutant(
        "speed-inverted",
        CHANGES,
        "speed / change[SPEED],",
        "change[SPEED] / speed,",
        (f"{OF_FAULTS}a_request_in_service_takes_the_rest_of_its_time_at_the_cells_new_speed",),
        "a slow cell is fast",
    ),
    Mutant(
        "crash-spares-a-server",
        FAULTS,
        "if request[slot, SERVER] >= live:",
        "if request[slot, SERVER] > live:",
        CRASH,
        "a crashed server finishes what it has",
    ),
    Mutant(
        "crash-keeps-the-cache",
        CHANGES,
        "        drop_server(cache, s)\n",
        "",
        (f"{OF_ROUTING}a_crash_takes_the_cache_with_it",),
        "prefixes survive the crash of their server",
    ),
    Mutant(
        "dead-at-the-crash",
        FAULTS,
        "probe_interval_s) - tau_s + timeout_s",
        "probe_interval_s) - tau_s",
        (f"{OF_FAULTS}requests_to_a_dead_replica_fail_until_the_probe_timeout_and_again_never",),
        "roots know of a crash before a probe has timed out",
    ),
    Mutant(
        "alive-before-its-report",
        FAULTS,
        "return now_s < _first_turn_s(down[UP_S], leaf, leaves, probe_interval_s) + tau_s",
        "return now_s < down[UP_S]",
        (f"{OF_FAULTS}a_root_sends_to_a_replica_again_after_its_first_report",),
        "roots know of a recovery without a report",
    ),
    Mutant(
        "one-root-replica-too-many",
        ANSWERS,
        "% extras.flag[r, ROOT_REPLICAS] < down[DOWN_REPLICAS]:",
        "% extras.flag[r, ROOT_REPLICAS] <= down[DOWN_REPLICAS]:",
        (f"{OF_FAULTS}what_crashed_root_replicas_had_under_way_becomes_an_error",),
        "requests of a replica that is up are lost in a root's crash",
    ),
    Mutant(
        "late-error-lost",
        ANSWERS,
        "        extras.row[r, LATE_ERRORS] += 1\n",
        "",
        (f"{OF_FAULTS}an_error_on_the_way_back_is_charged_when_it_comes",),
        "an error on the way back costs no reward",
    ),
    Mutant(
        "patience-without-end",
        f"{ENGINE}cells.py",
        "server_free[s, 0] - now_s > extras.setting[r, MAX_WAIT_S]",
        "server_free[s, 1] - now_s > extras.setting[r, MAX_WAIT_S]",
        (f"{OF_FAULTS}clients_give_up_when_their_prefill_would_start_too_late",),
        "clients give up by the decode queue",
    ),
    Mutant(
        "one-retry-more",
        ANSWERS,
        "if more[TRIES] < extras.flag[r, ATTEMPTS] and",
        "if more[TRIES] <= extras.flag[r, ATTEMPTS] and",
        (f"{OF_FAULTS}a_request_is_sent_again_at_most_so_often",),
        "clients try once more than they may",
    ),
    Mutant(
        "retries-without-budget",
        ANSWERS,
        "    extras.budget[r, i] -= 1.0\n",
        "",
        (f"{OF_FAULTS}retries_stay_within_the_budget",),
        "retries cost nothing of their budget",
    ),
    Mutant(
        "retried-errors-are-final",
        f"{ENGINE}advance.py",
        "state.row[r, REJECTED] = extras.row[r, FINAL_ERRORS]",
        "state.row[r, REJECTED] += extras.row[r, FINAL_ERRORS]",
        (f"{OF_FAULTS}a_reward_counts_the_errors_that_are_final",),
        "an error that is tried again costs reward",
    ),
    Mutant(
        "dead-root-remembers",
        ROOTS,
        "for replica in range(int(down[DOWN_REPLICAS])):",
        "for replica in range(int(down[DOWN_REPLICAS]) - 1):",
        (f"{OF_ROUTING}a_crashed_root_replica_forgets_the_sessions_whose_hashes_were_its",),
        "a crashed root replica still knows its sessions",
    ),
    Mutant(
        "draws-without-root",
        HASHING,
        "    h = _absorb(h, (b >> 32) & _WORD)\n",
        "    h = _absorb(h, 0)\n",
        ("tests/test_hashing.py::test_counting_gives_uniform_numbers",),
        "requests of different roots share their random numbers",
    ),
    Mutant(
        "weak-hash",
        HASHING,
        "    x = ((x ^ (x >> 16)) * _FIRST) & _WORD\n",
        "",
        ("tests/test_hashing.py::test_draws_that_follow_one_another_are_independent",),
        "draws that follow one another are correlated",
    ),
)
