"""What the README and the docs show works as it stands there. (Fault kind 29.)"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import train
from benchmarks.__main__ import BENCHMARKS
from dlb_gym import check_policy, scenario_names
from dlb_gym.observation import FIELDS
from dlb_gym.scenario_source import load_scenario
from tests.mutants import of_laws

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
COMMAND = ".venv/bin/python train.py"
SHORT = [
    "--seeds", "1", "--settle", "0", "--set", "warmup_s=1.0", "--set", "horizon_s=1.0",
]  # fmt: skip


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize(
    "snippet", [*blocks("README.md", "python"), *blocks("docs/fluid.md", "python")]
)
def test_a_snippet_runs_verbatim_in_a_fresh_process(snippet: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", snippet]
    path = {"PYTHONPATH": str(ROOT)}
    import os

    finished = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **path}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


def test_the_readmes_command_lines_run_one_after_the_other_on_a_short_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As they stand there, but for the options that make training and comparison short."""
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("README.md", "sh") for line in block.splitlines()]
    shown = [line.removeprefix(COMMAND) for line in lines if line.startswith(COMMAND)]
    assert len(shown) == 4
    for line in shown:
        arguments = shlex.split(line, comments=True)
        # Without a name the folder's would tell that options were given.
        own = ["--steps", "2048", "--policies", "random", "--name", "global_six"]
        status = train.main([*(arguments or own), *SHORT])
        printed = capsys.readouterr()
        assert status == 0, (line, printed.err)
        (named,) = re.findall(r"--policies ((?:[\w-]+ )*)", line + " ") or [""]
        for policy in named.split():
            assert f"{policy} @" in printed.out, line
    assert (tmp_path / "runs" / "global_six" / "report.html").is_file()


@pytest.mark.parametrize("page", PAGES)
def test_every_make_target_and_benchmark_that_a_page_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for start in ("`make ", "^make "):
        for name in re.findall(rf"{start}([a-z][\w-]*)", text, flags=re.MULTILINE):
            assert name in targets, name
    for name in re.findall(r"python -m benchmarks (\w+)", text):
        assert name in BENCHMARKS, name


def test_the_lowest_versions_are_those_that_the_package_allows() -> None:
    """constraints-lowest.txt says how to try them; nothing is allowed that it does not name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    allowed = [*project["dependencies"], *extras["train"], *extras["experiments"], *extras["marl"]]
    lowest = sorted(
        requirement.replace(">=", "==") for requirement in allowed if "[" not in requirement
    )
    pins = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(line for line in pins if line and line[0] != "#") == lowest


def test_the_readme_shows_make_make_vec_ppo_and_a_baseline() -> None:
    shown = "\n".join(blocks("README.md", "python"))
    for call in ("gym.make(", "gym.make_vec(", 'action="logits"', "PPO(", "evaluate_policy("):
        assert call in shown


def test_the_policy_of_the_docs_keeps_the_contract() -> None:
    (snippet,) = blocks("docs/extend.md", "python")
    names: dict[str, object] = {}
    exec(snippet, names)
    check_policy(names["Nearest"]())  # type: ignore[operator]


def test_the_scenario_of_the_docs_loads(tmp_path: Path) -> None:
    (text,) = blocks("docs/extend.md", "toml")
    path = tmp_path / "lopsided.toml"
    path.write_text(text, encoding="utf-8")
    assert load_scenario(path).roots[0].demand == 10.0


def test_the_environment_page_lists_the_fields_and_the_scenarios() -> None:
    text = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \| (\S+) \| (.*) \|$", text, flags=re.MULTILINE)
    expected = [(str(i), f.name, f"{f.high:g}", f.meaning) for i, f in enumerate(FIELDS)]
    assert rows == expected
    for name in scenario_names():
        assert f"`{name}`" in text


@pytest.mark.parametrize("page", [*PAGES, "CHANGELOG.md"])
def test_no_page_holds_the_place_of_a_figure_that_is_to_come(page: str) -> None:
    """No `SCALE_FIGURE` or `FAULTS_TABLE`, in code or not: a page names no constant but code's."""
    text = (ROOT / page).read_text(encoding="utf-8")
    to_come = r"\w+_(?:FIGURE|TABLE|SCOPE|VALUE|NUMBER)S?\b|\b(?:TBD|TODO|FIXME|XXX+)\b|\?\?"
    assert re.findall(to_come, text) == []
    prose = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    assert re.findall(r"\b[A-Z0-9]+_[A-Z0-9_]+\b", prose) == []


def test_every_planted_fault_that_the_laws_name_is_there() -> None:
    text = (ROOT / "docs/trust.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w-]+-by-law)`", text))
    assert named == {mutant.name for mutant in of_laws.MUTANTS}
