"""Column mappings: the user's Spark SQL expressions that make the columns of a message from those of an input.

Spark runs the text unchanged. For the embedded engine, sqlglot parses it and Windrow translates it to DuckDB's SQL by
the types of the input, because the same function can differ between the two systems (a cast of a decimal to an integer
truncates in one and rounds in the other). Anything that the translation does not know is refused before the input is
read. So both engines give the same value, or one of them an error, but never silently different values. The text of a
float is the same from Java 19 on; an older Java writes some with other digits, which read back the same (JDK-4511638).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

import pyarrow as pa

from windrow.columnar.arrow import to_plain_type
from windrow.errors import ExpressionError
from windrow.expressions.attempts import (
    Attempt,
    attempt_at,
    fault_embedded,
    fault_on_spark,
    first_fault,
    sentence_parts,
)
from windrow.expressions.casts import (
    OTHERWISE,
    TypedSql,
    UnsupportedExpression,
    cast,
    closest_name,
    fault,
    refuse,
    resolve,
    spark_type,
)
from windrow.expressions.translation import duckdb_field, struct_fields, translate
from windrow.model import messages

ROWS_AT_ONCE = 65_536
DEPOT = "depot.columns"
TIMES = {"event_time", "received_at"}
DEFAULTS = {"source": "''", "sequence": "NULL", "payload": "NULL"}
VOLATILE = re.compile(
    r"(current_\w+|curdate|input_file_\w+|java_method|localtimestamp|monotonically_increasing_id|now|rand\w*|"
    r"session_user|shuffle|spark_partition_id|(try_)?reflect|uniform|user|uuid|version)(\(\))?|unix_timestamp\(\)",
    re.IGNORECASE,
)
MOVING_TIME = re.compile(r"\s*(now|today|tomorrow|yesterday)(\s.*)?", re.IGNORECASE | re.DOTALL)
ROW_ONLY = "Use only columns of the row and deterministic functions."


@dataclass(frozen=True, slots=True)
class ColumnMapping:
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
    ) -> ColumnMapping:
        """Complete `expressions` over an input with `columns`: a message column left out maps to its own name.

        `section` is their place in windrow.toml. In `[depot.columns]` `received_at` has no default, and a time that
        cannot be cast is NULL. Raises ExpressionError for an unknown or missing column, and for a text that is not an
        expression, may give another value when run again, or depends on other rows.
        """
        for name in expressions.keys() - messages.COLUMNS.keys():
            hint = closest_name(name, list(messages.COLUMNS))
            raise ExpressionError(f"[{section}] {name}: a message has no such column", hint)
        chosen = {name: expressions.get(name, _default(name, columns)) for name in messages.COLUMNS}
        optional = set() if section == DEPOT else {"received_at"}
        _require_all([name for name, text in chosen.items() if text is None and name not in optional], section, columns)
        stamped_by_event_time = chosen["received_at"] is None
        if stamped_by_event_time:
            chosen["received_at"] = chosen["event_time"]
        complete = {name: text.strip() for name, text in chosen.items() if text is not None}
        mapping = cls(tuple(complete.items()), stamped_by_event_time, section, rejects)
        for name in [name for name in complete if name in expressions]:
            with mapping._blaming(name, complete[name]):
                complete[name] = _without_stars(complete[name], columns)
                _check(complete[name], columns)
        if section == DEPOT and not rejects:
            complete |= {name: f"TRY_CAST({complete[name]}\n AS TIMESTAMP)" for name in TIMES & expressions.keys()}
        return replace(mapping, expressions=tuple(complete.items()))

    @classmethod
    def of_depot(
        cls, expressions: dict[str, str], columns: Sequence[str], *, rejects: bool = True
    ) -> ColumnMapping | None:
        """Return the mapping of a depot with `columns`; None if these are the columns of a message.

        A column whose name differs only in case is mapped too, because otherwise it would count as missing. Raises
        ExpressionError if a column is missing and nothing is mapped to it.
        """
        own = {name for name in columns if name.lower() in messages.COLUMNS}
        if not expressions and messages.COLUMNS.keys() - messages.DEFAULTS.keys() <= own <= messages.COLUMNS.keys():
            return None
        return cls.of(expressions, columns, section=DEPOT, rejects=rejects)

    def used_columns(self, columns: Sequence[str]) -> set[str]:
        """Return which of the input's columns the expressions use."""
        return {resolve(root, columns) for _, text in self.expressions for root in _roots(_parse(text, strict=False))}

    def payload_type(self, schema: pa.Schema) -> pa.DataType:
        """Return the payload's type where none is set: binary for a binary column mapped unchanged, else text."""
        text = dict(self.expressions)["payload"]
        name = text[1:-1].replace("``", "`") if text.startswith("`") else text
        taken = [field for field in schema if field.name.lower() == name.lower()]
        return pa.binary() if taken and to_plain_type(taken[0].type) == pa.binary() else pa.string()

    def spark_select(self, payload_type: pa.DataType | None = None) -> list[str]:
        """Return the select expressions for Spark, each cast to its column's type; payload is STRING by default.

        The fields of a struct are matched by name.
        """
        types, select, faults = messages.schema(payload_type), list[str](), list[str | None]()

        def convert(attempt: Attempt, type_: pa.DataType, column: str) -> str:
            kind = spark_type(type_)
            if self.rejects and kind != "STRING":  # text is not checked: it may come unchanged from the depot
                attempt = attempt.cast(kind, column, fault_on_spark)
            else:
                attempt = replace(attempt, value=f"CAST({attempt.value} AS {kind})")
            faults.append(attempt.fault)
            return attempt.value

        for name, text in self.expressions:
            attempt = (
                attempt_at(text, _tokens(text), name, fault_on_spark)
                if self.rejects
                else Attempt(text + "\n" * ("--" in text))
            )
            type_, value = types.field(name).type, attempt.value
            if pa.types.is_struct(type_):
                faults.append(attempt.fault)
                members = []
                for field in type_:
                    member = convert(Attempt(f"({value}).`{field.name}`"), field.type, f"{name}.{field.name}")
                    members.append(f"'{field.name}', {member}")
                sql = f"CASE WHEN ({value}) IS NOT NULL THEN named_struct({', '.join(members)}) END"
            else:
                sql = convert(attempt, type_, name)
            select.append(f"{sql} AS `{name}`")
        wrong = f"{first_fault(*faults, 'CAST(NULL AS STRING)')} AS `{messages.INVALID_VALUE}`"
        return [*select, wrong] if self.rejects else select

    def duckdb_select(
        self, schema: pa.Schema, payload_type: pa.DataType | None = None, *, attempt: bool = False
    ) -> list[str]:
        """Return the select expressions for DuckDB over rows of `schema`, in which times are plain counts.

        With `attempt`, values that cannot be cast are NULL, and extra SQL says which. Raises ExpressionError for what
        is not known to give the same values as on Spark.
        """
        types, select, faults = messages.schema(payload_type), list[str](), list[str]()

        def convert(value: TypedSql, type_: pa.DataType, column: str) -> str:
            kind = spark_type(type_)
            attempted = attempt and kind != "STRING"
            if attempted:
                faults.append(fault(value, kind, *sentence_parts(column, kind)).sql)
            return cast(value, kind, attempt=attempted).sql

        for name, text in self.expressions:
            with self._blaming(name, text):
                tried = attempt_at(text, _tokens(text), name, fault_embedded) if attempt else Attempt(text)
                tree, type_ = _parse(tried.value, strict=True), types.field(name).type
                if tried.fault:
                    faults.append(translate(_parse(tried.fault, strict=True), schema).sql)
                if pa.types.is_struct(type_):
                    fields, given = struct_fields(tree, schema)
                    members = []
                    for field in type_:
                        member = fields[resolve(field.name, list(fields))]
                        members.append(f"'{field.name}': {convert(member, field.type, f'{name}.{field.name}')}")
                    packed = f"{{{', '.join(members)}}}"
                    sql = packed if given is None else f"CASE WHEN {given.sql} IS NOT NULL THEN {packed} END"
                else:
                    sql = convert(translate(tree, schema), type_, name)
                select.append(f'{sql} AS "{name}"')
        wrong = f'coalesce({", ".join([*faults, "CAST(NULL AS STRING)"])}) AS "{messages.INVALID_VALUE}"'
        return [*select, wrong] if attempt else select

    def apply(
        self, rows: pa.Table | pa.RecordBatchReader, payload_type: pa.DataType | None = None
    ) -> pa.RecordBatchReader:
        """Return the messages of `rows`, batch by batch and in order, without Spark.

        Raises ExpressionError here if an expression cannot be translated, and while reading if it fails on a value.
        """
        reader = rows.to_reader(max_chunksize=ROWS_AT_ONCE) if isinstance(rows, pa.Table) else rows
        select, types = self.duckdb_select(reader.schema, payload_type), messages.schema(payload_type)
        types = types.append(pa.field(messages.INVALID_VALUE, pa.string())) if self.rejects else types
        return pa.RecordBatchReader.from_batches(types, self._batches(reader, select, types))

    def _batches(self, reader: pa.RecordBatchReader, select: list[str], types: pa.Schema) -> Iterator[pa.RecordBatch]:
        import duckdb

        used = self.used_columns(reader.schema.names) or {reader.schema.names[0]}
        schema = pa.schema([duckdb_field(field) for field in reader.schema if field.name in used])
        rows_before = 0
        with duckdb.connect(config={"enable_external_access": False}) as connection:
            for batch in reader:
                rows = connection.from_arrow(pa.Table.from_batches([batch]).select(schema.names).cast(schema))
                try:
                    made = self._project(rows, select, reader.schema, types)
                except ExpressionError as error:
                    error.row = None if error.row is None else rows_before + error.row
                    raise
                rows_before += batch.num_rows
                yield from made.cast(types).to_batches()

    def _project(self, rows: Any, select: list[str], schema: pa.Schema, types: pa.Schema) -> pa.Table:
        """Return the messages of rows; only if a value cannot be cast, find out which."""
        import duckdb

        try:
            table = rows.project(", ".join(select)).to_arrow_table()
            return table.append_column(types.field(-1), pa.nulls(len(table), pa.string())) if self.rejects else table
        except duckdb.Error as error:
            if not self.rejects:
                self._blame(rows, select, error)
        select = self.duckdb_select(schema, types.field("payload").type, attempt=True)
        try:
            return rows.project(", ".join(select)).to_arrow_table()
        except duckdb.Error as error:
            self._blame(rows, select, error)

    def _blame(self, rows: Any, select: list[str], error: Exception) -> NoReturn:
        """Raise an error that names the row and the failed expression: the first one that fails alone."""
        for (name, text), sql in zip(self.expressions, select, strict=False):
            failing = _first_failing(rows, sql)
            if failing is not None:
                row, alone = failing
                hint = "Run with --engine spark, rewrite it, or use TRY_CAST, which gives NULL."
                named = self._error(name, text, str(alone).split("\n\nLINE ")[0], hint)
                named.row = row
                raise named from None
        raise error

    @contextmanager
    def _blaming(self, name: str, text: str) -> Iterator[None]:
        try:
            yield
        except UnsupportedExpression as refused:
            raise self._error(name, text, *refused.args) from refused.__cause__

    def _error(self, name: str, text: str, reason: str, hint: str) -> ExpressionError:
        return ExpressionError(" ".join(f"[{self.section}] {name} = {text}: {reason}".split()), hint)


