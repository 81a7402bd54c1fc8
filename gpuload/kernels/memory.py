"""Memory by address, for kernels: read, write, copy, ask the processor to fetch it.

Addresses are int64 (those of a process end below 2**63). Who calls has checked them.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpuload.kernels.compile import libc

BYTE, WORD, INT = ir.IntType(8), ir.IntType(64), ir.IntType(32)

copy_bytes = libc("memcpy", types.int64, types.int64, types.int64, types.int64)
"""``copy_bytes(to, source, num_bytes)``."""


@intrinsic  # type: ignore[untyped-decorator]
def load_word(typing_context: Any, address: Any) -> Any:
    """``load_word(address)``: the int64 there, read anew each time: a signal handler or thread may have written it."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], WORD.as_pointer())
        return builder.load_atomic(pointer, "acquire", 8)

    return types.int64(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def load_int(typing_context: Any, address: Any) -> Any:
    """``load_int(address)``: the C int there, read anew each time."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], INT.as_pointer())
        return builder.load_atomic(pointer, "monotonic", 4)

    return types.int32(types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def store_word(typing_context: Any, address: Any, value: Any) -> Any:
    """``store_word(address, value)``: write an int64 there, for a signal handler or another thread to see."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], WORD.as_pointer())
        builder.store_atomic(arguments[1], pointer, "release", 8)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, address: Any) -> Any:
    """``prefetch(address)``: begin to bring the cache line there near; never faults."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], BYTE.as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [BYTE.as_pointer(), INT, INT, INT])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        builder.call(function, [pointer, ir.Constant(INT, 0), ir.Constant(INT, 3), ir.Constant(INT, 1)])
        return context.get_dummy_value()

    return types.void(types.int64), generate


def _copy_item(num_bytes: int) -> Any:
    @intrinsic  # type: ignore[untyped-decorator]
    def copy_item(typing_context: Any, to: Any, source: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            kind = ir.IntType(8 * num_bytes).as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], kind), align=1)
            builder.store(value, builder.inttoptr(arguments[0], kind), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), generate

    return copy_item


copy_1, copy_2, copy_4, copy_8 = (_copy_item(num_bytes) for num_bytes in (1, 2, 4, 8))
"""``copy_4(to, source)``: copy that many bytes, at any alignment."""
