"""Codecs: streams of frames, which are recognised, decompressed and written one by one.

A frame is a gzip member, a bzip2 or xz stream, a zstd or LZ4 frame, or a chunk of Snappy's framing format. It is read
exactly to its end: zlib, bz2 and lzma say where that is; Arrow does not, so this module follows the blocks of zstd and
LZ4 frames. A few compressed bytes can decode to terabytes, so the output is bounded and produced in pieces.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

import pyarrow as pa

from windrow.errors import SettingsError, first_line
from windrow.formats import snappy
from windrow.formats.snappy import SnappyError

Codec = Literal["none", "gzip", "zstd", "lz4", "snappy", "bzip2", "xz"]
MAGIC: dict[str, bytes] = {
    "gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "lz4": b"\x04\x22\x4d\x18", "snappy": snappy.IDENTIFIER,
    "bzip2": b"BZh", "xz": b"\xfd7zXZ\0",
}  # fmt: skip
PIECE_BYTES = 2**18
GZIP_WINDOW = 16 + zlib.MAX_WBITS
XZ_MEMORY_BYTES = 2**27  # `xz -9` needs 65 MiB; a file may ask for gigabytes
XZ_PADDING = bytes(4)
ZSTD_BLOCK_BYTES, LZ4_BLOCK_BYTES = 2**17, 2**22
RLE, RESERVED = 1, 3
SKIPPABLE = b"\x50\x2a\x4d\x18"  # the last digit of its first byte may differ: RFC 8878, 3.1.2
FASTEST = 1


class CodecError(Exception):
    """Bytes are not whole frames of the codec, or decode to more than allowed; the message is one line."""


class TruncatedFrame(CodecError):
    """The bytes end before the frame does."""

    def __init__(self) -> None:
        super().__init__("the last frame is cut short")


def require_available(codec: Codec) -> None:
    """Raise SettingsError if the library of a codec is not available."""
    if codec in {"zstd", "lz4", "snappy"} and not pa.Codec.is_available(codec):
        raise SettingsError(f"the installed pyarrow has no {codec}", "Use another codec, or pyarrow's wheels.")


def encode(buffer: bytes, codec: Codec) -> bytes:
    """Compress bytes into one frame (Snappy: as many as needed); without a codec return them unchanged."""
    if codec in {"zstd", "lz4"}:
        return bytes(pa.Codec(codec, FASTEST if codec == "zstd" else None).compress(buffer, asbytes=True))
    encoders: dict[str, Callable[[bytes], bytes]] = {
        "gzip": lambda data: gzip.compress(data, FASTEST, mtime=0),
        "snappy": snappy.encode,
        "bzip2": bz2.compress,
        "xz": lambda data: lzma.compress(data, preset=FASTEST),
    }
    return encoders[codec](buffer) if codec in encoders else buffer


class Frame(NamedTuple):
    """A whole frame: where it begins and ends in a buffer, and its content."""

    start: int
    end: int
    content: bytes


class Damage(NamedTuple):
    """Bytes that begin no frame, from `start` on, and why."""

    start: int
    why: str


def frames(buffer: bytes, start: int, codec: Codec, max_bytes: int) -> Iterator[Frame | Damage]:
    """Yield the whole frames of a buffer from `start` on; the last item is a Damage if other bytes follow.

    A frame that decodes to more than `max_bytes` is a Damage; one that the end of the buffer cuts short is left out.
    """
    source = FrameSource([memoryview(buffer)[start:]])
    while source.has_more():
        at = start + source.position
        try:
            require_frame(source, codec, "")
            content = b"".join(_limit_size(FRAMES[codec](source), max_bytes, f"the {codec} frame"))
        except TruncatedFrame:
            return
        except CodecError as error:
            yield Damage(at, str(error))
            return
        yield Frame(at, start + source.position, content)


def next_magic(buffer: bytes, start: int, codec: Codec) -> int:
    """Return where the next frame may begin, from `start` on; the end of the buffer if nowhere.

    The last bytes count too, if they may be the beginning of a frame.
    """
    magic = MAGIC[codec]
    at = buffer.find(magic, start)
    if at >= 0:
        return at
    longest = min(len(magic) - 1, len(buffer) - start)
    tail = next((size for size in range(longest, 0, -1) if buffer.endswith(magic[:size])), 0)
    return len(buffer) - tail


def decode_whole(buffer: bytes, codec: Codec, max_bytes: int) -> tuple[bytes, int] | None:
    """Return the content of whole frames, in total at most `max_bytes`, and by how much frames exceed their contents.

    None if the buffer is not whole frames.
    """
    contents: list[bytes] = []
    end = size = excess = 0
    for frame in frames(buffer, 0, codec, max_bytes):
        if isinstance(frame, Damage):
            return None
        size += len(frame.content)
        if size > max_bytes:
            return None
        contents.append(frame.content)
        excess += max(0, frame.end - frame.start - len(frame.content))
        end = frame.end
    return (b"".join(contents), excess) if end == len(buffer) else None


def stream(pieces: Iterable[bytes], codec: Codec, max_bytes: int) -> Iterator[bytes]:
    """Yield the content of a file's frames, piece by piece.

    Raises CodecError for anything that is not a frame, and for a frame above `max_bytes`. The file comes in pieces of
    any size; without a codec these are the content. A piece of the content may belong to a frame that turns out to be
    bad: the content is good only once the stream has ended.
    """
    if codec == "none":
        yield from pieces
        return
    source = FrameSource(pieces)
    number = 0
    while source.has_more() or not number:
        require_frame(source, codec, f" after frame {number - 1}" if number else " at the start")
        yield from _limit_size(FRAMES[codec](source), max_bytes, f"{codec} frame {number}")
        number += 1


def _limit_size(pieces: Iterator[bytes], max_bytes: int, frame: str) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise CodecError(f"{frame} decodes to more than {max_bytes} bytes")
        yield piece


class FrameSource:
    """The bytes of frames, which can be put back; `position` is the number of bytes taken."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces = (piece[at : at + PIECE_BYTES] for piece in pieces for at in range(0, len(piece), PIECE_BYTES))
        self._rest = b""
        self.position = 0

    def read_some(self) -> bytes:
        """Return the next bytes, none at the end."""
        piece, self._rest = self._rest or bytes(next(self._pieces, b"")), b""
        self.position += len(piece)
        return piece

    def unread(self, buffer: bytes) -> None:
        """Put back bytes that were not needed."""
        self._rest = buffer + self._rest
        self.position -= len(buffer)

    def has_more(self) -> bool:
        """Tell whether there are more bytes."""
        return bool(self.peek(1))

    def exactly(self, count: int) -> bytes:
        """Return exactly `count` bytes. Raises TruncatedFrame if there are fewer."""
        content = self.peek(count)
        if len(content) < count:
            raise TruncatedFrame
        self._rest = self._rest[count:]
        self.position += count
        return content

    def peek(self, count: int) -> bytes:
        """Return the next `count` bytes without taking them, fewer at the end."""
        if len(self._rest) < count:
            parts = [self._rest]
            size = len(self._rest)
            while size < count and (piece := next(self._pieces, b"")):
                parts.append(bytes(piece))
                size += len(piece)
            self._rest = b"".join(parts)
        return self._rest[:count]


