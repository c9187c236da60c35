"""Helpers for the notebooks: parameters, temporary views, and showing tables and pictures on every platform.

Parameters are widgets on Databricks and environment variables elsewhere: `NOTEBOOK_KEY=pump-1`. Databricks and Jupyter
show tables and pictures in the notebook; plain Python prints tables and writes pictures to files.
"""

from __future__ import annotations

import builtins
import os
import tempfile
import textwrap
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from windrow.batching.rules import Rules
from windrow.delta.locations import local_path, reference
from windrow.model import tables, timestamps
from windrow.model.durations import approximate_text, to_toml
from windrow.model.printable import json_text, printable
from windrow.reading.values import records
from windrow.runtime.batcher import recorded_rules
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["Notebook"]
MAX_MESSAGES, MAX_ROWS, MAX_WIDTH = 1_000_000, 20, 60
COMMITTED = "CAST(get_json_object(userMetadata, '$.microbatch') AS BIGINT) AS microbatch"


class Notebook:
    """The running notebook; `names` are its `globals()`, which reveal the platform."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = names
        self.parameters: dict[str, str] = {}

    def parameter(self, name: str, default: str = "") -> str:
        """Return a parameter: the value of a widget on Databricks, else an environment variable, else the default."""
        widgets = getattr(self._names.get("dbutils"), "widgets", None)
        if widgets is not None:
            widgets.text(name, default)
        value = os.environ.get(f"NOTEBOOK_{name.upper()}", default) if widgets is None else widgets.get(name)
        self.parameters[name] = str(value)
        return self.parameters[name]

    def time_parameter(self, name: str) -> int | None:
        """Return a parameter, a time in ISO 8601, as microseconds since 1970; None if it is empty.

        Raises SettingsError if the parameter is not a time.
        """
        text = self.parameter(name)
        return timestamps.microseconds(text, name) if text else None

    @cached_property
    def settings(self) -> Settings:
        """The settings in the file `config`; the parameters `depot` and `ledger` take precedence."""
        file = self.parameter("config") or None
        known = Settings.load(file)
        parameters = {name: self.parameter(name, getattr(known, name)) for name in ("depot", "ledger")}
        return Settings.load(file, **parameters)

    @cached_property
    def spark(self) -> SparkSession:
        """The session of the notebook, else the running one, else a local one."""
        from windrow.engine.spark.session import find_session

        return self._names.get("spark") or find_session()

    def views(self) -> None:
        """Create temporary views: `ledger` with the rows that count, and the views in `docs/tables.md`."""
        ledger = reference(self.settings.ledger)
        columns = self.spark.table(ledger).columns
        queries = {"ledger": tables.spark_rows_that_count(ledger, columns)}
        for name, query in (queries | tables.views(ledger, raw=tables.reads_raw_depot(columns))).items():
            self.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} AS {query}")

    def commits(self) -> None:
        """Create the view `commits`: `microbatch` and `timestamp` of each commit in the log of the ledger."""
        commits = self.spark.sql(f"DESCRIBE HISTORY {reference(self.settings.ledger)}")
        commits.selectExpr(COMMITTED, "timestamp").createOrReplaceTempView("commits")

    def arrow(self, rows: DataFrame) -> pa.Table:
        """Return the rows of a frame as the pictures need them: an Arrow table with times in microseconds."""
        from windrow.columnar.arrow import to_plain_types

        return to_plain_types(rows.toArrow())

    @property
    def rules(self) -> Rules:
        """The rules in force in the ledger."""
        if _is_here(self.settings.ledger):
            from windrow.reading.tables import open_ledger

            return recorded_rules(open_ledger(self.settings.ledger).progress().rules)
        return recorded_rules(self._progress("rules"))

    def messages(self, limit: int = MAX_MESSAGES) -> pa.Table:
        """Return the depot's last messages and the `version` of each; uses Spark only if the depot is no path here."""
        if _is_here(self.settings.depot):
            from windrow.reading.feed import recent

            chosen = self.settings
            return recent(chosen.depot, chosen.depot_columns, limit, payload_type=chosen.payload_type).messages
        return self.messages_by_spark(limit)

    def messages_by_spark(self, limit: int = MAX_MESSAGES) -> pa.Table:
        """Return the same with Spark, for tables that only Spark can reach."""
        from pyspark.sql import functions as F

        from windrow.engine.spark.log import SparkLog
        from windrow.expressions import ColumnMapping as Columns
        from windrow.model.commits import CHANGE, VERSION
        from windrow.model.messages import COLUMNS
        from windrow.model.payload import parse

        place, path = self.settings.depot, local_path(self.settings.depot)
        log = SparkLog(self.spark, reference(place))
        start = log.commits()[0].version  # the log may have been trimmed
        reader = self.spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", start)
        feed = reader.load(str(path.resolve())) if path else reader.table(place)
        mapping = Columns.of_depot(self.settings.depot_columns, feed.columns)
        own = [name for name in COLUMNS if name in feed.columns]
        added = feed.where(f"{CHANGE} = 'insert'")
        payload = parse(self.settings.payload_type) if self.settings.payload_type else None
        read = added.selectExpr(*(mapping.spark_select(payload) if mapping else own), f"{VERSION} AS version")
        last = read.orderBy(F.desc("version"), F.desc("received_at")).limit(limit)
        return self.arrow(last)

    def waiting(self) -> pa.Table:
        """Return the unread depot versions in order: `version`, `committed_at`, `messages` (NULL: unknown)."""
        from windrow.columnar.arrow import TIME
        from windrow.engine.spark.log import SparkLog

        read = self._progress("depot_version")
        log = SparkLog(self.spark, reference(self.settings.depot))
        commits = [commit for commit in log.commits(read) if commit.version > read and commit.rows != 0]
        columns = {
            "version": pa.array([commit.version for commit in commits], pa.int64()),
            "committed_at": pa.array([commit.committed_at for commit in commits], pa.int64()).cast(TIME),
            "messages": pa.array([commit.rows for commit in commits], pa.int64()),
        }
        return pa.table(columns)

    def show(self, thing: Any, name: str = "picture") -> None:
        """Show a picture, a DataFrame, an Arrow table, a dataclass such as `rules`, or a text.

        `name` is the file name of a picture. A table is cut to its first rows; Databricks shows more.
        """
        if hasattr(thing, "to_dict") and hasattr(thing, "save"):
            self._show_picture(thing, name)
        elif isinstance(thing, str):
            print(printable(thing))  # noqa: T201 - a notebook prints
        elif is_dataclass(thing):
            self._show_rendered(_fields(thing))
        else:
            self._show_table(thing)

    def sql(self, query: str) -> None:
        """Show the result of a Spark SQL query."""
        self.show(self.spark.sql(query))

    def _progress(self, column: str) -> Any:
        """Return a column of the ledger's progress row, read by Spark."""
        ledger = reference(self.settings.ledger)
        row = tables.live_rows(ledger, f"state = 'progress' AND id = '{tables.PROGRESS}'")
        return self.spark.sql(row).collect()[0][column]

    def _show_picture(self, chart: Any, name: str) -> None:
        from windrow.reading import plot

        file = Path(tempfile.mkdtemp(prefix="windrow-")) / f"{name}.html"
        plot.save(chart, file)
        if "displayHTML" in self._names:
            self._names["displayHTML"](file.read_text(encoding="utf-8"))
        elif hasattr(builtins, "display"):  # Jupyter adds it
            builtins.display(chart)
        else:
            print(f"{name}: {file}")  # noqa: T201 - the same

    def _show_table(self, table: DataFrame | pa.Table) -> None:
        display = self._names.get("display")  # Databricks sets it
        if display is not None:
            display(table.to_pandas() if isinstance(table, pa.Table) else table)
        else:
            rows = table if isinstance(table, pa.Table) else self.arrow(table.limit(MAX_ROWS + 1))
            self._show_rendered(_rendered(rows))

    def _show_rendered(self, table: RichTable) -> None:
        if hasattr(builtins, "display"):
            builtins.display(table)
        else:
            Console(highlight=False).print(table, crop=False)


