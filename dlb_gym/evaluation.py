"""(policy x scenario x seed) in, one record each out.

A `Run` is everything that decides a result, and its digest names the result's file: what is
finished is never computed twice, and a crash loses only what was under way. A row's result does not
depend on its batch.

The policy decides from the end of warm-up to the horizon. Arrivals stop there and the system drains
under the last decision, so every policy is judged on the same requests. Nothing here asks what kind
of policy it runs.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dlb_gym.aside import write_aside
from dlb_gym.bounds import bounds
from dlb_gym.policy import Policy
from dlb_gym.rates import offered_rate_rps
from dlb_gym.runs import Run, batches, canonical_json, package_version, require_playable
from dlb_gym.scenario import Scenario
from dlb_gym.task import Task
from dlb_gym.timeline import Timeline
from dlb_gym.trace import load_trace

RESULTS = "results"

Record = dict[str, Any]


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
    policy.reveal([_scenario(task, r) for r in range(len(runs))])
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
    assert scenario is not None  # the task was reset
    return scenario


def _record(task: Task, r: int, policy: Policy, run: Run, in_system_at_horizon: float) -> Record:
    scenario = _scenario(task, r)
    name = run.label or policy.name
    interval_ms = scenario.control_interval_s * 1e3
    limits = bounds(scenario)
    metrics = {key: _finite(value) for key, value in task.summary(r).items()}
    del metrics["in_system_at_end"]  # 0 after the drain
    error_cost_s = scenario.error_penalty * float(metrics["zero_load_time_s"] or 0.0)
    metrics["error_cost_s"] = error_cost_s
    metrics["latency_with_errors_s"] = _latency_with_errors_s(metrics, error_cost_s)
    return {
        "label": f"{name} @ {interval_ms:g} ms",
        "policy": name,
        "information": policy.information,
        "scenario": scenario.name,
        "seed": run.seed,
        "control_interval_s": scenario.control_interval_s,
        "probe_interval_s": scenario.probe_interval_s,
        "warmup_s": scenario.warmup_s,
        "settle_s": scenario.settle_s,
        "horizon_s": scenario.horizon_s,
        "trace_lap_s": _trace_lap_s(scenario),
        "in_system_at_horizon": in_system_at_horizon,
        "bound_fluid_s": limits.fluid_s,
        "bound_clairvoyant_s": limits.clairvoyant_s,
        **metrics,
        "made_by": run.policy,
        "keywords": canonical_json(dict(run.keywords)),
        "scenario_digest": scenario.digest(),
        "run_digest": run.digest,
        "version": package_version(),
    }


def _latency_with_errors_s(metrics: Record, error_cost_s: float) -> float | None:
    """Mean over answered requests and errors, an error costing error_penalty zero-load times."""
    answered, errors = metrics["answered"], metrics["errors"]
    if answered + errors == 0:
        return None
    answered_s = answered * (metrics["latency_mean_s"] or 0.0)
    return float((answered_s + errors * error_cost_s) / (answered + errors))


def _trace_lap_s(scenario: Scenario) -> float | None:
    """How long the whole trace lasts at the scenario's rate; None without a trace."""
    if scenario.demand.trace is None:
        return None
    return load_trace(scenario.demand.trace).time_s.size / offered_rate_rps(scenario)


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
        ValueError: jobs < 1 or a run is not playable (see `require_playable`), and then there is no
            folder yet; or a file in the folder is no result.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    require_playable(runs)
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


def _map(work: list[list[Run]], folder: Path, jobs: int) -> Iterator[list[Result]]:
    if jobs == 1 or len(work) < 2:
        for batch in work:
            yield _finish(batch, folder)
        return
    from joblib import Parallel, delayed

    # joblib starts as many processes as it is told, whatever there is to do.
    parallel = Parallel(n_jobs=min(jobs, len(work)), return_as="generator_unordered")
    yield from parallel(delayed(_finish)(batch, folder) for batch in work)


def _finish(batch: list[Run], folder: Path) -> list[Result]:
    results = rollout(batch)
    for run, result in zip(batch, results, strict=True):
        content = json.loads(canonical_json(asdict(result)))  # keys are text, as they are read
        stored = content | {"sha256": _checksum(content)}
        write_aside(folder / f"{run.digest}.json", canonical_json(stored))
    return results


def _checksum(content: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(content).encode()).hexdigest()


def _read(folder: Path, run: Run) -> Result | None:
    path = folder / f"{run.digest}.json"
    if not path.exists():
        return None
    if not path.is_file():
        raise ValueError(f"{path} is no file, where the result of a run belongs; delete it")
    try:
        stored = json.loads(path.read_bytes())
        if stored.pop("sha256") != _checksum(stored):
            raise ValueError("it is not what was written: its checksum is another one")
        if stored["record"]["run_digest"] != run.digest:
            raise ValueError("it is that of another run")
        histogram = {int(index): int(count) for index, count in stored["histogram"].items()}
        return Result(stored["record"], histogram, stored["timeline"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is no result of an evaluation ({error}); delete it") from error
