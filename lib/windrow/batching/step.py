"""The step of a microbatch: add messages to the open batches, close overdue ones, and return ledger rows.

The kernel is imported only when there is something to decide, because loading its compiler is slow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.rules import Rules
from windrow.columnar.arrow import (
    boolean_array,
    combine_chunks,
    conform,
    drop_rows,
    filter_rows,
    string_scalar,
    to_numpy,
)
from windrow.errors import ensure
from windrow.model import clock, tables
from windrow.model.admission import reject_inadmissible
from windrow.model.floors import Cuts, Floors, FloorsByVersion
from windrow.model.messages import with_dictionaries, with_room
from windrow.model.open_batches import BatchFilter
from windrow.model.rejected_rows import rejection_rows
from windrow.model.tables import CHANGED, WHOLE


@dataclass(frozen=True, slots=True)
class Step:
    """Batching by `rules`, with everything it needs to run on any subset of the streams, on the driver or an executor.

    A message stamped after `latest` (microseconds) is ahead of the clock. With `flush`, all open batches close at the
    clock of their source; `last` then has the last event time of each source, for executors that see only some of its
    streams. Messages without one of the values in `only` (by column) move the clocks but are otherwise ignored.
    Windows of a source before its entry in `cuts` need not lie on the calendar.
    """

    rules: Rules
    floors: FloorsByVersion
    latest: int
    microbatch: int
    flush: bool = False
    last: Floors | None = None
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)
    cuts: Floors = field(default_factory=Floors.empty)

    def __call__(self, arrived: pa.Table, live: pa.Table) -> tuple[pa.Table, Cuts]:
        """Return the ledger rows that change, and what a flush cuts.

        `arrived` has the message columns and `version`, `live` has the columns of the ledger; an open batch that no
        message changes may come without its messages. The rows have a column `known`: True if the ledger has an earlier
        version of the row.
        """
        rows, cuts = self.decide_streams(arrived, live)
        ensure(
            # guard: written-ids-unique
            pc.count_distinct(rows["id"]).as_py() == rows.num_rows,
            "duplicate id among the rows to write",
        )
        is_known = pc.is_in(rows["id"], live["id"].combine_chunks())
        # guard: known-has-a-version
        ensure(pc.all(pc.equal(rows["known"], is_known)).as_py() is not False, "a row is not known as it should be")
        return rows, cuts

    def decide_streams(self, arrived: pa.Table, live: pa.Table) -> tuple[pa.Table, Cuts]:
        """Return what a call returns, but do not check the ids."""
        from windrow.batching.streams import Clocks, changes, decide, rejected_messages

        arrived = with_room(with_dictionaries(arrived))
        unseen = reject_inadmissible(arrived, self.latest)
        # guard: invalid-stays-out
        messages, row = drop_rows(arrived, to_numpy(unseen["row"]))
        processing_time = self.floors.processing_times(messages)
        if self.only:
            chosen = np.flatnonzero(_have(messages, self.only))
            messages, row, processing_time = messages.take(pa.array(chosen)), row[chosen], processing_time[chosen]
        batches = filter_rows(live.select(tables.BATCH_COLUMNS), pc.equal(live["state"], string_scalar(tables.OPEN)))
        if batches.num_rows and not self.flush:
            batches, _ = BatchFilter(lambda: messages, self.closed_through).needed(batches)
        decision = decide(
            messages,
            processing_time,
            to_numpy(messages["version"]),
            batches,
            self.rules,
            Clocks(self.floors.after, self.cuts),
            flush=self.flush,
            last=self.last,
        )
        changed, known, is_whole = changes(decision, self.microbatch)
        refusals = [unseen, rejected_messages(decision, row, processing_time)]
        rejections = rejection_rows(arrived, to_numpy(arrived["version"]), refusals, self.microbatch)
        is_open = pc.equal(changed["state"], string_scalar(tables.OPEN))
        changed = changed.append_column(
            WHOLE, pc.if_else(is_open, boolean_array(is_whole), pa.scalar(None, pa.bool_()))
        )
        written = _ledger_rows(changed, live.schema, known)
        # guard: changed-was-read
        ensure(_were_read(batches, written), "a batch changed whose messages were not read")
        refused_rows = _ledger_rows(rejections, live.schema, np.zeros(rejections.num_rows, np.bool_), "rejected")
        return pa.concat_tables([written, refused_rows]), decision.cuts

    def with_unchanged(self, arrived: pa.Table, live: pa.Table) -> pa.Table:
        """Return the ledger rows that change and the `live` rows that do not; column `changed` tells them apart.

        Unchanged rows are only counted, so they come without messages.
        """
        rows, _ = self(arrived, live)
        stays = live.filter(pc.invert(pc.is_in(live["id"], rows["id"].combine_chunks())))
        stays = conform(stays.drop_columns(["messages"]), live.schema)
        stays = stays.append_column("known", pa.array(np.ones(stays.num_rows, np.bool_)))
        marked = zip((rows, stays), (True, False), strict=True)
        return pa.concat_tables(
            [part.append_column(CHANGED, pa.array(np.full(part.num_rows, changed))) for part, changed in marked]
        )

    @property
    def closed_through(self) -> Floors:
        """Return, by source, the time up to which windows have ended for good: their batches are overdue."""
        return closed_through(self.rules, self.floors.after)


def closed_through(rules: Rules, clocks: Floors) -> Floors:
    """Return, by source, the time up to which windows have ended for good at these clocks."""
    floor = np.maximum(clocks.floor, clock.UNKNOWN + rules.max_delay) - rules.max_delay
    return Floors(clocks.source, floor)


def timeouts(rules: Rules, ended: Floors) -> Floors:
    """Return the floors that a tick needs to close the batches whose windows end by `ended`."""
    return Floors(ended.source, ended.floor + rules.max_delay)


def follow(before: Rules, rules: Rules, floors: Floors) -> Cuts:
    """Return what a change of the rules does to the sources with these floors.

    A message that was too old stays too old. No window that was opened under the rules `before` ends after the cut.
    """
    # guard: cut-after-other-rules
    cut = floors.floor + before.max_lead + before.window
    # guard: floors-rise
    floor = floors.floor + max(0, rules.max_delay - before.max_delay)
    return Cuts(floors.source, cut, floor)


def _were_read(batches: pa.Table, written: pa.Table) -> bool:
    """Tell whether every open batch that the rows to write continue came with its messages."""
    unread = filter_rows(batches, pc.is_null(batches["messages"]))
    return not unread.num_rows or pc.any(pc.is_in(unread["id"], combine_chunks(written["id"]))).as_py() is not True


def _have(messages: pa.Table, only: Mapping[str, Sequence[str]]) -> np.ndarray:
    """Tell which messages have one of the given values in each column."""
    chosen = np.ones(messages.num_rows, np.bool_)
    for name, values in only.items():
        coded = combine_chunks(messages[name])
        chosen &= pc.is_in(coded.dictionary, pa.array(values, pa.string())).take(coded.indices).to_numpy(False)
    return chosen


def _ledger_rows(rows: pa.Table, schema: pa.Schema, known: np.ndarray, state: str | None = None) -> pa.Table:
    """Return rows with all columns of the ledger, and `known`."""
    columns: dict[str, object] = {name: rows[name] for name in rows.column_names}
    columns |= {"state": state} if state else {}
    return tables.rows(schema, columns, rows.num_rows).append_column("known", pa.array(known))
