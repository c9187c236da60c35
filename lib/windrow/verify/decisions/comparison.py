"""Compare the derived rejections, batches and their messages with those in the ledger.

An example of a difference shows both sides, as far as they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model.timestamps import time_text
from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, NONE, Bools, Ints, fewer, kept, numbers, paired, times
from windrow.verify.decisions.arrived import Arrived, Held, Streams
from windrow.verify.decisions.verdicts import ACCEPTED, REASONS, Verdicts
from windrow.verify.decisions.windows import ChosenStreams, Derived
from windrow.verify.ids import named_by_id
from windrow.verify.report import EXAMPLES, Difference
from windrow.verify.snapshot import Snapshot

RULES, LEDGER = "by the rules", "in the ledger"
VERDICT = ["reason", "detail", "missed_by_us", "clock_lead_us", "processing_time", "microbatch"]
WINDOW = ["source", "key", "part", "window_start"]
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
    rejected = snapshot.rejected.append_column(
        "depot_version", named_by_id(snapshot.rejected)["version"].cast(pa.int64())
    )
    in_ledger = kept(plain(rejected), whole[held.rejected_stream], by_rules.column_names).cast(by_rules.schema)
    sides = [fewer(by_rules, in_ledger), fewer(in_ledger, by_rules)]
    both = pa.concat_tables(sides)
    rows = np.arange(both.num_rows)
    for name, there in (("by_rules", rows < sides[0].num_rows), ("in_ledger", rows >= sides[0].num_rows)):
        both = both.append_column(name, pa.array(np.where(there, rows, -1)))
    wanted = [([], "count_all"), ("by_rules", "max"), ("in_ledger", "max")]
    content = both.group_by([*MESSAGE, "depot_version"], use_threads=False).aggregate(wanted)
    if not content.num_rows:
        return
    shown = content.slice(0, EXAMPLES)
    examples = records(shown.select([*MESSAGE, "depot_version"]))
    for name, side, otherwise in ((RULES, "by_rules_max", "accepted"), (LEDGER, "in_ledger_max", "not rejected")):
        for example, at in zip(examples, shown[side].to_pylist(), strict=True):
            example[name] = otherwise if at < 0 else records(both.slice(at, 1).select(VERDICT))[0]
    yield Difference(
        "decisions",
        "each message accepted or rejected as the log and the rules decide",
        f"{content.num_rows} messages that the ledger decided otherwise",
        examples=tuple(examples),
    )


def check_windows(
    snapshot: Snapshot, streams: Streams, held: Held, chosen: ChosenStreams, derived: Derived
) -> Iterator[Difference]:
    """Check that the batches of the chosen streams are those that the rules make, opened and closed alike."""
    rules = _batches_by_rules(streams, derived)
    rows = np.flatnonzero(chosen.of_stream[held.batch_stream])
    ledger = snapshot.batches.take(pa.array(rows)).select([*WINDOW, *DECIDED, "id"])
    left, right = paired(
        [
            np.array(values, np.int64)
            for values in (derived.batches.part, derived.batches.start, derived.batches.stream)
        ],
        [numbers(ledger["part"]), numbers(ledger["window_start"]), held.batch_stream[rows]],
    )
    wrong = (left < 0) | (right < 0)
    wrong[~wrong] = _unequal(rules, ledger, left[~wrong], right[~wrong])
    at = np.flatnonzero(wrong)
    if not at.size:
        return
    at = at[np.lexsort(_by_window(derived, ledger, held.batch_stream[rows], left[at], right[at]))]
    yield Difference(
        "windows by the rules",
        "the batches that the rules make from the accepted messages of each stream",
        f"{at.size} batches that differ",
        examples=tuple(_example(rules, ledger, int(left[one]), int(right[one])) for one in at[:EXAMPLES]),
    )


def check_members(
    snapshot: Snapshot, arrived: Arrived, held: Held, chosen: ChosenStreams, derived: Derived
) -> Iterator[Difference]:
    """Check that each message is in the batch in which the rules put it."""
    batch = numbers(snapshot.messages["row"])
    rows = np.flatnonzero(chosen.of_stream[held.batch_stream[batch]])
    batch = batch[rows]
    time = numbers(snapshot.messages["event_time"])[rows]
    batches, order = derived.batches, derived.rows
    left, right = paired(
        [arrived.kind[order], arrived.event_time[order], arrived.stream[order]],
        [held.message_kind[rows], time, held.batch_stream[batch]],
    )
    both = (left >= 0) & (right >= 0)
    left, right = left[both], right[both]
    expected = np.array(batches.batch_of, np.int64)[left]
    start, part = (np.array(values, np.int64)[expected] for values in (batches.start, batches.part))
    window, number = (numbers(snapshot.batches[name])[batch[right]] for name in ("window_start", "part"))
    at = np.flatnonzero((start != window) | (part != number))
    if not at.size:
        return
    examples = records(arrived.messages.take(pa.array(order[left[at[:EXAMPLES]]])).select(list(MESSAGE)))
    for example, one in zip(examples, at.tolist(), strict=False):
        example[RULES] = f"window from {time_text(int(start[one]))}, part {part[one]}"
        example[LEDGER] = snapshot.batches["id"][int(batch[right[one]])].as_py()
    yield Difference(
        "messages by the rules",
        "each message in the window in which the rules put it",
        f"{at.size} messages in another one",
        examples=tuple(examples),
    )


def _refused(arrived: Arrived, verdicts: Verdicts, rows: Ints) -> pa.Table:
    """Return the rejections that the ledger must have for messages that the rules refuse."""
    processed, now = verdicts.processed[rows], verdicts.processing_time[rows]
    content = arrived.messages.select(list(MESSAGE)).take(pa.array(rows))
    verdict = {
        "depot_version": pa.array(arrived.version[rows]),
        "reason": pa.array(REASONS[verdicts.verdict[rows]], pa.string()),
        "detail": verdicts.detail.take(pa.array(rows)),
        "missed_by_us": pa.array(verdicts.off_by[rows]),
        "clock_lead_us": pa.array(now - arrived.received_at[rows], mask=~processed),
        "processing_time": times(now, ~processed),
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
            "closed_at": times(closed_at, closed_at == NONE),
            "close_reason": pa.array(batches.close_reason, pa.string()),
            "closed_in": pa.array(closed_in, mask=closed_in == NONE),
            "oversize": pa.array(batches.oversize, pa.bool_()),
        }
    )


def _unequal(rules: pa.Table, ledger: pa.Table, left: Ints, right: Ints) -> Bools:
    """Return which pairs of batches differ; NULL equals NULL."""
    wrong = np.zeros(left.size, np.bool_)
    for name in DECIDED:
        one, other = rules[name].take(pa.array(left)), ledger[name].take(pa.array(right))
        if pa.types.is_string(one.type):
            pair = [pc.fill_null(column, "").combine_chunks() for column in (one, other)]
            wrong |= pc.not_equal(*pair).to_numpy(zero_copy_only=False)
        else:
            wrong |= numbers(one) != numbers(other)
    return wrong


def _by_window(derived: Derived, ledger: pa.Table, stream: Ints, left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """Return start and stream of batches, either side of which may be missing, to sort neighbours together."""
    pairs = ((derived.batches.start, numbers(ledger["window_start"])), (derived.batches.stream, stream))
    keys = [np.where(left >= 0, _at(np.array(ours), left), _at(recorded, right)) for ours, recorded in pairs]
    return keys[0], keys[1]


def _at(values: Ints, rows: Ints) -> Ints:
    return values[np.maximum(rows, 0)] if values.size else np.zeros_like(rows)


def _example(rules: pa.Table, ledger: pa.Table, left: int, right: int) -> Row:
    """Return a batch that differs, with the columns that differ from both sides."""
    one, other = (_record(side, at) for side, at in ((rules, left), (ledger, right)))
    names = [name for name in DECIDED if not (one and other) or one[name] != other[name]]
    sides = {
        name: {column: side[column] for column in names} if side else "no such batch"
        for name, side in ((RULES, one), (LEDGER, other))
    }
    shown = other or one
    return {name: shown.get(name) for name in ("id", *WINDOW)} | sides


def _record(table: pa.Table, row: int) -> Row:
    """Return a row as JSON values; {} for -1."""
    return records(table.slice(row, 1))[0] if row >= 0 else {}
