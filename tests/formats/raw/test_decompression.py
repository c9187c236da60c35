"""A compressed stream that is cut anywhere gives what one parse of its content gives, damaged or not."""

from __future__ import annotations

import gzip
import random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.formats.codecs import MAGIC, encode
from windrow.formats.format import Format, format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import stage
from windrow.formats.raw.two_passes import ParsePlan, summarise_chunks
from windrow.formats.settings import FormatSettings
from windrow.testing.formats import RawLedger, chunks, comparable, cut, stage_in_two_passes

pytestmark = pytest.mark.ci

CODECS = pytest.mark.parametrize("codec", MAGIC)
LINES = st.lists(st.sampled_from([b"1,a\n", b'2,"b\nc"\n', b"3\n", b'4,"x', b"\n", b"x" * 40, b"5,e"]), max_size=8)
CONTENTS = st.lists(LINES.map(b"".join), min_size=1, max_size=4)


def csv(codec: str, **limits: Any) -> Format:
    fields = {"a": "int64", "b": "string"}
    limits = {"max_record_bytes": 60} | limits
    return format_of(FormatSettings(type="csv", has_header=False, compression=codec, fields=fields, **limits))


def whole_and_cut(format_: Format, stream: bytes, shape: random.Random) -> tuple[RawLedger, RawLedger]:
    """Read a stream as one chunk; and cut, in any order, with repetitions, over any versions and microbatches."""
    whole, pieces, at_once = RawLedger(format_), RawLedger(format_), RawLedger(format_)
    whole.read(chunks([stream]))
    parts = chunks(cut(stream, shape.choices(range(len(stream) + 1), k=shape.randrange(9))))
    order = [*range(parts.num_rows), *shape.choices(range(parts.num_rows), k=shape.randrange(3))]
    shape.shuffle(order)
    versions = sorted(shape.choices(range(1, 5), k=len(order)))
    arrived = parts.take(pa.array(order)).set_column(5, "version", pa.array(versions, pa.int64()))
    for version in sorted(set(versions)):
        pieces.read(arrived.filter(pc.equal(arrived["version"], version)))
    at_once.read(arrived)
    assert (at_once.fields(), at_once.rejects()) == (pieces.fields(), pieces.rejects())
    assert at_once.versions() == pieces.versions()
    assert pieces.byte_count() == 0
    return whole, pieces


@CODECS
@given(CONTENTS, st.randoms(use_true_random=False))
def test_any_way(codec: str, contents: list[bytes], shape: random.Random) -> None:
    """Cut anywhere, in any order, resent, over any microbatches: the records and rejects of one parse."""
    stream = b"".join(encode(content, codec) for content in contents)
    _, pieces = whole_and_cut(csv(codec), stream, shape)
    plain = RawLedger.of(csv("none"), [[b"".join(contents)]])
    assert pieces.values() == plain.values()


@CODECS
@given(CONTENTS, st.randoms(use_true_random=False), st.binary(max_size=20))
def test_damage(codec: str, contents: list[bytes], shape: random.Random, noise: bytes) -> None:
    """With bytes changed, removed or added, cuts change neither records nor rejects; all bytes are in the books."""
    stream = bytearray(b"".join(encode(content, codec) for content in contents))
    at = shape.randrange(len(stream))
    if shape.random() < 0.4:
        stream[at : at + shape.randrange(9)] = noise
    elif shape.random() < 0.5:
        del stream[at:]
    else:
        stream[at] ^= 1 << shape.randrange(8)
    whole, pieces = whole_and_cut(csv(codec), bytes(stream), shape)
    assert pieces.values() == whole.values()


@CODECS
def test_frames_around_damage(codec: str) -> None:
    """Only the damaged bytes are rejected, and reading goes on with the next frame, in the same chunk or another."""
    first, second = (encode(content, codec) for content in (b"1,a\n2,", b"b\n3,c\n"))
    for parts in ([first + b"noise" + second], [first + b"no", b"ise" + second], [first, b"noise", second]):
        ledger = RawLedger.of(csv(codec), [parts])
        assert [row["a"] for row in ledger.fields()] == [1, 3]
        reasons = {row["content"]: row["reason"] for row in ledger.rejects()}
        assert reasons == {b"noise": "format_codec", b"2,": "format_gap", b"b\n": "format_gap"}


def test_place() -> None:
    """A record is at the chunk in which its frame begins, and where it is in what such frames decode to."""
    frames = [encode(content, "gzip") for content in (b"1,a\n", b"2,b\n3,c\n")]
    stream = b"".join(frames)
    at = len(frames[0]) + 9
    ledger = RawLedger(csv("gzip"))
    for number in (0, 1):
        ledger.read(chunks([stream[:at], stream[at:]]).slice(number, 1))
    places = [(row["chunk"], row["offset"], row["received_at"].microsecond) for row in ledger.fields()]
    assert places == [(1, 0, 0), (1, 4, 1), (1, 8, 1)]


