"""Trace files, whatever their format: CSV or JSON lines, plain or gzip, and whose columns."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from dlb_gym.input_files import InputFileError, input_path, read_whole
from dlb_gym.messages import nearest

MAX_TRACE_BYTES = 256 * 2**20
"""Largest trace, in bytes of text (gzip undone): some six million rows of the Azure traces."""
MAX_LINE_CHARS = 2**22
"""Longest line; that of a request of a million tokens in blocks of 16 has a tenth of it."""
MAX_COLUMNS = 1_000

_CSV_ENDINGS = (".csv", ".csv.gz")
_ENDINGS = (*_CSV_ENDINGS, ".jsonl", ".jsonl.gz")


class TraceError(ValueError):
    """A trace that cannot be used; the message names file, line, value, rule and remedy."""


class Row(NamedTuple):
    """One request: text from CSV, JSON values from JSON lines.

    Attributes:
        line: Line of the file, from 1.
        index_of: Column name to its place in `values`.
        values: The request's values.
    """

    line: int
    index_of: Mapping[str, int]
    values: Sequence[Any]


@dataclass(frozen=True)
class TraceFormat:
    """Columns by which a published kind of trace is recognised."""

    time_column: str
    prompt_column: str
    output_column: str
    time_unit_s: float = 1.0

    @property
    def columns(self) -> tuple[str, str, str]:
        """Time, prompt and output column."""
        return (self.time_column, self.prompt_column, self.output_column)


KNOWN_FORMATS: Mapping[str, TraceFormat] = MappingProxyType(
    {
        "Azure LLM inference": TraceFormat("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
        "Mooncake": TraceFormat("timestamp", "input_length", "output_length", 1e-3),
        "BurstGPT": TraceFormat("Timestamp", "Request tokens", "Response tokens"),
        "Vidur": TraceFormat("arrived_at", "num_prefill_tokens", "num_decode_tokens"),
        "Splitwise": TraceFormat("arrival_timestamp", "prompt_size", "token_size"),
        "vLLM requests": TraceFormat("arrival_time", "prompt_len", "output_len"),
        "OpenAI usage": TraceFormat("timestamp", "prompt_tokens", "completion_tokens"),
    }
)


class TraceFile:
    """A trace file in memory.

    Attributes:
        name: The path in quotes, for messages.
        sha256: SHA-256 of the file as it lies on disk, hexadecimal.

    Raises:
        TraceError: The name has another ending, or the file is missing, damaged or too large.
    """

    def __init__(self, path: str | Path) -> None:
        try:
            path = input_path(path, "a trace")
        except InputFileError as error:
            raise TraceError(str(error)) from None
        self.name = f"trace {str(path)!r}"
        if not path.name.endswith(_ENDINGS):
            raise TraceError(f"{self.name} must end in one of {', '.join(_ENDINGS)}")
        try:
            content = read_whole(path, MAX_TRACE_BYTES, "cut out a time window")
            self.sha256 = hashlib.sha256(content).hexdigest()
            if path.suffix == ".gz":
                with gzip.open(io.BytesIO(content)) as file:
                    content = file.read(MAX_TRACE_BYTES + 1)
        except InputFileError as error:
            raise TraceError(f"{self.name} {error}") from error
        except (OSError, EOFError, zlib.error) as error:
            raise TraceError(f"{self.name} cannot be read: {error}; restore the file") from error
        if len(content) > MAX_TRACE_BYTES:
            raise TraceError(
                f"{self.name} holds more than {MAX_TRACE_BYTES} bytes; cut out a time window"
            )
        self._content = content
        self._is_csv = path.name.endswith(_CSV_ENDINGS)

    def header(self) -> tuple[str, ...]:
        """Names of the columns; of JSON lines, the keys of the first one.

        Raises:
            TraceError: The file is empty or its first line is not of its format.
        """
        if self._is_csv:
            return tuple(self._header(self._csv_lines()))
        first = next(self._json_rows(), None)
        if first is None:
            raise TraceError(f"{self.name} is empty; give a file with two or more requests")
        return tuple(first.index_of)

    def require_columns(self, *columns: str | None) -> None:
        """Checks that the header has these columns; None stands for no column.

        Raises:
            TraceError: One is missing, or the header cannot be read.
        """
        header = self.header()
        for column in columns:
            if column is not None and column not in header:
                close = nearest(column, header)
                hint = f"; nearest valid name: {close!r}" if close else ""
                raise TraceError(
                    f"{self.name} has no column {column!r}{hint}; "
                    f"its columns are {', '.join(header)[:300]}"
                )

    def rows(self) -> Iterator[Row]:
        """The requests in file order; blank lines are skipped.

        Raises:
            TraceError: A line is not of the file's format.
        """
        return self._csv_rows() if self._is_csv else self._json_rows()

    def _text(self) -> io.TextIOWrapper:
        """Bytes that are not UTF-8 become replacement signs, no valid part of a number."""
        binary = io.BytesIO(self._content)
        return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline="")

    def _lines(self) -> Iterator[str]:
        """Lines, none of which takes much memory when its values are told apart."""
        text = self._text()
        number = 0
        while line := text.readline(MAX_LINE_CHARS + 1):
            number += 1
            if len(line) > MAX_LINE_CHARS:
                raise TraceError(
                    f"{self.name}, line {number}: more than {MAX_LINE_CHARS:,} characters; correct "
                    "or drop the line"
                )
            yield line

    def _csv_lines(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and values of every row that is not blank."""
        reader = csv.reader(self._lines(), strict=True)
        try:
            for row in reader:
                if row:
                    yield reader.line_num, row
        except csv.Error as error:
            raise TraceError(
                f"{self.name}, line {reader.line_num}: not valid CSV ({error}); correct the line"
            ) from error

    def _header(self, lines: Iterator[tuple[int, list[str]]]) -> list[str]:
        _, values = next(lines, (0, []))
        header = [name.strip() for name in values]
        if not header:
            raise TraceError(f"{self.name} is empty; give a file with a header and requests")
        if len(header) > MAX_COLUMNS:
            raise TraceError(
                f"{self.name} has {len(header):,} columns; at most {MAX_COLUMNS:,} are read: keep "
                "those that are used"
            )
        twice = [name for name, count in Counter(header).items() if count > 1]
        if twice:
            raise TraceError(f"{self.name}: the column {twice[0]!r} stands twice; rename one")
        return header

    def _csv_rows(self) -> Iterator[Row]:
        lines = self._csv_lines()
        header = self._header(lines)
        index_of = {name: index for index, name in enumerate(header)}
        for line, values in lines:
            if len(values) != len(header):
                raise TraceError(
                    f"{self.name}, line {line}: {len(values)} values for {len(header)} columns; "
                    "correct or drop the line"
                )
            yield Row(line, index_of, values)

    def _json_rows(self) -> Iterator[Row]:
        for line, text in enumerate(self._lines(), start=1):
            if not text.strip():
                continue
            try:
                item = json.loads(text, object_pairs_hook=_table)
            except (ValueError, RecursionError) as error:
                raise TraceError(
                    f"{self.name}, line {line}: not valid JSON ({error}); correct or drop the line"
                ) from error
            if not isinstance(item, dict):
                raise TraceError(
                    f"{self.name}, line {line}: not a JSON object; write names and values in braces"
                )
            yield Row(line, {key: index for index, key in enumerate(item)}, list(item.values()))


