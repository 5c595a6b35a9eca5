"""The table of an evaluation: one row a policy, as text cells; whole, or brief for a terminal.

Policies are ranked by the mean latency with errors, so that refusing requests does not pay: an
error costs the scenario's error_penalty in zero-load times. Those with central information, which
no root router has, are ranked apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlb_gym.comparison import Comparison, Estimate, Record, mean_of, paired_differences
from dlb_gym.measurements import ERROR_KINDS
from dlb_gym.printable import printable

REFERENCE = "random"
NOTHING = "none"
"""Stands where a run answered no request and so has no latency."""
RANKED_BY = "latency_with_errors_s"
ANSWERED = "latency_mean_s"
FLUID, CLAIRVOYANT = "bound_fluid_s", "bound_clairvoyant_s"
WIDTH = 110
"""Columns of the terminal that the text fits."""

DEPLOYABLE = "deployable: static or local information"
CENTRAL = "central: ranked apart, as no root router knows what they do"
ORACLE = "oracles: ranked apart, as nobody knows what they do"


class Group(NamedTuple):
    """Policies that are ranked together.

    Attributes:
        title: What they have in common.
        rows: Cells as text, one row a policy, best first.
    """

    title: str
    rows: list[tuple[str, ...]]


class Table(NamedTuple):
    """Cells as text.

    Attributes:
        header: Column names.
        groups: At least one.
        notes: What the reader must know.
    """

    header: tuple[str, ...]
    groups: list[Group]
    notes: list[str]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """The rows of all groups."""
        return [row for group in self.groups for row in group.rows]


class _Policy(NamedTuple):
    """What a row is made of; the comparisons are with errors, and of answered requests only."""

    label: str
    records: list[Record]
    with_errors: Comparison
    answered: Comparison


_Column = tuple[str, Callable[[_Policy], str]]


def reference_of(records: Sequence[Record]) -> str:
    """The label others are compared with: `random` if it is there, else the first."""
    for record in records:
        if record["policy"] == REFERENCE:
            return str(record["label"])
    return str(records[0]["label"])


def table(records: Sequence[Record], brief: bool = False) -> Table:
    """The table of records of one scenario (or one family).

    Args:
        records: Of one evaluation.
        brief: Only the columns that a terminal of WIDTH columns has room for.

    Raises:
        ValueError: There is no record, or they cannot be paired.
    """
    if not records:
        raise ValueError("there are no records to report; evaluate a policy first")
    reference = reference_of(records)
    policies = _policies(records, reference)
    name = printable(next(str(r["policy"]) for r in records if r["label"] == reference))
    columns = _brief(name) if brief else _whole(name)
    groups = []
    for title, kinds in (
        (DEPLOYABLE, ("static", "local")), (CENTRAL, ("central",)), (ORACLE, ("oracle",))
    ):  # fmt: skip
        own = [p for p in policies if p.records[0]["information"] in kinds]
        rows = [tuple(cell(p) for _, cell in columns) for p in sorted(own, key=_rank)]
        if rows:
            groups.append(Group(title, rows))
    return Table(tuple(title for title, _ in columns), groups, _notes(policies, reference, brief))


def _policies(records: Sequence[Record], reference: str) -> list[_Policy]:
    with_errors = {c.label: c for c in paired_differences(records, reference, RANKED_BY)}
    answered = {c.label: c for c in paired_differences(records, reference, ANSWERED)}
    return [
        _Policy(label, [r for r in records if r["label"] == label], with_errors[label], compared)
        for label, compared in answered.items()
    ]


def _rank(policy: _Policy) -> tuple[bool, float]:
    mean_s = mean_of(policy.records, policy.label, RANKED_BY)
    return mean_s is None, mean_s or 0.0


def _label(policy: _Policy) -> str:
    return policy.label


def _information(policy: _Policy) -> str:
    return str(policy.records[0]["information"])


def _mean(metric: str, form: str, factor: float = 1.0) -> Callable[[_Policy], str]:
    """A cell with the mean of a metric over the policy's runs."""

    def cell(policy: _Policy) -> str:
        value = mean_of(policy.records, policy.label, metric)
        return NOTHING if value is None else format(value * factor, form)

    return cell


def _pair(first: str, second: str, form: str, factor: float = 1.0) -> Callable[[_Policy], str]:
    """A cell with two such means."""
    one, other = _mean(first, form, factor), _mean(second, form, factor)
    return lambda policy: f"{one(policy)} / {other(policy)}"


