import gzip
import io
import random
import tracemalloc

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats import codecs
from windrow.formats.codecs import CodecError, decode, stream

PLENTY = 2**30


def zstd(buffer):
    return pa.compress(buffer, "zstd", asbytes=True)


COMPRESS = {"gzip": gzip.compress, "zstd": zstd}
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
    with pytest.raises(CodecError, match="cut short" if cut >= 4 else None):
        decode(whole[:cut], codec, PLENTY)
    with pytest.raises(CodecError):
        decode(whole + whole[: max(cut, 1)], codec, PLENTY)


@CODECS
@pytest.mark.parametrize("trailing", [b"\0", b"junk!", b"\n"], ids=["nul", "text", "newline"])
def test_trailing(codec, trailing):
    """Anything behind the last frame that is none is refused and told."""
    with pytest.raises(CodecError, match=f"a {codec} frame after frame 0, found the bytes {trailing[:4].hex(' ')}"):
        decode(COMPRESS[codec](b"content") + trailing, codec, PLENTY)


@CODECS
@given(st.binary(min_size=1, max_size=200), st.data())
def test_damage(codec, content, data):
    """A damaged frame is refused or, in what holds no content, harmless; it raises nothing else."""
    buffer = bytearray(COMPRESS[codec](content))
    buffer[data.draw(st.integers(0, len(buffer) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found, refused = content, None
    try:
        found = decode(bytes(buffer), codec, PLENTY)
    except CodecError as error:
        refused = error
    assert "\n" not in str(refused)
    assert codec == "zstd" or found == content


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
    assert len(decode(buffer, codec, 3000)) == 3000
    with pytest.raises(CodecError, match=f"the {codec} frames decode to more than 2999 bytes together"):
        decode(buffer, codec, 2999)
    assert sum(map(len, stream([buffer], codec, 1000))) == 3000
    with pytest.raises(CodecError, match=f"{codec} frame 0 decodes to more than 999 bytes"):
        decode(buffer, codec, 999)


@CODECS
def test_bomb(codec):
    """A frame that would hold far more than allowed is given up without ever being there."""
    buffer = COMPRESS[codec](bytes(200_000_000))
    before = pa.default_memory_pool().max_memory()
    tracemalloc.start()
    with pytest.raises(CodecError, match="more than"):
        decode(buffer, codec, 1_000_000)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 4_000_000
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
    pieces = stream(iter(lambda: file.read(codecs.PIECE_BYTES), b""), codec, PLENTY)
    assert len(next(pieces)) <= codecs.PIECE_BYTES
    assert file.tell() <= 2 * codecs.PIECE_BYTES < len(file.getvalue())


def test_none():
    """Nothing at all is no frame."""
    with pytest.raises(CodecError, match="there is no gzip frame"):
        decode(b"", "gzip", PLENTY)
