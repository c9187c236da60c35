"""The mapping of an input's columns to those of a message, run by Spark or, translated, by DuckDB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pyarrow as pa

from windrow.columnar.arrow import plain_type
from windrow.errors import ExpressionError
from windrow.expressions.attempts import SHOWN_EMBEDDED, SHOWN_ON_SPARK, Attempt, Rewriting, first
from windrow.expressions.parsing import expand_stars, parse, require_row_only, root_names, tokenize
from windrow.expressions.translation import counted, translate
from windrow.expressions.typed_sql import UnsupportedExpression, closest_name, refuse, resolve, spark_type
from windrow.model import messages

ROWS_AT_ONCE = 65_536
DEPOT = "depot.columns"
TIMES = {"event_time", "received_at"}
DEFAULTS = {"source": "''", "sequence": "NULL", "payload": "NULL"}
REWRITE = "Run with --engine spark, rewrite it, or use TRY_CAST, which gives NULL."


@dataclass(frozen=True, slots=True)
class Mapping:
    """One Spark SQL expression for each column of a message, in their order.

    `stamped_by_event_time` says that nothing is mapped to `received_at`, so the event time is used for it. With
    `rejects`, a value that cannot be cast is NULL, and the messages have a column `INVALID_VALUE` that says so.
    """

    expressions: tuple[tuple[str, str], ...]
    stamped_by_event_time: bool = False
    section: str = "ingest.columns"
    rejects: bool = False

    @classmethod
    def of(
        cls,
        expressions: dict[str, str],
        columns: Sequence[str],
        *,
        section: str = "ingest.columns",
        rejects: bool = False,
    ) -> Mapping:
        """Complete `expressions` over an input with `columns`: a message column left out maps to its own name.

        `section` is their place in windrow.toml. In `[depot.columns]` `received_at` has no default, and a
        time that cannot be cast is NULL. Raises ExpressionError for an unknown or
        missing column, and for a text that is no expression, may give another value when run again, or looks beyond
        its row.
        """
        for name in expressions.keys() - messages.COLUMNS.keys():
            hint = closest_name(name, list(messages.COLUMNS))
            raise ExpressionError(f"[{section}] {name}: a message has no such column", hint)
        found = {name: expressions.get(name, _default(name, columns)) for name in messages.COLUMNS}
        stamped_by_event_time = found["received_at"] is None and section != DEPOT
        if stamped_by_event_time:
            found["received_at"] = found["event_time"]
        complete = {name: text.strip() for name, text in found.items() if text is not None}
        needed = [name for name in found if not (name == "received_at" and stamped_by_event_time)]
        _require_all([name for name in needed if name not in complete], section, columns)
        mapping = cls(tuple(complete.items()), stamped_by_event_time, section, rejects)
        for name in [name for name in complete if name in expressions]:
            with mapping._blaming(name, complete[name]):
                complete[name] = expand_stars(complete[name], columns)
                require_row_only(complete[name], columns)
        if section == DEPOT and not rejects:
            complete |= {name: f"TRY_CAST({complete[name]}\n AS TIMESTAMP)" for name in TIMES & expressions.keys()}
        return replace(mapping, expressions=tuple(complete.items()))

    @classmethod
    def of_depot(cls, expressions: dict[str, str], columns: Sequence[str], *, rejects: bool = True) -> Mapping | None:
        """Return the mapping of a depot with `columns`; None if these are the columns of a message.

        A column whose name differs only in case is mapped too, because it would count as missing otherwise. Raises
        ExpressionError if a column is missing and nothing is mapped to it.
        """
        own = {name for name in columns if name.lower() in messages.COLUMNS}
        if not expressions and messages.COLUMNS.keys() - messages.DEFAULTS.keys() <= own <= messages.COLUMNS.keys():
            return None
        return cls.of(expressions, columns, section=DEPOT, rejects=rejects)

    def used(self, columns: Sequence[str]) -> set[str]:
        """Return which of the input's columns the expressions use."""
        return {
            resolve(root, columns) for _, text in self.expressions for root in root_names(parse(text, strict=False))
        }

    def payload_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the payload's type where none is set: binary if a binary column is taken as it is, else text."""
        text = dict(self.expressions)["payload"]
        name = text[1:-1].replace("``", "`") if text.startswith("`") else text
        taken = [field for field in schema if field.name.lower() == name.lower()]
        return pa.binary() if taken and plain_type(taken[0].type) == pa.binary() else pa.string()

    def spark_select(self, payload_type: pa.DataType | None = None) -> list[str]:
        """Return the select expressions for Spark, each cast to its column's type; payload is STRING by default.

        A struct takes its fields by their names.
        """
        cast = self._cast(messages.schema(payload_type), SHOWN_ON_SPARK)
        select = [f"{attempt.value} AS `{name}`" for name, attempt in cast.items()]
        return [*select, f"{_fault_of(cast.values())} AS `{messages.INVALID_VALUE}`"] if self.rejects else select

    def duckdb_select(self, schema: pa.Schema, payload_type: pa.DataType | None = None) -> list[str]:
        """Return the select expressions for DuckDB over rows of `schema`, in which times are plain counts.

        They are those for Spark, translated. Raises ExpressionError for what is not known to give the same values.
        """
        select, faults = list[str](), list[str]()
        cast = self._cast(messages.schema(payload_type), SHOWN_EMBEDDED)
        for (name, text), attempt in zip(self.expressions, cast.values(), strict=True):
            with self._blaming(name, text):
                select.append(f'{translate(parse(attempt.value, strict=True), schema).sql} AS "{name}"')
                faults.append(translate(parse(_fault_of([attempt]), strict=True), schema).sql)
        return [*select, f'coalesce({", ".join(faults)}) AS "{messages.INVALID_VALUE}"'] if self.rejects else select

    def _cast(self, types: pa.Schema, shown: str) -> dict[str, Attempt]:
        """Return the expressions in Spark SQL, each cast to its column's type."""
        cast = {}
        for name, text in self.expressions:
            with self._blaming(name, text):
                attempt = Rewriting(name, shown if self.rejects else None).attempt(text, tokenize(text))
                cast[name] = self._cast_to(types.field(name).type, name, attempt, shown)
        return cast

    def _cast_to(self, type_: pa.DataType, name: str, attempt: Attempt, shown: str) -> Attempt:
        if pa.types.is_struct(type_):
            fields = {one.name: Attempt(f"({attempt.value}).`{one.name}`") for one in type_}
            cast = {one.name: self._cast_to(one.type, f"{name}.{one.name}", fields[one.name], shown) for one in type_}
            packed = ", ".join(f"'{field}', {one.value}" for field, one in cast.items())
            value = f"CASE WHEN ({attempt.value}) IS NOT NULL THEN named_struct({packed}) END"
            return Attempt(value, first(attempt.fault, *(one.fault for one in cast.values())))
        if pa.types.is_string(type_):  # which is not looked at: it may be what the depot has
            return Attempt(f"CAST({attempt.value} AS STRING)", attempt.fault)
        return Rewriting(name, shown if self.rejects else None).cast(attempt, spark_type(type_))

    def apply(
        self, rows: pa.Table | pa.RecordBatchReader, payload_type: pa.DataType | None = None
    ) -> pa.RecordBatchReader:
        """Return the messages of `rows`, batch by batch and in order, without Spark.

        Raises ExpressionError here for what cannot be translated, and while reading for a value that an expression
        cannot take.
        """
        reader = rows.to_reader(max_chunksize=ROWS_AT_ONCE) if isinstance(rows, pa.Table) else rows
        selects, types = [self.duckdb_select(reader.schema, payload_type)], messages.schema(payload_type)
        if self.rejects:  # several times slower, and needed only where a value cannot be cast
            quick = replace(self, rejects=False).duckdb_select(reader.schema, payload_type)
            selects.insert(0, [*quick, f'CAST(NULL AS STRING) AS "{messages.INVALID_VALUE}"'])
            types = types.append(pa.field(messages.INVALID_VALUE, pa.string()))
        return pa.RecordBatchReader.from_batches(types, self._batches(reader, selects, types))

    def _batches(
        self, reader: pa.RecordBatchReader, selects: list[list[str]], types: pa.Schema
    ) -> Iterator[pa.RecordBatch]:
        import duckdb

        used = self.used(reader.schema.names) or {reader.schema.names[0]}
        given = pa.schema([counted(field) for field in reader.schema if field.name in used])
        done = 0
        with duckdb.connect(config={"enable_external_access": False}) as connection:
            for batch in reader:
                rows = connection.from_arrow(pa.Table.from_batches([batch]).select(given.names).cast(given))
                for select in selects:
                    made = _project(rows, select)
                    if isinstance(made, pa.Table):
                        break
                else:
                    self._blame(rows, select, done)
                done += batch.num_rows
                yield from made.cast(types).to_batches()

    def _blame(self, rows: Any, select: list[str], done: int) -> NoReturn:
        """Raise an error that names the first of some rows, before which others are done, and its expression."""
        low, high = 0, len(rows)
        while high - low > 1:
            middle = (low + high) // 2
            fails = isinstance(_project(rows.limit(middle - low, low), select), Exception)
            low, high = (low, middle) if fails else (middle, high)
        row = rows.limit(1, low)
        made = [(*one, _project(row, [sql])) for one, sql in zip(self.expressions, select, strict=False)]
        name, text, error = next(one for one in made if isinstance(one[-1], Exception))
        try:
            with self._blaming(name, text):
                refuse(str(error).split("\n\nLINE ")[0], REWRITE)
        except ExpressionError as named:
            named.row = done + low
            raise

    @contextmanager
    def _blaming(self, name: str, text: str) -> Iterator[None]:
        try:
            yield
        except UnsupportedExpression as refused:
            reason, hint = refused.args
            line = " ".join(f"[{self.section}] {name} = {text}: {reason}".split())
            raise ExpressionError(line, hint) from refused.__cause__


