"""A driver in a process of its own, to be killed, raced and stopped: `driver.py '{"depot": ..., "ledger": ...}'`.

A list of orders is carried out side by side, on one session of Spark, which takes seconds to start: each says "done"
with its number, from 0, and "committed" also with that of the microbatch.

It says "ready" when its engine is open, starts when it is given a line, and says "committed" after each microbatch,
"folding" when a fold begins. With `topology` it drives the bank of the topology tests. With `kill` it ends itself by
SIGKILL the n-th time it comes to a point of a microbatch or of a fold. With `every` it loops on the wall clock until
SIGTERM; before its first commit it says "running" and waits for another line.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.clocks import NOW, ManualClock
from tests.engine.probe import Folding, FoldPoint, point_of
from tests.probes import Tables, no_op, open_tables, runner_on, with_probe
from tests.topology.world import bank_runner, bank_tables
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings
from windrow.testing.points import Point


class Killer:
    """Kills its own process, without any cleaning up, when a point is reached for the n-th time."""

    def __init__(self, point: Point | FoldPoint, times: int) -> None:
        self._point, self._left = point, times

    def __call__(self, here: Point | FoldPoint) -> None:
        """Count, and kill."""
        if here is self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


def side_by_side(orders: list[dict[str, Any]]) -> None:
    """Carry out orders of Spark at the same time, each in a session of its own."""
    from windrow.engine.spark.session import local_session

    session = local_session("windrow-drivers", master="local[2]")
    opened = [open_tables(Settings(**order), session.newSession()) for order in orders]
    say("ready")
    sys.stdin.readline()
    with ThreadPoolExecutor(len(orders)) as pool:
        list(pool.map(run_numbered, range(len(orders)), opened))


def run_numbered(number: int, tables: Tables) -> None:
    """Run once and say so with a number."""
    folding = with_probe(no_op, Folding)(tables)
    runner_on(folding, ManualClock(NOW), report=lambda done: say(f"committed {number} {done.microbatch}")).once()
    say(f"done {number}")


def main(order: dict[str, Any]) -> None:
    """Carry out one order."""
    kill, every, topology = (order.pop(name, None) for name in ("kill", "every", "topology"))
    settings = Settings(**order)
    session = None
    if settings.engine == "spark":
        from windrow.engine.spark.session import local_session

        session = local_session("windrow-driver", master="local[1]")
    tables = bank_tables(settings, session) if topology else open_tables(settings, session)
    say("ready")
    sys.stdin.readline()
    if every:
        run_until_terminated(with_probe(say_running())(tables), every)
    else:
        probe = Killer(point_of(kill[0]), kill[1]) if kill else lambda here: None
        make, tables = bank_runner if topology else runner_on, with_probe(telling(probe), Folding)(tables)
        make(tables, ManualClock(NOW), report=lambda _: say("committed")).once()
        say("done")


def run_until_terminated(tables: Tables, pause: int) -> None:
    """Loop until SIGTERM."""
    clock = WallClock()
    signal.signal(signal.SIGTERM, lambda *_: clock.stop())
    runner_on(tables, clock).every(pause)
    say("stopped")


def telling(probe: Any) -> Any:
    """Return a probe that also says when a fold begins."""

    def at(here: Point | FoldPoint) -> None:
        if here is FoldPoint.BEFORE_FOLD:
            say("folding")
        probe(here)

    return at


def say_running() -> Any:
    """Return a probe that says "running" before the first commit, and goes on when it is given another line."""
    first = iter([True])

    def at(here: Point) -> None:
        if here is Point.BEFORE_COMMIT and next(first, False):
            say("running")
            sys.stdin.readline()

    return at


def say(word: str) -> None:
    """Tell the test."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    orders = json.loads(sys.argv[1])
    side_by_side(orders) if isinstance(orders, list) else main(orders)