def _first_failing(rows: Any, sql: str) -> tuple[int, Exception] | None:
    """Find, by bisection, the first row for which an expression fails, and its error; None if there is none."""
    import duckdb

    def failure(start: int, stop: int) -> Exception | None:
        try:
            rows.limit(stop - start, start).project(sql).to_arrow_table()
        except duckdb.Error as error:
            return error
        return None

    low, high = 0, len(rows)
    error = failure(low, high)
    while error is not None and high - low > 1:
        middle = (low + high) // 2
        before = failure(low, middle)
        low, high, error = (low, middle, before) if before else (middle, high, failure(middle, high) or error)
    return None if error is None else (low, error)


def recorded_text(columns: dict[str, str]) -> str | None:
    """Return `[depot.columns]` as canonical JSON for the history, None if it is empty."""
    return json.dumps(columns, sort_keys=True, ensure_ascii=False) if columns else None


def _require_all(lacking: Sequence[str], section: str, columns: Sequence[str]) -> None:
    """Raise ExpressionError if columns of a message are lacking, and name all of them."""
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


@cache
def _parser(*, strict: bool) -> Any:
    """Return a parser of Spark SQL that keeps calls as they are written.

    sqlglot's own parser renames functions and drops arguments to reach its common language. A strict parser knows no
    special forms of arguments either, except that of CAST.
    """
    from sqlglot.dialects.spark import Spark

    special = Spark.Parser.FUNCTION_PARSERS
    kept = {name: special[name] for name in ("CAST", "TRY_CAST")} if strict else special
    return type("Parser", (Spark.Parser,), {"FUNCTIONS": {}, "FUNCTION_PARSERS": kept})(dialect=Spark())


