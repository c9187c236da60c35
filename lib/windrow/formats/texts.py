"""Texts in place: the values of one field as positions in a run of bytes, before any of them is copied.

Numbers and times are read in place. Only values that stay texts are copied, once, into an Arrow array.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import load_u64
from windrow.columnar.compiled import ByteArray, Flags, Ints, compile_lazily
from windrow.errors import ensure

MAX_BYTES = 2**31 - 1
PIECE = 8  # bytes that are copied together, as one number


@dataclass(frozen=True, slots=True, eq=False)
class Texts:
    """Text `i` is `buffer[start[i]:end[i]]`, or NULL unless `valid[i]`."""

    buffer: ByteArray
    start: Ints
    end: Ints
    valid: Flags

    @classmethod
    def of(cls, array: pa.Array) -> Texts:
        """Return the texts of a `string`, `binary` or `large_binary` array, without copying their bytes."""
        _, bounds, data = array.buffers()
        kind = np.dtype(np.int64 if pa.types.is_large_binary(array.type) else np.int32)
        bound = np.frombuffer(bounds, kind, len(array) + 1, kind.itemsize * array.offset) if len(array) else [0]
        place = np.array(bound, np.int64)
        buffer = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
        valid = array.is_valid().to_numpy(zero_copy_only=False)
        return cls(read_only(buffer), place[:-1].copy(), place[1:].copy(), valid)

    @property
    def count(self) -> int:
        """Return the number of texts."""
        return int(self.start.size)

    def some(self, chosen: Ints) -> list[bytes]:
        """Return the bytes of the chosen texts."""
        bounds = zip(self.start[chosen].tolist(), self.end[chosen].tolist(), strict=True)
        return [bytes(self.buffer.data[start:end]) for start, end in bounds]

    def take(self, chosen: Ints) -> Texts:
        """Return the chosen texts, in the order of `chosen`."""
        return Texts(self.buffer, self.start[chosen], self.end[chosen], self.valid[chosen])

    def array(self, type_: pa.DataType) -> pa.Array:
        """Return a copy as a `string` or `binary` array. It does not check for UTF-8."""
        bounds = np.empty(self.count + 1, np.int32)
        total = int(_bounds(self.start, self.end, self.valid, bounds))
        ensure(total <= MAX_BYTES, "the texts of a run fit into one array of Arrow")
        data = np.empty(total + PIECE, np.uint8)
        _copy(self.buffer, self.start, bounds, data)
        buffers = [bitmap(self.valid), pa.py_buffer(bounds), pa.py_buffer(data).slice(0, total)]
        return pa.Array.from_buffers(type_, self.count, buffers)


def gather_bytes(buffer: ByteArray, start: Ints, end: Ints) -> tuple[ByteArray, Ints]:
    """Return runs of bytes joined, and where each begins and the last one ends; adjacent runs are not copied."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(end - start)])
    if not start.size or (start[1:] == end[:-1]).all():
        first = int(start[0]) if start.size else 0
        return buffer[first : first + int(bounds[-1])], bounds
    data = np.empty(int(bounds[-1]) + PIECE, np.uint8)
    _copy(buffer, start, bounds, data)
    return read_only(data[: bounds[-1]]), bounds


def bitmap(valid: Flags) -> pa.Buffer | None:
    """Return Arrow's validity bitmap; None if all values are valid."""
    return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))


@compile_lazily
def _bounds(start: Ints, end: Ints, valid: Flags, bounds: npt.NDArray[np.int32]) -> int:
    """Write where the copy of each text begins and where the last one ends; return that end as 64 bits."""
    total = np.int64(0)
    for number in range(len(start)):
        bounds[number] = total
        total += end[number] - start[number] if valid[number] else 0
    bounds[len(start)] = total
    return int(total)


@compile_lazily
def _copy(buffer: ByteArray, start: Ints, bounds: npt.NDArray[np.int32], data: ByteArray) -> None:
    """Copy texts in pieces; `data` has room for one more piece after the last text."""
    piece, one, length = np.uint64(PIECE), np.uint64(1), np.uint64(len(buffer))
    for number in range(len(start)):
        to, stop, at = np.uint64(bounds[number]), np.uint64(bounds[number + 1]), np.uint64(start[number])
        while to < stop:
            if at + piece <= length:
                word = load_u64(buffer, at)
                for place in range(PIECE):
                    data[to + np.uint64(place)] = np.uint8(word >> np.uint64(8 * place))
                at, to = at + piece, to + piece
            else:
                data[to] = buffer[at]
                at, to = at + one, to + one


@compile_lazily
def are_utf8(buffer: ByteArray, start: Ints, end: Ints, valid: Flags) -> Flags:
    """Return which texts are UTF-8: no invalid bytes, no surrogates, no overlong forms."""
    good = valid.copy()
    for number in range(len(start)):
        at, stop = start[number], end[number]
        while good[number] and at < stop:
            first = buffer[at]
            at += 1
            if first < 0x80:
                continue
            more = 1 if 0xC2 <= first < 0xE0 else 2 if 0xE0 <= first < 0xF0 else 3 if 0xF0 <= first < 0xF5 else 0
            good[number] = more > 0 and at + more <= stop
            least = 0xA0 if first == 0xE0 else 0x90 if first == 0xF0 else 0x80
            most = 0x9F if first == 0xED else 0x8F if first == 0xF4 else 0xBF
            for place in range(at, at + more if good[number] else at):
                if not least <= buffer[place] <= most:
                    good[number] = False
                least, most = 0x80, 0xBF
            at += more
    return good
