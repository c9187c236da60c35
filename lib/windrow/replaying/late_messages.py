"""Find the messages that the rules of a branch let into the closed batches of a ledger.

Ledger and branch read the same messages. So a message that only the ledger rejects is in a batch of the branch: it is
*let in*. The place in the ledger to which it belongs is a *range*: the window that covers its time, or the gap between
two windows. Within a range the branch's batches count, cut to the range: so other batches do not change, even where the
windows of the branch have other borders.

A message counts if nothing of its range is open in the branch, and no window of the stream before it is open in the
ledger. The others are left for a later amendment.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import byte_count, combine_chunks, from_numpy, times_to_numbers, to_plain_types
from windrow.errors import SettingsError
from windrow.model import canonical, tables
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS, microseconds, times
from windrow.model.printable import pluralize
from windrow.reading.digests import LedgerSelection, Streams
from windrow.reading.tables import Ledger
from windrow.replaying.comparison import codes, partners

AMENDABLE = ("closed", "amended")
REASONS = ("too_old", "too_far_ahead")  # of rejections that other rules may take back
BATCH = ", ".join([*canonical.BATCH, "messages"])
REJECTED = ", ".join(["id", "reason", *COLUMNS])
STREAM = ("source", "key")
FIRST, LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


# For each stream, encoded, disjoint ranges from a begin to before an end, in order.
Ranges = Mapping[bytes, Sequence[tuple[int, int]]]


class LateMessages(NamedTuple):
    """What a branch lets into a ledger: the rejections it takes back, and the ranges to which their messages belong."""

    rejected: pa.Table
    ranges: Ranges


def late_messages(book: Ledger, branch: Ledger, streams: Streams) -> LateMessages:
    """Return what a branch lets in. Raises SettingsError if it takes messages out."""
    where, gone = LedgerSelection(streams=streams).of_streams, superseded_ids(book)
    rejected, by_branch = without(_rejections(book, where), gone), _rejections(branch, where)
    cuts = _cuts(book, branch, where)
    unpaired = pair_messages(rejected, by_branch) < 0
    taken_out = by_branch.filter(pa.array(unpaired[rejected.num_rows :]))
    taken_out = taken_out.filter(pa.array(_before(taken_out, cuts)))
    # guard: amendment-takes-nothing-out
    if taken_out.num_rows:
        raise SettingsError(
            f"these rules would take {pluralize(taken_out.num_rows, 'message')} out of closed batches",
            "An amendment lets messages in. Replay with these rules into a new ledger (--into) instead.",
        )
    late = rejected.filter(pa.array(unpaired[: rejected.num_rows]))
    late = late.filter(pc.is_in(late["reason"], pa.array(REASONS)))
    late = late.filter(pa.array(_before(late, cuts))).combine_chunks()
    return _locate(book, late, cuts, gone) if late.num_rows else LateMessages(late, {})


def superseded_ids(ledger: Ledger) -> pa.Array:
    """Return the ids that a ledger's amendments supersede."""
    return ledger.rows("superseded", "superseded_id")["superseded_id"].combine_chunks()


def without(rows: pa.Table, ids: pa.Array) -> pa.Table:
    """Return the rows that have none of these ids."""
    return rows.filter(pc.invert(pc.is_in(rows["id"], ids)))


def pair_messages(left: pa.Table, right: pa.Table) -> Ints:
    """Pair equal messages of two tables, each once: the partner's place in the concatenated tables, or -1."""
    both = pa.concat_tables([left.select(list(COLUMNS)), right.select(list(COLUMNS))]).combine_chunks()
    return partners(codes(canonical.fields([combine_chunks(column) for column in both.columns])), left.num_rows)


def batches_in(ledger: Ledger, ranges: Ranges, max_memory_bytes: int) -> pa.Table:
    """Return the current batches of a ledger that overlap with ranges, whole, with their messages.

    Raises SettingsError if they do not fit into memory.
    """
    gone, chosen, size = superseded_ids(ledger), list[pa.Table](), 0
    for piece in ledger.pieces(AMENDABLE, BATCH):
        rows = without(to_plain_types(piece), gone)
        chosen.append(rows.take(from_numpy(np.unique(_parts(rows, ranges)[0]))))
        size += chosen[-1].nbytes
        if size > max_memory_bytes:
            raise SettingsError(
                "the amendment is larger than max_memory_bytes", "Raise it, or amend some keys at a time (--key)."
            )
    return pa.concat_tables(chosen).sort_by("id").combine_chunks()


def _rejections(ledger: Ledger, where: str) -> pa.Table:
    pieces = [to_plain_types(piece) for piece in ledger.pieces("rejected", REJECTED, where)]
    return pa.concat_tables(pieces).sort_by("id").combine_chunks()


def _cuts(book: Ledger, branch: Ledger, where: str) -> Mapping[bytes, int]:
    """Return the earliest open window of each stream, in ledger or branch."""
    cuts: dict[bytes, int] = {}
    for ledger in (book, branch):
        opened = to_plain_types(ledger.rows("open", "source, key, min(window_start) AS at", where, "GROUP BY ALL"))
        for stream, at in zip(_encode(opened), microseconds(opened["at"]).tolist(), strict=True):
            cuts[stream] = min(at, cuts.get(stream, LAST))
    return cuts