def _parse(text: str, *, strict: bool) -> Any:
    """Return the tree of an expression; if `strict`, refuse what sqlglot reads differently from Spark."""
    import sqlglot

    parser, tokens = _parser(strict=strict), _tokens(text)
    hint = OTHERWISE if strict else "Write one Spark SQL expression."
    try:
        trees = parser.parse(tokens, text)
    except sqlglot.errors.ParseError as error:
        at = error.errors[0]
        raise UnsupportedExpression(f"{at['description']} at line {at['line']}, column {at['col']}", hint) from error
    tree = trees[0]
    if len(trees) > 1 or not isinstance(tree, sqlglot.exp.Condition | sqlglot.exp.Query) or tree.is_star:
        refuse("this is not a single expression", hint)
    if strict:
        _check_tokens(text, tokens)
    return tree


def _tokens(text: str) -> list[Any]:
    from sqlglot.errors import TokenError

    try:
        return list(_parser(strict=False).dialect.tokenize(text))
    except TokenError as error:
        raise UnsupportedExpression("a quote or comment is not closed", "Close it.") from error


def _without_stars(text: str, columns: Sequence[str]) -> str:
    """Return an expression with its stars expanded, because an engine's rows have more columns than the input."""
    tokens, parts, end = _tokens(text), [], 0
    for before, token, after in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if token.token_type.name != "STAR" or before.token_type.name not in ("L_PAREN", "COMMA"):
            continue
        if after.token_type.name not in ("R_PAREN", "COMMA"):
            refuse(f"* {after.text}", "Name the columns one by one.")
        named = ", ".join(f"`{column.replace('`', '``')}`" for column in columns)
        parts += [text[end : token.start], named]
        end = token.end + 1
    return "".join([*parts, text[end:]])


