"""The rules by which leaves choose servers, each against decisions worked out by hand.

Systems are `scripted`: prefill 1 ms and decode 10 ms a token, one way 0.05 s, and a leaf that sees
its servers as they are unless telemetry says otherwise. Of two servers, u = 0.25 draws number 0
first and u = 0.75 number 1.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.engine import leaf_memory, leaf_rules
from dlb_gym.engine.leaf_memory import RULE_SETTINGS
from dlb_gym.mechanism_rows import uses_mechanisms
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, override
from dlb_gym.simulator import Simulator
from tests.batching_model import uniform
from tests.conversations import SERVER_0, SERVER_1, Turn, chosen, column
from tests.mechanisms import REPLICAS, SESSIONS, scenario_with
from tests.reference.affinity import hashed_server
from tests.scripted import Played, system
from tests.short_episodes import ring

compiled: Any = numba.njit  # its stubs do not know that it decorates
Loads = NDArray[np.float64]


@compiled
def keeps_aibrix(load: Loads, servers: int, keeper: int, setting: Loads) -> bool:
    return leaf_rules.keeps_aibrix(load, servers, keeper, setting)


@compiled
def keeps_sglang(load: Loads, servers: int, cached: int, prompt: float, setting: Loads) -> bool:
    return leaf_rules.keeps_sglang(load, servers, cached, prompt, setting)


@compiled
def windowed(now_s: float, width_s: float, window: NDArray[np.int64]) -> int:
    return leaf_memory.windowed(now_s, width_s, window)


@compiled
def add_to_window(amount: int, window: NDArray[np.int64]) -> None:
    leaf_memory.add_to_window(amount, window)


# Rules that look at no session.


def test_round_robin_takes_servers_in_turn_and_every_replica_has_its_own() -> None:
    turns = [Turn(0.01 * k, 10, 10, u_leaf=0.9) for k in range(7)]
    assert chosen(turns, "round_robin", 3) == [0, 1, 2, 0, 1, 2, 0]
    replicas = {"leaf_replicas": 2, "server_probe_interval_s": 0.0}
    assert chosen(turns, "round_robin", 3, telemetry=replicas) == [0, 0, 1, 1, 2, 2, 0]


def test_random_gives_every_server_and_every_pair_of_successive_ones_its_share() -> None:
    simulator = Simulator(1, 1, 1, log=True)
    scenario = override(
        load_scenario(ring(1)), {"cells.0.servers": 5, "leaf.rule": "random", "horizon_s": 400.0}
    )
    simulator.reset_row(0, scenario, 3, 0)
    simulator.set_routing(np.ones((1, 1, 1)), np.array([0]))
    simulator.advance(np.array([scenario.intervals(400.0)]))
    log = simulator.request_log(0)
    servers = log["server"][np.argsort(log["leaf_s"])].astype(int)
    assert len(servers) > 5_000
    pairs = 5 * servers[:-1] + servers[1:]
    counts = np.bincount(pairs[::2], minlength=25)  # every other pair: none shares a request
    assert 1e-3 < stats.chisquare(counts).pvalue < 1 - 1e-3


LONG, SHORT = Turn(0.02, 900, 10), Turn(0.03, 10, 50)


def test_requests_or_tokens_decide() -> None:
    """Server 0 has one request of 910 tokens, server 1 two of 60 tokens each."""
    turns = [LONG, SHORT, Turn(0.04, 10, 50, u_leaf=SERVER_1), Turn(0.05, 10, 50)]
    assert chosen(turns, "tokens") == [0, 1, 1, 1]
    assert chosen(turns, "ray") == [0, 1, 1, 0]
    assert chosen(turns, "least_requests") == [0, 1, 1, 0]


def test_of_equally_few_requests_the_uniform_decides() -> None:
    """Two of three servers are idle: u = 0.4 takes the first of them, u = 0.6 the second."""
    for u, server in ((0.4, 1), (0.6, 2)):
        turns = [Turn(0.02, 900, 10, u_leaf=0.1), Turn(0.03, 10, 10, u_leaf=u)]
        assert chosen(turns, "least_requests", 3) == [0, server]


@pytest.mark.parametrize(
    ("choices", "u", "server"), [(1, 0.5, 1), (2, 0.5, 2), (64, 0.5, 2), (2, 0.1, 1), (3, 0.1, 2)]
)
def test_of_so_many_choices_the_one_with_the_fewest_tokens(
    choices: int, u: float, server: int
) -> None:
    """Servers have 910, 510 and 110 tokens. u = 0.5 draws 1 (of 1.5), then 2; 0.1 0, then 1."""
    filled = [Turn(0.02, 900, 10, u_leaf=0.0), Turn(0.03, 500, 10, u_leaf=0.4),
              Turn(0.04, 100, 10, u_leaf=0.7), Turn(0.05, 10, 10, u_leaf=u)]  # fmt: skip
    table = {"rule": "tokens", "choices": choices}
    assert chosen(filled, table, 3) == [0, 1, 2, server]


def test_requests_are_known_as_of_the_last_look() -> None:
    """The first request is done at 0.17 s. At 0.35 s a leaf that looks every 0.5 s counts it."""
    turns = [Turn(0.02, 50, 5), Turn(0.3, 50, 5), Turn(0.6, 50, 5)]
    assert chosen(turns, "least_requests") == [0, 0, 0]
    late = {"leaf_replicas": 1, "server_probe_interval_s": 0.5}
    assert chosen(turns, "least_requests", telemetry=late) == [0, 1, 0]


# Rules that look at sessions.

FIRST = Turn(0.02, 100, 50, session=7)
"""At the leaf at 0.07 s, on server 0, done at 0.67 s; then 150 tokens are kept there."""


def again(at_s: float, prefix: int, output: int = 300) -> Turn:
    """A turn of 200 prompt tokens that goes on for seconds."""
    return Turn(at_s, 200, output, session=7, prefix=prefix, u_leaf=SERVER_1)


def test_vllm_counts_requests_within_its_window() -> None:
    """Requests reach the leaf at 0.05, 0.06, 0.07 and 1.9 s: by then 1.6 s have gone by."""
    turns = [Turn(at_s, 10, 10, u_leaf=SERVER_1) for at_s in (0.0, 0.01, 0.02, 1.85)]
    assert chosen(turns, "vllm") == [0, 1, 0, 1]
    assert chosen(turns, {"rule": "vllm", "window_s": 1.6}) == [0, 1, 0, 0]


def test_a_window_moves_by_sixteenths() -> None:
    window = np.zeros(leaf_memory.WINDOW_COLUMNS, dtype=np.int64)
    rng = np.random.default_rng(1)
    sent: list[tuple[int, int]] = []
    now_s = 0.0
    for _ in range(500):
        now_s += float(rng.choice([0.0, 0.01, 0.3, 5.0], p=[0.2, 0.6, 0.19, 0.01]))
        bucket, amount = int(now_s // 0.1), int(rng.integers(1, 9))
        expected = sum(a for b, a in sent if b > bucket - 16)
        assert windowed(now_s, 0.1, window) == expected
        add_to_window(amount, window)
        sent.append((bucket, amount))


def test_vllm_sends_a_session_where_its_hash_says_however_busy_that_is() -> None:
    turns = [Turn(0.02 * k, 300, 10, session=k % 5, u_leaf=SERVER_0) for k in range(20)]
    expected = [hashed_server(k % 5, 4) for k in range(20)]
    assert chosen(turns, "vllm", 4) == expected
    assert len(set(expected)) > 1


@pytest.mark.parametrize(("prefix", "server"), [(81, 0), (79, 1)])
def test_vllm_load_aware_weighs_hits_against_load(prefix: int, server: int) -> None:
    """Server 0 has two requests, server 1 none: relative loads of 1 and -1, of weight 0.2 each.

    So 0.4 of the prompt of 200 tokens must be cached. The two turns before find 0.5 cached, and
    relative loads of 0, then 0.5 and -0.5 (the mean of 0.5 counts as 1).
    """
    turns = [FIRST, again(1.0, 100), again(1.1, 100), again(1.2, prefix)]
    assert chosen(turns, {"rule": "vllm_load_aware", "load_weight": 0.2}) == [0, 0, 0, server]


@pytest.mark.parametrize(("prefix", "server"), [(60, 1), (61, 0)])
def test_sglang_goes_where_more_than_its_share_is_cached(prefix: int, server: int) -> None:
    """0.3 of 200 tokens are 60; the turn before made server 0 the busier."""
    assert chosen([FIRST, again(1.0, 100), again(1.2, prefix)], "sglang") == [0, 0, server]


def test_sglang_forgets_about_caches_where_loads_differ_too_much() -> None:
    turns = [FIRST, again(1.0, 100), again(1.1, 100), again(1.2, 100)]
    assert chosen(turns, "sglang") == [0, 0, 0, 0]
    assert chosen(turns, {"rule": "sglang", "imbalance_gap": 1}) == [0, 0, 0, 1]


def settings(**values: float) -> Loads:
    setting = np.zeros(RULE_SETTINGS)
    for name, value in values.items():
        setting[getattr(leaf_memory, name)] = value
    return setting


@pytest.mark.parametrize(
    ("load", "gap", "factor", "kept"),
    [
        ([4, 1], 3, 1.5, True),  # 4 - 1 > 3 is false
        ([4, 1], 2, 1.5, False),
        ([4, 1], 2, 4.0, True),  # 4 > 4 x 1 is false
        ([4, 1], 2, 3.9, False),
        ([4, 0], 3, 1e6, False),
    ],
)
def test_sglangs_thresholds(load: list[int], gap: int, factor: float, kept: bool) -> None:
    setting = settings(GAP=gap, FACTOR=factor, MATCH_SHARE=0.3)
    assert keeps_sglang(np.array(load, dtype=float), 2, 100, 200.0, setting) == kept
    assert not keeps_sglang(np.array(load, dtype=float), 2, 60, 200.0, setting)


@pytest.mark.parametrize(
    ("load", "keeper", "gap", "deviations", "kept"),
    [
        ([3, 1, 1, 0], 0, 8, 1.0, False),  # 3 > 1.25 + 1.0897
        ([3, 1, 1, 0], 0, 8, 1.7, True),  # 3 <= 1.25 + 1.8525
        ([2, 0], 0, 8, 1.0, True),  # 2 <= 1 + 1
        ([2, 0], 0, 8, 0.99, False),
        ([12, 2, 2, 0], 1, 8, 1.0, False),  # 12 > 2 (4 + 1) and 12 - 0 >= 8: only the least
        ([12, 2, 2, 0], 3, 8, 1.0, True),
        ([12, 2, 2, 0], 1, 13, 1.0, True),  # but not by 13
        ([10, 3, 3, 0], 1, 8, 1.0, True),  # 10 > 2 (4 + 1) is false
    ],
)
def test_aibrixs_thresholds(
    load: list[int], keeper: int, gap: int, deviations: float, kept: bool
) -> None:
    setting = settings(GAP=gap, FACTOR=2.0, DEVIATIONS=deviations)
    assert keeps_aibrix(np.array(load, dtype=float), len(load), keeper, setting) == kept


def test_aibrix_leaves_a_keeper_that_is_busier_than_most() -> None:
    """With one request against none: mean 0.5, deviation 0.5; and u = 0.75 decides a tie."""
    turns = [FIRST, again(1.0, 20), again(1.2, 20), Turn(1.3, 200, 300, session=8, u_leaf=SERVER_1)]
    assert chosen(turns, "aibrix") == [0, 0, 0, 1]
    assert chosen(turns, {"rule": "aibrix", "deviations": 0.9}) == [0, 0, 1, 1]


@pytest.mark.parametrize(("prefix", "server"), [(101, 0), (100, 1)])
def test_preble_exploits_where_more_is_cached_than_is_not(prefix: int, server: int) -> None:
    """Exploring, server 0 costs the 150 tokens of before and 100 more, server 1 200."""
    assert chosen([FIRST, again(1.0, prefix)], "preble") == [0, server]


@pytest.mark.parametrize(("prefix", "server"), [(30, 0), (29, 1)])
def test_preble_explores_for_the_least_work_assigned(prefix: int, server: int) -> None:
    """Server 0 was given 30 tokens: 30 + 200 - prefix against 200; a tie goes to it."""
    turns = [Turn(0.02, 20, 10, session=7), again(1.0, prefix)]
    assert chosen(turns, "preble") == [0, server]


def test_preble_forgets_work_that_was_assigned_long_ago() -> None:
    turns = [Turn(0.02, 20, 10, session=7), again(2.0, 0)]
    assert chosen(turns, "preble") == [0, 1]
    assert chosen(turns, {"rule": "preble", "window_s": 1.6}) == [0, 0]


@pytest.mark.parametrize(("slo_s", "stays"), [(1.03, True), (1.01, False)])
def test_dualmap_goes_to_the_keeper_while_its_first_token_is_in_time(
    slo_s: float, stays: bool
) -> None:
    """The second turn leaves 900 tokens to decode; the third has 120 of 240 cached: 1.02 s.

    Both of two servers are candidates; elsewhere it would take 0.24 s. The first turn goes where
    the session's first hash says.
    """
    home = hashed_server(7, 2)
    turns = [FIRST, Turn(1.0, 100, 900, session=7, prefix=90),
             Turn(1.5, 240, 10, session=7, prefix=120)]  # fmt: skip
    table = {"rule": "dualmap", "ttft_slo_s": slo_s}
    assert chosen(turns, table) == [home, home, home if stays else 1 - home]


def test_dualmap_has_two_candidates_for_a_session() -> None:
    """By jump hashes of its hash and of 32 bits drawn from that; with nothing cached, by load."""
    turns = [Turn(0.01 * k, 300, 30, session=k % 9) for k in range(180)]
    servers = chosen(turns, "dualmap", 8)
    used = [set(servers[k::9]) for k in range(9)]
    for session, own in enumerate(used):
        drawn = int(uniform(leaf_rules.REHASHING, session, 0) * 2**32)
        pair = [hashed_server(key, 8) for key in (session, drawn)]
        assert own <= {*pair, (pair[0] + 1) % 8}
        assert len(own) <= 2
    assert sum(len(own) == 2 for own in used) > 2
    assert len(set.union(*used)) > 5


def test_rules_that_look_at_no_session_leave_affinity_its_say() -> None:
    """Random draws server 1 for the second turn; stickiness takes it back, as with two choices.

    SGLang finds too little cached and decides alone.
    """
    turns = [FIRST, again(1.0, 50), again(1.1, 50)]
    assert chosen(turns, "random", affinity="none") == [0, 1, 1]
    assert chosen(turns, "random", affinity="sticky") == [0, 0, 0]
    assert chosen(turns, {"rule": "sglang"}, affinity="sticky") == [0, 0, 1]


# In scenarios.


@pytest.mark.parametrize("rule", ["vllm_load_aware", "aibrix", "sglang", "preble", "dualmap"])
def test_rules_that_go_by_prefixes_need_sessions(rule: str) -> None:
    with pytest.raises(ScenarioError, match=rf"leaf\.rule = '{rule}' goes .* add demand.sessions"):
        override(load_scenario(ring(2)), {"leaf.rule": rule})
    override(load_scenario(ring(2)), {"leaf.rule": rule, "demand.sessions": {}})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {
                "leaf": {"rule": "ray"},
                "affinity": {"kind": "consistent_hash"},
                "demand.sessions": {},
            },
            r"leaf\.rule = 'ray' has no effect with affinity.kind = 'consistent_hash'.* leave leaf",
        ),
        (
            {"leaf": {"rule": "ray", "choices": 3}},
            r"choices = 3 has no effect with rule = 'ray': set rule = 'tokens', or leave choices",
        ),
        (
            {"leaf": {"imbalance_gap": 3}},
            r"imbalance_gap = 3 has no effect .*: set rule = 'sglang' or 'aibrix', or leave",
        ),
        ({"leaf": {"rule": "preqal"}}, "prequal"),
        ({"leaf": {"choices": 0}}, r"leaf\.choices"),
    ],
)
def test_contradictions_and_slips_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        override(load_scenario(ring(2)), changes)


def test_only_another_rule_than_dlbs_needs_the_mechanisms() -> None:
    plain = load_scenario(ring(2))
    assert not uses_mechanisms(plain)
    assert not uses_mechanisms(override(plain, {"leaf": {"rule": "tokens", "choices": 2}}))
    assert uses_mechanisms(override(plain, {"leaf.choices": 3}))
    assert uses_mechanisms(override(plain, {"leaf.rule": "random"}))


def with_rule(rule: str, cells: int = 3) -> Scenario:
    sessions = {} if rule in ("prequal", "vllm") else {"demand.sessions": SESSIONS}
    return scenario_with(None, cells, leaf={"rule": rule}, telemetry=REPLICAS, **sessions)


def logs(scenarios: Sequence[Scenario], starts: Sequence[int]) -> list[list[bytes]]:
    """What each row's log says after 30 steps of its own, in one batch."""
    rows = len(scenarios)
    simulator = Simulator(rows, 4, 4, log=True)
    steps = np.zeros(rows, dtype=np.int64)
    for step in range(max(starts) + 30):
        for r, scenario in enumerate(scenarios):
            if starts[r] == step:
                simulator.reset_row(r, scenario, 5 + r, 0)
                split = np.where(simulator.admissible, 1.0, 0.0)
                split /= np.maximum(split.sum(axis=-1, keepdims=True), 1.0)
                simulator.set_routing(split, np.zeros(rows, dtype=np.int64))
            steps[r] += starts[r] <= step < starts[r] + 30
        simulator.advance(steps)
    return [[array.tobytes() for array in simulator.request_log(r).values()] for r in range(rows)]


