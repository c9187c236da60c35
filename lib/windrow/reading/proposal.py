"""Propose settings for a user's own table: what its columns mean, and rules that suit its rows, each with a reason.

Names decide first, then types and values. Every proposal is tried on the sample: a time expression is not proposed if
it yields no time for too many rows. A reason says what cannot be known, so that a reader can correct the proposal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching.rules import Rules
from windrow.errors import MessagesError, NotFoundError
from windrow.expressions import DEPOT, ColumnMapping
from windrow.model.durations import UNITS, approximate_text, format_duration
from windrow.model.messages import microseconds
from windrow.model.payload import parse
from windrow.reading.tuning import Trial, advise
from windrow.reading.tuning.sweep import gaps_of
from windrow.reading.warnings import correct_clocks, first_names, plain_offset

# Usual names, the surest first; `receivedAt`, `_received_at` and `RECEIVED_AT` all match `received_at`.
NAMES = {
    "received_at": (
        "received_at", "ingested_at", "ingestion_time", "ingest_time", "inserted_at", "loaded_at", "arrived_at",
        "arrival_time", "enqueued_time", "kafka_timestamp", "processed_at", "ingested", "stored_at",
    ),
    "event_time": (
        "event_time", "event_timestamp", "event_ts", "measured_at", "observed_at", "occurred_at", "recorded_at",
        "sent_at", "device_time", "timestamp", "ts", "time", "datetime", "date_time", "created_at",
    ),
    "key": (
        "key", "device_id", "device", "sensor_id", "machine_id", "machine", "asset_id", "asset", "thing_id", "meter_id",
        "vehicle_id", "station_id", "station", "equipment_id", "unit_id", "user_id", "customer_id", "entity_id", "id",
    ),
    "source": (
        "source", "source_id", "gateway_id", "gateway", "producer_id", "producer", "client_id", "client", "host",
    ),
    "type": (
        "type", "metric", "metric_name", "measurement", "kind", "event_type", "signal", "channel", "parameter",
        "quantity", "variable", "sensor", "name",
    ),
    "sequence": ("sequence", "sequence_number", "seq", "seq_no", "offset", "counter"),
    "payload": ("payload", "value", "reading", "val", "body", "content", "data", "message"),
}  # fmt: skip
YEARS = (631_152_000_000_000, 4_102_444_800_000_000)  # 1990 and 2100: a number is a time only between them
NUMBERS = {"timestamp_seconds": 1_000_000, "timestamp_millis": 1_000, "timestamp_micros": 1}  # microseconds per unit
MOST = 0.9  # the share of rows that must yield a time, or else the column holds no times
WINDOWS = [
    *(count * UNITS["s"] for count in (1, 5, 10, 15, 30)),
    *(count * UNITS["m"] for count in (1, 5, 10, 15, 30)),
    *(count * UNITS["h"] for count in (1, 6, 12, 24)),
]
IN_A_WINDOW = 8  # messages of one type, at least: a guess at how many people look at together
NAMED = 5  # sources with wrong clocks that a text names
KEPT = 99.9  # percent of the messages that the proposed max_delay does not reject
LATEST = "the latest times; if another column says when a row came into the table, take that"
CLOCKS = "Clocks that are nearly always wrong"
CORRECT = "A comment in the file has the line that corrects them: put it in place of event_time before the first run."


@dataclass(frozen=True, slots=True)
class ColumnChoice:
    """A setting with its proposed value, and the reason."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True, slots=True)
class Proposal:
    """The proposed `payload_type` (None: text), `[depot.columns]` and `[rules]`, and `notes` on what else was seen.

    `rows` is how many rows were looked at. `correction` is the `event_time` that corrects wrong clocks, if any.
    """

    rows: int
    payload_type: ColumnChoice | None
    columns: tuple[ColumnChoice, ...]
    rules: tuple[ColumnChoice, ...]
    correction: ColumnChoice | None
    notes: tuple[str, ...]


