"""(policy x scenario x seed) in, one record each out.

A `Run` is everything that decides a result, and its digest names the result's file: what is
finished is never computed twice, and a crash loses only what was under way. Runs of one policy and
one scenario whose seeds follow each other share a batch, one a row; a row's result does not depend
on the batch.

The policy decides from the end of warm-up to the horizon. Arrivals stop there and the system drains
under the last decision, so every policy is judged on the same requests. Nothing here asks what kind
of policy it runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.episodes import EpisodeSource, FamilyScenarios, FixedScenarios
from dlb_gym.policy import Policy
from dlb_gym.scenario import Scenario
from dlb_gym.task import Task
from dlb_gym.timeline import Timeline

FIRST_HELD_OUT_SEED = 1_000_000
"""Evaluation seeds start here; training uses seeds below it."""
MAX_BATCH = 64
RESULTS = "results"

Record = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One policy on one scenario with one seed.

    Attributes:
        policy: `module:attribute` of a class or function that returns a `Policy`.
        keywords: Its arguments, JSON values.
        scenario: The scenario; None where a family draws it.
        family: Name of the family that draws a scenario from the seed.
        changes: What to override in it (see `scenario_source.override`).
        seed: Seed of the requests and of all else that is random, >= 0.
        label: Name in results; None: the policy's own.
        files: Files that the policy reads; their content is part of the digest.
        timeline: Record RIF, utilisation and routing over time.

    Raises:
        ValueError: Neither or both of scenario and family are given, the policy is no
            `module:attribute`, the seed is negative, or a keyword is no JSON value.
    """

    policy: str
    keywords: Mapping[str, Any] = field(default_factory=dict)
    scenario: Scenario | None = None
    family: str | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = FIRST_HELD_OUT_SEED
    label: str | None = None
    files: tuple[str, ...] = ()
    timeline: bool = False

    def __post_init__(self) -> None:
        if (self.scenario is None) == (self.family is None):
            raise ValueError("a Run holds either a scenario or a family; give exactly one of them")
        if self.changes and self.family is None:
            raise ValueError("changes belong to a family; override the scenario itself instead")
        if not all(self.policy.partition(":")):
            raise ValueError(f'policy = {self.policy!r} must be "module:attribute"')
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} is negative; seeds must be at least 0")
        try:
            json.dumps([dict(self.keywords), dict(self.changes)], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"keywords and changes of a Run must be finite JSON values: {error}"
            ) from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 (16 hex digits) of whatever decides the result, this package's code included."""
        content = self._group() | {"seed": self.seed, "timeline": self.timeline}
        return _sha256(_json(content).encode())

    def _group(self) -> dict[str, Any]:
        """What runs of one batch have in common."""
        return {
            "policy": self.policy,
            "keywords": dict(self.keywords),
            "scenario": None if self.scenario is None else self.scenario.digest(),
            "family": self.family,
            "changes": dict(self.changes),
            "label": self.label,
            "files": [_sha256(Path(path).read_bytes()) for path in self.files],
            "version": package_version(),
            "code": [source_digest("dlb_gym"), source_digest(self.policy.partition(":")[0])],
        }

    @cached_property
    def group(self) -> str:
        """Runs of one group may share a batch."""
        return _sha256(_json(self._group()).encode())

    def source(self) -> EpisodeSource:
        """Where the task gets its scenarios."""
        if self.scenario is not None:
            return FixedScenarios([self.scenario])
        return FamilyScenarios(self.family or "", self.changes)

    def make_policy(self) -> Policy:
        """The policy.

        Raises:
            ValueError: It cannot be imported or is no `Policy`.
        """
        module, _, attribute = self.policy.partition(":")
        try:
            make = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"policy {self.policy!r} cannot be imported: {error}") from error
        try:
            policy = make(**self.keywords)
        except TypeError as error:
            raise ValueError(
                f"policy {self.policy!r} does not take {dict(self.keywords)}: {error}"
            ) from error
        if not isinstance(policy, Policy):
            raise ValueError(
                f"policy {self.policy!r} made a {type(policy).__name__}, which is no "
                "dlb_gym.policy.Policy"
            )
        return policy


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes:
        record: Flat, JSON values; a latency is None where no request was answered.
        histogram: Measured latencies: bin of `measurements.bin_edges_s` -> requests.
        timeline: See `Timeline.columns`; None where not asked for.
    """

    record: Record
    histogram: dict[int, int]
    timeline: dict[str, Any] | None


def package_version() -> str:
    """Version of the installed package."""
    try:
        return metadata.version("dlb-gym")
    except metadata.PackageNotFoundError:
        return "not installed"


@cache
def source_digest(module: str) -> str:
    """SHA-256 (16 hex digits) of the Python files of the module's top-level package.

    Raises:
        ValueError: The module cannot be imported.
    """
    top = module.partition(".")[0]
    try:
        location = import_module(top).__file__
    except ImportError as error:
        raise ValueError(f"module {module!r} cannot be imported: {error}") from error
    if location is None:
        return top
    path = Path(location)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return _sha256(b"\0".join(file.read_bytes() for file in files))


def rollout(runs: Sequence[Run]) -> list[Result]:
    """Runs a batch: one policy, one scenario or family, seeds that follow each other.

    Raises:
        ValueError: The runs cannot share a batch, or the policy cannot be made.
    """
    first = runs[0]
    fits = all(
        run.group == first.group and run.seed == first.seed + r for r, run in enumerate(runs)
    )
    if not fits:
        raise ValueError(
            "a batch holds runs that differ in seed only, seeds one after the other; "
            "use run_all for any other list"
        )
    policy = first.make_policy()
    task = Task(first.source(), len(runs))
    observation = task.reset(seeds=[run.seed for run in runs])
    policy.reset(task.spec, len(runs), first.seed)
    timelines = _play(task, policy, observation, runs)
    in_system = [task.summary(r)["in_system_at_end"] for r in range(len(runs))]
    task.drain()
    return [
        Result(
            record=_record(task, r, policy, run, in_system[r]),
            histogram=_histogram(task, r),
            timeline=timelines[r].columns() if r in timelines else None,
        )
        for r, run in enumerate(runs)
    ]


def _play(
    task: Task, policy: Policy, observation: NDArray[np.float32], runs: Sequence[Run]
) -> dict[int, Timeline]:
    """Moves every row to its horizon; a row that is there waits for the others."""
    timelines = {
        r: Timeline(task, r, _scenario(task, r)) for r, run in enumerate(runs) if run.timeline
    }
    active = np.ones(len(runs), dtype=np.bool_)
    while active.any():
        step = task.step(policy.act(observation), None if active.all() else active)
        for r, timeline in timelines.items():
            if active[r]:
                timeline.record()
        observation = step.observation
        active = ~step.truncated
    return timelines


def _scenario(task: Task, r: int) -> Scenario:
    scenario = task.scenarios[r]
    if scenario is None:
        raise ValueError(f"row {r} has no scenario; reset the task first")
    return scenario


def _record(task: Task, r: int, policy: Policy, run: Run, in_system_at_horizon: float) -> Record:
    scenario = _scenario(task, r)
    name = run.label or policy.name
    interval_ms = scenario.control_interval_s * 1e3
    metrics = {key: _finite(value) for key, value in task.summary(r).items()}
    del metrics["in_system_at_end"]  # 0 after the drain
    metrics["latency_with_errors_s"] = _latency_with_errors_s(metrics, scenario)
    return {
        "label": f"{name} @ {interval_ms:g} ms",
        "policy": name,
        "information": policy.information,
        "scenario": scenario.name,
        "seed": run.seed,
        "control_interval_s": scenario.control_interval_s,
        "probe_interval_s": scenario.probe_interval_s,
        "horizon_s": scenario.horizon_s,
        "settle_s": scenario.settle_s,
        "in_system_at_horizon": in_system_at_horizon,
        **metrics,
        "made_by": run.policy,
        "keywords": _json(dict(run.keywords)),
        "scenario_digest": scenario.digest(),
        "run_digest": run.digest,
        "version": package_version(),
    }


def _latency_with_errors_s(metrics: Record, scenario: Scenario) -> float | None:
    """Mean over answered requests and errors, an error costing error_penalty zero-load times."""
    answered, errors = metrics["answered"], metrics["errors"]
    if answered + errors == 0:
        return None
    answered_s = answered * (metrics["latency_mean_s"] or 0.0)
    errors_s = errors * scenario.error_penalty * metrics["zero_load_time_s"]
    return float((answered_s + errors_s) / (answered + errors))


def _finite(value: float) -> int | float | None:
    """JSON has no NaN: None says that there is no such number."""
    if isinstance(value, int | np.integer):
        return int(value)
    return float(value) if math.isfinite(value) else None


def _histogram(task: Task, r: int) -> dict[int, int]:
    counts = task.simulator.measurements().latency_histogram[r]
    return {int(index): int(counts[index]) for index in np.flatnonzero(counts)}


def run_all(
    runs: Sequence[Run],
    directory: str | Path,
    jobs: int = 1,
    on_finished: Callable[[int], None] | None = None,
) -> list[Result]:
    """Results of all runs, in their order; those finished before are read, not computed.

    Args:
        runs: Any runs.
        directory: A file for every result goes to its folder `results`, complete or not at all.
        jobs: Processes; more than one need joblib.
        on_finished: Called with the number of runs that just ended.

    Raises:
        ValueError: A policy cannot be made, jobs < 1, or a file in the folder is no result.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    folder = Path(directory) / RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    found = {run.digest: _read(folder, run) for run in runs}
    missing = list({run.digest: run for run in runs if found[run.digest] is None}.values())
    report = on_finished or (lambda count: None)
    report(len(runs) - len(missing))
    for results in _map(batches(missing), folder, jobs):
        found |= {str(result.record["run_digest"]): result for result in results}
        report(len(results))
    return [result for run in runs if (result := found[run.digest]) is not None]


