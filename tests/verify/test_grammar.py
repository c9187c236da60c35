"""A record of CSV that swallowed others is found by the grammar alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pyarrow as pa
import pytest

from tests.verify.raws import COMMA, RawWorld, chunk, record
from windrow.formats.format import format_of
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import StageResult, stage
from windrow.formats.settings import FormatSettings
from windrow.testing.formats import chunks
from windrow.verify import verify
from windrow.verify.raw.grammar import Framings

FIELDS = {"ts": "int64", "device": "string", "remark": "string"}
GOOD = b'ts,device,remark\n1,a,"two\nlines" \r\n\n\n2,b,"say ""hi""\n"\n3,c,'
STRAY = b'ts,device,remark\n1,a,"nobody closes this\n2,b,fine\n3,c,fine\n4,d,"closed"\n5,e,fine\n'
BY_CHANCE = b'ts,device,remark\n1,"nobody closes this\n2,b,fine\n3,", really"\n5,e,fine\n'


def several(rows: pa.Table, staged: StageResult, settings: FormatSettings) -> list[dict[str, object]]:
    """Return the records of several lines that are none."""
    framings = Framings()
    framings.add(rows, SCHEMA.empty_table(), staged, format_of(settings))
    return framings.several(staged.partial).to_pylist()


@pytest.mark.parametrize("cuts", [[], [5], [30, 40, 41]], ids=["whole", "two", "four"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "unfinished"])
def test_records_of_several_lines_are_records(cuts, last):
    """Quoted line ends, doubled quotes, blanks, empty lines and an unfinished end are no findings."""
    parts = [GOOD[a:b] for a, b in pairwise([0, *cuts, len(GOOD)])]
    settings, rows = FormatSettings(type="csv", fields=FIELDS), chunks(parts, last=last)
    staged = stage(rows, SCHEMA.empty_table(), format_of(settings))
    assert staged.fields.num_rows == 2 + last
    assert several(rows, staged, settings) == []


@pytest.mark.parametrize("escape", ["", "\\"])
@pytest.mark.parametrize("data", [STRAY, BY_CHANCE], ids=["text behind a quote", "columns that fit by chance"])
def test_a_swallowing_record_is_found(data, escape):
    """A record that was taken up to a quote of a later record is named with its place, also at the end of a source."""
    settings = FormatSettings(type="csv", fields=FIELDS, escape_char=escape)
    for end in (len(data), data.index(b"5,e")):
        rows = chunks([data[:30], data[30:end]])
        staged = stage(rows, SCHEMA.empty_table(), format_of(settings))
        assert several(rows, staged, settings) == []
        first = staged.rejects["offset"][0].as_py()
        at = {"raw_source": "s", "chunk": 1, "offset": first}
        swallowing = pa.Table.from_pylist([at], staged.fields.select(list(at)).schema)
        after = staged.fields.slice(staged.fields.num_rows - (end == len(data)))
        fields = pa.concat_tables([swallowing, after], promote_options="default")
        wrong = replace(staged, fields=fields, rejects=staged.rejects.slice(0, 0))
        assert several(rows, wrong, settings) == [at]


def test_only_bytes_that_were_read_are_looked_at(tmp_path, clock):
    """Records of several lines are records also beside chunks in conflict, late, lost and held, and under two
    formats.
    """
    world, lines = RawWorld(tmp_path, clock), '"k\nk"'
    kind = COMMA | {"max_pending_bytes": 120, "max_record_bytes": 1000}
    whole = "".join(record(lines, "a", at * 1_000_000) for at in range(1, 9))
    world.publish([chunk("a", 1, whole[:5]), chunk("a", 3, whole[31:50]), chunk("b", 2, whole[14:] + whole)])
    world.run(kind)  # chunk 2 of a is awaited; chunk 1 of b is given up
    world.publish([chunk("a", 1, '9,"\n"x'), chunk("b", 1, '9,"\n"x\n'), chunk("b", 3, whole[:12])])
    world.run(kind)
    world.publish([chunk("a", 2, whole[5:31]), chunk("a", 4, whole[50:], last=True), chunk("a", 5, '9,"\n"x')])
    world.run(kind | {"max_record_bytes": 900})
    world.publish([chunk("b", 4, whole[12:] + whole[:3])])
    world.run(kind | {"null_values": ["", "z"]})
    reasons = {row["reason"] for row in world.rows("rejected")}
    assert reasons >= {"format_conflict", "format_gap"}
    report = verify(world.depot, world.ledger)
    assert (report.differences, report.findings) == ((), ())
