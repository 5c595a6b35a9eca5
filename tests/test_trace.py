"""Request traces: formats, columns, times, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path
from typing import Any

import pytest

from dlb_gym import trace_file
from dlb_gym.scenario import Trace
from dlb_gym.trace import TraceColumns, describe_trace, load_trace
from dlb_gym.trace_file import TraceError
from tests.scenarios_by_hand import DATA, needs

AZURE = DATA / "traces" / "azure_llm_2023_conv.csv"
MOONCAKE = DATA / "traces" / "mooncake_conversation.csv.gz"

AZURE_TEXT = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 23:59:59.9999999,374,44
2023-11-17 00:00:00.0000001,396,109
2023-11-17 00:00:00.0000001,879,0
2023-11-17T00:00:02.5,91,16
"""


def written(folder: Path, text: str, name: str = "trace.csv") -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text, encoding="utf-8", newline="")
    return path


def read(path: Path, **columns: Any) -> TraceColumns:
    return load_trace(describe_trace(path, **columns))


def as_lists(columns: TraceColumns) -> tuple[list[float], list[float], list[float]]:
    return (
        columns.time_s.tolist(),
        columns.prompt_tokens.tolist(),
        columns.output_tokens.tolist(),
    )


def test_wall_clock_keeps_tenths_of_microseconds_across_midnight(tmp_path: Path) -> None:
    columns = read(written(tmp_path, AZURE_TEXT))
    assert columns.time_s.tolist() == [0.0, 2e-7, 2e-7, 2.5000001]
    assert columns.prompt_tokens.tolist() == [374, 396, 879, 91]
    assert columns.output_tokens.tolist() == [44, 109, 0, 16]


def test_wall_clock_offsets_from_utc_count(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n{},1,1\n{},1,1\n{},1,1\n".format(
        "2024-01-01T00:00:00", "2024-01-01T02:00:01+02:00", "2024-01-01 00:00:02Z"
    )
    assert read(written(tmp_path, text)).time_s.tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz"])
def test_numbers_are_scaled_and_start_at_the_first(tmp_path: Path, name: str) -> None:
    text = "\ufefftimestamp,input_length,output_length,hash_ids\r\n500,7,5,0 1\r\n\r\n2500,8.0,6,2"
    path = written(tmp_path, text, name)
    assert describe_trace(path).time_unit_s == 1e-3
    assert as_lists(read(path)) == ([0.0, 2.0], [7, 8], [5, 6])


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines_give_what_csv_gives(tmp_path: Path, name: str) -> None:
    text = (
        '{"arrival_time": 1.5, "prompt_len": 3, "output_len": 4, "id": "x"}\n\n'
        '{"output_len": "6", "arrival_time": "3", "prompt_len": 5.0}\n'
    )
    assert as_lists(read(written(tmp_path, text, name))) == ([0.0, 1.5], [3, 5], [4, 6])


def test_named_columns_replace_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path, "when,in,output_length,timestamp\n0,1,2,9\n3,1,2,8\n")
    described = describe_trace(path, time_column="when", prompt_column="in", time_unit_s=60.0)
    assert (described.time_column, described.prompt_column) == ("when", "in")
    assert described.output_column == "output_length"
    assert load_trace(described).time_s.tolist() == [0.0, 180.0]


def test_the_unit_of_a_known_format_is_not_lent_to_other_columns(tmp_path: Path) -> None:
    path = written(tmp_path, "timestamp,in,out\n0,1,2\n3,1,2\n")
    described = describe_trace(
        path, time_column="timestamp", prompt_column="in", output_column="out"
    )
    assert described.time_unit_s == 1.0


def test_the_digest_is_that_of_the_file_on_disk(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE_TEXT, "a.csv.gz")
    assert describe_trace(path).sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_columns_are_read_only_and_kept_by_content(tmp_path: Path) -> None:
    first, second = written(tmp_path, AZURE_TEXT, "a.csv"), written(tmp_path, AZURE_TEXT, "b.csv")
    columns = read(first)
    assert read(second) is columns
    with pytest.raises(ValueError, match="read-only"):
        columns.time_s[0] = 1.0


