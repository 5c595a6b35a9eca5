"""Faults in what moves demand and capacity: autoscalers, and traces with their sessions."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SCALER = "dlb_gym/autoscaler.py"
REPLAY = "dlb_gym/trace_replay.py"
SESSIONS = "dlb_gym/trace_sessions.py"
BY_REFERENCE = (
    "tests/parity/test_mechanism_reference.py::test_servers_come_and_go_by_either_rule",
)
OF_SESSIONS = (
    "tests/parity/test_trace_reference.py::test_sessions_of_random_traces_follow_from_the_rule",
)
OF_LAPS = (
    "tests/parity/test_trace_reference.py::test_lap_after_lap_every_root_gets_the_same_requests",
)

MUTANTS = (
    Mutant(
        "release-that-waits",
        SCALER,
        "            np.minimum(lives[following:last], target, out=lives[following:last])\n",
        "",
        BY_REFERENCE,
        "what was ordered before a release comes all the same",
    ),
    Mutant(
        "smallest-want-first",
        SCALER,
        "np.argsort(-want",
        "np.argsort(want",
        BY_REFERENCE,
        "the cap serves the cells that want least first",
    ),
    Mutant(
        "rest-without-the-root",
        SCALER,
        "math.sqrt(target)",
        "target",
        ("tests/test_autoscaler.py::test_marginal_latency_moves_a_tenth_of_the_cell_at_a_time",),
        "servers are released as soon as they are no longer needed, and ordered again",
    ),
    Mutant(
        "rates-since-the-start",
        SCALER,
        "        self._received = received\n",
        "",
        BY_REFERENCE,
        "utilisation counts all requests so far",
    ),
    Mutant(
        "cap-rounded-down",
        SCALER,
        "math.floor(most + ROUNDING)",
        "math.floor(most)",
        ("tests/test_autoscaler.py::test_shares_of_servers_are_whole_where_arithmetic_says_so",),
        "45 servers with 40 % more may become 62",
    ),
    Mutant(
        "session-by-more-than-half",
        SESSIONS,
        "2 * run <= held",
        "2 * run < held",
        OF_SESSIONS,
        "a prompt that shares just half of its blocks joins a session",
    ),
    Mutant(
        "prefix-beyond-the-prompt",
        SESSIONS,
        "min(self._block_tokens * run, prompt_tokens)",
        "self._block_tokens * run",
        OF_SESSIONS,
        "a prefix is longer than its prompt",
    ),
    Mutant(
        "sessions-of-two-laps",
        REPLAY,
        "trace.session.max() + 1.0",
        "trace.session.max()",
        OF_LAPS,
        "the last session of a lap is the first of the next one",
    ),
    Mutant(
        "turns-at-any-root",
        REPLAY,
        "np.where(turns[:, 0] < 0, u_root, self._hashes.uniform(turns[:, 0]))",
        "u_root",
        OF_LAPS,
        "the turns of a session come to different roots",
    ),
)
