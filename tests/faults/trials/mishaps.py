"""Faults that a driver meets in its own process, on either engine."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

from deltalake import DeltaTable

from tests.clocks import NOW
from tests.engine.attic import Attic, age, clean_up
from tests.engine.factory import EMBEDDED
from tests.engine.probe import POINTS, FoldPoint, Mute
from tests.faults.mishaps import forget_tables, places, rights, with_full_disk, without_root
from tests.faults.trials.trial import Trial
from tests.messages import HOUR, SECOND
from tests.probes import act_once, no_op, with_probe
from windrow.errors import RetriesExhaustedError, WindrowError
from windrow.runtime.maintenance import maintain
from windrow.runtime.wall_clock import WallClock
from windrow.testing.points import Point

BEFORE = [point for point in Point if point is not Point.AFTER_COMMIT]
READ_ONLY = 0o555


def lost_reply(trial: Trial) -> None:
    """Let commits take place without an answer, or with an error after them."""
    trial.publish()
    if trial.random.random() < 0.5:
        trial.world.runner(trial.factory, with_probe(no_op, Mute), **trial.settings).once()
        trial.struck = True
    else:
        fail(trial, Point.AFTER_COMMIT)


def failing_commit(trial: Trial) -> None:
    """Let commits fail."""
    trial.publish()
    fail(trial, Point.BEFORE_COMMIT)


def failing_microbatch(trial: Trial) -> None:
    """Let attempts fail at any other point, also of a fold before its commit."""
    trial.publish()
    points = [Point.AFTER_PRIME, Point.AFTER_PLAN, Point.AFTER_PROCESS, FoldPoint.BEFORE_FOLD]
    if trial.factory.name == "embedded":
        points.append(FoldPoint.FILES_WRITTEN)
    fail(trial, trial.random.choice(points))


def fail(trial: Trial, point: Point | FoldPoint) -> None:
    """Let some attempts fail at a point, of any microbatch or fold."""
    left = trial.random.randint(1, 4)

    def at(here: Point | FoldPoint) -> None:
        nonlocal left
        if here is point and left and trial.random.random() < 0.6:
            left -= 1
            trial.struck = True
            raise OSError("it failed")

    trial.run(at)


def restored_between_runs(trial: Trial) -> None:
    """Set the ledger back between two runs."""
    trial.half()
    restore(trial)
    trial.run()


def restored_during_a_run(trial: Trial) -> None:
    """Set the ledger back at a point of a microbatch or of a fold."""
    trial.half()
    trial.run(act_once(trial.random.choice(POINTS), lambda: restore(trial)))


def restore(trial: Trial) -> None:
    """Set the ledger back to any version of before."""
    trial.restored = trial.struck = True
    DeltaTable(trial.world.ledger).restore(trial.random.randrange(trial.world.version()))


def cleaned_up_between_runs(trial: Trial) -> None:
    """OPTIMIZE, VACUUM and trim the logs of both tables, by hand and as `windrow maintain` does."""
    trial.half()
    trial.run()
    Attic(trial.world.depot).keep()
    for table in (trial.world.ledger, trial.world.depot):
        clean_up(table)
    tables = trial.world.tables(EMBEDDED)
    maintain([tables.source], tables.ledger, WallClock().now())
    trial.world.publish(*sent_again(trial))
    trial.restored = trial.struck = True


def sent_again(trial: Trial) -> list[list[dict[str, object]]]:
    """Return messages of before, to be published once more."""
    again = trial.random.sample(trial._published, min(5, len(trial._published)))
    trial._published += again
    return [again]


def depot_compacted_during_a_run(trial: Trial) -> None:
    """OPTIMIZE the depot at a point of a microbatch."""
    trial.half()
    trial.run(act_once(trial.random.choice(BEFORE), trial.strike(lambda: compact(trial.world.depot))))


def compact(table: str) -> None:
    """OPTIMIZE a table as it is now."""
    DeltaTable(table).optimize.compact()


def disk_full(trial: Trial) -> None:
    """Let the disk be full from a point on, for some bytes or all."""
    trial.half()
    limit = trial.random.choice([0, trial.random.randint(1, 20_000)])
    filling = with_full_disk(trial.random.choice(BEFORE), limit)
    try:
        trial.world.runner(trial.factory, filling, max_retries=0, **trial.settings).once()
    except RetriesExhaustedError:
        trial.struck = True


def read_only(trial: Trial) -> None:
    """Let a part of the ledger be read-only."""
    os.chmod(trial.folder, 0o777)  # noqa: PTH101, S103 - whoever writes without root's rights must reach the tables
    for file in trial.folder.rglob("*"):
        file.chmod(0o777)
    before = os.umask(0)
    try:
        trial.half()
        written = [place for place in places(trial.world.ledger) if any(path.is_file() for path in place.iterdir())]
        with rights(READ_ONLY, trial.random.choice(written)), without_root():
            trial.run(max_retries=0)
    except RetriesExhaustedError:
        trial.struck = True
    finally:
        os.umask(before)


def damaged_entry(trial: Trial) -> None:
    """Flip bits in the newest log entry of a table, or tear that of the ledger; what stops a run is brought back."""
    while trial._left:
        trial.publish(1)
        trial.run()
        table = trial.random.choice([trial.world.ledger, trial.world.depot])
        entry = max(Path(table, "_delta_log").glob("*.json"))
        content, at = entry.read_bytes(), trial.random.randrange(entry.stat().st_size)
        if table == trial.world.ledger and trial.random.random() < 0.3:
            entry.write_bytes(content[:at] + bytes(len(content) - at))  # its commit is as if it had never been told
            trial.restored = trial.struck = True
            continue
        flipped = bytes([content[at] ^ 1 << trial.random.randrange(8)])
        entry.write_bytes(content[:at] + flipped + content[at + 1 :])
        forget_tables()
        if table == trial.world.ledger:
            trial.publish(1)
        try:
            trial.run()
        except WindrowError:
            trial.struck = True
        entry.write_bytes(content)
        forget_tables()


def clock_jumps(trial: Trial) -> None:
    """Let the wall clock jump, between runs and at points of microbatches, with ticks in between."""
    trial.ticked = trial.struck = True

    def jump() -> None:
        trial.world.clock.set(NOW + trial.random.choice([-HOUR, -SECOND, SECOND, 20 * SECOND, HOUR]))

    for _ in range(3):
        trial.publish(trial.random.randint(1, 2))
        jump()
        trial.run(act_once(trial.random.choice(list(Point)), jump), idle_timeout="1s")
    trial.publish()
    trial.world.clock.set(NOW)


def sent_twice(trial: Trial) -> None:
    """Send versions two or three times."""
    while trial._left:
        trial.publish(1, trial.random.randint(1, 3))
        if trial.random.random() < 0.5:
            trial.run()
    trial.struck = True


def copied_and_touched(trial: Trial) -> None:
    """Let all log files look older, or go on with a copy of the tables elsewhere."""
    trial.half()
    trial.run(act_once(trial.random.choice(BEFORE), lambda: touch(trial)))
    folder = Path(tempfile.mkdtemp(dir=trial.folder))
    for table in ("depot", "ledger"):
        shutil.copytree(getattr(trial.world, table), folder / table, copy_function=shutil.copy)
        setattr(trial.world, table, str(folder / table))
    trial.world.publish(*sent_again(trial))
    trial.run()
    trial.struck = True


def touch(trial: Trial) -> None:
    """Give all log files another time."""
    for table in (trial.world.depot, trial.world.ledger):
        age(table, trial.random.randint(0, 10 * 24 * 3_600))


def checkpoint_lost(trial: Trial) -> None:
    """Delete Spark's checkpoints between runs and during them."""
    place = trial.folder / "checkpoints"
    trial.publish(trial.random.randint(1, 2))
    trial.run(checkpoint_location=str(place))
    shutil.rmtree(place)
    trial.publish()
    lose = trial.strike(lambda: shutil.rmtree(place))
    with suppress(RetriesExhaustedError):
        trial.run(act_once(trial.random.choice(list(Point)), lose), checkpoint_location=str(place), max_retries=1)
