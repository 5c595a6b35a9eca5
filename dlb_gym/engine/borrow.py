"""Arrays without reference counts.

Numba counts references to an array whenever a variable or an argument binds it; with atomic
operations that costs more than the kernels' own work. The caller of a kernel keeps its arrays
alive, so the kernel may work on borrowed copies of their headers, which own nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils
from numba.extending import intrinsic

Arrays = TypeVar("Arrays")
_config: Any = numba.config  # untyped, as are its helpers for code generation
_null: Any = cgutils.get_null_value


def _borrowed_plainly(arrays: Arrays) -> Arrays:
    return arrays


@intrinsic
def _borrowed_natively(_typing_context: Any, arrays: Any) -> Any:
    """A named tuple of arrays with every owner set to null."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        tuple_type = signature.args[0]
        headers = []
        for index, array_type in enumerate(tuple_type.types):
            header = builder.extract_value(arguments[0], index)
            array = context.make_array(array_type)(context, builder, header)
            array.meminfo = _null(array.meminfo.type)
            array.parent = _null(array.parent.type)
            headers.append(array._getvalue())
        return context.make_tuple(builder, tuple_type, headers)

    return arrays(arrays), generate


# With NUMBA_DISABLE_JIT the kernels are plain functions, and Python counts as it always does.
borrowed = cast(
    Callable[[Arrays], Arrays],
    _borrowed_plainly if _config.DISABLE_JIT else _borrowed_natively,
)