def _table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; of a name that stands twice, nobody knows which value is meant."""
    table = dict(pairs)
    if len(table) < len(pairs):
        twice = next(name for name, count in Counter(n for n, _ in pairs).items() if count > 1)
        raise ValueError(f"the name {twice[:80]!r} stands twice")
    return table


def recognised(
    file: TraceFile,
    time_column: str | None = None,
    prompt_column: str | None = None,
    output_column: str | None = None,
) -> TraceFormat:
    """The columns of a file: those named, the others of the first of `KNOWN_FORMATS` that fits.

    The unit of time is the known format's where no name differs from it, else 1 s.

    Raises:
        TraceError: A named column does not exist, or the columns are not known and not all named.
    """
    given = (time_column, prompt_column, output_column)
    file.require_columns(*given)
    header = file.header()
    fit = _best_fit(given, header)
    if fit is None:
        known = "; ".join(", ".join(known.columns) for known in KNOWN_FORMATS.values())
        raise TraceError(
            f"{file.name} has the columns {', '.join(header)[:300]}; these are not known "
            f"({known}), so name time_column, prompt_column and output_column"
        )
    return fit


def _best_fit(
    given: tuple[str | None, str | None, str | None], header: tuple[str, ...]
) -> TraceFormat | None:
    """The format with the fewest names changed by those given, all of whose columns exist."""
    fits: list[tuple[int, TraceFormat]] = []
    for known in KNOWN_FORMATS.values():
        names = [name or own for name, own in zip(given, known.columns, strict=True)]
        changed = sum(name != own for name, own in zip(names, known.columns, strict=True))
        if all(name in header for name in names):
            unit_s = 1.0 if changed else known.time_unit_s
            fits.append((changed, TraceFormat(names[0], names[1], names[2], unit_s)))
    return min(fits, key=lambda fit: fit[0])[1] if fits else None