def propose(rows: pa.Table, latest: int) -> Proposal:
    """Propose settings for a table from a sample of its rows; times after `latest` (microseconds) are wrong.

    Raises NotFoundError for a table without rows, MessagesError for one without times.
    """
    if not rows.num_rows:
        raise NotFoundError("the table has no rows to inspect", "Write some first, or write [depot.columns] by hand.")
    search = ColumnSearch(rows)
    columns = [*search.times(), *search.identity(), *search.sequence()]
    payload, payload_type = search.payload()
    chosen = [*columns, *payload]
    mapping = {column.name: column.value for column in chosen}
    messages = _messages(rows, mapping, payload_type)
    rules, wrong = _rules(messages, latest)
    correction = _correction(messages, mapping, wrong) if wrong else None
    notes = [f"{CLOCKS}: {first_names(wrong, NAMED, ' and ')}. {CORRECT}"] if wrong else []
    notes += [f"Columns that are not used: {', '.join(search.left)}."] if search.left else []
    order = ["source", "key", "type", "event_time", "received_at", "sequence", "payload"]
    chosen.sort(key=lambda column: order.index(column.name))
    return Proposal(rows.num_rows, payload_type, tuple(chosen), tuple(rules), correction, tuple(notes))


class ColumnSearch:
    """A search for the columns of a message among those of a table; each column is taken at most once."""

    def __init__(self, rows: pa.Table) -> None:
        """Search the columns of `rows`; `left` has the names that no message column has taken yet."""
        self.rows = rows
        self.left = list(rows.column_names)

    def times(self) -> Iterator[ColumnChoice]:
        """Yield the choices for `event_time` and `received_at`. Raises MessagesError if no column holds times."""
        times = {name: expression for name in self.left if (expression := self._time(name)) is not None}
        if not times:
            columns = ", ".join(f"{field.name} ({field.type})" for field in self.rows.schema)
            raise MessagesError(
                f"no column holds times; the table has {columns}",
                "Write [depot.columns] by hand: event_time and received_at are expressions over these columns.",
            )
        event = self._find_column("event_time", times) or min(times, key=lambda name: _middle(times[name][1]))
        others = {name: _middle(expression[1]) for name, expression in times.items() if name != event}
        received = self._find_column("received_at", others) or max(others, key=others.__getitem__, default=None)
        named = plain_name(event) in NAMES["event_time"]
        yield ColumnChoice("event_time", times[event][0], "by its name" if named else "the earliest times")
        if received is None:
            yield ColumnChoice("received_at", times[event][0], "the event time, for no column says when a row arrived")
        else:
            named = plain_name(received) in NAMES["received_at"]
            yield ColumnChoice("received_at", times[received][0], "by its name" if named else LATEST)
        self.left = [name for name in self.left if name not in (event, received)]

    def identity(self) -> Iterator[ColumnChoice]:
        """Yield the choices for `key`, `source` and `type`."""
        known, why = self._take("key", _is_plain), "by its name"
        texts = {name: self._distinct(name) for name in self.left if pa.types.is_string(self._type(name))}
        repeated = {name: count for name, count in texts.items() if 1 < count <= self.rows.num_rows // 2}
        if known is None and repeated:
            known, why = max(repeated, key=repeated.__getitem__), "the text with most values of those that come again"
            self.left.remove(known)
        key = "'all'" if known is None else self._text(known)
        values = "" if known is None else f"{why}; {self._distinct(known):,} values"
        yield ColumnChoice("key", key, values or "no column names a device: all is one stream")
        source = self._take("source", _is_plain)
        clock = "each key has its own clock" if source is None else "by its name: whose clock it is"
        yield ColumnChoice("source", key if source is None else self._text(source), clock)
        kind = self._take("type", _is_plain)
        if kind is None:
            yield ColumnChoice("type", "'row'", "no column says what was measured: a row is one message")
        else:
            yield ColumnChoice("type", self._text(kind), f"by its name; {self._distinct(kind):,} values")

    def sequence(self) -> Iterator[ColumnChoice]:
        """Yield the choice for `sequence`, which orders messages of the same time, if there is one."""
        column = self._take("sequence", pa.types.is_integer)
        if column is not None:
            number = f"CAST({quote_column(column)} AS BIGINT)"
            yield ColumnChoice("sequence", number, "by its name; orders messages of the same time")

    def payload(self) -> tuple[list[ColumnChoice], ColumnChoice | None]:
        """Return the choices for `payload` and its type; nothing if no column is left."""
        named = self._take("payload", lambda type_: _payload_type(type_) is not None)
        values = [name for name in self.left if _payload_type(self._type(name)) is not None]
        numbers = [name for name in values if _payload_type(self._type(name)) != "STRING"]
        if named is None and len(numbers) == 1:
            named = numbers[0]
            self.left.remove(named)
        if named is not None:
            return self._single(named)
        fields = {re.sub(r"\W", "_", name): name for name in values}
        if not fields:
            return [], None
        self.left = [name for name in self.left if name not in fields.values()]
        kinds = {field: _payload_type(self._type(name)) for field, name in fields.items()}
        inner = ", ".join(f"'{field}', CAST({quote_column(name)} AS {kinds[field]})" for field, name in fields.items())
        declared = "STRUCT<" + ", ".join(f"{field}: {kind}" for field, kind in kinds.items()) + ">"
        why = f"{len(fields)} columns are left: a message has them all"
        type_ = ColumnChoice("payload_type", declared, "the types of the columns")
        return [ColumnChoice("payload", f"named_struct({inner})", why)], type_

    def _single(self, name: str) -> tuple[list[ColumnChoice], ColumnChoice | None]:
        kind = _payload_type(self._type(name))
        reason = "by its name" if plain_name(name) in NAMES["payload"] else "the only number that is left"
        if kind == "STRING":
            return [ColumnChoice("payload", self._text(name), reason)], None
        typed = ColumnChoice("payload_type", str(kind), f"{name} is {self._type(name)}; without it, payloads are text")
        return [ColumnChoice("payload", f"CAST({quote_column(name)} AS {kind})", reason)], typed

    def _take(self, column: str, allowed: Callable[[pa.DataType], bool]) -> str | None:
        """Take the allowed column with the surest name for a message column, and return it."""
        column_name = self._find_column(column, [name for name in self.left if allowed(self._type(name))])
        if column_name is not None:
            self.left.remove(column_name)
        return column_name

    def _find_column(self, column: str, among: Iterable[str]) -> str | None:
        """Return the name, out of `among`, that is the surest for a message column."""
        usual = [name for name in among if plain_name(name) in NAMES[column]]
        return min(usual, key=lambda name: NAMES[column].index(plain_name(name)), default=None)

    def _type(self, name: str) -> pa.DataType:
        return self.rows.schema.field(name).type

    def _text(self, name: str) -> str:
        return quote_column(name) if pa.types.is_string(self._type(name)) else f"CAST({quote_column(name)} AS STRING)"

    def _distinct(self, name: str) -> int:
        return int(pc.count_distinct(self.rows[name]).as_py())

    def _time(self, name: str) -> tuple[str, pa.ChunkedArray] | None:
        """Return the expression that turns a column into times, and its values; None if the column holds no times."""
        kind, named = self._type(name), plain_name(name) in chain(NAMES["event_time"], NAMES["received_at"])
        if pa.types.is_integer(kind) and named:
            expression = f"{_function_of(self.rows[name])}({quote_column(name)})"
        elif pa.types.is_timestamp(kind) or (pa.types.is_string(kind) and named):
            expression = quote_column(name)
        else:
            return None
        times = self._try_times(expression)
        return None if times is None else (expression, times)

    def _try_times(self, expression: str) -> pa.ChunkedArray | None:
        """Return the times that an expression yields; None if too few rows have a time."""
        columns = {"event_time": expression, "received_at": expression, "key": "''", "type": "''"}
        times = _messages(self.rows, columns)["event_time"].cast(pa.int64())
        since, until = YEARS
        good = pc.fill_null(pc.and_(pc.greater(times, since), pc.less(times, until)), False)
        return times if pc.mean(good.cast(pa.int8())).as_py() >= MOST else None


def plain_name(name: str) -> str:
    """Return a column's name in lower case, with underscores between its words and none around them."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).strip("_").lower()


def quote_column(name: str) -> str:
    """Return a column's name as written in Spark SQL; keywords are quoted."""
    from sqlglot.dialects.spark import Spark

    is_word = re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII) and name.upper() not in Spark.Tokenizer.KEYWORDS
    return name if is_word else f"`{name.replace('`', '``')}`"


