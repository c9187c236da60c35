"""Read the new versions of a depot with Spark: by a stream of its change feed, or of its files without one.

Without a change data feed the log says which version added which file. The stream skips a version that changed or
removed rows; the log says which these are. A topology, which has several depots in one microbatch, reads by queries of
the feed. On Spark Connect `foreachBatch` runs in a process of the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow import errors
from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.log import added
from windrow.delta.row_changes import without_feed
from windrow.engine.spark.engine import SparkEngine
from windrow.engine.spark.errors import translated
from windrow.errors import DepotUnreadable, WindrowError, first_line
from windrow.model.commits import CHANGE, VERSION, ListedVersions
from windrow.rows.session_settings import ALIKE, configured
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.source import Source
from windrow.source.spark_arrivals import SparkArrivals

FEED_BEGAN_LATER = "DELTA_MISSING_CHANGE_DATA"
# guard: commits-not-cut
EVERY_FILE = 2_147_483_647  # a rate limit would split commits, and reading by version would lose the second half


class SparkSource(Source):
    """Reads a depot with Spark."""

    engine: SparkEngine
    _by_files = False  # how the depot is streamed

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> bool:
        """Stream the versions after `after`, up to `upto`, with a fresh checkpoint: the ledger is the real one."""
        self._keep_read(after, upto)
        commits = self.log.commits(after, upto)
        added(commits, after, upto)  # raises before the stream does if a version is gone
        # guard: depot-by-files
        self._by_files = not self.depot().feed
        taking = partial(self.take, upto=upto, handle=handle)
        pulled = bool(self._as_rows) and not self._by_files  # a topology has several depots in one microbatch
        try:
            if pulled:
                self._pull(after + 1, upto, handle)
            else:
                self._stream(Take(taking, after + 1))
        except DepotUnreadable as error:
            if self._by_files or FEED_BEGAN_LATER not in str(error.__cause__):
                raise
            self._by_files, pulled = True, False
            self._stream(Take(taking, after + 1))
        return self.engine.remote and not pulled

    def _pull(self, begin: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the versions from `begin` to `upto` by a query of the change feed."""
        try:
            self.take(feed_of(self.engine.session, self.place, begin, upto), begin, upto, handle, streamed=False)
        except PySparkException as error:
            raise translated(error) from error

    def _stream(self, take: Take) -> None:
        """Stream the changes, or without a change feed the files, until `take` has handled all."""
        # guard: stream-begins-at-ledger
        reader = self.engine.session.readStream.format("delta").option("startingVersion", take.begin)
        reader = reader.option("maxFilesPerTrigger", EVERY_FILE)
        reader = reader.option("skipChangeCommits" if self._by_files else "readChangeFeed", "true")
        stream = reader.table(reference(self.place)) if is_catalog_name(self.place) else reader.load(self.place)
        stream = with_files(stream) if self._by_files else stream
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        if self.settings.checkpoints:
            # guard: fresh-checkpoint
            writer = writer.option("checkpointLocation", f"{self.settings.checkpoints}/{uuid4().hex}")
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            raise (take.failure or failure_in(str(error)) or translated(error)) from error

    def take(
        self, frame: DataFrame, begin: int, upto: int, handle: Callable[[Arrivals], None], streamed: bool = True
    ) -> int:
        """Handle the versions up to `upto` in a frame of a stream, or of a query, on the frame's session.

        Returns the version at which the next frame begins.
        """
        session = frame.sparkSession
        try:
            with self.engine.working_on(session), configured(session, ALIKE), ExitStack() as kept:
                table = self.depot()
                commits = self.log.commits(begin - 1, upto)
                counts, listed = added(commits, begin - 1, upto), ListedVersions.of(table.id, begin, commits)
                conversion = Conversion.of(self.settings, table, self._as_rows)
                byte_count = conversion.byte_count(self.log, begin - 1, upto)
                mapped = conversion.mapped(self._changes(frame, begin, upto, table.version))
                known = conversion.counts(counts)
                arrivals = SparkArrivals.of(
                    mapped, listed, known, byte_count, self.settings, conversion, kept, streamed
                )
                if arrivals.last is None:
                    return begin
                handle(arrivals)
        except PySparkException as error:
            raise translated(error) from error
        return arrivals.last + 1

    def _changes(self, frame: DataFrame, first: int, last: int, latest: int) -> DataFrame:
        """Return the versions from `first` to `last` in a frame of the stream, as the change feed gives them.

        Raises DepotUnreadable for a version that removed rows where there is no feed: the stream skips it.
        """
        if self._by_files:
            files, removing = self.log.files_added(first, latest)
            # guard: skipped-versions-told
            if skipped := sorted(version for version in removing if version <= last):
                raise without_feed(skipped[0])
            frame = with_versions(frame, files)
        return frame if last == latest else frame.where(F.col(VERSION) <= last)


class Take:
    """The function that `foreachBatch` calls. On Spark Connect a copy of it runs in a process of the server.

    `failure` is the error of a call in this process. An error in another process comes back in the text of the stream's
    error, where `failure_in` finds it.
    """

    def __init__(self, take: Callable[[DataFrame, int], int], begin: int) -> None:
        """Handle frames from depot version `begin` on with `take`, which returns where the next one begins."""
        self._take, self.begin = take, begin
        self.failure: Exception | None = None

    def __call__(self, frame: DataFrame, _: int) -> None:
        """Handle one frame; remember where the next one begins."""
        try:
            self.begin = self._take(frame, self.begin)
        except Exception as error:
            self.failure = error
            raise RuntimeError(_marked(error)) from error


MARK = re.compile(r"<windrow>(.*?)</windrow>", re.DOTALL)


def _marked(error: Exception) -> str:
    words = (error.message, error.hint) if isinstance(error, WindrowError) else (first_line(error), "")
    return f"<windrow>{json.dumps([type(error).__name__, *words])}</windrow>"


def failure_in(text: str) -> Exception | None:
    """Return the error that `Take` put into the text of a stream's error, None if there is none."""
    found = MARK.search(text)
    if found is None:
        return None
    name, message, hint = json.loads(found[1])
    kind: Any = getattr(errors, name, None)
    if kind is None:
        return RuntimeError(f"{name}: {message}")
    error: WindrowError = kind(message, hint)
    return error


FILE = "_windrow_file"


def feed_of(session: SparkSession, location: str, first: int, last: int) -> DataFrame:
    """Return the change feed of versions of a table, read without a stream."""
    reader = session.read.format("delta").options(readChangeFeed=True, startingVersion=first, endingVersion=last)
    return reader.table(reference(location)) if is_catalog_name(location) else reader.load(location)


def with_files(stream: DataFrame) -> DataFrame:
    """Return a stream of a table's rows with the name of the file of each."""
    return stream.withColumn(FILE, F.element_at(F.split(F.input_file_name(), "/"), -1))


def with_versions(frame: DataFrame, files: Mapping[str, int]) -> DataFrame:
    """Return rows with file names as a change feed would give them; `files` has the version that added each file."""
    known = frame.sparkSession.createDataFrame(
        [(unquote(name), at) for name, at in files.items()], f"{FILE} STRING, {VERSION} LONG"
    )
    rows = frame.withColumn(FILE, F.url_decode(FILE)).join(F.broadcast(known), FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("no version of the depot added the file "), FILE)).cast("long")
    return rows.withColumn(VERSION, F.coalesce(VERSION, unknown)).withColumn(CHANGE, F.lit("insert")).drop(FILE)
