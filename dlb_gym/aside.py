"""Files and folders that are the old or the new at every instant, never a part.

They are written under another name in the same folder, forced to the disk and renamed, which the
file system does at once. Whoever is killed meanwhile leaves a hidden `.part` that nobody reads, and
which a later write into the same folder removes when it is a day old.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_OURS, _PART = ".dlb_gym-", ".part"
STALE_S = 86_400.0
"""So long after its last change nobody is still writing a part, on whichever machine."""


def write_aside(path: Path, content: str | bytes) -> None:
    """Writes a file as a whole, text in UTF-8; after any error the old one is still there.

    Raises:
        OSError: The disk is full, or the folder is not there or cannot be written.
        ValueError: The text holds a lone surrogate, which UTF-8 does not have.
    """
    data = content.encode("utf-8") if isinstance(content, str) else content
    clear_parts(path.parent, STALE_S)
    part = _part_beside(path)
    try:
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    _sync_folder(path.parent)


@contextmanager
def folder_aside(path: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `path` when the block ends and vanishes if it fails.

    Raises:
        OSError: `path` is there already and is not empty, or as for `write_aside`.
    """
    clear_parts(path.parent, STALE_S)
    part = _part_beside(path)
    part.mkdir()
    try:
        yield part
        part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    _sync_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Removes a folder, which is whole or not there meanwhile."""
    shutil.rmtree(path.replace(_part_beside(path)))


def clear_parts(folder: Path, unchanged_s: float = 0.0) -> None:
    """Removes what the killed left in a folder.

    Args:
        folder: Need not be there.
        unchanged_s: Only parts that nobody has changed for so long; 0 is for a folder that nobody
            else is writing to.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_OURS) and entry.name.endswith(_PART):
                _remove_part(entry, unchanged_s)


def _remove_part(entry: os.DirEntry[str], unchanged_s: float) -> None:
    with suppress(OSError):  # gone meanwhile, or not ours to remove
        if unchanged_s and time.time() - entry.stat().st_mtime < unchanged_s:
            return
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(Path(entry))
        else:
            Path(entry).unlink()


def _part_beside(path: Path) -> Path:
    """A name that no process on any machine has, and as short for the longest of names."""
    return path.with_name(f"{_OURS}{secrets.token_hex(8)}{_PART}")


def _sync_folder(folder: Path) -> None:
    """Forces names to the disk, where folders can be opened and synced.

    Where they cannot, a power failure may bring the old back, as whole as the new.
    """
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