def _function_of(numbers: pa.ChunkedArray) -> str:
    """Choose the function that turns numbers into times, by their size; the last one if they are not times."""
    middle = _middle(numbers)
    return next((name for name, unit in NUMBERS.items() if YEARS[0] < middle * unit < YEARS[1]), "timestamp_micros")


def _is_plain(type_: pa.DataType) -> bool:
    return bool(pa.types.is_string(type_) or pa.types.is_integer(type_))


def _payload_type(type_: pa.DataType) -> str | None:
    if pa.types.is_floating(type_) or pa.types.is_decimal(type_):
        return "DOUBLE"
    if pa.types.is_integer(type_):
        return "BIGINT"
    if pa.types.is_boolean(type_):
        return "BOOLEAN"
    return "STRING" if pa.types.is_string(type_) else None


def _middle(numbers: pa.ChunkedArray) -> float:
    valid = numbers.drop_null()
    return float(np.median(valid.to_numpy())) if len(valid) else 0.0


def _messages(rows: pa.Table, columns: Mapping[str, str], payload_type: ColumnChoice | None = None) -> pa.Table:
    expressions = {"source": "''", "sequence": "NULL", "payload": "NULL"} | dict(columns)
    mapping = ColumnMapping.of(expressions, rows.column_names, section=DEPOT, rejects=True)
    return mapping.apply(rows, parse("string" if payload_type is None else payload_type.value)).read_all()


