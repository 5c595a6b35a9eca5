from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from dlb_gym.evaluation import Result, Run, rollout, seeded
from dlb_gym.report import render, write_report
from dlb_gym.report_table import table, text_table
from dlb_gym.scenario_source import override
from tests.scenarios_by_hand import two_cells

NASTY = "<script>alert(1)</script>"


@cache
def results(name: str = NASTY) -> tuple[Result, ...]:
    scenario = override(
        two_cells(),
        {
            "name": name,
            "cells.0.name": f"{NASTY}<b>",
            "warmup_s": 1.0,
            "horizon_s": 3.0,
            "disturbances": [{"kind": "burst"}],
        },
    )
    policies: dict[str, dict[str, Any]] = {
        "baselines.static:WeightedRandom": {},
        "baselines.discrete:Discrete": {"cost": "gradient"},
    }
    found: list[Result] = []
    for policy, keywords in policies.items():
        found += rollout(seeded(Run(policy, keywords, scenario), 3))
    found += rollout(seeded(Run("baselines.static:CapacitySplit", {}, scenario, label=NASTY), 3))
    return tuple(found)


def test_the_report_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report.html", results(), [(10, -2.0), (20, -1.0)])
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert text.count("plotly.js v") == 1
    assert [f'id="figure-{k}"' in text for k in (1, 2, 3, 4, 5)] == [True] * 4 + [False]
    assert list(path.parent.iterdir()) == [path]


def test_the_same_results_give_the_same_bytes() -> None:
    assert render(results()) == render(results())


def test_every_name_is_escaped() -> None:
    text = render(results())
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


def test_the_report_states_scenario_version_seeds_and_disturbances() -> None:
    text = render(results())
    record = results()[0].record
    for expected in (
        str(record["scenario_digest"]),
        str(record["version"]),
        "1000000 to 1000002 (3)",
        "0.9",  # the burst starts at 0.3 of 3 s
        "burst",
    ):
        assert expected in text


def test_the_table_shows_the_records_means_best_first() -> None:
    records = [result.record for result in results()]
    content = table(records)
    assert content.header[:5] == ("policy", "information", "runs", "mean s", "vs random %")
    means = [float(row[3]) for row in content.rows]
    assert means == sorted(means)
    random = next(row for row in content.rows if row[0].startswith("random"))
    expected = sum(record["latency_mean_s"] for record in records[:3]) / 3
    assert float(random[3]) == pytest.approx(expected, abs=1e-4)
    assert random[4:6] == ("+0.00", "+0.00 to +0.00")


def test_a_policy_that_answered_nothing_says_so() -> None:
    records = [dict(result.record) for result in results()]
    for record in records[3:5]:
        record |= {"answered": 0, "latency_mean_s": None}
    content = table(records)
    row = next(row for row in content.rows if row[0].startswith("disc-gradient"))
    assert row[3:6] == ("none", "none", "none")
    assert any("2 of 3 runs answered no request" in note for note in content.notes)


def test_the_text_table_has_a_line_for_every_policy() -> None:
    text = text_table([result.record for result in results("plain")])
    assert "scenario plain" in text
    assert sum(f"{name} @ 100 ms" in text for name in ("random", "disc-gradient", NASTY)) == 3


def test_nothing_to_report_is_an_error() -> None:
    with pytest.raises(ValueError, match="no results to report"):
        render([])
    with pytest.raises(ValueError, match="no records to report"):
        table([])


def test_importing_the_report_loads_neither_plotly_nor_pandas() -> None:
    code = (
        "import sys, dlb_gym, dlb_gym.report, dlb_gym.report_figures; "
        "sys.exit(bool({'plotly', 'pandas', 'torch', 'stable_baselines3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
