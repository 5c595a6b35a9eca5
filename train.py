"""The command line: trains an agent on DLB-v0 and compares it with the DLB policies.

    python train.py                      train, compare on held-out seeds, write runs/<name>/
    python train.py evaluate --policies flow-gradient mnlb runs/x --scenario burst --seeds 5

Files of a run: config.json, checkpoints/, tensorboard/, results/, records.jsonl, report.html; see
docs/training.md.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from baselines import registry
from dlb_gym.aside import write_aside
from dlb_gym.episodes import DEFAULT_SCENARIO, FixedScenarios, episode_source
from dlb_gym.evaluation import Result, run_all
from dlb_gym.messages import shown
from dlb_gym.printable import printable
from dlb_gym.reward import make_reward
from dlb_gym.runs import FIRST_HELD_OUT_SEED, Run, require_playable, seeded
from dlb_gym.scenario import Scenario
from dlb_gym.scenario_source import ScenarioError, override
from dlb_gym.trace import describe_trace

COMPARED = (
    "random", "capacity", "mnlb", "disc-gradient", "disc-gradient-score", "flow-rif",
    "flow-gradient",
)  # fmt: skip
RUNS = Path("runs")
MOST_SEEDS = 10_000
LONGEST_NAME = 200
"""Bytes that every file system takes, with what else is in a folder's name."""
LONGEST_SETTING = 20_000
SETTLE_S = 20.0
AGAIN_TRAIN = "goes on from the last checkpoint, or from the start if there is none yet"
AGAIN_EVALUATE = "keeps the results that are finished and computes the others"
Set = Annotated[tuple[str, ...], tyro.conf.UseAppendAction]


@dataclass(frozen=True)
class System:
    """Which system: the same options for training and evaluation."""

    scenario: str | None = None
    """Name of a shipped scenario, or path of a TOML file. Default: global_six. Endpoints that it
    lists are trained on together and compared one by one."""
    family: str | None = None
    """Scenario family instead: every episode another system. appendix_b."""
    control_interval: float | None = None
    """Seconds between two decisions; overrides the scenario's."""
    set: Set = ()
    """KEY=VALUE (TOML) overrides a key of the scenario; repeat it for more. For example
    network.mean_rtt_s=0.025, or 'disturbances=[{kind="burst"}]'."""
    trace: Path | None = None
    """Request trace (CSV or JSON lines, may be gzipped) that replaces the synthetic arrivals."""
    rtt: Path | None = None
    """CSV of measured round trips between regions, in ms, square."""


@dataclass(frozen=True)
class Train:
    """Trains PPO on DLB-v0 and compares it with the DLB policies.

    Resumes from the last checkpoint when it is called again with the same options. For comparison
    alone see `python train.py evaluate --help`.
    """

    system: Annotated[System, tyro.conf.arg(name="")] = System()
    name: str | None = None
    """Folder under runs/. Default: from scenario and options."""
    steps: int = 250_000
    """Environment steps in all."""
    seed: int = 0
    """Seed of weights, actions and episodes; below 500000."""
    network: str = "arc"
    """arc (shared by all arcs, starts at the split by capacity) or mlp (SB3's)."""
    reward: str = "latency"
    """What is learned: latency, ttft, tail(q), goodput(slo_s), or module:function."""
    policies: tuple[str, ...] = COMPARED
    """What the agent is compared with, as in `evaluate`."""
    seeds: int = 8
    """Held-out seeds, from 1000000 on."""
    settle: float = SETTLE_S
    """As in `evaluate`; training itself keeps the scenario's settle_s."""
    jobs: int = 1
    """Processes of the comparison."""
    checkpoint_steps: int = 20_000
    """A checkpoint after at least so many steps."""


