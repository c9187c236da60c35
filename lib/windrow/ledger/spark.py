"""The ledger of the Spark engine, and the views over a ledger in a catalog."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from windrow.columnar.arrow import string_array, string_scalar, to_plain_types
from windrow.delta.locations import is_catalog_name, parts, quote_name, reference
from windrow.delta.log import ledger_schema_of, require_ledger
from windrow.delta.table import missing_error
from windrow.engine.spark.engine import SparkEngine
from windrow.engine.spark.errors import translate_error
from windrow.errors import IncompatibleTableError, first_line
from windrow.ledger.ledger import Ledger, Views
from windrow.ledger.live import Live
from windrow.ledger.merge import SparkCommit
from windrow.ledger.open_batches import UNCACHED, SparkOpen, collect_rows
from windrow.ledger.result import MicrobatchResult, Rows
from windrow.ledger.strategy import LITTLE_BYTES
from windrow.ledger.versions import Fold, Growth, apply_versions, fold_note, latest, rows_to_write
from windrow.model import tables
from windrow.model.open_batches import MESSAGES, with_messages
from windrow.rows.frame import schema_of


class SparkLedger(Ledger):
    """A ledger that Spark reads, and commits to by a MERGE that only inserts."""

    engine: SparkEngine
    commit_mode = "merge"
    _known: tuple[tuple[int, str | None], Live] | None = None  # live rows, and the commit that left them

    def __getstate__(self) -> dict[str, Any]:
        """Drop what the driver knows: in another process it may be out of date."""
        return self.__dict__ | {"_known": None}

    @property
    def _session(self) -> SparkSession:
        return self.engine.session_at_work

    def create(self, first: pa.Table, retention: str) -> None:
        """Create the ledger with its first rows in one commit, and the views over it, unless it exists."""
        self._require_free()
        self.engine.create(self.place, first, tables.LEDGER_COMMENT, retention, by=", ".join(tables.PARTITIONS))
        self.create_views()

    def create_views(self) -> list[str]:
        """Create or update the views over a catalog ledger; return the names.

        They are created in the schema that the setting `views_schema` names, by default the ledger's; a ledger by path
        has none. A view with the same text is left alone. Raises IncompatibleTableError if another table or view has
        one of the names.
        """
        if not is_catalog_name(self.place):
            return []
        self._require_free()
        raw = tables.reads_raw_depot(self._session.table(reference(self.place)).columns)
        views = self._views_of(self._views or partial(tables.views, raw=raw))
        for name, select in views.items():
            known = self._describe(name)
            if known is not None and known.get("View Text") == select:
                continue
            try:
                self._create_view(name, select, exists=known is not None)
            except PySparkException as error:
                raise IncompatibleTableError(
                    f"the view {name} cannot be created: {first_line(error)}",
                    "Fix this, then run `windrow init` again.",
                ) from error
        return list(views)

    def _create_view(self, name: str, select: str, *, exists: bool) -> None:
        mark = self._mark.replace("\\", "\\\\").replace("'", "\\'")
        view = f"{name} COMMENT '{mark}' AS {select}"
        if exists:
            try:
                self._session.sql(f"CREATE OR REPLACE VIEW {view}")
            except PySparkException:  # not every catalog can replace a view
                self._session.sql(f"DROP VIEW {name}")
            else:
                return
        self._session.sql(f"CREATE VIEW IF NOT EXISTS {view}")

    def _require_free(self) -> None:
        """Raise IncompatibleTableError if another table or view has the name of a view over a catalog ledger."""
        for name in self._views_of(self._views or tables.views) if is_catalog_name(self.place) else ():
            known = self._describe(name)
            if known is not None and known.get("Comment") != self._mark:
                raise IncompatibleTableError(
                    f"{name} exists, but is not a view over the ledger {self.place}",
                    "Give this ledger's views a separate schema: views = 'some_schema' in windrow.toml.",
                )

    def _views_of(self, views_of: Views) -> dict[str, str]:
        home = parts(self.settings.views_schema) if self.settings.views_schema else parts(self.place)[:-1]
        return {quote_name(*home, name): select for name, select in views_of(reference(self.place)).items()}

    @property
    def _mark(self) -> str:
        return f"Windrow view over {reference(self.place)}"

    def _describe(self, name: str) -> dict[str, str] | None:
        """Return Spark's description of a table or view, by names such as `Comment`; None if it does not exist."""
        try:
            described = self._session.sql(f"DESCRIBE TABLE EXTENDED {name}").collect()
        except AnalysisException as error:
            if error.getCondition() in ("TABLE_OR_VIEW_NOT_FOUND", "SCHEMA_NOT_FOUND"):
                return None
            raise
        return {row["col_name"]: row["data_type"] for row in described}

    def add_columns(self, columns: pa.Schema) -> None:
        """Add columns to the ledger; they are NULL in all existing rows."""
        listed = ", ".join(f"`{field.name}` {field.dataType.simpleString()}" for field in from_arrow_schema(columns))
        with self.engine.lock(self.place):
            self._session.sql(f"ALTER TABLE {reference(self.place)} ADD COLUMNS ({listed})")

    def live(self) -> Live:
        """Read the control rows of the latest version; the open rows are read later, on demand.

        After a commit of this engine, and after a read, they stay known until somebody else commits.
        """
        committed = self.engine.log(self.place).latest()
        if committed is None:
            raise missing_error(self.settings.ledger, "ledger")
        version = committed[0]
        # guard: remembered-version-only
        if self._known is not None and self._known[0] == committed:
            return self._known[1]
        # guard: spark-primed-uncached
        whole = self._session.sql(f"SELECT * FROM {reference(self.place)} VERSION AS OF {version} WHERE {UNCACHED}")
        columns = schema_of(whole)
        schema = ledger_schema_of(columns)
        require_ledger(self.place, columns.names, schema)
        control = tables.control_schema(schema)
        rows = collect_rows(whole.where(F.col("state").isin(*tables.PRIMED)).select(*control.names), self.place)
        versions = rows.cast(control).combine_chunks()
        opened = SparkOpen(self.engine, reference(self.place), version, schema)
        live = Live(schema, latest(versions), opened, version, Growth.of(versions))
        self._known = (committed, live) if '"token"' in (committed[1] or "") else None
        return live

    def open_on_executors(self, live: Live) -> SparkOpen:
        """Return the open batches as Spark reads them."""
        return cast("SparkOpen", live.open)

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int:
        """Commit the result in one Spark transaction, fenced by the token."""
        self._known, rows = None, processed.rows
        if processed.states:
            rows = pa.concat_tables([rows, *processed.states.values()], promote_options="default")
        try:
            # guard: spark-commit-lock
            with self.engine.lock(self.place, self.settings.fsync):
                written = self.statement(live, token, note).write(rows, control)
        except PySparkException as error:
            raise translate_error(error) from error
        left = _after(live, rows, control, self.settings.max_cached_bytes)
        self._known = None if left is None else ((left.table_version, note), left)
        return written

    def fold(self, live: Live, fold: Fold) -> None:
        """Replace the partitions of live rows in one Spark transaction."""
        self._known = None
        try:
            with self.engine.lock(self.place, self.settings.fsync):
                self.statement(live, "", fold_note(fold)).fold(fold)
        except PySparkException as error:
            raise translate_error(error) from error

    def statement(self, live: Live, token: str, note: str) -> SparkCommit:
        """Return the commit that follows these live rows."""
        return SparkCommit(self._session, self.place, live, token, note)

    def history_since(self, depot_version: int) -> pa.Table:
        """Return the history of the microbatches that read later depot versions."""
        rows = self._session.sql(
            f"SELECT * FROM {reference(self.place)} "
            f"WHERE state = 'microbatch' AND kind = 'data' AND depot_version > {depot_version:d} ORDER BY microbatch"
        )
        return to_plain_types(rows.select([name for name, _ in tables.HISTORY]).toArrow())


