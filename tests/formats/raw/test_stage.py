"""What a raw source holds comes out the same, however it was cut, in whatever order it came, in any microbatches."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar import arrow
from windrow.formats.format import Format, Header, format_of
from windrow.formats.framing import DelimitedFraming
from windrow.formats.grammar import delimiter_automaton
from windrow.formats.raw import stage as stage_module
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import stage
from windrow.formats.records import REJECTS, InvalidHeader, ParseResult, Records
from windrow.formats.settings import FormatSettings
from windrow.testing.formats import RawLedger, chunks, cut


@dataclass(frozen=True)
class Pairs:
    """A parser of two columns, of which the second is no `bad`; nothing of it is the product's."""

    schema: pa.Schema = field(default_factory=lambda: pa.schema([("a", pa.string()), ("b", pa.string())]))

    def parse(self, records: Records) -> ParseResult:
        """Return pairs."""
        good, bad, skipped = [], [], []
        for number in range(records.count):
            text = records.of(number)
            if not text:
                skipped.append(number)
                continue
            cells, multiline = text.split(b","), b"\n" in text and b'"' in text.rpartition(b"\n")[2]
            if len(cells) != 2 or multiline:
                bad.append({"record": number, "reason": "format_columns", "column": None, "detail": f"{len(cells)}"})
            elif cells[1] == b"bad":
                bad.append({"record": number, "reason": "format_cast", "column": "b", "detail": "bad"})
            else:
                good.append((number, *(cell.decode() for cell in cells)))
        columns = {name: pa.array([row[at] for row in good], pa.string()) for at, name in enumerate("ab", 1)}
        rejects = pa.Table.from_pylist(bad, REJECTS)
        numbers = np.array([row[0] for row in good], np.int64)
        return ParseResult(pa.table(columns), numbers, rejects, np.array(skipped, np.int64))


def with_header(record: bytes) -> Pairs:
    if record != b"a,b":
        raise InvalidHeader("format_columns", f"{record!r} is no header")
    return Pairs()


def csv(most: int = 60, header: Header | None = None, **limits: int) -> Format:
    framing = DelimitedFraming(delimiter_automaton(b"\n", b",", b'"'), b"\n", most)
    return Format(framing, Pairs(), "csv", FormatSettings(**limits), header=header)


TEXT = st.lists(
    st.sampled_from([b"1,a\n", b'2,"b,c"\n', b"3,bad\n", b"4\n", b'5,"x\n', b'"y\n', b"\n", b"x" * 30, b',"', b"\r\n"]),
    max_size=20,
).map(b"".join)


@given(
    data=TEXT,
    places=st.lists(st.integers(0, 300), max_size=8),
    mark=st.booleans(),
    shape=st.randoms(use_true_random=False),
)
def test_any_way(data, places, mark, shape):
    """
    Cut anywhere, in any order, with repetitions, over any versions and microbatches: the same records and rejects.

    Where a record begins and when it was complete follows from the cuts; its values, bytes and reasons do not.
    """
    data = b"\xef\xbb\xbf" * mark + data
    parts = cut(data, places)
    whole, pieces, ordered = RawLedger(csv()), RawLedger(csv()), RawLedger(csv())
    whole.read(chunks([data]))
    ordered.read(chunks(parts))
    given_ = chunks(parts)
    rows = [*range(given_.num_rows), *shape.choices(range(given_.num_rows), k=shape.randrange(3))]
    shape.shuffle(rows)
    versions = sorted(shape.choices(range(1, 5), k=len(rows)))
    arrived = given_.take(pa.array(rows)).set_column(5, "version", pa.array(versions, pa.int64()))
    for version in sorted(set(versions)):
        pieces.read(arrived.filter(pc.equal(arrived["version"], version)))
    at_once = RawLedger(csv())
    at_once.read(arrived.take(pa.array(random.Random(1).sample(range(arrived.num_rows), arrived.num_rows))))

    assert whole.values() == ordered.values()
    assert pieces.fields() == ordered.fields() == at_once.fields()
    assert pieces.rejects() == ordered.rejects()
    assert at_once.rejects() == pieces.rejects()
    assert at_once.versions() == pieces.versions()
    assert pieces.byte_count() == 0
    assert len(pieces.rejects("format_repeated")) == len(rows) - given_.num_rows


