"""Sessions in a whole system: caches, homes and hashing against times worked out by hand, and laws.

Systems are `scripted`: prefill 1 ms and decode 10 ms a token, one way 0.05 s, decisions every
0.1 s. So a request of p prompt tokens, of which h are cached, that finds its server idle waits
(p - h) ms for its first token.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from baselines.registry import entry
from dlb_gym.evaluation import rollout
from dlb_gym.runs import Run
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.sessions import eligible_share
from dlb_gym.simulator import Simulator
from dlb_gym.trace import load_trace
from dlb_gym.workload import Workload
from tests.conversations import SERVER_1, Turn, column, talking, waits_s
from tests.scenarios_by_hand import DATA, needs
from tests.scripted import STEP_S, Played, assert_balanced
from tests.short_episodes import ring

CONVERSATION = DATA / "traces" / "mooncake_conversation.csv.gz"

FIRST = Turn(0.02, 100, 50, session=7)
"""At the leaf at 0.07 s, done at 0.67 s, answered at 0.72 s; then 150 tokens are kept."""
SECOND = Turn(1.0, 240, 10, session=7, prefix=120, u_leaf=SERVER_1)
TO_CELL_1 = np.array([[[0.0, 1.0]]])


def counted(played: Played) -> tuple[int, int, int, int]:
    """Requests with a prefix, those that hit, prompt tokens, and those saved."""
    counts = played.simulator.counts()
    assert counts is not None
    return (
        int(counts.eligible[0]),
        int(counts.hits[0]),
        int(counts.prompt_tokens[0]),
        int(counts.saved_tokens[0]),
    )


# In the cell.


@pytest.mark.parametrize(
    ("kind", "server", "wait_s"),
    [("none", 1, 0.24), ("sticky", 0, 0.12), ("conditional", 0, 0.12)],
)
def test_a_turn_prefills_what_its_server_did_not_keep(
    kind: str, server: int, wait_s: float
) -> None:
    """The leaf would take server 1; server 0 has 120 of the 240 tokens."""
    played = talking([FIRST, SECOND], (2,), kind).to(3.0)
    assert column(played, "server") == [0, server]
    assert waits_s(played) == pytest.approx([0.1, wait_s])
    saved = 0 if server else 120
    assert counted(played) == (1, int(server == 0), 340, saved)
    played.balance()


def test_caches_keep_prefixes_where_routing_ignores_them() -> None:
    """With one server there is nothing to choose."""
    assert waits_s(talking([FIRST, SECOND]).to(3.0)) == pytest.approx([0.1, 0.12])
    assert waits_s(talking([FIRST, SECOND], (1,), "none").to(3.0)) == pytest.approx([0.1, 0.12])


@pytest.mark.parametrize(("prefix", "hit"), [(149, 149), (150, 150), (151, 150), (240, 150)])
def test_no_more_hits_than_was_said_before(prefix: int, hit: int) -> None:
    """The first turn leaves 100 + 50 tokens."""
    second = Turn(1.0, 240, 10, session=7, prefix=prefix)
    played = talking([FIRST, second], (1,), "sticky").to(3.0)
    assert waits_s(played)[1] == pytest.approx((240 - hit) / 1000)


def test_a_turn_that_overtakes_the_answer_before_finds_nothing() -> None:
    early = Turn(0.6, 240, 10, session=7, prefix=120)  # at the leaf 0.02 s before the first is done
    late = Turn(0.63, 240, 10, session=7, prefix=120)
    assert waits_s(talking([FIRST, early], (1,), "sticky").to(3.0))[1] == pytest.approx(0.24)
    assert waits_s(talking([FIRST, late], (1,), "sticky").to(3.0))[1] == pytest.approx(0.12)


@pytest.mark.parametrize(("output", "server"), [(20, 0), (21, 1)])
def test_a_turn_leaves_a_server_with_more_work_than_its_prefix_saves(
    output: int, server: int
) -> None:
    """Server 0 has 100 + output tokens to do at that instant, and 120 are saved there."""
    other = Turn(0.98, 100, output)
    played = talking([FIRST, other, SECOND], (2,), "conditional").to(3.0)
    assert column(played, "server") == [0, 0, server]
    # Server 0 prefills for the other one until 1.13 s; the turn is there at 1.05 s.
    assert waits_s(played)[2] == pytest.approx(0.24 if server else 0.08 + 0.12)
    stuck = talking([FIRST, other, SECOND], (2,), "sticky").to(3.0)
    assert column(stuck, "server") == [0, 0, 0]


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        ({}, [True, True]),
        ({"cache_tokens": 300}, [True, True]),
        ({"cache_tokens": 299}, [False, True]),
        ({"cache_sessions": 2}, [True, True]),
        ({"cache_sessions": 1}, [False, True]),
    ],
)
def test_the_longest_unused_session_makes_room(limits: dict[str, int], kept: list[bool]) -> None:
    """Two sessions leave 150 tokens each on one server."""
    firsts = [FIRST, Turn(0.2, 100, 50, session=8)]
    # The later session speaks first: its answer stores nothing before the other one has looked.
    seconds = [
        Turn(2.0, 240, 10, session=7, prefix=120),
        Turn(2.01, 240, 10, session=8, prefix=120),
    ]
    played = talking([*firsts, *seconds], (1,), {"kind": "sticky", **limits}).to(5.0)
    log = played.log
    first_token_s = log["first_token_s"][2:]
    work_s = first_token_s - np.array([log["leaf_s"][2], first_token_s[0]])
    assert work_s == pytest.approx([0.12 if hit else 0.24 for hit in kept])


def test_a_crash_takes_the_cache_with_it() -> None:
    first = Turn(0.02, 100, 50, session=7, u_leaf=SERVER_1)
    second = Turn(2.5, 240, 10, session=7, prefix=120, u_leaf=SERVER_1)
    crash = {"kind": "server_crash", "start": 0.1, "end": 0.2, "cells": ["cell-0"], "servers": 1}
    whole = talking([first, second], (2,), "sticky").to(4.0)
    struck = talking([first, second], (2,), "sticky", disturbances=[crash]).to(4.0)
    assert column(whole, "server") == column(struck, "server") == [1, 1]
    assert waits_s(whole) == pytest.approx([0.1, 0.12])
    assert waits_s(struck) == pytest.approx([0.1, 0.24])


# Between cells.


def moved(turns: list[Turn], kind: dict[str, Any] | str, at_s: float, **changes: Any) -> Played:
    """Two cells of one server; from `at_s` on the decision in force is cell 1 instead of 0."""
    played = talking(turns, (1, 1), kind, **changes).to(at_s)
    played.simulator.set_routing(TO_CELL_1, np.array([1]))
    return played.to(6.0)


def test_a_session_goes_home_once_its_root_has_an_answer() -> None:
    """The answer comes at 0.72 s, and decisions from 0.8 s on know it."""
    for at_s, cell in ((0.75, 1), (0.85, 0)):
        again = Turn(at_s, 240, 10, session=7, prefix=120)
        assert column(moved([FIRST, again], "sticky", 0.1), "cell") == [0, cell]
    stranger = Turn(1.0, 240, 10, session=8, prefix=120)
    assert column(moved([FIRST, stranger], "sticky", 0.1), "cell") == [0, 1]
    assert column(moved([FIRST, SECOND], "none", 0.1), "cell") == [0, 1]


def test_a_map_with_room_for_four_forgets_the_first_of_five() -> None:
    firsts = [Turn(0.02 + 0.7 * k, 10, 2, session=k) for k in range(5)]
    seconds = [Turn(4.0 + 0.1 * k, 50, 2, session=k, prefix=10) for k in range(5)]
    played = moved([*firsts, *seconds], {"kind": "sticky", "map_sessions": 4}, 3.5)
    assert column(played, "cell") == [0] * 5 + [1, 0, 0, 0, 0]
    roomy = moved([*firsts, *seconds], {"kind": "sticky", "map_sessions": 1024}, 3.5)
    assert column(roomy, "cell") == [0] * 10


def test_a_crashed_root_replica_forgets_the_sessions_whose_hashes_were_its() -> None:
    """Of three replicas two crash at 1 s, and a session's hash modulo 3 is its replica."""
    firsts = [Turn(0.02 + 0.1 * k, 10, 2, session=6 + k) for k in range(3)]
    seconds = [Turn(1.5 + 0.1 * k, 50, 2, session=6 + k, prefix=10) for k in range(3)]
    telemetry = {
        "root_replicas": 3, "turn_s": 0.0, "sync_interval_s": 0.0, "server_probe_interval_s": 0.0
    }  # fmt: skip
    crash = {"kind": "root_crash", "start": 0.1, "end": 0.3, "replicas": 2, "roots": ["root-0"]}
    struck = moved([*firsts, *seconds], "sticky", 1.2, telemetry=telemetry, disturbances=[crash])
    assert column(struck, "cell") == [0, 0, 0, 1, 1, 0]
    whole = moved([*firsts, *seconds], "sticky", 1.2, telemetry=telemetry)
    assert column(whole, "cell") == [0] * 6