def _fault_of(attempts: Iterable[Attempt]) -> str:
    return first(*(attempt.fault for attempt in attempts), "CAST(NULL AS STRING)") or ""


def _project(rows: Any, select: list[str]) -> pa.Table | Exception:
    import duckdb

    try:
        return rows.project(", ".join(select)).to_arrow_table()
    except duckdb.Error as error:
        return error


def recorded_text(columns: dict[str, str]) -> str | None:
    """Return `[depot.columns]` as canonical JSON for the history, None if it is empty."""
    return json.dumps(columns, sort_keys=True, ensure_ascii=False) if columns else None


def _require_all(lacking: Sequence[str], section: str, columns: Sequence[str]) -> None:
    """Raise ExpressionError if columns of a message are lacking, with all of them."""
    if not lacking:
        return
    where = "it comes" if len(lacking) == 1 else "they come"
    raise ExpressionError(
        f"[{section}] {', '.join(lacking)}: nothing says where {where} from; the input has {', '.join(columns)}",
        f'Write {lacking[0]} = "..." under [{section}] in windrow.toml, an expression over these columns.'
        + (" `windrow init --from TABLE` proposes them." if section == DEPOT else ""),
    )


def _default(name: str, columns: Sequence[str]) -> str | None:
    own = [column for column in columns if column.lower() == name]
    return f"`{own[0]}`" if own else DEFAULTS.get(name)
