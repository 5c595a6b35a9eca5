"""The compiled kernels: the only code that imports numba, and it imports no other module of ours.

Numba's on-disk cache misses edits in other files, so the kernels' cache directory carries a hash
of all of them. It lies beside the code; where that is not writable, in the user's cache directory;
where that fails too, in a fresh temporary directory, so that every process compiles anew (a
predictable shared directory would let others plant code).
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
import warnings
from pathlib import Path
from typing import Any

from numba import config

_HERE = Path(__file__).parent


def _source_hash() -> str:
    digest = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def _writable(directory: Path) -> bool:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            return True
    except OSError:
        return False


def _remove_older(current: Path) -> None:
    """Kernels of sources that are no more."""
    for other in current.parent.glob("dlb_gym_*"):
        if other != current:
            shutil.rmtree(other, ignore_errors=True)


def _cache_dir() -> str:
    name = f"dlb_gym_{_source_hash()}"
    candidates = [_HERE / "__pycache__" / name]
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        candidates.insert(0, Path(chosen) / name)
    if cache := os.environ.get("XDG_CACHE_HOME"):
        candidates.append(Path(cache) / name)
    elif home := os.environ.get("HOME"):
        candidates.append(Path(home) / ".cache" / name)
    for candidate in candidates:
        if _writable(candidate):
            if candidate.parent == _HERE / "__pycache__":
                _remove_older(candidate)
            return str(candidate)
    warnings.warn(
        "dlb_gym found no writable place for its compiled kernels and compiles them in every "
        "process; set NUMBA_CACHE_DIR to a writable directory to avoid that",
        RuntimeWarning,
        stacklevel=2,
    )
    directory = tempfile.mkdtemp(prefix="dlb_gym_")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


# A function's cache location is fixed when it is decorated: the setting holds for our imports only.
_settings: Any = config
_previous = _settings.CACHE_DIR
_settings.CACHE_DIR = _cache_dir()
try:
    from dlb_gym.engine.advance import FULL_LOG, FULL_POOL, FULL_WIRE, READY, advance
    from dlb_gym.engine.alone import serve_alone
    from dlb_gym.engine.batches import Batches, allocate_batches, clear_batches
    from dlb_gym.engine.extra_memory import (
        ExtraSizes,
        allocate_extras,
        clear_extras,
        enlarged_extras,
        publish,
        take_over,
    )
    from dlb_gym.engine.extras import Extras
    from dlb_gym.engine.layout import Arrivals, Orders, Params, State
    from dlb_gym.engine.memory import Sizes, allocate, clear_row, hold_empty_reports
    from dlb_gym.engine.observe import encode
    from dlb_gym.engine.route import route
finally:
    _settings.CACHE_DIR = _previous

__all__ = [
    "FULL_LOG",
    "FULL_POOL",
    "FULL_WIRE",
    "READY",
    "Arrivals",
    "Batches",
    "ExtraSizes",
    "Extras",
    "Orders",
    "Params",
    "Sizes",
    "State",
    "advance",
    "allocate",
    "allocate_batches",
    "allocate_extras",
    "clear_batches",
    "clear_extras",
    "clear_row",
    "encode",
    "enlarged_extras",
    "hold_empty_reports",
    "publish",
    "route",
    "serve_alone",
    "take_over",
]
