import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats import settings
from windrow.model import chunks, messages
from windrow.model.chunks import Chunk, cut

pieces = st.lists(st.binary(max_size=12), max_size=8)
sizes = st.integers(1, 15)


def test_default_size() -> None:
    """The size that settings know, which load no Arrow, is that of chunks."""
    assert settings.CHUNK_BYTES == chunks.CHUNK_BYTES


class TestCut:
    @given(pieces, sizes)
    def test_nothing_is_lost(self, pieces: list[bytes], size: int) -> None:
        """Chunks put together are the bytes that were given, in whatever pieces they came."""
        assert b"".join(chunk.content for chunk in cut(pieces, size)) == b"".join(pieces)

    @given(pieces, sizes)
    def test_same_however_it_came(self, pieces: list[bytes], size: int) -> None:
        """The pieces in which bytes come do not show in the chunks."""
        whole = b"".join(pieces)
        assert list(cut(pieces, size)) == list(cut([whole], size)) == list(cut([bytes([byte]) for byte in whole], size))

    @given(pieces, sizes)
    def test_numbers_and_end(self, pieces: list[bytes], size: int) -> None:
        """Chunks are numbered from 1 without a gap, only the last one is marked, and only it may be shorter."""
        cut_chunks = list(cut(pieces, size))
        assert [chunk.sequence for chunk in cut_chunks] == list(range(chunks.FIRST, len(cut_chunks) + 1))
        assert [chunk.last for chunk in cut_chunks] == [False] * (len(cut_chunks) - 1) + [True]
        assert all(len(chunk.content) == size for chunk in cut_chunks[:-1])
        assert len(cut_chunks[-1].content) <= size

    @pytest.mark.parametrize("nothing", [[], [b""], [b"", b""]])
    def test_empty(self, nothing: list[bytes]) -> None:
        """No bytes are one empty chunk, which is the last one."""
        assert list(cut(nothing)) == [Chunk(1, b"", last=True)]

    def test_end_at_a_border(self) -> None:
        """Bytes that fill their chunks end with a full one, and no empty one comes after it."""
        assert list(cut([b"ab", b"cd"], 2)) == [Chunk(1, b"ab", last=False), Chunk(2, b"cd", last=True)]

    def test_pieces_that_fit_are_not_copied(self) -> None:
        """A piece of the size of a chunk is the chunk."""
        pieces = [bytes(4), bytes(4)]
        assert [chunk.content is piece for chunk, piece in zip(cut(pieces, 4), pieces, strict=True)] == [True, True]

    def test_no_more_is_taken_than_is_needed(self) -> None:
        """A chunk is given as soon as it is known whether another follows, so that few are held."""
        pieces = iter([b"ab", b"cd", b"ef"])
        assert next(cut(pieces, 2)).content == b"ab"
        assert next(pieces) == b"ef"


class TestRows:
    def test_columns(self) -> None:
        """Rows have the columns of a raw depot."""
        rows = chunks.rows(
            "a.csv", [Chunk(1, b"\xff\x00", last=False), Chunk(2, b"", last=True)], 1_700_000_000_000_001
        )
        assert rows.schema == chunks.RAW
        assert rows.drop_columns(["received_at"]).to_pylist() == [
            {"raw_source": "a.csv", "sequence": 1, "bytes": b"\xff\x00", "last": False},
            {"raw_source": "a.csv", "sequence": 2, "bytes": b"", "last": True},
        ]
        assert rows["received_at"].cast(pa.int64()).to_pylist() == [1_700_000_000_000_001] * 2


class TestIsRaw:
    def test_by_columns(self) -> None:
        """A table is raw when it has the columns, whatever else it has; large types are the same to readers."""
        large = [pa.field(field.name, LARGE.get(field.type, field.type)) for field in chunks.RAW]
        assert chunks.is_raw(chunks.RAW)
        assert chunks.is_raw(pa.schema([*large, ("site", pa.string())]))
        assert not chunks.is_raw(messages.schema())
        assert not chunks.is_raw(chunks.RAW.remove(3))
        assert not chunks.is_raw(chunks.RAW.set(2, pa.field("bytes", pa.string())))


LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
