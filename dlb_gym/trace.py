"""Recorded request traces: CSV, CSV.gz, JSON lines and JSON lines.gz.

A row is one request: its time, prompt tokens and output tokens. Times are numbers, which
`time_unit_s` turns into seconds, or ISO wall clock ("2023-11-16 18:15:46.6805900", up to nine
fractional digits, UTC unless an offset is given). Rows must be sorted by time; equal times keep
file order. Blank lines are skipped.

A column of prefix-block ids, where one is named, tells of sessions (see `trace_sessions`).

A request of zero output tokens is kept: it is served, and done, once its prompt is (a cancelled or
scoring request). Only a trace without any tokens is refused.
"""

from __future__ import annotations

import math
import re
from array import array
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from dlb_gym.messages import shown
from dlb_gym.scenario import Trace
from dlb_gym.strict import MAX_SECONDS, MAX_TOKENS
from dlb_gym.trace_file import Row, TraceError, TraceFile, recognised
from dlb_gym.trace_sessions import MAX_BLOCKS, SessionFinder, block_ids

SHORTEST_S = 1e-6
"""Between the first and the last request of a trace; a shorter one is a slip in its unit."""

_WALL_CLOCK = re.compile(
    r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?\s?(Z|[+-]\d\d:?\d\d)?"
)
_CACHED_TRACES = 4


@dataclass(frozen=True, eq=False)
class TraceColumns:
    """The requests of a trace in file order: read-only float64 arrays of shape (requests,).

    Attributes:
        time_s: Seconds since the first request, ascending; the last exceeds 0.
        prompt_tokens: Whole numbers >= 0.
        output_tokens: Whole numbers >= 0.
        session: Sessions numbered from 0, -1 for none; None where the trace tells of none.
        prefix_tokens: Of the prompt, what the turn before in its session held too; None likewise.
    """

    time_s: NDArray[np.float64]
    prompt_tokens: NDArray[np.float64]
    output_tokens: NDArray[np.float64]
    session: NDArray[np.float64] | None = None
    prefix_tokens: NDArray[np.float64] | None = None

    @cached_property
    def mean_tokens(self) -> tuple[float, float]:
        """Mean prompt and output tokens of a request."""
        count = self.time_s.size
        return (
            math.fsum(self.prompt_tokens.tolist()) / count,
            math.fsum(self.output_tokens.tolist()) / count,
        )


def describe_trace(
    path: str | Path,
    *,
    time_column: str | None = None,
    prompt_column: str | None = None,
    output_column: str | None = None,
    time_unit_s: float | None = None,
    hash_ids_column: str | None = None,
    block_tokens: int = 512,
) -> Trace:
    """The description of a trace file by which a scenario names it.

    Args:
        path: A file ending in .csv, .csv.gz, .jsonl or .jsonl.gz.
        time_column: Name of the time column; by default, as the other names, that of the first of
            `trace_file.KNOWN_FORMATS` whose columns the file has.
        prompt_column: Name of the column of prompt tokens.
        output_column: Name of the column of output tokens.
        time_unit_s: Seconds per unit of a numeric time; by default the known format's, else 1.
        hash_ids_column: Name of the column of prefix-block ids, from which sessions follow; by
            default requests belong to none.
        block_tokens: Tokens of a full block.

    Raises:
        TraceError: The file cannot be read, is empty or larger than `trace_file.MAX_TRACE_BYTES`,
            a named column does not exist, the columns are not known and not all named, or a number
            is out of bounds.
    """
    file = TraceFile(path)
    columns = recognised(file, time_column, prompt_column, output_column)
    file.require_columns(hash_ids_column)
    try:
        return Trace(
            path=str(path),
            sha256=file.sha256,
            time_column=columns.time_column,
            prompt_column=columns.prompt_column,
            output_column=columns.output_column,
            time_unit_s=columns.time_unit_s if time_unit_s is None else time_unit_s,
            hash_ids_column=hash_ids_column,
            block_tokens=block_tokens,
        )
    except ValidationError as error:
        wrong = [f"{item['loc'][0]}: {item['msg']}" for item in error.errors()]
        raise TraceError(
            f"{file.name} cannot be described; {'; '.join(wrong)}; give other numbers"
        ) from None


