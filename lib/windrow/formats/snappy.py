"""Snappy's framing format, the streams of `.sz` files: chunks of at most 64 KiB, each with a checksum."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.compiled import ByteArray, compile_lazily
from windrow.errors import first_line

IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
COMPRESSED, UNCOMPRESSED, PADDING, BEGIN = 0x00, 0x01, 0xFE, 0xFF
CONTENT_BYTES = 2**16  # of a chunk
MASK = 0xA282EAD8
POLYNOMIAL = np.uint32(0x82F63B78)  # Castagnoli's, reflected


class SnappyError(Exception):
    """A chunk is damaged; the message is one line."""


def is_chunk(kind: int) -> bool:
    """Tell whether a chunk may begin with this byte, which three bytes of its size follow.

    Other kinds from 0x80 on, which readers may skip, are refused: nobody writes them, and content with a flipped bit
    would be lost.
    """
    return kind in {COMPRESSED, UNCOMPRESSED, PADDING, BEGIN}


def decode_chunk(kind: int, body: bytes) -> bytes:
    """Return the content of a chunk. Raises SnappyError."""
    if kind == BEGIN:
        if body != IDENTIFIER[4:]:
            raise SnappyError("its identifier is wrong")
        return b""
    if kind == PADDING:
        return b""
    content = _decompress(body[4:]) if kind == COMPRESSED else body[4:]
    if len(content) > CONTENT_BYTES or len(body) < 4:  # noqa: PLR2004 the checksum
        raise SnappyError("a chunk has an impossible size")
    # guard: snappy-checksum
    if _checksum(content) != int.from_bytes(body[:4], "little"):
        raise SnappyError("a checksum is wrong")
    return content


def encode(buffer: bytes) -> bytes:
    """Return bytes as a stream."""
    return IDENTIFIER + b"".join(_chunks(buffer))


def _chunks(buffer: bytes) -> Iterator[bytes]:
    for at in range(0, len(buffer), CONTENT_BYTES):
        content = buffer[at : at + CONTENT_BYTES]
        body = pa.Codec("snappy").compress(content, asbytes=True)
        kind, body = (COMPRESSED, body) if len(body) < len(content) else (UNCOMPRESSED, content)
        yield bytes([kind]) + (len(body) + 4).to_bytes(3, "little") + _checksum(content).to_bytes(4, "little") + body


def _decompress(data: bytes) -> bytes:
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 the last byte of the number
            break
    if size > CONTENT_BYTES:
        raise SnappyError("a chunk has an impossible size")
    try:
        return bytes(pa.Codec("snappy").decompress(data, size, asbytes=True))
    except (OSError, pa.ArrowException) as error:
        raise SnappyError(first_line(error)) from error


def _checksum(content: bytes) -> int:
    """Return the masked CRC-32C of bytes."""
    crc = int(_crc(np.frombuffer(content, np.uint8), TABLE))
    return ((crc >> 15 | crc << 17) + MASK) & 0xFFFFFFFF


def _table() -> npt.NDArray[np.uint32]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, table >> 1 ^ POLYNOMIAL, table >> 1).astype(np.uint32)
    return table


TABLE = _table()


@compile_lazily
def _crc(content: ByteArray, table: npt.NDArray[np.uint32]) -> np.uint32:
    crc = np.uint32(0xFFFFFFFF)
    for byte in content:
        crc = table[(crc ^ np.uint32(byte)) & np.uint32(0xFF)] ^ crc >> np.uint32(8)
    return crc ^ np.uint32(0xFFFFFFFF)
