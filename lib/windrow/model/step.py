"""A step: what a microbatch does with its messages, as a pure function that driver and executors run alike."""

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
    """Which open batches a microbatch needs: those of some streams, and those whose window the clocks have passed.

    `streams` returns `source, key`, None when it is not known which have messages; it may be called or not. `passed`
    has for each source up to where windows have ended long enough ago.
    """

    streams: Callable[[], pa.Table | None]
    passed: Floors


def no_streams() -> pa.Table:
    """Return the streams of a microbatch without messages."""
    return pa.table({"source": pa.array([], pa.string()), "key": pa.array([], pa.string())})


class Step(Protocol):
    """What a microbatch does with its messages. It must be pure and picklable: executors run it as well."""

    @property
    def settings(self) -> str:
        """Return what the step was set to, as recorded in the history."""

    def __call__(self, task: Task, messages: pa.Table, processing_time: Ints, live: pa.Table) -> StepResult:
        """Process the messages of some streams together with the live rows of these streams.

        `messages` are valid ones with `version`; their source, key and type have dictionaries. `task` has the clocks
        after all, the number of the microbatch, and whether all that is open is to be finished.
        """

    def wanted(self, floors: Floors, streams: Callable[[], pa.Table | None] = no_streams) -> BatchFilter:
        """Return which open batches can change at these floors, with messages of these streams."""

    def due(self, ended: Floors) -> Floors:
        """Return the floors that a tick needs to close the batches whose windows end by `ended`."""


@dataclass(frozen=True, slots=True)
class Task:
    """The pure part of `process`: a step with all it needs to run on any part of the streams, anywhere.

    With `flush` the step finishes everything that is open, at the clock of each source; `last` is for `decide`.
    """

    step: Step
    floors: FloorsByVersion
    latest: int
    microbatch: int
    flush: bool = False
    last: Floors | None = None

    def with_unchanged(self, arrived: pa.Table, live: pa.Table) -> pa.Table:
        """Return the ledger rows that change and those of `live` that stay, which `changed` tells apart."""
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
