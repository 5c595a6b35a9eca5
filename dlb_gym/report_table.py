"""The table of an evaluation: one row a policy, as text cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dlb_gym.comparison import Comparison, Estimate, Record, labels, mean_of, paired_differences

REFERENCE = "random"
NOTHING = "none"
"""Stands where a run answered no request and so has no latency."""


class Table(NamedTuple):
    """Cells as text.

    Attributes:
        header: Column names.
        rows: One a policy, best mean latency first.
        notes: What the reader must know.
    """

    header: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str]


_SECONDS = (
    ("p50 s", "latency_p50_s"),
    ("p90 s", "latency_p90_s"),
    ("p95 s", "latency_p95_s"),
    ("p99 s", "latency_p99_s"),
    ("TTFT s", "ttft_mean_s"),
    ("with errors s", "latency_with_errors_s"),
)
_PERCENT = (
    ("errors %", "error_rate"),
    ("load %", "utilisation"),
    ("cross-cell %", "cross_cell_share"),
)
_COUNTS = (("at end", "in_system_at_horizon"), ("unfinished", "unfinished"))


def reference_of(records: Sequence[Record]) -> str:
    """The label others are compared with: `random` if it is there, else the first."""
    for record in records:
        if record["policy"] == REFERENCE:
            return str(record["label"])
    return str(records[0]["label"])


def table(records: Sequence[Record]) -> Table:
    """The table of records of one scenario (or one family).

    Raises:
        ValueError: There is no record, or they cannot be paired.
    """
    if not records:
        raise ValueError("there are no records to report; evaluate a policy first")
    reference = reference_of(records)
    compared = {row.label: row for row in paired_differences(records, reference)}
    name = next(str(r["policy"]) for r in records if r["label"] == reference)
    header = (
        "policy", "information", "runs", "mean s", f"vs {name} %", "95 % interval",
        *(title for title, _ in (*_SECONDS, *_PERCENT, *_COUNTS)),
    )  # fmt: skip
    order = sorted(labels(records), key=lambda label: _rank(records, label))
    rows = [_row(records, label, compared[label]) for label in order]
    return Table(header, rows, _notes(records, reference, compared))


def _rank(records: Sequence[Record], label: str) -> tuple[bool, float]:
    mean_s = mean_of(records, label, "latency_mean_s")
    return mean_s is None, mean_s or 0.0


def _row(records: Sequence[Record], label: str, compared: Comparison) -> tuple[str, ...]:
    own = [record for record in records if record["label"] == label]

    def mean(metric: str, digits: int, factor: float = 1.0) -> str:
        value = mean_of(own, label, metric)
        return NOTHING if value is None else f"{value * factor:.{digits}f}"

    return (
        label,
        str(own[0]["information"]),
        str(len(own)),
        mean("latency_mean_s", 4),
        *percent_change(compared.ratio),
        *(mean(metric, 3) for _, metric in _SECONDS),
        *(mean(metric, 2, 100.0) for _, metric in _PERCENT),
        *(mean(metric, 0) for _, metric in _COUNTS),
    )


def percent_change(ratio: Estimate | None) -> tuple[str, str]:
    """A ratio as a change in percent, and its interval."""
    if ratio is None:
        return NOTHING, NOTHING
    value = f"{100.0 * (ratio.value - 1.0):+.2f}"
    if ratio.low is None or ratio.high is None:
        return value, "too few runs"
    return value, f"{100.0 * (ratio.low - 1.0):+.2f} to {100.0 * (ratio.high - 1.0):+.2f}"


def _notes(records: Sequence[Record], reference: str, compared: dict[str, Comparison]) -> list[str]:
    notes = [
        f"Change of the mean latency against {reference}: mean of the paired ratios over "
        "(scenario, seed), 95 % bootstrap interval.",
        "Latency and TTFT are those of answered requests; 'with errors' charges each error "
        "the scenario's error_penalty in zero-load times.",
        "load: offered over the nominal rate of the live servers, mean over the horizon; "
        "cross-cell: requests sent to another cell than the root's own; at end: requests in the "
        "system when arrivals stopped.",
    ]
    for label in labels(records):
        own = [record for record in records if record["label"] == label]
        silent = sum(record["answered"] == 0 for record in own)
        if silent:
            notes.append(
                f"{label}: {silent} of {len(own)} runs answered no request, so there is no latency "
                "to give."
            )
        elif compared[label].note:
            notes.append(f"{label}: {compared[label].note}.")
        elif compared[label].pairs < len(own):
            notes.append(f"{label}: only {compared[label].pairs} of {len(own)} runs are paired.")
    return notes


def by_scenario(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the scenario's name, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(str(record["scenario"]), []).append(record)
    return found


WIDEST = 500
"""Characters of a line: wide enough that no cell is cut or folded."""


def text_table(records: Sequence[Record]) -> str:
    """The tables as aligned text, one for each scenario; a terminal may wrap the lines."""
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(width=WIDEST, record=False, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        for scenario, own in by_scenario(records).items():
            content = table(own)
            grid = RichTable(
                title=Text(f"scenario {scenario}"),
                box=box.SIMPLE_HEAD,
                padding=(0, 1),
                title_justify="left",
            )
            for index, title in enumerate(content.header):
                justify = "left" if index < 2 else "right"
                grid.add_column(Text(title), justify=justify, no_wrap=True)  # type: ignore[arg-type]
            for row in content.rows:
                grid.add_row(*(Text(cell) for cell in row))
            console.print(grid)
            for note in content.notes:
                console.print(Text(note))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