def _check(text: str, columns: Sequence[str]) -> None:
    """Refuse, for both engines, unknown columns, non-deterministic functions, and those that need other rows."""
    from sqlglot import exp

    tree = _parse(text, strict=False)
    for node in tree.walk():
        name = node.sql_name() if isinstance(node, exp.Func) else ""
        name = node.name if isinstance(node, exp.Anonymous) else name
        known = exp.FUNCTION_BY_NAME.get(name.upper(), type(node))
        if isinstance(node, exp.Query | exp.Window) or issubclass(known, exp.AggFunc):
            refuse(f"{name or 'a query or window'} reads other rows", ROW_ONLY)
        if VOLATILE.fullmatch(name + "()" * (not node.expressions)) or "${" in text:
            refuse(f"{name or '${...}'} may differ in every run", ROW_ONLY)
        if isinstance(node, exp.Literal | exp.RawString) and MOVING_TIME.fullmatch(node.name):
            refuse(f"{node.name!r} depends on the current time", "For the text itself, write concat('to', 'day').")
    for root in _roots(tree):
        resolve(root, columns)


def _roots(tree: Any) -> set[str]:
    from sqlglot.expressions import Column

    return {column.parts[0].name for column in tree.find_all(Column)} - {"*"}


def _check_tokens(text: str, tokens: Sequence[Any]) -> None:
    """Refuse text that sqlglot silently parses differently from Spark."""
    before = ""
    for token in tokens:
        written, kind = text[token.start : token.end + 1], token.token_type.name
        if kind.endswith("STRING") and before.endswith("STRING"):
            refuse(f"{written} follows another text", "Write one text, with \\' for a quote in it.")
        if (kind == "STRING" and "\\" in re.sub(r"\\[\\'\"nrt]", "", written)) or "\0" in token.text:
            refuse(f"{written} holds an unknown escape", "Write a backslash as \\\\, or the text as r'...'.")
        if kind in ("CHAR", "VARCHAR"):
            refuse(f"the type {written}", "Write STRING.")
        before = kind
