"""Query the rows of a Delta table with SQL: DuckDB reads the files that the log lists and a query needs.

DuckDB reads local files column by column, and skips parts of them by their own statistics. It reads no object store,
and supports neither deletion vectors nor mapped columns: in these cases delta-rs first copies the columns that a query
names into the database.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote
from weakref import finalize

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from windrow.columnar.arrow import empty_table, to_plain_type
from windrow.delta.database import database, disk_error, is_full
from windrow.delta.locations import local_path
from windrow.delta.table import beyond_files, translate_read_errors, unreadable_error

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_AT_ONCE = 32_768
LISTS_AT_ONCE = 1_024  # of batches with their messages, which may be hundreds each
GLOB = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class Relation:
    """The rows of a table with one of these values in its first partition column, in the named columns.

    Rows that do not meet the SQL condition `where` may be left out.
    """

    values: Collection[str]
    columns: Collection[str]
    where: str = "true"


class TableRows:
    """The rows of one version of a table, in a database that is closed with this object."""

    def __init__(self, table: DeltaTable, location: str, role: str) -> None:
        """Open the database."""
        self.location, self.role, self._table = location, role, table
        self._partitions: list[str] = table.metadata().partition_columns
        self._schema = pa.schema(table.schema().to_arrow())
        self._reads_files = local_path(table.table_uri) is not None and not beyond_files(table)
        stack = ExitStack()
        self._database = stack.enter_context(database())
        finalize(self, stack.close)
        self._database.execute("SET TimeZone = 'UTC'")
        self._database.register("columns", empty_table(self._schema))
        self._database.execute("CREATE TABLE no_rows AS FROM columns")
        columns = self._database.table("no_rows")
        self._types = dict(zip(columns.columns, map(str, columns.types), strict=True))

    @contextmanager
    def connect(self, relations: Mapping[str, Relation], views: Mapping[str, str]) -> Iterator[DuckDBPyConnection]:
        """Yield a connection with relations and views over them.

        Raises TableUnreadableError, and TableUnwritableError if neither memory nor disk has room.
        """
        import duckdb

        with translate_read_errors(self.location, self.role), self._database.cursor() as cursor:
            try:
                for name, relation in relations.items():
                    cursor.execute(f"CREATE TEMP VIEW {name} AS {self._select(cursor, name, relation)}")
                for name, query in views.items():
                    cursor.execute(f"CREATE TEMP VIEW {name} AS {query}")
                yield cursor
            except (duckdb.Error, pa.ArrowException, OSError) as error:  # Arrow passes on DuckDB's errors
                raise (
                    disk_error(error) if is_full(error) else unreadable_error(self.location, self.role, error)
                ) from error

    def _select(self, cursor: DuckDBPyConnection, name: str, relation: Relation) -> str:
        columns = [column for column in self._types if column in relation.columns]
        selects = [f"SELECT {', '.join(map(identifier, columns))} FROM no_rows"]  # noqa: S608 - all names are quoted
        where, partitions = self._narrow_files(relation) if relation.values else ("false", [])
        if partitions and not self._reads_files:
            cursor.register(f"scanned_{name}", self._table.scan(columns, where))
            cursor.execute(f"CREATE TEMP TABLE copied_{name} AS FROM scanned_{name}")
            return f"FROM copied_{name}"
        for partition in sorted(partitions, key=str):
            among = " AND ".join(
                f"{name} IS NULL" if value is None else f"{name} = {literal(value)}"
                for name, value in partition.items()
            )
            paths = self._table.file_uris(file_pruning_predicate=f"{where} AND {among}")
            values = [
                f"CAST({'NULL' if partition[column] is None else literal(partition[column])} AS {self._types[column]})"
                if column in partition
                else identifier(column)
                for column in columns
            ]
            selects.append(f"SELECT {', '.join(values)} FROM {self._files(paths, columns)}")  # noqa: S608 - the same
        return " UNION ALL ".join(selects)

    def _narrow_files(self, relation: Relation) -> tuple[str, list[dict[str, str]]]:
        """Return the condition by which delta-rs leaves out files, and the partitions that it finds.

        It supports less SQL than DuckDB. A `where` that it does not support leaves out no file.
        """
        among = f"{self._partitions[0]} IN ({', '.join(map(literal, relation.values))})"
        with suppress(DeltaError):
            where = f"{among} AND ({relation.where})"
            return where, self._table.partitions(file_pruning_predicate=where)
        return among, self._table.partitions(file_pruning_predicate=among)

    def _files(self, paths: Collection[str], columns: Collection[str]) -> str:
        """Return the SQL by which DuckDB reads the rows of local files; columns that a file lacks are NULL."""
        root = self._table.table_uri.removeprefix("file://")  # delta-rs escapes only this part of an address
        places = (unquote(root) + path.removeprefix(root) if path.startswith(root) else path for path in paths)
        listed = ", ".join(literal(GLOB.sub(r"[\g<0>]", place)) for place in places)
        known = ", ".join(
            f"{literal(name)}: {{name: {literal(name)}, type: {literal(self._types[name])}, default_value: NULL}}"
            for name in columns
            if name not in self._partitions
        )
        return f"read_parquet([{listed}], schema = MAP {{{known}}}, hive_partitioning = false)"


def execute(connection: DuckDBPyConnection, statement: str) -> pa.RecordBatchReader:
    """Return the result of a statement in plain types, with sums as whole numbers; it is read on demand."""
    rows = connection.sql(statement)
    has_lists = any("[]" in str(type_) for type_ in rows.types)
    reader = rows.to_arrow_reader(LISTS_AT_ONCE if has_lists else ROWS_AT_ONCE)
    return reader.cast(pa.schema([(field.name, _result_type(field.type)) for field in reader.schema]))


def _result_type(type_: pa.DataType) -> pa.DataType:
    return pa.int64() if type_ == pa.decimal128(38, 0) else to_plain_type(type_)


def identifier(name: str) -> str:
    """Return a name as an SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a text as an SQL literal."""
    return "'" + text.replace("'", "''") + "'"