def test_mean_tokens_are_those_of_the_rows(tmp_path: Path) -> None:
    columns = read(written(tmp_path, AZURE_TEXT))
    assert columns.mean_tokens == (435.0, 42.25)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE_TEXT + "2023-11-17 00:00:03,5,5\n")
    described = describe_trace(path)
    path.write_text(AZURE_TEXT + "2023-11-17 00:00:03,5,6\n")
    with pytest.raises(TraceError, match=r"has changed: .* restore the file or describe"):
        load_trace(described)


def test_a_file_over_the_limit_is_refused_plain_or_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trace_file, "MAX_TRACE_BYTES", 200)
    rows = "timestamp,input_length,output_length\n" + "1,1,1\n" * 100
    for name, message in (
        ("a.csv", r"a\.csv' holds \d+ bytes or more; at most 200 are read: cut out a time window"),
        ("a.csv.gz", r"a\.csv\.gz' holds more than 200 bytes; cut out a time window"),
    ):
        path = written(tmp_path, rows, name)
        with pytest.raises(TraceError, match=message):
            describe_trace(path)


def test_a_known_column_that_is_missing_names_the_nearest(tmp_path: Path) -> None:
    path = written(tmp_path, AZURE_TEXT)
    told = (
        r"has no column 'ContextToken'; nearest valid name: 'ContextTokens'; its columns are TIMEST"
    )
    with pytest.raises(TraceError, match=told):
        describe_trace(path, prompt_column="ContextToken")
    described = describe_trace(path).model_copy(update={"output_column": "GenerateTokens"})
    with pytest.raises(TraceError, match=r"no column 'GenerateTokens'; .*'GeneratedTokens'"):
        load_trace(described)


def test_unknown_columns_ask_for_names(tmp_path: Path) -> None:
    with pytest.raises(
        TraceError, match=r"columns a, b, c; these are not known \(.*\), so name time_column"
    ):
        describe_trace(written(tmp_path, "a,b,c\n1,2,3\n"))


HEADER = "timestamp,input_length,output_length\n"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0,1,1\n5,1,1\n\n4,1,1\n", r"line 5: the time '4' comes before '5'.* sort the file by"),
        ("0,1,1\nnan,1,1\n", r"line 3: the time 'nan' is not finite; correct or drop the line"),
        ("0,1,1\nnoon,1,1\n", r"line 3: the time 'noon' is neither a number nor wall clock"),
        ("0,1,1\n2024-13-01 00:00:00,1,1\n", r"line 3: the time '2024-13-01 00:00:00' is neither"),
        ("0,1,1\n2024-01-01 00:00:00,1,1\n", r"line 3: time_unit_s = 0.001 has no meaning"),
        (
            "0,1,1\n5,-3,1\n",
            r"line 3: input_length = '-3' must be a whole number from 0 to 100000000; correct",
        ),
        ("0,1,1\n5,1,nan\n", r"line 3: output_length = 'nan' must be a whole number"),
        ("0,1,1\n5,1,\n", r"line 3: output_length = '' must be a whole number"),
        ("0,1,1\n5,1.5,1\n", r"line 3: input_length = '1.5' must be a whole number"),
        ("0,1,1\n5,1e12,1\n", r"line 3: input_length = '1e12' must be .* from 0 to 100000000"),
        ("0,1,1\n5,1\n", r"line 3: 2 values for 3 columns; correct or drop the line"),
        ('0,1,1\n5,"1,1\n', r"line 3: not valid CSV \(.*\); correct the line"),
        ("0,1,1\n0,1,1\n", r"all 2 requests have the same time"),
        ("0,1,1\n", r"all 1 requests have the same time"),
        ("0,0,0\n5,0,0\n", r"no request has any tokens; check the column names"),
        ("", r"has no requests; give a file with two or more"),
    ],
)
def test_a_bad_row_is_refused_with_its_line(tmp_path: Path, rows: str, message: str) -> None:
    path = written(tmp_path, HEADER + rows)
    with pytest.raises(TraceError, match=message):
        read(path)


