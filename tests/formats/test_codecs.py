import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats import snappy
from windrow.formats.codecs import (
    PIECE_BYTES,
    CodecError,
    Damage,
    Frame,
    decode_whole,
    encode,
    frames,
    next_magic,
    stream,
)

PLENTY = 2**30


def zstd(buffer):
    return pa.compress(buffer, "zstd", asbytes=True)


def lz4(buffer):
    return pa.compress(buffer, "lz4", asbytes=True)


def decode(buffer, codec, most):
    return b"".join(stream([buffer], codec, most))


COMPRESS = {
    "gzip": gzip.compress,
    "zstd": zstd,
    "lz4": lz4,
    "snappy": snappy.encode,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
}
CHECKED = {"gzip", "snappy", "bzip2", "xz"}  # every content has a checksum
CODECS = pytest.mark.parametrize("codec", COMPRESS)
CONTENTS = st.binary(max_size=300) | st.integers(0, 2**18 + 9).map(lambda count: b"ab" * count)


@CODECS
@given(st.lists(CONTENTS, min_size=1, max_size=4))
def test_frames(codec, contents):
    """Frames one behind the other hold what went into them, in order."""
    buffer = b"".join(map(COMPRESS[codec], contents))
    assert decode(buffer, codec, PLENTY) == b"".join(contents)


@CODECS
@given(st.lists(st.binary(max_size=300), min_size=1, max_size=3))
def test_slow_reader(codec, contents):
    """How many bytes a file gives at a time does not matter."""
    buffer = b"".join(map(COMPRESS[codec], contents))
    assert b"".join(stream((buffer[at : at + 7] for at in range(0, len(buffer), 7)), codec, PLENTY)) == b"".join(
        contents
    )


@CODECS
@given(st.binary(min_size=1, max_size=300), st.data())
def test_cut_short(codec, content, data):
    """A frame without its end is refused, wherever it is cut."""
    whole = COMPRESS[codec](content)
    cut = data.draw(st.integers(0, len(whole) - 1))
    if codec == "snappy" and cut == len(snappy.IDENTIFIER):  # the end of a chunk
        return
    with pytest.raises(CodecError, match="cut short" if cut else "there is no"):
        decode(whole[:cut], codec, PLENTY)
    with pytest.raises(CodecError):
        decode(whole + whole[: max(cut, 1)], codec, PLENTY)
    assert [type(frame) for frame in frames(whole[:cut], 0, codec, PLENTY)] in ([], [Frame])
    assert decode_whole(whole[:cut], codec, PLENTY) in (None, (b"", 0))


@CODECS
@pytest.mark.parametrize("trailing", [b"\0", b"junk!", b"\n"], ids=["nul", "text", "newline"])
def test_trailing(codec, trailing):
    """Anything behind the last frame that is none is refused and told."""
    after = f"{codec} frame after frame [01], found the bytes {trailing[:4].hex(' ')}"
    with pytest.raises(CodecError, match="cut short" if codec in {"xz", "snappy"} and trailing == b"\0" else after):
        decode(COMPRESS[codec](b"content") + trailing, codec, PLENTY)


