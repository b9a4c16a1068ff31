"""How this package's machine code is made: by numba, once per machine, kept on disk beside the code
(or in `$NUMBA_CACHE_DIR`, or the user's cache folder where the code's own cannot be written).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])


def compiled(function: F) -> F:
    """Compiled at its first call with arguments of a type; holds no GIL while it runs."""
    return cast(F, numba.njit(cache=True, nogil=True)(function))


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def copy_bytes(typing_context: Any, to: Any, origin: Any, size: Any) -> Any:
    """memcpy between two addresses: a loop over bytes takes several times as long. As with
    `byte_at`, nothing is checked: whoever calls it has to know that the bytes are there.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        target = builder.inttoptr(arguments[0], pointer)
        source = builder.inttoptr(arguments[1], pointer)
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return signature, generate


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def byte_at(typing_context: Any, address: Any) -> Any:
    """The byte at an address, as an int64: an array's item costs the checks of its index."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        return builder.zext(builder.load(pointer), ir.IntType(64))

    return types.int64(types.int64), generate
