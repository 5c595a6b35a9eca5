"""Sessions that follow from the prefix blocks of a recorded trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from dlb_gym.rates import mean_tokens
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, load_scenario, scenario_from_dict
from dlb_gym.trace import TraceColumns, describe_trace, load_trace
from dlb_gym.trace_file import TraceError, TraceFile
from dlb_gym.trace_replay import TraceReplay
from dlb_gym.trace_sessions import SessionFinder, block_ids
from dlb_gym.workload import SESSION_COLUMNS, Workload
from tests.scenarios_by_hand import DATA, needs, two_cells

CONVERSATION = DATA / "traces" / "mooncake_conversation.csv.gz"
SYNTHETIC = DATA / "traces" / "mooncake_synthetic.csv.gz"

# Block 0 is a system prompt. The third row continues the first, the fourth starts a session, the
# fifth continues the third, the sixth goes back to an early part of it, the last has no blocks.
ROWS = (
    (0, 1_400, 10, (0, 1, 2)),
    (1, 700, 10, (0, 3)),
    (2, 2_048, 10, (0, 1, 4, 5)),
    (3, 900, 10, (0, 6)),
    (4, 1_800, 10, (0, 1, 4, 5)),
    (5, 1_500, 10, (0, 1, 7)),
    (6, 90, 10, ()),
)
SESSION = [0, 1, 0, 2, 0, 3, -1]
PREFIX = [0, 0, 1_024, 0, 1_800, 0, 0]


def written(folder: Path, name: str = "blocks.csv") -> Path:
    path = folder / name
    if name.endswith(".csv"):
        lines = ["timestamp,input_length,output_length,hash_ids"]
        lines += [f"{t},{p},{o},{' '.join(map(str, b))}" for t, p, o, b in ROWS]
    else:
        keys = '{{"timestamp": {}, "input_length": {}, "output_length": {}, "hash_ids": {}}}'
        lines = [keys.format(t, p, o, list(b)) for t, p, o, b in ROWS]
    path.write_text("\n".join(lines) + "\n")
    return path


def told(path: Path, **changes: Any) -> TraceColumns:
    return load_trace(describe_trace(path, hash_ids_column="hash_ids", **changes))


@pytest.mark.parametrize("name", ["blocks.csv", "blocks.jsonl"])
def test_sessions_follow_from_shared_blocks_and_not_from_a_system_prompt(
    tmp_path: Path, name: str
) -> None:
    columns = told(written(tmp_path, name))
    assert columns.session is not None
    assert columns.prefix_tokens is not None
    assert columns.session.tolist() == SESSION
    assert columns.prefix_tokens.tolist() == PREFIX
    with pytest.raises(ValueError, match="read-only"):
        columns.session[0] = 1


def test_a_trace_tells_of_no_sessions_unless_asked(tmp_path: Path) -> None:
    columns = load_trace(describe_trace(written(tmp_path)))
    assert columns.session is None
    assert columns.prefix_tokens is None


def test_a_larger_block_is_a_longer_prefix(tmp_path: Path) -> None:
    columns = told(written(tmp_path), block_tokens=590)
    assert columns.prefix_tokens is not None
    assert columns.prefix_tokens.tolist() == [0, 0, 1_180, 0, 1_800, 0, 0]


@pytest.mark.parametrize(
    ("cell", "message"),
    [
        ("1 x", r"line 3: hash_ids holds 'x'; every block id must be a whole number from 0 to"),
        ("1 -2", r"holds '-2'"),
        ("1 2.5", r"holds '2.5'"),
        ("1;2", r"holds '1;2'"),
        ("18446744073709551616", r"holds '18446744073709551616'"),
        ("9" * 5_000, r"holds '9999"),
        ("1 2 3", r"line 3: hash_ids names 3 blocks of block_tokens = 512, more than its 1000"),
    ],
)
def test_blocks_that_cannot_be_are_refused(tmp_path: Path, cell: str, message: str) -> None:
    path = tmp_path / "bad.csv"
    head = "timestamp,input_length,output_length,hash_ids\n0,1000,5,0 1\n"
    path.write_text(head + f"9,1000,5,{cell}\n")
    with pytest.raises(TraceError, match=message):
        told(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("null", r"hash_ids = 'None' must be a list of block ids"),
        ("7", r"hash_ids = '7' must be a list"),
        ('{"a": 1}', r"must be a list"),
        ("[true]", r"holds 'True'"),
        ("[1.0]", r"holds '1.0'"),
        ("[[1]]", r"holds '\[1\]'"),
        ("[null]", r"holds 'None'"),
    ],
)
def test_json_blocks_that_cannot_be_are_refused(tmp_path: Path, value: str, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    row = '{{"timestamp": {}, "input_length": 1000, "output_length": 5, "hash_ids": {}}}\n'
    path.write_text(row.format(0, "[0]") + row.format(9, value))
    with pytest.raises(TraceError, match=r"line 2: .*" + message):
        told(path)


def test_more_blocks_than_are_kept_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlb_gym.trace.MAX_BLOCKS", 2)
    path = tmp_path / "many.csv"
    path.write_text(
        "timestamp,input_length,output_length,hash_ids\n0,1000,5,0 1\n9,1000,5,0 1\n10,9,5,2\n"
    )
    told_of = "line 4: hash_ids has named more than 2 different blocks by here, more than are kept"
    with pytest.raises(TraceError, match=told_of):
        told(path)


def test_a_column_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"no column 'hash_id'; nearest valid name: 'hash_ids'"):
        describe_trace(written(tmp_path), hash_ids_column="hash_id")
    trace = describe_trace(written(tmp_path)).model_copy(update={"hash_ids_column": "hash"})
    with pytest.raises(TraceError, match=r"no column 'hash'"):
        load_trace(trace)


def replay(columns: TraceColumns, shares: list[float], seed: int = 3) -> list[NDArray[np.float64]]:
    """Five laps of the trace, 70 s at 0.5 requests a second, by root."""
    replayed = TraceReplay(columns, 0.5, np.array(shares), seed, 0)
    parts = [replayed.chunk(k, 10.0 * k, 10.0 * k + 10.0) for k in range(7)]
    return [np.concatenate(rows) for rows in zip(*parts, strict=True)]


def test_every_lap_has_sessions_of_its_own(tmp_path: Path) -> None:
    columns = told(written(tmp_path))
    (rows,) = replay(columns, [1.0])
    without = replay(load_trace(describe_trace(written(tmp_path))), [1.0])[0]
    assert rows[:, :5].tobytes() == without.tobytes()
    row_of = {prompt: k for k, (_, prompt, _, _) in enumerate(ROWS)}
    row = np.array([row_of[int(prompt)] for prompt in rows[:, 1]])
    lap = np.cumsum(np.append(row[0] == 0, np.diff(row) < 0))
    expected = np.array(SESSION)[row]
    in_session = expected >= 0
    assert np.array_equal(rows[:, 5] < 0, ~in_session)
    assert np.array_equal(rows[:, 6] < 0, ~in_session)
    assert rows[:, 7].tolist() == np.array(PREFIX)[row].tolist()
    pairs = set(zip(lap[in_session], expected[in_session], rows[in_session, 5], strict=True))
    assert len(pairs) == len({p[:2] for p in pairs}) == len({p[2] for p in pairs}) > 16
    assert len({(p, h) for p, h in rows[in_session][:, 5:7].tolist()}) == len(pairs)


def test_a_session_stays_at_its_root_and_roots_keep_their_shares() -> None:
    count = 3_000
    rng = np.random.default_rng(5)
    columns = TraceColumns(
        np.arange(count, dtype=np.float64),
        np.full(count, 100.0),
        np.ones(count),
        session=rng.integers(-1, 1_000, count).astype(np.float64),
        prefix_tokens=np.full(count, 50.0),
    )
    replayed = TraceReplay(columns, 100.0, np.array([0.3, 0.0, 0.7]), 3, 0)
    roots = replayed.chunk(0, 0.0, 30.0)
    sessions = [set(rows[rows[:, 5] >= 0, 5].tolist()) for rows in roots]
    assert not sessions[1]
    assert not sessions[0] & sessions[2]
    low, high = stats.binom.interval(0.999, len(sessions[0] | sessions[2]), 0.3)
    assert low <= len(sessions[0]) <= high
    assert all((rows[:, 5] < 0).any() for rows in (roots[0], roots[2]))


def test_a_scenario_replays_a_traces_sessions_and_bursts_have_none(tmp_path: Path) -> None:
    trace = describe_trace(written(tmp_path), hash_ids_column="hash_ids").model_dump()
    burst = {"kind": "burst", "root": "west", "start": 0.0, "end": 1.0}
    demand = {"utilisation": 0.5, "trace": trace}
    scenario = two_cells(demand=demand, disturbances=[burst], warmup_s=0.0)
    workload = Workload(scenario, 4, 0)
    assert workload.columns == SESSION_COLUMNS
    east, west = workload.chunk(0)
    assert east.shape[1] == west.shape[1] == 8
    assert (east[:, 5] >= 0).any()
    quiet = Workload(two_cells(demand=demand), 4, 0).chunk(0)
    assert quiet[0].tobytes() == east.tobytes()
    extra = west[~np.isin(west[:, 0], quiet[1][:, 0])]
    assert np.all(extra[:, 5:] == (-1, -1, 0))
    assert set(extra[:, 1]) <= {float(prompt) for _, prompt, _, _ in ROWS}


def test_a_scenario_file_names_the_column_and_the_rest_follows(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "told.toml"
    path.write_text(
        'base = "global_six"\nname = "told"\n[demand.trace]\npath = "blocks.csv"\n'
        'hash_ids_column = "hash_ids"\nblock_tokens = 590\n'
    )
    trace = load_scenario(path).demand.trace
    assert trace is not None
    columns = load_trace(trace)
    assert columns.session is not None
    assert columns.session.tolist() == SESSION


def test_a_trace_and_drawn_sessions_exclude_each_other(tmp_path: Path) -> None:
    document = two_cells().model_dump()
    trace = describe_trace(written(tmp_path)).model_dump()
    document["demand"] = {"trace": trace, "sessions": {}}
    with pytest.raises(ScenarioError, match=r"demand.sessions .* leave one of them out"):
        scenario_from_dict(document)


@pytest.mark.parametrize(
    ("path", "hit", "sessions"),
    [
        pytest.param(CONVERSATION, 0.366, 7_925, marks=needs(CONVERSATION)),
        pytest.param(SYNTHETIC, 0.640, 2_224, marks=needs(SYNTHETIC)),
    ],
)
def test_mooncakes_blocks_are_hit_as_often_as_published(
    path: Path, hit: float, sessions: int
) -> None:
    finder = SessionFinder(512)
    runs = blocks = 0
    for row in TraceFile(path).rows():
        ids = block_ids(row.values[row.index_of["hash_ids"]], "hash_ids", "")
        runs += finder.run(ids)
        blocks += len(ids)
        finder.add(ids, int(row.values[row.index_of["input_length"]]))
    assert runs / blocks == pytest.approx(hit, abs=5e-4)
    columns = told(path)
    assert columns.session is not None
    assert columns.prefix_tokens is not None
    assert columns.session.max() + 1 == sessions
    # All but the shared system prompt and returns to early turns stays within sessions.
    saved = columns.prefix_tokens.sum() / columns.prompt_tokens.sum()
    assert hit - 0.04 < saved < hit + 0.02
    assert np.all(columns.prefix_tokens <= columns.prompt_tokens)


@needs(CONVERSATION)
def test_the_conversation_trace_replays_its_conversations() -> None:
    described = describe_trace(CONVERSATION, hash_ids_column="hash_ids").model_dump()
    scenario: Scenario = two_cells(demand={"utilisation": 0.5, "trace": described})
    assert mean_tokens(scenario)[0] == pytest.approx(12_035, abs=0.5)
    workload = Workload(scenario, 1, 0)
    rows = np.concatenate([r for k in range(60) for r in workload.chunk(k)])
    assert rows[:, 7].sum() / rows[:, 1].sum() == pytest.approx(0.334, abs=0.1)
