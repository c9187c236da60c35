"""The Spark engine: it streams the depot's change feed and commits with Spark, through public APIs only.

Inside `foreachBatch` everything uses the session of the batch, which is a clone of the one that started the stream: a
MERGE through the parent would not see its settings. On Spark Connect `foreachBatch` runs in a process of the server, so
its results are read from the ledger's history.

Tables are paths or catalog names, and Spark writes all of them. The log of a table on a local disk is read with
delta-rs, which takes milliseconds; other logs are read with Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial, reduce
from pathlib import Path
from typing import cast
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, DataFrameWriter
from pyspark.sql import functions as F

from windrow.columnar.arrow import plain, texts
from windrow.delta.locations import for_spark, is_catalog_name, reference
from windrow.delta.log import Table, added, ledger_schema_of, number_after, require_ledger
from windrow.delta.row_changes import without_feed
from windrow.delta.table import missing, open_table, unwritable
from windrow.engine.embedded.engine import added_rows, ungrown
from windrow.engine.protocol import Input
from windrow.engine.spark.errors import BAD_VALUE, translated
from windrow.engine.spark.stream_batch import StreamBatch
from windrow.engine.spark.tables import SparkTables
from windrow.errors import DepotUnreadable, ExpressionError, FileRefused, first_line
from windrow.expressions import Mapping as ColumnMapping
from windrow.ledger.live import Live
from windrow.ledger.merge import SparkCommit
from windrow.ledger.open_batches import UNCACHED, SparkOpen, brought
from windrow.ledger.result import MicrobatchResult, Rows
from windrow.ledger.strategy import LITTLE_BYTES
from windrow.ledger.versions import Fold, Growth, fold_note, latest, written
from windrow.model import tables
from windrow.model.commits import CHANGE, FEED_COLUMNS, VERSION, ListedVersions
from windrow.model.payload import of_column
from windrow.rows.frame import frame_of, schema_of
from windrow.rows.session_settings import WHOLE_TIMES, configured
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.spark import SparkArrivals, Take, failure_in, feed_of, with_files, with_versions

ASKING = "windrow-asks-whether-delta-skips-this"
# guard: commits-not-cut
FEED_BEGAN_LATER = "DELTA_MISSING_CHANGE_DATA"
EVERY_FILE = 2_147_483_647  # a rate limit would split commits, and reading by version would lose the second half


class SparkEngine(SparkTables):
    """Reads and commits with Spark."""

    name = "spark"

    def open_input(self, file: str, format_: str) -> Input:
        """Open a file or Delta table to ingest."""
        try:
            table = self._log(_file(file)).table() if format_ == "delta" else None
            reader = self._root.read.format(format_)
            frame = (reader if table is None else reader.option("versionAsOf", table.version)).load(_file(file))
        except Exception as error:  # the reader of a format may raise anything
            raise FileRefused(
                f"{file} cannot be read as {format_}: {first_line(error)}", "Check the file and --format."
            ) from error
        return Input(file, format_, plain(frame.limit(0).toArrow()).schema, table, frame)

    def transaction(self, application: str, upto: int) -> int | None:
        """Return the last version recorded in the depot's log for a transaction id; not locally, at most `upto`.

        There a binary search asks Delta which versions it would skip.
        """
        path = self._path(self._depot)
        if path is not None:
            return open_table(str(path), "depot").transaction_version(application)
        below = self._first_free(self._depot, application, range(upto + 1))
        return below - 1 if below else None

    def free_number(self, location: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id.

        Not locally, Delta is asked which numbers it would skip: at least one.
        """
        place = for_spark(location)
        if (path := self._path(place)) is not None:
            return number_after(str(path), application, least)
        if self._log(place).latest() is None:
            return least
        span = 1
        while self._skips(place, (application, least + span - 1)):
            span *= 2
        return least + self._first_free(place, application, range(least, least + span - 1))

    def _first_free(self, place: str, application: str, numbers: range) -> int:
        """Return how many of the numbers, which are the first ones, are recorded for a transaction id."""
        return bisect_left(numbers, True, key=lambda number: not self._skips(place, (application, number)))

    def _skips(self, place: str, transaction: tuple[str, int]) -> bool:
        """Find out whether Delta skips an append with this transaction id, by an append that cannot succeed.

        Delta checks the id first. Then the driver refuses the codec before any task starts; the row would fail too.
        """
        name, kind = self._root.sql(f"SELECT * FROM {reference(place)} LIMIT 0").dtypes[0]
        row = self._root.range(1).select(F.raise_error(F.lit(ASKING)).cast(kind).alias(name))
        try:
            self._append(row.write.option("compression", ASKING), transaction, place)
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            if ASKING in str(error):
                return False
            raise unwritable(place, "depot", error) from error
        return True

    def _append(self, writer: DataFrameWriter, transaction: tuple[str, int], place: str | None = None) -> None:
        """Append to the depot, or to a table at another place."""
        place = place or self._depot
        writer = writer.format("delta").mode("append")
        writer = writer.option("txnAppId", transaction[0]).option("txnVersion", transaction[1])
        writer.saveAsTable(reference(place)) if is_catalog_name(place) else writer.save(place)

    def append(
        self,
        given: Input,
        mapping: ColumnMapping,
        transaction: tuple[str, int],
        after: int | None,
        progress: Callable[[int], None],
        note: str,
    ) -> int:
        """Append the mapped rows of an input to the depot in one commit."""
        depot = self.depot()
        with self._mapped(self._rows(given, after), given, mapping) as rows, self._lock(self._depot):
            self._append(rows.write.option("userMetadata", note), transaction)
        commits = self._log(self._depot).commits(depot.version + 1)
        appended = sum(commit.rows or 0 for commit in commits if commit.version > depot.version)
        progress(appended)
        return appended

    def append_batch(self, given: Input, mapping: ColumnMapping, query: str, number: int) -> bool:
        """Append a batch of a streaming query to the depot in one commit, unless the depot has it.

        The commit's note says what the batch held. If the number is that of another batch, because the checkpoint of
        the query was damaged, the rows are appended under a name of their own. Returns whether that happened.
        """
        before, log = self.depot().version, self._log(self._depot)
        with self._mapped(cast("DataFrame", given.handle), given, mapping) as rows:
            batch = StreamBatch.of(rows, query, number)
            writer = rows.write.option("userMetadata", batch.note)
            with self._lock(self._depot):
                self._append(writer, (query, number))
                # guard: stream-batch-compared
                if batch.is_in(log.history(before + 1)) or batch.is_in(log.history(0)):
                    return False
                self._append(writer, (batch.name, 0))
        return True

    @contextmanager
    def _mapped(self, rows: DataFrame, given: Input, mapping: ColumnMapping) -> Iterator[DataFrame]:
        """Give the rows of an input as messages, to be appended. Raises ExpressionError, TableUnwritable."""
        try:
            with configured(self._root, ALIKE), configured(self._root, WHOLE_TIMES):
                mapped = rows.selectExpr(*mapping.spark_select(of_column(self.depot().schema)))
                texts = [name for name, kind in mapped.dtypes if kind == "string"]
                yield mapped.withColumns({name: F.validate_utf8(name) for name in texts})
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            if isinstance(error, PySparkException) or BAD_VALUE in str(error):
                raise ExpressionError(
                    f"{given.file} cannot be mapped to messages: {first_line(error)}", "See [ingest.columns]."
                ) from error
            raise unwritable(self._depot, "depot", error) from error

    def append_rows(
        self, location: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str
    ) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing."""
        frames = [frame_of(self._session, one) if isinstance(one, pa.Table) else one for one in rows]
        frame = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
        place = for_spark(location)
        self._create(place, schema_of(frame).empty_table(), self._settings.keep, "")
        try:
            with self._lock(place, self._settings.durable), configured(self._session, WHOLE_TIMES):
                self._append(frame.write.option("userMetadata", note), transaction, place)
        except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
            raise unwritable(location, "depot", error) from error

    def _rows(self, given: Input, after: int | None) -> DataFrame:
        """Return the rows of an input; with `after`, only the rows that a Delta table added after this version."""
        if after is None:
            return cast("DataFrame", given.handle)
        upto = cast("Table", given.table).version
        try:
            feed = feed_of(self._root, _file(given.file), after + 1, upto)
            others = plain(feed.where(F.col(CHANGE) != "insert").limit(1).toArrow())
        except PySparkException as error:
            raise ungrown(given.file, after, error) from error
        added_rows(others, given.file)
        return feed.drop(*FEED_COLUMNS)

    def live(self) -> Live:
        """Read the control rows of the latest version; the open rows are read later, on demand.

        After a commit of this engine, and after a read, they are known until somebody else commits.
        """
        committed = self._log(self._ledger).latest()
        if committed is None:
            raise missing(self._settings.ledger, "ledger")
        version = committed[0]
        # guard: remembered-version-only
        if self._known is not None and self._known[0] == committed:
            known = self._known[1]
            return replace(known, open=replace(cast("SparkOpen", known.open), session=self._session))
        # guard: spark-primed-uncached
        whole = self._session.sql(f"SELECT * FROM {reference(self._ledger)} VERSION AS OF {version} WHERE {UNCACHED}")
        columns = schema_of(whole)
        schema = ledger_schema_of(columns)
        require_ledger(self._ledger, columns.names, schema)
        rows = brought(whole.where(F.col("state").isin(*tables.CONTROL)), self._ledger)
        versions = rows.select(schema.names).cast(schema).combine_chunks()
        opened = SparkOpen(self._session, reference(self._ledger), version, schema)
        live = Live(latest(versions), opened, version, Growth.of(versions))
        self._known = (committed, live) if '"token"' in (committed[1] or "") else None
        return live

    def read(self, after: int, upto: int, handle: Callable[[Arrivals], None]) -> pa.Table | None:
        """Stream the versions after `after`, up to `upto`, with a fresh checkpoint: the ledger is the real one."""
        self._keep_read(after, upto)
        commits = self._log(self._depot).commits(after, upto)
        added(commits, after, upto)  # raises before the stream does if a version is gone
        # guard: depot-by-files
        self._by_files = not self.depot().feed
        taking = partial(self.take, upto=upto, handle=handle)
        pulled = self._as_rows and not self._by_files  # a topology has several depots in one microbatch
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
        return self._history(after) if self.remote and not pulled else None

    def _pull(self, begin: int, upto: int, handle: Callable[[Arrivals], None]) -> None:
        """Read the versions from `begin` to `upto` by a query of the change feed."""
        try:
            self.take(feed_of(self._root, self._depot, begin, upto), begin, upto, handle, streamed=False)
        except PySparkException as error:
            raise translated(error) from error

    def _stream(self, take: Take) -> None:
        """Stream the changes, or without a change feed the files, until `take` has handled all."""
        # guard: stream-begins-at-ledger
        reader = self._root.readStream.format("delta").option("startingVersion", take.begin)
        reader = reader.option("maxFilesPerTrigger", EVERY_FILE)
        reader = reader.option("skipChangeCommits" if self._by_files else "readChangeFeed", "true")
        stream = reader.table(reference(self._depot)) if is_catalog_name(self._depot) else reader.load(self._depot)
        stream = with_files(stream) if self._by_files else stream
        writer = stream.writeStream.foreachBatch(take).trigger(availableNow=True)
        if self._settings.checkpoints:
            # guard: fresh-checkpoint
            writer = writer.option("checkpointLocation", f"{self._settings.checkpoints}/{uuid4().hex}")
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
        self._session = frame.sparkSession
        try:
            table = self.depot()
            commits = self._log(self._depot).commits(begin - 1, upto)
            counts, listed = added(commits, begin - 1, upto), ListedVersions.of(table.id, begin, commits)
            chosen = self._settings
            with configured(self._session, ALIKE), ExitStack() as kept:
                conversion = Conversion.of(chosen, table, self._as_rows)
                byte_count = conversion.byte_count(self._log(self._depot), begin - 1, upto)
                changes = self._changes(frame, begin, upto, table.version)
                mapped = conversion.mapped(changes)
                known = conversion.counts(counts)
                arrivals = SparkArrivals.of(mapped, listed, known, byte_count, chosen, conversion, kept, streamed)
                if arrivals.last is None:
                    return begin
                handle(arrivals)
        except PySparkException as error:
            raise translated(error) from error
        finally:
            self._session = self._root
        return arrivals.last + 1

    def _changes(self, frame: DataFrame, first: int, last: int, latest: int) -> DataFrame:
        """Return the versions from `first` to `last` in a frame of the stream, as the change feed gives them.

        Raises DepotUnreadable for a version that removed rows where there is no feed: the stream skips it.
        """
        if self._by_files:
            files, removing = self._log(self._depot).files_added(first, latest)
            # guard: skipped-versions-told
            if skipped := sorted(version for version in removing if version <= last):
                raise without_feed(skipped[0])
            frame = with_versions(frame, files)
        return frame if last == latest else frame.where(F.col(VERSION) <= last)

    def _history(self, after: int) -> pa.Table:
        """Return the history of the microbatches that read depot versions after `after`."""
        rows = self._session.sql(
            f"SELECT * FROM {reference(self._ledger)} "
            f"WHERE state = 'microbatch' AND kind = 'data' AND depot_version > {after:d} ORDER BY microbatch"
        )
        return plain(rows.select([name for name, _ in tables.HISTORY]).toArrow())

    @property
    def commit_form(self) -> str:
        """Return the form: a MERGE that only inserts."""
        return "merge"

    def commit_result(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int:
        """Commit the result in one Spark transaction, fenced by the token."""
        self._known, rows = None, processed.rows
        if processed.states:
            rows = pa.concat_tables([rows, *processed.states.values()], promote_options="default")
        try:
            # guard: spark-commit-lock
            with self._lock(self._ledger, self._settings.durable):
                written = self.commit(live, token, note).write(rows, control)
        except PySparkException as error:
            raise translated(error) from error
        left = _after(live, rows, control)
        self._known = None if left is None else ((left.table_version, note), left)
        return written

    def fold(self, live: Live, fold: Fold) -> None:
        """Replace the partitions of live rows in one Spark transaction."""
        self._known = None
        try:
            with self._lock(self._ledger, self._settings.durable):
                self.commit(live, "", fold_note(fold)).fold(fold)
        except PySparkException as error:
            raise translated(error) from error

    def commit(self, live: Live, token: str, note: str) -> SparkCommit:
        """Return the commit that follows these live rows."""
        return SparkCommit(self._session, self._ledger, live, token, note)


def _after(live: Live, rows: Rows, control: pa.Table) -> Live | None:
    """Return the live rows after a commit, None if the driver does not know them."""
    here, opened, names = isinstance(rows, pa.Table), live.open, control.schema.names
    on_executors = not here and (tables.is_of_topology(names) or tables.is_over_raw(names))
    if not isinstance(opened, SparkOpen) or on_executors:  # with control rows that the driver does not know
        return None
    new, revision = written(control, live.revision + 1), live.revision + 1
    if here:
        new = pa.concat_tables([new, written(rows.select([*names, "known"]), revision)])
    live_now = new.filter(tables.are_live(new["state"]))
    is_control = pc.is_in(live_now["state"], texts(tables.CONTROL))
    known = None
    if here and opened.rows is not None and opened.rows.nbytes <= LITTLE_BYTES:
        known = latest(pa.concat_tables([opened.rows, live_now.filter(pc.invert(is_control))])).combine_chunks()
    version = live.table_version + 1
    next_open = SparkOpen(opened.session, opened.reference, version, opened.schema, known)
    moved = live_now.filter(is_control)
    control_rows = latest(pa.concat_tables([live.rows, moved])).combine_chunks()
    return Live(control_rows, next_open, version, live.growth.after(Growth.of(moved)))


# Expressions give the same values whatever the session's settings; times without a zone are UTC.
ALIKE = {"spark.sql.session.timeZone": "UTC", "spark.sql.ansi.enabled": "true"}


def _file(path: str) -> str:
    """Return the absolute path of an input, because Spark may have another working directory."""
    return path if "://" in path else str(Path(path).resolve())
