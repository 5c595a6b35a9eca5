"""The command line as strangers use it: `train.py evaluate` with options that make no sense."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable, Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from hypothesis import strategies as st

import train
from baselines import registry
from dlb_gym.evaluation import RESULTS, Result, run_all
from dlb_gym.rates import offered_rate_rps
from dlb_gym.runs import Run, require_playable
from tests.fuzz.documents import (
    ENDPOINTS,
    EVERYTHING,
    NUMBERS,
    SMALL,
    TEXTS,
    places,
    toml,
    toml_value,
)
from tests.fuzz.files import Case, put
from tests.fuzz.guard import LONGEST_MESSAGE, SHORTEST_MESSAGE, UnclearError
from tests.fuzz.policies import put_policy

MOST_RUNS = 100
MOST_WORK = 300_000
"""Requests, reports and decisions of all runs that an input may cost to play."""
_TRACE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n0,374,44\n1,396,109\n"
_SESSIONS = b'{"timestamp": 0, "input_length": 900, "output_length": 5, "hash_ids": [0]}\n'
FILES = (
    Case("file", ".toml", toml(SMALL).encode()),
    Case("file", "-of-two.toml", toml(ENDPOINTS).encode()),
    Case("file", "-with-everything.toml", toml(EVERYTHING).encode()),
    Case("file", "-damaged.toml", toml(SMALL).encode()[:200]),
    Case("file", ".csv", _TRACE),
    Case("file", "-sorted-wrongly.csv", _TRACE + b"0,1,1\n"),
    Case("file", ".jsonl", _SESSIONS + _SESSIONS.replace(b": 0,", b": 9,")),
    Case("file", "-rtt.csv", b"region,us-east4,europe-west1,asia-east1\n"
         b"us-east4,0.3,80,150\neurope-west1,81,0.4,220\nasia-east1,151,221,0.3\n"),
    Case("file", ".zip", b"PK"),
    Case("empty", "-empty"),
    Case("folder", "-folder"),
    Case("loop", "-loop"),
    Case("pipe", "-pipe"),
)  # fmt: skip
LEARNED = "learned"
NAMES = tuple(f"case{case.ending}" for case in FILES)
PLACES = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(
        ["none.csv", "", ".", "..", "/", "/dev/zero", "a" * 5_000, "case.toml/x", LEARNED,
         "\udcff.csv", "global_six", "case-of-two/one", "burst"]
    ),
    TEXTS,
)  # fmt: skip
COUNTS = st.one_of(
    st.integers(-1, 2).map(str),
    NUMBERS.map(repr),
    TEXTS,
    st.sampled_from(["nan", "1_0", "\uff11", "0x1", "", "9" * 5_000, "1e3", "-0", "True"]),
)
POLICIES = st.one_of(
    st.sampled_from(registry.names()),
    st.sampled_from(
        [LEARNED, f"./{LEARNED}/", "./case.zip", "./case-folder", "./case-pipe", "./case-loop",
         "runs/none", "mnbl", "os:getcwd", "math:pi", "sys:getrefcount", "json:loads", ":", "a:",
         ":b", "a:b:c", ".x:y", ".:", "..", "baselines.static:CapacitySplit", "baselines:static",
         "baselines.static:", "agents.loading:load", "\udcff:x", "x" * 5_000, "x" * 5_000 + "/"]
    ),
    TEXTS,
)  # fmt: skip


@st.composite
def _settings(draw: st.DrawFn) -> str:
    """KEY=VALUE, the key valid mostly and the value now and then."""
    known = st.sampled_from([".".join(map(str, path)) for path in places(EVERYTHING)])
    key = draw(st.one_of(known, known, known, TEXTS))
    text = draw(
        st.one_of(NUMBERS.map(toml_value), TEXTS, TEXTS.map(toml_value), st.just("[" * 5_000))
    )
    return f"{key}={text}" if draw(st.integers(0, 9)) else key


OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "--scenario": PLACES,
    "--family": st.one_of(st.just("appendix_b"), TEXTS),
    "--control-interval": COUNTS,
    "--set": _settings(),
    "--trace": PLACES,
    "--rtt": PLACES,
    "--policies": st.lists(POLICIES, max_size=3),
    "--seeds": COUNTS,
    "--settle": COUNTS,
    "--first-seed": COUNTS,
    "--name": st.one_of(TEXTS, st.sampled_from(["out", "../out", ".", "a" * 300, "\udcff", "-x"])),
    "--jobs": COUNTS,
}


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Arguments of a small evaluation, of which up to three options are something else."""
    chosen: dict[str, Any] = {"--scenario": "case.toml", "--policies": ["capacity"], "--seeds": "1",
                              "--settle": "0"}  # fmt: skip
    for option in draw(st.lists(st.sampled_from(sorted(OPTIONS)), max_size=3)):
        chosen[option] = draw(OPTIONS[option])
    if "--family" in chosen and draw(st.booleans()):
        del chosen["--scenario"]
    arguments = ["evaluate", "--set", "warmup_s=0.2", "--set", "horizon_s=0.4"]
    for option, given in chosen.items():
        arguments += [option, *(given if isinstance(given, list) else [given])]
    if draw(st.integers(0, 7)) == 0:
        odd = st.one_of(TEXTS, st.sampled_from(["--", "--help", "--sed", "--seeds", "-1", "--set"]))
        arguments.insert(draw(st.integers(1, len(arguments))), draw(odd))
    return arguments