def _brief(reference: str) -> list[_Column]:
    def change(policy: _Policy) -> str:
        value, interval = percent_change(policy.with_errors.ratio, digits=1)
        return value if value == NOTHING else f"{value} ({interval})"

    return [
        ("policy", _label),
        ("info", _information),
        ("mean\ns", _mean(ANSWERED, ".4g")),
        ("with\nerrors s", _mean(RANKED_BY, ".4g")),
        (f"with errors\nvs {reference} %", change),
        ("p95\ns", _mean("latency_p95_s", ".4g")),
        ("TTFT\np95 s", _mean("ttft_p95_s", ".3g")),
        ("TPOT\np95 ms", _mean("tpot_p95_s", ".3g", 1e3)),
        ("errors\n%", _mean("error_rate", ".2f", 100.0)),
    ]


def _whole(reference: str) -> list[_Column]:
    return [
        ("policy", _label),
        ("information", _information),
        ("runs", lambda policy: str(len(policy.records))),
        ("mean s", _mean(ANSWERED, ".4f")),
        ("with errors s", _mean(RANKED_BY, ".4f")),
        (f"with errors vs {reference} %", lambda p: percent_change(p.with_errors.ratio)[0]),
        ("95 % interval", lambda p: percent_change(p.with_errors.ratio)[1]),
        (f"mean vs {reference} %", lambda p: percent_change(p.answered.ratio)[0]),
        ("95 % interval", lambda p: percent_change(p.answered.ratio)[1]),
        ("p50 s", _mean("latency_p50_s", ".3f")),
        ("p90 s", _mean("latency_p90_s", ".3f")),
        ("p95 s", _mean("latency_p95_s", ".3f")),
        ("p99 s", _mean("latency_p99_s", ".3f")),
        ("TTFT p50 / p95 s", _pair("ttft_p50_s", "ttft_p95_s", ".3f")),
        ("TPOT p50 / p95 ms", _pair("tpot_p50_s", "tpot_p95_s", ".2f", 1e3)),
        ("errors %", _mean("error_rate", ".2f", 100.0)),
        ("load %", _mean("utilisation", ".2f", 100.0)),
        ("cross-cell %", _mean("cross_cell_share", ".2f", 100.0)),
        ("at end", _mean("in_system_at_horizon", ".0f")),
        ("unfinished", _mean("unfinished", ".0f")),
    ]


def percent_change(ratio: Estimate | None, digits: int = 2) -> tuple[str, str]:
    """A ratio as a change in percent, and its interval."""
    if ratio is None:
        return NOTHING, NOTHING
    value, *bounds = (
        None if number is None else f"{100.0 * (number - 1.0):+.{digits}f}" for number in ratio
    )
    low, high = bounds
    interval = "too few runs" if low is None or high is None else f"{low} to {high}"
    return str(value), interval


def _notes(policies: Sequence[_Policy], reference: str, brief: bool) -> list[str]:
    notes = [
        f"Change against {reference}: mean of the paired ratios over (scenario, seed), 95 % "
        "bootstrap interval. Best with errors first.",
        "Mean, percentiles, TTFT (time to first token) and TPOT (time per output token after it) "
        "are those of answered requests; 'with errors' charges each error the scenario's "
        "error_penalty in zero-load times.",
    ]
    if not brief:
        notes += [
            "cross-cell: requests sent to another cell than the root's own.",
            "load: offered over the nominal rate of the live servers, mean over the horizon; at "
            "end: requests in the system when arrivals stopped.",
        ]
    notes += _note_on_bounds([record for policy in policies for record in policy.records])
    notes += _note_on_trace([record for policy in policies for record in policy.records])
    notes += _note_on_cheap_errors(policies)
    notes += _note_on_kinds(policies)
    for policy in policies:
        notes += _note_on(policy)
    return notes


def bounds_of(records: Sequence[Record]) -> list[tuple[str, float]]:
    """Names and means of the bounds that all the systems have (see `bounds`)."""
    systems = {(r["scenario_digest"], r["seed"]): r for r in records}.values()
    found = []
    for name, key in (("fluid optimum", FLUID), ("clairvoyant bound", CLAIRVOYANT)):
        values = [r[key] for r in systems]
        if None not in values:
            found.append((name, sum(values) / len(values)))
    return found


def _note_on_bounds(records: Sequence[Record]) -> list[str]:
    found = bounds_of(records)
    if not found:
        return ["These systems have no bounds: servers keep prefixes, or demand is beyond them."]
    said = ", ".join(f"{name} {value_s:.3f} s" for name, value_s in found)
    return [
        f"Bounds on the mean: {said}. Fluid optimum: the best fixed routing, cells doing as their "
        "latency curves say. Clairvoyant: nothing ever waits."
    ]


