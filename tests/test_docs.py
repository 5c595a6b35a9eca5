"""What the README and the docs show works as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from dlb_gym import check_policy, scenario_names
from dlb_gym.observation import FIELDS
from dlb_gym.scenario_source import load_scenario

ROOT = Path(__file__).parents[1]


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("snippet", blocks("README.md", "python"))
def test_a_readme_snippet_runs_verbatim_in_a_fresh_process(snippet: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", snippet]
    path = {"PYTHONPATH": str(ROOT)}
    import os

    finished = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, **path}, capture_output=True, text=True
    )
    assert finished.returncode == 0, finished.stderr


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
