"""Power cuts: a producer and a driver on a disk that loses, at a random moment, all that the device does not have.

The disk is an image with ext4. A cut is ext4's own `shutdown` without a flush of its journal: what only the page cache
holds is gone, and mounting the image again finds what the device had. `python -m tests.faults.power --cuts 100` makes
so many cuts with either setting of `fsync` and counts what they cost.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

import windrow
from tests.engine.processes import driver_of
from tests.faults.trials.processes import LEDGERS, SECONDS_A_MICROBATCH, VERSIONS, Child, children, values_of
from tests.faults.trials.trial import Counted, Trial
from windrow.delta import table as storage
from windrow.delta.logfiles import ASIDE
from windrow.delta.mending import repair_log
from windrow.errors import TableMissingError, WindrowError
from windrow.verify import verify

SHUTDOWN, WITHOUT_FLUSH = 0x8004587D, 2  # EXT4_IOC_SHUTDOWN, EXT4_GOING_FLAGS_NOLOGFLUSH
CUTS_OF_A_DISK = 5
CUTS_ON_SPARK = 3
SIZE, SIZE_ON_SPARK = "256M", "1G"


def unsupported_reason() -> str:
    """Say why no disk can be made here; empty where it can."""
    try:
        with tempfile.TemporaryDirectory() as folder, disk(Path(folder), "16M") as made:
            made.cut()
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no power can be cut here: {error}"
    return ""


def is_supported() -> bool:
    """Tell whether power can be cut here."""
    return not unsupported_reason()


class Disk:
    """A disk in a file, mounted at `root`."""

    def __init__(self, folder: Path, size: str) -> None:
        self._image, self.root = folder / "image", folder / "disk"
        self.root.mkdir()
        _call("truncate", "-s", size, str(self._image))
        _call("mkfs.ext4", "-q", "-F", str(self._image))
        self.mount()

    def mount(self) -> None:
        """Have the disk there."""
        _call("mount", "-o", "loop", str(self._image), str(self.root))

    def unmount(self) -> None:
        """Have it gone, as soon as nobody holds a file of it."""
        for _ in range(100):
            if subprocess.run(["umount", str(self.root)], capture_output=True, check=False).returncode == 0:
                return
            time.sleep(0.05)
        _call("umount", str(self.root))

    def cut(self) -> None:
        """Lose what the device does not have; nobody can write until the disk is mounted again."""
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, SHUTDOWN, struct.pack("I", WITHOUT_FLUSH))
        finally:
            os.close(descriptor)

    def flush(self) -> None:
        """Write what is held to the device, as the system does now and then."""
        _call("sync", "-f", str(self.root))


def _call(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def disk(folder: Path, size: str = SIZE) -> Iterator[Disk]:
    """Make a disk, and take it away again."""
    made = Disk(folder, size)
    try:
        yield made
    finally:
        made.unmount()


def produce(pipe: Connection, values: dict[str, Any], start: int, fsync: bool) -> None:
    """Send messages, each with a number of its own, and say which were acknowledged."""
    pipe.send("ready")
    pipe.recv()
    with suppress(WindrowError), windrow.Producer(values["depot"], "p", fsync=fsync, linger="20ms") as producer:
        number = start
        while True:
            sent = [
                producer.send(key=f"k{at % 7}", type=f"t{at % 3}", payload=str(at)) for at in range(number, number + 5)
            ]
            for at, future in enumerate(sent, number):
                future.result(60)
                pipe.send(at)
            number += len(sent)


def drive(pipe: Connection, values: dict[str, Any], fsync: bool) -> None:
    """Batch what is there, again and again."""
    pipe.send("ready")
    pipe.recv()
    settings = windrow.Settings(**values, fsync=fsync, run={"trigger_interval": "50ms", "maintenance_interval": "2s"})
    with suppress(WindrowError):
        windrow.run(settings, once=False)


@dataclass(slots=True)
class CallCounter:
    """What cuts cost: `lost` were acknowledged, `differences` come from verify; `aside` is what was set aside."""

    cuts: int = 0
    messages: int = 0
    lost: int = 0
    twice: int = 0
    unreadable: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)
    aside: int = 0

    @property
    def sound(self) -> bool:
        """Tell whether nothing was lost, twice, different or unreadable."""
        return not (self.lost or self.twice or self.unreadable or self.differences)


def cuts(folder: Path, seed: int, fsync: bool, counted: CallCounter, times: int = CUTS_OF_A_DISK) -> None:
    """Cut the power of one disk so many times, and count after each of them."""
    chosen = random.Random(seed)
    with disk(folder) as made:
        tables = {name: str(made.root / name) for name in ("depot", "ledger")}
        values = tables | {"engine": "embedded", "rules": {"window": "2s", "max_delay": "500ms", "max_lead": "500ms"}}
        acknowledged: set[int] = set()
        for number in range(times):
            start = (seed * times + number) * 1_000_000
            newly_acknowledged = _until_cut(made, values, fsync, chosen, start)
            made.unmount()
            made.mount()
            storage.OPEN_TABLES.clear()
            counted.cuts += 1
            acknowledged |= set(newly_acknowledged)
            must_be_there = acknowledged if fsync else set()
            try:
                windrow.run(windrow.Settings(**values, fsync=fsync))
            except WindrowError as error:
                if isinstance(error, TableMissingError) and not must_be_there:
                    continue  # the power went before the device had a first commit
                counted.unreadable.append(f"seed {seed}, cut {number}: {error}")
                return
            _count(tables, must_be_there, counted)


def _until_cut(made: Disk, values: dict[str, Any], fsync: bool, chosen: random.Random, start: int) -> list[int]:
    """Let a producer and a driver work until the power is cut; return the numbers that were acknowledged."""
    sender, driver = Child(produce, values, start, fsync), Child(drive, values, fsync)
    with children(sender, driver):
        sender.go()
        time.sleep(chosen.uniform(0.0, 0.5))
        driver.go()
        for _ in range(chosen.randrange(3)):
            time.sleep(chosen.uniform(0.0, 1.5))
            made.flush()
        time.sleep(chosen.uniform(0.05, 2.0))
        made.cut()
        sender.kill()
        driver.kill()
        return list(sender.said())


def _count(tables: dict[str, str], acknowledged: set[int], counted: CallCounter) -> None:
    """Compare what was acknowledged, what the depot has and what the ledger made of it."""
    payloads = DeltaTable(tables["depot"]).to_pyarrow_table(columns=["payload"])["payload"]
    stored = [int(text) for text in payloads.to_pylist()]
    report = verify(tables["depot"], tables["ledger"])
    books = report.books[-1]
    counted.messages = max(counted.messages, len(stored))
    counted.lost += len(acknowledged - set(stored)) + books.lost
    counted.twice += len(stored) - len(set(stored)) + books.duplicated
    counted.differences += map(str, report.differences)
    counted.aside = sum(1 for table in tables.values() for _ in Path(table).glob(f"{ASIDE}/*"))


def power_cut(trial: Trial) -> None:
    """Cut the power of a producer and a driver that sync what they commit; on Spark, of a driver of many ledgers."""
    if trial.factory.name == "spark":
        trial.result = _spark_cut(trial)
        return
    counted = CallCounter()
    cuts(trial.folder, trial.random.randrange(2**20), True, counted)
    differences = (*counted.unreadable, *counted.differences)
    trial.result = Counted(counted.lost, counted.twice, differences, counted.cuts, CUTS_OF_A_DISK)


def _spark_cut(trial: Trial) -> Counted:
    """Cut the power of a driver of many ledgers, each of which is somewhere else by then; the next driver goes on."""
    with disk(trial.folder, SIZE_ON_SPARK) as made:
        folders = [made.root / str(number) for number in range(LEDGERS)]
        trials = [Trial(folder, trial.random.randrange(2**32), trial.factory) for folder in folders]
        struck = 0
        for ledger_trial in trials:
            ledger_trial.lengthen(VERSIONS * CUTS_ON_SPARK, 5)
        for _ in range(CUTS_ON_SPARK):
            for ledger_trial in trials:
                ledger_trial.publish(VERSIONS)
            made.flush()
            struck += _ledgers_cut(trial.random, made, trials)
        counted = Counted.sum(ledger_trial.counted() for ledger_trial in trials)
        return replace(counted, struck=struck, strikes=CUTS_ON_SPARK * LEDGERS)


def _ledgers_cut(chosen: random.Random, made: Disk, trials: list[Trial]) -> int:
    """Cut the power while a driver works; return how many of its ledgers it had not finished.

    Raises RuntimeError if a ledger has lost a microbatch that the driver reported.
    """
    with driver_of([values_of(trial) | {"engine": "spark"} for trial in trials]) as driver:
        driver.start()
        said = driver.words_until("committed", chosen.randrange(3 * LEDGERS // 2))
        time.sleep(chosen.uniform(0, SECONDS_A_MICROBATCH))
        running = driver.running()
        made.cut()
        driver.kill()
        said += driver.words()
        driver.status()
    finished = [word for word in said if word.startswith("done")]
    reported = {int(word.split()[1]): int(word.split()[2]) for word in said if word.startswith("committed")}
    made.unmount()
    made.mount()
    storage.OPEN_TABLES.clear()
    for number, trial in enumerate(trials):
        repair_log(trial.world.ledger, "ledger")
        microbatches = len(trial.world.history()) if DeltaTable.is_deltatable(trial.world.ledger) else 0
        if microbatches < reported.get(number, 0):
            raise RuntimeError(f"ledger {number} has {microbatches} microbatches, {reported[number]} were reported")
    return running * (len(trials) - len(finished))


def main() -> int:
    """Make the cuts that were asked for; exit status 1 when they cost anything."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.power", description=__doc__)
    parser.add_argument("--cuts", type=int, default=100, help="with either setting (%(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    options = parser.parse_args()
    if reason := unsupported_reason():
        sys.stdout.write(f"skipped: {reason}\n")
        return 0
    results = {fsync: CallCounter() for fsync in (True, False)}
    aside = dict.fromkeys(results, 0)
    for number in range(-(-options.cuts // CUTS_OF_A_DISK)):
        for fsync, counted in results.items():
            with tempfile.TemporaryDirectory(prefix="windrow-") as folder:
                cuts(Path(folder), options.seed + number, fsync, counted)
            aside[fsync] += counted.aside
            line = f"fsync = {str(fsync).lower()}: {counted}, set aside {aside[fsync]} times in all"
            sys.stderr.write(f"{line}\n")
    return int(not all(counted.sound for counted in results.values()))


if __name__ == "__main__":
    sys.exit(main())
