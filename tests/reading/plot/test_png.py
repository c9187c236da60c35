"""Smaller PNG files that show the same."""

from __future__ import annotations

import struct
import zlib

import numpy as np
import pytest

from windrow.reading.plot.png import SIGNATURE, smaller


def chunks(png: bytes) -> dict[bytes, bytes]:
    """Return the parts of a picture by kind; their sums must be right."""
    assert png.startswith(SIGNATURE)
    found, at = {}, len(SIGNATURE)
    while at < len(png):
        (length,) = struct.unpack(">I", png[at : at + 4])
        body = png[at + 4 : at + 8 + length]
        assert struct.unpack(">I", png[at + 8 + length : at + 12 + length]) == (zlib.crc32(body),)
        found[body[:4]] = body[4:]
        at += 12 + length
    return found


def pixels(png: bytes) -> np.ndarray:
    """Return red, green and blue of a picture with a palette."""
    parts = chunks(png)
    width, height, depth, kind, *_ = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, kind) == (8, 3)
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, 1 + width)
    assert not rows[:, 0].any()
    return np.frombuffer(parts[b"PLTE"], np.uint8).reshape(-1, 3)[rows[:, 1:]]


def drawn(svg: str) -> bytes:
    """Return a picture as vl-convert makes it."""
    return bytes(pytest.importorskip("vl_convert").svg_to_png(f'<svg xmlns="http://www.w3.org/2000/svg" {svg}</svg>'))


def test_few_colours_stay_as_they_are():
    """
    A picture of few colours keeps each pixel, and what shines through is mixed with white.
    """
    png = drawn(
        'width="40" height="20"><rect width="40" height="20" fill="#fff"/><rect width="10" height="20" fill="#e02b20"/>'
        '<rect x="30" width="10" height="20" fill="#000" fill-opacity="0.5"/>'
    )
    found = pixels(smaller(png))
    assert found.shape == (20, 40, 3)
    assert (found[:, :10] == (0xE0, 0x2B, 0x20)).all()
    assert (found[:, 10:30] == 255).all()
    assert np.abs(found[:, 30:].astype(int) - 127).max() <= 1


def test_many_colours_are_near():
    """
    Of a picture with thousands of colours no pixel is far from what it was.
    """
    stops = '<stop offset="0" stop-color="#00f"/><stop offset="1" stop-color="#ff0"/>'
    filled = '<rect width="256" height="64" fill="url(#g)"/>'
    png = drawn(f'width="256" height="64"><linearGradient id="g">{stops}</linearGradient>{filled}')
    place = np.arange(256)
    expected = np.stack([place, place, 255 - place], axis=1)
    assert np.abs(pixels(smaller(png)).astype(int) - expected[None]).max() <= 12


def test_another_coding_stays():
    """
    A picture that is coded in another way is left alone.
    """
    png = drawn('width="8" height="8"><rect width="8" height="8" fill="#123456"/>')
    once = smaller(png)
    assert smaller(once) == once
