"""The Spark engine: it reaches tables through public APIs only, by their paths or catalog names.

Spark writes all tables. The log of a table on a local disk is read with delta-rs, which takes milliseconds; other logs
are read with Spark. A table is created with its first rows in one commit (`CREATE TABLE ... AS SELECT`), so a ledger
always has its progress row. A second process that wants to create the table finds it there.

Inside `foreachBatch` everything uses the session of the batch, which is a clone of the one that started the stream: a
MERGE through the parent would not see its settings.
"""

from __future__ import annotations

import json
import os
import re
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import reduce
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from windrow.delta import creation
from windrow.delta.locations import for_spark, is_catalog_name, local_path, parts, quote_name, reference
from windrow.delta.lock import commit_lock
from windrow.delta.log import DeltaRsLog, Log, number_after
from windrow.delta.maintenance import DeltaRsMaintenance, TableMaintenance
from windrow.delta.store_errors import explain_store_error
from windrow.delta.table import is_managed, missing_error, open_table, overtaken_error, unwritable_error
from windrow.engine.engine import Engine, SideFiles
from windrow.engine.side_files import DIRECTORY, LocalSideFiles, StoredSideFiles
from windrow.engine.spark.journal import SparkJournal
from windrow.engine.spark.log import NO_SCHEMA, SparkLog, detail
from windrow.engine.spark.maintenance import SparkMaintenance
from windrow.engine.spark.session import bare_is_local, find_session
from windrow.engine.spark.stores import require_exclusion
from windrow.errors import TableMissingError
from windrow.model import tables
from windrow.rows.frame import frame_of, schema_of
from windrow.rows.session_settings import NOTE, WHOLE_TIMES, session_with
from windrow.settings.settings import Settings

FIRST = "windrow_first_rows"
ON_DATABRICKS = "DATABRICKS_RUNTIME_VERSION"  # there a path without a scheme is not on the local disk
# As Unity Catalog's client in Delta 4.4 words it (UCDeltaCatalogClientImpl.applyRequiredProperties).
REQUIRED = re.compile(r"catalog requires table property '([^']+)'='([^']*)'")
FENCE = {"delta.isolationLevel"}  # with it, Delta refuses concurrent commits to a ledger
ASKING = "windrow-asks-whether-delta-skips-this"


