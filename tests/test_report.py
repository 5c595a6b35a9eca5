from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from dlb_gym.evaluation import Result, rollout
from dlb_gym.report import render, write_report
from dlb_gym.report_figures import (
    PALETTE,
    latency_figure,
    means_figure,
    routing_figure,
    time_figure,
)
from dlb_gym.report_table import CENTRAL, DEPLOYABLE, ORACLE, bounds_of, table, text_table
from dlb_gym.runs import Run, seeded
from dlb_gym.scenario_source import override
from tests.scenarios_by_hand import two_cells

NASTY = "<script>alert(1)</script>"
ACTING = "<b>&\"'|`\n\r\x00\x1b[2J\u202e\u2028</title>$x$"
SHOWN = "<b>&\"'|`" + r"\n\r\x00\x1b[2J\u202e\u2028</title>$x$"
"""As Python writes those that act unseen."""


@cache
def results(name: str = NASTY, other: str = NASTY) -> tuple[Result, ...]:
    scenario = override(
        two_cells(),
        {
            "name": name,
            "cells.0.name": f"{other}<b>",
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
    found += rollout(seeded(Run("baselines.static:CapacitySplit", {}, scenario, label=other), 3))
    return tuple(found)


def test_the_report_is_one_file_that_needs_no_network(tmp_path: Path) -> None:
    path = write_report(tmp_path / "deep" / "report.html", results(), [(10, -2.0), (20, -1.0)])
    text = path.read_text(encoding="utf-8")
    assert not re.search(r"<(script|link|img)[^>]*(src|href)=", text)
    assert text.count("plotly.js v") == 1
    assert [f'id="figure-{k}"' in text for k in range(1, 7)] == [True] * 5 + [False]
    assert list(path.parent.iterdir()) == [path]


def test_the_same_results_give_the_same_bytes() -> None:
    assert render(results()) == render(results())


def test_every_name_is_escaped() -> None:
    text = render(results())
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


class Page(HTMLParser):
    """What a browser finds: the texts outside of scripts and styles, and every tag."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        last = self.tags[-1] if self.tags else ""
        if last == "script" and self.cdata_elem == "script":
            self.scripts.append(data)
        elif last != "style" or self.cdata_elem is None:
            self.texts.append(data)


def test_names_that_act_are_shown_and_add_no_tag() -> None:
    plain, page = Page(render(results("plain", "other"))), Page(render(results(ACTING, ACTING)))
    assert page.tags == plain.tags
    texts = "".join(page.texts)
    assert f"Scenario {SHOWN}" in page.texts
    assert f"{SHOWN} @ 100 ms" in page.texts
    assert f"DLB evaluation: {SHOWN}" in page.texts
    assert all(each.isprintable() for each in texts.splitlines())


def test_a_figure_shows_names_as_they_are() -> None:
    """plotly reads the text of a label as HTML: what it then shows is the name."""
    histograms = {ACTING: {100: 1}, "plain": {100: 1}}
    timeline = next(r.timeline for r in results(ACTING, ACTING) if r.timeline is not None)
    figures = [latency_figure(histograms), time_figure({ACTING: timeline}),
               routing_figure({ACTING: timeline})]  # fmt: skip
    shown = [trace.name for figure in figures for trace in figure.data]
    shown += [figures[1].layout.updatemenus[0].buttons[0].label]
    assert len(shown) == 2 + 6 + 4 + 1
    for name in shown:
        assert not set(name) & set("<>")
        assert "&quot;" not in name  # which plotly would show as it stands
        assert unescape(name) in {SHOWN, f"{SHOWN}<b>", "plain", "west"}


def test_the_text_table_shows_names_that_act() -> None:
    lines = text_table([result.record for result in results(ACTING, ACTING)]).splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(len(line) for line in lines) <= 110
    joined = "".join(line.strip() for line in lines)
    assert f"scenario {SHOWN}: 3 seeds" in joined


def test_the_reference_of_a_table_is_shown_too() -> None:
    records = [record(ACTING, 0, 2.0), record("other", 0, 1.0)]
    for brief in (False, True):
        assert any(f"vs {SHOWN} %" in title for title in table(records, brief).header)


def test_nothing_is_left_where_a_report_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results to report; evaluate a policy first"):
        write_report(tmp_path / "new" / "report.html", [])
    assert not list(tmp_path.iterdir())


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


def record(policy: str, seed: int, mean_s: float | None, **changes: Any) -> dict[str, Any]:
    """A record as `rollout` gives it, of a policy without errors."""
    return dict(results("plain")[0].record) | {
        "label": f"{policy} @ 100 ms",
        "policy": policy,
        "seed": seed,
        "latency_mean_s": mean_s,
        "latency_with_errors_s": mean_s,
        "errors": 0,
    } | changes  # fmt: skip


def test_every_table_names_the_bounds_that_all_its_systems_have() -> None:
    systems = [
        {"scenario_digest": "one", "bound_fluid_s": 1.0, "bound_clairvoyant_s": 0.5},
        {"scenario_digest": "two", "bound_fluid_s": 2.0, "bound_clairvoyant_s": 0.75},
    ]
    records = [
        record(name, seed, 3.0, **systems[seed]) for name in ("random", "other") for seed in (0, 1)
    ]
    assert bounds_of(records) == [("fluid optimum", 1.5), ("clairvoyant bound", 0.625)]
    (said,) = [n for n in table(records, brief=True).notes if n.startswith("Bounds on the mean")]
    assert said.startswith(
        "Bounds on the mean: fluid optimum 1.500 s, clairvoyant bound 0.625 s. Fluid optimum: "
    )
    partly = [*records, record("random", 2, 3.0, bound_fluid_s=None, bound_clairvoyant_s=0.25)]
    assert bounds_of(partly) == [("clairvoyant bound", 0.5)]
    without = [record("random", 0, 3.0, bound_fluid_s=None, bound_clairvoyant_s=None)]
    assert any(note.startswith("These systems have no bounds") for note in table(without).notes)


def test_the_figure_of_means_has_the_best_at_the_top_and_bounds_as_lines() -> None:
    figure = means_figure({"slow": 3.0, "fast": 1.0, "middle": 2.0}, {"fluid optimum": 0.75})
    (dots,) = figure.data
    assert (dots.y, dots.x) == (("slow", "middle", "fast"), (3.0, 2.0, 1.0))
    (line,) = figure.layout.shapes
    assert (line.x0, line.x1) == (0.75, 0.75)
    assert figure.layout.annotations[-1].text == "fluid optimum"
    coloured = dict(zip(dots.y, dots.marker.color, strict=True))
    assert [coloured[label] for label in ("slow", "fast")] == list(PALETTE[:2])


def test_oracles_and_central_policies_are_ranked_apart() -> None:
    kinds = ("oracle", "central", "static", "local")
    records = [record(kind, 0, 1.0, information=kind) for kind in kinds]
    groups = table(records).groups
    assert [group.title for group in groups] == [DEPLOYABLE, CENTRAL, ORACLE]
    assert [len(group.rows) for group in groups] == [2, 1, 1]


def test_the_table_shows_the_records_means_best_first() -> None:
    records = [result.record for result in results()]
    content = table(records)
    assert content.header[:6] == (
        "policy", "information", "runs", "mean s", "with errors s", "with errors vs random %"
    )  # fmt: skip
    (group,) = content.groups
    assert group.title == DEPLOYABLE
    means = [float(row[4]) for row in content.rows]
    assert means == sorted(means)
    random = next(row for row in content.rows if row[0].startswith("random"))
    expected = sum(record["latency_mean_s"] for record in records[:3]) / 3
    assert float(random[3]) == pytest.approx(expected, abs=1e-4)
    assert random[5:9] == ("+0.00", "+0.00 to +0.00") * 2


def test_ttft_and_tpot_stand_beside_the_latency_as_median_and_95th_percentile() -> None:
    seconds = {"ttft_p50_s": 0.25, "ttft_p95_s": 0.5, "tpot_p50_s": 5e-3, "tpot_p95_s": 8.125e-3}
    silent = dict.fromkeys(seconds)
    records = [record("random", 0, 2.0, **seconds), record("silent", 0, 3.0, **silent)]
    whole = table(records)
    columns = [whole.header.index(name) for name in ("TTFT p50 / p95 s", "TPOT p50 / p95 ms")]
    assert columns == [13, 14]
    cells = [[row[column] for column in columns] for row in whole.rows]
    assert cells == [["0.250 / 0.500", "5.00 / 8.12"], ["none / none"] * 2]
    brief = table(records, brief=True)
    columns = [brief.header.index(name) for name in ("TTFT\np95 s", "TPOT\np95 ms")]
    assert [brief.rows[0][column] for column in columns] == ["0.5", "8.12"]


def test_errors_by_kind_are_told_where_servers_were_not_just_full() -> None:
    records = [
        record("random", 0, 2.0, errors=3, errors_full=3),
        record("other", 0, 2.0, errors=4, errors_full=1, errors_black_hole=3),
    ]
    (note,) = [note for note in table(records).notes if "black hole" in note]
    assert note == "Errors of other @ 100 ms: full 25 %, black hole 75 %."


def test_refusing_requests_improves_no_rank() -> None:
    """Refusing half lowers the mean of the answered and still comes last."""
    refusing = {"latency_with_errors_s": 3.0, "errors": 50}
    records = [record("random", k, 2.0) for k in range(3)]
    records += [record("refusing", k, 1.0, **refusing) for k in range(3)]
    rows = table(records).rows
    assert [row[0] for row in rows] == ["random @ 100 ms", "refusing @ 100 ms"]
    assert rows[1][3:9] == (
        "1.0000", "3.0000", "+50.00", "+50.00 to +50.00", "-50.00", "-50.00 to -50.00"
    )  # fmt: skip


def test_a_penalty_below_the_mean_answer_is_pointed_out() -> None:
    dear = record("random", 0, 2.0, errors=1, error_cost_s=2.5)
    cheap = record("other", 0, 2.0, errors=1, error_cost_s=1.5)
    (note,) = [note for note in table([dear, cheap]).notes if "raise error_penalty" in note]
    assert "other @ 100 ms" in note
    assert "random @ 100 ms" not in note


def test_central_policies_are_ranked_apart_and_static_ones_with_local_ones() -> None:
    policies = [("mnlb", "central", 1.0), ("random", "local", 3.0), ("capacity", "static", 2.0)]
    records = [record(name, 0, mean_s, information=kind) for name, kind, mean_s in policies]
    deployable, central = table(records).groups
    assert [row[0] for row in deployable.rows] == ["capacity @ 100 ms", "random @ 100 ms"]
    assert [row[0] for row in central.rows] == ["mnlb @ 100 ms"]
    text = text_table(records)
    assert text.index("[deployable]") < text.index("random @") < text.index("[central]")
    assert text.index("[central]") < text.index("mnlb @ 100 ms")


@pytest.mark.parametrize(("lap_s", "warned"), [(23.0, True), (24.0, False), (None, False)])
def test_replays_that_share_requests_make_the_interval_too_narrow(
    lap_s: float | None, warned: bool
) -> None:
    spans = {"warmup_s": 1.0, "settle_s": 2.0, "horizon_s": 5.0, "trace_lap_s": lap_s}
    records = [record("random", k, 1.0, **spans) for k in range(3)]  # 3 x 8 s
    assert any("too narrow" in note for note in table(records).notes) == warned
    assert ("too narrow" in text_table(records).replace("\n", " ")) == warned


def test_the_report_says_how_long_policies_settled_and_where_intervals_are_too_narrow() -> None:
    made = [
        Result(dict(result.record) | {"settle_s": 2.0, "trace_lap_s": 5.0}, result.histogram, None)
        for result in results("plain")
    ]
    text = render(made)
    assert "<dt>settling</dt><dd>2 s under the policy, not measured</dd>" in text
    assert "is too narrow" in text


def test_a_policy_that_answered_nothing_says_so() -> None:
    records = [dict(result.record) for result in results()]
    for changed in records[3:5]:
        changed |= {"answered": 0, "latency_mean_s": None}
    content = table(records)
    row = next(row for row in content.rows if row[0].startswith("disc-gradient"))
    assert (row[3], *row[7:9]) == ("none", "none", "none")
    assert any("2 of 3 runs answered no request" in note for note in content.notes)


def test_the_text_table_has_a_line_for_every_policy_and_fits_a_terminal() -> None:
    records = [result.record for result in results("plain")]
    text = text_table(records)
    assert "scenario plain: 3 seeds; 1 s warm-up, 0 s settling, 3 s measured" in text
    for name in ("random", "disc-gradient"):
        assert sum(f"{name} @ 100 ms" in line for line in text.splitlines()) >= 1
    assert NASTY in text
    longest = record("a-name-longer-than-every-column-of-the-table-can-be-made-to-hold", 0, 123.4)
    for table_text in (text, text_table([longest])):
        assert max(len(line) for line in table_text.splitlines()) <= 110


def test_nothing_to_report_is_an_error() -> None:
    with pytest.raises(ValueError, match="no results to report; evaluate a policy first"):
        render([])
    with pytest.raises(ValueError, match="no records to report; evaluate a policy first"):
        table([])


def test_importing_the_report_loads_neither_plotly_nor_pandas() -> None:
    code = (
        "import sys, dlb_gym, dlb_gym.report, dlb_gym.report_figures; "
        "sys.exit(bool({'plotly', 'pandas', 'torch', 'stable_baselines3'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
