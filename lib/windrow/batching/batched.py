"""`windrow.batch`: the whole algorithm as one pure function over Arrow tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow import messages as message_columns
from windrow import tables
from windrow.batching.decision import decide, refused
from windrow.batching.rules import Rules
from windrow.floors import Floors, processing_times
from windrow.moments import microseconds_of
from windrow.rejection import Refusals, rejected


@dataclass(frozen=True, slots=True)
class State:
    """What one call hands to the next: the open batches, and how far the clock of each source has come."""

    open: pa.Table
    floors: Floors


@dataclass(frozen=True, slots=True)
class Batched:
    """The outcome of `batch`: `batches` open and closed, `rejected` one row a message, `state` for the next call."""

    batches: pa.Table
    rejected: pa.Table
    state: State


def batch(
    messages: pa.Table,
    rules: Rules,
    state: State | None = None,
    now: int | datetime | None = None,
    flush: bool = False,
) -> Batched:
    """Group messages into batches by the rules, each message in exactly one batch or rejected with its reason.

    `messages` has the columns `key, type, event_time, received_at` and may have `source, sequence, payload` and
    `version` (rows that came together; the rows of a version come in one call; default: each row its own).
    `now` is a tick after the messages, a time or microseconds: the floor of every source becomes at least `now`.
    `flush` closes what is open then. Cutting a log into several calls gives the same batches as one.

    Raises MessagesError when a column is missing or of another type.
    """
    given = message_columns.with_dictionaries(by_version(message_columns.conform(messages)))
    before = state or _nothing(given)
    version = given["version"].to_numpy()
    fault = message_columns.faults(given).combine_chunks()
    good = np.flatnonzero(fault.is_null())
    valid = given.take(pa.array(good)) if good.size < given.num_rows else given
    processing_time, floors = processing_times(valid, version[good], before.floors)
    if now is not None:
        floors = floors.at_least(_microseconds(now))
    decision = decide(valid, processing_time, version[good], before.open, rules, floors.of, flush=flush)
    bad = np.flatnonzero(fault.is_valid())
    refusals = [
        Refusals.unprocessed(bad, "invalid", fault.take(pa.array(bad))),
        refused(decision, good, processing_time),
    ]
    return Batched(
        batches=decision.batches,
        rejected=rejected(given, version, refusals, None),
        state=State(
            open=decision.batches.filter(pc.equal(decision.batches["state"], "open")),
            floors=floors.raised(decision.cuts.source, decision.cuts.floor),
        ),
    )


def by_version(messages: pa.Table) -> pa.Table:
    """Return the messages in the order of their versions; without versions each row is one of its own."""
    if "version" not in messages.column_names:
        return messages.append_column("version", pa.array(np.arange(messages.num_rows)))
    return messages.take(pc.array_sort_indices(messages["version"]))


def _nothing(messages: pa.Table) -> State:
    fields = tables.batch_fields(messages.schema.field("payload").type)
    return State(open=pa.schema(fields).empty_table(), floors=Floors.empty())


def _microseconds(moment: int | datetime) -> int:
    if isinstance(moment, int):
        return moment
    return microseconds_of(moment)
