"""Probes that tests put at the points of a microbatch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windrow.model.clock import Clock
from windrow.runtime.opening import DepotReader
from windrow.runtime.run import batcher_of
from windrow.runtime.runner import Runner
from windrow.settings.settings import Settings
from windrow.testing.points import At, Point, Probed, ProbedAlgorithm


def nowhere(point: Point) -> None:
    """Do nothing at any point."""


def once(point: Point, act: Callable[[], object]) -> At:
    """Return a probe that acts the first time a microbatch reaches `point`."""
    left = [act]

    def at(here: Point) -> None:
        if here is point and left:
            left.pop()()

    return at


def failing(point: Point, times: int, error: type[Exception] = OSError) -> At:
    """Return a probe that raises at `point`, `times` times."""
    left = [error(f"the disk failed {point.value}")] * times

    def at(here: Point) -> None:
        if here is point and left:
            raise left.pop()

    return at


def probed_runner(engine: Probed, settings: Settings, clock: Clock, **called: Any) -> Runner:
    """Return a runner of the batcher with the points of an engine; `called` are the callbacks of `Runner`."""
    algorithm = ProbedAlgorithm(batcher_of(settings), engine.at)
    return Runner([DepotReader(None, engine, settings)], algorithm, settings, clock, **called)
