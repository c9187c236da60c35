"""Compare blocks of 64 bytes at once with vector instructions of the processor.

A result is a 64-bit word with one bit for each byte, the lowest bit for the first. The caller ensures that the block
lies within the array. Only little-endian processors are supported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import emitted

ByteArray = npt.NDArray[np.uint8]

BLOCK = 64
PIECE = 32


def _of_a_block(comparison: str) -> Callable[..., Any]:
    """Return the instructions that compare each byte of a block with one."""

    def instructions(typingctx: Any, buffer: Any, at: Any, byte: Any) -> Any:
        from llvmlite import ir
        from numba.core import types

        def generated(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            array, place, one = values
            wide = ir.VectorType(ir.IntType(8), BLOCK)
            data = context.make_array(signature.args[0])(context, builder, value=array).data
            block = builder.load(builder.bitcast(builder.gep(data, [place]), wide.as_pointer()), align=1)
            first = builder.insert_element(ir.Constant(wide, ir.Undefined), one, ir.Constant(ir.IntType(32), 0))
            zeros = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK), [0] * BLOCK)
            every = builder.shuffle_vector(first, ir.Constant(wide, ir.Undefined), zeros)
            return builder.bitcast(builder.icmp_unsigned(comparison, block, every), ir.IntType(64))

        return types.uint64(buffer, types.uint64, types.uint8), generated

    return instructions


def _eight(typingctx: Any, buffer: Any, at: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generated(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        array, place = values
        data = context.make_array(signature.args[0])(context, builder, value=array).data
        return builder.load(builder.bitcast(builder.gep(data, [place]), ir.IntType(64).as_pointer()), align=1)

    return types.uint64(buffer, types.uint64), generated


def _copying(typingctx: Any, buffer: Any, at: Any, into: Any, to: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generated(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        wide = ir.VectorType(ir.IntType(8), PIECE).as_pointer()
        source, target = (
            builder.bitcast(builder.gep(context.make_array(type_)(context, builder, value=array).data, [place]), wide)
            for type_, array, place in zip(signature.args[::2], values[::2], values[1::2], strict=True)
        )
        builder.store(builder.load(source, align=1), target, align=1)
        return context.get_dummy_value()

    return types.none(buffer, types.uint64, into, types.uint64), generated


def _lowest(typingctx: Any, bits: Any) -> Any:
    from llvmlite import ir
    from numba.core import types

    def generated(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.cttz(values[0], ir.Constant(ir.IntType(1), 0))

    return types.uint64(types.uint64), generated


@emitted(_of_a_block("=="))
def same(buffer: ByteArray, at: np.uint64, byte: np.uint8) -> np.uint64:
    """Tell which bytes of the block at a place are this one."""
    return _word(buffer[int(at) : int(at) + BLOCK] == byte)


@emitted(_of_a_block("<"))
def below(buffer: ByteArray, at: np.uint64, byte: np.uint8) -> np.uint64:
    """Tell which bytes of the block at a place are less than this one."""
    return _word(buffer[int(at) : int(at) + BLOCK] < byte)


@emitted(_eight)
def eight(buffer: ByteArray, at: np.uint64) -> np.uint64:
    """Return the eight bytes at a place as a number, the lowest first."""
    return np.uint64(buffer[int(at) : int(at) + 8].view("<u8")[0])


@emitted(_copying)
def copy_piece(buffer: ByteArray, at: np.uint64, into: ByteArray, to: np.uint64) -> None:
    """Copy a piece, 32 bytes. Both places must have as many."""
    into[int(to) : int(to) + PIECE] = buffer[int(at) : int(at) + PIECE]


@emitted(_lowest)
def lowest(bits: np.uint64) -> np.uint64:
    """Return the number of the lowest bit that is set, 64 where none is."""
    number = int(bits)
    return np.uint64((number & -number).bit_length() - 1 if number else BLOCK)


def _word(flags: Any) -> np.uint64:
    return np.uint64(np.packbits(flags, bitorder="little").view(np.uint64)[0])
