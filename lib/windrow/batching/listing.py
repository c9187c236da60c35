"""List the batches of a decision as rows of the ledger, by stream and window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching import kernel
from windrow.batching.columns import Ints, Numbers
from windrow.batching.decision import OPENED_BY, Bools, Decision, Share
from windrow.columnar.arrow import at_once, pieces, plain_type, take, texts, whole
from windrow.model import tables
from windrow.model.messages import times

STATES = texts(["closed", "open"])
CLOSED_BY = texts(["timeout", "flush"])


class Listing(NamedTuple):
    """Batches with the ledger's columns, and for each whether it changed and whether it existed before."""

    batches: pa.Table
    changed: Bools
    known: Bools


def listed(decision: Decision, microbatch: int | None = None) -> Listing:
    """List all batches, also unchanged ones; `microbatch` is the number for newly opened and closed batches."""
    batches = decision.batches
    known = (batches.known_as != kernel.NONE) & (batches.part == 0)
    return Listing(_batches(decision, _messages(decision), microbatch), batches.changed, known)


def _messages(decision: Decision) -> pa.ChunkedArray:
    """Return the messages of each batch: an array for each share, or several if one cannot hold so many bytes."""
    content, parts = decision.rows.content, list(_parts(decision.shares))
    chosen = [pa.array(members) for members, _ in parts]
    calls = [partial(take, column, members) for members in chosen for column in content.columns]
    columns, names = iter(at_once(calls, decision.rows.count)), content.column_names
    return pa.chunked_array(
        [
            pa.ListArray.from_arrays(
                pa.array(begin), pa.StructArray.from_arrays([whole(next(columns)) for _ in names], names)
            )
            for _, begin in parts
        ]
    )


def _parts(shares: Sequence[Share]) -> Iterator[tuple[Numbers, Ints]]:
    """Yield rows and where each batch begins in them, as many batches at a time as fit one array."""
    for share in shares:
        begin = np.append(0, np.cumsum(share.batches.messages))
        for first, last in pieces(share.batches.byte_count):
            yield share.members[begin[first] : begin[last]], begin[first : last + 1] - begin[first]


def _batches(decision: Decision, messages: pa.ChunkedArray, microbatch: int | None) -> pa.Table:
    """Return the batches as ledger rows."""
    rows, batches = decision.rows, decision.batches
    source, key = (of_stream.take(pa.array(batches.stream)) for of_stream in (rows.source, rows.key))
    still_open, known = batches.closed_at == kernel.NEVER, batches.known_as != kernel.NONE
    recorded = rows.batches["opened_in"].take(pa.array(batches.known_as, mask=~known))
    values: dict[str, object] = {
        "id": tables.identifier(tables.BATCH_ID, source, key, pa.array(batches.start), pa.array(batches.part)),
        "source": source,
        "key": key,
        "part": batches.part,
        "window_start": times(batches.start),
        "window_end": times(batches.end),
        "timeout": times(batches.end + decision.rules.max_delay),
        "state": _named(STATES, still_open),
        "opened_by": _named(OPENED_BY, batches.opened_by),
        "closed_at": times(batches.closed_at, ~still_open),
        "close_reason": _named(CLOSED_BY, batches.flushed, ~still_open),
        "message_count": batches.messages,
        "bytes": batches.byte_count,
        "oversize": batches.oversize,
        "first_event_time": times(batches.first_event_time),
        "last_event_time": times(batches.last_event_time),
        "messages": messages,
        "opened_in": pc.if_else(pa.array(known), recorded, microbatch),
        "closed_in": pa.array(np.full(still_open.size, microbatch or 0), mask=still_open | (microbatch is None)),
    }
    schema = pa.schema(tables.batch_fields(plain_type(rows.content.schema.field("payload").type)))
    return tables.rows(schema, values, still_open.size)


def _named(names: pa.Array, which: npt.NDArray[np.generic], valid: Bools | None = None) -> pa.Array:
    """Return for each number its name; NULL where not `valid`."""
    return names.take(pa.array(which.astype(np.int8), mask=None if valid is None else ~valid))
