"""Decompress gzip and zstd in pieces, frame after frame, never producing more than allowed.

A few compressed bytes can decode to terabytes, so the output is bounded and made in pieces. zlib says where a gzip
frame ends. Arrow does not say so for zstd, so the blocks of a zstd frame are followed here.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal

import pyarrow as pa

Codec = Literal["none", "gzip", "zstd"]
PIECE_BYTES = 2**18
GZIP_WINDOW = 16 + zlib.MAX_WBITS
MOST_BLOCK_BYTES = 2**17
RLE, RESERVED = 1, 3
FASTEST = 1


class CodecError(Exception):
    """Bytes are not whole frames of the codec, or decode to more than allowed; the message is one line."""


def decode(buffer: bytes, codec: Codec, most_bytes: int) -> bytes:
    """Return the content of one or more whole frames, together at most `most_bytes`. Raises CodecError."""
    found: list[bytes] = []
    size = 0
    for piece in stream([buffer], codec, most_bytes):
        size += len(piece)
        if size > most_bytes:
            raise CodecError(f"the {codec} frames decode to more than {most_bytes} bytes together")
        found.append(piece)
    return b"".join(found)


def stream(pieces: Iterable[bytes], codec: Codec, most_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file's frames, piece by piece.

    Raises CodecError for anything that is not a frame, and for a frame above `most_bytes`. The file is given in pieces
    of any size; without a codec they are the content. Pieces of the content may belong to a frame that turns out to be
    bad: the content is good only once the stream has ended.
    """
    if codec == "none":
        yield from pieces
        return
    source = _Source(pieces)
    number = 0
    while source.more() or not number:
        _require_frame(source, codec, number)
        size = 0
        for piece in FRAMES[codec](source):
            size += len(piece)
            if size > most_bytes:
                raise CodecError(f"{codec} frame {number} decodes to more than {most_bytes} bytes")
            yield piece
        number += 1


def encode(buffer: bytes, codec: Codec) -> bytes:
    """Compress bytes into one frame; without a codec they stay as they are."""
    if codec == "none":
        return buffer
    if codec == "gzip":
        return gzip.compress(buffer, FASTEST, mtime=0)
    return bytes(pa.Codec("zstd", FASTEST).compress(buffer, asbytes=True))


class _Source:
    """The bytes of a file, which can be put back."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = (piece[at : at + PIECE_BYTES] for piece in pieces for at in range(0, len(piece), PIECE_BYTES))
        self._rest = b""

    def some(self) -> bytes:
        """Return the next bytes, none at the end."""
        found, self._rest = self._rest or next(self._pieces, b""), b""
        return found

    def back(self, buffer: bytes) -> None:
        """Put back bytes that were not needed."""
        self._rest = buffer + self._rest

    def more(self) -> bool:
        """Tell whether there are more bytes."""
        self.back(self.some())
        return bool(self._rest)

    def exactly(self, count: int) -> bytes:
        """Return exactly `count` bytes. Raises CodecError if there are fewer."""
        found = self.ahead(count)
        if len(found) < count:
            raise CodecError("the last frame is cut short")
        self._rest = self._rest[count:]
        return found

    def ahead(self, count: int) -> bytes:
        """Return the next `count` bytes without taking them, fewer at the end."""
        while len(self._rest) < count and (found := next(self._pieces, b"")):
            self._rest += found
        return self._rest[:count]


def _require_frame(source: _Source, codec: Codec, number: int) -> None:
    begin = source.ahead(4)
    if not begin:
        raise CodecError(f"there is no {codec} frame")
    known = begin[:2] == b"\x1f\x8b" if codec == "gzip" else begin == b"\x28\xb5\x2f\xfd" or _is_skippable(begin)
    if not known:
        where = f"after frame {number - 1}" if number else "at the start"
        raise CodecError(f"expected a {codec} frame {where}, found the bytes {begin.hex(' ')}")


def _gzip(source: _Source) -> Iterator[bytes]:
    decoder = zlib.decompressobj(GZIP_WINDOW)
    while not decoder.eof:
        buffer = decoder.unconsumed_tail or source.some()
        try:
            piece = decoder.decompress(buffer, PIECE_BYTES)
        except zlib.error as error:
            raise CodecError(f"the gzip data is damaged: {error}") from error
        if not (buffer or piece or decoder.eof):
            raise CodecError("the last frame is cut short")
        if piece:
            yield piece
    source.back(decoder.unused_data)


def _zstd(source: _Source) -> Iterator[bytes]:
    if _is_skippable(source.ahead(4)):
        _skip(source)
        return
    try:
        with pa.CompressedInputStream(pa.PythonFile(_Pieces(_blocks(source)), mode="r"), "zstd") as decoded:
            while piece := decoded.read(PIECE_BYTES):
                yield piece
    except MemoryError:  # Arrow's is an ArrowException too, and passes
        raise
    except (OSError, pa.ArrowException) as error:
        raise CodecError(f"the zstd data is damaged: {str(error).partition(chr(10))[0]}") from error


def _is_skippable(begin: bytes) -> bool:
    return len(begin) == 4 and begin[0] >> 4 == 5 and begin[1:] == b"\x2a\x4d\x18"  # noqa: PLR2004 RFC 8878, 3.1.2


def _skip(source: _Source) -> None:
    left = int.from_bytes(source.exactly(8)[4:], "little")
    while left:
        buffer = source.some()
        if not buffer:
            raise CodecError("the last frame is cut short")
        source.back(buffer[left:])
        left -= len(buffer[:left])


def _blocks(source: _Source) -> Iterator[bytes]:
    """Yield exactly the bytes of one zstd frame (RFC 8878, 3.1.1)."""
    begin = source.exactly(5)
    size, single, checked, dictionary = begin[4] >> 6, begin[4] >> 5 & 1, begin[4] >> 2 & 1, begin[4] & 3
    content = single if size == 0 else 1 << size
    yield begin + source.exactly(1 - single + (0, 1, 2, 4)[dictionary] + content)
    last = False
    while not last:
        header = source.exactly(3)
        value = int.from_bytes(header, "little")
        last, kind, size = bool(value & 1), value >> 1 & 3, value >> 3
        if kind == RESERVED or size > MOST_BLOCK_BYTES:
            raise CodecError("the zstd data is damaged: a block has an impossible type or size")
        yield header + source.exactly(1 if kind == RLE else size)
    if checked:
        yield source.exactly(4)


class _Pieces(io.RawIOBase):
    """A file made of pieces."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._rest = b""

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._rest:
            self._rest = next(self._pieces, b"")
        found, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return found


FRAMES: dict[Codec, Callable[[_Source], Iterator[bytes]]] = {"gzip": _gzip, "zstd": _zstd}
