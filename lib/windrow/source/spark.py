"""Read the new versions of a depot with Spark.

A stream of the depot's change feed (`stream`) drives the batcher; on Spark Connect, its `foreachBatch` runs in a server
process. A topology, which has several depots in one microbatch, and a replay read the feed with a query (`arrivals`).

Without a change feed both stream the depot's files, and the log says which version added which file. The stream skips a
version that changed or removed rows; the log says which these are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial, reduce
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow import errors
from windrow.delta.locations import for_spark, is_catalog_name, reference
from windrow.delta.log import count_added_rows
from windrow.delta.row_changes import without_feed
from windrow.engine.spark.engine import SparkEngine
from windrow.engine.spark.errors import translate_error
from windrow.errors import DepotUnreadableError, EngineUnavailableError, WindrowError, first_line
from windrow.model.commits import CHANGE, FEED, VERSION, ListedVersions
from windrow.rows.session_settings import ALIKE, session_with
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.source import Source
from windrow.source.spark_arrivals import SparkArrivals
from windrow.source.spark_text import require_text_of_frame

FEED_BEGAN_LATER = "DELTA_MISSING_CHANGE_DATA"
# guard: commits-not-cut
EVERY_FILE = 2_147_483_647  # a rate limit would split commits, and reading by version would lose the second half


class SparkSource(Source):
    """Reads a depot with Spark."""

    engine: SparkEngine
    _by_files = False  # how the depot is streamed

    def streams(self, after: int) -> bool:
        """Tell whether `foreachBatch` drives the reading of versions after this one.

        It drives the batcher, and on Spark Connect, which keeps no rows of a stream, whatever reads a depot by files.
        """
        return not self._as_rows or (self.engine.remote and not self._has_feed(after + 1))

    @contextmanager
    def arrivals(self, after: int, last_version: int) -> Iterator[Arrivals | None]:
        """Yield the versions after `after`, up to `last_version`, from a query of the change feed or else a stream."""
        start = self._begin(after, last_version)
        with ExitStack() as stack:
            opened = None
            if not self._by_files:
                try:
                    opened = stack.enter_context(
                        self._open_arrivals(self._feed(start, last_version), start, last_version, persist=False)
                    )
                except DepotUnreadableError as error:
                    self._require_began_later(error)
            if opened is None and (frame := self._read_stream(start)) is not None:
                opened = stack.enter_context(self._open_arrivals(frame, start, last_version, persist=False))
            yield None if opened is None or opened.last is None else opened

    def stream(self, after: int, last_version: int, handle: Callable[[Arrivals], None]) -> bool:
        """Call `handle` with the versions after `after`, up to `last_version`, from `foreachBatch` of a stream.

        The checkpoint of the stream is a fresh one: the ledger is the real one. Returns whether `handle` ran in another
        process; the ledger then records what it did.
        """
        start = self._begin(after, last_version)
        taking = partial(self._take, last_version=last_version, handle=handle)
        try:
            self._run(Take(taking, start))
        except DepotUnreadableError as error:
            self._require_began_later(error)
            self._run(Take(taking, start))
        return self.engine.remote

    def _begin(self, after: int, last_version: int) -> int:
        """Return the first version to read, after syncing what is about to be read. Raises if a version is gone."""
        self._keep_read(after, last_version)
        count_added_rows(self.log.commits(after, last_version), after, last_version)
        self._by_files = False
        if not self.depot().has_change_feed:
            self._go_by_files()
        return after + 1

    def _go_by_files(self) -> None:
        """Read by files from now on.

        Raises EngineUnavailableError where Spark does not say which file a row is from.
        """
        if not self.engine.names_files(self.place):
            raise EngineUnavailableError(
                f"the change data feed of the depot {self.settings.depot} lacks the versions to read, and without "
                "it Spark does not tell here which version a row comes from",
                f"Run ALTER TABLE {reference(self.place)} SET TBLPROPERTIES ({FEED} = true). A ledger that begins "
                "there (start_from) can read what is added from then on.",
            )
        self._by_files = True

    def _require_began_later(self, error: DepotUnreadableError) -> None:
        """Read by files from now on if the change feed began later than the versions to read, else raise the error."""
        if self._by_files or FEED_BEGAN_LATER not in str(error.__cause__):
            raise error
        self._go_by_files()

    def _run(self, take: Take) -> None:
        """Stream the changes, or without a change feed the files, until `take` has handled all."""
        # guard: stream-begins-at-ledger
        reader = self.engine.session.readStream.format("delta").option("startingVersion", take.start)
        reader = reader.option("maxFilesPerTrigger", EVERY_FILE)
        reader = reader.option("skipChangeCommits" if self._by_files else "readChangeFeed", "true")
        stream = reader.table(reference(self.place)) if is_catalog_name(self.place) else reader.load(self.place)
        stream = with_files(stream) if self._by_files else stream
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        if self.settings.checkpoint_location:
            # guard: fresh-checkpoint
            writer = writer.option("checkpointLocation", f"{self.settings.checkpoint_location}/{uuid4().hex}")
        try:
            writer.start().awaitTermination()
        except StreamingQueryException as error:
            raise (take.failure or failure_in(str(error)) or translate_error(error)) from error

    def _has_feed(self, version: int) -> bool:
        if not self.depot().has_change_feed:
            return False
        try:
            feed_of(self.engine.session, self.place, version, version).limit(1).count()  # the feed of some rows is read
        except PySparkException as error:
            if FEED_BEGAN_LATER in str(error):
                return False
            raise translate_error(error) from error
        return True

    def _feed(self, start: int, last_version: int) -> DataFrame:
        try:
            return feed_of(self.engine.session, self.place, start, last_version)
        except PySparkException as error:
            raise translate_error(error) from error

    def _read_stream(self, start: int) -> DataFrame | None:
        """Return the rows of a stream of the files from version `start` on, kept on the executors; None for no rows.

        A topology has several depots in one microbatch, and a stream has its rows only while it runs. Raises
        EngineUnavailableError on Spark Connect, which keeps no rows.
        """
        if self.engine.remote:
            raise EngineUnavailableError(
                f"on Spark Connect the depot {self.settings.depot} cannot be read from its files here",
                "Switch its change feed on (delta.enableChangeDataFeed = true) and begin there (start_from), or use a "
                "classic session.",
            )
        frames: list[DataFrame] = []

        def keep(frame: DataFrame, at: int) -> int:
            frames.append(frame.localCheckpoint())
            return at

        self._run(Take(keep, start))
        return reduce(DataFrame.unionAll, frames) if frames else None

    def _take(self, frame: DataFrame, start: int, last_version: int, handle: Callable[[Arrivals], None]) -> int:
        """Handle a stream frame's versions up to `last_version`; return the first version of the next frame."""
        with self._open_arrivals(frame, start, last_version, persist=True) as arrivals:
            if arrivals.last is None:
                return start
            handle(arrivals)
            return arrivals.last + 1

    @contextmanager
    def _open_arrivals(self, frame: DataFrame, start: int, last_version: int, persist: bool) -> Iterator[SparkArrivals]:
        """Work on the session of a frame of a stream or of a query, and yield its versions up to `last_version`.

        `persist` a frame of `foreachBatch`. Text is checked here if no conversion checks it: text that a query may have
        replaced, and unconverted rows on the executors. The driver checks what it collects.
        """
        session = frame.sparkSession
        try:
            with self.engine.working_on(session), session_with(session, ALIKE), ExitStack() as kept:
                table = self.depot()
                commits = self.log.commits(start - 1, last_version)
                counts, listed = (
                    count_added_rows(commits, start - 1, last_version),
                    ListedVersions.of(table.id, start, commits),
                )
                conversion = Conversion.of(self.settings, table, self._as_rows)
                byte_count = conversion.byte_count(self.log, counts)

                known = conversion.counts(counts)
                rows = conversion.map_feed(self._changes(frame, start, last_version, table.version))
                streamed = persist or self._by_files
                read = SparkArrivals.of(rows, listed, known, byte_count, self.settings, conversion, kept, persist)
                # guard: replaced-text
                if read.has_replacement and not streamed:
                    self._require_text(start, last_version)
                if streamed and conversion.verbatim and read.collected is None:
                    require_text_of_frame(read.frame)
                yield read
        except PySparkException as error:
            raise translate_error(error) from error

    def _require_text(self, start: int, last_version: int) -> None:
        """Stream versions of the change feed; raise DepotUnreadableError if they have text that is not UTF-8."""

        def check(frame: DataFrame, at: int) -> int:
            require_text_of_frame(frame.where(F.col(VERSION) <= last_version))
            return at

        self._run(Take(check, start))

    def _changes(self, frame: DataFrame, first: int, last: int, latest: int) -> DataFrame:
        """Return the versions from `first` to `last` in a frame of the stream, as the change feed gives them.

        Raises DepotUnreadableError for a version that removed rows if there is no feed: the stream skips it.
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
    error, where `failure_in` finds it. A request to exit is passed on too: otherwise it would end the thread that Spark
    calls, and Spark would wait for that forever.
    """

    def __init__(self, take: Callable[[DataFrame, int], int], start: int) -> None:
        """Handle frames from depot version `start` on with `take`, which returns where the next one begins."""
        self._take, self.start = take, start
        self.failure: BaseException | None = None

    def __call__(self, frame: DataFrame, _: int) -> None:
        """Handle one frame; remember where the next one begins."""
        try:
            self.start = self._take(frame, self.start)
        except BaseException as error:
            self.failure = error
            raise RuntimeError(_marked(error)) from error


