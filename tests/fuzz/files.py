"""Files as strangers leave them: mostly valid content, damaged, or no file at all."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

from tests.fuzz.documents import NUMBERS, SEEDS, TEXTS, toml

KINDS = ("missing", "empty", "folder", "loop", "pipe")


class Case(NamedTuple):
    """A file to be made: what kind of thing, the ending of its name, and its bytes."""

    kind: str
    ending: str
    content: bytes = b""


def put(case: Case, folder: Path) -> Path:
    """Makes the file in a folder, in place of the one before."""
    path = folder / f"case{case.ending}"
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    path.unlink(missing_ok=True)
    if case.kind == "folder":
        path.mkdir()
    elif case.kind == "loop":
        path.symlink_to(path.name)
    elif case.kind == "pipe":
        os.mkfifo(path)
    elif case.kind != "missing":
        path.write_bytes(case.content)
    return path


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """The bytes after up to three accidents."""
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(content)))
        accident = draw(st.sampled_from(ACCIDENTS))
        if accident == "cut":
            content = content[:at]
        elif accident == "mark":
            content = b"\xef\xbb\xbf" + content
        elif accident == "crlf":
            content = content.replace(b"\n", b"\r\n")
        elif accident == "utf-16":
            content = content.decode("utf-8", "replace").encode("utf-16")
        elif accident == "insert":
            content = content[:at] + draw(INSERTED) + content[at:]
        elif accident == "repeat":
            end = min(len(content), at + draw(st.integers(0, 200)))
            content = content[:end] + content[at:end] * draw(st.integers(1, 300)) + content[end:]
        else:
            end = min(len(content), at + draw(st.integers(1, 8)))
            content = content[:at] + draw(st.binary(max_size=8)) + content[end:]
    return content


ACCIDENTS = ("cut", "mark", "crlf", "utf-16", "insert", "insert", "repeat", "overwrite")
INSERTED = st.one_of(
    st.sampled_from(
        [b"\0", b"\xff", b"\r", b"\n", b'"', b"'", b",", b"[" * 3_000, b"{" * 3_000, b"a." * 3_000,
         b"9" * 5_000, b"nan", b"1e999", b"-1", b"\xed\xa0\x80", b" " * 70_000, b"=", b"#"]
    ),
    st.binary(max_size=20),
)  # fmt: skip


@st.composite
def cases(draw: st.DrawFn, contents: st.SearchStrategy[bytes], endings: tuple[str, ...]) -> Case:
    """Files with such contents and endings, damaged; one in sixteen is no file."""
    ending = draw(st.sampled_from(endings))
    if draw(st.integers(0, 15)) == 0:
        return Case(draw(st.sampled_from(KINDS)), ending)
    content = draw(damaged(draw(contents)))
    if ending.endswith(".gz"):
        content = draw(damaged(gzip.compress(content, mtime=0)))
    return Case("file", ending, content)


SCENARIO_TEXTS = st.sampled_from([toml(document).encode() for document in SEEDS])

_INSTANTS = st.one_of(
    st.integers(0, 50).map(str),
    st.floats(0, 100).map(str),
    NUMBERS.filter(lambda number: abs(number) < 10**300 if number == number else True).map(str),
    st.sampled_from(
        ["2023-11-16 18:15:46.6805900", "2023-11-16T18:15:47Z", "0001-01-01 00:00:00+23:59",
         "9999-12-31 23:59:59", "2023-11-16 18:15:46+99:00", "1_0", "\uff11", "", "5e-324"]
    ),
)  # fmt: skip
_COUNTS = st.one_of(st.integers(0, 2_000).map(str), NUMBERS.filter(abs).map(repr), TEXTS)
_BLOCKS = st.one_of(
    st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(), max_size=3), st.just([[1]])
)


@st.composite
def csv_traces(draw: st.DrawFn) -> bytes:
    """Requests as CSV, their times mostly sorted."""
    header = draw(
        st.sampled_from(
            ["TIMESTAMP,ContextTokens,GeneratedTokens", "timestamp,input_length,output_length",
             "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type", "t,p,o", "a,a"]
        )
    )  # fmt: skip
    width = header.count(",") + 1
    plain = draw(st.booleans())
    rows = []
    for number in range(draw(st.integers(0, 8))):
        if plain:
            row = [str(number), *["100"] * (width - 1)]
        else:
            row = [draw(_INSTANTS), *(draw(_COUNTS) for _ in range(width - 1))]
        rows.append(",".join(row))
    return "\n".join([header, *rows, ""]).encode("utf-8", "replace")


@st.composite
def json_traces(draw: st.DrawFn) -> bytes:
    """Requests as JSON lines with blocks."""
    lines = []
    for number in range(draw(st.integers(0, 8))):
        row: dict[str, Any] = {"timestamp": number * 1_000, "input_length": 900, "output_length": 9}
        row["hash_ids"] = draw(_BLOCKS)
        if draw(st.integers(0, 3)) == 0:
            key = draw(st.sampled_from(sorted(row)))
            row[key] = draw(st.one_of(NUMBERS, TEXTS, st.none(), st.just([1]), st.just({})))
        lines.append(json.dumps(row))
    return "\n".join([*lines, ""]).encode()


@st.composite
def matrices(draw: st.DrawFn) -> bytes:
    """Round trips as CSV, ms."""
    names = draw(
        st.lists(
            st.sampled_from(["us-east4", "europe-west1", "asia-east1", "x"]), min_size=1, max_size=4
        )
    )
    number = st.one_of(st.floats(0, 300).map(str), NUMBERS.map(repr), TEXTS)
    rows = [",".join([name, *(draw(number) for _ in names)]) for name in names]
    return "\n".join([",".join(["region", *names]), *rows, ""]).encode("utf-8", "replace")
