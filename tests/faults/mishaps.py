"""What tests do to disks and rights, and how they see that nothing was lost."""

from __future__ import annotations

import os
import re
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable

from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.probes import Wrapped, no_op, with_probe
from windrow import reading
from windrow.delta import table as storage
from windrow.ledger.live import Live
from windrow.testing.points import Point, ProbedLedger
from windrow.verify import verify

NOBODY = 65534
OLD = 100  # days, and retention is 90
STAMPS = re.compile(r'"(timestamp|modificationTime|deletionTimestamp)":(\d{13})')


@contextmanager
def full_disk(limit: int = 0, process: int = 0) -> Iterator[None]:
    """Let no file of a process grow beyond `limit` bytes: a write beyond it fails, as on a full disk."""
    before = resource.prlimit(process, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(process, resource.RLIMIT_FSIZE, before)


class Filling(ProbedLedger):
    """A ledger whose disk is full from a point of the microbatch on, up to the end of its commit."""

    def __init__(self, ledger: Any, point: Point, limit: int) -> None:
        super().__init__(ledger, self._fill)
        self._point, self._limit, self._disk = point, limit, None

    def _fill(self, here: Point) -> None:
        if here is self._point:
            self._disk = full_disk(self._limit)
            self._disk.__enter__()

    def commit(self, rows: Any, control: pa.Table, live: Live, token: str, *more: Any) -> int | None:
        """Commit on what is left of the disk, then make room."""
        try:
            return super().commit(rows, control, live, token, *more)
        finally:
            if self._disk:
                self._disk.__exit__(None, None, None)


def with_full_disk(point: Point, limit: int) -> Wrapped:
    """Return what fills the disk at a point of the microbatch."""
    return with_probe(no_op, lambda ledger, _: Filling(ledger, point, limit))


def blocked(place: Path) -> None:
    """Put a directory where a file is to be written."""
    place.mkdir(exist_ok=True)


@contextmanager
def without_root() -> Iterator[None]:
    """Give up the rights of root where the tests have them, because nothing is read-only for root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@contextmanager
def rights(mode: int, *places: Path) -> Iterator[None]:
    """Give files and directories other rights, and back those they had."""
    before = {place: place.stat().st_mode for place in places}
    for place in places:
        place.chmod(mode)
    try:
        yield
    finally:
        for place, was in before.items():
            place.chmod(was)


def places(table: str) -> list[Path]:
    """Return the directories of a table, the table's own first."""
    return [Path(table), *(path for path in sorted(Path(table).rglob("*")) if path.is_dir())]


def data_files(table: str, pattern: str = "**/*.parquet") -> set[Path]:
    """Return the data files of a table."""
    return set(Path(table).glob(pattern))


def log_file(table: str, version: int) -> Path:
    """Return the log's file of a version."""
    return Path(table) / "_delta_log" / f"{version:020}.json"


def clean_up(table: str) -> None:
    """Compact a table and remove every file that its latest version does not need."""
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def age(table: str, since: int = 0) -> None:
    """Let all files of a table look as if they were old, and so what its commits from a version on say of the time."""
    for file in Path(table, "_delta_log").glob("*.json"):
        if int(file.stem) >= since:
            older = STAMPS.sub(lambda match: f'"{match[1]}":{int(match[2]) - OLD * 86_400_000}', file.read_text())
            file.write_text(older)
    for checkpoint in Path(table, "_delta_log").glob("*checkpoint*"):
        checkpoint.unlink()  # it has the stamps as they were
    DeltaTable(table).create_checkpoint()
    for path in Path(table).rglob("*.*"):
        if path.is_file():
            os.utime(path, (time.time() - OLD * 86_400,) * 2)


def run(world: World, factory: EngineFactory) -> int:
    """Run without retries; return how many messages were read."""
    return world.runner(factory, max_retries=0).once().total("message_count")


def assert_whole(world: World) -> None:
    """The ledger equals one call of `windrow.batch` over the depot, its books balance, and verify and status agree."""
    assert world.canonical() == world.expected()
    world.assert_balanced()
    assert_sound(world)


def assert_sound(world: World) -> None:
    """Verify finds no difference, and status and show can say what is there."""
    report = verify(world.depot, world.ledger)
    assert report.differences == ()
    status = reading.status(world.depot, world.ledger, NOW)
    assert status.totals.message_count == report.books[-1].messages_read
    shown = reading.rejections(world.ledger, limit=1_000)
    assert len(shown) == report.books[-1].rejected


def forget_tables() -> None:
    """Forget which tables this process has open: what comes next opens them, as another process would."""
    storage.OPEN_TABLES.clear()


@contextmanager
def damaged(file: Path, damage: str) -> Iterator[None]:
    """Let a file be gone, empty, cut short or full of something else, and put it back."""
    content = file.read_bytes()
    file.unlink()
    other = {"empty": b"", "cut": content[: len(content) // 2], "other": b"this is no table\n" * 100}
    if damage in other:
        file.write_bytes(other[damage])
    checksum = file.parent / f".{file.name}.crc"
    kept = checksum.read_bytes() if checksum.exists() else None
    checksum.unlink(missing_ok=True)
    try:
        yield
    finally:
        file.write_bytes(content)
        if kept is not None:
            checksum.write_bytes(kept)


def error_lines(stderr: str) -> list[str]:
    """Return what a command said on standard error, but its log."""
    return [line for line in stderr.splitlines() if not line.startswith('{"event"')]