FAR_S = [[0.2, 0.1]]
"""Round trips: home is 0.1 s farther than the other cell, which is as idle and as fast."""


@pytest.mark.parametrize(("prefix", "cell"), [(99, 1), (101, 0)])
def test_a_session_stays_while_the_prefill_saved_outweighs_the_way(prefix: int, cell: int) -> None:
    """A prefix saves 1 ms a token, and staying costs 100 ms."""
    again = Turn(2.0, 240, 10, session=7, prefix=prefix)
    played = moved([FIRST, again], "conditional", 0.1, network={"rtt_s": FAR_S})
    assert column(played, "cell") == [0, cell]
    assert column(moved([FIRST, again], "sticky", 0.1, network={"rtt_s": FAR_S}), "cell") == [0, 0]


@pytest.mark.parametrize(
    ("prefix", "cache_sessions", "cell"), [(104, 1, 1), (106, 1, 0), (104, 2, 0)]
)
def test_a_miss_at_home_lowers_what_a_prefix_is_worth(
    prefix: int, cache_sessions: int, cell: int
) -> None:
    """Home is 0.0999 s farther. After a miss 0.95 of a prefix's time counts: 105.2 tokens or more.

    The miss is session 8's second turn, where the cache has room for session 7 only.
    """
    turns = [
        Turn(0.02, 100, 10, session=8),
        Turn(0.5, 100, 10, session=7),
        Turn(1.2, 140, 10, session=8, prefix=100),
        Turn(3.0, 240, 10, session=8, prefix=prefix),
    ]
    table = {"kind": "conditional", "cache_sessions": cache_sessions}
    played = moved(turns, table, 0.9, network={"rtt_s": [[0.2, 0.1001]]})
    assert column(played, "cell") == [0, 0, 0, cell]
    assert waits_s(played)[2] == pytest.approx(0.14 if cache_sessions == 1 else 0.04)


