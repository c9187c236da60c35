"""Batches as rows of numbers: one row per batch, one column per type, or six where a batch may repeat types.

The batches are closed ones; `early` adds open ones, whose numbers may still change, and a column `state`.

A DOUBLE or BIGINT payload is a number. So is a text that is nothing but a decimal number, such as `-1.5e3`; any other
text counts as missing. Payloads of other types are refused. If all microbatches split at repeated types, the column of
a type holds its number. If one kept repeats, a type has the columns `first`, `last`, `min`, `max`, `mean` and `count`
of its numbers, in the order of the batch; `min` and `max` ignore NaN.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import combine_chunks, to_plain_type
from windrow.delta.locations import parts, quote_name, reference
from windrow.errors import IncompatibleTableError, OutputFileError, SettingsError, TableMissingError, first_line
from windrow.model.payload import name as name_of
from windrow.model.payload import of_column
from windrow.model.tables import BATCH_KEY, batch_fields, open_batches
from windrow.reading.tables import Ledger, recorded_rules

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OTHERWISE = {"mean": pa.float64(), "count": pa.int64()}  # all others have the type of the numbers
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\z"
EARLY = ("closed", "open")
Numbers = npt.NDArray[np.generic]


def unique_types(types: Sequence[str]) -> tuple[str, ...]:
    """Return each type once. Raises SettingsError for a single text, whose letters would become types."""
    if isinstance(types, str):
        raise SettingsError(f"types = {types!r} is not a list", f"Write types=[{types!r}].")
    return tuple(dict.fromkeys(types))


@dataclass(frozen=True, slots=True)
class Pivot:
    """The types of the columns, the type of payloads, and whether a batch may hold several messages of a type."""

    types: tuple[str, ...]
    payload: pa.DataType
    repeats: bool
    early: bool = False

    @classmethod
    def of(cls, book: Ledger, where: str, types: Sequence[str] | None = None, early: bool = False) -> Pivot:
        """Return the pivot of the batches that an SQL condition selects, with all their types unless some are given.

        Raises OutputFileError if payloads are not numbers.
        """
        rules = book.rows("microbatch", "rules", rest="GROUP BY rules")["rules"].to_pylist()
        kept = any(recorded_rules(rule).get("on_repeat") == "keep" for rule in rules if rule)
        if types is not None:
            return cls(unique_types(types), book.payload, kept, early)
        each = "DISTINCT unnest(list_distinct(list_transform(messages, lambda one: one.type))) AS type"
        result = book.rows(EARLY if early else "closed", each, where)["type"].to_pylist()
        return cls(tuple(sorted(result, key=str.encode)), book.payload, kept, early)

    def __post_init__(self) -> None:
        """Raise OutputFileError if payloads are not numbers."""
        if self.payload not in (pa.float64(), pa.int64(), pa.string()):
            raise OutputFileError(
                f"the payloads are {name_of(self.payload)}, but a pivot needs numbers or text with numbers",
                "Query closed_messages with SQL instead; docs/sql-analysts.md has examples.",
            )

    @property
    def number(self) -> pa.DataType:
        """Return the type of numbers."""
        return self.payload if pa.types.is_int64(self.payload) else pa.float64()

    @property
    def schema(self) -> pa.Schema:
        """Return the columns: those of a batch, then those of each type in the order of their bytes."""
        batch = dict(batch_fields(self.payload))
        fields = [(name, batch[name]) for name in self.batch]
        for type_ in self.types:
            fields += [(name, OTHERWISE.get(kind, self.number)) for kind, name in self.columns(type_).items()]
        return pa.schema(fields)

    @property
    def batch(self) -> tuple[str, ...]:
        """Return the columns of a batch."""
        return (*BATCH_KEY, "state") if self.early else BATCH_KEY

    def columns(self, type_: str) -> dict[str, str]:
        """Return the column names of a type, keyed by what the columns hold.

        A type named like a column of batches gets the prefix `type.`, so that no two columns have the same name.
        """
        if self.repeats:
            return {kind: f"{type_}.{kind}" for kind in ("first", "last", "min", "max", "mean", "count")}
        is_taken = re.fullmatch(rf"(type\.)*({'|'.join(self.batch)})", type_)
        return {"first": f"type.{type_}" if is_taken else type_}

    def rows(self, batches: pa.Table) -> pa.Table:
        """Return a row for each batch; `batches` has the columns of a batch and its messages."""
        lists = combine_chunks(batches["messages"])
        inside = pc.list_flatten(lists)
        numbers = self._numbers(pc.struct_field(inside, "payload"))
        code = pc.index_in(pc.struct_field(inside, "type"), pa.array(self.types, pa.string()))
        there = pc.and_(numbers.is_valid(), code.is_valid())
        row, code = (array.filter(there).to_numpy() for array in (pc.list_parent_indices(lists), code))
        values = numbers.filter(there).to_numpy()
        order = np.argsort(code, kind="stable")  # the messages of a type stay in the order of their batches
        bounds = np.searchsorted(code[order], np.arange(len(self.types) + 1))
        columns: list[pa.Array | pa.ChunkedArray] = [batches[name] for name in self.batch]
        for at, type_ in enumerate(self.types):
            mine = order[bounds[at] : bounds[at + 1]]
            if not self.repeats and (np.diff(row[mine]) == 0).any():
                raise OutputFileError(
                    f"a batch has several messages of type {type_!r}, but a column has room for one number",
                    'The ledger keeps repeats: set repeats=True, for columns such as "temperature.mean".',
                )
            figures = _figures(row[mine], values[mine], self.columns(type_), batches.num_rows)
            columns += [pa.array(figure) for figure in figures]
        typed = [column.cast(type_) for column, type_ in zip(columns, self.schema.types, strict=True)]
        return pa.Table.from_arrays(typed, schema=self.schema)

    def query(self, ledger: str) -> str:
        """Return the same rows as a Spark SQL query over a table reference."""
        batch, inner, outer = ", ".join(self.batch), [], []
        number = f"CAST(one.payload AS {name_of(self.number)})"
        if pa.types.is_string(self.payload):
            number = f"CASE WHEN one.payload RLIKE '{NUMBER.replace(chr(92), chr(92) * 2)}' THEN {number} END"
        for at, type_ in enumerate(self.types):
            literal = "'" + type_.replace("\\", "\\\\").replace("'", "\\'") + "'"
            listed = f"transform(filter(messages, one -> one.type = {literal}), one -> {number})"
            inner.append(f"filter({listed}, one -> one IS NOT NULL) AS v{at}")
            for kind, name in self.columns(type_).items():
                outer.append(f"{FIGURES[kind].format(v=f'v{at}')} AS `{name.replace('`', '``')}`")
        lists = ", ".join([batch, *inner])
        columns = (*self.batch, "messages")
        rows = f"SELECT {', '.join(columns)} FROM {ledger} WHERE state = 'closed'"  # noqa: S608 - all names are quoted
        rows += f" UNION ALL {open_batches(ledger, columns)}" if self.early else ""
        return f"SELECT {', '.join([batch, *outer])} FROM (SELECT {lists} FROM ({rows}))"  # noqa: S608 - the same

    def _numbers(self, payloads: pa.Array) -> pa.Array:
        """Return payloads as numbers, NULL for a text that is not a number."""
        if not pa.types.is_string(payloads.type) and not pa.types.is_string_view(payloads.type):
            return payloads
        texts = payloads.cast(pa.string())
        texts = pc.if_else(pc.match_substring_regex(texts, NUMBER), texts, pa.scalar(None, pa.string()))
        try:
            return texts.cast(pa.float64())
        except pa.ArrowInvalid:  # one is too large and becomes infinite
            return pa.array([None if text is None else float(text) for text in texts.to_pylist()], pa.float64())


def pivot(batches: pa.Table, types: Sequence[str], repeats: bool = False) -> pa.Table:
    """Return a row of numbers for each batch, with a column for each type (see `reading.pivot`).

    Args:
        batches: Batches as `read_closed` or a topology over a ledger returns them.
        types: The types that become columns.
        repeats: Whether a batch may have several messages of a type.

    Returns:
        The table, in the order of the batches.

    Raises:
        OutputFileError: Payloads are not numbers, or a batch repeats a type without `repeats`.

    Example:
        >>> closed = windrow.read_closed("data/ledger")
        >>> windrow.pivot(closed.batches, ["temperature"])["temperature"].to_pylist()
        [21.5]
    """
    payload = to_plain_type(batches.schema.field("messages").type.value_type.field("payload").type)
    return Pivot(unique_types(types), payload, repeats).rows(batches)


def create_pivot_view(
    spark: SparkSession, ledger: str, view: str, types: Sequence[str] | None = None, early: bool = False
) -> None:
    """Create or replace a view with a row for each closed batch and a column for each type (see `reading.pivot`).

    Args:
        spark: The session.
        ledger: A path or a name in a catalog.
        view: The name of the view: without a dot it is temporary, with one it is in a catalog.
        types: The types that become columns, by default those in these batches; call the function again for new ones.
        early: Whether the view includes open batches.

    Returns:
        Nothing.

    Raises:
        TableMissingError: There is no such ledger.
        OutputFileError: Payloads are not numbers.
        IncompatibleTableError: Spark refuses the view.

    Example:
        >>> windrow.create_pivot_view(spark, "data/ledger", "readings")  # doctest: +SKIP
        >>> spark.table("readings").show()  # doctest: +SKIP
    """
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F
    from pyspark.sql.pandas.types import to_arrow_type

    table = reference(ledger)
    try:
        frame = spark.table(table)
        payload = of_column(pa.schema([("payload", to_arrow_type(frame.schema["payload"].dataType))]))
        kept = frame.where("state = 'microbatch' AND get_json_object(rules, '$.on_repeat') = 'keep'")
        repeats = bool(kept.select("id").limit(1).collect())
        if types is None:
            rows = frame.where(F.col("state").isin(*EARLY) if early else "state = 'closed'")
            rows_of_types = rows.selectExpr("explode(messages.type)").distinct().collect()
            types = sorted((row[0] for row in rows_of_types), key=str.encode)
    except (PySparkException, KeyError) as error:
        raise TableMissingError(
            f"there is no ledger at {ledger}", "Give its path, or its name in a catalog."
        ) from error
    query = Pivot(unique_types(types), payload, repeats, early).query(table)
    try:
        spark.sql(f"CREATE OR REPLACE {'' if '.' in view else 'TEMPORARY '}VIEW {quote_name(*parts(view))} AS {query}")
    except PySparkException as error:
        raise IncompatibleTableError(
            f"the view {view} cannot be created: {first_line(error)}", "Give it another name."
        ) from error


FIGURES = {
    "first": "get({v}, 0)",
    "last": "get({v}, size({v}) - 1)",
    "min": "array_min(filter({v}, one -> NOT isnan(one)))",
    "max": "array_max(filter({v}, one -> NOT isnan(one)))",
    "mean": "aggregate({v}, 0D, (sum, one) -> sum + one) / nullif(size({v}), 0)",
    "count": "CAST(size({v}) AS BIGINT)",
}


def _figures(row: Numbers, values: Numbers, kinds: Iterable[str], rows: int) -> list[pa.Array]:
    """Return figures over the values of each row; values are sorted by row, and a row without values gets NULL."""
    begins = np.flatnonzero(np.diff(row, prepend=-1))
    ends = np.append(begins[1:], row.size)[: begins.size] - 1
    at = np.full(rows, -1)
    at[row[begins]] = np.arange(begins.size)
    counts = ends - begins + 1

    def reduced(function: np.ufunc, numbers: Numbers) -> Numbers:
        return function.reduceat(numbers, begins) if begins.size else numbers[:0]

    figures = {
        "first": lambda: pa.array(values[begins]),
        "last": lambda: pa.array(values[ends]),
        "min": lambda: _without_nan(reduced(np.fmin, values)),
        "max": lambda: _without_nan(reduced(np.fmax, values)),
        "mean": lambda: pa.array(reduced(np.add, values.astype(np.float64)) / np.maximum(counts, 1)),
        "count": lambda: pa.array(counts),
    }
    columns = [figures[kind]().take(pa.array(at, mask=at < 0)) for kind in kinds]
    return [pc.fill_null(column, 0) if kind == "count" else column for kind, column in zip(kinds, columns, strict=True)]


def _without_nan(values: Numbers) -> pa.Array:
    """Return values, with NULL for NaN: the row had no other numbers."""
    return pa.array(values, mask=np.isnan(values))