def test_rows_with_rules_are_singles_whatever_starts_beside_them() -> None:
    """Later rows need longer arrays: more servers, windows and probes."""
    scenarios = [
        with_rule("prequal"), with_rule("vllm"), with_rule("preble", 2),
        override(with_rule("prequal", 4), {"leaf.probe_pool": 40, "cells.0.servers": 9}),
    ]  # fmt: skip
    together = logs(scenarios, [0, 4, 9, 13])
    for r, scenario in enumerate(scenarios):
        alone = Simulator(1, len(scenario.roots), len(scenario.cells), log=True)
        alone.reset_row(0, scenario, 5 + r, 0)
        arcs = alone.admissible
        alone.set_routing(arcs / arcs.sum(axis=-1, keepdims=True), np.array([0]))
        alone.advance(np.array([30]))
        assert [array.tobytes() for array in alone.request_log(0).values()] == together[r]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("rule", ["round_robin", "prequal", "vllm", "preble"])
def test_a_copy_remembers_what_the_original_does(rule: str, copied: Any) -> None:
    simulator = Simulator(1, 3, 3, log=True)
    simulator.reset_row(0, with_rule(rule), 2, 0)
    simulator.set_routing(np.full((1, 3, 3), 1 / 3), np.array([0]))
    simulator.advance(np.array([20]))
    other = copied(simulator)
    pages = []
    for each in (simulator, other):
        each.advance(np.array([40]))
        pages.append([array.tobytes() for array in each.request_log(0).values()])
    assert pages[0] == pages[1]


def test_a_server_that_is_full_is_an_error_under_any_rule() -> None:
    """One place a server: round robin brings the third of three requests to server 0."""
    played = Played(
        system((2,), leaf={"rule": "round_robin"}, server={"queue_limit": 1}),
        [(0.02, 500, 50), (0.03, 500, 50), (0.04, 500, 50)],
    ).to(3.0)
    assert column(played, "server") == [0, 1, -1]
