"""How kernels are compiled: without the interpreter's lock, with IEEE arithmetic, in one piece."""

from __future__ import annotations

from numba import njit

# Parts are inlined into the one entry point, which alone is cached on disk.
part = njit(
    nogil=True, error_model="numpy", forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True
)
entry = njit(nogil=True, error_model="numpy", cache=True)
