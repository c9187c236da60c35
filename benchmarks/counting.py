"""What a microbatch asks of others, counted: rows through the driver, Spark's jobs and stages, files of the tables.

Time on one machine does not say how something grows on a cluster; these do. Jobs and stages come from Spark's public
`StatusTracker`: job ids are consecutive, so a job of our own before and one after bound those between. Rows are those
that Python gets from Spark (`toArrow`, `collect`, `toPandas`) or gives to it (`createDataFrame`); what delta-rs reads
in the driver's own process is none of them, but its files count. Files are counted by the kernel (inotify, so Linux):
every opening and every listing of a directory below the tables, whichever process asks. That is what an object store
would be asked, but for questions whether something is there. Hadoop's own checksum files, which only a local disk has,
do not count.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self
from unittest.mock import patch
from uuid import uuid4

from pyspark.sql import SparkSession

OPEN, CREATE, CLOSE, DIRECTORY, OVERFLOW = 0x20, 0x100, 0x18, 0x40000000, 0x4000  # of inotify.h
EVENT = struct.Struct("iIII")
EVENTS = 4_194_304  # bytes: more than the kernel keeps of a watch
LOG_ENTRY = re.compile(r"\d{20}(\.\w+)*\.(json|parquet|crc)|_last_checkpoint")
CHECKSUM = re.compile(r"\..*\.crc")
PATIENCE_SECONDS = 60


@dataclass(frozen=True, slots=True)
class OperationCounts:
    """What one microbatch asked for."""

    rows: int  # through the driver's Python, to it and from it
    jobs: int
    stages: int
    log_entries: int  # entries, checkpoints and checksums under `_delta_log` that were read
    files: int  # opened, to be read or written, the log's too
    listings: int

    def __sub__(self, other: OperationCounts) -> OperationCounts:
        """Return the difference."""
        return OperationCounts(*(getattr(self, field.name) - getattr(other, field.name) for field in fields(self)))


def counted(spark: SparkSession, tables: Sequence[Path], call: Callable[[], object]) -> OperationCounts:
    """Return what a call asks for; `tables` are the directories of its tables, as they are before it."""
    start = mark(spark)
    with ExitStack() as watching:
        rows = watching.enter_context(passing())
        opened = watching.enter_context(Opened(tables))
        call()
        seen = opened.seen()
    jobs = range(start + 1, mark(spark))
    return OperationCounts(rows[0], len(jobs), stages(spark, jobs), seen["log"], seen["files"], seen["listings"])


def mark(spark: SparkSession) -> int:
    """Run a job, and return its id once Spark's listeners know it: then they know all before it."""
    context, name = spark.sparkContext, f"mark-{uuid4()}"
    context.setJobGroup(name, name)
    try:
        spark.range(1).collect()
    finally:
        for setting in ("spark.jobGroup.id", "spark.job.description", "spark.job.interruptOnCancel"):
            context.setLocalProperty(setting, None)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (jobs := context.statusTracker().getJobIdsForGroup(name)):
        if time.monotonic() > deadline:
            raise RuntimeError("Spark does not tell of a job that is over")
        time.sleep(0.01)
    return int(max(jobs))


def stages(spark: SparkSession, jobs: Sequence[int]) -> int:
    """Return how many stages of jobs ran; those whose results were there already are skipped."""
    tracker = spark.sparkContext.statusTracker()
    known = [tracker.getJobInfo(job) for job in jobs]
    numbers = {stage for job in known if job is not None for stage in job.stageIds}
    stage_infos = [tracker.getStageInfo(number) for number in numbers]
    return sum(stage is not None and stage.numCompletedTasks > 0 for stage in stage_infos)


@contextmanager
def passing() -> Iterator[list[int]]:
    """Count the rows that pass between Python and Spark, in all threads, in a list of one number."""
    from pyspark.sql.classic.dataframe import DataFrame

    total, inside, lock = [0], threading.local(), threading.Lock()

    def watched(original: Callable[..., Any], size: Callable[[Any, tuple[Any, ...]], int]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            if getattr(inside, "it", False):  # one of them is made of another
                return original(*arguments, **named)
            inside.it = True
            try:
                result = original(*arguments, **named)
            finally:
                inside.it = False
            with lock:
                total[0] += size(result, arguments)
            return result

        return call

    with ExitStack() as patched:
        for name, size in (("toArrow", _rows), ("toPandas", _length), ("collect", _length)):
            patched.enter_context(patch.object(DataFrame, name, watched(getattr(DataFrame, name), size)))
        creating = watched(SparkSession.createDataFrame, _given)
        patched.enter_context(patch.object(SparkSession, "createDataFrame", creating))
        yield total


def _rows(result: Any, arguments: tuple[Any, ...]) -> int:
    return int(result.num_rows)


def _length(result: Any, arguments: tuple[Any, ...]) -> int:
    return len(result)


def _given(result: Any, arguments: tuple[Any, ...]) -> int:
    """Return the rows of what a frame is made of: an Arrow table, or anything that has a length."""
    return len(arguments[1])


class Opened:
    """Counts what is opened below directories, until the block ends. Directories made meanwhile are not seen."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories, self._watched = directories, dict[int, str]()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._kernel = -1

    def __enter__(self) -> Self:
        self._kernel = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._kernel < 0:
            raise OSError(ctypes.get_errno(), "inotify")
        below = [place for top in self._directories for place, _, _ in os.walk(top)]
        for place in below:
            # Closing is watched so that two openings of a file are not told as one.
            number = self._libc.inotify_add_watch(self._kernel, os.fsencode(place), OPEN | CREATE | CLOSE)
            if number < 0:
                raise OSError(ctypes.get_errno(), "inotify", place)
            self._watched[number] = place
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._kernel)

    def seen(self) -> Counter[str]:
        """Return how many `files` were opened, entries of a `log` read, and `listings` made since the last call."""
        counts, made = Counter[str](), Counter[tuple[int, str]]()
        for number, mask, name in self._events():
            if mask & OVERFLOW:
                raise RuntimeError("the kernel has told more than it keeps: files were not counted")
            if mask & DIRECTORY:
                counts["listings"] += bool(mask & OPEN) and not name
            elif CHECKSUM.fullmatch(name):
                continue
            elif mask & CREATE:
                made[number, name] += 1
            elif mask & OPEN:
                counts["files"] += 1
                if self._watched[number].endswith("_delta_log") and LOG_ENTRY.fullmatch(name):
                    counts["log"] += made[number, name] == 0  # what is made is opened to be written
                    made[number, name] -= made[number, name] > 0
        return counts

    def _events(self) -> Iterator[tuple[int, int, str]]:
        while True:
            try:
                buffer = os.read(self._kernel, EVENTS)
            except BlockingIOError:
                return
            at = 0
            while at < len(buffer):
                number, mask, _, length = EVENT.unpack_from(buffer, at)
                at += EVENT.size + length
                yield number, mask, buffer[at - length : at].rstrip(b"\0").decode(errors="replace")
