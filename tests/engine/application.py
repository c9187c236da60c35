"""A Spark application on a cluster, in a process of its own: `application.py spark://...`.

It says "ready" when it has a session, carries out each order that it is given as a line of JSON, and says "done". An
order has the settings of a run; `hold` holds the first tasks of its `process` or its `commit`, and with `wait` it says
"waiting" when a microbatch first comes to a point, and goes on when it is given an empty line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from tests.clocks import NOW, ManualClock
from tests.engine.driver import say
from tests.engine.held import BlockingBatcher, HeldLedger, Hold
from tests.probes import Tables, act_once, no_op, open_tables, runner_on, with_probe
from windrow.engine.spark.session import local_session
from windrow.settings.settings import Settings
from windrow.testing.points import Point, Probe


def main(master: str) -> None:
    """Carry out orders until there are no more."""
    session = local_session("windrow-application", master=master)
    say("ready")
    for line in sys.stdin:
        order = json.loads(line)
        require_executors(session, order["executors"])
        run(session, Settings(**order["settings"]), order["hold"], order["wait"])
        say("done")


def run(session: Any, settings: Settings, hold: tuple[str, Any] | None, wait: str | None) -> None:
    """Batch what is new."""
    phase, task_hold = (hold[0], Hold(**hold[1])) if hold else ("", None)
    tables = open_tables(settings, session)
    if phase == "commit":
        tables = Tables(tables.sources, HeldLedger(tables.engine, settings, task_hold))
    runner = runner_on(with_probe(waiting(wait))(tables), ManualClock(NOW))
    if phase == "process":
        runner.driver.algorithm = BlockingBatcher(runner.driver.algorithm.rules, hold=task_hold)
    runner.once()


def waiting(point: str | None) -> Probe:
    """Return a probe that waits at a point."""

    def wait() -> None:
        say("waiting")
        sys.stdin.readline()

    return act_once(Point(point), wait) if point else no_op


def require_executors(session: Any, count: int) -> None:
    """Wait until the application has so many executors; the driver counts as one more."""
    while session.sparkContext._jsc.sc().getExecutorMemoryStatus().size() != count + 1:
        time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1])
