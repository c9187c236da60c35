"""The rows of a state in several tables, as many ids at a time as fit, so memory does not grow with the state.

The versions of all rows go to a temporary file by their ids; each part then has all rows of some ids in each table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from windrow.columnar.arrow import conform
from windrow.ledger.versions import latest
from windrow.topology.state import State
from windrow.verify.parts import PartedRows, divide

COPIES = 4  # times the memory of a part of `verify`, because here rows are encoded and compared in memory
ID = pa.field("id", pa.string())


@dataclass(frozen=True, slots=True)
class StatePart:
    """The rows under some ids in each of the tables, with their `id`; the part is the `number`-th of `count`."""

    number: int
    count: int
    rows: Sequence[pa.Table]


def parts_of(
    state: State, tables: Sequence[Iterable[pa.Table]], max_memory_bytes: int, keep_doubles: bool = False
) -> Iterator[StatePart]:
    """Yield all rows of a state in some tables; `tables` has their versions in pieces (`reading.pieces_of`).

    Raises TableUnwritableError for a full disk, and IncompatibleTableError for an id that a table has twice unless both
    are kept.
    """
    columns = pa.schema([ID, *state.columns])
    with PartedRows(max_memory_bytes, ["id"]) as versions:
        for number, pieces in enumerate(tables):
            for piece in pieces:
                versions.add(str(number), piece)
        versions.close_blocks()
        parts = divide([versions.byte_count], max_memory_bytes // COPIES)
        for at, part in enumerate(parts, 1):
            read = (versions.read(str(number), part).read_all() for number in range(len(tables)))
            rows = [conform(latest(versions, keep_doubles=keep_doubles), columns).combine_chunks() for versions in read]
            yield StatePart(at, len(parts), rows)
