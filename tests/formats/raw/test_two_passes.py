"""In two passes over chunks that lie apart a source has the records of the stage."""

from __future__ import annotations

from functools import reduce
from operator import add

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.raw.test_stage import TEXT, csv, with_header
from windrow.errors import InternalError
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import frame_chunks, stage, stage_in_pieces
from windrow.formats.raw.two_passes import ParsePlan, cut_chunks, summarise_chunks
from windrow.testing.formats import RawLedger, chunks, comparable, cut, run_second_pass, stage_in_two_passes


@given(
    data=TEXT,
    other=TEXT,
    places=st.lists(st.integers(0, 300), max_size=8),
    mark=st.booleans(),
    first=st.integers(0, 8),
    few=st.integers(1, 20),
    shape=st.randoms(use_true_random=False),
)
def test_same(data, other, places, mark, first, few, shape):
    """Two microbatches in two passes each have the fields, rejections, partial rows and bytes of the stage, whether a
    source is plain or not. So has a stage that parses a few records at a time.
    """
    for format_, text in ((csv(), data), (csv(header=with_header), b"a,b\n" + data), (csv(most=1_000), data)):
        parts = cut(b"\xef\xbb\xbf" * mark + text, places)
        plain = chunks(parts, version=1)
        rows = pa.concat_tables([plain, chunks(cut(other, places[:2]), source="t", last=False)])
        order = [*range(rows.num_rows), *shape.choices(range(rows.num_rows), k=shape.randrange(2))]
        if shape.random() < 0.5:
            shape.shuffle(order)
        arrived = rows.take(pa.array(order))
        versions = pa.array([1 if at < first else 2 for at in range(len(order))], pa.int64())
        arrived = arrived.set_column(5, "version", versions)
        ledger, partial = RawLedger(format_), SCHEMA.empty_table()
        for version in (1, 2):
            here = arrived.filter(pc.equal(arrived["version"], version))
            staged = stage(here, partial, format_)
            assert comparable(stage_in_two_passes(here, partial, format_)) == comparable(staged)
            pieces = stage_in_pieces(frame_chunks(here, partial, format_), partial, format_, few)
            assert comparable(reduce(add, pieces)) == comparable(staged)
            ledger.read(here)
            partial = ledger.partial


def test_plain_way():
    """A long source that is in order goes the plain way, and only a little of it comes to the driver."""
    data = b"".join(b"%d,value\n" % number for number in range(2_000))
    rows = chunks([data[at : at + 1_000] for at in range(0, len(data), 1_000)])
    plan = ParsePlan.of(summarise_chunks(rows, csv()), SCHEMA.empty_table(), csv())
    assert plan.others == frozenset()
    rests = [rest["content"] for _, outside in cut_chunks(rows, plan.bodies, csv()) for rest in outside]
    assert sum(map(len, rests)) < 30 * rows.num_rows


def test_missing_chunk():
    """A chunk that the first pass had and the second has not is an error: its bytes would be lost."""
    rows = chunks([b"1,a\n2,b", b"\n3,c\n"])
    plan = ParsePlan.of(summarise_chunks(rows, csv()), SCHEMA.empty_table(), csv())
    _, rests = run_second_pass(plan, [rows.slice(1)], csv())
    with pytest.raises(InternalError, match="chunk 1"):
        plan.finish(rests, SCHEMA.empty_table(), csv())


def test_too_long():
    """A source with a record that is too long inside a chunk goes to the driver, which rejects the record."""
    rows = chunks([b"1,a\n2,b\n" + b"x" * 100 + b"\n3,c\n", b"4,d\n"])
    assert ParsePlan.of(summarise_chunks(rows, csv()), SCHEMA.empty_table(), csv()).others == {"s"}
    staged = stage_in_two_passes(rows, SCHEMA.empty_table(), csv())
    assert set(staged.rejects["reason"].to_pylist()) == {"format_oversize"}
    assert comparable(staged) == comparable(stage(rows, SCHEMA.empty_table(), csv()))
