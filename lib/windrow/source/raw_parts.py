"""Parse the chunks of a depot version that is larger than memory: some raw sources at a time.

The records of a raw source depend on nothing but its own bytes. So each part is parsed for itself, and the messages go
to the disk again, where each part has all messages of some keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from operator import add
from typing import IO

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import where
from windrow.formats.format import Format
from windrow.formats.raw.arrived import faults_of
from windrow.formats.raw.stage import Staged, framed, staged_in_pieces
from windrow.rows.rows import Function
from windrow.rows.spilled import Room, SpilledRows
from windrow.source.raw_records import ParsedChunks, messages_of, parsed_chunks

PIECES = 8  # so many records are parsed at a time, as a share of the messages that fit into memory


def parse_in_parts(
    chunks: SpilledRows,
    format_: Format,
    to_messages: Function,
    room: Room,
    file: Callable[[], IO[bytes]],
    partial: pa.Table,
) -> ParsedChunks:
    """Parse chunks part by part, given the partial rows of the ledger; there is `room` for messages in memory."""
    left: list[Staged] = []

    def parsed() -> Iterator[pa.Table]:
        for part in _valid_first(chunks):
            for staged in staged_in_pieces(framed(part, partial, format_), partial, format_, room.most // PIECES):
                left.append(replace(staged, fields=staged.fields.slice(0, 0)))
                yield messages_of(staged, to_messages)

    spilled = SpilledRows.of(parsed(), room, file())
    return parsed_chunks(spilled, reduce(add, left))


def _valid_first(chunks: SpilledRows) -> Iterator[pa.Table]:
    """Yield the valid chunks part by part, and then those that are not, which are numbered within their version."""
    invalid: list[pa.Table] = []
    for rows, _ in chunks.tables():
        valid = pc.is_null(faults_of(rows))
        invalid.append(where(rows, pc.invert(valid)))
        yield where(rows, valid)
    # guard: invalid-chunks-numbered-together
    yield pa.concat_tables(invalid)
