"""Create the ledger of a replay, and play legs into it, in ordinary microbatches.

A recorded tick is played in place only if it matters (`ticks`), else the microbatches around it become one.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from windrow.columnar.arrow import plain
from windrow.delta.creation import create_ledger
from windrow.delta.table import scanned
from windrow.engine import open_engine
from windrow.engine.protocol import Engine
from windrow.errors import BrokenPromise, DepotChanged, DepotUnreadable, TableRefused
from windrow.formats.part import FormatPart
from windrow.model import tables
from windrow.model.commits import Commit
from windrow.reading.digests import Streams
from windrow.reading.tables import Ledger
from windrow.replaying.legs import Leg
from windrow.replaying.microbatch_range import Span
from windrow.replaying.ticks import above, first_that_matters, split, ticks_of
from windrow.runtime.batcher import Batcher, recorded_rules
from windrow.runtime.ledger_state import Reached, first_rows
from windrow.runtime.microbatch import Microbatch, Read
from windrow.runtime.wall_clock import WallClock
from windrow.source.arrivals import Arrivals

if TYPE_CHECKING:
    from windrow.settings.settings import Settings


def begin(engine: Engine, into: str, span: Span, rules: str, keep: str) -> None:
    """Create the ledger of a replay. Raises TableRefused if something is there already."""
    if engine.ledger() is not None:
        raise TableRefused(f"there is a ledger at {into} already", "Choose another path (--into).")
    if span.begin is None:
        engine.create_ledger(_first(engine, span, rules), keep)
    else:
        with scanned(span.begin.table) as found:
            create_ledger(into, _copied(span.begin, found), keep)


def _first(engine: Engine, span: Span, rules: str) -> pa.Table:
    """Return the first row of a ledger that begins where the original one began.

    If that was given as a time or a count, the first version with messages takes its place: the messages are the same.
    """
    start_from = span.end.progress().start_from
    if start_from != "beginning":
        start_from = f"version:{span.first}"
    reached = -1 if start_from == "beginning" else span.first - 1
    depot = engine.depot()
    schema = tables.ledger_schema(depot.payload, raw=depot.raw)
    return first_rows(schema, {None: Reached(depot.id, start_from, reached)}, rules)


def _copied(ledger: Ledger, found: pa.RecordBatchReader) -> pa.RecordBatchReader:
    """Return the rows of a ledger in the schema of a new one, piece by piece."""
    schema = tables.ledger_schema(ledger.payload, raw=ledger.raw)
    pieces = (rows for piece in found for rows in plain(pa.table(piece)).select(schema.names).cast(schema).to_batches())
    return pa.RecordBatchReader.from_batches(schema, pieces)


def _commit(engine: Engine, version: int) -> Commit:
    """Return a commit of the depot. Raises DepotUnreadable if its log no longer has it."""
    for commit in engine.depot_commits(version, version):
        if commit.version == version:
            return commit
    raise DepotUnreadable(f"the depot's log no longer has the commit of version {version}, which was accepted")


class Player:
    """Plays legs into the ledger of `settings`; `played` is called with the messages so far after each commit."""

    def __init__(
        self, settings: Settings, streams: Streams, played: Callable[[int], None], session: Any = None
    ) -> None:
        """Play only these `streams`; use Spark if a `session` is given."""
        self._settings, self._streams, self._played, self._session = settings, streams, played, session
        self._clock = WallClock()
        self._ticks = ticks_of([])
        self._engine: Engine | None = None
        self._rules = ""
        self.microbatches = self._messages = 0

    def play(self, leg: Leg) -> None:
        """Play a leg. Raises DepotChanged or DepotUnreadable if the depot no longer has all that the ledger read."""
        engine = self._engine = self.engine(leg)
        self._change(engine, leg.rules)
        if leg.accepted is not None:
            self._microbatch(engine, leg.rules).run_accept(_commit(engine, leg.accepted))
            self._committed(0)
        self._ticks = pa.concat_tables([self._ticks, ticks_of(leg.ticks)]).combine_chunks()
        reached = self._microbatch(engine, leg.rules).primed.reached.depot_version
        if reached < leg.depot_version:
            engine.read(reached, leg.depot_version, lambda arrivals: self._process(engine, leg, arrivals))
            reached = self._microbatch(engine, leg.rules).primed.reached.depot_version
        if reached != leg.depot_version:
            raise DepotChanged(
                f"the ledger read messages up to depot version {leg.depot_version}, the depot has them up to {reached}",
                "`windrow verify` says what is missing.",
            )
        if leg.flushed_at is not None:
            self._tick(engine, leg.rules)
            self._microbatch(engine, leg.rules).run_tick(leg.flushed_at, "flush")
            self._committed(0)
        if leg.next_rules is not None:
            self._change(engine, leg.next_rules)

    def engine(self, leg: Leg) -> Engine:
        """Return an engine that reads the depot with the mapping and format of a leg."""
        mapping: dict[str, Any] = {"depot_columns": json.loads(leg.columns or "{}")}
        if leg.format is not None:
            mapping["format"] = FormatPart(**json.loads(leg.format))
        mapped = self._settings.model_copy(update=mapping)
        return open_engine(mapped, self._session)

    def finish(self) -> None:
        """Play the remaining ticks."""
        if self._engine is not None:
            self._tick(self._engine, self._rules)

    def _process(self, engine: Engine, leg: Leg, arrivals: Arrivals) -> None:
        """Process the messages up to the end of the leg, with a stop at each tick that matters."""
        while True:
            microbatch = self._microbatch(engine, leg.rules)
            reached = microbatch.primed.reached.depot_version
            arrived = arrivals.after(reached, self._settings.max_messages)
            if arrived is None or min(arrived.expected) > leg.depot_version:
                return
            messages = arrived.parse(microbatch.primed.partial)
            summary = messages.summarise(leg.latest)
            stop = min(leg.depot_version, first_that_matters(self._ticks, summary))
            if stop < min(arrived.expected):
                self._tick(engine, leg.rules, stop)
                continue
            if max(arrived.expected) > stop:
                before_tick = arrivals.after(reached, self._settings.max_messages, upto=stop)
                if before_tick is None:
                    raise BrokenPromise(f"depot versions {reached + 1} to {stop} have messages, and none arrived")
                messages = before_tick.parse(microbatch.primed.partial)
            done = microbatch.run_messages({None: Read(messages, arrivals.listed.fingerprints)}, leg.latest)
            self._committed(done.messages)

    def _tick(self, engine: Engine, rules: str, upto: int | None = None) -> None:
        """Play the ticks up to a depot version (default: all) as one, if they raise a floor."""
        floors, self._ticks = split(self._ticks, upto)
        if len(floors.source):
            self._microbatch(engine, rules).run_tick(floors)
            self._committed(0)

    def _change(self, engine: Engine, rules: str) -> None:
        """Put rules in force, if they are not."""
        microbatch = self._microbatch(engine, rules)
        if microbatch.primed.rules != rules:
            self._tick(engine, microbatch.primed.rules)
            microbatch = self._microbatch(engine, rules)
            microbatch.run_tick(self._batcher(rules).follow(microbatch.primed), "rules")
            self._committed(0)
        self._rules = rules

    def _microbatch(self, engine: Engine, rules: str) -> Microbatch:
        """Prime a microbatch under rules, and drop the ticks below its floors."""
        microbatch = Microbatch(engine, self._batcher(rules), self._clock)
        self._ticks = above(self._ticks, microbatch.primed.sources.floors)
        return microbatch

    def _batcher(self, rules: str) -> Batcher:
        return Batcher(recorded_rules(rules), only=self._streams)

    def _committed(self, messages: int) -> None:
        self.microbatches += 1
        self._messages += messages
        self._played(self._messages)