class SparkEngine(Engine):
    """Reaches tables with Spark."""

    name = "spark"

    def __init__(self, settings: Settings, session: SparkSession | None = None, others: Collection[str] = ()) -> None:
        """Use `session`, or that of the platform, or start a local one for the tables of the settings and `others`."""
        if session is None:
            session = find_session(settings.depot, settings.ledger, *others)
        self.settings = settings
        self._root = self._session = session
        self.remote = type(session).__module__.startswith("pyspark.sql.connect")
        self._paths: dict[str, Path | None] = {}
        self._places: dict[str, str] = {}  # of catalog tables
        self._logs: dict[str, SparkLog] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Drop the sessions: in another process the batch brings its session."""
        return self.__dict__ | {"_root": None, "_session": None, "_logs": {}}

    @property
    def session(self) -> SparkSession:
        """Return the session on which streams start."""
        return self._root

    @property
    def session_at_work(self) -> SparkSession:
        """Return the session of the current batch, or the one on which streams start."""
        return self._session

    @contextmanager
    def working_on(self, session: SparkSession) -> Iterator[None]:
        """Work on the session of a batch while the block runs; inside another batch, its session stays at work."""
        before = self._session
        if before is self._root:
            self._session = session
        try:
            yield
        finally:
            self._session = before

    def place(self, location: str) -> str:
        """Return a location as Spark writes it."""
        return for_spark(location)

    def log(self, place: str) -> Log:
        """Return the log of a table."""
        path = self.local_path(place)
        if path is not None:
            return DeltaRsLog(str(path))
        log = self._logs.setdefault(place, SparkLog(self._session, reference(place)))
        log.session = self._session
        return log

    def path(self, place: str) -> str | None:
        """Return the path of a table for commands without Spark.

        None if the table does not exist, if its catalog has commits that are not in its log, or if a platform's catalog
        may let only its own session read the files.
        """
        location = place
        if is_catalog_name(place):
            properties = detail(self._session, reference(place))
            location = properties["location"] if properties and not is_managed(properties["tableFeatures"]) else ""
            if self._on_platform and local_path(location) is None:
                return None
        return str(local_path(location) or location) if location else None

    @property
    def _on_platform(self) -> bool:
        return self.remote or ON_DATABRICKS in os.environ

    def local_path(self, place: str) -> Path | None:
        """Return the local path of a table if delta-rs can read its files from here, else None."""
        if self._on_platform:
            return None
        if not is_catalog_name(place):
            # guard: spark-file-system
            return local_path(place) if place.startswith("file:") or bare_is_local(self._root) else None
        if place not in self._paths:
            properties = detail(self._session, reference(place))
            if properties is None:
                return None
            self._places[place] = properties["location"]
            # delta-rs reads the log, and a catalog may have commits that are not in it
            self._paths[place] = None if is_managed(properties["tableFeatures"]) else local_path(properties["location"])
        return self._paths[place]

    def names_files(self, place: str) -> bool:
        """Tell whether `input_file_name()` in a stream of a table returns the file that a row is from.

        A platform may refuse the function, and returns no file for a table that a catalog manages.
        """
        try:
            self._session.range(0).select(F.input_file_name()).schema  # noqa: B018 - a property that is asked for
        except PySparkException:
            return False
        if not is_catalog_name(place) or self.local_path(place) is not None:
            return True
        properties = detail(self._session, reference(place))
        return properties is not None and not is_managed(properties["tableFeatures"])

    def lock(self, place: str, sync: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of a table on a local disk, however Spark writes to it; other tables have no lock.

        Raises EngineUnavailableError for a table on S3 if commits there could replace each other.
        """
        path = self.local_path(place) or (local_path(place) if self.remote else None)
        if not self.settings.single_writer:
            require_exclusion(self._session, self._places.get(place, place))
        return commit_lock(str(path), sync) if path is not None and path.parent.is_dir() else nullcontext()

    def maintenance(self, place: str, role: str) -> TableMaintenance:
        """Return the maintenance of a table: with delta-rs on a local disk if it can, else with Spark."""
        path = self.local_path(place)
        if path is not None and DeltaRsMaintenance(str(path), role).unsupported_reason() is None:
            return DeltaRsMaintenance(str(path), role)
        return SparkMaintenance(self._session, reference(place), role, lambda: self.lock(place))

    def side_files(self, place: str) -> SideFiles:
        """Return the small texts beside a table; those of a catalog table are in the table `<name>_plans`.

        Raises TableMissingError.

        A catalog does not let us write into the directory of a table.
        """
        path = self.local_path(place)
        if path is not None:
            return LocalSideFiles(path, self.settings.fsync)
        if self.log(place).latest() is None:
            raise missing_error(place, "ledger")
        journal = f"{place}/{DIRECTORY}/plans"
        if is_catalog_name(place):
            *home, name = parts(place)
            journal = quote_name(*home, f"{name}_plans")
        return StoredSideFiles(SparkJournal(self._session, journal))

    def transaction(self, place: str, application: str, last_version: int) -> int | None:
        """Return the last version in the log of a table for a transaction id; not locally, at most `last_version`.

        If the table is not local, a binary search asks Delta which versions it would skip.
        """
        path = self.local_path(place)
        if path is not None:
            return open_table(str(path), "depot").transaction_version(application)
        below = self._first_free(place, application, range(last_version + 1))
        return below - 1 if below else None

    def free_number(self, place: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id.

        If the table is not local, Delta is asked which numbers, at least one, it would skip.
        """
        if (path := self.local_path(place)) is not None:
            return number_after(str(path), application, least)
        if self.log(place).latest() is None:
            return least
        span = 1
        while self._skips(place, (application, least + span - 1)):
            span *= 2
        return least + self._first_free(place, application, range(least, least + span - 1))

    def _first_free(self, place: str, application: str, numbers: range) -> int:
        """Return how many of the numbers are recorded for a transaction id; these come first."""
        return bisect_left(numbers, True, key=lambda number: not self._skips(place, (application, number)))

    def _skips(self, place: str, transaction: tuple[str, int]) -> bool:
        """Find out whether Delta skips an append with this transaction id, by an append that cannot succeed.

        Delta checks the id first. Then the driver refuses the codec before any task starts; the row would fail too.
        """
        name, kind = self._root.sql(f"SELECT * FROM {reference(place)} LIMIT 0").dtypes[0]
        row = self._root.range(1).select(F.raise_error(F.lit(ASKING)).cast(kind).alias(name))
        try:
            self.append_written(place, row.write.option("compression", ASKING), transaction)
        except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
            if ASKING in str(error):
                return False
            raise unwritable_error(place, "depot", error) from error
        return True

    def append_written(self, place: str, writer: DataFrameWriter, transaction: tuple[str, int]) -> None:
        """Append the rows of a Spark writer to a table, unless its log has this transaction."""
        writer = writer.format("delta").mode("append")
        writer = writer.option("txnAppId", transaction[0]).option("txnVersion", transaction[1])
        writer.saveAsTable(reference(place)) if is_catalog_name(place) else writer.save(place)

    def append(self, place: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing."""
        frames = [frame_of(self._session, row) if isinstance(row, pa.Table) else row for row in rows]
        frame = reduce(lambda left, right: left.unionByName(right, allowMissingColumns=True), frames)
        self.create(place, schema_of(frame).empty_table(), "")
        try:
            with self.lock(place, self.settings.fsync), session_with(self._session, WHOLE_TIMES):
                self.append_written(place, frame.write.option("userMetadata", note), transaction)
        except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
            raise unwritable_error(place, "depot", error) from error
        application, number = transaction
        # guard: later-plan-told-on-spark
        if self.free_number(place, application, number + 1) > number + 1:
            raise overtaken_error(place)

    def create(self, place: str, rows: pa.Table, comment: str, retention: str | None = None, by: str = "") -> None:
        """Create a table with its first rows unless it exists; a ledger is partitioned `by` columns.

        `retention` is the retention of log and removed files, by default that of the settings. Raises
        IncompatibleTableError if the directory has other files, TableMissingError if there is no such schema.
        """
        own = tables.LEDGER_PROPERTIES if by else tables.PROPERTIES
        properties = (
            own | tables.retention_properties(retention or self.settings.retention) | self.settings.table_properties
        )
        path = self.local_path(place)
        noted = {NOTE: json.dumps({"token": rows["token"][0].as_py()})} if by else {}
        with self.lock(place), session_with(self._session, noted):
            if path is not None and not is_catalog_name(place) and self.log(place).latest() is None:
                creation.require_empty(str(path), "ledger" if by else "depot")
            self._create_table(place, rows, properties, comment, by)

    def _create_table(self, place: str, rows: pa.Table, properties: Mapping[str, str], comment: str, by: str) -> None:
        """Create a table with its first rows unless it exists.

        Raises TableMissingError if its schema does not exist.
        """
        frame_of(self._session, rows).createOrReplaceTempView(FIRST)
        listed = ", ".join(f"'{name}' = '{value}'" for name, value in properties.items())
        try:
            self._session.sql(
                f"CREATE TABLE IF NOT EXISTS {reference(place)} USING DELTA {by and f'PARTITIONED BY ({by})'} "
                f"COMMENT '{comment}' TBLPROPERTIES ({listed}) AS SELECT * FROM {FIRST}"
            )
        except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
            if required := _read_requirements(error, properties):
                self._create_table(place, rows, {**properties, **required}, comment, by)
                return
            if explain_store_error(error, place) is not None:
                raise unwritable_error(place, "table", error) from error
            if isinstance(error, PySparkException) and error.getCondition() in NO_SCHEMA:
                schema = quote_name(*parts(place)[:-1])
                hint = f"CREATE SCHEMA {schema}, or name another; Spark's own catalog has names of two parts."
                raise TableMissingError(f"there is no schema {schema}", hint) from error
            if detail(self._session, reference(place)) is None:  # otherwise another process was faster
                raise
        finally:
            self._session.catalog.dropTempView(FIRST)


def _read_requirements(error: Exception, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the properties that a catalog requires in place of the given ones; none if they break the fence."""
    needs = dict(REQUIRED.findall(str(error)))
    # guard: required-spares-the-fence
    spared = needs.keys() & FENCE
    return {} if spared or needs.items() <= properties.items() else needs
