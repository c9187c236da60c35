"""Invariants, and the relations that they check: rows of a ledger, joined with the rows they must agree with.

An invariant is a condition on each row of a relation, with the statement that finds failing rows. Both use the subset
of Spark SQL that DuckDB also supports. Durations are in microseconds.
"""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import pyarrow as pa

from windrow.model.chunks import REFUSED

Severity = Literal["critical", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Relation:
    """A query over the views of a ledger, with the names of the views in braces.

    The names of its invariants begin with `prefix`.
    """

    name: str
    sql: str
    prefix: str = ""

    def over(self, views: Mapping[str, str]) -> str:
        """Return the SQL over the given views, which are names or subqueries."""
        return textwrap.dedent(self.sql).strip().format_map(views)

    def invariant(self, name: str, about: str, shows: str, holds: str, severity: Severity = "critical") -> Invariant:
        """Return an invariant of the relation's rows."""
        return Invariant(self.prefix + name, severity, about, self, shows, holds)


@dataclass(frozen=True, slots=True)
class Invariant:
    """A condition on each row of a relation; NULL counts as a failure.

    `about` states the condition in a sentence; `columns` are shown for failing rows.
    """

    name: str
    severity: Severity
    about: str
    relation: Relation
    columns: str
    condition: str

    @property
    def fails(self) -> str:
        """Return the condition that failing rows meet."""
        return f"({self.condition}) IS NOT TRUE"

    def statement(self, views: Mapping[str, str]) -> str:
        """Return the SQL that selects the failing rows."""
        rows = textwrap.indent(self.relation.over(views), "  ")
        return f"SELECT {self.columns}\nFROM (\n{rows}\n)\nWHERE {self.fails}"


RULES = """
    SELECT microbatch, CAST(get_json_object(max(rules), '$.window') AS BIGINT) AS longest,
        CAST(get_json_object(max(rules), '$.max_delay') AS BIGINT) AS delay,
        CAST(get_json_object(max(rules), '$.max_lead') AS BIGINT) AS lead,
        CAST(get_json_object(max(rules), '$.max_batch_bytes') AS BIGINT) AS most_bytes,
        max(CASE WHEN get_json_object(rules, '$.on_repeat') = 'keep' THEN 1 ELSE 0 END) AS keeps
    FROM {microbatches} GROUP BY microbatch"""

IN_FORCE = """
    SELECT max(microbatch) AS reached, CAST(get_json_object(max(rules), '$.window') AS BIGINT) AS longest_now,
        CAST(get_json_object(max(rules), '$.max_delay') AS BIGINT) AS delay_now
    FROM {progress}"""

EVER = f"""
    SELECT max(longest) AS longest_ever, collect_set(delay) AS delays
    FROM ({RULES})"""

# Aggregates over the messages of each row; `inside` has them for each batch, and `types` the count of messages per type
# in a window. For `check`, both are in DuckDB.
FIGURES = {
    "found": "array_size(messages)",
    "content_bytes": "coalesce(aggregate(transform(messages, one -> coalesce(octet_length(one.type), 0) + {payload}), "
    "0L, (total, bytes) -> total + bytes), 0L)",
    "first_inside": "array_min(transform(messages, one -> one.event_time))",
    "last_inside": "array_max(transform(messages, one -> one.event_time))",
    "outside": "array_size(filter(messages, one -> "
    "(one.event_time >= window_start AND one.event_time < window_end) IS NOT TRUE))",
    "incomplete": "array_size(filter(messages, one -> one.type IS NULL OR one.received_at IS NULL))",
    "unsorted": "array_size(filter(messages, (one, place) -> one.event_time < get(messages, place - 1).event_time))",
}
INSIDE = """
    SELECT id AS batch, min(state) AS state, sum(found) AS found, sum(content_bytes) AS content_bytes,
        min(first_inside) AS first_inside, max(last_inside) AS last_inside,
        sum(outside) AS outside, sum(incomplete) AS incomplete, sum(unsorted) AS unsorted
    FROM {rows} GROUP BY id"""
MESSAGES = """
    SELECT id AS batch, source, key, window_start, one.type AS type, one.event_time AS event_time
    FROM {ledger} LATERAL VIEW explode(messages) AS one WHERE state IN ('open', 'closed')"""
TYPES = """
    SELECT source, key, window_start, type, count(*) AS times, min(batch) AS batch
    FROM {messages} GROUP BY source, key, window_start, type"""

BATCH = Relation(
    "batch",
    f"""
    SELECT b.*, unix_micros(b.window_end) - unix_micros(b.window_start) AS length_us,
        unix_micros(b.timeout_at) - unix_micros(b.window_end) AS delay_us,
        found, content_bytes, first_inside, last_inside, outside, incomplete, unsorted,
        r.microbatch AS closing_microbatch, delay, most_bytes, reached, delay_now, source_floor,
        greatest(longest_now, longest_ever) AS longest, delays,
        lag(b.window_start) OVER (PARTITION BY b.source, b.key ORDER BY b.window_start, b.part) AS previous_start,
        lag(b.window_end) OVER (PARTITION BY b.source, b.key ORDER BY b.window_start, b.part) AS previous_end,
        lag(b.part) OVER (PARTITION BY b.source, b.key ORDER BY b.window_start, b.part) AS previous_part
    FROM {{batches}} AS b
    LEFT JOIN {{inside}} AS i ON i.batch = b.id
    LEFT JOIN ({RULES}) AS r ON r.microbatch = b.closed_microbatch
    LEFT JOIN (SELECT source AS of_source, max(floor) AS source_floor FROM {{sources}} GROUP BY source) AS s
        ON s.of_source = b.source
    CROSS JOIN ({IN_FORCE}) AS n
    CROSS JOIN ({EVER}) AS e
    """,
    prefix="batch_",
)

WINDOW_TYPE = Relation(
    "window_type",
    f"""
    SELECT m.*, coalesce(coalesce(closed_microbatch, reached) >= kept_from, false) AS kept
    FROM {{types}} AS m
    LEFT JOIN (SELECT id AS of_id, max(closed_microbatch) AS closed_microbatch FROM {{batches}} GROUP BY id) AS b ON
    b.of_id = m.batch CROSS JOIN ({IN_FORCE}) AS n CROSS JOIN (SELECT min(CASE WHEN keeps = 1 THEN microbatch END) AS
    kept_from FROM ({RULES})) AS r
    """,
)

MESSAGE = Relation(
    "message",
    """
    SELECT source, key, type, event_time, count(*) AS times, min(batch) AS batch, max(batch) AS another
    FROM {messages} GROUP BY source, key, type, event_time
    """,
)

# Rejections of the format are not messages: they have bytes and a place in a raw source, and this reason prefix.
OF_FORMAT = f"coalesce(substr(j.reason, 1, {len(REFUSED)}), '') = '{REFUSED}'"

REJECTION = Relation(
    "rejection",
    f"""
    SELECT j.*, regexp_extract(j.id, '^rejected/([0-9]+)/', 1) AS named_version,
        regexp_extract(j.id, '/([0-9]+)$', 1) AS named_number,
        unix_micros(j.processing_time) - unix_micros(j.received_at) AS raised_us,
        unix_micros(j.event_time) - unix_micros(j.processing_time) AS ahead_us,
        r.microbatch AS rejecting_microbatch, delay, lead, first_in
    FROM {{rejected}} AS j
    LEFT JOIN ({RULES}) AS r ON r.microbatch = j.microbatch
    LEFT JOIN (
        SELECT d.id AS of_id, min(m.batch) AS first_in
        FROM {{rejected}} AS d JOIN {{messages}} AS m
            ON m.source = d.source AND m.key = d.key AND m.type = d.type AND m.event_time = d.event_time
        WHERE d.reason = 'duplicate' GROUP BY d.id
    ) AS m ON m.of_id = j.id
    WHERE NOT {OF_FORMAT}
    """,
    prefix="rejected_",
)

FORMAT_REJECTION = Relation(
    "format_rejection",
    f"""
    SELECT j.id, j.reason, j.detail, j.missed_by_us, j.floor_raise_us, j.source, j.key, j.type, j.event_time,
        j.received_at, j.sequence, j.processing_time, j.microbatch, r.microbatch AS rejecting_microbatch
    FROM {{rejected}} AS j
    LEFT JOIN ({RULES}) AS r ON r.microbatch = j.microbatch
    WHERE {OF_FORMAT}
    """,
    prefix="format_",
)

MICROBATCH = Relation(
    "microbatch",
    """
    SELECT h.*, coalesce(listed, 0) AS listed, first_version, last_version,
        transform(h.versions, one -> one.version) AS versions_read,
        coalesce(closed_rows, 0) AS closed_rows, coalesce(rejected_rows, 0) AS rejected_rows,
        lag(h.microbatch) OVER (ORDER BY h.microbatch, h.id) AS previous_microbatch,
        lag(h.depot_version) OVER (ORDER BY h.microbatch, h.id) AS previous_version
    FROM {microbatches} AS h
    LEFT JOIN (
        SELECT microbatch AS by, sum(messages) AS listed, min(version) AS first_version, max(version) AS last_version
        FROM {versions} GROUP BY microbatch
    ) AS v ON v.by = h.microbatch
    LEFT JOIN (
        SELECT closed_microbatch AS by, count(*) AS closed_rows FROM {batches} WHERE state = 'closed' GROUP BY
        closed_microbatch
    ) AS c ON c.by = h.microbatch
    LEFT JOIN (SELECT microbatch AS by, count(*) AS rejected_rows FROM {rejected} GROUP BY microbatch) AS j
        ON j.by = h.microbatch
    """,
)

VERSION = Relation(
    "version",
    """
    SELECT version, count(*) AS times, min(microbatch) AS microbatch, max(microbatch) AS another
    FROM {versions} GROUP BY version
    """,
)

SOURCE = Relation(
    "source",
    """
    SELECT coalesce(s.source, c.source) AS source, s.id, s.clock, s.floor, s.cut,
        c.clock AS recorded_clock, c.floor AS recorded_floor, c.cut AS recorded_cut, c.microbatch,
        s.open_batches, s.open_messages, s.open_bytes, s.next_window_end, o.first_window_end,
        coalesce(o.found_batches, 0) AS found_batches, coalesce(o.found_messages, 0) AS found_messages,
        coalesce(o.found_bytes, 0) AS found_bytes
    FROM {sources} AS s
    LEFT JOIN (
        SELECT source, count(*) AS found_batches, sum(message_count) AS found_messages, sum(bytes) AS found_bytes,
            min(window_end) AS first_window_end
        FROM {batches} WHERE state = 'open' GROUP BY source
    ) AS o ON o.source = s.source
    FULL OUTER JOIN (
        SELECT source, clock, floor, cut, microbatch,
            row_number() OVER (PARTITION BY source ORDER BY microbatch DESC) AS latest
        FROM {clocks}
    ) AS c ON c.source = s.source
    WHERE coalesce(c.latest, 1) = 1
    """,
)

ROW = Relation("row", "SELECT id, count(*) AS times, min(state) AS state FROM {rows} GROUP BY id")

TOTAL = Relation(
    "total",
    """
    SELECT *, in_open + in_closed AS in_batches, in_open + in_closed + rejected_rows AS accounted
    FROM (
        SELECT coalesce(sum(messages_read), 0) AS messages_read, coalesce(sum(accepted), 0) AS accepted,
            coalesce(sum(rejected), 0) AS rejected, coalesce(sum(opened), 0) AS opened,
            coalesce(sum(closed), 0) AS closed, count(*) AS microbatches
        FROM {microbatches}
    ) AS h
    CROSS JOIN (
        SELECT count(CASE WHEN state = 'open' THEN 1 END) AS open_rows,
            count(CASE WHEN state = 'closed' THEN 1 END) AS closed_rows
        FROM {batches}
    ) AS s
    CROSS JOIN (
        SELECT coalesce(sum(CASE WHEN state = 'open' THEN found END), 0) AS in_open,
            coalesce(sum(CASE WHEN state = 'closed' THEN found END), 0) AS in_closed
        FROM {inside}
    ) AS b
    CROSS JOIN (SELECT count(*) AS rejected_rows FROM {rejected}) AS j
    CROSS JOIN (
        SELECT count(*) AS progress_rows, max(microbatch) AS reached, max(depot_version) AS depot_version,
            max(rules) AS rules
        FROM {progress}
    ) AS p
    LEFT JOIN (
        SELECT microbatch AS last_microbatch, max(depot_version) AS last_version, max(rules) AS last_rules
        FROM {microbatches} GROUP BY microbatch
    ) AS l ON l.last_microbatch = p.reached
    """,
)


def counting(invariants: Sequence[Invariant], views: Mapping[str, str]) -> list[str]:
    """Return, for each relation, SQL that counts the failing rows of its invariants, in one row of named columns."""
    of_relation: dict[Relation, list[str]] = defaultdict(list)
    for invariant in invariants:
        count = f"count(CASE WHEN {invariant.fails} THEN 1 END) AS {invariant.name}"
        of_relation[invariant.relation].append(count)
    return [f"SELECT {', '.join(counts)} FROM ({relation.over(views)})" for relation, counts in of_relation.items()]


@cache
def for_duckdb(statement: str) -> str:
    """Translate a statement from Spark SQL to DuckDB, which runs it without Spark."""
    from sqlglot import transpile

    return str(transpile(statement, read="spark", write="duckdb")[0])


def identity(kind: str, *texts: str, **numbers: str) -> str:
    """Return the condition that an id is `kind/component/...`: text columns are encoded, numbers are not."""
    components = [*map(encode_component, texts), *(f"CAST({number} AS STRING)" for number in numbers.values())]
    return f"id = concat_ws('/', '{kind}', {', '.join(components)})"


def encode_component(column: str) -> str:
    """Return a component of an id: `%`, `/` and NUL are encoded, NULL is `%N`."""
    text = column
    for special, code in (("'%'", "'%25'"), ("'/'", "'%2F'"), ("chr(0)", "'%00'")):
        text = f"replace({text}, {special}, {code})"
    return f"coalesce({text}, '%N')"


def payload_bytes(type_: pa.DataType, payload: str, text_bytes: str = "octet_length") -> str:
    """Return the SQL for the size of payloads in bytes; `text_bytes` is the function for the size of a text."""
    if pa.types.is_struct(type_):
        return " + ".join(payload_bytes(field.type, f"{payload}.{field.name}", text_bytes) for field in type_)
    if pa.types.is_primitive(type_):
        return f"CASE WHEN {payload} IS NULL THEN 0 ELSE {max(type_.bit_width // 8, 1)} END"
    return f"coalesce({'octet_length' if pa.types.is_binary(type_) else text_bytes}({payload}), 0)"


def figures(payload: pa.DataType) -> list[str]:
    """Return the columns of `FIGURES` in Spark SQL, given the type of payloads."""
    counted = payload_bytes(payload, "one.payload")
    return [f"{text.format(payload=counted)} AS {name}" for name, text in FIGURES.items()]


def views(ledger: str, payload: pa.DataType | None = None) -> dict[str, str]:
    """Return the views that the relations read, as Spark SQL over `ledger`, a reference to its table.

    `payload` is the type of its payloads, text by default.
    """
    batches = f"FROM {ledger} WHERE state IN ('open', 'closed')"
    rows = f"(SELECT id, state, {', '.join(figures(payload or pa.string()))} {batches})"
    messages = f"({MESSAGES.format(ledger=ledger).strip()})"
    lists = "SELECT h.microbatch, one.* FROM {ledger} AS h LATERAL VIEW explode({name}) AS one"
    return {
        "rows": f"(SELECT id, state FROM {ledger})",
        "batches": f"(SELECT * {batches})",
        "messages": messages,
        "inside": f"({INSIDE.format(rows=rows).strip()})",
        "types": f"({TYPES.format(messages=messages).strip()})",
        "rejected": f"(SELECT * FROM {ledger} WHERE state = 'rejected')",
        "microbatches": f"(SELECT * FROM {ledger} WHERE state = 'microbatch')",
        "versions": f"({lists.format(ledger=ledger, name='versions')} WHERE h.state = 'microbatch')",
        "clocks": f"({lists.format(ledger=ledger, name='clocks')} WHERE h.state = 'microbatch')",
        "progress": f"(SELECT * FROM {ledger} WHERE state = 'progress' AND id = 'progress')",
        "sources": f"(SELECT * FROM {ledger} WHERE state = 'progress' AND id <> 'progress')",
    }
