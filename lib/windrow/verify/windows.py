"""Check batches: windows never overlap, messages lie inside them, and columns agree with the messages."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import NONE, Bools, flags, kept, numbers, pairwise, repeated
from windrow.verify.report import Difference, differing
from windrow.verify.snapshot import Snapshot

WINDOW = ["id", "state", "source", "key", "part", "window_start", "window_end"]
TIMES = [*WINDOW, "timeout", "closed_at", "close_reason", "opened_in", "closed_in"]
OPENED_BY = ("message", "conflict", "size")
CONTENT = [*WINDOW, "message_count", "bytes", "first_event_time", "last_event_time"]
INSIDE = ["source", "key", "type", "event_time", "received_at", "sequence", "payload"]


def check_batches(snapshot: Snapshot) -> Iterator[Difference]:
    """Check windows, life cycle and content of all batches."""
    yield from _overlaps(snapshot)
    yield from _parts(snapshot)
    yield from _life(snapshot)
    yield from _timeouts(snapshot)
    yield from _overdue(snapshot)
    yield from _content(snapshot)
    yield from _size(snapshot)
    yield from _inside(snapshot)
    yield from _once(snapshot)


def _by_window(snapshot: Snapshot) -> tuple[pa.Table, Bools, Bools]:
    """Return the batches sorted by stream, window and part, with flags: same stream, same window as the one before."""
    batches = snapshot.batches
    stream = np.zeros(batches.num_rows, np.int64)
    for name in ("source", "key"):
        encoded = batches[name].combine_chunks().dictionary_encode(null_encoding="encode")
        code = stream * (len(encoded.dictionary) + 1) + encoded.indices.to_numpy(zero_copy_only=False)
        stream = np.unique(code, return_inverse=True)[1]
    start, part = numbers(batches["window_start"]), numbers(batches["part"])
    order = np.lexsort((part, start, stream))
    same_stream = pairwise(stream[order], np.equal, first=False)
    same_window = same_stream & pairwise(start[order], np.equal, first=False)
    return batches.take(pa.array(order)), same_stream, same_window


def _overlaps(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that no window begins before the previous one of its stream ends; parts of a window share it."""
    batches, same_stream, same_window = _by_window(snapshot)
    start, end = numbers(batches["window_start"]), numbers(batches["window_end"])
    shared = same_window & pairwise(end, np.equal, first=False)
    begins_early = start < np.concatenate([[NONE], end])[: start.size]
    rows = kept(batches, same_stream & ~shared & begins_early, WINDOW)
    expected = "windows of a stream never overlap"
    yield from differing("windows", expected, rows, "windows that begin before the one before ends")


def _parts(snapshot: Snapshot) -> Iterator[Difference]:
    batches, _, same_window = _by_window(snapshot)
    part = numbers(batches["part"])
    expected = np.where(same_window, np.concatenate([[0], part])[: part.size] + 1, 0)
    rows = kept(batches, part != expected, WINDOW)
    yield from differing("parts", "parts of a window count 0, 1, 2, ...", rows, "parts")


def _life(snapshot: Snapshot) -> Iterator[Difference]:
    """Check the columns about the end: empty while open, filled when closed; a timeout closes at its time."""
    batches = snapshot.batches
    closed = flags(pc.equal(batches["state"], "closed"))
    ends = [pc.is_valid(batches[name]).to_numpy() for name in ("closed_at", "close_reason", "closed_in")]
    opened = numbers(batches["opened_in"])
    closes = np.where(closed, numbers(batches["closed_in"]), snapshot.history.num_rows)
    causes = flags(pc.is_in(batches["opened_by"], pa.array(OPENED_BY)))
    lived = causes & (opened >= 1) & (opened <= closes) & (closes <= snapshot.history.num_rows)
    right = np.where(closed, np.logical_and.reduce(ends), ~np.logical_or.reduce(ends))
    rows = kept(batches, ~(lived & right), TIMES)
    yield from differing("life", "opened before closed, closed with time and reason", rows, "batches")
    at_timeout = numbers(batches["closed_at"]) == numbers(batches["timeout"])
    flushed = flags(pc.equal(batches["close_reason"], "flush"))
    timed = flags(pc.equal(batches["close_reason"], "timeout"))
    rows = kept(batches, closed & ~(flushed | (timed & at_timeout)), TIMES)
    yield from differing("closed at", "a batch closes at its timeout", rows, "batches")


