"""What the chunks of a raw depot become: messages, and the rejects and partial rows of their format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial as bound

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import conform
from windrow.formats.format import Format
from windrow.formats.raw.stage import ByteCounts, StageResult, stage
from windrow.model import tables
from windrow.model.commits import VERSION
from windrow.rows.arrow import ArrowRows
from windrow.rows.rows import Function, Rows

PartialOf = Callable[[pa.Array], pa.Table]  # reads the partial rows of some raw sources


@dataclass(frozen=True, slots=True)
class ParsedChunks:
    """The messages of chunks, with `version`, and what else the format produced.

    `rejects` (`stage.REJECTS`) are bad records and chunks, wherever they are, and `rejected` counts them by version.
    `partial` are the changed partial rows of the ledger, with `known`.
    """

    messages: Rows
    volume: ByteCounts
    rejects: Sequence[Rows]
    rejected: Mapping[int, int]
    partial: pa.Table

    def extra_rows(self, microbatch: int, schema: pa.Schema) -> list[Rows]:
        """Return rejects and partial rows as rows of the ledger, with `known`."""
        refused = bound(refused_rows, microbatch=microbatch, schema=schema)
        known = schema.append(pa.field("known", pa.bool_()))
        partial = conform(self.partial, schema).append_column("known", self.partial["known"])
        parts = [*(reject.map(refused, known) for reject in self.rejects), ArrowRows(partial)]
        return [part for part in parts if part.processed_on == "executors" or part.count]


def parse_here(rows: pa.Table, partial: PartialOf, format_: Format, to_messages: Function) -> ParsedChunks:
    """Parse chunks in this process, given the partial rows of the ledger."""
    staged = stage(rows, select_partial(rows, partial), format_)
    rejected = Counter(staged.rejects["version"].to_pylist())
    messages = ArrowRows(messages_of(staged, to_messages))
    return ParsedChunks(messages, staged.volume, [ArrowRows(staged.rejects)], rejected, staged.partial)


def select_partial(rows: pa.Table, partial: PartialOf) -> pa.Table:
    """Return the partial rows of the raw sources of chunks."""
    return partial(pc.drop_null(rows["raw_source"].combine_chunks()))


def messages_of(staged: StageResult, to_messages: Function) -> pa.Table:
    """Return the messages of parsed chunks, with `version`."""
    return to_messages(staged.fields).append_column("version", staged.fields[VERSION])


def refused_rows(rejects: pa.Table, microbatch: int, schema: pa.Schema) -> pa.Table:
    """Return rejects as rows of the ledger, with `known`."""
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
