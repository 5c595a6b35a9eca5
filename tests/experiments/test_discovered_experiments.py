"""Every experiment that lies in experiments/ keeps the contract, and the docs' example does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import experiments
from experiments.runner.discovery import load, names
from experiments.runner.publication import ROOT, places, publish, read_table

RESULTS = sorted((ROOT / "experiments" / "results").glob("*.csv"))


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    direct = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    return direct | {str(n.module) for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}


@pytest.mark.parametrize("name", names())
def test_the_tiny_sweep_gives_a_table_a_figure_and_a_finding(name: str, tmp_path: Path) -> None:
    experiment = load(name)
    assert experiment.question.endswith("?")
    published = publish(experiment, experiment.tiny(), places(name, tmp_path))
    assert len(published.table) > 0
    assert published.finding.endswith(".")
    drawn = published.places.figure.read_text(encoding="utf-8")
    assert drawn.count("<svg") == 1
    assert len(drawn) < 500_000


@pytest.mark.parametrize("name", names())
def test_full_and_quick_sweeps_can_be_made_and_quick_is_smaller(name: str) -> None:
    experiment = load(name)
    full, quick = experiment.runs(False), experiment.runs(True)
    for measurement in (*full, *quick):
        measurement.resolve()
    assert 0 < len(experiment.tiny()) <= len(quick) <= len(full)


@pytest.mark.parametrize("name", names())
def test_an_experiment_imports_no_other_one(name: str) -> None:
    path = Path(experiments.__path__[0]) / f"{name}.py"
    others = {each for each in imported(path) if each.partition(".")[0] == "experiments"}
    assert others <= {"experiments.runner"}


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_a_tracked_finding_and_figure_belong_to_the_tracked_table(path: Path) -> None:
    table = read_table(path.read_text(encoding="utf-8"))
    where = places(path.stem)
    finding = load(path.stem).finding(table)
    assert where.finding.read_text(encoding="utf-8") == finding.strip() + "\n"
    assert where.figure.is_file()


def test_the_docs_quote_the_tracked_findings() -> None:
    """Whole, whatever the line breaks."""
    pages = "\n".join(p.read_text(encoding="utf-8") for p in (ROOT / "docs").glob("*.md"))
    shown = " ".join(re.sub(r"^> ?", "", pages, flags=re.MULTILINE).split())
    for path in RESULTS:
        finding = places(path.stem).finding.read_text(encoding="utf-8")
        assert " ".join(finding.split()) in shown, path.stem


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "interval_of_the_docs.py").write_text(example, encoding="utf-8")
    monkeypatch.setattr(experiments, "__path__", [str(tmp_path)])
    experiment = load("interval_of_the_docs")
    published = publish(experiment, experiment.tiny(), places(experiment.name, tmp_path))
    assert "is best" in published.finding
