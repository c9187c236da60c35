"""Faults of amendments: kills, failing commits, lost replies, and others that amend or read at the same time.

Whatever happens, the ledger must get the amendment that an undisturbed copy of it got, once.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from tests.engine.driver import Killer
from tests.engine.factory import EMBEDDED
from tests.engine.probe import POINTS, Folding, point_of
from tests.engine.world import ledger_rows
from tests.faults.trials.processes import Child, children, driver, values_of
from tests.faults.trials.trial import Trial
from tests.messages import Row
from tests.probes import no_op
from windrow.batching.rules import Rules
from windrow.replaying import amend, amendment, replay
from windrow.settings.settings import Settings
from windrow.testing.points import Point, Probe

PATIENT = Rules(window="10s", max_delay="8s", max_lead="1s")  # of a random log some messages are 5 to 9 s late
Changes = Counter[tuple[Any, ...]]


def killed(trial: Trial) -> None:
    """Kill two processes that amend, at a point each; the third one may end."""
    branch, expected = branched(trial)
    for _ in range(2):
        kill = (trial.random.choice(POINTS).value, 1)
        with children(Child(amend_in_process, values_of(trial), branch, kill)) as (child,):
            child.go()
            trial.struck |= child.status() == -signal.SIGKILL
    amend_with(trial.world.settings(EMBEDDED, **trial.settings), branch)
    require_amended(trial, expected)


def failing(trial: Trial) -> None:
    """Let commits fail, or take place without a reply."""
    branch, expected = branched(trial)
    points = trial.random.choices([Point.BEFORE_COMMIT, Point.AFTER_COMMIT], k=trial.random.randint(1, 3))

    def at(here: Point) -> None:
        if points and here is points[-1]:
            points.pop()
            trial.struck = True
            raise OSError("it failed")

    amend_with(trial.world.settings(trial.factory, **trial.settings), branch, at, trial.factory.session)
    require_amended(trial, expected)


def raced(trial: Trial) -> None:
    """Let two processes amend, while a driver reads on."""
    branch, expected = branched(trial)
    trial.publish()
    amending = [Child(amend_in_process, values_of(trial), branch, None) for _ in range(2)]
    with children(*amending, driver(trial)) as started:
        for child in started:
            child.go()
        statuses = [child.status() for child in started]
    trial.struck = bool(expected)  # what changes nothing has nothing to race for
    if statuses != [0, 0, 0]:
        raise RuntimeError(f"two that amend and a driver ended with {statuses}")
    require_amended(trial, expected)


def branched(trial: Trial) -> tuple[str, Changes]:
    """Read some versions; return a branch that waits longer, and what amending a copy of the ledger by it changes."""
    trial.lengthen(trial.random.randint(10, 16), trial.random.randint(10, 30))
    trial.publish(8)
    trial.run()
    branch, copy = str(trial.folder / "branch"), str(trial.folder / "copy")
    replay(trial.world.settings(EMBEDDED), into=branch, rules=PATIENT)
    shutil.copytree(trial.world.ledger, copy)
    amend(trial.world.settings(EMBEDDED).model_copy(update={"ledger": copy}), branch)
    if trial.random.random() < 0.5:  # a ledger may have gone on since it was replayed
        trial.publish(1)
        trial.run()
    return branch, changes(copy)


def amend_in_process(pipe: Connection, values: dict[str, Any], branch: str, kill: tuple[str, int] | None) -> None:
    """Amend; at a point for the n-th time, end by SIGKILL."""
    pipe.send("ready")
    pipe.recv()
    amend_with(Settings(**values), branch, Killer(point_of(kill[0]), kill[1]) if kill else no_op)


def amend_with(settings: Settings, branch: str, probe: Probe = no_op, session: Any = None) -> None:
    """Amend, with a probe at the points of the commit."""
    opened = amendment.tables_of

    def probed(*arguments: Any) -> tuple[Any, Any]:
        source, ledger = opened(*arguments)
        return source, Folding(ledger, probe)

    with patch.object(amendment, "tables_of", probed):
        amend(settings, branch, spark=session)


def require_amended(trial: Trial, expected: Changes) -> None:
    """Raise RuntimeError unless the ledger has these changes, each once."""
    made = changes(trial.world.ledger)
    if made != expected:
        raise RuntimeError(f"amended otherwise: {made - expected} in place of {expected - made}")


def changes(ledger: str) -> Changes:
    """Return the amended batches of a ledger, and what each supersedes, without the numbers of microbatches."""
    rows = ledger_rows(ledger, "amended", "superseded")
    heirs = {row["id"]: _batch(row) for row in rows if row["state"] == "amended"}
    superseded = [row for row in rows if row["state"] == "superseded"]
    return Counter(
        [*heirs.values(), *((row["superseded_id"], row["reason"], heirs[row["superseded_by"]]) for row in superseded)]
    )


def _batch(row: Row) -> tuple[Any, ...]:
    window = (row[name] for name in ("source", "key", "window_start", "window_end", "part"))
    return (*window, *(tuple(message.values()) for message in row["messages"]))