def test_kept_compressed() -> None:
    """An unfinished frame is kept as it came, its chunks each a row that is not written again."""
    noise = random.Random(1).randbytes(900).hex().encode()
    stream = gzip.compress(b"1," + noise + b"\n")
    parts = chunks(cut(stream, [300, 600, 900]))
    ledger = RawLedger(csv("gzip", max_record_bytes=9_000))
    for number in range(3):
        ledger.read(parts.slice(number, 1))
        assert ledger.staged[-1].partial.num_rows == (2 if number == 0 else 3)  # its source, the first and the new one
    assert ledger.byte_count() == 900
    ledger.read(parts.slice(3))
    assert [row["b"].encode() for row in ledger.fields()] == [noise]
    assert ledger.byte_count() == 0


@pytest.mark.parametrize(
    ("limits", "detail"),
    [
        ({"max_decoded_bytes": 2_999}, "chunk 1: the gzip frame decodes to more than 2999 bytes"),
        ({"max_pending_bytes": 30}, "chunk 1: a gzip frame in several chunks has more than max_pending_bytes, 30"),
    ],
)
def test_limits(limits: dict[str, int], detail: str) -> None:
    """A frame that decodes to too much, or of which too much would be kept, is rejected; the next one is read."""
    large, good = gzip.compress(b"x" * 3_000, mtime=0), gzip.compress(b"1,a\n2,b\n", mtime=0)
    stream = large + good
    for places in ([20], [1, 25, len(large) - 1], [len(large) + 3]):
        ledger = RawLedger(csv("gzip", **limits))
        for part in range(len(places) + 1):
            ledger.read(chunks(cut(stream, places)).slice(part, 1))
        if places == [len(large) + 3] and "max_pending_bytes" in limits:
            assert ledger.rejects("format_codec") == []  # in one chunk, so never kept
            continue
        assert [row["a"] for row in ledger.fields()] == [2]
        assert [(row["detail"], row["content"]) for row in ledger.rejects("format_codec")] == [(detail, large)]
        assert [row["content"] for row in ledger.rejects("format_gap")] == [b"1,a\n"]


def test_frames_of_a_chunk() -> None:
    """The frames that begin in one chunk decode to max_decoded_bytes together; one more is rejected."""
    frame = gzip.compress(b"1," + b"a" * 37 + b"\n", mtime=0)
    ledger = RawLedger.of(csv("gzip", max_decoded_bytes=100), [[frame * 2, frame * 3]])
    assert [row["chunk"] for row in ledger.fields()] == [1, 1, 2, 2]
    assert [row["content"] for row in ledger.rejects()] == [frame]


def test_gap() -> None:
    """What is kept of a frame when its next chunk is given up is rejected, and the next frame is read."""
    stream = gzip.compress(b"1,a\n") + gzip.compress(b"2,b\n3,c\n")
    parts = chunks([stream[:30], stream[30:40], stream[40:], gzip.compress(b"4,d\n5,e\n")])
    ledger = RawLedger(csv("gzip", max_pending_bytes=10))
    ledger.read(parts.filter(pc.not_equal(parts["sequence"], 2)))
    assert [row["a"] for row in ledger.fields()] == [1, 5]
    assert [(row["reason"], row["content"]) for row in ledger.rejects()] == [
        ("format_gap", stream[len(gzip.compress(b"1,a\n")) : 30]),
        ("format_codec", stream[40:]),
        ("format_gap", b"4,d\n"),
    ]


def test_other_codec() -> None:
    """What is kept compressed when the codec changes is read by the new one."""
    stream = gzip.compress(b"1,a\n", mtime=0)
    ledger = RawLedger(csv("gzip"))
    ledger.read(chunks([stream[:20]], last=False))
    ledger.format = csv("none")
    ledger.read(chunks([b"", b"\n2,b\n"], version=2).slice(1))
    assert [row["a"] for row in ledger.fields()] == [2]
    assert [row["content"] for row in ledger.rejects()] == [stream[:20] + b"\n"]
    assert {row["version"] for file in ledger.staged for row in file.rejects.to_pylist()} == {2}


@CODECS
def test_two_passes(codec: str) -> None:
    """Whole frames are read chunk by chunk on executors, with the same books; a frame of two chunks on the driver."""
    contents = [b"1,a\n2,", b"b\n", b"x\n" * 90 + b'3,"c\n', b'd"\n4,d']
    frames = [encode(content, codec) for content in contents]
    for parts, spread in ((frames, True), ([frames[0] + frames[1][:9], frames[1][9:]], False)):
        rows, partial = chunks(parts), SCHEMA.empty_table()
        summaries = pa.concat_tables([summarise_chunks(rows.slice(at, 1), csv(codec)) for at in range(rows.num_rows)])
        assert bool(ParsePlan.of(summaries, partial, csv(codec)).sources) is spread
        assert comparable(stage_in_two_passes(rows, partial, csv(codec))) == comparable(
            stage(rows, partial, csv(codec))
        )


def test_without_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """A codec whose library is not installed is an error in the settings."""

    class Without(pa.Codec):
        """What a pyarrow says that was built without codecs."""

        @staticmethod
        def is_available(_name: str) -> bool:
            return False

    monkeypatch.setattr(pa, "Codec", Without)
    with pytest.raises(SettingsError, match="the installed pyarrow has no snappy"):
        csv("snappy")
