"""One decision: new messages and open batches in, changed batches and the fate of each message out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow import tables
from windrow.arrow import taken, texts, whole
from windrow.batching import kernel
from windrow.batching.columns import Columns, Ints, Numbers, encode
from windrow.batching.rules import Rules
from windrow.floors import Floors
from windrow.messages import microseconds, times
from windrow.rejection import Refusals

REASONS = np.array(["accepted", "too_old", "too_futuristic", "duplicate"])
OPENED_BY = texts(["message", "conflict", "size"])
STATES = texts(["closed", "open"])
CLOSED_BY = texts(["timeout", "flush"])

Bools = npt.NDArray[np.bool_]
Fates = npt.NDArray[np.int8]
Now = Callable[[pa.Array], Ints]


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of the messages.

    `batches` has the ledger's batch columns; `changed` and `known` (the row was there before) are per batch, `fate`
    (an index into REASONS) and `off_by` (microseconds) per message in the order given. `cuts` says how high a flush
    raises the floor of its sources.
    """

    batches: pa.Table
    changed: Bools
    known: Bools
    fate: Fates
    off_by: Ints
    cuts: Floors


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a decision as the kernel left them; the first ones are the open batches that were given."""

    stream: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints
    opened_by: Ints
    closed_at: Ints
    changed: Bools
    at: Ints  # per position: the window that begins there
    flushed: Bools

    @property
    def open(self) -> Bools:
        """Which windows may still grow."""
        return self.closed_at == kernel.NEVER


def decide(
    messages: pa.Table,
    processing_time: Ints,
    version: Ints,
    batches: pa.Table,
    rules: Rules,
    now: Now,
    flush: bool,
    microbatch: int | None = None,
) -> Decision:
    """Apply the rules of batching to `messages` (conforming and valid) and the open `batches`.

    `processing_time` and `version` are per message; `now` gives for sources the clock that sweeps their batches at
    the end (microseconds). With `flush` what is open after that sweep is cut and closed at `now`.
    """
    columns = encode(messages, processing_time, version, batches)
    sweep = now(columns.stream_source)
    windows, fate, off_by = run(columns, rules, sweep)
    cuts = _flush(columns, windows, rules, sweep) if flush else Floors.empty()
    rows, of_row = _rows(columns, windows, rules, fate, microbatch)
    fate_of, off_by_of = _by_row(columns, fate, off_by)
    known = (of_row < columns.batches.num_rows) & (rows["part"].to_numpy() == 0)
    return Decision(
        batches=rows,
        changed=windows.changed[of_row],
        known=known,
        fate=fate_of,
        off_by=off_by_of,
        cuts=cuts,
    )


def refused(decision: Decision, row: Ints, processing_time: Ints) -> Refusals:
    """Return the messages that the rules refused; `row` says where each message stands in the table it came from."""
    rows = np.flatnonzero(decision.fate != 0)
    return Refusals(
        row=row[rows],
        reason=REASONS[decision.fate[rows]],
        detail=pa.nulls(rows.size),
        off_by=decision.off_by[rows],
        processing_time=processing_time[rows],
        processed=np.ones(rows.size, np.bool_),
    )


def run(columns: Columns, rules: Rules, sweep: Ints) -> tuple[Windows, Fates, Ints]:
    """Call the kernel; fate and how far off are per slot, messages of open batches always accepted.

    `columns` do not depend on the rules, so one encoding serves any number of them.
    """
    given = columns.batches
    opened = pc.index_in(given["opened_by"].combine_chunks(), OPENED_BY)
    windows = _room(given.num_rows + columns.time_at.size, columns.time_at.size)
    fate, off_by = np.zeros(columns.row_of.size, np.int8), np.zeros(columns.row_of.size, np.int64)
    orders = kernel.Orders(columns.time_at, columns.place_begin, columns.position_at)
    count = kernel.decide(
        kernel.Streams(columns.begin, columns.new_begin, columns.position_begin, columns.open_begin, sweep),
        kernel.Slots(
            columns.event_time,
            columns.processing_time,
            columns.octets,
            columns.position,
            columns.list_of,
            columns.place,
        ),
        orders,
        kernel.Given(
            columns.open_sizes,
            microseconds(given["window_start"]),
            microseconds(given["window_end"]),
            opened.cast(pa.int64()).to_numpy(),
        ),
        kernel.Limits(
            rules.window, rules.max_delay, rules.max_leap, rules.max_batch_bytes, rules.window_start == "arrival"
        ),
        kernel.Sets.empty(orders),
        windows,
        fate,
        off_by,
    )
    found = Windows(
        stream=np.searchsorted(columns.position_begin, windows.first[:count], side="right") - 1,
        start=windows.start[:count],
        end=windows.end[:count],
        first=windows.first[:count],
        last=windows.last[:count],
        opened_by=windows.opened_by[:count],
        closed_at=windows.closed_at[:count],
        changed=windows.changed[:count],
        at=windows.at,
        flushed=np.zeros(count, np.bool_),
    )
    return found, fate, off_by


def _room(windows: int, positions: int) -> kernel.Windows:
    """Return room for as many windows as there can be: one for each open batch, and one for each position."""
    start, end, first, last, weight, opened_by, closed_at = np.empty((7, windows), np.int64)
    weighed, changed = np.empty((2, windows), np.bool_)
    at = np.full(positions, kernel.NONE)
    return kernel.Windows(start, end, first, last, weight, weighed, opened_by, closed_at, changed, at)


def _flush(columns: Columns, windows: Windows, rules: Rules, now: Ints) -> Floors:
    """Cut and close the open windows; return the floor that each flushed source needs."""
    rows = np.flatnonzero(windows.open)
    source_of = columns.stream_source.dictionary_encode()
    source = source_of.indices.to_numpy()[windows.stream[rows]]
    last = columns.time_at[windows.last[rows]]
    cut = np.full(len(source_of.dictionary), kernel.NEVER)
    np.maximum.at(cut, source, last + 1)
    windows.end[rows] = np.minimum(windows.end[rows], cut[source])
    windows.closed_at[rows] = now[windows.stream[rows]]
    windows.changed[rows] = True
    windows.flushed[rows] = True
    sources = np.unique(source)
    return Floors(source_of.dictionary.take(pa.array(sources)), cut[sources] + rules.max_delay)


def _by_row(columns: Columns, fate: Fates, off_by: Ints) -> tuple[Fates, Ints]:
    """Return what the kernel said of each slot for each new message, in the order in which they were given."""
    refused = np.flatnonzero(fate != 0)
    rows = columns.row_of[refused] - columns.open_rows
    fate_of, off_by_of = np.zeros_like(fate[columns.open_rows :]), np.zeros_like(off_by[columns.open_rows :])
    fate_of[rows], off_by_of[rows] = fate[refused], off_by[refused]
    return fate_of, off_by_of


def emitted(
    columns: Columns, windows: Windows, rules: Rules, fate: Fates
) -> tuple[Numbers, Ints, Ints, Ints, Ints, Bools]:
    """List the accepted rows batch by batch.

    Returns the rows, where each batch begins among them (and at the end where the last one ends), and for each batch
    its window, part, octets and whether it is oversize.
    """
    room = columns.row_of.size
    members = np.empty(room, np.int32)
    begin = np.empty(room + 1, np.int64)
    window, part, weight = np.empty((3, room), np.int64)
    oversize = np.empty(room, np.bool_)
    count = kernel.emit(
        columns.ranked, columns.row_of, columns.position, columns.octets, fate,
        windows.at, windows.first, windows.closed_at, rules.max_batch_bytes,
        members, begin, window, part, weight, oversize,
    )  # fmt: skip
    return members[: begin[count]], begin[: count + 1], window[:count], part[:count], weight[:count], oversize[:count]


def _rows(
    columns: Columns, windows: Windows, rules: Rules, fate: Fates, microbatch: int | None
) -> tuple[pa.Table, Ints]:
    """Return the batches as ledger rows, by stream and window, and the window of each row."""
    members, begin, window, part, weight, oversize = emitted(columns, windows, rules, fate)
    content = taken(columns.content, members)
    listed = pa.ListArray.from_arrays(pa.array(begin), _struct(content))
    event_time = microseconds(content["event_time"])
    stream = windows.stream[window]
    source = columns.stream_source.take(pa.array(stream))
    key = columns.stream_key.take(pa.array(stream))
    still_open = windows.open[window]
    start = windows.start[window]
    end = windows.end[window]
    values: dict[str, object] = {
        "id": tables.identifier(tables.BATCH_ID, source, key, pa.array(start), pa.array(part)),
        "source": source,
        "key": key,
        "part": part,
        "window_start": times(start),
        "window_end": times(end),
        "timeout": times(end + rules.max_delay),
        "state": _named(STATES, still_open),
        "opened_by": _named(OPENED_BY, windows.opened_by[window]),
        "closed_at": times(windows.closed_at[window], ~still_open),
        "close_reason": _named(CLOSED_BY, windows.flushed[window], ~still_open),
        "message_count": np.diff(begin),
        "bytes": weight,
        "oversize": oversize,
        "first_event_time": times(event_time[begin[:-1]]),
        "last_event_time": times(event_time[begin[1:] - 1]),
        "messages": listed,
        "opened_in": _opened_in(columns, window, microbatch),
        "closed_in": pa.array(np.full(window.size, microbatch or 0), mask=still_open | (microbatch is None)),
    }
    schema = pa.schema(tables.batch_fields(columns.content.schema.field("payload").type))
    return tables.rows(schema, values, window.size), window


def _opened_in(columns: Columns, window: Ints, microbatch: int | None) -> pa.ChunkedArray:
    """Return the microbatch in which each window was opened: the recorded one for a known window, else this one."""
    known = window < columns.batches.num_rows
    recorded = columns.batches["opened_in"].take(pa.array(window, mask=~known))
    return pc.if_else(pa.array(known), recorded, microbatch)


def _named(names: pa.Array, which: npt.NDArray[np.generic], valid: Bools | None = None) -> pa.Array:
    """Return for each number its name; NULL where not `valid`."""
    return names.take(pa.array(which.astype(np.int8), mask=None if valid is None else ~valid))


def _struct(content: pa.Table) -> pa.StructArray:
    return pa.StructArray.from_arrays(
        [whole(column) for column in content.columns],
        fields=list(content.schema),
    )
