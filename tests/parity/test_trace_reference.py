"""Sessions of a trace, and its replay, are those that the reference works out by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dlb_gym.rates import offered_rate_rps
from dlb_gym.trace import describe_trace, load_trace
from dlb_gym.workload import CHUNK_S, Workload
from tests.parity.traces import random_trace
from tests.reference.trace import recorded, replayed, turns
from tests.scenarios_by_hand import DATA, needs, two_cells

CONVERSATION = DATA / "traces" / "mooncake_conversation.csv.gz"


@pytest.mark.parametrize("first_seed", range(0, 80, 20))
def test_sessions_of_random_traces_follow_from_the_rule(first_seed: int, tmp_path: Path) -> None:
    prefixes = 0
    for seed in range(first_seed, first_seed + 20):
        trace = random_trace(seed, tmp_path)
        columns, expected = load_trace(trace), turns(recorded(trace), trace.block_tokens)
        assert columns.session is not None
        assert columns.prefix_tokens is not None
        assert columns.session.tolist() == [turn.session for turn in expected]
        assert columns.prefix_tokens.tolist() == [turn.prefix for turn in expected]
        prefixes += sum(turn.prefix > 0 for turn in expected)
    assert prefixes > 300


@needs(CONVERSATION)
def test_so_do_those_of_mooncakes_conversations() -> None:
    trace = describe_trace(CONVERSATION, hash_ids_column="hash_ids")
    columns, count = load_trace(trace), 3_000
    expected = turns(recorded(trace)[:count], trace.block_tokens)
    assert columns.session is not None
    assert columns.prefix_tokens is not None
    assert columns.session[:count].tolist() == [turn.session for turn in expected]
    assert columns.prefix_tokens[:count].tolist() == [turn.prefix for turn in expected]


@pytest.mark.parametrize("seed", range(3))
def test_lap_after_lap_every_root_gets_the_same_requests(seed: int, tmp_path: Path) -> None:
    """The first minute, chunk after chunk, of two roots with 3 and 1 parts of the demand."""
    trace = random_trace(seed, tmp_path)
    scenario = two_cells(demand={"utilisation": 0.5, "trace": trace.model_dump()})
    workload = Workload(scenario, seed, 0)
    expected = replayed(trace, offered_rate_rps(scenario), [3.0, 1.0], seed, CHUNK_S, 6)
    assert min(len(rows) for rows in expected) > 3 * len(recorded(trace))
    for root, rows in enumerate(expected):
        got = np.concatenate([workload.chunk(k)[root] for k in range(6)])
        np.testing.assert_array_equal(got, np.array(rows))
