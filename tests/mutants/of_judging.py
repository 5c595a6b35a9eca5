"""Faults in the faces of the task and in how policies are judged."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PACKAGE = "dlb_gym/"
COMPARISON = f"{PACKAGE}comparison.py"
ENVS = f"{PACKAGE}envs.py"
EVALUATION = f"{PACKAGE}evaluation.py"
PETTINGZOO = f"{PACKAGE}pettingzoo.py"
RUNS = f"{PACKAGE}runs.py"
SB3 = f"{PACKAGE}sb3.py"
TIMELINE = f"{PACKAGE}timeline.py"
OF_ENVS = "tests/test_envs.py::test_"
OF_BATCH = "tests/test_vector_env.py::test_"
OF_AGENTS = "tests/test_pettingzoo.py::test_"
OF_SB3 = "tests/test_sb3.py::test_"
OF_EVALUATION = "tests/test_evaluation.py::test_"
OF_COMPARISON = (
    "tests/test_comparison.py::test_differences_and_ratios_are_those_of_pairs",
    "tests/test_comparison.py::test_intervals_are_those_of_scipy",
)
SAME_STEP = (
    f"{OF_BATCH}same_step_resets_at_once_and_keeps_the_final_observation_and_info",
    f"{OF_BATCH}same_step_tells_rows_that_end_from_rows_that_go_on",
)
NEXT_STEP = (
    f"{OF_BATCH}next_step_returns_the_last_observation_and_then_resets_whatever_the_action",
)
ENDINGS = (f"{OF_SB3}the_horizon_is_a_time_limit_with_the_last_observation_and_the_episodes_sums",)
LIMITS = (f"{OF_ENVS}the_smaller_of_limit_and_horizon_truncates_once",)
DIGESTS = (f"{OF_EVALUATION}whatever_decides_a_result_changes_its_digest",)

MUTANTS = (
    Mutant(
        "horizon-terminates",
        ENVS,
        "return step.observation[0], float(step.reward[0]), False, truncated, info",
        "return step.observation[0], float(step.reward[0]), truncated, False, info",
        LIMITS,
        "values are not bootstrapped at the horizon",
    ),
    Mutant(
        "final-observation-of-the-next-episode",
        ENVS,
        "                final_obs[r] = observation[r]\n",
        "                final_obs[r] = observation[0]\n",
        SAME_STEP,
        "SAME_STEP keeps another row's final observation",
    ),
    Mutant(
        "final-info-of-all-rows",
        ENVS,
        "step, truncated, _masked(step.reward_terms, truncated)\n",
        "step, truncated, step.reward_terms\n",
        SAME_STEP,
        "final_info holds reward terms of rows that go on",
    ),
    Mutant(
        "next-step-resets-at-once",
        ENVS,
        "if self._mode == AutoresetMode.SAME_STEP and truncated.any():",
        "if truncated.any():",
        NEXT_STEP,
        "NEXT_STEP behaves as SAME_STEP",
    ),
    Mutant(
        "batch-of-one-seed",
        ENVS,
        "seed = [int(seed) + r for r in range(self.num_envs)]",
        "seed = [int(seed) for r in range(self.num_envs)]",
        (*NEXT_STEP, f"{OF_BATCH}one_seed_counts_up_row_by_row_and_may_be_numpys"),
        "all rows of a batch share their seed",
    ),
    Mutant(
        "partial-reset-of-all",
        ENVS,
        "        observation = self._task.reset(rows)\n        self._ended[rows] = False",
        "        observation = self._task.reset()\n        self._ended[rows] = False",
        (f"{OF_BATCH}a_partial_reset_in_mid_episode_leaves_the_other_rows_as_they_were",),
        "a reset mask resets every row",
    ),
    Mutant(
        "sb3-terminal-observation-of-the-next-episode",
        SB3,
        "            observation = self._task.reset(ended)\n",
        "            observation = self._task.reset(ended)\n"
        "            for r in np.flatnonzero(ended):\n"
        '                infos[r]["terminal_observation"] = observation[r]\n',
        ENDINGS,
        "SB3 bootstraps from the episode that follows",
    ),
    Mutant(
        "sb3-horizon-is-an-end",
        SB3,
        '"TimeLimit.truncated": True,',
        '"TimeLimit.truncated": False,',
        ENDINGS,
        "SB3 takes the horizon for an end of the process",
    ),
    Mutant(
        "sb3-returns-add-up",
        SB3,
        "            self._returns[ended] = 0.0\n",
        "",
        ENDINGS,
        "an episode's return includes those before",
    ),
    Mutant(
        "agents-see-one-another",
        PETTINGZOO,
        "name: rows[i].copy() for",
        "name: rows[-1 - i].copy() for",
        (f"{OF_AGENTS}every_agent_sees_its_own_row_of_the_joint_observation",),
        "an agent observes another root",
    ),
    Mutant(
        "agents-act-for-one-another",
        PETTINGZOO,
        "            joint[0, i] = action\n",
        "            joint[0, -1 - i] = action\n",
        (
            "tests/parity/test_faces.py::"
            "test_all_faces_show_the_same_observations_rewards_ends_and_infos[burst]",
        ),
        "an agent's action moves another root",
    ),
    Mutant(
        "agents-horizon-terminates",
        PETTINGZOO,
        "            dict.fromkeys(agents, False),\n            dict.fromkeys(agents, ended),\n",
        "            dict.fromkeys(agents, ended),\n            dict.fromkeys(agents, False),\n",
        (f"{OF_AGENTS}the_reward_is_common_and_the_horizon_truncates_all_at_once",),
        "values of agents are not bootstrapped at the horizon",
    ),
    Mutant(
        "evaluation-without-drain",
        EVALUATION,
        "    task.drain()\n",
        "",
        (f"{OF_EVALUATION}all_policies_meet_the_same_requests_and_leave_none_unfinished",),
        "slow requests count for nobody",
    ),
    Mutant(
        "errors-are-free",
        EVALUATION,
        "(answered_s + errors * error_cost_s) / (answered + errors)",
        "answered_s / (answered + errors)",
        (f"{OF_EVALUATION}errors_cost_their_penalty_in_the_latency_with_errors",),
        "a policy gains rank by refusing requests",
    ),
    Mutant(
        "digest-without-seed",
        RUNS,
        'content = self._group() | {"seed": self.seed, "timeline": self.timeline}',
        'content = self._group() | {"timeline": self.timeline}',
        DIGESTS,
        "runs of different seeds share their result",
    ),
    Mutant(
        "digest-without-code",
        RUNS,
        '"code": [source_digest("dlb_gym"), source_digest(self.policy.partition(":")[0])],',
        '"code": [source_digest("dlb_gym")],',
        (f"{OF_EVALUATION}the_policys_own_code_is_part_of_the_digest",),
        "a changed policy keeps its old results",
    ),
    Mutant(
        "batches-with-gaps",
        RUNS,
        "last[-1].seed + 1 == run.seed",
        "last[-1].seed < run.seed",
        (f"{OF_EVALUATION}batches_hold_seeds_that_follow_each_other",),
        "rows of a batch have other seeds than their runs",
    ),
    Mutant(
        "intervals-of-unpaired-ratios",
        COMPARISON,
        "_estimate((x / y).mean(), (x / y)[draws].mean(axis=1), len(x))",
        "_estimate((x / y).mean(), (x[draws] / y[draws[::-1]]).mean(axis=1), len(x))",
        OF_COMPARISON,
        "the bootstrap tears pairs apart",
    ),
    Mutant(
        "pairs-by-position",
        COMPARISON,
        "values = [(own[pair][metric], base[pair][metric]) for pair in shared]",
        "values = [(own[a][metric], base[b][metric]) for a, b in zip(shared, sorted(base))]",
        OF_COMPARISON,
        "records are paired by their order",
    ),
    Mutant(
        "interval-of-one-tail",
        COMPARISON,
        "tail = (1.0 - LEVEL) / 2.0",
        "tail = 1.0 - LEVEL",
        OF_COMPARISON,
        "95 % intervals hold 90 %",
    ),
    Mutant(
        "ratio-of-means-for-paired-ratio",
        COMPARISON,
        "_estimate((x / y).mean(),",
        "_estimate(x.mean() / y.mean(),",
        OF_COMPARISON,
        "the paired ratio is that of the means",
    ),
    Mutant(
        "timeline-of-all-servers",
        TIMELINE,
        "capacity = self._live / self._taken * self._server_rps * span_s",
        "capacity = self._live * self._server_rps * span_s",
        (f"{OF_EVALUATION}time_lines_share_out_all_requests_and_follow_the_control_interval",),
        "a time line's utilisation falls with the length of its windows",
    ),
    Mutant(
        "central-ranked-with-local",
        f"{PACKAGE}report_table.py",
        '(DEPLOYABLE, ("static", "local"))',
        '(DEPLOYABLE, ("static", "local", "central"))',
        (
            "tests/test_report.py::test_central_policies_are_ranked_apart_and_static_ones_with_local_ones",
        ),
        "policies that know too much are ranked with those that do not",
    ),
    Mutant(
        "rank-by-answered-requests",
        f"{PACKAGE}report_table.py",
        "mean_s = mean_of(policy.records, policy.label, RANKED_BY)",
        "mean_s = mean_of(policy.records, policy.label, ANSWERED)",
        ("tests/test_report.py::test_refusing_requests_improves_no_rank",),
        "refusing requests improves the rank",
    ),
)
