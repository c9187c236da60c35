"""A record of CSV that swallowed others is found by the grammar alone."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from windrow.formats.format import format_of
from windrow.formats.part import FormatPart
from windrow.formats.raw.source import SCHEMA
from windrow.formats.raw.stage import stage
from windrow.testing.formats import chunks
from windrow.verify.raw.grammar import several_records

FIELDS = {"ts": "int64", "device": "string", "remark": "string"}
GOOD = b'ts,device,remark\n1,a,"two\nlines" \r\n\n\n2,b,"say ""hi""\n"\n3,c,'
STRAY = b'ts,device,remark\n1,a,"nobody closes this\n2,b,fine\n3,c,fine\n4,d,"closed"\n5,e,fine\n'


@pytest.mark.parametrize("cuts", [[], [5], [30, 40, 41]], ids=["whole", "two", "four"])
@pytest.mark.parametrize("last", [True, False], ids=["ended", "unfinished"])
def test_records_of_several_lines_are_records(cuts, last):
    """
    Quoted line ends, doubled quotes, blanks, empty lines and an unfinished end are no findings.
    """
    parts = [GOOD[a:b] for a, b in zip([0, *cuts], [*cuts, len(GOOD)], strict=True)]
    format_, rows = format_of(FormatPart(type="csv", fields=FIELDS)), chunks(parts, last=last)
    staged = stage(rows, SCHEMA.empty_table(), format_)
    assert staged.fields.num_rows == 2 + last
    assert several_records(rows, staged, format_).num_rows == 0


@pytest.mark.parametrize("escape", ["", "\\"])
def test_a_swallowing_record_is_found(escape):
    """
    A record that was taken up to a quote of a later record is named with its place.
    """
    format_, rows = format_of(FormatPart(type="csv", fields=FIELDS, escape=escape)), chunks([STRAY[:30], STRAY[30:]])
    staged = stage(rows, SCHEMA.empty_table(), format_)
    first, after = staged.rejects["offset"][0].as_py(), pc.equal(staged.fields["ts"], 5)
    at = pa.table({"raw_source": ["s"], "chunk": [1], "offset": [first]})
    swallowing = pa.concat_tables([at, staged.fields.filter(after)], promote_options="default")
    wrong = replace(staged, fields=swallowing, rejects=staged.rejects.slice(0, 0))
    assert several_records(rows, staged, format_).num_rows == 0
    assert several_records(rows, wrong, format_).to_pylist() == at.to_pylist()