def load_trace(trace: Trace) -> TraceColumns:
    """Reads a trace, or returns what was read before from the same content and columns.

    Raises:
        TraceError: The file is missing, changed (its SHA-256 differs), empty, larger than
            `trace_file.MAX_TRACE_BYTES`, lacks a column, has fewer than two different times, no
            tokens at all, or a line that is not sorted or holds no valid number.
    """
    by_content = trace.model_copy(update={"path": ""})
    columns = _loaded.get(by_content)
    if columns is None:
        columns = _read(trace)
        for oldest in list(_loaded)[: 1 - _CACHED_TRACES]:
            _loaded.pop(oldest, None)  # another thread may have taken it out meanwhile
        _loaded[by_content] = columns
    return columns


_loaded: dict[Trace, TraceColumns] = {}
"""What was read last, by content rather than path."""


def _read(trace: Trace) -> TraceColumns:
    file = TraceFile(trace.path)
    if file.sha256 != trace.sha256:
        raise TraceError(
            f"{file.name} has changed: its SHA-256 is {file.sha256}, the scenario names "
            f"{trace.sha256}; restore the file or describe the trace anew"
        )
    file.require_columns(
        trace.time_column, trace.prompt_column, trace.output_column, trace.hash_ids_column
    )
    columns = _columns(file, trace)
    for field in fields(columns):
        values = getattr(columns, field.name)
        if values is not None:
            values.setflags(write=False)
    return columns


def _columns(file: TraceFile, trace: Trace) -> TraceColumns:
    times, prompts, outputs = array("d"), array("d"), array("d")
    turns = _Turns(trace)
    first: _Instant | None = None
    last: object = None
    for row in file.rows():
        place = f"{file.name}, line {row.line}"
        value = _value(row, trace.time_column, place)
        instant = _instant(value, trace.time_unit_s, place)
        first = first or instant
        time_s = instant.since(first, place)
        if times and time_s < times[-1]:
            raise TraceError(
                f"{place}: the time {shown(value)} comes before {shown(last)}, that of the request "
                "above; "
                f"sort the file by {trace.time_column!r}"
            )
        last = value
        times.append(time_s)
        for column, tokens in ((trace.prompt_column, prompts), (trace.output_column, outputs)):
            tokens.append(_tokens(_value(row, column, place), column, place))
        turns.add(row, int(prompts[-1]), place)
    columns = TraceColumns(np.array(times), np.array(prompts), np.array(outputs), *turns.columns())
    _require_rate(file, columns)
    return columns


class _Turns:
    """Session and prefix of every row, where the trace has a column that tells."""

    def __init__(self, trace: Trace) -> None:
        self._column = trace.hash_ids_column
        self._block_tokens = trace.block_tokens
        self._finder = SessionFinder(trace.block_tokens)
        self._sessions, self._prefixes = array("d"), array("d")

    def add(self, row: Row, prompt_tokens: int, place: str) -> None:
        """The next row."""
        if self._column is None:
            return
        blocks = block_ids(_value(row, self._column, place), self._column, place)
        if blocks and (len(blocks) - 1) * self._block_tokens >= max(prompt_tokens, 1):
            raise TraceError(
                f"{place}: {self._column} names {len(blocks)} blocks of block_tokens = "
                f"{self._block_tokens}, more than its {prompt_tokens} prompt tokens fill; "
                "correct block_tokens or the line"
            )
        turn = self._finder.add(blocks, prompt_tokens)
        if self._finder.blocks > MAX_BLOCKS:
            raise TraceError(
                f"{place}: {self._column} has named more than {MAX_BLOCKS:,} different blocks by "
                "here, more than are kept in memory; cut out a time window"
            )
        self._sessions.append(turn.session)
        self._prefixes.append(turn.prefix_tokens)

    def columns(self) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """The columns `session` and `prefix_tokens`."""
        if self._column is None:
            return None, None
        return np.array(self._sessions), np.array(self._prefixes)