def _rules(messages: pa.Table, latest: int) -> tuple[list[ColumnChoice], list[str]]:
    """Return rules that make a batch for each key and window on the calendar, and the sources with wrong clocks."""
    version = pa.repeat(pa.scalar(0, pa.int64()), messages.num_rows)
    trial, usual = Trial.of(messages.append_column("version", version), latest=latest), Rules()
    gaps = gaps_of(trial)
    gap = int(np.median(gaps)) if gaps.size else 0
    window = next((length for length in WINDOWS if length >= IN_A_WINDOW * gap), WINDOWS[-1]) if gap else usual.window
    rate = f"each type comes about every {_about(gap)}" if gap else "the default: no type comes again"
    same = messages["event_time"].equals(messages["received_at"])
    needed, every = (usual.max_delay if same else advise(trial, usual, kept).max_delay_us for kept in (KEPT, 100))
    delay = max(needed, usual.max_delay)  # even if all of these rows came sooner, some may come later
    late = f"keeps {KEPT:g} % of these rows, {format_duration(every)} all; `windrow tune` looks at more"
    late = "keeps all of these rows" if delay >= every else late
    late = "the default: no column says how late rows come" if same else late
    rules = [
        ColumnChoice("window", format_duration(window), f"{rate}; choose what belongs together downstream"),
        ColumnChoice("window_anchor", "aligned", "windows on the calendar, as those of Spark and SQL"),
        ColumnChoice("on_repeat", "keep", "all measurements of a window stay in one batch"),
        ColumnChoice("max_delay", format_duration(delay), late),
    ]
    return rules, sorted(trial.left_out)


def _correction(messages: pa.Table, mapping: Mapping[str, str], wrong: Sequence[str]) -> ColumnChoice:
    offset = microseconds(messages["event_time"]) - microseconds(messages["received_at"])
    of = pc.index_in(messages["source"], pa.array(wrong, pa.string())).to_numpy()
    offsets = {source: plain_offset(int(np.median(offset[of == at]))) for at, source in enumerate(wrong)}
    reason = f"corrects the clocks of {first_names(wrong, NAMED, ' and ')}"
    return ColumnChoice("event_time", correct_clocks(mapping, offsets), reason)


def _about(gap: int) -> str:
    digit = 10 ** max(0, len(str(gap)) - 2)
    return approximate_text(round(gap / digit) * digit)
