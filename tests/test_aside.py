"""Files are the old or the new, whatever fails and whenever."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlb_gym.aside import clear_parts, folder_aside, remove_folder, write_aside

ROOT = Path(__file__).resolve().parents[1]
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullFile:
    """A file on a disk that is full at its `stage`."""

    def __init__(self, file: Any, stage: str) -> None:
        self._file, self._stage = file, stage

    def __enter__(self) -> FullFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def write(self, data: bytes) -> int:
        if self._stage == "write":
            self._file.write(data[: len(data) // 2])
            raise FULL
        return int(self._file.write(data))

    def flush(self) -> None:
        if self._stage == "flush":
            raise FULL
        self._file.flush()

    def fileno(self) -> int:
        return int(self._file.fileno())


def fill_the_disk(monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    def fails(*arguments: object, **keywords: object) -> Any:
        raise FULL

    opened = Path.open
    if stage == "open":
        monkeypatch.setattr(Path, "open", fails)
    elif stage in {"write", "flush"}:
        monkeypatch.setattr(Path, "open", lambda path, mode: FullFile(opened(path, mode), stage))
    elif stage == "fsync":
        monkeypatch.setattr(os, "fsync", fails)
    else:
        monkeypatch.setattr(Path, "replace", fails)


STAGES = ("open", "write", "flush", "fsync", "rename")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("old", [b"old", None])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, old: bytes | None
) -> None:
    path = tmp_path / "file.json"
    if old is not None:
        write_aside(path, old)
    with monkeypatch.context() as patched:
        fill_the_disk(patched, stage)
        with pytest.raises(OSError, match="No space left on device"):
            write_aside(path, b"new and longer")
    assert [each.read_bytes() for each in tmp_path.iterdir()] == ([] if old is None else [old])
    write_aside(path, "new, äöü\r\n")
    assert path.read_bytes() == b"new, \xc3\xa4\xc3\xb6\xc3\xbc\r\n"
    assert list(tmp_path.iterdir()) == [path]


def test_text_that_is_no_utf8_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    write_aside(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_aside(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


WRITE_BEYOND_THE_LIMIT = """
import resource, sys
from pathlib import Path
from dlb_gym.aside import write_aside
path = Path("file.json")
write_aside(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
try:
    write_aside(path, b"x" * 50_000)
except OSError as error:
    print(error.errno)
"""


def test_the_operating_system_may_stop_the_write_half_way(tmp_path: Path) -> None:
    """Not simulated: files of this process may have 10,000 bytes, and the write fails there."""
    done = subprocess.run(
        [sys.executable, "-c", WRITE_BEYOND_THE_LIMIT], cwd=tmp_path, capture_output=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == str(errno.EFBIG)
    assert [each.read_bytes() for each in tmp_path.iterdir()] == [b"old"]


def test_the_data_are_on_the_disk_before_the_name_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power failure could leave the new name with nothing in it."""
    calls: list[tuple[str, bytes]] = []

    def noted(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            (part,) = tmp_path.glob(".*.part")
            calls.append((name, part.read_bytes()))
            return original(*arguments)

        return call

    monkeypatch.setattr(os, "fsync", noted("fsync", os.fsync))
    monkeypatch.setattr(Path, "replace", noted("rename", Path.replace))
    write_aside(tmp_path / "file", "content")
    assert calls == [("fsync", b"content"), ("rename", b"content")]


def test_a_folder_is_there_when_it_is_full(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with folder_aside(whole) as folder:
        write_aside(folder / "file", "content")
        assert not whole.exists()
    assert (whole / "file").read_text() == "content"
    assert list(tmp_path.iterdir()) == [whole]


def test_a_folder_whose_filling_fails_was_never_there(tmp_path: Path) -> None:
    def fill() -> None:
        with folder_aside(tmp_path / "whole") as folder:
            write_aside(folder / "file", "content")
            raise FULL

    with pytest.raises(OSError, match="No space"):
        fill()
    assert not list(tmp_path.iterdir())


def test_a_folder_does_not_replace_another(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "old").touch()
    with pytest.raises(OSError, match="not empty"), folder_aside(whole) as folder:
        (folder / "new").touch()
    assert [path.name for path in whole.iterdir()] == ["old"]
    assert list(tmp_path.iterdir()) == [whole]


def test_a_folder_that_is_removed_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "file").touch()

    def killed(folder: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            remove_folder(whole)
    assert not whole.exists()
    clear_parts(tmp_path)
    assert not list(tmp_path.iterdir())


def test_parts_are_cleared_and_nothing_else(tmp_path: Path) -> None:
    for name in (".a.1.part", "a.part", ".hidden", "b"):
        (tmp_path / name).touch()
    (tmp_path / ".c.2.part" / "deep").mkdir(parents=True)
    clear_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "a.part", "b"]
    clear_parts(tmp_path / "nowhere")