@CODECS
@given(st.binary(min_size=1, max_size=200), st.data())
def test_damage(codec, content, data):
    """A damaged frame is refused or, in what holds no content, harmless; it raises nothing else."""
    buffer = bytearray(COMPRESS[codec](content))
    buffer[data.draw(st.integers(0, len(buffer) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    decoded, refused = content, None
    try:
        decoded = decode(bytes(buffer), codec, PLENTY)
    except CodecError as error:
        refused = error
    assert "\n" not in str(refused)
    assert codec not in CHECKED or decoded == content


def test_checksum_of_gzip():
    """Content that its checksum does not confirm is refused."""
    buffer = bytearray(gzip.compress(b"content"))
    buffer[-8] ^= 1
    with pytest.raises(CodecError, match="incorrect data check"):
        decode(bytes(buffer), "gzip", PLENTY)


def test_checksum_of_zstd():
    """A frame with a checksum is decoded, and refused where the checksum does not confirm it."""
    buffer = bytes.fromhex("28b52ffd2407390000") + b"content" + bytes.fromhex("fca9c531")
    assert decode(buffer, "zstd", PLENTY) == b"content"
    with pytest.raises(CodecError, match="checksum"):
        decode(buffer[:-1] + b"\0", "zstd", PLENTY)


def test_reserved_of_snappy():
    """A chunk of a kind that the format reserves is refused: what is one bit away from content must not vanish."""
    stream = bytearray(COMPRESS["snappy"](b"content"))
    for kind in (0x80, 0xFD):
        stream[10] = kind  # that of the first chunk, which comes after the identifier
        with pytest.raises(CodecError, match="snappy frame after frame"):
            decode(bytes(stream), "snappy", PLENTY)


def test_skippable():
    """What zstd says is to be skipped is skipped, if it is whole."""
    skipped = b"\x53\x2a\x4d\x18" + (300_000).to_bytes(4, "little") + b"x" * 300_000
    assert decode(zstd(b"a") + skipped + zstd(b"b"), "zstd", PLENTY) == b"ab"
    with pytest.raises(CodecError, match="cut short"):
        decode(zstd(b"a") + skipped[:-1], "zstd", PLENTY)


@CODECS
def test_bound(codec):
    """The bound is of all frames of a chunk together, in a file of each frame by itself, and holds to the byte."""
    buffer = COMPRESS[codec](b"x" * 1000) * 3
    assert decode_whole(buffer, codec, 3000)[0] == b"x" * 3000
    assert decode_whole(buffer, codec, 2999) is None
    assert sum(map(len, stream([buffer], codec, 1000))) == 3000
    with pytest.raises(CodecError, match=f"{codec} frame [01] decodes to more than 999 bytes"):
        decode(buffer, codec, 999)


def bombs(codec):
    """Return a frame of far too many zeros; a chunk of Snappy is never large."""
    return COMPRESS[codec](bytes(200_000_000 if codec in {"gzip", "zstd", "bzip2"} else 20_000_000))


@pytest.mark.parametrize("codec", [name for name in COMPRESS if name != "snappy"])
def test_bomb(codec):
    """A frame that would hold far more than allowed is given up without ever being there."""
    buffer = bombs(codec)
    before = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    with pytest.raises(CodecError, match="more than"):
        decode(buffer, codec, 1_000_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4_000_000 + (8 << 20) * (codec == "xz")  # its dictionary
    assert pa.default_memory_pool().max_memory() <= max(before, 10_000_000)


@CODECS
def test_out_of_memory(codec):
    """Where there is no memory the content is not called damaged."""

    def pieces():
        yield COMPRESS[codec](b"content")[:5]
        raise pa.ArrowMemoryError("malloc of size 262144 failed")

    with pytest.raises(MemoryError, match="malloc"):
        list(stream(pieces(), codec, PLENTY))


@CODECS
def test_stream_is_lazy(codec):
    """A file is read only as far as its content is asked for."""
    noise = random.Random(7).randbytes(200_000)
    file = io.BytesIO(COMPRESS[codec](noise) * 9)
    pieces = stream(iter(lambda: file.read(PIECE_BYTES), b""), codec, PLENTY)
    assert len(next(piece for piece in pieces if piece)) <= PIECE_BYTES
    assert file.tell() <= 2 * PIECE_BYTES < len(file.getvalue())


def test_none():
    """Nothing at all is no frame."""
    with pytest.raises(CodecError, match="there is no gzip frame"):
        decode(b"", "gzip", PLENTY)


@CODECS
@given(st.lists(st.binary(max_size=99), min_size=1, max_size=4), st.binary(max_size=9))
def test_frames_of_a_buffer(codec, contents, before):
    """Each frame has its place, from where on it is asked for; what is no frame is told once, and nothing behind it."""
    coded = [encode(content, codec) for content in contents]
    decoded = list(frames(before + b"".join(coded), len(before), codec, PLENTY))
    assert b"".join(frame.content for frame in decoded) == b"".join(contents)
    assert [decoded[0].start, decoded[-1].end] == [len(before), len(before) + sum(map(len, coded))]
    assert all(left.end == right.start for left, right in pairwise(decoded))
    behind = b"".join(coded)
    damaged = list(frames(behind + b"\x0bno" + behind, 0, codec, PLENTY))
    assert [type(part) for part in damaged] == [Frame] * len(decoded) + [Damage]
    assert damaged[-1].start == len(behind)


@CODECS
def test_next_magic(codec):
    """The next place where a frame may begin is told, also if only the first bytes of it are there."""
    coded = encode(b"content", codec)
    assert next_magic(b"abc" + coded, 1, codec) == 3
    assert next_magic(b"abc" + coded[:1], 1, codec) == 3
    assert next_magic(b"abc", 0, codec) == 3


def test_memory_of_xz():
    """A stream that asks for more memory than xz -9 is refused."""
    huge = lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 2**28}])
    with pytest.raises(CodecError, match="the xz data is damaged: Memory usage limit"):
        decode(huge, "xz", PLENTY)


def test_padding_of_xz():
    """Zeros between streams, four at a time, are padding."""
    assert decode(lzma.compress(b"a") + bytes(8) + lzma.compress(b"b"), "xz", PLENTY) == b"ab"


def test_checksum_of_snappy():
    """A chunk whose checksum is wrong is refused; that of these digits is known (RFC 3720, B.4, masked)."""
    buffer, known = snappy.encode(b"123456789"), 0xE3069283
    masked = ((known >> 15 | known << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert buffer == snappy.IDENTIFIER + b"\x01\x0d\0\0" + masked.to_bytes(4, "little") + b"123456789"
    with pytest.raises(CodecError, match="the snappy data is damaged: a checksum is wrong"):
        decode(buffer[:-1] + b"x", "snappy", PLENTY)