@dataclass(frozen=True)
class Evaluate:
    """Compares policies on the same requests and writes a report."""

    system: Annotated[System, tyro.conf.arg(name="")] = System()
    policies: tuple[str, ...] = COMPARED
    """Names of baselines or `all` of them, folders of runs or of any learned policy (policy.json
    and policy.safetensors: numbers, loading them runs no code), or module:attribute of a policy,
    which is code and is run."""
    seeds: int = 5
    """Number of seeds."""
    trials: int = 1
    """Seeds that share a system, where a family draws it: --seeds 20 --trials 2 plays ten systems
    twice, with other requests."""
    settle: float = SETTLE_S
    """Seconds that a policy runs before measuring begins, rounded up to whole control intervals and
    at least the scenario's settle_s: MNLB plans after 10 s first, and Flow starts from the split by
    capacity. It becomes the scenario's settle_s. 0: the scenario's own alone."""
    first_seed: int = FIRST_HELD_OUT_SEED
    """First seed; training uses seeds below 1000000."""
    name: str | None = None
    """Folder under runs/. Default: evaluate- and the scenario."""
    jobs: int = 1
    """Processes."""


def main(arguments: list[str]) -> int:
    """Runs the command; a fault of the input is one message and exit status 2."""
    evaluates = arguments[:1] == ["evaluate"]
    try:
        if evaluates:
            evaluate(tyro.cli(Evaluate, args=arguments[1:], prog="train.py evaluate"))
        else:
            train(tyro.cli(Train, args=arguments, prog="train.py"))
    except (ValueError, OSError) as error:  # ScenarioError, TraceError, NetworkError and others
        _say_error(str(error))
        return 2
    except KeyboardInterrupt:
        _say_error(f"stopped; the same command {AGAIN_EVALUATE if evaluates else AGAIN_TRAIN}")
        return 130
    return 0


def train(options: Train) -> None:
    """Trains, then compares agent and baselines on held-out seeds.

    Raises:
        ValueError: The folder holds another training, or an option is not valid.
    """
    _require_counts(options.seeds, options.jobs)
    make_reward(options.reward, 1)  # raises, before anything is written
    systems = systems_of(options.system)
    environment = _environment(systems) | {"reward": options.reward}
    config = {"environment": environment, "seed": options.seed, "network": options.network}
    run = RUNS / _folder_name(options.name, _default_name(options.system, config))
    from agents.training import Training
    from agents.training import train as train_agent

    training = Training(
        environment=environment,
        network=options.network,
        steps=options.steps,
        seed=options.seed,
        checkpoint_steps=options.checkpoint_steps,
    )
    measured = [settled(system, options.settle) for system in systems]
    label = f"ppo-{run.name}"
    # The split by capacity stands for the agent that is not there yet.
    stand_ins = [Run("baselines.static:CapacitySplit", label=label, **each) for each in measured]
    others = _runs_of(options.policies, measured)
    require_playable(_seeded([*stand_ins, *others], options.seeds))
    free = {"steps", "checkpoint_steps"}  # a resumed training may change them
    _claim(run, {key: value for key, value in asdict(training).items() if key not in free})
    with _progress() as bar:
        task = bar.add_task("training", total=options.steps, text="")

        def on_rollout(steps: int, reward: float) -> None:
            bar.update(task, completed=min(steps, options.steps), text=f"reward {reward:.4f}")

        checkpoint = train_agent(training, run, on_rollout)
    from agents.checkpoints import read_state

    agents = _runs_of([str(checkpoint)], measured, label)
    results = _results(_seeded([*agents, *others], options.seeds), run, options.jobs)
    _publish(results, run, read_state(checkpoint).curve)


def evaluate(options: Evaluate) -> None:
    """Compares policies.

    Raises:
        ValueError: An option is not valid.
    """
    _require_counts(options.seeds, options.jobs)
    if not options.policies:
        raise ValueError("--policies is empty; name at least one policy")
    systems = systems_of(options.system)
    default = f"evaluate-{_default_name(options.system, {'environment': _environment(systems)})}"
    folder = RUNS / _folder_name(options.name, default)
    measured = [settled(system, options.settle, options.first_seed) for system in systems]
    if options.trials != 1:
        measured = [{**system, "trials": options.trials} for system in measured]
    every = _seeded(_runs_of(options.policies, measured), options.seeds, options.first_seed)
    require_playable(every)
    _publish(_results(every, folder, options.jobs), folder, ())


