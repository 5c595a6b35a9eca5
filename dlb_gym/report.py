"""Results in, one HTML file out: self-contained, the same bytes for the same results.

The file works without a network: plotly's script is inside, once. Nothing in it depends on the
time or the machine, and every name that it prints is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from dlb_gym.aside import write_aside
from dlb_gym.comparison import Record, labels, mean_of
from dlb_gym.evaluation import Result
from dlb_gym.printable import printable
from dlb_gym.report_table import RANKED_BY, Group, Table, bounds_of, by_scenario, table

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 1180px;
       margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: #5b6b7b; } dd { margin: 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .88rem; }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #c9d3dd; } td { border-bottom: 1px solid #e6ebf0; }
th:nth-child(-n+2), td:nth-child(-n+2) { text-align: left; }
td.group { text-align: left; color: #5b6b7b; padding-top: .7rem; }
.note { color: #5b6b7b; font-size: .88rem; }
"""


def write_report(
    path: str | Path, results: Sequence[Result], curve: Sequence[tuple[int, float]] = ()
) -> Path:
    """Writes the report of an evaluation.

    Args:
        path: The HTML file; it is there whole or not at all.
        results: Of `evaluation.run_all`.
        curve: Training curve, (steps, mean reward of an interval).

    Raises:
        ValueError: There is no result, or the results cannot be paired.
    """
    target, content = Path(path), render(results, curve)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_aside(target, content)
    return target


def render(results: Sequence[Result], curve: Sequence[tuple[int, float]] = ()) -> str:
    """The report's HTML.

    Raises:
        ValueError: See `write_report`.
    """
    if not results:
        raise ValueError("there are no results to report; evaluate a policy first")
    figures = _Figures()
    scenarios = by_scenario([result.record for result in results])
    title = "DLB evaluation: " + ", ".join(scenarios)
    parts = [f"<h1>{_text(title)}</h1>", _facts([result.record for result in results])]
    for scenario in scenarios:
        own = [result for result in results if result.record["scenario"] == scenario]
        parts += _section(scenario, own, figures)
    if curve:
        from dlb_gym.report_figures import training_figure

        parts += ["<h2>Training</h2>", figures.html(training_figure(curve))]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f"<title>{_text(title)}</title><style>{_STYLE}</style></head>\n"
        f"<body>{_joined(parts)}</body></html>\n"
    )


class _Figures:
    """Turns figures into HTML: numbered, the script with the first."""

    def __init__(self) -> None:
        self._count = 0

    def html(self, figure: Any) -> str:
        self._count += 1
        return str(
            figure.to_html(
                full_html=False,
                include_plotlyjs=self._count == 1,
                div_id=f"figure-{self._count}",
                config={"displaylogo": False, "responsive": True},
            )
        )


def _section(scenario: str, results: Sequence[Result], figures: _Figures) -> list[str]:
    from dlb_gym.report_figures import latency_figure, means_figure, routing_figure, time_figure

    records = [result.record for result in results]
    order = labels(records)
    parts = [f"<h2>Scenario {_text(scenario)}</h2>", _html_table(table(records))]
    histograms = {
        label: _sum(r.histogram for r in results if r.record["label"] == label) for label in order
    }
    means_s = {
        label: mean_s
        for label in order
        if (mean_s := mean_of(records, label, RANKED_BY)) is not None
    }
    parts.append(figures.html(means_figure(means_s, dict(bounds_of(records)))))
    parts.append(figures.html(latency_figure(histograms)))
    timelines: dict[str, dict[str, Any]] = {}
    for result in results:
        if result.timeline is not None and result.timeline["time_s"]:
            timelines.setdefault(str(result.record["label"]), result.timeline)
    if timelines:
        parts.append(figures.html(time_figure(timelines)))
        parts.append(figures.html(routing_figure(timelines)))
    return parts


def _sum(histograms: Iterable[dict[int, int]]) -> dict[int, int]:
    total: dict[int, int] = {}
    for histogram in histograms:
        for index, count in histogram.items():
            total[index] = total.get(index, 0) + count
    return total


def _facts(records: Sequence[Record]) -> str:
    """What all results have in common, and what tells them apart."""
    seeds = sorted({int(record["seed"]) for record in records})
    facts = {
        "scenarios": _listed(
            f"{record['scenario']} ({record['scenario_digest']})" for record in records
        ),
        "seeds": f"{seeds[0]} to {seeds[-1]} ({len(seeds)})",
        "warm-up": _listed(
            f"{record['warmup_s']:g} s under the split by capacity" for record in records
        ),
        "settling": _listed(
            f"{record['settle_s']:g} s under the policy, not measured" for record in records
        ),
        "horizon": _listed(f"{record['horizon_s']:g} s" for record in records),
        "control interval": _listed(
            f"{record['control_interval_s'] * 1e3:g} ms" for record in records
        ),
        "probe interval": _listed(f"{record['probe_interval_s'] * 1e3:g} ms" for record in records),
        "zero-load time": _listed(f"{record['zero_load_time_s']:.4g} s" for record in records),
        "dlb-gym": _listed(str(record["version"]) for record in records),
    }
    rows = (f"<dt>{_text(key)}</dt><dd>{_text(value)}</dd>" for key, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _listed(values: Iterable[str], most: int = 8) -> str:
    different = list(dict.fromkeys(values))
    more = f" and {len(different) - most} more" if len(different) > most else ""
    return ", ".join(different[:most]) + more


def _html_table(content: Table) -> str:
    header = "".join(f"<th>{_text(title)}</th>" for title in content.header)
    groups = "".join(_html_group(group, len(content.header)) for group in content.groups)
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in content.notes)
    return f'<div class="wide"><table><tr>{header}</tr>\n{groups}</table></div>{notes}'


def _html_group(group: Group, columns: int) -> str:
    rows = "".join(
        f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>\n" for row in group.rows
    )
    return f'<tr><td class="group" colspan="{columns}">{_text(group.title)}</td></tr>\n{rows}'


def _text(name: str) -> str:
    """Names and whatever holds one: no markup, and nothing that acts unseen."""
    return escape(printable(name))


def _joined(parts: Iterable[str]) -> str:
    return "\n".join(parts)
