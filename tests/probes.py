"""Probes that tests put at the points of a microbatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from windrow.ingest import writer_of
from windrow.ingest.writer import DepotWriter
from windrow.model.clock import Clock
from windrow.runtime.loop import Runner
from windrow.runtime.opening import DepotReader, tables_of
from windrow.runtime.run import batcher_of
from windrow.settings.settings import Settings
from windrow.testing.points import Point, Probe, ProbedAlgorithm, ProbedLedger, ProbedSource


def no_op(point: Point) -> None:
    """Do nothing at any point."""


def act_once(point: Point, act: Callable[[], object]) -> Probe:
    """Return a probe that acts the first time a microbatch reaches `point`."""
    left = [act]

    def at(here: Point) -> None:
        if here is point and left:
            left.pop()()

    return at


def fail_times(point: Point, times: int, error: type[Exception] = OSError) -> Probe:
    """Return a probe that raises at `point`, `times` times."""
    left = [error(f"the disk failed {point.value}")] * times

    def at(here: Point) -> None:
        if here is point and left:
            raise left.pop()

    return at


@dataclass(frozen=True)
class Tables:
    """The depots and the ledger of a runner; the one depot of a batcher is named None."""

    sources: Mapping[str | None, Any]
    ledger: Any

    @property
    def source(self) -> Any:
        """Return the first depot."""
        return next(iter(self.sources.values()))

    @property
    def engine(self) -> Any:
        """Return the engine that reaches them."""
        return self.ledger.engine

    @property
    def writer(self) -> DepotWriter:
        """Return what appends to the first depot."""
        return writer_of(self.engine, self.source.settings)


Wrapped = Callable[[Tables], Tables]


def open_tables(settings: Settings, session: Any = None) -> Tables:
    """Open depot and ledger of the settings."""
    source, ledger = tables_of(settings, session)
    return Tables({None: source}, ledger)


def with_probe(at: Probe, kind: Callable[..., ProbedLedger] = ProbedLedger) -> Wrapped:
    """Return what puts a probe at the points of a microbatch on tables."""

    def wrapped(tables: Tables) -> Tables:
        ledger = kind(tables.ledger, at)
        return Tables({name: ProbedSource(source, ledger) for name, source in tables.sources.items()}, ledger)

    return wrapped


def runner_on(tables: Tables, clock: Clock, **called: Any) -> Runner:
    """Return a runner of the batcher on tables, with their points; `called` are the callbacks of `Runner`."""
    ledger = tables.ledger
    algorithm: Any = batcher_of(ledger.settings)
    if isinstance(ledger, ProbedLedger):
        algorithm = ProbedAlgorithm(algorithm, ledger.at)
    return Runner([DepotReader(None, tables.source)], ledger, algorithm, clock, **called)