def _note_on_trace(records: Sequence[Record]) -> list[str]:
    """Replays of one trace share requests where all of them together outlast its lap."""
    replays = {(r["scenario_digest"], r["seed"]): r for r in records if r["trace_lap_s"]}
    if not replays:
        return []
    lap_s = min(float(r["trace_lap_s"]) for r in replays.values())
    spans_s = [r["warmup_s"] + r["settle_s"] + r["horizon_s"] for r in replays.values()]
    if len(replays) < 2 or sum(spans_s) <= lap_s:
        return []
    return [
        f"The trace lasts {lap_s:.4g} s at this rate, and {len(replays)} replays of "
        f"{max(spans_s):.4g} s each start at random places in it, so they share requests. The "
        "interval treats them as independent and is too narrow; use fewer seeds or a longer trace."
    ]


def _note_on(policy: _Policy) -> list[str]:
    notes = []
    silent = sum(record["answered"] == 0 for record in policy.records)
    count = len(policy.records)
    if silent:
        notes.append(
            f"{policy.label}: {silent} of {count} runs answered no request, so there is no latency "
            "to give."
        )
    elif policy.with_errors.note or policy.answered.note:
        notes.append(f"{policy.label}: {policy.with_errors.note or policy.answered.note}.")
    elif policy.with_errors.pairs < count:
        notes.append(f"{policy.label}: only {policy.with_errors.pairs} of {count} runs are paired.")
    return notes


def _note_on_cheap_errors(policies: Sequence[_Policy]) -> list[str]:
    """Where the penalty is below what an answer takes, the rank does reward refusing."""
    cheap = [
        policy.label
        for policy in policies
        if any(r["errors"] and r["error_cost_s"] < (r[ANSWERED] or 0.0) for r in policy.records)
    ]
    if not cheap:
        return []
    return [
        f"An error cost less than the mean answer took in some run of {', '.join(cheap)}: refusing "
        "requests improved the rank there; raise error_penalty."
    ]


def _note_on_kinds(policies: Sequence[_Policy]) -> list[str]:
    """Errors by kind, where some are not those of full servers."""
    lines = []
    for policy in policies:
        counts = {kind: sum(r[f"errors_{kind}"] for r in policy.records) for kind in ERROR_KINDS}
        total = sum(counts.values())
        if total > counts["full"]:
            shares = (
                f"{kind.replace('_', ' ')} {100.0 * count / total:.0f} %"
                for kind, count in counts.items()
                if count
            )
            lines.append(f"Errors of {policy.label}: {', '.join(shares)}.")
    return lines


def by_scenario(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records by the scenario's name, in the order in which they come."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(str(record["scenario"]), []).append(record)
    return found


def text_table(records: Sequence[Record]) -> str:
    """The brief tables as aligned text of at most WIDTH columns, one for each scenario.

    A label too long for it goes on in the next line.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(width=WIDTH, record=False, color_system=None, highlight=False, markup=False)
    with console.capture() as captured:
        for scenario, own in by_scenario(records).items():
            content = table(own, brief=True)
            grid = RichTable(
                title=Text(printable(_title(scenario, own))),
                box=box.SIMPLE_HEAD,
                padding=(0, 1, 0, 0),
                title_justify="left",
            )
            for index, title in enumerate(content.header):
                grid.add_column(
                    Text(title),
                    justify="left" if index < 2 else "right",
                    no_wrap=index > 0,
                    overflow="fold",
                    vertical="bottom",
                )
            for group in content.groups:
                grid.add_row(Text(f"[{group.title.partition(':')[0]}]"))
                for row in group.rows:
                    grid.add_row(*(Text(printable(cell)) for cell in row))
            console.print(grid)
            for group in content.groups:
                console.print(Text(group.title))
            for note in content.notes:
                console.print(Text(printable(note)))
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _title(scenario: str, records: Sequence[Record]) -> str:
    """The scenario and what was done with it."""
    seeds = len({record["seed"] for record in records})
    systems = len({record["scenario_digest"] for record in records})
    drawn = f"{systems} systems, " if systems > 1 else ""
    first = records[0]
    return (
        f"scenario {scenario}: {drawn}{seeds} seeds; {first['warmup_s']:g} s warm-up, "
        f"{first['settle_s']:g} s settling, {first['horizon_s']:g} s measured"
    )