def test_what_misses_away_from_home_says_nothing_about_home() -> None:
    """Sessions that arrive in a cell with a prefix from elsewhere cannot hit there."""
    strangers = [Turn(1.0 + 0.1 * k, 50, 1, session=20 + k, prefix=40) for k in range(5)]
    turns = [FIRST, *strangers, Turn(3.0, 240, 10, session=7, prefix=101)]
    played = moved(turns, "conditional", 2.5, network={"rtt_s": FAR_S})
    assert column(played, "cell") == [0] * 7


# Hashing.


def played_out(scenario: Scenario, seed: int = 0) -> dict[str, Any]:
    """Answers of an episode under a split by the number of servers, with their sessions."""
    roots, cells = len(scenario.roots), len(scenario.cells)
    simulator = Simulator(1, roots, cells, log=True)
    simulator.reset_row(0, scenario, seed, 0)
    servers = np.array([cell.servers for cell in scenario.cells], dtype=np.float64)
    routing = np.tile(servers / servers.sum(), (1, roots, 1))
    simulator.set_routing(routing, np.zeros(1, dtype=np.int64))
    steps = round((scenario.warmup_s + scenario.horizon_s) / scenario.control_interval_s)
    simulator.advance(np.array([steps + round(20.0 / scenario.control_interval_s)]))
    assert_balanced(simulator)
    log = simulator.request_log(0)
    workload = Workload(scenario, seed, 0)
    chunks = [np.concatenate(workload.chunk(index)) for index in range(steps // 100 + 1)]
    drawn = np.concatenate(chunks)
    order = np.argsort(drawn[:, 0], kind="stable")
    at = np.searchsorted(drawn[order, 0], log["arrival_s"])
    np.testing.assert_array_equal(drawn[order, 0][at], log["arrival_s"])
    counts = simulator.counts()
    return {**log, "session": drawn[order, 5][at], "counts": counts}


def one_cell(servers: int, sessions: dict[str, Any], kind: str, **changes: Any) -> Scenario:
    document = ring(1, horizon_s=80.0, warmup_s=0.0, control_interval_s=0.1)
    document["cells"][0]["servers"] = servers
    document["demand"] = {"utilisation": 0.2, "sessions": sessions}
    document["server"] = {"queue_limit": 1_000}  # no errors
    return override(load_scenario(document), {"affinity": {"kind": kind}, **changes})


HOT = {"hot_fraction": 0.05, "hot_factor": 10}


@pytest.mark.parametrize("hot", [{}, HOT])
def test_hashing_spreads_sessions_and_not_requests(hot: dict[str, Any]) -> None:
    """t_k requests of session k on S servers: E[sum (load - mean)^2] = (1 - 1 / S) sum t_k^2.

    The sum is nearly chi-square with S - 1 = 63 degrees of freedom: a standard deviation of 18 %.
    """
    servers = 64
    log = played_out(one_cell(servers, {"gap_s": 4.0, "least_gap_s": 0.5} | hot, "consistent_hash"))
    load = np.bincount(log["server"].astype(int), minlength=servers)
    _, turns = np.unique(log["session"], return_counts=True)
    spread = ((load - load.mean()) ** 2).sum()
    assert spread / ((1 - 1 / servers) * (turns**2).sum()) == pytest.approx(1.0, abs=0.6)


def test_hot_sessions_concentrate_where_hashing_sends_them() -> None:
    """Requests of the busiest server over the mean, and who waits longest for a first token."""
    busiest, worst_s = {}, {}
    for kind in ("none", "conditional", "sticky", "consistent_hash"):
        sessions = {"gap_s": 4.0, "least_gap_s": 0.5} | HOT
        log = played_out(one_cell(32, sessions, kind, **{"demand.utilisation": 0.3}))
        load = np.bincount(log["server"].astype(int), minlength=32)
        busiest[kind] = load.max() / load.mean()
        worst_s[kind] = np.quantile(log["first_token_s"] - log["leaf_s"], 0.99)
    assert busiest["none"] < busiest["conditional"] < busiest["sticky"] < busiest["consistent_hash"]
    assert busiest["conditional"] < 1.8
    assert busiest["consistent_hash"] > 2.5
    assert worst_s["conditional"] < worst_s["none"] < 0.5 * worst_s["consistent_hash"]


def test_sessions_that_collide_share_a_cell_but_not_always_a_server() -> None:
    """One hash for all: hashing has one server; homes are cells, and caches are by session."""
    document = ring(3, horizon_s=10.0, warmup_s=0.0, control_interval_s=0.1)
    document["demand"] = {
        "utilisation": 0.1,
        "sessions": {"hash_values": 1, "gap_s": 2.0, "least_gap_s": 0.5},
    }
    base = load_scenario(document)
    hashed = played_out(override(base, {"affinity": {"kind": "consistent_hash"}}))
    used = {
        (int(c), int(s)) for c, s in zip(hashed["cell"], hashed["server"], strict=True) if s >= 0
    }
    assert len(used) == 1
    sticky = played_out(override(base, {"affinity": {"kind": "sticky"}}))
    late = sticky["arrival_s"] > 6.0  # what was under way to other cells has been answered
    for root in range(3):
        own = late & (sticky["root"] == root)
        assert np.unique(sticky["cell"][own]).size == 1
        assert np.unique(sticky["server"][own & (sticky["server"] >= 0)]).size > 1


# How much it saves.


def test_caches_that_forget_nothing_save_what_the_closed_form_says() -> None:
    """One cell, turns far enough apart that none overtakes the answer before; see `sessions`."""
    sessions = {"gap_s": 6.0, "least_gap_s": 5.0, "mean_turns": 2.5, "max_turns": 5}
    scenario = one_cell(16, sessions, "sticky", **{"affinity.cache_tokens": 10**9})
    scenario = override(scenario, {"affinity.cache_sessions": 10**5, "warmup_s": 70.0})
    counts = played_out(scenario)["counts"]
    described = scenario.demand.sessions
    assert described is not None
    # E[T] = sum of 0.6^k for k < 5, pairs: sum of k 0.6^k; 500 new and 200 output tokens a turn.
    turns = sum(0.6**k for k in range(5))
    context = 700 * sum(k * 0.6**k for k in range(5)) / turns
    bound = 0.65 * context / (500 + context)
    arrived = counts.eligible[0] / eligible_share(described)
    assert counts.hits[0] == counts.eligible[0]
    assert 1 - 1 / turns == pytest.approx(eligible_share(described))
    assert counts.saved_tokens[0] / counts.prompt_tokens[0] == pytest.approx(bound, abs=0.02)
    assert arrived > 1_000


@pytest.mark.parametrize("kind", ["none", "conditional", "sticky", "consistent_hash"])
def test_nobody_saves_more_than_the_closed_form(kind: str) -> None:
    scenario = override(
        load_scenario("sessions"),
        {"affinity.kind": kind, "horizon_s": 20.0, "control_interval_s": 0.1, "warmup_s": 10.0},
    )
    counts = played_out(scenario)["counts"]
    saved = counts.saved_tokens[0] / counts.prompt_tokens[0]
    assert counts.hits[0] <= counts.eligible[0]
    assert 0.0 < saved < 0.48
    assert saved > 0.2 if kind != "none" else saved < 0.15


# Bad input.


def test_affinity_needs_sessions() -> None:
    with pytest.raises(ScenarioError, match="affinity without sessions"):
        override(load_scenario("global_six"), {"affinity": {}})


def test_steps_are_what_the_scripts_assume() -> None:
    assert STEP_S == 0.1


# The Mooncake trace.


@needs(CONVERSATION)
def test_mooncakes_conversations_hit_nearly_all_that_they_can() -> None:
    """A third of the prompt tokens stood in the turn before; sticky routing finds nearly all.

    Conditional routing gives up hits for balance, and answers sooner than either extreme.
    """
    base = {
        "base": "global_six",
        "name": "conversation",
        "demand": {"trace": {"path": str(CONVERSATION), "hash_ids_column": "hash_ids"}},
        "affinity": {"cache_tokens": 2_000_000, "cache_sessions": 20_000, "map_sessions": 20_000},
        "control_interval_s": 0.5,
        "horizon_s": 300.0,
        "warmup_s": 50.0,
    }
    scenario = load_scenario(base)
    assert scenario.demand.trace is not None
    trace = load_trace(scenario.demand.trace)
    assert trace.prefix_tokens is not None
    bound = float(trace.prefix_tokens.sum() / trace.prompt_tokens.sum())
    saved, latency_s = {}, {}
    for kind in ("none", "conditional", "sticky"):
        run = Run(*entry("flow-gradient"), scenario=override(scenario, {"affinity.kind": kind}))
        (result,) = rollout([run])
        saved[kind] = result.record["prefill_saved"]
        latency_s[kind] = result.record["latency_mean_s"]
    assert bound == pytest.approx(0.334, abs=0.001)
    assert saved["none"] < 0.05 < saved["conditional"] < saved["sticky"] < bound
    assert saved["sticky"] > 0.8 * bound
    assert latency_s["conditional"] < min(latency_s["none"], latency_s["sticky"])
