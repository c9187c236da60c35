"""A driver of the bank in a process of its own, which is killed where a test wants it."""

from __future__ import annotations

from multiprocessing.connection import Connection
from typing import Any

from tests.clocks import NOW, ManualClock
from tests.engine.driver import Killer
from tests.probes import no_op, with_probe
from tests.topology.world import bank_runner, bank_tables
from windrow.settings.settings import Settings
from windrow.testing.points import Point


def drive_bank(pipe: Connection, values: dict[str, Any], kill: tuple[str, int] | None) -> None:
    """Be a driver of the bank; at a point for the n-th time, end by SIGKILL."""
    settings = Settings(**values)
    probe = Killer(Point(kill[0]), kill[1]) if kill else no_op
    pipe.send("ready")
    pipe.recv()
    bank_runner(with_probe(probe)(bank_tables(settings)), ManualClock(NOW)).once()