def require_frame(source: FrameSource, codec: Codec, where: str) -> None:
    """Raise CodecError unless a frame begins here, TruncatedFrame if more bytes are needed to tell."""
    start = source.peek(4)
    if not start:
        raise CodecError(f"there is no {codec} frame")
    known = MAGIC[codec].startswith(start) or start.startswith(MAGIC[codec][:4])
    if codec in {"zstd", "lz4"}:
        known = known or _may_be_skippable(start)
    elif codec == "snappy":
        known = known or snappy.is_chunk(start[0])
    elif codec == "xz":
        known = known or XZ_PADDING.startswith(start)
    if not known:
        article = "an" if codec in {"lz4", "xz"} else "a"
        raise CodecError(f"expected {article} {codec} frame{where}, found the bytes {start.hex(' ')}")
    if len(start) < min(4, len(MAGIC[codec])):
        raise TruncatedFrame


class _Gzip:
    """A decoder of zlib with the interface that bz2 and lzma have."""

    def __init__(self) -> None:
        self._decoder = zlib.decompressobj(GZIP_WINDOW)

    @property
    def eof(self) -> bool:
        return self._decoder.eof

    @property
    def needs_input(self) -> bool:
        return not self._decoder.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._decoder.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._decoder.decompress(self._decoder.unconsumed_tail or data, max_length)


Decoder: TypeAlias = bz2.BZ2Decompressor | lzma.LZMADecompressor | _Gzip
ReadFrame: TypeAlias = Callable[["FrameSource"], Iterator[bytes]]