def systems_of(system: System) -> list[dict[str, Any]]:
    """The system as keywords of a `Run`: a whole scenario, one for every endpoint, or a family.

    Raises:
        ScenarioError: An option is not valid, or they contradict each other.
        TraceError: The trace cannot be used.
        NetworkError: The matrix cannot be used.
    """
    changes = dict(_setting(text) for text in system.set)
    if system.control_interval is not None:
        changes["control_interval_s"] = system.control_interval
    if system.trace is not None:
        changes["demand.trace"] = describe_trace(system.trace).model_dump(mode="json")
    source = episode_source(system.scenario, system.family, changes, rtt_csv=system.rtt)
    if isinstance(source, FixedScenarios):
        return [{"scenario": scenario} for scenario in source.scenarios]
    return [{"family": system.family, "changes": changes}]


def settled(
    system: Mapping[str, Any], settle_s: float, seed: int = FIRST_HELD_OUT_SEED
) -> dict[str, Any]:
    """The system with at least so many seconds of settling, in whole control intervals.

    Raises:
        ValueError: The time is negative or not finite.
    """
    if not 0.0 <= settle_s < math.inf:
        raise ValueError(f"--settle {settle_s} must be a finite number of seconds, at least 0")
    if seed < 0:
        raise ValueError(f"--first-seed {seed} must be at least 0")
    scenario: Scenario = episode_source(**system).scenario(0, seed, 0)
    interval_s = scenario.control_interval_s
    whole_s = round(math.ceil(settle_s / interval_s - 1e-9) * interval_s, 9)
    changes = {"settle_s": max(scenario.settle_s, whole_s)}
    if "family" in system:
        return {"family": system["family"], "changes": system["changes"] | changes}
    return {"scenario": override(scenario, changes)}


