"""What is to be evaluated: policy x scenario x seed, each with a digest of all that decides it.

Runs of one policy and one scenario whose seeds follow each other share a batch, one a row.
`require_playable` finds what is wrong with a list of runs before any of them is played.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from dlb_gym.episodes import EpisodeSource, FamilyScenarios, episode_source
from dlb_gym.observation import Observation
from dlb_gym.policy import Policy, TaskSpec
from dlb_gym.scenario import Scenario
from dlb_gym.task import MAX_SEED
from dlb_gym.workload import Workload

FIRST_HELD_OUT_SEED = 1_000_000
"""Evaluation seeds start here; training uses seeds below it."""
MAX_BATCH = 64


@dataclass(frozen=True)
class Run:
    """One policy on one scenario with one seed.

    Attributes:
        policy: `module:attribute` of a class or function that returns a `Policy`.
        keywords: Its arguments, JSON values.
        scenario: The scenario; None where a family draws it.
        family: Name of the family that draws a scenario from the seed.
        changes: What to override in it (see `scenario_source.override`).
        trials: Seeds that share a scenario of the family (see `FamilyScenarios`).
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
    trials: int = 1
    seed: int = FIRST_HELD_OUT_SEED
    label: str | None = None
    files: tuple[str, ...] = ()
    timeline: bool = False

    def __post_init__(self) -> None:
        if (self.scenario is None) == (self.family is None):
            raise ValueError("a Run holds either a scenario or a family; give exactly one of them")
        if self.changes and self.family is None:
            raise ValueError("changes belong to a family; override the scenario itself instead")
        if self.trials < 1 or (self.trials > 1 and self.family is None):
            raise ValueError(
                f"trials = {self.trials} must be at least 1, and more than 1 belong to a family: "
                "a scenario is the same under every seed"
            )
        if not all(self.policy.partition(":")) or self.policy.startswith("."):
            raise ValueError(
                f'policy = {self.policy!r} must be "module:attribute", as in '
                '"baselines.static:WeightedRandom"'
            )
        if self.seed < 0:
            raise ValueError(f"seed = {self.seed} is negative; seeds must be at least 0")
        if self.seed > MAX_SEED:
            raise ValueError(f"seed = {self.seed} must be at most {MAX_SEED}; choose another")
        try:
            json.dumps([dict(self.keywords), dict(self.changes)], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"keywords and changes of a Run must be finite JSON values: {error}; give numbers, "
                "texts, lists and dictionaries"
            ) from None

    @cached_property
    def digest(self) -> str:
        """SHA-256 (16 hex digits) of whatever decides the result, this package's code included."""
        content = self._group() | {"seed": self.seed, "timeline": self.timeline}
        return _sha256(canonical_json(content).encode())

    def _group(self) -> dict[str, Any]:
        """What runs of one batch have in common."""
        return {
            "policy": self.policy,
            "keywords": dict(self.keywords),
            "scenario": None if self.scenario is None else self.scenario.digest(),
            "family": self.family,
            "changes": dict(self.changes),
            "trials": self.trials,
            "label": self.label,
            "files": [_sha256(Path(path).read_bytes()) for path in self.files],
            "version": package_version(),
            "code": [source_digest("dlb_gym"), source_digest(self.policy.partition(":")[0])],
        }

    @cached_property
    def group(self) -> str:
        """Runs of one group may share a batch."""
        return _sha256(canonical_json(self._group()).encode())

    @cached_property
    def system(self) -> str:
        """Runs of one system meet the same requests under the same seed."""
        if self.scenario is not None:
            return self.scenario.digest()
        return canonical_json([self.family, dict(self.changes), self.trials])

    def source(self) -> EpisodeSource:
        """Where the task gets its scenarios.

        Raises:
            ScenarioError: The family or a change is not valid, or a disturbance is impossible.
            TraceError: The trace cannot be used.
        """
        if self.family is not None:
            return FamilyScenarios(self.family, self.changes, trials=self.trials)
        return episode_source(self.scenario)

    def make_policy(self) -> Policy:
        """The policy.

        Raises:
            ValueError: It cannot be imported or is no `Policy`.
        """
        module, _, attribute = self.policy.partition(":")
        try:
            make = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(
                f"policy {self.policy!r} cannot be imported: {error}; correct its name or install "
                "its package"
            ) from error
        try:
            policy = make(**self.keywords)
        except TypeError as error:
            raise ValueError(
                f"policy {self.policy!r} does not take {dict(self.keywords)}: {error}; correct its "
                "keywords"
            ) from error
        if not isinstance(policy, Policy):
            raise ValueError(
                f"policy {self.policy!r} made a {type(policy).__name__}, which is no "
                "dlb_gym.policy.Policy; name a subclass of it, or a function that makes one"
            )
        return policy


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
        location = getattr(import_module(top), "__file__", None)  # sys and others have none
    except (ImportError, ValueError) as error:  # ValueError: the name holds a lone surrogate
        raise ValueError(
            f"module {module!r} cannot be imported: {error}; install it or correct its name"
        ) from error
    if location is None:
        return top
    path = Path(location)
    files = sorted(path.parent.rglob("*.py")) if path.name == "__init__.py" else [path]
    return _sha256(b"\0".join(file.read_bytes() for file in files))


def seeded(run: Run, count: int, first: int = FIRST_HELD_OUT_SEED) -> list[Run]:
    """The run under `count` seeds from `first` on; the first also records its time line.

    Raises:
        ValueError: The count is below 1.
    """
    if count < 1:
        raise ValueError(f"seeds = {count} must be at least 1")
    return [replace(run, seed=first + i, timeline=i == 0) for i in range(count)]


def require_playable(runs: Iterable[Run]) -> None:
    """Refuses, before any work, runs that cannot be played or told apart; writes nothing.

    Every policy is made and reset once at its task's sizes. Every episode's scenario is drawn, its
    trace read and its disturbances resolved.

    Raises:
        ValueError: One of these fails (ScenarioError, TraceError and others say why), or two runs
            of one system and seed have the same name.
    """
    sources: dict[str, EpisodeSource] = {}
    workloads: set[tuple[str, int]] = set()
    names: dict[str, str] = {}
    owners: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        if run.system not in sources:
            sources[run.system] = run.source()
        source = sources[run.system]
        if (run.system, run.seed) not in workloads:
            Workload(source.scenario(0, run.seed, 0), run.seed, 0)
            workloads.add((run.system, run.seed))
        if run.group not in names:
            names[run.group] = _name_when_reset(run, source)
        name = names[run.group]
        other = owners.setdefault((name, run.system, run.seed), run)
        if other is not run:
            raise ValueError(
                f"two policies would be named {name!r} in the results: {_made_by(other)} and "
                f"{_made_by(run)}; name each policy once, or give those that differ labels that "
                "differ"
            )


def _name_when_reset(run: Run, source: EpisodeSource) -> str:
    policy = run.make_policy()
    roots, cells = source.max_roots, source.max_cells
    policy.reset(TaskSpec(roots, cells, Observation(roots, cells)), 1, run.seed)
    return run.label or policy.name


def _made_by(run: Run) -> str:
    return f"{run.policy} with {dict(run.keywords)}"


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


def canonical_json(content: Any) -> str:
    """The same text for the same content."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