def _timeouts(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that a batch times out `max_delay` after its window, and that no window exceeds the rules."""
    batches = snapshot.batches
    length = numbers(batches["window_end"]) - numbers(batches["window_start"])
    longest = max([snapshot.in_force("window"), *snapshot.rules("window").tolist()])
    rows = kept(batches, ~((length > 0) & (length <= longest)), WINDOW)
    yield from differing("window length", f"at most {longest} us", rows, "batches")
    delay = numbers(batches["timeout"]) - numbers(batches["window_end"])
    delays = snapshot.rules("max_delay")
    known = np.isin(delay, [snapshot.in_force("max_delay"), *delays])
    closed = flags(pc.equal(batches["state"], "closed"))
    then = snapshot.of_microbatch(delays, numbers(batches["closed_in"]))
    rows = kept(batches, ~np.where(closed, delay == then, known), TIMES)
    yield from differing("timeout", "the window's end + max_delay", rows, "batches")


def _overdue(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that a batch is closed once the clock of its source has passed its timeout."""
    batches, sources = snapshot.batches, snapshot.sources
    at = pc.index_in(batches["source"], sources["source"].combine_chunks())
    floors = np.append(numbers(sources["floor"]), np.iinfo(np.int64).max)
    floor = floors[pc.fill_null(at, -1).to_numpy()]
    due = numbers(batches["window_end"]) + snapshot.in_force("max_delay")
    rows = kept(batches, flags(pc.equal(batches["state"], "open")) & ~(due > floor), TIMES)
    yield from differing("overdue", "open only until the clock passes the timeout", rows, "batches")


def _content(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that count, bytes, first and last event time are those of the messages."""
    batches, messages = snapshot.batches, snapshot.messages
    row, time = numbers(messages["row"]), numbers(messages["event_time"])
    size = batches.num_rows
    weight = np.zeros(size, np.int64)
    np.add.at(weight, row, messages["content_bytes"].to_numpy())
    first, last = np.full(size, np.iinfo(np.int64).max), np.full(size, NONE)
    np.minimum.at(first, row, time)
    np.maximum.at(last, row, time)
    count = np.bincount(row, minlength=size)
    found = {"message_count": count, "bytes": weight, "first_event_time": first, "last_event_time": last}
    agree = np.logical_and.reduce([numbers(batches[name]) == values for name, values in found.items()])
    rows = kept(batches, ~agree, CONTENT)
    yield from differing("content", "count, bytes, first and last as the messages say", rows, "batches")
    rows = kept(batches, count == 0, CONTENT)
    yield from differing("content", "no batch is empty", rows, "batches")


def _size(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that a closed batch is within the maximum under which it closed, or one message flagged as oversize."""
    batches = snapshot.batches
    closed = flags(pc.equal(batches["state"], "closed"))
    limit = snapshot.of_microbatch(snapshot.rules("max_batch_bytes"), numbers(batches["closed_in"]))
    above = (limit > 0) & (numbers(batches["bytes"]) > limit)
    flagged = flags(batches["oversize"])
    right = (above == flagged) & (~flagged | (numbers(batches["message_count"]) == 1))
    filled = pc.is_valid(batches["oversize"]).to_numpy()
    rows = kept(batches, ~(filled & (right | ~closed)), [*CONTENT, "oversize"])
    expected = "at most max_batch_bytes, or one oversize message"
    yield from differing("size", expected, rows, "batches")


def _inside(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that every message is complete and in its window, and that messages are sorted by event time."""
    batches, messages = snapshot.batches, snapshot.messages
    row, time = numbers(messages["row"]), numbers(messages["event_time"])
    start, end = (numbers(batches[name])[row] for name in ("window_start", "window_end"))
    complete: Bools = np.logical_and.reduce([pc.is_valid(messages[name]).to_numpy() for name in INSIDE[:5]])
    outside = ~(complete & (time >= start) & (time < end))
    placed = _placed(messages, batches)
    expected = "every message is complete and in its window"
    yield from differing("inside", expected, kept(placed, outside), "messages")
    back = pairwise(row, np.equal, first=False) & pairwise(time, np.less, first=False)
    yield from differing("order", "messages by event time", kept(placed, back), "messages")


def _once(snapshot: Snapshot) -> Iterator[Difference]:
    """Check that a window holds one message of a type, and that a stream, type and event time occur once.

    Once repeats are kept, a window may hold several, also later: it splits no further than it must.
    """
    batches, messages = snapshot.batches, snapshot.messages
    closed = pc.is_valid(batches["closed_in"]).to_numpy()
    last = np.where(closed, numbers(batches["closed_in"]), snapshot.progress.microbatch)
    inside = messages.append_column("window_start", batches["window_start"].take(messages["row"]))
    split = kept(inside, (last < snapshot.repeats_kept_from)[numbers(messages["row"])], inside.column_names)
    by_window = repeated(split, ["source", "key", "window_start", "type"])
    yield from differing("types", "one message of a type in a window", by_window, "types that occur again")
    emitted = repeated(messages, ["source", "key", "type", "event_time"])
    yield from differing("once", "a message of a type and time once in its stream", emitted, "messages")


def _placed(messages: pa.Table, batches: pa.Table) -> pa.Table:
    """Return messages with the id of their batch."""
    return messages.select(INSIDE).append_column("batch", batches["id"].take(messages["row"]))
