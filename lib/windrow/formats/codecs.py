"""Decompress streams of frames, one frame after the other, never producing more than allowed.

A few compressed bytes can decode to terabytes, so the output is bounded and made in pieces. What a frame is, is the
codec's: a gzip member, a bzip2 or xz stream, a zstd or LZ4 frame, or a chunk of Snappy's framing format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from windrow.formats.codec_frames import FRAMES, MAGIC, Codec, CodecError, FrameSource, TruncatedFrame, require_frame

__all__ = ["Codec", "CodecError", "Damage", "Frame", "decode_whole", "frames", "has_magic", "next_magic", "stream"]


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
    """Yield the whole frames of a buffer from `start` on; the last item is a Damage if what follows is no frame.

    A frame that decodes to more than `max_bytes` is a Damage; one that is cut short by the end of the buffer is left.
    """
    source = FrameSource([memoryview(buffer)[start:]])
    while source.has_more():
        at = start + source.position
        try:
            require_frame(source, codec, "")
            content = b"".join(_bounded(FRAMES[codec](source), max_bytes, f"the {codec} frame"))
        except TruncatedFrame:
            return
        except CodecError as error:
            yield Damage(at, str(error))
            return
        yield Frame(at, start + source.position, content)


def next_magic(buffer: bytes, start: int, codec: Codec) -> int:
    """Return where the next frame may begin, from `start` on; the end of the buffer if nowhere.

    Up to the last bytes, which may be the first ones of a frame.
    """
    magic = MAGIC[codec]
    at = buffer.find(magic, start)
    if at >= 0:
        return at
    longest = min(len(magic) - 1, len(buffer) - start)
    tail = next((size for size in range(longest, 0, -1) if buffer.endswith(magic[:size])), 0)
    return len(buffer) - tail


def has_magic(buffer: bytes, at: int, codec: Codec) -> bool:
    """Whether bytes are those that a frame begins with."""
    return buffer.startswith(MAGIC[codec], at)


def decode_whole(buffer: bytes, codec: Codec, max_bytes: int) -> tuple[bytes, int] | None:
    """Return the content of whole frames, together at most `max_bytes`, and by how much frames are longer than theirs.

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

    Raises CodecError for anything that is not a frame, and for a frame above `max_bytes`. The file is given in pieces
    of any size; without a codec they are the content. Pieces of the content may belong to a frame that turns out to be
    bad: the content is good only once the stream has ended.
    """
    if codec == "none":
        yield from pieces
        return
    source = FrameSource(pieces)
    number = 0
    while source.has_more() or not number:
        require_frame(source, codec, f" after frame {number - 1}" if number else " at the start")
        yield from _bounded(FRAMES[codec](source), max_bytes, f"{codec} frame {number}")
        number += 1


def _bounded(pieces: Iterator[bytes], max_bytes: int, frame: str) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > max_bytes:
            raise CodecError(f"{frame} decodes to more than {max_bytes} bytes")
        yield piece
