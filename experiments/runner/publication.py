"""An experiment from its sweep to the files that the docs show.

Figure and finding are made of the table as its file has it, so whoever has the file can make them
again.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from dlb_gym.aside import write_aside
from dlb_gym.printable import printable
from experiments.runner.discovery import Experiment, code_of
from experiments.runner.drawing import svg
from experiments.runner.measurement import Measurement, measure

ROOT = Path(__file__).parents[2]


class Places(NamedTuple):
    """Where an experiment's files go: measurements, table, finding and figure."""

    measurements: Path
    table: Path
    finding: Path
    figure: Path


def places(name: str, root: Path = ROOT, quick: bool = False) -> Places:
    """The files of an experiment; those of a quick sweep lie with its measurements."""
    work = root / "runs" / "experiments" / name
    results = work / "quick" if quick else root / "experiments" / "results"
    figures = work / "quick" if quick else root / "docs" / "figures"
    return Places(
        work / "measurements",
        results / f"{name}.csv",
        results / f"{name}.txt",
        figures / f"{name}.svg",
    )


class Published(NamedTuple):
    """What an experiment gave, and where it is."""

    table: pd.DataFrame
    finding: str
    places: Places


def publish(
    experiment: Experiment,
    measurements: list[Measurement],
    where: Places,
    jobs: int = 1,
    on_finished: Callable[[int], None] | None = None,
) -> Published:
    """Makes what is missing and writes table, finding and figure.

    Args:
        experiment: The experiment.
        measurements: Its sweep.
        where: The files.
        jobs: Processes.
        on_finished: Called with the number of measurements that just ended.

    Raises:
        ValueError: As `measure`; or the table is empty, or the finding is.
    """
    code = code_of(experiment.name)
    rows = measure(measurements, where.measurements, code, jobs, on_finished)
    text = csv_text(experiment.table(pd.DataFrame(rows)))
    table = read_table(text)
    if table.empty:
        raise ValueError(f"table of {experiment.name!r} is empty; return a row for every case")
    finding = experiment.finding(table).strip()
    if not finding:
        raise ValueError(f"finding of {experiment.name!r} is empty; say what the table says")
    drawn = svg(experiment.figure, table, experiment.name)
    for path, content in (
        (where.table, text),
        (where.finding, finding + "\n"),
        (where.figure, drawn),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, content)
    return Published(table, finding, where)


def csv_text(table: pd.DataFrame) -> str:
    """A table as CSV text, a line a row: names in it hold no line end and no control character."""
    shown = table.map(lambda value: printable(value) if isinstance(value, str) else value)
    text: str = shown.to_csv(index=False, float_format="%.6g", lineterminator="\n")
    return text


def read_table(text: str) -> pd.DataFrame:
    """A table from its CSV text; only an empty cell means that there is no value."""
    return pd.read_csv(io.StringIO(text), keep_default_na=False, na_values=[""])
