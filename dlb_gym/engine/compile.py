"""How kernels are compiled: without the interpreter's lock, with IEEE arithmetic, in one piece.

Parts are inlined into the one entry point, which alone has a Python wrapper and a place on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")

_njit: Any = numba.njit  # its stubs lack the options that leave out wrappers
_common: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
_part = _njit(**_common, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)
_entry = _njit(**_common, cache=True)


def part(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function that only kernels call."""
    return cast(Callable[P, R], _part(function))


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """Compiles a function that Python calls."""
    return cast(Callable[P, R], _entry(function))
