"""The command line: what it writes, what it leaves alone, and how it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from experiments import __main__ as command
from experiments.runner import publication
from experiments.runner.discovery import load, names
from experiments.runner.drawing import svg
from experiments.runner.publication import places, publish

MODULE = '''"""Counts."""
from experiments.runner import Measurement, panels
from dlb_gym.scenario_source import load_scenario
QUESTION = "How many?"
def measured(scenario, value):
    return {{"twice": 2 * value}}
def runs(quick):
    {fault}
    system = load_scenario("global_six")
    given = [{{"value": v}} for v in ([1, 2] if quick else [1, 2, 3])]
    return [Measurement(f"{{__name__}}:measured", system, each, each) for each in given]
def tiny():
    return runs(True)
def table(records):
    return records
def figure(table):
    drawn, (axes,) = panels()
    axes.plot(table["value"], table["twice"], label="NA")
    axes.legend()
    return drawn
def finding(table):
    return f"{{len(table)}} rows, the last {{table['twice'].iloc[-1]}}."
'''


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with two experiments of which the first fails."""
    folder = tmp_path / "modules"
    folder.mkdir()
    breaks = 'raise RuntimeError("on purpose")'
    (folder / "alpha_breaks.py").write_text(MODULE.format(fault=breaks), encoding="utf-8")
    (folder / "beta_counts.py").write_text(MODULE.format(fault="pass"), encoding="utf-8")
    (folder / "_hidden.py").write_text("", encoding="utf-8")
    (folder / "machinery").mkdir()
    (folder / "machinery" / "__init__.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(experiments, "__path__", [str(folder)])
    monkeypatch.setattr(command, "ROOT", tmp_path)
    monkeypatch.setattr(publication.places, "__defaults__", (tmp_path, False))
    return tmp_path


def written(root: Path) -> set[str]:
    return {
        str(path.relative_to(root))
        for path in root.rglob("*")
        if path.is_file() and "modules" not in path.parts and "measurements" not in path.parts
    }


def test_modules_are_found_without_a_list(root: Path) -> None:
    assert names() == ("alpha_breaks", "beta_counts")


def test_without_a_name_it_lists_the_questions(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in lines] == [
        [name, "How many?"] for name in ("alpha_breaks", "beta_counts")
    ]
    assert written(root) == set()


def test_a_full_run_writes_table_finding_and_figure_and_prints_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["beta_counts"]) == 0
    results = root / "experiments" / "results"
    assert (results / "beta_counts.csv").read_text() == "value,twice\n1,2\n2,4\n3,6\n"
    assert (results / "beta_counts.txt").read_text() == "3 rows, the last 6.\n"
    out, err = capsys.readouterr()
    assert "3 rows, the last 6." in out
    assert "docs/figures/beta_counts.svg" in out
    assert err.splitlines()[-1] == "beta_counts: 3/3"


def test_a_quick_run_leaves_the_tracked_results_alone(root: Path) -> None:
    command.main(["beta_counts"])
    before = {path: (root / path).read_bytes() for path in written(root)}
    assert command.main(["beta_counts", "--quick"]) == 0
    assert {path: (root / path).read_bytes() for path in before} == before
    quick = "runs/experiments/beta_counts/quick/beta_counts"
    assert written(root) - set(before) == {f"{quick}.{ending}" for ending in ("csv", "txt", "svg")}


def test_all_goes_on_after_a_failure_and_names_it(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["all"]) == 1
    out, err = capsys.readouterr()
    assert "3 rows" in out
    assert err.splitlines()[-1] == "error: failed: alpha_breaks"
    assert "experiments/results/beta_counts.csv" in written(root)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["beta_count"], "experiment 'beta_count' is unknown; nearest valid key: 'beta_counts'"),
        (["beta_counts", "--jobs", "0"], "--jobs 0 must be at least 1"),
    ],
)
def test_bad_arguments_are_one_message_and_write_nothing(
    arguments: list[str], message: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"error: {message}")
    assert written(root) == set()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("QUESTION", "ASKED", "lacks 'QUESTION'"),
        ("def tiny", "def small", "lacks 'tiny'"),
        ('"""Counts."""', "", "has no docstring"),
    ],
)
def test_a_module_that_declares_too_little_is_named(
    old: str, new: str, message: str, root: Path
) -> None:
    text = MODULE.format(fault="pass").replace(old, new)
    name = f"lacking_{message.split()[-1].strip(chr(39))}"
    (root / "modules" / f"{name}.py").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        load(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return records", "return records[:0]", "is empty; return a row"),
        ('return f"{{len(table)}} rows', 'return f"{{\' \'}}" or f"', "is empty; say"),
    ],
)
def test_an_empty_table_or_finding_is_an_error_and_writes_nothing(
    old: str, new: str, message: str, root: Path
) -> None:
    text = MODULE.replace(old, new).format(fault="pass")
    name = f"empty_{message[-3:]}"
    (root / "modules" / f"{name}.py").write_text(text, encoding="utf-8")
    experiment = load(name)
    with pytest.raises(ValueError, match=message):
        publish(experiment, experiment.tiny(), places(name, root))
    assert written(root) == set()


def test_a_figure_has_the_same_bytes_each_time_and_no_date(root: Path) -> None:
    experiment = load("beta_counts")
    table = publish(experiment, experiment.tiny(), places("beta_counts", root)).table
    drawn = svg(experiment.figure, table, "beta_counts")
    assert drawn == svg(experiment.figure, table, "beta_counts")
    assert "dc:date" not in drawn
    assert ">NA</text>" in drawn


def test_importing_the_package_loads_no_matplotlib() -> None:
    code = (
        "import sys, dlb_gym, dlb_gym.evaluation; "
        "sys.exit(bool({'matplotlib', 'pandas', 'experiments'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