def _after(live: Live, rows: Rows, control: pa.Table, max_cached_bytes: int) -> Live | None:
    """Return the live rows after a commit, None if the driver does not know them."""
    here, opened, names = isinstance(rows, pa.Table), live.open, control.schema.names
    on_executors = not here and (tables.is_topology_ledger(names) or tables.reads_raw_depot(names))
    if not isinstance(opened, SparkOpen) or on_executors:  # with control rows that the driver does not know
        return None
    new, revision = rows_to_write(control, live.revision + 1), live.revision + 1
    if here:
        new = pa.concat_tables([new, rows_to_write(rows.select([*names, "known"]), revision)])
    live_now = new.filter(tables.is_live(new["state"]))
    is_control = pc.is_in(live_now["state"], string_array(tables.PRIMED))
    known = None
    if here and opened.rows is not None:
        now_open = live_now.filter(pc.equal(live_now["state"], string_scalar(tables.OPEN)))
        known = _keep_batches(apply_versions(opened.rows, now_open).combine_chunks(), revision, max_cached_bytes)
    version = live.table_version + 1
    next_open = SparkOpen(opened.engine, opened.reference, version, opened.schema, known)
    moved = live_now.filter(is_control).select(live.rows.column_names)
    return Live(
        live.schema,
        apply_versions(live.rows, moved).combine_chunks(),
        next_open,
        version,
        live.growth + Growth.of(moved),
    )


def _keep_batches(batches: pa.Table, revision: int, most: int) -> pa.Table | None:
    """Return open batches to keep on the driver: with all messages or only the last commit's; None if too large."""
    messages = batches[MESSAGES]
    if messages.nbytes > LITTLE_BYTES:
        new = pc.equal(batches["revision"], pa.scalar(revision, pa.int64()))
        messages = pc.if_else(new, messages, pa.nulls(batches.num_rows, messages.type))
        batches = with_messages(batches, messages).combine_chunks()
    if messages.nbytes > LITTLE_BYTES or batches.nbytes > most:
        return None
    return batches
