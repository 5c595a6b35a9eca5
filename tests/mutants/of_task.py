"""Faults in what a learner sees and earns, and when its episodes end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "dlb_gym/"
ACCOUNTS = f"{PACKAGE}accounts.py"
MEASUREMENTS = f"{PACKAGE}measurements.py"
REWARD = f"{PACKAGE}reward.py"
SIMULATOR = f"{PACKAGE}simulator.py"
TASK = f"{PACKAGE}task.py"
OF_INFORMATION = "tests/test_information.py::test_"
OF_SIMULATOR = "tests/test_simulator.py::test_"
OF_REWARD = "tests/test_reward.py::test_"
OF_TASK = "tests/test_task.py::test_"
OF_ENVS = "tests/test_envs.py::test_"
OF_BATCH = "tests/test_vector_env.py::test_"
NEWS = (
    f"{OF_INFORMATION}an_outage_is_known_to_a_root_exactly_when_the_first_report_of_it_arrives",
)
SHIPPED = (
    f"{OF_SIMULATOR}a_shipped_scenario_runs_request_by_request_as_in_the_reference"
    "[global_six-sample]",
)
BOOKS = (f"{OF_SIMULATOR}at_120_percent_the_books_are_a_count_of_the_log_at_every_step",)
NEXT_STEP = (
    f"{OF_BATCH}next_step_returns_the_last_observation_and_then_resets_whatever_the_action",
)
LIMITS = (f"{OF_ENVS}the_smaller_of_limit_and_horizon_truncates_once",)
WARM = (f"{OF_TASK}a_warm_start_has_served_warmup_seconds_under_the_capacity_split",)

MUTANTS = (
    Mutant(
        "truth-in-the-view",
        SIMULATOR,
        "rif=state.held[..., layout.HELD_RIF],",
        "rif=np.broadcast_to(state.cell[:, None, :, layout.RIF], state.held.shape[:3]),",
        (f"{OF_INFORMATION}a_far_roots_burst_reaches_a_root_through_the_cells_it_loads", *SHIPPED),
        "roots know every cell's RIF without delay",
    ),
    Mutant(
        "live-servers-in-the-view",
        SIMULATOR,
        "servers=state.held[..., layout.HELD_SERVERS],",
        "servers=np.broadcast_to(state.cell[:, None, :, layout.LIVE], state.held.shape[:3]),",
        NEWS,
        "roots know of an outage when it happens",
    ),
    Mutant(
        "received-counts-in-the-view",
        SIMULATOR,
        "received=state.held[..., layout.HELD_RECEIVED],",
        "received=state.received.swapaxes(1, 2),",
        SHIPPED,
        "UNSEEN knows what has reached a cell without a report",
    ),
    Mutant(
        "age-since-arrival",
        SIMULATOR,
        "probe_age_s=self.time_s[:, None, None] - emitted_s)",
        "probe_age_s=self.time_s[:, None, None] - emitted_s - 0.5 * self._rtt_s)",
        SHIPPED,
        "a probe is as old as it has been at the root",
    ),
    Mutant(
        "round-trip-of-one-way",
        SIMULATOR,
        "self._rtt_s[r] = 2.0 * np.where(",
        "self._rtt_s[r] = 1.0 * np.where(",
        (
            "tests/test_observation.py::test_the_fields_of_a_running_environment_add_up",
            "tests/test_information.py::test_a_static_policy_never_learns_of_it",
        ),
        "the observed round trip is the way there",
    ),
    Mutant(
        "every-other-chunk-skipped",
        SIMULATOR,
        "self._drawn_s[r] = CHUNK_S * (index + 1)",
        "self._drawn_s[r] = CHUNK_S * (index + 2)",
        (f"{OF_SIMULATOR}the_log_holds_a_request_once_and_its_times_in_order",),
        "nothing arrives in every second chunk",
    ),
    Mutant(
        "buffered-arrivals-lost",
        SIMULATOR,
        "        self._arrivals.stop[r, i] = needed\n",
        "        self._arrivals.stop[r, i] = len(requests)\n",
        (f"{OF_SIMULATOR}the_log_holds_a_request_once_and_its_times_in_order",),
        "requests drawn and not yet sent are lost where a chunk begins",
    ),
    Mutant(
        "rejections-are-no-responses",
        ACCOUNTS,
        "to_roots=received - rif - gone,",
        "to_roots=received - rif - gone - row[:, layout.REJECTED],",
        BOOKS,
        "errors on their way back are in no account",
    ),
    Mutant(
        "quantile-of-the-bin-before",
        MEASUREMENTS,
        "inside = (ranks - running[bins]) / histogram[bins]",
        "inside = 0.0 * (ranks - running[bins]) / histogram[bins]",
        (f"{OF_TASK}quantiles_are_linear_within_a_bin_by_hand",),
        "quantiles are the lower edges of their bins",
    ),
    Mutant(
        "tail-of-the-fastest",
        MEASUREMENTS,
        "np.flatnonzero(histogram.any(axis=0))[::-1]",
        "np.flatnonzero(histogram.any(axis=0))",
        (f"{OF_REWARD}the_slowest_share_by_hand",),
        "the tail reward looks at the fastest answers",
    ),
    Mutant(
        "slo-by-whole-bins",
        MEASUREMENTS,
        "return np.asarray(below + part * histogram[:, index])",
        "return np.asarray(below + histogram[:, index])",
        (f"{OF_REWARD}latencies_within_a_limit_by_hand",),
        "answers slower than the SLO are within it",
    ),
    Mutant(
        "errors-are-rewarded",
        REWARD,
        "return -facts.error_penalty * errors_rps / facts.rate_rps",
        "return facts.error_penalty * errors_rps / facts.rate_rps",
        (f"{OF_REWARD}latency_and_ttft_by_hand",),
        "refusing requests pays",
    ),
    Mutant(
        "latency-reward-without-its-unit",
        REWARD,
        'return {\n        "in_system": -in_system / (facts.rate_rps * facts.zero_load_time_s),',
        'return {\n        "in_system": -in_system / facts.rate_rps,',
        (f"{OF_REWARD}latency_and_ttft_by_hand",),
        "rewards are in seconds",
    ),
    Mutant(
        "tail-of-another-share",
        REWARD,
        "return slowest_sum_s(histogram, self._share) / self._share",
        "return slowest_sum_s(histogram, self._share)",
        (f"{OF_REWARD}the_tail_by_hand",),
        "the tail's weight falls with its share",
    ),
    Mutant(
        "reward-remembers-the-episode-before",
        REWARD,
        "        self._before[row] = 0.0\n",
        "        self._before[row] += 0.0\n",
        (
            f"{OF_REWARD}the_tail_by_hand",
            f"{OF_REWARD}an_episode_broken_off_leaves_nothing_to_the_next",
        ),
        "an episode pays for the one before",
    ),
    Mutant(
        "goodput-charges-errors-too",
        REWARD,
        'return {"goodput": per_s / facts.rate_rps}',
        'return {"goodput": per_s / facts.rate_rps, "errors": _errors(facts, simulator.truth())}',
        (f"{OF_REWARD}the_goodput_by_hand",),
        "an error is charged twice",
    ),
    Mutant(
        "episode-one-step-longer",
        TASK,
        "reward, self.simulator.step >= self._end_step, terms)",
        "reward, self.simulator.step > self._end_step, terms)",
        LIMITS,
        "truncation comes a step late",
    ),
    Mutant(
        "limit-counts-warm-up",
        TASK,
        "self._end_step[r] = scenario.intervals(scenario.warmup_s) + steps",
        "self._end_step[r] = steps",
        LIMITS,
        "warm-up is part of the horizon",
    ),
    Mutant(
        "limit-ignored",
        TASK,
        "            steps = min(steps, self._max_episode_steps)\n",
        "            steps = max(steps, self._max_episode_steps)\n",
        LIMITS,
        "max_episode_steps does not end an episode",
    ),
    Mutant(
        "cold-start",
        TASK,
        "                target[r] = scenario.intervals(scenario.warmup_s)\n",
        "                target[r] = 0\n",
        WARM,
        "episodes start empty",
    ),
    Mutant(
        "warm-up-under-the-last-policy",
        TASK,
        "        self.simulator.set_routing(split, self._dispatch)\n        target",
        "        target",
        WARM,
        "warm-up is served by the decision in force before",
    ),
    Mutant(
        "episodes-repeat",
        TASK,
        "        self.episodes[r] += 1\n",
        "        self.episodes[r] = 0\n",
        (f"{OF_ENVS}an_unseeded_reset_after_a_seed_is_its_next_episode",),
        "every episode of a seed is its first",
    ),
    Mutant(
        "seed-does-not-start-anew",
        TASK,
        "        self.episodes[chosen] = -1\n",
        "",
        (f"{OF_ENVS}a_seed_gives_the_same_first_observation_whatever_came_before",),
        "what a seed gives depends on what came before",
    ),
    Mutant(
        "waiting-rows-earn",
        TASK,
        "terms = {name: np.where(rows, term, 0.0) for name, term in terms.items()}",
        "terms = dict(terms)",
        NEXT_STEP,
        "a row that waits for its reset gets a reward",
    ),
    Mutant(
        "waiting-rows-move",
        TASK,
        "moves = 1 if rows is None else rows.astype(np.int64)",
        "moves = 1",
        (
            "tests/parity/test_mechanisms.py::"
            "test_a_neighbour_that_starts_in_mid_episode_changes_nothing[None]",
        ),
        "rows that should wait for others move on",
    ),
    Mutant(
        "drain-for-cells-alone",
        TASK,
        "unfinished = books.arrived - books.answered - books.errors > 0",
        "unfinished = books.rif > 0",
        (f"{OF_TASK}draining_waits_for_requests_that_are_all_on_their_way",),
        "what is on its way is not waited for",
    ),
    Mutant(
        "utilisation-of-all-servers",
        SIMULATOR,
        "start_s, end_s = clock[layout.MEASURE_FROM_S], min(until_s, clock[layout.MEASURE_TO_S])",
        "start_s, end_s = 0.0, min(until_s, clock[layout.MEASURE_TO_S])",
        (
            f"{OF_TASK}utilisation_counts_the_servers_that_are_live",
            f"{OF_TASK}utilisation_is_080_in_expectation",
        ),
        "utilisation counts the capacity of warm-up",
    ),
)
