"""The lines of a trace file, whatever its format: CSV or JSON lines, plain or gzip."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

MAX_TRACE_BYTES = 256 * 2**20
"""Largest trace, in bytes of text (gzip undone): some six million rows of the Azure traces."""

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


class TraceFile:
    """A trace file in memory.

    Attributes:
        name: The path in quotes, for messages.
        sha256: SHA-256 of the file as it lies on disk, hexadecimal.

    Raises:
        TraceError: The name has another ending, or the file is missing, damaged or too large.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        self.name = f"trace {str(path)!r}"
        if not path.name.endswith(_ENDINGS):
            raise TraceError(f"{self.name} must end in one of {', '.join(_ENDINGS)}")
        try:
            with path.open("rb") as file:
                content = file.read(MAX_TRACE_BYTES + 1)
            self.sha256 = hashlib.sha256(content).hexdigest()
            if path.suffix == ".gz":
                with gzip.open(io.BytesIO(content)) as file:
                    content = file.read(MAX_TRACE_BYTES + 1)
        except FileNotFoundError:
            raise TraceError(f"{self.name} does not exist; check the path") from None
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

    def _csv_lines(self) -> Iterator[tuple[int, list[str]]]:
        """Line number and values of every row that is not blank."""
        reader = csv.reader(self._text(), strict=True)
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
        twice = [name for name in header if header.count(name) > 1]
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
        for line, text in enumerate(self._text(), start=1):
            if not text.strip():
                continue
            try:
                item = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise TraceError(
                    f"{self.name}, line {line}: not valid JSON ({error}); correct or drop the line"
                ) from error
            if not isinstance(item, dict):
                raise TraceError(
                    f"{self.name}, line {line}: not a JSON object; write names and values in braces"
                )
            yield Row(line, {key: index for index, key in enumerate(item)}, list(item.values()))
