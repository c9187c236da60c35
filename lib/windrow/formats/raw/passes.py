"""The two passes as executors run them: tables of chunks in, one table of all that comes of them out.

The first is `two_passes.summarise`. Each row of what the second gives is a record, a reject or a rest: an executor
hands out one kind of rows, and a chunk is decoded and framed once. Fields go by their numbers, since they may have any
name.
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
from windrow.formats.raw.two_passes import Body, Part, parted
from windrow.model.commits import VERSION

Bodies = Mapping[str, Mapping[tuple[int, int], Body]]
RESTS = pa.schema(
    [
        ("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("content", pa.binary()),
        ("oversize", pa.bool_()),
    ]
)  # fmt: skip


def parsed_schema(columns: pa.Schema) -> pa.Schema:
    """Return the columns of what the second pass gives, where records have these."""
    fields = [(number_name(number), type_) for number, type_ in enumerate(columns.types)]
    return pa.schema(
        [*fields, ("version", pa.int64()), ("reject", pa.struct(list(REJECTS))), ("rest", pa.struct(list(RESTS)))]
    )


def number_name(number: int) -> str:
    """Return the column of a field."""
    return f"field_{number}"


def parse_bodies(rows: pa.Table, bodies: Bodies, format_: Format, columns: pa.Schema) -> pa.Table:
    """Return what the bodies of chunks hold, and their rests: `parsed_schema` of the columns that are mapped."""
    parts = list(parted(rows, bodies, format_))
    values = parse(Spans.of([part.segment for part in parts if part.segment is not None]), format_)
    fields, rejects, rests = fields_of(values), rejects_of(values), _rests(parts)
    named = fields.select(columns.names).cast(columns, safe=False)
    records = named.rename_columns([number_name(number) for number in range(len(columns))])
    schema = parsed_schema(columns)
    kinds = [
        {name: records[name] for name in records.column_names} | {"version": fields[VERSION]},
        {"version": rejects["version"], "reject": rejects.to_struct_array()},
        {"rest": rests.to_struct_array()},
    ]
    return pa.concat_tables(map(pa.table, kinds), promote_options="default").select(schema.names).cast(schema)


def _rests(parts: list[Part]) -> pa.Table:
    rows = [
        {
            "raw_source": part.source,
            "chunk": part.chunk.number,
            "offset": offset,
            "content": content,
            "oversize": part.oversize,
        }
        for part in parts
        for offset, content in part.rests
    ]
    return pa.Table.from_pylist(rows, RESTS)


@dataclass(frozen=True, slots=True)
class Rests:
    """What is left of chunks beside their bodies, by source and number, and the sources with a record too long."""

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
