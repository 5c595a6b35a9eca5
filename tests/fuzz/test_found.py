"""What fuzzing and its preparation found, each once: refused by name now, or loaded."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest

import train
from dlb_gym.envs import DLBEnv
from dlb_gym.evaluation import RESULTS, run_all
from dlb_gym.network import NetworkError, load_rtt_csv
from dlb_gym.runs import Run
from dlb_gym.scenario_source import ScenarioError, load_scenario, override, scenario_from_dict
from dlb_gym.trace import describe_trace, load_trace
from dlb_gym.trace_file import TraceError
from tests.fuzz.documents import SMALL, nested

LONG = 10**5_000
"""A whole number that Python does not write."""


def scenario_file(folder: Path, text: str) -> Path:
    path = folder / "case.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = " + "[" * 5_000, "nests tables or lists more than 16 deep"),
        ("name = " + "{a = " * 5_000, "nests tables or lists more than 16 deep"),
        ("name = " + "[" * 90 + "]" * 90, "nests tables or lists more than 16 deep"),
        ("a." * 100_000 + "a = 1", "a key of more than 16 tables"),
        ('"a" . ' * 100_000 + "a = 1", "a key of more than 16 tables"),
        ("horizon_s = " + "9" * 5_000, "is not readable TOML: Exceeds the limit"),
        ("name = 'a\0b'", "is not readable TOML"),
        (f"{'a' * 10_000} = 1", f"scenario key '{'a' * 80}' is unknown"),
    ],
)
def test_a_hostile_scenario_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        load_scenario(scenario_file(tmp_path, text))


def test_a_byte_order_mark_and_other_ends_of_lines_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "case.toml"
    path.write_bytes(b'\xef\xbb\xbfbase = "global_six"\r\nhorizon_s = 30.0\r\n')
    assert load_scenario(path) == override(load_scenario("global_six"), {"horizon_s": 30.0})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (5, "scenario = '5' must be a name, the path"),
        (b"global_six", "must be a name, the path"),
        ("a\0b.toml", "cannot be read: embedded null byte"),
        ("a" * 5_000 + ".toml", "cannot be read: File name too long"),
        ({"base": ["global_six"]}, r"base = .*global_six.* is no shipped scenario"),
        ({"base": LONG}, "base = 'a whole number of thousands of digits' is no shipped"),
        ({"base": "global_six", 5: 1}, "scenario key '5' must be text"),
        ({"base": "global_six", "cells.².servers": 1}, "'cells.²' does not lead to a value"),
        ({"base": "global_six", f"cells.{'1' * 5_000}.name": "a"}, "does not lead to a value"),
        ({"base": "global_six", "horizon_s": LONG}, "'horizon_s'.*thousands of digits"),
        ({"base": "global_six", "name": nested(3_000, of_tables=True)}, "more than 16 deep"),
        ({"base": "global_six", "disturbances": [{"kind": ["burst"] * 9_000}]}, "kind.*unknown"),
        ({"base": "global_six", "error_aversion.quiet_answers": 10**400}, "quiet_answers"),
        ({"base": "global_six", "affinity.cache_tokens": 2**63}, "affinity"),
        ({"name": "x", "endpoints": b"abc"}, "'endpoints' must list at least one table"),
    ],
)  # fmt: skip
def test_a_hostile_document_is_refused(document: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario(document)
    assert len(str(caught.value)) < 7_000


def test_of_thousands_of_faults_the_first_are_told() -> None:
    with pytest.raises(
        ScenarioError, match=r"(?s)'cells.0.name' is missing.*and 2,9\d\d more"
    ) as caught:
        load_scenario(SMALL | {"cells": [{"servers": "many"}] * 1_000, "roots": []})
    assert len(str(caught.value).splitlines()) == 21


@pytest.mark.parametrize("changes", [5, [("horizon_s", 1.0)], "horizon_s"])
def test_changes_that_are_no_mapping_are_refused(changes: Any) -> None:
    with pytest.raises(ScenarioError, match="changes must map dotted keys to values"):
        override(load_scenario("global_six"), changes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("horizon_s", 1e12),
        ("tokens.prompt.mean_tokens", 1e300),
        ("tokens.output.shape", 5e-324),
        ("demand.utilisation", 5e-324),
        ("roots.0.demand", 1e308),
        ("cells.0.decode_s_per_token", 5e-324),
        ("error_penalty", 1e308),
        ("network.mean_rtt_s", 1e300),
    ],
)
def test_numbers_that_no_system_has_are_refused_by_name(key: str, value: float) -> None:
    with pytest.raises(ScenarioError, match=re.escape(f"(got '{value}')")) as caught:
        override(load_scenario("global_six"), {key: value})
    assert f"scenario key '{key}'" in str(caught.value)


def test_a_trace_beside_a_table_that_is_none_names_the_table(tmp_path: Path) -> None:
    matrix = tmp_path / "rtt.csv"
    matrix.write_text("region,us-east4\nus-east4,1\n", encoding="utf-8")
    with pytest.raises(ScenarioError, match="'network' must be a table"):
        load_scenario(SMALL | {"network": 5}, rtt_csv=matrix)


@pytest.mark.parametrize("ending", [".toml", ".csv", ".csv.gz", ".jsonl"])
def test_a_pipe_is_refused_without_waiting_for_it(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"pipe{ending}"
    os.mkfifo(path)
    if ending == ".toml":
        with pytest.raises(ScenarioError, match="is no regular file"):
            load_scenario(path)
        return
    with pytest.raises(TraceError, match="is no regular file"):
        describe_trace(path)
    with pytest.raises(NetworkError, match="is no regular file"):
        load_rtt_csv(path)


@pytest.mark.parametrize("path", [5, None, ["a.csv"], b"a.csv"])
def test_a_path_that_is_none_is_refused(path: Any) -> None:
    with pytest.raises(TraceError, match="a trace must be the path of a file"):
        describe_trace(path)
    with pytest.raises(NetworkError, match="an RTT file must be the path of a file"):
        load_rtt_csv(path)


def test_files_of_many_gigabytes_are_refused_unread(tmp_path: Path) -> None:
    for name in ("a.toml", "a.csv"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(10 * 2**30)  # a hole, which takes no space
    for load, error in ((load_scenario, ScenarioError), (load_rtt_csv, NetworkError)):
        with pytest.raises(error, match=r"holds 10,737,418,240 bytes or more; at most"):
            load(tmp_path / ("a.toml" if load is load_scenario else "a.csv"))
    with pytest.raises(TraceError, match=r"holds 10,737,418,240 bytes.*cut out a time window"):
        describe_trace(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("1e308,1,1\n-1e308,1,1\n", "comes before"),
        ("-1e308,1,1\n1e308,1,1\n", "inf s lie between its first and last request"),
        ("0,1,1\n5e-324,1,1\n", "4.94e-324 s lie between its first and last request"),
        ("0,1,1\n1e12,1,1\n", r"1e\+12 s lie between its first and last request"),
        (f"0,1,1\n1,{'9' * 5_000},1\n", "must be a whole number from 0"),
        ("0,1,1\n" + "1" * 5_000_000, "line 3: more than 4,194,304 characters"),
    ],
)
def test_a_hostile_trace_is_refused_by_line(tmp_path: Path, rows: str, message: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n" + rows, encoding="utf-8")
    with pytest.raises(TraceError, match=message):
        load_trace(describe_trace(path))


def test_a_unit_that_makes_times_infinite_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens\n0,1,1\n1e300,1,1\n")
    with pytest.raises(TraceError, match="inf s lie between its first and last request"):
        load_trace(describe_trace(path, time_unit_s=1e9))
    for unit_s in (0.0, -1.0, float("nan"), 1e300):
        with pytest.raises(TraceError, match="time_unit_s: Input should be"):
            describe_trace(path, time_unit_s=unit_s)


def test_a_header_of_a_hundred_thousand_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(",".join(map(str, range(100_000))) + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match="has 100,000 columns; at most 1,000 are read"):
        describe_trace(path)


def test_a_json_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"timestamp": 0, "timestamp": 1, "input_length": 1, "output_length": 1}\n')
    with pytest.raises(TraceError, match=r"line 1: not valid JSON .the name 'timestamp' stands tw"):
        describe_trace(path)


def test_round_trips_that_no_factor_brings_to_a_mean_are_refused() -> None:
    """The only arc between different names has a round trip of almost 0."""
    places = [{"name": name, "region": "us-east4"} for name in ("a", "b")]
    document = SMALL | {
        "cells": [place | {"servers": 1} for place in places],
        "roots": [{"name": "b", "region": "us-east4", "demand": 1.0}],
        "network": {"rtt_s": [[5e-324, 0.0]], "mean_rtt_s": 1.0},
    }
    with pytest.raises(NetworkError, match="multiplies all round trips by inf"):
        DLBEnv(document)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_what_lies_in_the_place_of_a_result_is_named(tmp_path: Path, kind: str) -> None:
    scenario = override(scenario_from_dict(SMALL), {"warmup_s": 0.1, "horizon_s": 0.1})
    run = Run("baselines.static:CapacitySplit", scenario=scenario)
    (tmp_path / RESULTS).mkdir()
    path = tmp_path / RESULTS / f"{run.digest}.json"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(ValueError, match=f"{run.digest}.json is no file"):
        run_all([run], tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--set", "outage=" + "[" * 5_000), "the value is not TOML: maximum recursion depth"),
        (("--set", "horizon_s=" + "9" * 5_000), "the value is not TOML: Exceeds the limit"),
        (("--set", "horizon_s=" + " " * 50_000), "has 50,010 characters; at most 20,000 are read"),
        (("--set", "horizon_s=1\nwarmup_s = 2"), "holds more than one key; repeat --set"),
        (("--seeds", "1000000000"), "--seeds 1,000,000,000 must be at most 10,000"),
        (("--name", "a" * 201), "take at most 200 bytes"),
        (("--policies", "sys:getrefcount"), "policy 'sys:getrefcount' does not take {}"),
        (("--policies", ".x:y"), "policy = '.x:y' must be"),
        (("--policies", "\udcff:x"), "cannot be imported"),
        (("--first-seed", str(2**63)), f"seed = {2**63} must be at most {2**63 - 1}"),
        (("--policies", "a\0/"), "'a\\x00' holds no learned policy"),
        (("--name", "\u00e9" * 101), "take at most 200 bytes"),
    ],
)  # fmt: skip
def test_a_hostile_command_line_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert train.main(["evaluate", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert message in said
    assert said.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_there_are_no_more_processes_than_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def parallel(n_jobs: int, return_as: str) -> Any:
        asked.append(n_jobs)
        return lambda calls: (function(*given) for function, given, _ in calls)

    monkeypatch.setattr(joblib, "Parallel", parallel)
    scenario = override(scenario_from_dict(SMALL), {"warmup_s": 0.1, "horizon_s": 0.1})
    runs = [Run("baselines.static:CapacitySplit", scenario=scenario, seed=seed) for seed in (1, 9)]
    assert len(run_all(runs, tmp_path, jobs=10**9)) == 2
    assert asked == [2]


def test_a_scenario_of_the_longest_name_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = ["--seeds", "1", "--settle", "0", "--policies", "capacity"]
    for last in (1, 2):
        path = tmp_path / f"{'x' * 240}{last}.toml"
        path.write_text(f'base = "global_six"\nwarmup_s = 0.1\nhorizon_s = 0.{last}\n')
        assert train.main(["evaluate", "--scenario", str(path), *quick]) == 0
    assert len(list((tmp_path / "runs").iterdir())) == 2


def test_the_engine_is_reached_by_finite_numbers_alone() -> None:
    """The smallest and largest numbers that are valid, together."""
    extreme = {
        "tokens.prompt": {"loc_tokens": 0, "shape": 1e-3, "mean_tokens": 1e8},
        "cells.0.prefill_s_per_token": 1e9,
        "cells.1.decode_s_per_token": 1e9,
        "roots.0.demand": 1e12,
        "error_penalty": 1e9,
    }
    env = DLBEnv(SMALL, changes=extreme)
    observation, _ = env.reset(seed=0)
    assert np.isfinite(observation).all()
    for _ in range(3):
        observation, reward, *_ = env.step(np.full((2, 2), 0.5, np.float32))
        assert np.isfinite(observation).all()
        assert np.isfinite(reward)
