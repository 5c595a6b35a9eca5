"""Measurements: a function, its scenario and its arguments in, rows out; each is made once.

A `Measurement` is everything that decides its rows, and its digest names the file that keeps them:
what is finished is never computed twice, and a crash loses only what was under way. The evaluation
of a policy is a measurement like any other (see `playing.evaluated`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from dlb_gym.aside import write_aside
from dlb_gym.runs import canonical_json
from dlb_gym.scenario import Scenario

Row = dict[str, Any]


@dataclass(frozen=True)
class Measurement:
    """One call that gives rows of a table.

    Attributes:
        function: `module:attribute`, called as `function(scenario, **arguments)`; returns a row or
            a list of rows. A row maps names to numbers, texts, booleans or None; NaN and infinity
            become None.
        scenario: What it measures.
        arguments: JSON values.
        columns: Added to every row: what the table groups by. They decide nothing.

    Raises:
        ValueError: The function is no `module:attribute`, or arguments or columns are no JSON.
    """

    function: str
    scenario: Scenario
    arguments: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(self.function.partition(":")):
            raise ValueError(f'function = {self.function!r} must be "module:attribute"')
        try:
            json.dumps([dict(self.arguments), dict(self.columns)], allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"arguments and columns of {self.function!r} must be finite JSON values: {error}"
            ) from None

    def digest(self, code: str) -> str:
        """SHA-256 (16 hex digits) of whatever decides the rows.

        Args:
            code: Digest of the code that is run (see `discovery.code_of`).
        """
        content = [self.function, self.scenario.digest(), dict(self.arguments), code]
        return hashlib.sha256(canonical_json(content).encode()).hexdigest()[:16]

    def resolve(self) -> Callable[..., Any]:
        """The function.

        Raises:
            ValueError: It cannot be imported.
        """
        module, _, attribute = self.function.partition(":")
        try:
            function: Callable[..., Any] = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"function {self.function!r} cannot be imported: {error}") from error
        return function

    def rows(self) -> list[Row]:
        """What the function gives now, without the columns.

        Raises:
            ValueError: It returned something else than rows.
        """
        given = self.resolve()(self.scenario, **self.arguments)
        rows = [given] if isinstance(given, Mapping) else given
        if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
            raise ValueError(
                f"{self.function} returned {type(given).__name__}; return a dict or a list of dicts"
            )
        return [{key: self._plain(key, value) for key, value in row.items()} for row in rows]

    def _plain(self, key: str, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if value is not None and not isinstance(value, bool | int | float | str):
            raise ValueError(
                f"{self.function} returned {type(value).__name__} for {key!r}; a row holds "
                "numbers, texts, booleans and None: one row for every element of an array"
            )
        return value


def measure(
    measurements: Sequence[Measurement],
    folder: Path,
    code: str,
    jobs: int = 1,
    on_finished: Callable[[int], None] | None = None,
) -> list[Row]:
    """Rows of all measurements, in their order; those finished before are read, not made.

    Args:
        measurements: Any.
        folder: A file for every measurement goes here, complete or not at all.
        code: Digest of the code that is run.
        jobs: Processes.
        on_finished: Called with the number of measurements that just ended.

    Raises:
        ValueError: jobs < 1 or a function does not exist, and then there is no folder yet; a
            column has the name of a row's key; or a file in the folder holds no rows.
    """
    if jobs < 1:
        raise ValueError(f"jobs = {jobs} must be at least 1")
    for measurement in measurements:
        measurement.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{measurement.digest(code)}.json" for measurement in measurements]
    missing = {
        path: measurement
        for path, measurement in zip(paths, measurements, strict=True)
        if not path.is_file()
    }
    report = on_finished or (lambda count: None)
    report(len(paths) - len(missing))
    for count in _made(missing, jobs):
        report(count)
    return [
        row
        for path, measurement in zip(paths, measurements, strict=True)
        for row in _labelled(_read(path), measurement)
    ]


def _made(missing: Mapping[Path, Measurement], jobs: int) -> Iterator[int]:
    """Makes measurements, each under its path; 1 for each that is written."""
    if jobs == 1 or len(missing) < 2:
        for path, measurement in missing.items():
            yield _make(path, measurement)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=jobs, return_as="generator_unordered")
    yield from parallel(delayed(_make)(*each) for each in missing.items())


def _make(path: Path, measurement: Measurement) -> int:
    write_aside(path, canonical_json(measurement.rows()))
    return 1


def _read(path: Path) -> list[Row]:
    try:
        rows = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} holds no rows of a measurement ({error}); delete it") from error
    if not isinstance(rows, list) or not all(_is_row(row) for row in rows):
        raise ValueError(f"{path} holds no rows of a measurement; delete it")
    return rows


def _is_row(row: Any) -> bool:
    """As `Measurement.rows` makes them."""
    return isinstance(row, dict) and all(
        value is None
        or isinstance(value, bool | int | str)
        or (isinstance(value, float) and math.isfinite(value))
        for value in row.values()
    )


def _labelled(rows: list[Row], measurement: Measurement) -> Iterator[Row]:
    for row in rows:
        if clash := sorted(row.keys() & measurement.columns.keys()):
            raise ValueError(
                f"column {clash[0]!r} is also a key of the rows of {measurement.function}; "
                "rename the column"
            )
        yield {**measurement.columns, **row}