def batches(runs: Iterable[Run]) -> list[list[Run]]:
    """Groups runs for `rollout`: seeds that follow each other, at most 64 rows."""
    batches: list[list[Run]] = []
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    for group in groups.values():
        for run in sorted(group, key=lambda run: run.seed):
            last = batches[-1] if batches else []
            follows = last and last[0].group == run.group and last[-1].seed + 1 == run.seed
            if follows and len(last) < MAX_BATCH:
                last.append(run)
            else:
                batches.append([run])
    return batches


def _map(work: list[list[Run]], folder: Path, jobs: int) -> Iterator[list[Result]]:
    if jobs == 1 or len(work) < 2:
        for batch in work:
            yield _finish(batch, folder)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from parallel(delayed(_finish)(batch, folder) for batch in work)


def _finish(batch: list[Run], folder: Path) -> list[Result]:
    results = rollout(batch)
    for run, result in zip(batch, results, strict=True):
        write_aside(folder / f"{run.digest}.json", _json(asdict(result)))
    return results


def _read(folder: Path, run: Run) -> Result | None:
    path = folder / f"{run.digest}.json"
    if not path.is_file():
        return None
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        histogram = {int(index): int(count) for index, count in stored["histogram"].items()}
        return Result(stored["record"], histogram, stored["timeline"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is no result of an evaluation ({error}); delete it") from error


def write_aside(path: Path, text: str) -> None:
    """Writes a file that is, at every instant, the old one or the new one, never a part."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        aside.write_text(text, encoding="utf-8", newline="\n")
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def seeded(run: Run, count: int, first: int = FIRST_HELD_OUT_SEED) -> list[Run]:
    """The run under `count` seeds from `first` on; the first also records its time line.

    Raises:
        ValueError: The count is below 1.
    """
    if count < 1:
        raise ValueError(f"seeds = {count} must be at least 1")
    return [replace(run, seed=first + i, timeline=i == 0) for i in range(count)]


def _json(content: Any) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
