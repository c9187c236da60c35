"""Create the ledger of a replay, and play legs into it, in ordinary microbatches.

A recorded tick is played in place only if it matters (`ticks`), otherwise the microbatches around it become one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from windrow.columnar.arrow import to_plain_types
from windrow.delta.creation import create_ledger
from windrow.delta.locations import is_catalog_name
from windrow.delta.table import scan_rows
from windrow.engine.embedded import EmbeddedEngine
from windrow.errors import DepotChangedError, DepotUnreadableError, IncompatibleTableError, InternalError
from windrow.formats.settings import FormatSettings
from windrow.ledger import Ledger, ledger_of
from windrow.model import tables
from windrow.model.commits import Commit
from windrow.reading.digests import Streams
from windrow.replaying.legs import MicrobatchRange, ReplaySegment
from windrow.replaying.ticks import effective_ticks, first_effective, split, ticks_of
from windrow.runtime.batcher import Batcher, recorded_rules
from windrow.runtime.ledger_state import DepotPosition, first_rows
from windrow.runtime.microbatch import DepotRead, MicrobatchAttempt
from windrow.runtime.opening import tables_of
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.source import Source
from windrow.source.arrivals import Arrivals

BYTES_OF_MESSAGE = 4_000  # of memory: four times what a message takes, because the comparison needs more


def create_replay_ledger(source: Source, ledger: Ledger, span: MicrobatchRange, rules: str) -> None:
    """Create the ledger of a replay. Raises IncompatibleTableError if something is there already."""
    settings, start = ledger.settings, span.start
    require_new(ledger)
    if start is None:
        source.require_mapping()
        ledger.create(_first(source, span, rules), settings.retention)
        return
    schema = tables.ledger_schema(start.payload, raw=start.raw)
    with scan_rows(start.table) as batches:
        pieces = (
            rows
            for piece in batches
            for rows in to_plain_types(pa.table(piece)).select(schema.names).cast(schema).to_batches()
        )
        create_ledger(settings.ledger, pa.RecordBatchReader.from_batches(schema, pieces), settings.retention)


def require_new(ledger: Ledger) -> None:
    """Raise IncompatibleTableError if a ledger or a table of states exists where that of a replay should be."""
    # guard: replay-into-new-table
    if ledger.table() is not None:
        raise IncompatibleTableError(
            f"there is already a table at {ledger.settings.ledger}", "Choose another path (--into)."
        )


def _first(source: Source, span: MicrobatchRange, rules: str) -> pa.Table:
    """Return the first row of a ledger that begins where the original one began.

    The first version with messages replaces a time or a count: the messages are the same.
    """
    start_from = span.end.progress().start_from
    if start_from != "beginning":
        start_from = f"version:{span.first}"
    reached = -1 if start_from == "beginning" else span.first - 1
    depot = source.depot()
    schema = tables.ledger_schema(depot.payload, raw=depot.raw)
    return first_rows(schema, {None: DepotPosition(depot.id, start_from, reached)}, rules)


def _commit(source: Source, version: int) -> Commit:
    """Return a commit of the depot. Raises DepotUnreadableError if its log no longer has it."""
    for commit in source.commits(version, version):
        if commit.version == version:
            return commit
    raise DepotUnreadableError(f"the depot's log no longer has the commit of version {version}, which was skipped")


def local_ledger(ledger: Ledger) -> Ledger:
    """Return a ledger that delta-rs writes in this process."""
    return ledger_of(EmbeddedEngine(ledger.settings), ledger.settings)


class SegmentReplayer:
    """Plays legs into the ledger of `settings`, only the `streams`, with Spark if a `session` is given.

    `played` is called with the messages so far after each commit.
    """

    def __init__(
        self, settings: Settings, streams: Streams, played: Callable[[int], None], session: Any = None
    ) -> None:
        self._settings, self._streams, self._played, self._session = settings, streams, played, session
        self._clock = WallClock()
        self._ticks = ticks_of([])
        self._tables: tuple[Source, Ledger] | None = None
        self._rules = ""
        self.microbatches = self._messages = 0

    def play(self, leg: ReplaySegment) -> None:
        """Play a leg.

        Raises DepotChangedError or DepotUnreadableError if the depot no longer has everything that the ledger read.
        """
        source, ledger = self._tables = self.tables(leg)
        self._change(leg.rules)
        if leg.accepted is not None:
            self._microbatch(leg.rules).run_accept(_commit(source, leg.accepted))
            self._report_commit(0)
        self._ticks = pa.concat_tables([self._ticks, ticks_of(leg.ticks)]).combine_chunks()
        reached = self._microbatch(leg.rules).primed.reached.depot_version
        if reached < leg.depot_version:
            most = self._settings.max_messages
            if ledger.engine.name == "embedded":  # this process has to hold them
                most = min(most, self._settings.max_memory_bytes // BYTES_OF_MESSAGE)
            with source.arrivals(reached, leg.depot_version) as arrivals:
                if arrivals is not None:
                    self._process(leg, arrivals, most)
            reached = self._microbatch(leg.rules).primed.reached.depot_version
        if reached != leg.depot_version:
            raise DepotChangedError(
                f"the ledger read messages up to depot version {leg.depot_version}, but the depot has them up to "
                f"{reached}",
                "`windrow verify` says what is missing.",
            )
        if leg.flushed_at is not None:
            self._tick(leg.rules)
            self._microbatch(leg.rules).run_tick(leg.flushed_at, "flush")
            self._report_commit(0)
        if leg.next_rules is not None:
            self._change(leg.next_rules)

    def tables(self, leg: ReplaySegment) -> tuple[Source, Ledger]:
        """Return the depot, read with the mapping and format of a leg, and the new ledger, which is at a path.

        Spark reads a depot in a catalog, or through Spark Connect; then this process writes the ledger on its own disk.
        """
        mapping: dict[str, Any] = {"depot_columns": json.loads(leg.column_mapping or "{}")}
        if leg.format is not None:
            mapping["format"] = FormatSettings.of_record(leg.format)
        source, ledger = tables_of(self._settings.model_copy(update=mapping), self._session)
        is_elsewhere = source.engine.remote or is_catalog_name(self._settings.depot)
        return source, local_ledger(ledger) if is_elsewhere else ledger

    def finish(self) -> None:
        """Play the remaining ticks."""
        if self._tables is not None:
            self._tick(self._rules)

    def _process(self, leg: ReplaySegment, arrivals: Arrivals, max_messages: int) -> None:
        """Process the messages up to the end of the leg, with a stop at each tick that matters."""
        while True:
            microbatch = self._microbatch(leg.rules)
            reached = microbatch.primed.reached.depot_version
            arrived = arrivals.after(reached, max_messages)
            if arrived is None or min(arrived.expected) > leg.depot_version:
                return
            messages = arrived.parse(microbatch.primed.partial)
            summary = messages.summarise(leg.latest)
            stop = min(leg.depot_version, first_effective(self._ticks, summary))
            if stop < min(arrived.expected):
                self._tick(leg.rules, stop)
                continue
            if max(arrived.expected) > stop:
                before_tick = arrivals.after(reached, max_messages, last_version=stop)
                if before_tick is None:
                    raise InternalError(f"depot versions {reached + 1} to {stop} have messages, and none arrived")
                messages = before_tick.parse(microbatch.primed.partial)
            committed = microbatch.run_messages({None: DepotRead(messages, arrivals.listed.fingerprints)}, leg.latest)
            self._report_commit(committed.message_count)

    def _tick(self, rules: str, last_version: int | None = None) -> None:
        """Play the ticks up to a depot version (default: all) as one, if they raise a floor."""
        floors, self._ticks = split(self._ticks, last_version)
        if len(floors.source):
            self._microbatch(rules).run_tick(floors)
            self._report_commit(0)

    def _change(self, rules: str) -> None:
        """Put rules into force, unless they are."""
        microbatch = self._microbatch(rules)
        if microbatch.primed.rules != rules:
            self._tick(microbatch.primed.rules)
            microbatch = self._microbatch(rules)
            microbatch.run_change(self._batcher(rules).cuts_after_change(microbatch.primed))
            self._report_commit(0)
        self._rules = rules

    def _microbatch(self, rules: str) -> MicrobatchAttempt:
        """Prime a microbatch under rules, and drop the ticks below its floors."""
        if self._tables is None:
            raise InternalError("a leg is played before the next microbatch")
        source, ledger = self._tables
        microbatch = MicrobatchAttempt(ledger, {None: source}, self._batcher(rules), self._clock)
        self._ticks = effective_ticks(self._ticks, microbatch.primed.sources.floors)
        return microbatch

    def _batcher(self, rules: str) -> Batcher:
        return Batcher(recorded_rules(rules), only=self._streams)

    def _report_commit(self, messages: int) -> None:
        self.microbatches += 1
        self._messages += messages
        self._played(self._messages)
