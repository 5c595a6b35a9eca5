"""What is fuzzed: a name, a strategy of inputs, and a check that fails unless all is well."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

from agents.loading import load
from agents.saved_policy import DESCRIPTION, TENSORS, LoadError
from dlb_gym.envs import DLBEnv, DLBVectorEnv
from dlb_gym.evaluation import RESULTS, Result, canonical_json, run_all
from dlb_gym.network import NetworkError, load_rtt_csv
from dlb_gym.pettingzoo import DLBParallelEnv, parallel_env
from dlb_gym.rates import offered_rate_rps
from dlb_gym.report import write_report
from dlb_gym.runs import Run
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import (
    ScenarioError,
    load_endpoints,
    load_scenario,
    override,
    scenario_from_dict,
)
from dlb_gym.trace import describe_trace, load_trace
from dlb_gym.trace_file import TraceError
from tests.fuzz import files
from tests.fuzz.command_line import check_command_line, command_lines
from tests.fuzz.documents import (
    EVERYTHING,
    SCALARS,
    SEEDS,
    SMALL,
    VALUES,
    change,
    documents,
    places,
    toml,
)
from tests.fuzz.files import Case, put
from tests.fuzz.guard import named
from tests.fuzz.policies import description, put_policy, weights, with_hash

MOST_WORK = 300_000
"""Requests of a warm-up and reports of all cells that an input may cost to play."""
STEPS = 3
_LONG = SMALL | {"horizon_s": 1e4}
LOADING = (ScenarioError, TraceError, NetworkError)


class Target(NamedTuple):
    """Something that takes what strangers give.

    Attributes:
        name: Of the target.
        inputs: Hostile inputs.
        check: Fails unless the input is used correctly or refused by name; may use a folder.
        examples: Inputs of the short part in the suite.
    """

    name: str
    inputs: st.SearchStrategy[Any]
    check: Callable[[Any, Path], None]
    examples: int


def play(scenarios: Sequence[Scenario]) -> None:
    """A few steps, unless they cost too much: everything observed is finite."""
    with named(*LOADING):
        env = DLBVectorEnv(len(scenarios), scenario=list(scenarios))
        if max(map(_work, scenarios)) > MOST_WORK:
            return
        observation, _ = env.reset(seed=0)
        for _ in range(STEPS):
            assert np.isfinite(observation).all(), "an observation is not finite"
            actions = np.full(env.action_space.shape, 0.5, np.float32)
            observation, reward, *_ = env.step(actions)
            assert np.isfinite(reward).all(), "a reward is not finite"


def _work(scenario: Scenario) -> float:
    span_s = scenario.warmup_s + STEPS * scenario.control_interval_s
    reports = span_s / scenario.probe_interval_s * len(scenario.cells)
    return max(offered_rate_rps(scenario) * (span_s + 10.0), reports)


def check_document(document: Any, folder: Path) -> None:
    """As a dictionary, and as a file; both say the same."""
    loaded = None
    with named(*LOADING):
        loaded = load_endpoints(copy.copy(document))
    if loaded is not None:
        play(loaded)
    try:
        text = toml(document)
    except RecursionError:
        return
    path = put(Case("file", ".toml", text.encode()), folder)
    again = None
    with named(*LOADING):
        again = load_endpoints(path)
    assert (loaded is None) == (again is None), "a file and its content differ"


def check_scenario_file(case: Case, folder: Path) -> None:
    path = put(case, folder)
    with named(*LOADING):
        play(load_endpoints(path))


def check_changes(changes: Any, folder: Path) -> None:
    for base in (_loaded(0), _loaded(1)):
        with named(*LOADING):
            play([override(base, changes)])


@cache
def _loaded(number: int) -> Scenario:
    return scenario_from_dict(SEEDS[number])


def check_trace(case: Case, folder: Path) -> None:
    path = put(case, folder)
    with named(TraceError, says=path.name):
        trace = describe_trace(path)
        load_trace(trace)
        if path.suffix == ".jsonl":
            trace = describe_trace(path, hash_ids_column="hash_ids")
            load_trace(trace)
        play([override(_loaded(0), {"demand.trace": trace.model_dump()})])


def check_description(description: Any, folder: Path) -> None:
    """How a scenario describes a trace, which is a good file."""
    path = put(Case("file", ".csv", b"t,p,o\n0,100,10\n1,200,20\n2,5,0\n"), folder)
    trace = {"path": str(path), "time_column": "t", "prompt_column": "p", "output_column": "o"}
    with named(*LOADING):
        play([override(_loaded(0), {"demand.trace": trace | description})])


def check_matrix(case: Case, folder: Path) -> None:
    path = put(case, folder)
    with named(NetworkError, says=path.name):
        load_rtt_csv(path)
    with named(*LOADING):
        play([load_scenario(SMALL, rtt_csv=path)])


def check_keywords(keywords: Any, folder: Path) -> None:
    with named(*LOADING, ValueError):
        DLBEnv(**keywords).reset(seed=0)


@cache
def _env() -> DLBEnv:
    return DLBEnv(_LONG)


@cache
def _shared_env() -> DLBParallelEnv:
    return parallel_env(_LONG)


def check_action(action: Any, folder: Path) -> None:
    """Of all roots at once, and of one agent a root: both are refused, or do the same."""
    env, shared = _env(), _shared_env()
    if not shared.agents:
        env.reset(seed=0)
        shared.reset(seed=0)
    joint, parts = _both(action, shared.agents)
    done: list[tuple[Any, float]] = []
    with named(ValueError, says="action"):
        observation, reward, *_ = env.step(joint)
        done.append((observation, float(reward)))
    with named(ValueError, says="action"):
        _, rewards, *_ = shared.step(parts)
        done.append((shared.state(), *set(rewards.values())))
    assert len(done) != 1, "one face refuses what another one takes"
    for observation, reward in done:
        assert np.isfinite(observation).all()
        assert np.isfinite(reward)
        np.testing.assert_array_equal(observation, done[0][0])
        assert reward == done[0][1]


def _both(action: Any, agents: Sequence[str]) -> tuple[Any, Any]:
    """The action of all roots, and that of every agent; the same thing where it is neither."""
    if isinstance(action, dict) and set(action) == set(agents):
        return [action[name] for name in agents], action
    is_array = isinstance(action, list) or (isinstance(action, np.ndarray) and action.ndim > 0)
    if is_array and len(action) == len(agents):
        return action, dict(zip(agents, action, strict=True))
    return action, action


@cache
def _run_and_result() -> tuple[Run, Result]:
    scenario = override(_loaded(0), {"warmup_s": 0.5, "horizon_s": 0.5})
    run = Run("baselines.static:CapacitySplit", scenario=scenario, timeline=True)
    with tempfile.TemporaryDirectory() as folder:
        return run, run_all([run], folder)[0]


def check_result(content: Any, folder: Path) -> None:
    """A file in the place of a result that is finished."""
    run, result = _run_and_result()
    (folder / RESULTS).mkdir(exist_ok=True)
    path = folder / RESULTS / f"{run.digest}.json"
    case = content if isinstance(content, Case) else Case("file", "", content)
    made = put(case, folder)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    if case.kind != "missing":
        made.rename(path)
    with named(ValueError, says=path.name):
        found = run_all([run], folder)
        assert canonical_json(asdict(found[0])) == canonical_json(asdict(result))
        write_report(folder / "report.html", found, ())


def check_policy_files(case: tuple[str, Any], folder: Path) -> None:
    """A learned policy of which one file is hostile: it loads no code and acts, or is refused."""
    which, content = case
    path = folder / "policy"
    put_policy(path)
    if which == "structure":
        (path / DESCRIPTION).write_bytes(json.dumps(content).encode("utf-8", "replace"))
    else:
        made = put(content, folder)
        (path / which).unlink()
        if content.kind != "missing":
            made.rename(path / which)
            if which == TENSORS and content.kind == "file":
                (path / DESCRIPTION).write_bytes(with_hash(content.content))
    try:
        with named(LoadError, says=path.name):
            policy = load(path)
            spec = _env().task_spec
            policy.reset(spec, 1, 0)
            policy.act(spec.observation.space.sample()[None] * np.float32(1e6))
    finally:
        for name in (DESCRIPTION, TENSORS):
            if (path / name).is_dir() and not (path / name).is_symlink():
                (path / name).rmdir()
            (path / name).unlink(missing_ok=True)


@st.composite
def policies(draw: st.DrawFn) -> tuple[str, Any]:
    """Which of the two files is hostile, and its content."""
    if draw(st.booleans()):
        which = draw(st.sampled_from([DESCRIPTION, TENSORS]))
        content = description() if which == DESCRIPTION else weights()
        return which, draw(files.cases(st.just(content), ("",)))
    document = json.loads(description())
    for _ in range(draw(st.integers(1, 2))):
        found = places(document)
        change(draw, document, draw(st.sampled_from(found)), found)
    return "structure", document


@st.composite
def changes(draw: st.DrawFn) -> Any:
    """Dotted keys, valid and not, to values."""
    known = [".".join(map(str, path)) for path in places(EVERYTHING)]
    key = st.one_of(
        st.sampled_from(known),
        st.sampled_from(known),
        st.lists(st.sampled_from(["cells", "0", "-1", "²", "", "9" * 5_000, "servers", "name"]),
                 max_size=4).map(".".join),
        SCALARS,
    )  # fmt: skip
    value = st.one_of(SCALARS, VALUES, st.sampled_from([EVERYTHING, EVERYTHING["server"]]))
    made = draw(st.dictionaries(key, value, max_size=3))
    return draw(st.sampled_from([made, made, made, made, 5, "x", [1], None]))


_DESCRIPTIONS = st.dictionaries(
    st.sampled_from(
        ["path", "sha256", "time_column", "prompt_column", "output_column", "hash_ids_column",
         "block_tokens", "time_unit_s", "tim_column"]
    ),
    st.one_of(SCALARS, st.sampled_from(["t", "p", "o", "0" * 64, "/dev/zero", "a\0.csv"])),
    max_size=3,
)  # fmt: skip
_KEYWORD_VALUES = st.one_of(
    st.none(),
    SCALARS,
    VALUES,
    st.sampled_from(
        ["latency", "weights", "logits", "appendix_b", "tail(0.9)", "os:getcwd", "a:b"]
    ),
)
_KEYWORDS = st.dictionaries(
    st.sampled_from(
        ["scenario", "family", "changes", "trace", "rtt_csv", "action", "reward",
         "max_episode_steps", "max_cells", "render_mode"]
    ),
    _KEYWORD_VALUES,
    max_size=2,
)  # fmt: skip
_NUMBER_ARRAYS = st.sampled_from(
    [np.zeros((2, 2)), np.ones((2, 2), np.float16), np.full((2, 2), 1e300), np.zeros((0,)),
     np.full((2, 2), np.nan), np.full((2, 2), -np.inf), np.zeros((2, 2), np.int8),
     np.zeros((2, 2), complex), np.array([["a", "b"]] * 2), np.array([[None, 1]] * 2, dtype=object),
     np.zeros((2, 2), "datetime64[s]"), np.zeros((2, 2, 1)), np.array(5), np.zeros((2, 2), bool),
     np.full((2, 2), 2**64 - 1, np.uint64), np.zeros((2, 2), [("a", float)])]
)  # fmt: skip
_ROWS = st.one_of(
    st.lists(st.floats(-2.0, 2.0), min_size=2, max_size=2),
    st.lists(SCALARS, min_size=2, max_size=2),
    st.sampled_from([np.ones(2, np.float32), np.ones(3), np.array([0.0, np.nan]), None, 5]),
)
_AGENTS = st.sampled_from(["root_0", "root_1", "root_2", "", 0, None, ("root_0",)])
_ACTIONS = st.one_of(
    _NUMBER_ARRAYS,
    st.lists(_ROWS, min_size=2, max_size=2),
    st.fixed_dictionaries({"root_0": _ROWS, "root_1": _ROWS}),
    st.dictionaries(_AGENTS, _ROWS, max_size=3),
    VALUES,
    st.none(),
)


@st.composite
def _results(draw: st.DrawFn) -> Any:
    """Bytes of a result, damaged, or another document."""
    _, result = _run_and_result()
    content = json.loads(canonical_json(asdict(result)))
    if draw(st.booleans()):
        return draw(files.cases(st.just(canonical_json(content).encode()), ("",)))
    key = draw(st.sampled_from(["record", "histogram", "timeline", "sha256"]))
    content[key] = draw(VALUES)
    return json.dumps(content).encode("utf-8", "replace")


TARGETS = (
    Target("scenario", documents(), check_document, 60),
    Target("scenario file", files.cases(files.SCENARIO_TEXTS, (".toml",)), check_scenario_file, 60),
    Target("changes", changes(), check_changes, 60),
    Target("CSV trace", files.cases(files.csv_traces(), (".csv", ".csv.gz")), check_trace, 100),
    Target("JSON trace", files.cases(files.json_traces(), (".jsonl", ".jsonl.gz")), check_trace,
           100),
    Target("trace description", _DESCRIPTIONS, check_description, 60),
    Target("RTT matrix", files.cases(files.matrices(), (".csv",)), check_matrix, 100),
    Target("keywords", _KEYWORDS, check_keywords, 40),
    Target("action", _ACTIONS, check_action, 100),
    Target("policy", policies(), check_policy_files, 60),
    Target("result", st.deferred(_results), check_result, 60),
    Target("command line", command_lines(), check_command_line, 30),
)  # fmt: skip
