"""Read a table's Delta log with Spark, for storage that only Spark can reach."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from windrow.columnar.arrow import to_plain_types
from windrow.delta.log import TableInfo, commits
from windrow.delta.logfiles import entry_path
from windrow.delta.store_errors import explain_store_error
from windrow.delta.table import unreadable_error
from windrow.errors import IncompatibleTableError
from windrow.model import chunks
from windrow.model.commits import FEED, Commit, adds_only, note_of, rows_added, rows_in_files
from windrow.model.payload import of_column


@dataclass(slots=True)
class SparkLog:
    """The log of a table that Spark knows by `reference`, such as ``delta.`path` ``.

    Each statement lists the log and reads entries, which are requests to an object store. So what was read is kept, and
    reused as long as the latest commit, as DESCRIBE HISTORY shows it, is the same.
    """

    session: SparkSession
    reference: str
    _table: TableInfo | None = None
    _commits: dict[int, dict[str, Any]] = field(default_factory=dict)  # from some version to the latest one
    _added: dict[int, Added] = field(default_factory=dict)  # of commits that do not count their rows

    def table(self) -> TableInfo | None:
        """Return the table's identity and latest version, None when there is no table."""
        newest = self._newest(2)
        if newest is None:
            return None
        version = newest["version"]
        if self._table is not None and self._table.version == version:
            return self._table
        if self._table is not None and newest["operation"] in ROWS_ONLY:
            id_, feed = self._table.id, self._table.has_change_feed
        else:
            properties = detail(self.session, self.reference)
            if properties is None:  # it has just been dropped
                return None
            id_, feed = properties["id"], properties["properties"].get(FEED) == "true"
        schema = to_plain_types(self.session.sql(f"SELECT * FROM {self.reference} LIMIT 0").toArrow()).schema
        self._table = TableInfo(id_, version, schema, of_column(schema), feed, chunks.is_raw(schema))
        return self._table

    def latest(self) -> tuple[int, str | None] | None:
        """Return the table's latest version and the note (user metadata) of its commit, None when there is no table."""
        commits = self._newest(1)
        return None if commits is None else (int(commits["version"]), commits["userMetadata"])

    def bytes_added(self, after: int, last_version: int) -> dict[int, int]:
        """Return how many bytes each version added in files, as `DeltaRsLog.bytes_added` does."""
        sizes = {}
        for commit in self._since(after + 1, last_version):
            added = self._added.get(commit["version"])
            if rows_added(commit) is not None:
                sizes[commit["version"]] = (commit["operationMetrics"] or {}).get("numOutputBytes")
            elif added is not None and adds_only(commit["operation"], added.removed):
                sizes[commit["version"]] = added.bytes
        return {version: int(size) for version, size in sizes.items() if size and after < version <= last_version}

    def commits(self, since: int | None = None, last_version: int | None = None) -> list[Commit]:
        """Return the commits in the log, in order, from version `since` on, up to `last_version` or later."""
        result = self._history() if since is None else self._since(max(since, 0), last_version)
        # The fingerprint leaves out the time: Spark reports that of the log's file, which differs in a copied table.
        return commits(self._count_rows(result), int, ("operation", "operationMetrics"), "spark")

    def recent(self, number: int) -> list[dict[str, Any]]:
        """Return the latest `number` commits, newest first; none if there is no table."""
        return [] if self._newest(1) is None else self._history(number)

    def history(self, since: int) -> list[dict[str, Any]]:
        """Return the commits from a version on, newest first, as `windrow.delta.table.history` does."""
        return [entry | {"timestamp": entry["timestamp"] // 1_000} for entry in reversed(self._since(since, None))]

    def notes(self) -> list[tuple[dict[str, Any], int | None]]:
        """Return the notes of the commits, and how many rows each added, oldest first; none without a table."""
        commits = [] if self._newest(1) is None else self._history()
        return [(note_of(commit), rows_added(commit)) for commit in reversed(commits)]

    def files_added(self, first: int, last: int) -> tuple[dict[str, int], set[int]]:
        """Return the names of the files that versions added, each with its version, and which versions removed rows."""
        added = self._list_added(range(first, last + 1))
        names = {name: version for version, files in added.items() for name in files.names}
        return names, {version for version, files in added.items() if files.removed}

    def _count_rows(self, commits: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return commits with `rows_in_files` for those that do not say how many rows they added."""
        silent = [commit["version"] for commit in commits if rows_added(commit) is None]
        try:
            self._added |= self._list_added([version for version in silent if version not in self._added])
        except PySparkException:  # a catalog may keep the log to itself
            return commits
        counts = {
            commit["version"]: self._added[commit["version"]].rows(commit["operation"])
            for commit in commits
            if commit["version"] in self._added
        }
        return [commit | {"rows_in_files": counts.get(commit["version"])} for commit in commits]

    def _list_added(self, versions: Iterable[int]) -> dict[int, Added]:
        """Return the files that versions added; nothing if there is no table."""
        numbers = list(versions)
        properties = detail(self.session, self.reference) if numbers else None
        return {} if properties is None else _files_in_log(self.session, properties["location"], numbers)

    def _since(self, since: int, last_version: int | None) -> list[dict[str, Any]]:
        """Return the commits from a version on: those that are known if they reach `last_version`, or else all."""
        if last_version is None or not {since, last_version} <= self._commits.keys():
            commits = self._latest(max(max(self._commits, default=since) - since + 1, 1))
            if commits[-1]["version"] > since:
                self._latest(commits[0]["version"] - since + 1)
        return [commit for version, commit in self._commits.items() if version >= since]

    def _newest(self, number: int) -> dict[str, Any] | None:
        """Read the latest `number` commits, and return the newest, None when there is no table.

        Raises IncompatibleTableError for a table that is not Delta.
        """
        try:
            return self._latest(number)[0]
        except AnalysisException as error:
            if error.getCondition() not in (*NO_TABLE, *NOT_DELTA):
                raise
            detail(self.session, self.reference)
            return None

    def _latest(self, number: int) -> list[dict[str, Any]]:
        """Return the latest `number` commits, newest first, and keep them; forget those of an earlier table here."""
        commits = self._history(number)
        last = self._commits.get(max(self._commits, default=-1))
        # guard: spark-log-followed
        if last not in commits:
            self._commits, self._table, self._added = {}, None, {}
        known = self._commits | {commit["version"]: commit for commit in commits}
        self._commits = dict(sorted(known.items())[-KEPT:])
        self._added = {version: files for version, files in self._added.items() if version in self._commits}
        return commits

    def _history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the latest commits, newest first. Without a limit Delta reads the whole log."""
        statement = f"DESCRIBE HISTORY {self.reference}" + (f" LIMIT {limit:d}" if limit else "")
        try:
            return [commit.asDict() for commit in self.session.sql(statement).selectExpr(*COLUMNS).collect()]
        except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
            location = self.reference.removeprefix("delta.").strip("`")
            if explain_store_error(error, location) is not None:
                raise unreadable_error(location, "table", error) from error
            raise


ROWS_ONLY = {"WRITE", "STREAMING UPDATE", "MERGE", "OPTIMIZE", "DELETE", "UPDATE"}  # neither id nor properties change
KEPT = 100_000  # commits
COLUMNS = (
    "version", "unix_micros(timestamp) AS timestamp", "operation", "operationMetrics", "operationParameters",
    "userMetadata",
)  # fmt: skip


def detail(session: SparkSession, reference: str) -> dict[str, Any] | None:
    """Return `id`, `location`, `properties` and `tableFeatures` of a table, None if it does not exist.

    Raises IncompatibleTableError for a table that is not Delta.
    """
    try:
        described = session.sql(f"DESCRIBE DETAIL {reference}").select(*DETAILS)
        row: dict[str, Any] = described.collect()[0].asDict()
    except AnalysisException as error:
        if error.getCondition() in NO_TABLE:
            return None
        raise
    if row["format"].lower() != "delta":
        raise IncompatibleTableError(f"{reference} is a table of format {row['format']}", "Use a Delta table.")
    return row


# The second one: Spark's own catalog knows names of two parts, and took the first of three parts for a schema's.
NO_SCHEMA = ("SCHEMA_NOT_FOUND", "REQUIRES_SINGLE_PART_NAMESPACE")
DETAILS = ("id", "location", "format", "properties", "tableFeatures")
NO_TABLE = (
    "DELTA_MISSING_DELTA_TABLE",
    "DELTA_TABLE_NOT_FOUND",
    "DELTA_PATH_DOES_NOT_EXIST",
    "DELTA_INVALID_PARTITION_PATH",  # in the directory of another table
    "TABLE_OR_VIEW_NOT_FOUND",
    *NO_SCHEMA,
)
NOT_DELTA = ("DELTA_TABLE_ONLY_OPERATION", "DELTA_ONLY_OPERATION")  # the second one on Spark Connect


@dataclass(slots=True)
class Added:
    """The files that a version added, as `add` actions, and whether it removed rows."""

    files: list[dict[str, Any]] = field(default_factory=list)
    removed: bool = False

    @property
    def names(self) -> list[str]:
        """Return the names of the files."""
        return [file["path"].rsplit("/", 1)[-1] for file in self.files]

    @property
    def bytes(self) -> int:
        """Return how many bytes the files have."""
        return sum(file["size"] for file in self.files)

    def rows(self, operation: str | None) -> int | None:
        """Return how many rows the version added, from the statistics of the files; None if unknown."""
        return rows_in_files(operation, self.files, self.removed)


def _files_in_log(session: SparkSession, location: str, versions: Collection[int]) -> dict[int, Added]:
    """Return the files that versions added, from the log of a table at a path."""
    entries = [f"{location}/{entry_path(version)}" for version in versions]
    add = "STRUCT<path: STRING, dataChange: BOOLEAN, size: BIGINT, stats: STRING, deletionVector: STRUCT<offset: INT>>"
    lines = session.read.schema(f"add {add}, remove STRUCT<dataChange: BOOLEAN>").json(entries)
    lines = lines.where("add.dataChange OR (remove IS NOT NULL AND coalesce(remove.dataChange, true))")
    added: defaultdict[int, Added] = defaultdict(Added)
    for file, entry in lines.select("add", "_metadata.file_name").collect():
        version = added[int(entry.split(".")[0])]
        if file is None:
            version.removed = True
        else:
            version.files.append(file.asDict())
    return {version: added[version] for version in versions}