def test_numbers_and_wall_clock_do_not_mix(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n0,1,1\n2024-01-01 00:00:00,1,1\n"
    with pytest.raises(TraceError, match="line 3: numbers and wall-clock times are mixed"):
        read(written(tmp_path, text))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{broken", r"line 2: not valid JSON \(.*\); correct or drop the line"),
        ("[1, 2, 3]", r"line 2: not a JSON object; write names and values in braces"),
        (
            '{"timestamp": 1, "input_length": 1}',
            r"line 2: there is no 'output_length'; correct or drop the line",
        ),
        ('{"timestamp": 1, "input_length": null, "output_length": 1}', r"input_length = 'None'"),
        ('{"timestamp": 1, "input_length": NaN, "output_length": 1}', r"input_length = 'nan'"),
        ('{"timestamp": true, "input_length": 1, "output_length": 1}', r"the time 'True' is"),
        ('{"timestamp": 1, "input_length": 1' + "0" * 400 + ', "output_length": 1}', "whole"),
    ],
)
def test_a_bad_json_line_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    first = '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
    with pytest.raises(TraceError, match=message):
        read(written(tmp_path, first + line + "\n", "a.jsonl"))


def test_a_file_that_is_missing_empty_damaged_or_of_another_kind_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(TraceError, match="does not exist"):
        describe_trace(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(TraceError, match="is no regular file; give one that was saved to disk"):
        describe_trace(tmp_path / "folder.csv")
    with pytest.raises(TraceError, match="is empty; give a file with a header and requests"):
        describe_trace(written(tmp_path, "", "a.csv"))
    with pytest.raises(TraceError, match="is empty; give a file with two or more requests"):
        describe_trace(written(tmp_path, "\n", "a.jsonl"))
    with pytest.raises(TraceError, match=r"must end in one of \.csv"):
        describe_trace(written(tmp_path, AZURE_TEXT, "a.txt"))
    with pytest.raises(TraceError, match="the column 'a' stands twice; rename one"):
        describe_trace(written(tmp_path, "a,a\n1,2\n"))
    packed = written(tmp_path, AZURE_TEXT, "a.csv.gz")
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(TraceError, match=r"a\.csv\.gz' cannot be read: .*; restore the file"):
        describe_trace(packed)


@pytest.mark.parametrize("unit_s", [0.0, -1.0, float("nan"), 1e10])
def test_a_number_that_describes_no_trace_is_refused_by_its_key(
    tmp_path: Path, unit_s: float
) -> None:
    told = r"^trace '.*trace\.csv' cannot be described; time_unit_s: .*; give other numbers$"
    with pytest.raises(TraceError, match=told):
        describe_trace(written(tmp_path, AZURE_TEXT), time_unit_s=unit_s)


def test_a_missing_file_is_refused_when_loaded(tmp_path: Path) -> None:
    trace = Trace(
        path=str(tmp_path / "gone.csv"),
        sha256="0" * 64,
        time_column="a",
        prompt_column="b",
        output_column="c",
    )
    with pytest.raises(TraceError, match="does not exist"):
        load_trace(trace)


@needs(AZURE)
def test_the_azure_conversation_trace_reads_as_published() -> None:
    columns = read(AZURE)
    assert columns.time_s.size == 19_366
    assert columns.mean_tokens == pytest.approx((1_155, 211), abs=0.5)
    assert columns.time_s.size / columns.time_s[-1] == pytest.approx(5.53, abs=5e-3)
    assert columns.time_s[1] == pytest.approx(4.3145790, abs=1e-12)


@needs(MOONCAKE)
def test_the_mooncake_conversation_trace_reads_as_published() -> None:
    columns = read(MOONCAKE)
    assert columns.time_s.size == 12_031
    assert columns.mean_tokens == pytest.approx((12_035, 343), abs=0.5)
    assert columns.time_s[-1] == pytest.approx(3_537, abs=0.5)
