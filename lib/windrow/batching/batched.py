"""`windrow.batch`: the whole algorithm as one pure function over Arrow tables."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.rules import Rules
from windrow.batching.step import follow
from windrow.batching.streams import Clocks, decide, list_batches, rejected_messages
from windrow.columnar.arrow import drop_rows, run_parallel, to_numpy, to_plain_type
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.admission import reject_inadmissible
from windrow.model.floors import Cuts, Floors, processing_times
from windrow.model.payload import parse
from windrow.model.rejected_rows import rejection_rows
from windrow.model.timestamps import microseconds_of


@dataclass(frozen=True, slots=True)
class BatchState:
    """The state between two calls: the open batches, the clock and the cut of each source, and the rules in force."""

    open: pa.Table
    floors: Floors
    cuts: Floors
    rules: Rules

    def after(self, cuts: Cuts) -> BatchState:
        """Return the state after a flush or a change of the rules."""
        floors, cut = self.floors.raised(cuts.source, cuts.floor), self.cuts.raised(cuts.source, cuts.cut)
        return replace(self, floors=floors, cuts=cut)


@dataclass(frozen=True, slots=True)
class BatchResult:
    """The result of `batch`: open and closed `batches`, `rejected` messages, the `state` for the next call."""

    batches: pa.Table
    rejected: pa.Table
    state: BatchState


def batch(
    messages: pa.Table,
    rules: Rules,
    state: BatchState | None = None,
    now: int | datetime | None = None,
    flush: bool = False,
    payload_type: str = "",
) -> BatchResult:
    """Group messages into batches by the rules, each message in exactly one batch or rejected with its reason.

    Splitting a log over several calls gives the same batches as one call.

    Args:
        messages: The columns `key, type, event_time, received_at`, and optionally `source, sequence, payload` and
            `version`. Rows that arrived together must be in one call; by default each row has a separate version.
        rules: The rules; if they differ from those of the previous call, the rules change.
        state: The `state` that the previous call returned; None for the first call.
        now: A tick after the messages (`datetime` or microseconds): the floor of every source becomes at least this.
        flush: Close all open batches.
        payload_type: The setting; without it, bytes stay bytes and everything else becomes text.

    Returns:
        The batches that changed, open ones and closed ones, the rejected messages, and the state for the next call.

    Raises:
        MessagesError: A column is missing or has another type.
        SettingsError: The `payload_type` is unknown.

    Example:
        >>> import pyarrow as pa
        >>> from datetime import UTC, datetime
        >>> noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
        >>> row = {"key": "pump-1", "type": "temperature", "event_time": noon, "received_at": noon}
        >>> result = windrow.batch(pa.Table.from_pylist([row]), windrow.Rules(window="10s"), flush=True)
        >>> result.batches["message_count"].to_pylist()
        [1]
    """
    payload = parse(payload_type) if payload_type else None
    conforming = message_columns.with_room(message_columns.conform(messages, payload))
    arrived = message_columns.with_dictionaries(by_version(conforming))
    fields = tables.batch_fields(to_plain_type(arrived.schema.field("payload").type))
    before = state or BatchState(pa.schema(fields).empty_table(), Floors.empty(), Floors.empty(), rules)
    if before.rules != rules:
        before = before.after(follow(before.rules, rules, before.floors))
    unseen = reject_inadmissible(arrived, message_columns.LATEST)
    valid, good = drop_rows(arrived, to_numpy(unseen["row"]))
    version_of_valid = to_numpy(valid["version"])
    processing_time, floors = processing_times(valid, before.floors)
    if now is not None:
        floors = floors.at_least(now if isinstance(now, int) else microseconds_of(now))
    decision = decide(valid, processing_time, version_of_valid, before.open, rules, Clocks(floors, before.cuts), flush)
    refusals = [unseen, rejected_messages(decision, good, processing_time)]
    rejecting = partial(rejection_rows, arrived, to_numpy(arrived["version"]), refusals, None)
    batches, refused_messages = run_parallel([partial(list_batches, decision), rejecting], arrived.num_rows)
    return BatchResult(
        batches=batches,
        rejected=refused_messages,
        state=BatchState(batches.filter(pc.equal(batches["state"], "open")), floors, before.cuts, rules).after(
            decision.cuts
        ),
    )


def by_version(messages: pa.Table) -> pa.Table:
    """Return the messages in the order of their versions; without versions each row gets a separate one."""
    if "version" not in messages.column_names:
        return messages.append_column("version", pa.array(np.arange(messages.num_rows)))
    return messages.take(pc.array_sort_indices(messages["version"]))
