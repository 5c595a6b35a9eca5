"""Faults in what a simulation is given: requests, their times and tokens, disturbances, servers."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "dlb_gym/"
DISTURBANCES = f"{PACKAGE}disturbances.py"
PROFILE = f"{PACKAGE}demand_profile.py"
REPLAY = f"{PACKAGE}trace_replay.py"
SESSIONS = f"{PACKAGE}session_requests.py"
STREAMS = f"{PACKAGE}streams.py"
TOKENS = f"{PACKAGE}tokens.py"
WORKLOAD = f"{PACKAGE}workload.py"
OF_WORKLOAD = "tests/test_workload.py::test_"
OF_STREAMS = ("tests/test_streams.py",)
OF_TOKENS = ("tests/test_tokens.py",)
OF_SESSIONS = "tests/test_sessions.py::test_"
OF_REPLAY = "tests/test_trace_replay.py::test_"
OF_PROFILE = ("tests/test_demand_profile.py",)
OF_DISTURBANCES = ("tests/test_disturbances.py",)

MUTANTS = (
    Mutant(
        "seed-shared-by-roots",
        WORKLOAD,
        "Stream.REQUESTS, root, index)",
        "Stream.REQUESTS, 0, index)",
        (f"{OF_WORKLOAD}equal_roots_draw_requests_of_their_own",),
        "all roots draw the same requests",
    ),
    Mutant(
        "seed-shared-by-chunks",
        WORKLOAD,
        "Stream.REQUESTS, root, index)",
        "Stream.REQUESTS, root, 0)",
        (f"{OF_WORKLOAD}arrivals_are_poisson_with_each_roots_share_of_the_offered_rate",),
        "requests repeat every ten seconds",
    ),
    Mutant(
        "seed-shared-by-episodes",
        WORKLOAD,
        "self._key = (seed, episode)",
        "self._key = (seed, 0)",
        (f"{OF_WORKLOAD}a_chunk_depends_on_its_key_alone",),
        "every episode of a seed has the same requests",
    ),
    Mutant(
        "seed-shared-by-bursts",
        WORKLOAD,
        "Stream.BURST_REQUESTS, number, burst.root, index)",
        "Stream.BURST_REQUESTS, 0, burst.root, index)",
        (f"{OF_WORKLOAD}two_bursts_at_one_root_are_different_requests",),
        "two bursts at a root bring the same requests twice",
    ),
    Mutant(
        "burst-for-whole-chunks",
        WORKLOAD,
        "start_s = max(burst.start_s, CHUNK_S * index)",
        "start_s = CHUNK_S * index",
        (f"{OF_WORKLOAD}a_burst_adds_its_own_requests_and_leaves_the_others_as_they_were",),
        "a burst begins with the chunk in which it begins",
    ),
    Mutant(
        "uniforms-of-leaf-and-route-are-one",
        WORKLOAD,
        "requests[:, 3:] = rng.random((arrival_s.size, 2))",
        "requests[:, 3:] = rng.random((arrival_s.size, 1))",
        (f"{OF_WORKLOAD}uniforms_are_uniform_and_independent",),
        "the choice of the server follows from that of the cell",
    ),
    Mutant(
        "arrivals-without-variance",
        f"{PACKAGE}arrivals.py",
        "rng.random(int(rng.poisson(total)))",
        "rng.random(int(total + 0.5))",
        (f"{OF_WORKLOAD}arrivals_are_poisson_with_each_roots_share_of_the_offered_rate",),
        "the number of arrivals in a chunk is no Poisson number",
    ),
    Mutant(
        "thinning-forgotten",
        f"{PACKAGE}arrivals.py",
        "arrival_s = np.interp(arrival_s * total, expected, grid_s)",
        "arrival_s = grid_s[0] + arrival_s * (grid_s[-1] - grid_s[0])",
        (f"{OF_WORKLOAD}a_varying_rate_is_followed_in_time",),
        "a varying rate is constant within a chunk",
    ),
    Mutant(
        "stream-ids-ignored",
        STREAMS,
        "    key = (episode, stream, *ids)\n",
        "    key = (episode, stream, *ids[:1])\n",
        OF_STREAMS,
        "streams that differ in a later id are one",
    ),
    Mutant(
        "tokens-rounded-down",
        TOKENS,
        "    tokens += 0.5\n",
        "",
        OF_TOKENS,
        "requests have half a token too few",
    ),
    Mutant(
        "tokens-shifted-twice",
        TOKENS,
        "tokens *= (distribution.mean_tokens - loc) / distribution.shape",
        "tokens *= distribution.mean_tokens / distribution.shape",
        OF_TOKENS,
        "the mean number of tokens is too large",
    ),
    Mutant(
        "recorded-tokens-torn-apart",
        TOKENS,
        "self._trace.prompt_tokens[row], self._trace.output_tokens[row]",
        "self._trace.prompt_tokens[row], self._trace.output_tokens[row[::-1]]",
        OF_TOKENS,
        "prompt and output of a recorded request come from different ones",
    ),
    Mutant(
        "context-without-outputs",
        SESSIONS,
        "context = _sums_before(new + output, turns)\n        first_id",
        "context = _sums_before(new, turns)\n        first_id",
        (f"{OF_SESSIONS}a_prompt_is_all_that_was_said_before_and_something_new",),
        "answers are no part of a session's context",
    ),
    Mutant(
        "sessions-start-too-often",
        SESSIONS,
        "self._starts_per_s = rate_rps / turn_moments(sessions).turns",
        "self._starts_per_s = rate_rps / sessions.mean_turns",
        (f"{OF_SESSIONS}session_starts_follow_the_profile_and_later_turns_follow_them",),
        "sessions with hot ones among them exceed the offered rate",
    ),
    Mutant(
        "no-sessions-before-clock-0",
        SESSIONS,
        "needed = range(index - self._reach, index + 1)",
        "needed = range(max(0, index - self._reach), index + 1)",
        (f"{OF_SESSIONS}requests_keep_the_offered_rate_and_come_as_often_at_clock_0_as_later",),
        "at clock 0 no session is under way",
    ),
    Mutant(
        "session-ids-of-all-roots",
        SESSIONS,
        "(chunk + self._reach) * self._num_roots + self._root)",
        "(chunk + self._reach) * self._num_roots)",
        (f"{OF_SESSIONS}uniforms_are_uniform_and_ids_exact_and_of_one_root",),
        "sessions of different roots share their ids",
    ),
    Mutant(
        "gaps-without-their-least",
        SESSIONS,
        "        gap_s += sessions.least_gap_s\n",
        "",
        (f"{OF_SESSIONS}gaps_are_the_least_and_an_exponential_and_no_session_is_too_long",),
        "a turn follows sooner than anyone reads",
    ),
    Mutant(
        "laps-drift",
        REPLAY,
        "trace.time_s * ((count - 1) / rate_rps / recorded_s)",
        "trace.time_s * (count / rate_rps / recorded_s)",
        (f"{OF_REPLAY}a_replay_runs_around_the_trace_in_file_order_from_a_random_row",),
        "a trace has no gap between its laps",
    ),
    Mutant(
        "replay-starts-at-its-start",
        REPLAY,
        "self._offset_s = float(self._lap_s * start)",
        "self._offset_s = float(0.0 * start)",
        (f"{OF_REPLAY}the_offset_comes_from_seed_and_episode_and_is_uniform",),
        "every episode replays the same part of a trace",
    ),
    Mutant(
        "replay-ignores-shares",
        REPLAY,
        "self._bounds = np.cumsum(shares)",
        "self._bounds = np.cumsum(np.full_like(shares, 1.0 / len(shares)))",
        (f"{OF_REPLAY}roots_are_drawn_by_their_shares_and_none_without_demand",),
        "all roots get equal parts of a trace",
    ),
    Mutant(
        "sessions-of-all-laps-are-one",
        REPLAY,
        "own = lap * (trace.session.max() + 1.0) + session",
        "own = 1.0 * session",
        ("tests/test_trace_sessions.py::test_every_lap_has_sessions_of_its_own",),
        "the next lap of a trace finds its prefixes cached",
    ),
    Mutant(
        "night-and-day-reversed",
        PROFILE,
        "phase = turn * (grid_s + self._local_s - peak_s)",
        "phase = turn * (grid_s - self._local_s - peak_s)",
        OF_PROFILE,
        "the daily peak is at the wrong hour",
    ),
    Mutant(
        "weekend-without-balance",
        PROFILE,
        "            factor *= 1 / mean\n",
        "",
        OF_PROFILE,
        "a week's mean rate is not the nominal one",
    ),
    Mutant(
        "pulses-add-load",
        PROFILE,
        "np.full(time_s.size, 1 - fraction)",
        "np.full(time_s.size, 1.0)",
        OF_PROFILE,
        "synchronised starts come on top of the demand",
    ),
    Mutant(
        "burst-of-the-whole-load",
        DISTURBANCES,
        "(burst.to_utilisation - utilisation) * sum(",
        "burst.to_utilisation * sum(",
        OF_DISTURBANCES,
        "a burst adds the utilisation that it should lift to",
    ),
    Mutant(
        "disturbances-in-warm-up",
        DISTURBANCES,
        "origin_s = scenario.warmup_s + scenario.settle_s",
        "origin_s = scenario.warmup_s",
        (*OF_DISTURBANCES, "tests/test_scenario_source.py"),
        "disturbances do not wait for settling",
    ),
    Mutant(
        "one-cell-too-many-fails",
        DISTURBANCES,
        "        if offered_rps / sum(live_rps) > outage.to_utilisation:",
        "        if offered_rps / sum(live_rps) > 1.05 * outage.to_utilisation:",
        OF_DISTURBANCES,
        "an outage takes more cells than its utilisation needs",
    ),
    Mutant(
        "overlap-takes-the-mildest",
        DISTURBANCES,
        "live=min([servers, *(_servers_left",
        "live=max([1, *(_servers_left",
        OF_DISTURBANCES,
        "where outages overlap the larger number of servers counts",
    ),
    Mutant(
        "neighbours-asymmetric",
        f"{PACKAGE}generator.py",
        "drawn[min(i, j)][max(i, j)]",
        "drawn[i][j]",
        ("tests/test_generator.py",),
        "round trips of a family differ by direction",
    ),
    Mutant(
        "spread-with-bias",
        f"{PACKAGE}generator.py",
        "rng.normal(-(TOKEN_TIME_SIGMA**2) / 2, TOKEN_TIME_SIGMA,",
        "rng.normal(TOKEN_TIME_SIGMA**2 / 2, TOKEN_TIME_SIGMA,",
        ("tests/test_generator.py",),
        "drawn cells are slower than the defaults on average",
    ),
    Mutant(
        "servers-at-once",
        f"{PACKAGE}autoscaler.py",
        "max(now_s + self._rule.delay_s, soon_s), target",
        "soon_s, target",
        ("tests/test_autoscaler.py::test_servers_follow_utilisation_after_their_delay",),
        "ordered servers serve without delay",
    ),
    Mutant(
        "cap-by-number",
        f"{PACKAGE}autoscaler.py",
        'for j in np.argsort(-want, kind="stable"):',
        'for j in np.argsort(want, kind="stable"):',
        ("tests/test_autoscaler.py::test_the_cap_goes_to_the_largest_relative_want_first",),
        "the cell that needs servers most gets them last",
    ),
    Mutant(
        "scaling-by-all-requests-so-far",
        f"{PACKAGE}autoscaler.py",
        "        self._received = received\n",
        "",
        ("tests/test_autoscaler.py::test_servers_follow_utilisation_after_their_delay",),
        "utilisation counts the requests since clock 0",
    ),
)