def _by_decoder(codec: str, decoder_of: Callable[[], Decoder]) -> ReadFrame:
    def frame(source: FrameSource) -> Iterator[bytes]:
        if codec == "xz" and source.peek(len(XZ_PADDING)) == XZ_PADDING:
            source.exactly(len(XZ_PADDING))
            return
        decoder = decoder_of()
        while not decoder.eof:
            hungry = decoder.needs_input
            data = source.read_some() if hungry else b""
            try:
                piece = decoder.decompress(data, PIECE_BYTES)
            except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
                raise CodecError(f"the {codec} data is damaged: {first_line(error)}") from error
            if hungry and not (data or piece or decoder.eof):
                raise TruncatedFrame
            if piece:
                yield piece
        source.unread(decoder.unused_data)

    return frame


def _by_blocks(codec: str, blocks: ReadFrame) -> ReadFrame:
    def frame(source: FrameSource) -> Iterator[bytes]:
        if _may_be_skippable(source.peek(4)):
            _skip(source)
            return
        try:
            with pa.CompressedInputStream(pa.PythonFile(_Pieces(blocks(source)), mode="r"), codec) as decoded:
                while piece := decoded.read(PIECE_BYTES):
                    yield piece
        except MemoryError:  # Arrow's is also an ArrowException; it must propagate
            raise
        except (OSError, pa.ArrowException) as error:
            raise CodecError(f"the {codec} data is damaged: {first_line(error)}") from error

    return frame


def _may_be_skippable(start: bytes) -> bool:
    return start[0] >> 4 == SKIPPABLE[0] >> 4 and SKIPPABLE[1:].startswith(start[1:])


def _skip(source: FrameSource) -> None:
    left = int.from_bytes(source.exactly(8)[4:], "little")
    while left:
        buffer = source.read_some()
        if not buffer:
            raise TruncatedFrame
        source.unread(buffer[left:])
        left -= len(buffer[:left])


def _zstd_blocks(source: FrameSource) -> Iterator[bytes]:
    """Yield exactly the bytes of one zstd frame (RFC 8878, 3.1.1)."""
    start = source.exactly(5)
    size, single, checked, dictionary = start[4] >> 6, start[4] >> 5 & 1, start[4] >> 2 & 1, start[4] & 3
    content = single if size == 0 else 1 << size
    yield start + source.exactly(1 - single + (0, 1, 2, 4)[dictionary] + content)
    last = False
    while not last:
        header = source.exactly(3)
        value = int.from_bytes(header, "little")
        last, kind, size = bool(value & 1), value >> 1 & 3, value >> 3
        if kind == RESERVED or size > ZSTD_BLOCK_BYTES:
            raise CodecError("the zstd data is damaged: a block has an impossible type or size")
        yield header + source.exactly(1 if kind == RLE else size)
    if checked:
        yield source.exactly(4)


def _lz4_blocks(source: FrameSource) -> Iterator[bytes]:
    """Yield exactly the bytes of one LZ4 frame (LZ4 Frame Format 1.6)."""
    start = source.exactly(6)
    flags = start[4]
    checked_blocks, has_size, checked, dictionary = flags >> 4 & 1, flags >> 3 & 1, flags >> 2 & 1, flags & 1
    yield start + source.exactly(8 * has_size + 4 * dictionary + 1)
    while True:
        header = source.exactly(4)
        size = int.from_bytes(header, "little") & 0x7FFFFFFF
        if not size:
            break
        if size > LZ4_BLOCK_BYTES:
            raise CodecError("the lz4 data is damaged: a block has an impossible size")
        yield header + source.exactly(size + 4 * checked_blocks)
    yield header + source.exactly(4 * checked)


def _snappy_chunk(source: FrameSource) -> Iterator[bytes]:
    head = source.exactly(4)
    try:
        yield snappy.decode_chunk(head[0], source.exactly(int.from_bytes(head[1:], "little")))
    except SnappyError as error:
        raise CodecError(f"the snappy data is damaged: {error}") from error


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
        piece, self._rest = (self._rest, b"") if size < 0 else (self._rest[:size], self._rest[size:])
        return piece


FRAMES: dict[Codec, ReadFrame] = {
    "gzip": _by_decoder("gzip", _Gzip),
    "bzip2": _by_decoder("bzip2", bz2.BZ2Decompressor),
    "xz": _by_decoder("xz", lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, XZ_MEMORY_BYTES)),
    "zstd": _by_blocks("zstd", _zstd_blocks),
    "lz4": _by_blocks("lz4", _lz4_blocks),
    "snappy": _snappy_chunk,
}
