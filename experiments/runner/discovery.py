"""Experiments are found, not registered: every module of the package `experiments` is one.

Names with a leading underscore and packages (`experiments.runner`) are not.
"""

from __future__ import annotations

import ast
import hashlib
import pkgutil
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import FileFinder
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pandas as pd
from matplotlib.figure import Figure

import experiments
from dlb_gym.runs import package_version, source_digest
from dlb_gym.scenario_checks import nearest_key
from experiments.runner import playing
from experiments.runner.measurement import Measurement

VIEWS = ("table", "figure", "finding", "tiny")
"""Functions that look at what was measured, or at less of it: they change no measurement."""


class Experiment(NamedTuple):
    """What a module of `experiments` declares.

    Attributes:
        name: The module's.
        question: Its `QUESTION`.
        runs: The sweep; `quick`: a smaller one that shows the same, in a minute at most.
        tiny: The smallest sweep that table, figure and finding can be made of, in seconds.
        table: Rows of all measurements -> the table, small, flat columns; the index is dropped.
        figure: The table -> one figure.
        finding: The table -> a sentence or a few, computed.
    """

    name: str
    question: str
    runs: Callable[[bool], list[Measurement]]
    tiny: Callable[[], list[Measurement]]
    table: Callable[[pd.DataFrame], pd.DataFrame]
    figure: Callable[[pd.DataFrame], Figure]
    finding: Callable[[pd.DataFrame], str]


def names() -> tuple[str, ...]:
    """Names of the experiments, sorted."""
    return tuple(sorted(_files()))


def _files() -> dict[str, Path]:
    return {
        each.name: Path(each.module_finder.path) / f"{each.name}.py"
        for each in pkgutil.iter_modules(experiments.__path__)
        if isinstance(each.module_finder, FileFinder)
        and not each.ispkg
        and not each.name.startswith("_")
    }


def load(name: str) -> Experiment:
    """The experiment of a name.

    Raises:
        ValueError: There is no such experiment (names the nearest), or its module does not declare
            all that an experiment has.
    """
    if name not in names():
        raise ValueError(
            f"experiment {name!r} is unknown{nearest_key(name, names())}; "
            f"choose one of {', '.join(names())} or all"
        )
    module = import_module(f"experiments.{name}")
    declared = {key: _declared(module, key) for key in Experiment._fields[2:]}
    question = _declared(module, "QUESTION")
    if not module.__doc__:
        raise ValueError(f"{module.__name__} has no docstring; say what it measures, and how")
    return Experiment(name, question, **declared)


def _declared(module: ModuleType, key: str) -> Any:
    if not hasattr(module, key):
        raise ValueError(f"{module.__name__} lacks {key!r}; see docs/experiments.md")
    return getattr(module, key)


def code_of(name: str) -> str:
    """Digest of the code that an experiment's measurements run.

    That is this version of dlb_gym and the baselines, how policies are played, and the
    experiment's module but for its docstrings, comments and `VIEWS`: a figure can be improved
    without measuring anew.
    """
    parts = [
        package_version(),
        source_digest("dlb_gym"),
        source_digest("baselines"),
        _digest(Path(playing.__file__).read_bytes()),
        _digest(_measuring(_files()[name].read_text(encoding="utf-8")).encode()),
    ]
    return _digest(" ".join(parts).encode())


def _measuring(source: str) -> str:
    """A module's syntax tree as text, without docstrings and views."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not (isinstance(node, ast.FunctionDef) and node.name in VIEWS)
        and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
            node.body = node.body[1:]
    return ast.dump(tree)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]
