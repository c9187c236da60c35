"""Make PNG files smaller: a chart has few colours, so one byte for each pixel is enough."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOURS, LEVELS = 256, 32  # of a palette; of red, green and blue each, when colours are counted
RGBA, SUB = (8, 6, 0, 0, 0), 1  # eight bits of red, green, blue and alpha; rows as differences to the left

Pixels = npt.NDArray[np.uint8]


def smaller(png: bytes) -> bytes:
    """Return the picture on white with at most 256 colours; a PNG not coded like vl-convert's is returned unchanged."""
    parts = list(_chunks(png))
    width, height, *coding = struct.unpack(">IIBBBBB", dict(parts)[b"IHDR"])
    packed = zlib.decompress(b"".join(data for kind, data in parts if kind == b"IDAT"))
    if tuple(coding) != RGBA:
        return png
    rows = np.frombuffer(packed, np.uint8).reshape(height, 1 + 4 * width)
    if (rows[:, 0] != SUB).any():
        return png
    pixels = np.cumsum(rows[:, 1:].reshape(height, width, 4), axis=1, dtype=np.uint8)
    palette, places = _indexed(_on_white(pixels))
    lines = np.concatenate([np.zeros((height, 1), np.uint8), places], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    body = [(b"IHDR", header), (b"PLTE", palette.tobytes()), (b"IDAT", zlib.compress(lines.tobytes(), 9))]
    return SIGNATURE + b"".join(_chunk(kind, data) for kind, data in [*body, (b"IEND", b"")])


def _on_white(pixels: Pixels) -> Pixels:
    """Return red, green and blue as seen on white; vl-convert writes colours that are not premultiplied by alpha."""
    alpha = pixels[..., 3:].astype(np.uint16)
    return ((pixels[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def _indexed(colours: Pixels) -> tuple[Pixels, Pixels]:
    """Return the most frequent colours, and for each pixel the index of the nearest."""
    fine = colours.reshape(-1, 3)
    cell = (fine // (256 // LEVELS)).astype(np.int64) @ np.array([LEVELS**2, LEVELS, 1])
    counted = np.bincount(cell, minlength=LEVELS**3)
    there = np.flatnonzero(counted)
    sums = [np.bincount(cell, fine[:, channel], LEVELS**3)[there] for channel in range(3)]
    means = np.stack(sums, axis=1) / counted[there, None]
    palette = means[np.argsort(-counted[there], kind="stable")[:COLOURS]]
    distance = ((means[:, None, :] - palette[None, :, :]) ** 2).sum(axis=2)
    place = np.zeros(LEVELS**3, np.uint8)
    place[there] = distance.argmin(axis=1)
    return np.rint(palette).astype(np.uint8), place[cell].reshape(colours.shape[:2])


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        at += 12 + length


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
