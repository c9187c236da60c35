"""The `Step` protocol: a pure function from messages and open batches to ledger rows, for driver and executors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import without
from windrow.errors import require
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.floors import Floors, FloorsByVersion, Ints
from windrow.model.rejection import Refusals, rejected

CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returns: ledger rows, which of them replace live rows (`known`), refused messages, raised floors."""

    rows: pa.Table
    known: pa.Array
    refusals: Refusals
    cuts: Floors


@dataclass(frozen=True, slots=True)
class BatchFilter:
    """Selects the open batches of some streams, and those whose window ends by the clock of their source.

    `streams` returns the `source, key` of the messages, None if unknown; it need not be called. `passed` is that clock:
    windows that end by it are overdue.
    """

    streams: Callable[[], pa.Table | None]
    passed: Floors


def no_streams() -> pa.Table:
    """Return the streams of a microbatch without messages."""
    return pa.table({"source": pa.array([], pa.string()), "key": pa.array([], pa.string())})


class Step(Protocol):
    """Turns messages into ledger rows. It must be pure and picklable, because executors run it too."""

    @property
    def settings(self) -> str:
        """Return the settings of the step, as recorded in the history."""

    def __call__(self, task: Task, messages: pa.Table, processing_time: Ints, live: pa.Table) -> StepResult:
        """Process the messages of some streams together with the live rows of these streams.

        `messages` are valid and have `version`; source, key and type are dictionaries. `task` has the clocks after all
        messages, the number of the microbatch, and whether to finish all open batches.
        """

    def wanted(self, floors: Floors, streams: Callable[[], pa.Table | None] = no_streams) -> BatchFilter:
        """Return which open batches can change at these floors, with messages of these streams."""

    def due(self, ended: Floors) -> Floors:
        """Return the floors that a tick needs to close the batches whose windows end by `ended`."""


@dataclass(frozen=True, slots=True)
class Task:
    """A step with everything that it needs to run over any part of the streams, on the driver or an executor.

    With `flush`, the step finishes all open batches at the clock of each source. `last` has the last event time of each
    source for a flush on executors.
    """

    step: Step
    floors: FloorsByVersion
    latest: int
    microbatch: int
    flush: bool = False
    last: Floors | None = None

    def needed(self, streams: Callable[[], pa.Table | None]) -> BatchFilter | None:
        """Return which open batches the step needs with messages of these streams; None for all, as in a flush."""
        return None if self.flush else self.step.wanted(self.floors.after, streams)

    def with_unchanged(self, arrived: pa.Table, live: pa.Table) -> pa.Table:
        """Return the ledger rows that change and the `live` rows that do not; column `changed` tells them apart."""
        rows, _ = self(arrived, live)
        stays = live.filter(pc.invert(pc.is_in(live["id"], rows["id"].combine_chunks())))
        stays = stays.append_column("known", _booleans(True, stays.num_rows))
        parts = [rows.append_column(CHANGED, _booleans(True, rows.num_rows))]
        parts.append(stays.append_column(CHANGED, _booleans(False, stays.num_rows)))
        return pa.concat_tables(parts)

    def __call__(self, arrived: pa.Table, live: pa.Table) -> tuple[pa.Table, Floors]:
        """Return ledger rows with a column `known`, and the floors a flush raised.

        `arrived` has the message columns and `version`, `live` the ledger's columns.
        """
        arrived = message_columns.with_room(message_columns.with_dictionaries(arrived))
        unseen = Refusals.unseen(arrived, self.latest)
        # guard: invalid-stays-out
        valid, good = without(arrived, unseen.row)
        processing_time = self.floors.processing_times(valid)
        outcome = self.step(self, valid, processing_time, live)
        by_rules = replace(outcome.refusals, row=good[outcome.refusals.row])
        rejections = rejected(arrived, arrived["version"].to_numpy(), [unseen, by_rules], self.microbatch)
        return self._joined(outcome, rejections, live.schema), outcome.cuts

    @staticmethod
    def _joined(outcome: StepResult, rejections: pa.Table, schema: pa.Schema) -> pa.Table:
        """Return the step's rows and the rejections as ledger rows."""
        parts = []
        for part, state, known in ((outcome.rows, None, outcome.known), (rejections, "rejected", False)):
            columns: dict[str, object] = {name: part[name] for name in part.column_names}
            columns |= {"state": state} if state else {}
            rows = tables.rows(schema, columns, part.num_rows)
            parts.append(rows.append_column("known", _booleans(known, part.num_rows)))
        joined = pa.concat_tables(parts)
        require(
            # guard: written-ids-unique
            pc.count_distinct(joined["id"]).as_py() == joined.num_rows,
            "an id stands twice among the rows to write",
        )
        return joined


def _booleans(value: pa.Array | bool, count: int) -> pa.Array:
    return pa.array(np.full(count, value)) if isinstance(value, bool) else value
