"""Files are the old or the new, whatever fails and whenever."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlb_gym.aside import STALE_S, clear_parts, folder_aside, remove_folder, write_aside
from tests.full_disk import FULL

ROOT = Path(__file__).resolve().parents[1]


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


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[str]]]:
    """What was called, on what (a part, or the folder), and what anyone sees at that moment."""
    noted: list[tuple[str, str, list[str]]] = []

    def note(call: str, inode: int) -> None:
        part = "part" if inode != tmp_path.stat().st_ino else "folder"
        noted.append((call, part, [path.name for path in tmp_path.glob("[!.]*")]))

    synced, renamed = os.fsync, Path.replace

    def sync(descriptor: int) -> None:
        note("fsync", os.fstat(descriptor).st_ino)
        synced(descriptor)

    def rename(path: Path, target: Path) -> Path:
        note("rename", path.stat().st_ino)
        return renamed(path, target)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(Path, "replace", rename)
    return noted


IN_ORDER = [("fsync", "part", []), ("rename", "part", []), ("fsync", "folder", ["new"])]


def test_the_data_are_on_the_disk_before_the_name_is_and_then_the_name(
    tmp_path: Path, calls: list[tuple[str, str, list[str]]]
) -> None:
    """Else a power failure could leave the new name with nothing in it, or the old one."""
    write_aside(tmp_path / "new", "content")
    assert calls == IN_ORDER


def test_a_folders_name_is_forced_to_the_disk_too(
    tmp_path: Path, calls: list[tuple[str, str, list[str]]]
) -> None:
    with folder_aside(tmp_path / "new"):
        pass
    assert calls == IN_ORDER[1:]


@pytest.mark.parametrize("refused", ["open", "fsync"])
def test_where_folders_cannot_be_synced_the_file_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    """Windows opens no folder; some file systems sync none."""
    original = getattr(os, refused)

    def refuse(what: Any, *arguments: Any) -> Any:
        if Path(what).is_dir() if refused == "open" else stat.S_ISDIR(os.fstat(what).st_mode):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return original(what, *arguments)

    monkeypatch.setattr(os, refused, refuse)
    write_aside(tmp_path / "file", "content")
    assert [path.read_text() for path in tmp_path.iterdir()] == ["content"]


@pytest.mark.parametrize("name", ["x" * 255, "\u00e4" * 127])
def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path: Path, name: str) -> None:
    """255 bytes on all usual ones."""
    write_aside(tmp_path / name, "content")
    assert (tmp_path / name).read_text() == "content"
    folder = tmp_path / name.replace(name[0], "y")
    with folder_aside(folder):
        pass
    remove_folder(folder)
    assert [path.name for path in tmp_path.iterdir()] == [name]


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
    others = [".another.part", ".dlb_gym-1", ".hidden", "a.part", "b"]
    for name in (".dlb_gym-1.part", *others):
        (tmp_path / name).touch()
    (tmp_path / ".dlb_gym-2.part" / "deep").mkdir(parents=True)
    clear_parts(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == others
    clear_parts(tmp_path / "nowhere")


KILLED_WHILE_IT_WRITES = """
import os, signal, sys
from pathlib import Path
from dlb_gym.aside import folder_aside, write_aside
os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "file":
    write_aside(Path("file"), "new")
with folder_aside(Path("folder")) as folder:
    write_aside(folder / "file", "new")
"""


@pytest.mark.parametrize("killed", ["file", "folder"])
def test_what_the_killed_left_goes_with_a_write_of_the_next_day(
    tmp_path: Path, killed: str
) -> None:
    """Until then it might be another process's that is still writing."""
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WHILE_IT_WRITES, killed], cwd=tmp_path, check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL
    (part,) = tmp_path.iterdir()
    changed_s = part.stat().st_mtime
    for unchanged_s, left in ((STALE_S - 60.0, [part.name]), (STALE_S + 1.0, [])):
        os.utime(part, (changed_s, changed_s - unchanged_s))
        write_aside(tmp_path / "other", "content")
        assert [path.name for path in tmp_path.iterdir() if path.name != "other"] == left


def test_a_folder_clears_what_the_killed_left_beside_it(tmp_path: Path) -> None:
    part = tmp_path / ".dlb_gym-1.part"
    part.touch()
    os.utime(part, (0.0, 0.0))
    with folder_aside(tmp_path / "whole"):
        assert not part.exists()


def test_parts_that_cannot_be_removed_keep_nobody_from_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = [tmp_path / f".dlb_gym-{i}.part" for i in range(2)]
    for part in parts:
        part.mkdir()
        os.utime(part, (0.0, 0.0))
    tried: list[Path] = []

    def refuse(folder: Path) -> None:
        tried.append(folder)
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("shutil.rmtree", refuse)
    write_aside(tmp_path / "file", "content")
    assert sorted(tried) == parts
    assert sorted(path.name for path in tmp_path.iterdir()) == [*(p.name for p in parts), "file"]