class TestQuotes:
    def test_good_rows_survive(self):
        """A quote that another one closes rows later costs its own row; those in between, and the other one's,
        survive.
        """
        ledger = RawLedger(csv())
        ledger.read(chunks([b'1,a\n2,"open\n3,b\n4,"c"\n5,d\n']))
        assert [row["a"] for row in ledger.fields()] == ["1", "3", "4", "5"]
        assert [row["content"] for row in ledger.rejects()] == [b'2,"open\n']

    def test_whole_when_uneven(self):
        """Where the lines behind do not come out even, the record is bad as a whole."""
        ledger = RawLedger(csv())
        ledger.read(chunks([b'1,2,"a\nb"\n5,d\n']))
        ledger.read(chunks([b'1,2,"a\n","\n"\n5,d\n'], source="t"))
        assert [row["content"] for row in ledger.rejects()] == [b'1,2,"a\n', b'b"\n', b'1,2,"a\n","\n"\n']
        assert [row["a"] for row in ledger.fields()] == ["5", "5"]


class TestHeader:
    def test_first_record(self):
        """The first record of each source is its header, and no row; it may come in pieces."""
        ledger = RawLedger(csv(header=with_header))
        ledger.read(chunks([b"a,"], last=False))
        ledger.read(chunks([b"a,", b"b\n1,x\n"], version=2).slice(1))
        assert [(row["a"], row["b"]) for row in ledger.fields()] == [("1", "x")]

    def test_bad(self):
        """Under a bad header nothing can be told of a row: each is rejected, the header as well."""
        ledger = RawLedger(csv(header=with_header))
        ledger.read(pa.concat_tables([chunks([b"b,a\n1,x\n"]), chunks([b"a,b\n2,y\n"], source="t")]))
        assert [(row["raw_source"], row["a"]) for row in ledger.fields()] == [("t", "2")]
        assert {row["content"] for row in ledger.rejects("format_columns")} == {b"1,x\n", b"b,a\n"}


class TestGap:
    def test_given_up(self):
        """Behind chunks that never came framing goes on at the next delimiter; what cannot be told is kept as
        rejected.
        """
        ledger = RawLedger(csv(max_pending_bytes=10))
        parts = [b"1,a\n2,", b"b\n3,c\n4", b",d\n5,e\n6,", b"f\n"]
        ledger.read(chunks(parts).filter(pc.not_equal(chunks(parts)["sequence"], 2)))
        assert [row["a"] for row in ledger.fields()] == ["1", "5", "6"]
        assert [row["content"] for row in ledger.rejects("format_gap")] == [b"2,", b",d\n"]
        ledger.read(chunks(parts, version=2).slice(1, 1))
        assert parts[1] in [row["content"] for row in ledger.rejects("format_gap")]

    def test_version(self):
        """What a gap cuts off was known when the gap was, however many versions a microbatch has."""
        parts = [b"1,a\n2,", b"b\n", b"3,c\n4,d\n"]
        rows = [chunks(parts[:1], last=False), chunks(parts, version=2).slice(2)]
        apart, together = RawLedger(csv(max_pending_bytes=4)), RawLedger(csv(max_pending_bytes=4))
        for batch in rows:
            apart.read(batch)
        together.read(pa.concat_tables(rows))
        for ledger in (apart, together):
            rejects = [row for file in ledger.staged for row in file.rejects.to_pylist()]
            assert [(row["content"], row["version"]) for row in rejects] == [(b"2,", 2), (b"3,c\n", 2)]

    def test_header_lost(self):
        """Without the chunk that held the header no row can be told, and none is taken for it."""
        ledger = RawLedger(csv(header=with_header, max_pending_bytes=2))
        ledger.read(chunks([b"a,b\n1,x\n", b"2,y\n3,z\n"]).slice(1))
        assert ledger.fields() == []
        assert {row["content"]: row["reason"] for row in ledger.rejects()} == {
            b"2,y\n": "format_gap",
            b"3,z\n": "format_columns",
        }


@pytest.mark.parametrize("column", ["raw_source", "sequence", "bytes", "received_at"])
def test_no_chunk(column):
    """A row that lacks what makes it a chunk is rejected with its bytes."""
    rows = chunks([b"1,a\n"])
    at = rows.column_names.index(column)
    ledger = RawLedger(csv())
    ledger.read(rows.set_column(at, column, pa.nulls(1, rows.schema.field(at).type)))
    assert [(row["reason"], row["detail"]) for row in ledger.rejects()] == [("format_invalid", f"{column} is NULL")]


@pytest.mark.parametrize(
    ("number", "why"), [(0, "less than 1"), (2**63 - 2, None), (2**63 - 1, "more than 9223372036854775806")]
)
def test_number_without_next(number, why):
    """A number after which none is a BIGINT is no number of a chunk; the source goes on, even where its gap is given
    up.
    """
    rows = chunks([b"1,a\n"], last=False).set_column(1, "sequence", pa.array([number], pa.int64()))
    ledger = RawLedger(csv(max_pending_bytes=1))
    ledger.read(rows)
    ledger.read(chunks([b"2,b\n"], version=2))
    refused = [] if why is None else [("format_invalid", f"sequence is {why}")]
    assert [(row["reason"], row["detail"]) for row in ledger.rejects("format_invalid")] == refused
    assert [row["a"] for row in ledger.fields()] == ([] if why is None else ["2"])