def _environment(systems: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The systems as keywords of the environment, JSON values; endpoints are rows in turn."""
    if "family" in systems[0]:
        return dict(systems[0])
    documents = [system["scenario"].model_dump(mode="json") for system in systems]
    return {"scenario": documents if len(documents) > 1 else documents[0]}


def _require_counts(seeds: int, jobs: int) -> None:
    """Refuses counts now that would be refused after the training."""
    for key, value in (("seeds", seeds), ("jobs", jobs)):
        if value < 1:
            raise ValueError(f"--{key} {value} must be at least 1")
    if seeds > MOST_SEEDS:
        raise ValueError(
            f"--seeds {seeds:,} must be at most {MOST_SEEDS:,}; compare in parts, each with a "
            "--name and seeds of its own"
        )


def _setting(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ScenarioError(
            f"--set {shown(text)} must be KEY=VALUE, as in network.mean_rtt_s=0.025"
        )
    if len(text) > LONGEST_SETTING:
        raise ScenarioError(
            f"--set {shown(text)} has {len(text):,} characters; at most {LONGEST_SETTING:,} are "
            "read: write a scenario file"
        )
    try:
        document = tomllib.loads(f"value = {value}")
    except (ValueError, RecursionError) as error:  # or a number too long, or lists too deep
        if re.fullmatch(r"[A-Za-z][\w-]*", value):
            return key.strip(), value
        raise ScenarioError(f"--set {shown(text)}: the value is not TOML: {error}") from None
    if len(document) > 1:
        raise ScenarioError(f"--set {shown(text)} holds more than one key; repeat --set for others")
    return key.strip(), document["value"]


def _run_of(policy: str, system: Mapping[str, Any], label: str | None = None) -> Run:
    """The run, under any seed, of a policy named on the command line."""
    keywords: Mapping[str, Any] = {}
    files: tuple[str, ...] = ()
    if policy in registry.names():
        policy, keywords = registry.entry(policy)
    elif Path(policy).is_dir() or "/" in policy:
        from agents.loading import policy_files

        path, files = policy_files(policy)
        label = label or Path(policy).resolve().name
        policy, keywords = "agents.loading:load", {"path": path}
    elif ":" not in policy:
        registry.entry(policy)  # raises, naming the nearest
    return Run(policy, keywords, label=label, files=files, **system)


def _runs_of(
    policies: Sequence[str], systems: Sequence[Mapping[str, Any]], label: str | None = None
) -> list[Run]:
    named = [name for policy in policies for name in _named(policy)]
    return [_run_of(policy, system, label) for policy in named for system in systems]


def _named(policy: str) -> Sequence[str]:
    """`all` stands for every baseline."""
    return registry.names() if policy == "all" else (policy,)


def _seeded(runs: list[Run], seeds: int, first: int = FIRST_HELD_OUT_SEED) -> list[Run]:
    return [each for run in runs for each in seeded(run, seeds, first)]


def _results(every: list[Run], folder: Path, jobs: int) -> list[Result]:
    with _progress() as bar:
        task = bar.add_task("comparing", total=len(every), text="")
        return run_all(every, folder, jobs, lambda count: bar.advance(task, count))


def _publish(results: list[Result], folder: Path, curve: tuple[tuple[int, float], ...]) -> None:
    from dlb_gym.report import write_report
    from dlb_gym.report_table import text_table

    records = [result.record for result in results]
    lines = (json.dumps(record, sort_keys=True, allow_nan=False) for record in records)
    write_aside(folder / "records.jsonl", "\n".join(lines) + "\n")
    report = write_report(folder / "report.html", results, curve)
    sys.stdout.write(f"{text_table(records)}\nreport: {report}\n")


def _claim(run: Path, config: Mapping[str, Any]) -> None:
    """Makes the run's folder, or makes sure that it belongs to this very training."""
    path = run / "config.json"
    text = json.dumps(config, indent=1, sort_keys=True, allow_nan=False) + "\n"
    if path.is_file() and path.read_bytes() != text.encode():
        raise ValueError(
            f"{run} holds a training with other options (see {path}); "
            "choose another --name or delete the folder"
        )
    run.mkdir(parents=True, exist_ok=True)
    write_aside(path, text)


def _default_name(system: System, config: Mapping[str, Any]) -> str:
    """The scenario's name, fit for a folder, and a digest where options make it another one."""
    stem = system.family or _stem(system.scenario or DEFAULT_SCENARIO)
    stem = re.sub(r"[^\w.-]+", "-", stem).strip(".-") or "scenario"
    short = stem[: LONGEST_NAME // 4]  # a character takes up to four bytes
    plain = System(scenario=system.scenario, family=system.family)
    rest = (config.get("seed", 0), config.get("network", "arc"))
    reward = config["environment"].get("reward", "latency")
    if system == plain and (*rest, reward) == (0, "arc", "latency") and stem == short:
        return stem
    text = json.dumps(config, sort_keys=True, allow_nan=False)
    return f"{short}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"


def _stem(scenario: str) -> str:
    """The name of a scenario, without the folder of its file and with that of its endpoint."""
    path = Path(scenario)
    if path.suffix == ".toml" or not path.parent.name:
        return path.stem
    return f"{path.parent.stem}-{path.name}"


def _folder_name(name: str | None, default: str) -> str:
    if name is None:
        return default
    if not re.fullmatch(r"[\w][\w.-]*", name) or len(name.encode()) > LONGEST_NAME:
        raise ValueError(
            f"--name {shown(name)} must consist of letters, digits, '.', '_' and '-', start with a "
            f"letter or digit and take at most {LONGEST_NAME} bytes"
        )
    return name


def _progress() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TimeRemainingColumn(), TextColumn("{task.fields[text]}"), console=Console(stderr=True),
    )  # fmt: skip


def _say_error(message: str) -> None:
    """One line, whatever names it quotes."""
    sys.stderr.write(f"error: {printable('; '.join(message.splitlines()))}\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
