"""Faults in what reports tell: telemetry's replicas, and latency models fitted online."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ENGINE = "dlb_gym/engine/"
ESTIMATOR = f"{ENGINE}estimator.py"
FITTING = f"{ENGINE}fitting.py"
LEAVES = f"{ENGINE}leaves.py"
PLACING = f"{ENGINE}placing.py"
TELEMETRY = f"{ENGINE}telemetry.py"
OF_TELEMETRY = "tests/test_telemetry.py::test_"
OF_ESTIMATION = "tests/test_estimation.py::test_"
OF_ESTIMATOR = "tests/test_estimator.py::test_"
OF_FAULTS = "tests/test_faults.py::test_"
SEEN = (f"{OF_TELEMETRY}a_leaf_sees_the_servers_as_of_its_last_look_and_what_it_placed_since",)
GATHERED = (
    f"{OF_TELEMETRY}a_report_has_its_leafs_own_rif_now_and_its_peers_as_of_the_last_gathering",
)
SCIPYS = (f"{OF_ESTIMATOR}a_fit_is_scipys_on_the_same_bins",)
LEAFS_FIT = (f"{OF_ESTIMATION}the_leafs_fit_is_scipys_fit_of_the_request_log",)

MUTANTS = (
    Mutant(
        "probe-loss-inverted",
        TELEMETRY,
        "key, m) >= loss)",
        "key, m) < loss)",
        (f"{OF_TELEMETRY}losses_are_independent_and_have_the_share_of_the_configuration",),
        "the share of lost probes is that of those that arrive",
    ),
    Mutant(
        "probe-losses-of-one-draw",
        TELEMETRY,
        "extras.flag[r, SEED] + LOSS, key, m)",
        "extras.flag[r, SEED] + LOSS, 0, m)",
        (f"{OF_TELEMETRY}losses_are_independent_and_have_the_share_of_the_configuration",),
        "all arcs lose the same reports",
    ),
    Mutant(
        "turn-counts-before-its-end",
        TELEMETRY,
        "math.floor(now_s / turn_s + 1e-9)",
        "math.floor(now_s / turn_s + 0.5)",
        (f"{OF_TELEMETRY}a_turn_makes_the_age_of_a_report_a_sawtooth",),
        "roots know what a turn under way has found",
    ),
    Mutant(
        "report-without-journey",
        TELEMETRY,
        "    m = math.floor((by_s - tau_s) / probe_interval_s) + 1\n",
        "    tau_s = 0.0\n    m = math.floor((by_s - tau_s) / probe_interval_s) + 1\n",
        (f"{OF_TELEMETRY}without_turns_a_report_is_as_old_as_its_journey",),
        "reports arrive when they leave",
    ),
    Mutant(
        "dead-replica-reports",
        TELEMETRY,
        "report[LOST] = 1 if is_down(",
        "report[LOST] = 0 if is_down(",
        (f"{OF_FAULTS}reports_of_a_dead_replica_do_not_come",),
        "a crashed leaf replica goes on reporting, and others do not",
    ),
    Mutant(
        "model-faster-than-its-report",
        TELEMETRY,
        "more[REPORT_ROUND] % MODEL_ROUNDS",
        "extras.tally[r, j, ROUND] % MODEL_ROUNDS",
        (f"{OF_ESTIMATION}a_fit_reaches_a_root_with_the_first_report_after_it_and_not_before",),
        "roots know a fit before its report is there",
    ),
    Mutant(
        "prior-of-the-round-under-way",
        TELEMETRY,
        "        extras.fitted[r, before, :num_cells],\n",
        "        extras.fitted[r, here, :num_cells],\n",
        (f"{OF_ESTIMATION}a_cell_without_requests_keeps_what_the_fleet_expects", *LEAFS_FIT),
        "cells know of one another's fits without a journey",
    ),
    Mutant(
        "dither-bends-the-curve",
        TELEMETRY,
        "        model[1] *= factor\n",
        "",
        (f"{OF_ESTIMATION}dither_scales_what_is_published_and_nothing_that_is_learned",),
        "dither changes the shape of the published model",
    ),
    Mutant(
        "dither-is-learned",
        TELEMETRY,
        "        model[0] *= factor\n",
        "        model[0] *= factor\n        fitted[0] += math.log(factor)\n",
        (f"{OF_ESTIMATION}dither_scales_what_is_published_and_nothing_that_is_learned",),
        "dither adds up from fit to fit",
    ),
    Mutant(
        "dead-replica-fits",
        TELEMETRY,
        "if is_down(now_s, extras.leaf_down[r, c, number % extras.flag[r, LEAVES]]):",
        "if now_s < 0.0:",
        (f"{OF_ESTIMATION}replicas_take_turns_at_fitting_and_a_dead_ones_round_changes_nothing",),
        "a crashed replica goes on fitting",
    ),
    Mutant(
        "prompts-count-as-backlog-for-ever",
        TELEMETRY,
        "prompts = total - extras.tally[r, c, OUTPUT_BACKLOG]",
        "prompts = total",
        (f"{OF_TELEMETRY}backlogs_in_reports_are_the_cells_unfinished_tokens",),
        "the decode backlog is 0 and the prefill backlog everything",
    ),
    Mutant(
        "gathering-not-written-down",
        LEAVES,
        "    if own[GATHERED] != count[GATHERING]:\n        own[GATHERED]",
        "    if own[GATHERED] == count[GATHERING]:\n        own[GATHERED]",
        GATHERED,
        "copy on write of gatherings: peers know what came since",
    ),
    Mutant(
        "own-rif-as-of-the-gathering",
        LEAVES,
        "return int(leaf[number, LEAF_RIF] + peers_rif",
        "return int(_gathered_rif(number, leaf, count) + peers_rif",
        GATHERED,
        "a replica reports its own count as old as its peers'",
    ),
    Mutant(
        "look-not-written-down",
        LEAVES,
        "    if seen[SEEN_LOOK] != extras.tally[r, c, LOOK]:",
        "    if seen[SEEN_LOOK] < 0:",
        SEEN,
        "copy on write of looks: leaves go by the first look for ever",
    ),
    Mutant(
        "look-sees-what-came-later",
        f"{ENGINE}cells.py",
        "            keep_seen(r, c, s, state, extras)\n        settle_prefills(now_s",
        "            pass\n        settle_prefills(now_s",
        SEEN,
        "copy on write of looks: what is done since is seen",
    ),
    Mutant(
        "placings-never-forgotten",
        LEAVES,
        "        placed[PLACED_TOKENS] = 0\n",
        "",
        SEEN,
        "what a leaf placed counts again after every look",
    ),
    Mutant(
        "one-message-a-look",
        LEAVES,
        "+= 2 * extras.flag[r, LEAVES]",
        "+= extras.flag[r, LEAVES]",
        (f"{OF_TELEMETRY}messages_are_those_of_the_formula",),
        "answers to looks are no messages",
    ),
    Mutant(
        "orphans-known-at-once",
        LEAVES,
        "    count[ORPHANS_KNOWN] = 0\n",
        "    count[ORPHANS_KNOWN] = 1\n",
        (f"{OF_FAULTS}a_leaf_crash_takes_its_count_from_the_reports_until_the_next_gathering",),
        "reports never miss the requests of a crashed replica",
    ),
    Mutant(
        "linear-forgetting",
        ESTIMATOR,
        "    factor = math.exp(-elapsed_s / memory_s)",
        "    factor = max(0.0, 1.0 - elapsed_s / memory_s)",
        (f"{OF_ESTIMATOR}a_step_is_forgotten_as_e_to_the_minus_t_over_memory",),
        "samples fade too fast",
    ),
    Mutant(
        "weightless-samples",
        ESTIMATOR,
        "    bins[b, RIF_SUM] += weight * n\n",
        "    bins[b, RIF_SUM] += n\n",
        (f"{OF_ESTIMATOR}weights_do_not_depend_on_when_the_refits_were",),
        "a bin's mean RIF is not of the weights of its latencies",
    ),
    Mutant(
        "prior-without-pull",
        FITTING,
        "        gradient[k] += ridge * away\n",
        "",
        SCIPYS,
        "fits ignore the prior",
    ),
    Mutant(
        "wrong-jacobian",
        FITTING,
        "j2 = slack * (rise_s - j1)",
        "j2 = slack * (rise_s + j1)",
        SCIPYS,
        "fits end beside the minimum",
    ),
    Mutant(
        "wrong-hessian",
        FITTING,
        "-slack * qvv, -quv",
        "-slack * qvv, quv",
        SCIPYS,
        "fits take many more steps",
    ),
    Mutant(
        "steps-without-curvature",
        FITTING,
        "    curvature = 1.0\n",
        "    curvature = 0.0\n",
        (f"{OF_ESTIMATOR}a_fit_is_scipys_where_latency_falls_with_load",),
        "fits end beside the minimum where no curve fits",
    ),
    Mutant(
        "bounds-that-hold-for-ever",
        FITTING,
        "HIGHEST[k] and slope < 0.0)",
        "HIGHEST[k])",
        (f"{OF_ESTIMATOR}a_prior_on_the_constraint_gives_way_to_samples_of_an_earlier_knee",),
        "a parameter never leaves its upper bound",
    ),
    Mutant(
        "scatter-without-freedom-lost",
        ESTIMATOR,
        "freedom += max(weight - 1.0, 0.0)",
        "freedom += weight",
        SCIPYS,
        "the variance of samples is too small",
    ),
    Mutant(
        "constraint-of-another-model",
        FITTING,
        "RHO_MAX = 0.9 ",
        "RHO_MAX = 0.95 ",
        (f"{OF_ESTIMATOR}parameters_and_models_are_one_another", *SCIPYS),
        "fits may come nearer to the boundary than oracle models",
    ),
    Mutant(
        "every-cell-counts-in-the-prior",
        ESTIMATOR,
        "weight = samples[c] / (samples[c] + HALF_WEIGHT_SAMPLES)",
        "weight = 1.0",
        (f"{OF_ESTIMATOR}the_fleets_prior_is_a_mean_of_what_was_observed_and_first_believed",),
        "cells without samples vote on the fleet's prior",
    ),
    Mutant(
        "samples-from-the-client",
        PLACING,
        "            now_s - more[LEAF_S],\n",
        "            now_s - request[slot, ARRIVAL_S],\n",
        LEAFS_FIT,
        "the leaf's model includes the network",
    ),
    Mutant(
        "rif-that-includes-the-request",
        "dlb_gym/engine/cells.py",
        "RIF_THERE] = cell[c, RIF] / cell[c, LIVE]",
        "RIF_THERE] = (cell[c, RIF] + 1) / cell[c, LIVE]",
        LEAFS_FIT,
        "samples are of one request more",
    ),
)
