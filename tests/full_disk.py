"""A disk that is full."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@contextmanager
def room_for(files: int) -> Iterator[None]:
    """The disk takes the bytes of so many files more; a new name in a folder always fits."""
    synced, left = os.fsync, files

    def sync(descriptor: int) -> None:
        nonlocal left
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if left == 0:
                raise FULL
            left -= 1
        synced(descriptor)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", sync)
        yield
