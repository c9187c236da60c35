"""Parse the chunks of a depot version that is larger than memory: some raw sources at a time.

The records of a raw source depend only on its own bytes. So each part is parsed separately, and the messages go back to
disk, where each part has all messages of some keys. The rejects go there too, because all records may be bad.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import filter_rows
from windrow.formats.format import Format
from windrow.formats.raw.arrived import faults_of
from windrow.formats.raw.stage import StageResult, frame_chunks, stage_in_pieces
from windrow.rows.rows import Function
from windrow.rows.spilled import Room, SpilledRows, SpilledTable
from windrow.source.raw_records import ParsedChunks, PartialOf, messages_of, select_partial

PIECES = 8  # a piece of records parsed at a time is 1/PIECES of the messages that fit into memory


def parse_in_parts(
    chunks: SpilledRows,
    format_: Format,
    to_messages: Function,
    room: Room,
    file: Callable[[], IO[bytes]],
    partial: PartialOf,
) -> ParsedChunks:
    """Parse chunks part by part, given the partial rows of the ledger; there is `room` for messages in memory."""
    spill, left, rejects = file(), list[StageResult](), list[SpilledTable]()

    def parsed() -> Iterator[pa.Table]:
        for part in _valid_first(chunks):
            kept = select_partial(part, partial)
            for staged in stage_in_pieces(frame_chunks(part, kept, format_), kept, format_, room.most // PIECES):
                rejects.append(SpilledTable.of(staged.rejects, spill))
                left.append(_without_rows(staged))
                yield messages_of(staged, to_messages)

    messages, others = SpilledRows.of(parsed(), room, spill), reduce(add, left)
    rejected = reduce(add, (Counter(reject.by_version) for reject in rejects))
    return ParsedChunks(messages, others.volume, rejects, rejected, others.partial)


def _without_rows(staged: StageResult) -> StageResult:
    """Return the result of a stage without records and rejects; a slice of them would keep their memory."""
    return replace(staged, fields=staged.fields.schema.empty_table(), rejects=staged.rejects.schema.empty_table())


def _valid_first(chunks: SpilledRows) -> Iterator[pa.Table]:
    """Yield the valid chunks part by part, and then the invalid ones, which are numbered within their version."""
    invalid: list[pa.Table] = []
    for rows, _ in chunks.tables():
        valid = pc.is_null(faults_of(rows))
        invalid.append(filter_rows(rows, pc.invert(valid)))
        yield filter_rows(rows, valid)
    # guard: invalid-chunks-numbered-together
    yield pa.concat_tables(invalid)