def _require_rate(file: TraceFile, columns: TraceColumns) -> None:
    """A replay needs two different times, and a nominal rate needs tokens."""
    count = columns.time_s.size
    if count == 0:
        raise TraceError(f"{file.name} has no requests; give a file with two or more")
    if columns.time_s[-1] <= 0:
        raise TraceError(
            f"{file.name}: all {count} requests have the same time, so there is no rate to "
            "replay; give a trace with two or more different times"
        )
    if not SHORTEST_S <= columns.time_s[-1] <= MAX_SECONDS:
        raise TraceError(
            f"{file.name}: {columns.time_s[-1]:.3g} s lie between its first and last request; they "
            f"must be {SHORTEST_S:g} to {MAX_SECONDS:g} s: correct the times or time_unit_s"
        )
    if not (columns.prompt_tokens.any() or columns.output_tokens.any()):
        raise TraceError(f"{file.name}: no request has any tokens; check the column names")


def _value(row: Row, column: str, place: str) -> object:
    if column not in row.index_of:
        raise TraceError(f"{place}: there is no {column!r}; correct or drop the line")
    return row.values[row.index_of[column]]


@dataclass(frozen=True)
class _Instant:
    """A point of time: whole nanoseconds of UTC, or a number of seconds from an unknown origin."""

    nanoseconds: int | None
    seconds: float

    def since(self, first: _Instant, place: str) -> float:
        """Seconds since `first`."""
        if (self.nanoseconds is None) != (first.nanoseconds is None):
            raise TraceError(
                f"{place}: numbers and wall-clock times are mixed; write all times one way"
            )
        if self.nanoseconds is None or first.nanoseconds is None:
            return self.seconds - first.seconds
        return (self.nanoseconds - first.nanoseconds) / 1e9


def _instant(value: object, unit_s: float, place: str) -> _Instant:
    try:
        number = _number(value)
    except ValueError:
        return _Instant(_wall_clock_ns(str(value), unit_s, place), 0.0)
    if not math.isfinite(number):
        raise TraceError(
            f"{place}: the time {shown(value)} is not finite; correct or drop the line"
        )
    return _Instant(None, number * unit_s)


def _wall_clock_ns(text: str, unit_s: float, place: str) -> int:
    match = _WALL_CLOCK.fullmatch(text.strip())
    try:
        if match is None:
            raise ValueError(text)
        date, time, fraction, offset = match.groups()
        whole = datetime.fromisoformat(f"{date}T{time}{offset or '+00:00'}")
    except ValueError:
        raise TraceError(
            f"{place}: the time {shown(text)} is neither a number nor wall clock as "
            "'2023-11-16 18:15:46.6805900'; correct the line or name another time column"
        ) from None
    if unit_s != 1.0:
        raise TraceError(
            f"{place}: time_unit_s = {unit_s} has no meaning for the wall-clock time "
            f"{shown(text)}; leave it at 1"
        )
    since_epoch = whole - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = since_epoch.days * 86_400 + since_epoch.seconds
    return seconds * 1_000_000_000 + int((fraction or "0").ljust(9, "0"))


def _tokens(value: object, column: str, place: str) -> float:
    try:
        number = _number(value)
    except ValueError:
        number = math.nan
    if not (0 <= number <= MAX_TOKENS and number.is_integer()):
        raise TraceError(
            f"{place}: {column} = {shown(value)} must be a whole number from 0 to "
            f"{MAX_TOKENS}; correct or drop the line"
        )
    return number


def _number(value: object) -> float:
    """The value as a float; ValueError unless it is a number or the text of one."""
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError as error:
            raise ValueError(value) from error
    raise ValueError(value)
