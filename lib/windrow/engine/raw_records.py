"""Slices of a raw depot: the chunks, and the messages, rejects and partial rows that they become."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import in_columns
from windrow.engine.arrivals import ArrowSlice, require_whole
from windrow.engine.conversion import ToMessages
from windrow.formats.format import Format
from windrow.formats.raw.stage import Staged, stage
from windrow.model import tables
from windrow.model.chunks import RAW
from windrow.model.commits import VERSION
from windrow.model.summary import SUMMARY, combine, summarise


@dataclass(frozen=True, slots=True)
class RawSlice:
    """Whole versions of a raw depot: its chunks (`chunks.RAW` and `version`), and the mapping to messages."""

    rows: pa.Table
    expected: Mapping[int, int | None]
    format: Format
    to_messages: ToMessages

    def parse(self, partial: pa.Table) -> FormattedSlice:
        """Return the messages. Raises ShortRead."""
        counted = {row["values"]: row["counts"] for row in pc.value_counts(self.rows["version"]).to_pylist()}
        require_whole(counted, self.expected)
        staged = stage(self.rows, partial, self.format)
        messages = self.to_messages(staged.fields).append_column("version", staged.fields[VERSION])
        return FormattedSlice(messages, dict.fromkeys(self.expected), volume=staged.volume, staged=staged)


@dataclass(frozen=True, slots=True)
class FormattedSlice(ArrowSlice):
    """Whole versions of a raw depot as messages with `version`, and the other rows that the format gave (`staged`)."""

    staged: Staged = field(kw_only=True)

    def summarise(self, latest: int) -> pa.Table:
        """Return `summary.summarise` of its messages; rejected records count as read, and every version appears."""
        rejected = Counter(self.staged.rejects["version"].to_pylist())
        return with_rejected(summarise(self.messages, latest), rejected, self.expected)

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
        """Return rejects and partial rows."""
        return staged_rows(self.staged, microbatch, schema)


def with_rejected(summary: pa.Table, rejected: Mapping[int, int], versions: Iterable[int]) -> pa.Table:
    """Return a summary of messages in which rejected records count as read and every version appears."""
    read = dict.fromkeys(versions, 0) | dict(rejected)
    counted = pa.table({"version": list(read), "messages": list(read.values())})
    return combine(pa.concat_tables([summary, in_columns(counted, SUMMARY)]))


def staged_rows(staged: Staged, microbatch: int, schema: pa.Schema) -> list[pa.Table]:
    """Return rejects and partial rows as rows of the ledger, with `known`."""
    partial = in_columns(staged.partial, schema).append_column("known", staged.partial["known"])
    return [refused_rows(staged.rejects, microbatch, schema), partial]


def refused_rows(rejects: pa.Table, microbatch: int, schema: pa.Schema) -> pa.Table:
    """Return rejects as rows of the ledger, and `known`."""
    refused: dict[str, object] = {
        name: rejects[name] for name in ("raw_source", "chunk", "offset", "received_at", "reason", "detail", "content")
    }
    refused |= {"id": _ids(rejects), "state": "rejected", "missed_by_us": 0, "microbatch": microbatch}
    rows = tables.rows(schema, refused, rejects.num_rows)
    return rows.append_column("known", pa.chunked_array([np.zeros(rejects.num_rows, np.bool_)]))


def _ids(rejects: pa.Table) -> pa.Array:
    """Identify a record by its place, and a chunk by its depot version, its number and its ordinal."""
    column = {name: rejects[name].combine_chunks() for name in rejects.column_names}
    record = tables.identifier("record", column["raw_source"], column["chunk"], column["offset"])
    chunk = tables.identifier(
        "chunk", column["arrived_in"], column["raw_source"], column["chunk"], column["ordinal"], column["reason"]
    )
    return pc.if_else(pc.is_valid(column["offset"]), record, chunk)


def chunks_of(kept: pa.Table) -> pa.Table:
    """Return the chunks of new rows of a change feed, each with the depot version that added it."""
    columns = {field.name: kept[field.name].cast(field.type) for field in RAW}
    return pa.table(columns | {"version": kept[VERSION].cast(pa.int64())})
