"""The second pass over chunks, as Spark's executors run it: a table of chunks in, one table of all results out.

The first pass is `two_passes.summarise`. Each row of the result is a record, a reject or a rest: an executor can return
only one kind of row, and a chunk is decoded and framed only once. Columns are named by field number, because fields may
have any name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa

from windrow.formats.format import Format
from windrow.formats.raw.parsing import parse
from windrow.formats.raw.spans import Spans
from windrow.formats.raw.stage import REJECTS, fields_of, rejects_of
from windrow.formats.raw.two_passes import Body, CutChunk, cut_chunks
from windrow.model.commits import VERSION

Bodies = Mapping[str, Mapping[tuple[int, int], Body]]
RESTS = pa.schema(
    [
        ("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("content", pa.binary()),
        ("oversize", pa.bool_()),
    ]
)  # fmt: skip


def parsed_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of the result of the second pass, for records with these columns."""
    fields = [(number_name(number), type_) for number, type_ in enumerate(columns.types)]
    return pa.schema(
        [*fields, ("version", pa.int64()), ("reject", pa.struct(list(REJECTS))), ("rest", pa.struct(list(RESTS)))]
    )


def number_name(number: int) -> str:
    """Return the column name of a field."""
    return f"field_{number}"


def parse_bodies(rows: pa.Table, bodies: Bodies, format_: Format, columns: pa.Schema) -> pa.Table:
    """Parse the bodies of chunks; return their records, rejects and rests (`parsed_schema` of the mapped columns)."""
    cut = list(cut_chunks(rows, bodies, format_))
    values = parse(Spans.of([one.segment for one in cut if one.segment is not None]), format_)
    fields, rejects, rests = fields_of(values), rejects_of(values), _rests(cut)
    named = fields.select(columns.names).cast(columns, safe=False)
    records = named.rename_columns([number_name(number) for number in range(len(columns))])
    schema = parsed_schema(columns)
    kinds = [
        {name: records[name] for name in records.column_names} | {"version": fields[VERSION]},
        {"version": rejects["version"], "reject": rejects.to_struct_array()},
        {"rest": rests.to_struct_array()},
    ]
    return pa.concat_tables(map(pa.table, kinds), promote_options="default").select(schema.names).cast(schema)


def _rests(cut: list[CutChunk]) -> pa.Table:
    rows = [
        {
            "raw_source": one.source,
            "chunk": one.chunk.number,
            "offset": offset,
            "content": content,
            "oversize": one.oversize,
        }
        for one in cut
        for offset, content in one.rests
    ]
    return pa.Table.from_pylist(rows, RESTS)


@dataclass(frozen=True, slots=True)
class Rests:
    """The bytes of chunks outside their bodies, by source and number, and the sources with an oversize record."""

    contents: Mapping[str, Mapping[int, list[tuple[int, bytes]]]]
    oversize: frozenset[str]

    @classmethod
    def of(cls, rows: pa.Table) -> Rests:
        """Gather rows of `RESTS`, in any order."""
        contents: dict[str, dict[int, list[tuple[int, bytes]]]] = defaultdict(lambda: defaultdict(list))
        oversize = set()
        for row in rows.to_pylist():
            contents[row["raw_source"]][row["chunk"]].append((row["offset"], row["content"]))
            if row["oversize"]:
                # guard: oversize-body
                oversize.add(row["raw_source"])
        return cls(contents, frozenset(oversize))