class _TooDear(BaseException):
    """A valid evaluation that would take too long here."""


def check_command_line(arguments: Sequence[str], folder: Path) -> None:
    """One message and nothing written, or everything written as a whole."""
    _prepare(folder)
    before = _names(folder)
    said = {name: io.TextIOWrapper(io.BytesIO(), "utf-8", errors)
            for name, errors in (("out", "strict"), ("err", "backslashreplace"))}  # fmt: skip
    exits = False
    with (
        chdir(folder),
        patch.object(train, "require_playable", _require_playable),
        patch.object(train, "run_all", _run_all),
        redirect_stdout(said["out"]),
        redirect_stderr(said["err"]),
    ):
        try:
            status: Any = train.main(list(arguments))
        except SystemExit as stopped:  # tyro's own
            status, exits = stopped.code, True
        except _TooDear:
            return
    out, err = (_text(said[name]) for name in ("out", "err"))
    written = _names(folder) - before
    if status == 0 and not exits:
        _check_written(folder, out)
        return
    assert not written, f"refused, and yet there are {sorted(written)[:5]}"
    if exits:
        assert (status, bool(out), bool(err)) in ((0, True, False), (2, False, True)), "no message"
    else:
        assert status == 2
        _check_message(err)


def _check_message(err: str) -> None:
    line = err.removesuffix("\n")
    to_the_point = SHORTEST_MESSAGE < len(line.removeprefix("error: ")) < LONGEST_MESSAGE
    if not (err.startswith("error: ") and line.isprintable() and to_the_point):
        raise UnclearError(f"no error of one line: {err[:300]!r}")


def _check_written(folder: Path, out: str) -> None:
    """Records, results and report of one evaluation, each a whole."""
    (run,) = (folder / train.RUNS).iterdir()
    assert f"report: {train.RUNS / run.name / 'report.html'}" in out.splitlines()
    assert not list(run.rglob(".*")), "a part is left"
    lines = (run / "records.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line, parse_constant=_refuse) for line in lines]
    results = {path.stem: json.loads(path.read_bytes(), parse_constant=_refuse)
               for path in (run / RESULTS).iterdir()}  # fmt: skip
    assert {record["run_digest"]: record for record in records} == {
        digest: result["record"] for digest, result in results.items()
    }
    assert (run / "report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")


def _refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is in a file")


def _prepare(folder: Path) -> None:
    """The files that arguments name, and no earlier run."""
    shutil.rmtree(folder / train.RUNS, ignore_errors=True)
    if not (folder / LEARNED).exists():
        for case in FILES:
            put(case, folder)
        put_policy(folder / LEARNED)


def _names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    return stream.buffer.getvalue().decode()  # type: ignore[attr-defined]


def _require_playable(runs: Sequence[Run]) -> None:
    """As the command's own, unless there are many: it draws every seed's requests."""
    if len(runs) > MOST_RUNS:
        raise _TooDear
    require_playable(runs)


def _run_all(
    runs: Sequence[Run], folder: Path, jobs: int, on_finished: Callable[[int], None]
) -> list[Result]:
    """As the command's own, in this process and only what is small."""
    if sum(map(_work, runs)) > MOST_WORK:
        raise _TooDear
    return run_all(runs, folder, min(jobs, 1), on_finished)


def _work(run: Run) -> float:
    scenario = run.source().scenario(0, run.seed, 0)
    span_s = scenario.warmup_s + scenario.settle_s + scenario.horizon_s
    reports = span_s / scenario.probe_interval_s * len(scenario.cells)
    decisions = span_s / scenario.control_interval_s * 100
    return max(offered_rate_rps(scenario) * (span_s + 10.0), reports, decisions)