def test_other_settings():
    """When the settings of a format change in the middle of a record, all of that record is framed by the new ones."""
    ledger = RawLedger(csv())
    ledger.read(chunks([b"1,a\n2,x;"], last=False))
    framing = DelimitedFraming(delimiter_automaton(b";", b",", b'"'), b";", 60)
    ledger.format = Format(framing, Pairs(), "other", FormatSettings())
    ledger.read(chunks([b"", b"3,y;"], version=2).slice(1))
    assert [(row["a"], row["b"]) for row in ledger.fields()] == [("1", "a"), ("2", "x"), ("3", "y")]


@given(st.lists(TEXT, min_size=1, max_size=3), st.integers(1, 9), st.randoms(use_true_random=False))
def test_sources_together(texts, size, shape):
    """Sources whose rows are mixed, in tables of several arrays that share their memory, come out as each by itself."""
    tables = [
        chunks([text[at : at + size] for at in range(0, len(text), size)], f"s{number}")
        for number, text in enumerate(texts)
    ]
    alone, together = RawLedger(csv()), RawLedger(csv())
    for table in tables:
        alone.read(table)
    rows = pa.concat_tables(tables).combine_chunks()
    order = list(range(rows.num_rows))
    if shape.random() < 0.5:
        shape.shuffle(order)
    mixed = rows.take(pa.array(order, pa.int64()))
    places = sorted(shape.choices(range(rows.num_rows + 1), k=shape.randrange(4)))
    together.read(pa.concat_tables([mixed.slice(a, b - a) for a, b in pairwise([0, *places, rows.num_rows])]))
    assert together.fields() == alone.fields()
    assert together.rejects() == alone.rejects()
    assert together.partial.sort_by("id").equals(alone.partial.sort_by("id"))


def calls(format_, rows):
    """Return how many functions are called to stage rows."""
    count = 0

    def counting(_frame, event, _argument):
        nonlocal count
        count += event in {"call", "c_call"}

    sys.setprofile(counting)
    try:
        stage(rows, SCHEMA.empty_table(), format_)
    finally:
        sys.setprofile(None)
    return count


def test_no_work_per_chunk():
    """A hundred times as many chunks of a source take no more calls."""
    format_ = format_of(FormatSettings(type="csv", has_header=False, fields={"a": "int64", "b": "string"}))
    rows = chunks([b"1,a\n2,", b"b\n"] * 5_000)
    few = rows.slice(0, 100)
    calls(format_, few)
    assert calls(format_, rows) < 1.1 * calls(format_, few)


def test_thousands_of_sources():
    """Each source is read by itself, and costs a row."""
    ledger = RawLedger(csv())
    for version in (1, 2):
        parts = [chunks([b"1,a\n2", b",b\n"], str(number), version).slice(version - 1, 1) for number in range(2_000)]
        ledger.read(pa.concat_tables(parts))
    assert len(ledger.fields()) == 4_000
    assert ledger.partial.num_rows == 2_000


@pytest.mark.parametrize("type_", ["csv", "json"])
def test_on_all_cores(monkeypatch, type_):
    """Parsed in several parts at once, the bytes of sources give what they give in one."""
    format_ = format_of(
        FormatSettings(type=type_, has_header=False, fields={"a": "int64", "b": "string"}, max_record_bytes=60)
    )
    lines = {
        "csv": [b"1,x\n", b'2,"y\nz"\n', b"x,1\n", b'3,"open\n', b'4,"w"\n', b"\n", b"1,2,3\n", b"y" * 70 + b"\n"],
        "json": [b'{"a": 1, "b": "x"}\n', b'{"b": "\xc3\xa4", "a": 2}\n', b'{"a": "x"}\n', b"\xff\n", b"{}\n", b"\n"],
    }[type_]
    shape = random.Random(5)
    tables = [chunks(cut(b"".join(shape.choices(lines, k=200)), [9, 300, 700]), f"s{at}") for at in range(3)]
    rows = pa.concat_tables(tables)
    once = stage(rows, SCHEMA.empty_table(), format_)
    monkeypatch.setattr(stage_module, "PARALLEL_BYTES", 0)
    monkeypatch.setattr(arrow, "MANY", 0)
    monkeypatch.setattr(pa, "cpu_count", lambda: 4)
    parts = stage(rows, SCHEMA.empty_table(), format_)
    assert parts.fields.num_rows > 200
    assert parts.rejects.num_rows > 50
    assert parts.fields.equals(once.fields)
    assert parts.volume == once.volume
    assert parts.partial.equals(once.partial)
    assert sorted(map(repr, parts.rejects.to_pylist())) == sorted(map(repr, once.rejects.to_pylist()))
