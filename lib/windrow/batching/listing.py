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
from windrow.batching.columns import Ints, Numbers, Rows
from windrow.batching.decision import Decision
from windrow.batching.rules import Rules
from windrow.batching.shard import OPENED_BY, Bools, Emitted, Share, joined
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


class Described(NamedTuple):
    """The columns of each batch without its messages."""

    messages: Ints  # how many
    first_event_time: Ints
    last_event_time: Ints
    stream: Ints
    start: Ints
    end: Ints
    opened_by: Ints
    closed_at: Ints
    changed: Bools
    flushed: Bools
    part: Ints
    byte_count: Ints
    oversize: Bools
    known_as: Ints  # which of the open batches it was, or NONE


def listed(decision: Decision, microbatch: int | None = None) -> Listing:
    """List all batches, also unchanged ones; `microbatch` is the number for newly opened and closed batches."""
    rows, rules = decision.rows, decision.rules
    emitted = at_once([partial(share.emitted, rules) for share in decision.shares], rows.count)
    described = joined(_described(rows, *each) for each in zip(decision.shares, emitted, strict=True))
    return Listing(
        batches=_batches(rows, described, _messages(rows, emitted), rules, microbatch),
        changed=described.changed,
        known=(described.known_as != kernel.NONE) & (described.part == 0),
    )


def _described(rows: Rows, share: Share, emitted: Emitted) -> Described:
    """Return the columns of the batches of a share."""
    windows, window = share.windows, emitted.window
    known = share.known.start + window
    event_time = rows.values.event_time
    return Described(
        messages=np.diff(emitted.begin),
        first_event_time=event_time[emitted.members[emitted.begin[:-1]]],
        last_event_time=event_time[emitted.members[emitted.begin[1:] - 1]],
        stream=windows.stream[window],
        start=windows.start[window],
        end=windows.end[window],
        opened_by=windows.opened_by[window],
        closed_at=windows.closed_at[window],
        changed=windows.changed[window],
        flushed=windows.flushed[window],
        part=emitted.part,
        byte_count=emitted.byte_count,
        oversize=emitted.oversize,
        known_as=np.where(known < share.known.stop, known, kernel.NONE),
    )


def _messages(rows: Rows, emitted: Sequence[Emitted]) -> pa.ChunkedArray:
    """Return the messages of each batch, in an array for each share, or several where those of one are too long."""
    parts = [part for each in emitted for part in _parts(each)]
    chosen = [pa.array(members) for members, _ in parts]
    calls = [partial(take, column, members) for members in chosen for column in rows.content.columns]
    columns = iter(at_once(calls, rows.count))
    names = rows.content.column_names
    return pa.chunked_array(
        [
            pa.ListArray.from_arrays(
                pa.array(begin), pa.StructArray.from_arrays([whole(next(columns)) for _ in names], names)
            )
            for _, begin in parts
        ]
    )


def _parts(emitted: Emitted) -> Iterator[tuple[Numbers, Ints]]:
    """Yield rows and where each batch begins in them, as many batches at a time as fit one array."""
    for first, last in pieces(emitted.byte_count):
        begin = emitted.begin[first : last + 1]
        yield emitted.members[begin[0] : begin[-1]], begin - begin[0]


def _batches(
    rows: Rows, described: Described, messages: pa.ChunkedArray, rules: Rules, microbatch: int | None
) -> pa.Table:
    """Return the batches as ledger rows."""
    source, key = (of_stream.take(pa.array(described.stream)) for of_stream in (rows.source, rows.key))
    still_open = described.closed_at == kernel.NEVER
    values: dict[str, object] = {
        "id": tables.identifier(tables.BATCH_ID, source, key, pa.array(described.start), pa.array(described.part)),
        "source": source,
        "key": key,
        "part": described.part,
        "window_start": times(described.start),
        "window_end": times(described.end),
        "timeout": times(described.end + rules.max_delay),
        "state": _named(STATES, still_open),
        "opened_by": _named(OPENED_BY, described.opened_by),
        "closed_at": times(described.closed_at, ~still_open),
        "close_reason": _named(CLOSED_BY, described.flushed, ~still_open),
        "message_count": described.messages,
        "bytes": described.byte_count,
        "oversize": described.oversize,
        "first_event_time": times(described.first_event_time),
        "last_event_time": times(described.last_event_time),
        "messages": messages,
        "opened_in": _opened_in(rows, described.known_as, microbatch),
        "closed_in": pa.array(np.full(still_open.size, microbatch or 0), mask=still_open | (microbatch is None)),
    }
    schema = pa.schema(tables.batch_fields(plain_type(rows.content.schema.field("payload").type)))
    return tables.rows(schema, values, still_open.size)


def _opened_in(rows: Rows, known_as: Ints, microbatch: int | None) -> pa.ChunkedArray:
    """Return the microbatch in which each batch was opened: the recorded one for a known batch, else this one."""
    known = known_as != kernel.NONE
    recorded = rows.batches["opened_in"].take(pa.array(known_as, mask=~known))
    return pc.if_else(pa.array(known), recorded, microbatch)


def _named(names: pa.Array, which: npt.NDArray[np.generic], valid: Bools | None = None) -> pa.Array:
    """Return for each number its name; NULL where not `valid`."""
    return names.take(pa.array(which.astype(np.int8), mask=None if valid is None else ~valid))
