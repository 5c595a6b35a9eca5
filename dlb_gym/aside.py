"""Files and folders that are the old or the new at every instant, never a part.

They are written under another name in the same folder, forced to the disk and renamed, which the
file system does at once. Whoever is killed meanwhile leaves a hidden `.part` that nobody reads.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = ".part"


def write_aside(path: Path, content: str | bytes) -> None:
    """Writes a file as a whole, text in UTF-8; after any error the old one is still there.

    Raises:
        OSError: The disk is full, or the folder is not there or cannot be written.
        ValueError: The text holds a lone surrogate, which UTF-8 does not have.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    part = _part_of(path)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends and vanishes if it fails.

    Raises:
        OSError: `path` is there already and is not empty, or as for `write_aside`.
    """
    part = _part_of(path)
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    try:
        yield part
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_folder(path: Path) -> None:
    """Removes a folder, which is whole or not there meanwhile."""
    shutil.rmtree(path.replace(_part_of(path)))


def clear_parts(folder: Path) -> None:
    """Removes what the killed left in a folder that nobody else is writing to."""
    for part in folder.glob(f".*{_PART}"):
        if part.is_dir():
            shutil.rmtree(part)
        else:
            part.unlink()


def _part_of(path: Path) -> Path:
    """Processes and threads that write the same file do not meet."""
    writer = f"{os.getpid()}-{threading.get_native_id()}"
    return path.with_name(f".{path.name}.{writer}{_PART}")
