"""Play legs into a new ledger, in ordinary microbatches.

A recorded tick is played only if it matters. It raised the floor of a source. If all of the source's next messages were
stamped at that floor or later, every processing time is the same without the tick, and the batches it closed close at
the same time. Then the tick is left out, and the microbatches around it become one. Otherwise it is played in place.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from windrow.engine import open_engine
from windrow.engine.arrivals import Arrivals
from windrow.engine.protocol import Engine
from windrow.errors import BrokenPromise, DepotChanged
from windrow.formats.part import FormatPart
from windrow.reading.digests import Streams
from windrow.replaying.legs import Leg
from windrow.replaying.ticks import Ticks
from windrow.runtime.batcher import Batcher, recorded_rules
from windrow.runtime.microbatch import Microbatch, Read
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.settings.settings import Settings


class Player:
    """Plays legs into the ledger of `settings`; `played` is called with the number of messages after each commit."""

    def __init__(
        self, settings: Settings, streams: Streams, played: Callable[[int], None], session: Any = None
    ) -> None:
        """Play only these `streams`; use Spark if a `session` is given."""
        self._settings, self._streams, self._played, self._session = settings, streams, played, session
        self._clock = WallClock()
        self._ticks = Ticks.of([])
        self._engine: Engine | None = None
        self._rules = ""
        self.microbatches = 0

    def play(self, leg: Leg) -> None:
        """Play a leg. Raises DepotChanged if the depot no longer has everything that the ledger read."""
        engine = self._engine = self.engine(leg)
        self._change(engine, leg.rules)
        if leg.accepted is not None:
            [commit] = [one for one in engine.depot_commits(leg.accepted, leg.accepted) if one.version == leg.accepted]
            self._microbatch(engine, leg.rules).run_accept(commit)
            self._committed(0)
        self._ticks = self._ticks.and_then(Ticks.of(leg.ticks))
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
            stop = min(leg.depot_version, self._ticks.first_that_matters(summary))
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
        floors, self._ticks = self._ticks.split(upto)
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
        self._ticks = self._ticks.above(microbatch.primed.sources.floors)
        return microbatch

    def _batcher(self, rules: str) -> Batcher:
        return Batcher(recorded_rules(rules), only=self._streams.named)

    def _committed(self, messages: int) -> None:
        self.microbatches += 1
        self._played(messages)
