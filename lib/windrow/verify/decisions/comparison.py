"""Compare the derived rejections, batches and their messages with those in the ledger.

An example of a difference shows both sides, as far as they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model.messages import times
from windrow.model.timestamps import time_text
from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, NONE, Ints, apart, identifier, kept, numbers, version_in_id
from windrow.verify.decisions.arrived import Arrived, Held, Streams
from windrow.verify.decisions.verdicts import ACCEPTED, INVALID, REASONS, Verdicts
from windrow.verify.decisions.windows import ChosenStreams, Derived
from windrow.verify.report import EXAMPLES, Difference
from windrow.verify.snapshot import Snapshot

RULES, LEDGER = "by the rules", "in the ledger"
VERDICT = ["reason", "detail", "missed_by_us", "clock_lead_us", "processing_time", "microbatch"]
WINDOW = ["source", "key", "window_start", "part"]
IDENTITY = ["stream", "time", "kind"]  # of a message, as numbers
DECIDED = [
    "window_end", "timeout", "opened_by", "opened_in", "closed_at", "close_reason", "closed_in", "oversize",
]  # fmt: skip
Row = dict[str, Any]


def check_rejected(
    snapshot: Snapshot, streams: Streams, arrived: Arrived, verdicts: Verdicts, held: Held
) -> Iterator[Difference]:
    """Check that the ledger rejects exactly the messages that the rules refuse, for the same reason and by as much."""
    whole = streams.whole
    by_rules = _refused(arrived, verdicts, np.flatnonzero((verdicts.verdict != ACCEPTED) & whole[arrived.stream]))
    rejected = snapshot.rejected.append_column("depot_version", version_in_id(snapshot.rejected))
    in_ledger = kept(plain(rejected), whole[held.rejected_stream], by_rules.column_names).cast(by_rules.schema)
    found, ours, theirs = apart(by_rules, in_ledger, [*MESSAGE, "depot_version"])
    if not found.num_rows:
        return
    examples = records(found.slice(0, EXAMPLES).select([*MESSAGE, "depot_version"]))
    for name, rows, otherwise in ((RULES, ours, "accepted"), (LEDGER, theirs, "not rejected")):
        verdicts_of = records(rows.slice(0, EXAMPLES).select(VERDICT))
        for example, verdict in zip(examples, verdicts_of, strict=True):
            example[name] = otherwise if verdict["reason"] is None else verdict
    yield Difference(
        "decisions",
        "each message accepted or rejected as the log and the rules decide",
        f"{found.num_rows} messages that the ledger decided otherwise",
        examples=tuple(examples),
    )


def check_windows(
    snapshot: Snapshot, streams: Streams, held: Held, chosen: ChosenStreams, derived: Derived
) -> Iterator[Difference]:
    """Check that the batches of the chosen streams are those that the rules make, opened and closed alike."""
    rules = _batches_by_rules(streams, derived)
    ledger = kept(snapshot.batches, chosen.of_stream[held.batch_stream], rules.column_names).cast(rules.schema)
    found, ours, theirs = apart(rules, ledger, WINDOW)
    if not found.num_rows:
        return
    *stream, start, part = (theirs[name] for name in WINDOW)
    theirs = theirs.append_column("id", identifier("batch", *stream, start.cast(pa.int64()), part))
    first = pc.sort_indices(found, [(name, "ascending") for name in WINDOW]).slice(0, EXAMPLES)
    sides = (records(side.take(first)) for side in (ours, theirs))
    yield Difference(
        "windows by the rules",
        "the batches that the rules make from the accepted messages of each stream",
        f"{found.num_rows} batches that differ",
        examples=tuple(map(_example, *sides)),
    )


def check_members(
    snapshot: Snapshot, arrived: Arrived, held: Held, chosen: ChosenStreams, derived: Derived
) -> Iterator[Difference]:
    """Check that each message is in the batch in which the rules put it."""
    batch = numbers(snapshot.messages["row"])
    rows = np.flatnonzero(chosen.of_stream[held.batch_stream[batch]])
    batch, order, expected = batch[rows], derived.rows, np.array(derived.batches.batch_of, np.int64)
    start, part = (np.array(values, np.int64) for values in (derived.batches.start, derived.batches.part))
    rules = [arrived.stream[order], arrived.event_time[order], arrived.kind[order], start[expected], part[expected]]
    ledger = [held.batch_stream[batch], numbers(snapshot.messages["event_time"])[rows], held.message_kind[rows]]
    ledger += [numbers(snapshot.batches[name])[batch] for name in ("window_start", "part")]
    by_rules, in_ledger = (pa.table(columns, [*IDENTITY, "start", "part"]) for columns in (rules, ledger))
    found, ours, _ = apart(by_rules, in_ledger, IDENTITY)
    both = pc.and_(found["one"].is_valid(), found["other"].is_valid())
    wrong = ours.filter(both)
    if not wrong.num_rows:
        return
    examples = []
    for place in wrong.slice(0, EXAMPLES).to_pylist():
        here, there = (_find(side, place) for side in (by_rules, in_ledger))
        (example,) = records(arrived.messages.slice(order[here], 1).select(list(MESSAGE)))
        example[RULES] = f"window from {time_text(place['start'])}, part {place['part']}"
        example[LEDGER] = snapshot.batches["id"][int(batch[there])].as_py()
        examples.append(example)
    yield Difference(
        "messages by the rules",
        "each message in the window in which the rules put it",
        f"{wrong.num_rows} messages in another one",
        examples=tuple(examples),
    )


def _refused(arrived: Arrived, verdicts: Verdicts, rows: Ints) -> pa.Table:
    """Return the rejections that the ledger must have for messages that the rules refuse."""
    processed, now = verdicts.verdict[rows] < INVALID, verdicts.processing_time[rows]
    content = arrived.messages.select(list(MESSAGE)).take(pa.array(rows))
    verdict = {
        "depot_version": pa.array(arrived.version[rows]),
        "reason": pa.array(REASONS[verdicts.verdict[rows]], pa.string()),
        "detail": verdicts.detail.take(pa.array(rows)),
        "missed_by_us": pa.array(verdicts.off_by[rows]),
        "clock_lead_us": pa.array(now - arrived.received_at[rows], mask=~processed),
        "processing_time": times(now, processed),
        "microbatch": pa.array(arrived.microbatch[rows]),
    }
    return pa.table({name: content[name] for name in MESSAGE} | verdict)


def _batches_by_rules(streams: Streams, derived: Derived) -> pa.Table:
    batches = derived.batches
    stream = np.array(batches.stream, np.int64)
    closed_at, closed_in = (np.array(values, np.int64) for values in (batches.closed_at, batches.closed_in))
    start, end, timeout = (np.array(values, np.int64) for values in (batches.start, batches.end, batches.timeout))
    return pa.table(
        {
            "source": streams.sources.take(pa.array(streams.source[stream])),
            "key": streams.keys.take(pa.array(streams.key[stream])),
            "part": pa.array(batches.part, pa.int64()),
            "window_start": times(start),
            "window_end": times(end),
            "timeout": times(timeout),
            "opened_by": pa.array(batches.opened_by, pa.string()),
            "opened_in": pa.array(batches.opened_in, pa.int64()),
            "closed_at": times(closed_at, closed_at != NONE),
            "close_reason": pa.array(batches.close_reason, pa.string()),
            "closed_in": pa.array(closed_in, mask=closed_in == NONE),
            "oversize": pa.array(batches.oversize, pa.bool_()),
        }
    )


def _find(table: pa.Table, place: Row) -> int:
    """Return the row of a message."""
    same = [pc.equal(table[name], place[name]) for name in IDENTITY]
    return int(pc.index(reduce(pc.and_, same), True).as_py())


def _example(one: Row, other: Row) -> Row:
    """Return a batch that differs, with the columns that differ from both sides; a side that has none is all NULL."""
    there = [side["window_start"] is not None for side in (one, other)]
    names = [name for name in DECIDED if not all(there) or one[name] != other[name]]
    sides = {
        name: {column: side[column] for column in names} if is_there else "no such batch"
        for name, side, is_there in zip((RULES, LEDGER), (one, other), there, strict=True)
    }
    return {name: (other if there[1] else one).get(name) for name in ("id", *WINDOW)} | sides