def _rendered(table: pa.Table) -> RichTable:
    """Return the first rows of an Arrow table at their full width; a caption says if there are more."""
    caption = f"the first {MAX_ROWS} rows" if table.num_rows > MAX_ROWS else None
    rendered = RichTable(box=box.SIMPLE_HEAD, caption=caption, caption_justify="left")
    rows = [[_cell(value) for value in row.values()] for row in records(table.slice(0, MAX_ROWS))]
    for number, field in enumerate(table.schema):
        words = printable(field.name).replace("_", " ")
        widest = max(map(len, [*words.split(), *(row[number] for row in rows)]), default=1)
        numeric = pa.types.is_integer(field.type) or pa.types.is_floating(field.type)
        rendered.add_column(textwrap.fill(words, widest), justify="right" if numeric else "left", min_width=widest)
    for row in rows:
        rendered.add_row(*map(Text, row))
    wide = Console(width=10_000)
    rendered.width = Measurement.get(wide, wide.options, rendered).maximum
    return rendered


def _fields(thing: Any) -> RichTable:
    """Return the fields of a dataclass, one per row; rules are written as in `windrow.toml`."""
    values = {field.name: getattr(thing, field.name) for field in fields(thing)}
    rendered = RichTable(box=box.SIMPLE_HEAD, show_header=False)
    for name, value in (to_toml(values) if isinstance(thing, Rules) else values).items():
        duration = name.endswith("_us") and isinstance(value, int)
        text = approximate_text(value) if duration else _cell(value)
        rendered.add_row(name.removesuffix("_us") if duration else name, Text(text))
    return rendered


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.2f}"
    text = printable(value if isinstance(value, str) else json_text(value, default=str).strip('"'))
    return text if len(text) <= MAX_WIDTH else text[: MAX_WIDTH - 1] + "…"


def _is_here(location: str) -> bool:
    """Tell whether a table is a path on this file system, which can be read without Spark."""
    path = local_path(location)
    return path is not None and path.exists()
