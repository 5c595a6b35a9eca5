"""Tuples of arrays as one pointer, without reference counts.

Numba counts references to an array whenever a variable or an argument binds it; with atomic
operations that costs more than the kernels' own work. And it passes a tuple of arrays number by
number, some ten for each array, through every call, which makes compiling take minutes. The caller
of a kernel keeps its arrays alive, so the kernel may work on copies of their headers which own
nothing and lie on its own stack: a pointer to them is all that is passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from numba.core import cgutils, types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import (
    infer_getattr,
    intrinsic,
    lower_getattr_generic,
    models,
    register_model,
)

Arrays = TypeVar("Arrays")
_config: Any = numba.config  # untyped, as are its helpers for code generation
_code: Any = cgutils
_template: Any = AttributeTemplate
_primitive: Any = models.PrimitiveModel
_type: Any = types.Type


class Borrowed(_type):  # type: ignore[misc]
    """Numba's type of a pointer to a named tuple of arrays (or of such tuples)."""

    def __init__(self, arrays: Any) -> None:
        self.arrays = arrays
        super().__init__(name=f"Borrowed({arrays})")


@register_model(Borrowed)
class _BorrowedModel(_primitive):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Any) -> None:
        pointee = manager.lookup(kind.arrays).get_value_type()
        super().__init__(manager, kind, pointee.as_pointer())


@infer_getattr
class _BorrowedFields(_template):  # type: ignore[misc]
    key = Borrowed

    def generic_resolve(self, kind: Any, name: str) -> Any:
        if name in kind.arrays.fields:
            return kind.arrays.types[kind.arrays.fields.index(name)]
        return None


_lower_fields: Any = lower_getattr_generic


@_lower_fields(Borrowed)  # type: ignore[untyped-decorator]
def _load_field(context: Any, builder: Any, kind: Any, pointer: Any, name: str) -> Any:
    index = kind.arrays.fields.index(name)
    value = builder.load(_code.gep_inbounds(builder, pointer, 0, index))
    return _disowned(context, builder, kind.arrays.types[index], value)


def _disowned(context: Any, builder: Any, kind: Any, value: Any) -> Any:
    """A named tuple's or an array's header with every owner set to null."""
    if isinstance(kind, types.BaseTuple):
        members: Any = kind
        parts = [
            _disowned(context, builder, member, builder.extract_value(value, index))
            for index, member in enumerate(members.types)
        ]
        return context.make_tuple(builder, kind, parts)
    array = context.make_array(kind)(context, builder, value)
    array.meminfo = _code.get_null_value(array.meminfo.type)
    array.parent = _code.get_null_value(array.parent.type)
    return array._getvalue()


def _borrowed_plainly(arrays: Arrays) -> Arrays:
    return arrays


@intrinsic
def _borrowed_natively(_typing_context: Any, arrays: Any) -> Any:
    """A pointer to disowned headers on the caller's stack; None stays None."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if isinstance(arrays, types.NoneType):
            return arguments[0]
        headers = _disowned(context, builder, signature.args[0], arguments[0])
        return _code.alloca_once_value(builder, headers)

    return (arrays if isinstance(arrays, types.NoneType) else Borrowed(arrays))(arrays), generate


# With NUMBA_DISABLE_JIT the kernels are plain functions, and Python counts as it always does.
borrowed = cast(
    Callable[[Arrays], Arrays],
    _borrowed_plainly if _config.DISABLE_JIT else _borrowed_natively,
)