MARK = re.compile(r"<windrow>(.*?)</windrow>", re.DOTALL)


def _marked(error: BaseException) -> str:
    words = (error.message, error.hint) if isinstance(error, WindrowError) else (first_line(error), "")
    return f"<windrow>{json.dumps([type(error).__name__, *words])}</windrow>"


def failure_in(text: str) -> Exception | None:
    """Return the error that `Take` put into the text of a stream's error, None if there is none."""
    match = MARK.search(text)
    if match is None:
        return None
    name, message, hint = json.loads(match[1])
    kind: Any = getattr(errors, name, None)
    if kind is None:
        return RuntimeError(f"{name}: {message}")
    error: WindrowError = kind(message, hint)
    return error


FILE = "_windrow_file"
LOSES_OPTIONS = "4.0."  # on Spark Connect a column that is replaced takes the feed's other columns with it


def feed_of(session: SparkSession, location: str, first: int, last: int) -> DataFrame:
    """Return the change feed of versions of a table, read without a stream."""
    reader = session.read.format("delta").options(readChangeFeed=True, startingVersion=first, endingVersion=last)
    if not is_catalog_name(location):
        return reader.load(for_spark(location))
    if not session.version.startswith(LOSES_OPTIONS):
        return reader.table(reference(location))
    name = reference(location).replace("\\", "\\\\").replace("'", "\\'")
    return session.sql(f"SELECT * FROM table_changes('{name}', {first:d}, {last:d})")  # noqa: S608 - a quoted name


def with_files(stream: DataFrame) -> DataFrame:
    """Return a stream of a table's rows, each with its file name."""
    return stream.withColumn(FILE, F.element_at(F.split(F.input_file_name(), "/"), -1))


def with_versions(frame: DataFrame, files: Mapping[str, int]) -> DataFrame:
    """Return rows with file names as a change feed would give them; `files` has the version that added each file."""
    known = frame.sparkSession.createDataFrame(
        [(unquote(name), at) for name, at in files.items()], f"{FILE} STRING, {VERSION} LONG"
    )
    rows = frame.withColumn(FILE, F.url_decode(FILE)).join(F.broadcast(known), FILE, "left")
    unknown = F.raise_error(F.concat(F.lit("no version of the depot added the file "), FILE)).cast("long")
    return rows.withColumn(VERSION, F.coalesce(VERSION, unknown)).withColumn(CHANGE, F.lit("insert")).drop(FILE)