def _before(messages: pa.Table, cuts: Mapping[bytes, int]) -> Any:
    """Tell which messages are before the cut of their stream; those without a stream or a time are not."""
    at = np.array([cuts.get(stream, LAST) for stream in _encode(messages)], np.int64)
    valid = pc.and_(pc.is_valid(messages["key"]), pc.is_valid(messages["event_time"]))
    time = pc.fill_null(times_to_numbers(messages.select(["event_time"]))["event_time"], LAST)
    return valid.to_numpy() & (time.to_numpy() < at)


def _locate(book: Ledger, late: pa.Table, cuts: Mapping[bytes, int], gone: pa.Array) -> LateMessages:
    """Return late messages with their ranges, without those whose window is not before the cut."""
    with_late, windows = {*_encode(late)}, dict[bytes, set[tuple[int, int]]]()
    for piece in book.pieces(AMENDABLE, "id, source, key, window_start, window_end"):
        rows = times_to_numbers(to_plain_types(without(piece, gone)))
        bounds = rows["window_start"].to_pylist(), rows["window_end"].to_pylist()
        for stream, begin, end in zip(_encode(rows), *bounds, strict=True):
            if stream in with_late:
                windows.setdefault(stream, set()).add((begin, end))
    ordered = {stream: sorted(windows.get(stream, ())) for stream in with_late}
    moments = microseconds(late["event_time"]).tolist()
    streams, places = _encode(late), list[tuple[int, int] | None]()
    ranges: dict[bytes, set[tuple[int, int]]] = {}
    for stream, time in zip(streams, moments, strict=True):
        place = _range(ordered[stream], time, cuts.get(stream, LAST))
        places.append(place)
        if place is not None:
            ranges.setdefault(stream, set()).add(place)
    placed = late.filter(pa.array([place is not None for place in places]))
    return LateMessages(placed.combine_chunks(), {stream: sorted(of) for stream, of in ranges.items()})


def _range(windows: Sequence[tuple[int, int]], time: int, cut: int) -> tuple[int, int] | None:
    """Return the window that covers a time, or the gap; None for a window that does not end at the cut or before."""
    at = bisect_right(windows, (time, LAST))
    before = windows[at - 1] if at else (FIRST, FIRST)
    if time < before[1]:
        return before if before[1] <= cut else None
    return before[1], min(cut, windows[at][0] if at < len(windows) else LAST)


def _parts(batches: pa.Table, ranges: Ranges) -> tuple[Ints, Ints, Ints]:
    """Return the parts of windows within ranges: the row of each batch, the begin and the end."""
    bounds = [microseconds(batches[name]).tolist() for name in ("window_start", "window_end")]
    parts = [
        (row, *part)
        for row, (stream, *window) in enumerate(zip(_encode(batches), *bounds, strict=True))
        for part in _within(ranges.get(stream, ()), *window)
    ]
    row, begin, end = np.array(parts, np.int64).reshape(-1, 3).T
    return row, begin, end


def _within(ranges: Sequence[tuple[int, int]], begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a window within ranges, as begin and end."""
    first = max(0, bisect_right(ranges, (begin, LAST)) - 1)
    for low, high in ranges[first:]:
        if low >= end:
            return
        if high > begin:
            yield max(low, begin), min(high, end)


def cut(batches: pa.Table, ranges: Ranges, max_delay: int) -> pa.Table:
    """Return the parts of batches within ranges, under the ids of these windows; a batch may have several.

    A part times out `max_delay` (microseconds) after its end.
    """
    row, begin, end = _parts(batches, ranges)
    parts = batches.take(from_numpy(row)).combine_chunks()
    inside, of = pc.list_flatten(parts["messages"]), pc.list_parent_indices(parts["messages"]).to_numpy()
    time = microseconds(pc.struct_field(inside, "event_time"))
    kept = (time >= begin[of]) & (time < end[of])
    counts = np.bincount(of[kept], minlength=row.size)
    messages, has = inside.filter(pa.array(kept)).combine_chunks(), counts > 0
    sizes = sum(byte_count(pc.struct_field(messages, name)).astype(np.int64) for name in ("type", "payload"))
    whole = (begin == microseconds(parts["window_start"])) & (end == microseconds(parts["window_end"]))
    ends, at = np.cumsum(counts)[has], pc.struct_field(messages, "event_time")
    timeout = np.where(whole, microseconds(parts["timeout_at"]), end + max_delay)
    lists = pa.ListArray.from_arrays(pa.array(np.append(0, np.cumsum(counts)), pa.int32()), messages)
    columns = {
        "window_start": times(begin[has]),
        "window_end": times(end[has]),
        "timeout_at": times(timeout[has]),
        "message_count": pa.array(counts[has].astype(np.int64)),
        "bytes": pa.array(np.bincount(of[kept], sizes, row.size).astype(np.int64)[has]),
        "first_event_time": at.take(from_numpy(ends - counts[has])),
        "last_event_time": at.take(from_numpy(ends - 1)),
        "messages": lists.filter(pa.array(has)),
    }
    result = parts.filter(pa.array(has)).combine_chunks()
    names = (combine_chunks(result[name]) for name in STREAM)
    columns["id"] = tables.identifier(
        tables.BATCH_ID, *names, columns["window_start"].cast(pa.int64()), combine_chunks(result["part"])
    )
    for name, values in columns.items():
        result = result.set_column(result.column_names.index(name), name, values)
    return result


def _encode(rows: pa.Table) -> list[bytes]:
    encoded: list[bytes] = canonical.fields([combine_chunks(rows[name]) for name in STREAM]).to_pylist()
    return encoded
