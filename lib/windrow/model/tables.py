"""Depot and ledger: the columns, names and ids that both engines agree on.

The ledger is one table, and it only grows. A row's `state` says what it is: `closed`, `rejected`, `microbatch` and what
amendments add are *final*. The other states are *live*: `progress` (where we are), which every microbatch reads, and
`partial` and `open` (a batch that may still grow), which are read when they can change. In the ledger of a topology
everything that is not final is live, and the rows of its states are read like open batches.

No row is ever updated. A live row is a *version* of its id: a commit writes each row that it changes again, with the
commit's `revision`, one more than that of the previous commit. Of the versions of an id, the one with the greatest
revision counts, unless it is a *tombstone* (`deleted`). A fold, which changes nothing that counts, drops the others
from time to time; `folded` rows are the only versions of their ids in their partition. Only `id`, `state`, `revision`
and `folded` are never NULL.

Ids are readable and injective: a kind, then components joined by `/`, with `%`, `/` and NUL percent-encoded and a NULL
component written as `%N`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import TIME, boolean_scalar, string_array, string_scalar
from windrow.errors import IncompatibleTableError
from windrow.model import messages as message_columns
from windrow.model.chain import CHAIN
from windrow.model.commits import FEED
from windrow.model.durations import microseconds

SCHEMA_VERSION = 8
AMENDMENT = ("amended", "superseded")  # the states of rows that amendments add
DAMAGED = "It was damaged from outside. RESTORE it to an earlier version, or replay the depot into a new ledger."
FINAL = ("closed", "rejected", "microbatch", *AMENDMENT)
OPEN = "open"
PARTIAL = "partial"
PRIMED = ("progress", "event", "option")  # the live states that every microbatch reads
CONTROL = (*PRIMED, PARTIAL)  # the live states that are neither open batches nor states of a topology
PROGRESS = "progress"
BATCH_ID = "batch"  # the prefix of batch ids
CHANGED = "changed"  # column of a row on an executor: False for an open batch that stays as it is
DELETED = "deleted"  # column of a version: True for a tombstone
WHOLE = "whole"  # column of a version of an open batch: False if it has only the messages that came with it
PARTITIONS = ("state", "folded")
OF_VERSION = "@"  # separates a state's column from its version in a column name; states declare no column with it

DEPOT_COMMENT = "Windrow depot: messages, appended and never changed"
LEDGER_COMMENT = "Windrow ledger: batches, rejections, progress and history"
# Opening a table reads its last checkpoint and each commit after it. A hundred commits, delta-rs's default interval,
# took three times as long as the checkpoint.
PROPERTIES = {FEED: "true", "delta.enableDeletionVectors": "false", "delta.checkpointInterval": "10"}
# A commit that read the ledger is refused if another commit has added rows to what it read.
LEDGER_PROPERTIES = PROPERTIES | {"delta.isolationLevel": "Serializable"}

# Columns of every row: which commit of the ledger wrote it, whether it is a tombstone, whether a batch has all of its
# messages in it, and whether a fold wrote it.
ROW_FIELDS = [("revision", pa.int64()), (DELETED, pa.bool_()), (WHOLE, pa.bool_()), ("folded", pa.bool_())]


def retention_properties(retention: str) -> dict[str, str]:
    """Return the properties that keep log and removed files for a duration: how far back replay and verify reach."""
    interval = f"interval {microseconds(retention, 'retention') // 1_000_000} seconds"
    return {"delta.logRetentionDuration": interval, "delta.deletedFileRetentionDuration": interval}


def message_type(payload: pa.DataType) -> pa.DataType:
    """Return the type of a message inside a batch."""
    inside = ("type", "event_time", "received_at", "sequence", "payload")
    return pa.struct([field for field in message_columns.schema(payload) if field.name in inside])


def batch_fields(payload: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the columns of open and closed batches."""
    return [
        ("id", pa.string()), ("source", pa.string()), ("key", pa.string()), ("part", pa.int32()),
        ("window_start", TIME), ("window_end", TIME), ("timeout_at", TIME), ("state", pa.string()),
        ("open_reason", pa.string()), ("closed_at", TIME), ("close_reason", pa.string()),
        ("message_count", pa.int64()), ("bytes", pa.int64()), ("oversize", pa.bool_()),
        ("first_event_time", TIME), ("last_event_time", TIME), ("messages", pa.list_(message_type(payload))),
        ("opened_microbatch", pa.int64()), ("closed_microbatch", pa.int64()),
    ]  # fmt: skip


def rejected_fields(payload: pa.DataType) -> list[tuple[str, pa.DataType]]:
    """Return the columns of rejected messages."""
    return [
        ("id", pa.string()), ("reason", pa.string()), ("detail", pa.string()),
        ("missed_by_us", pa.int64()), ("floor_raise_us", pa.int64()),
        *((field.name, field.type) for field in message_columns.schema(payload)),
        ("processing_time", TIME), ("microbatch", pa.int64()),
    ]  # fmt: skip


FILLED_HEADER = ("source", "key", "part", "window_start", "window_end", "message_count")  # of a batch
REQUIRED_COLUMNS = (*FILLED_HEADER, "messages")
BATCH_COLUMNS = [name for name, _ in batch_fields(pa.string())]
BATCH_KEY = ("id", "source", "key", "part", "window_start", "window_end")  # the columns that identify a batch
REJECTED = [name for name, _ in rejected_fields(pa.string())]
VERSIONS = pa.list_(pa.struct([("version", pa.int64()), ("messages", pa.int64()), ("fingerprint", pa.string())]))
CLOCKS = pa.list_(
    pa.struct([("source", pa.string()), ("clock", TIME), ("floor", TIME), ("cut", TIME), ("flushed_at", TIME)])
)

HISTORY = [
    ("microbatch", pa.int64()), ("attempt", pa.int32()), ("kind", pa.string()), ("versions", VERSIONS),
    ("messages_read", pa.int64()), ("accepted", pa.int64()), ("rejected", pa.int64()), ("opened", pa.int64()),
    ("closed", pa.int64()), ("depot_version", pa.int64()), ("clocks", CLOCKS), ("rules", pa.string()),
    ("column_mapping", pa.string()),
    ("engine", pa.string()), ("processed_on", pa.string()), ("commit_mode", pa.string()), ("started_at", TIME),
    ("prime_ms", pa.float64()), ("plan_ms", pa.float64()), ("process_ms", pa.float64()), (CHAIN, pa.string()),
    ("amendment", pa.string()),
]  # fmt: skip

# Additional columns of a ledger over a raw depot: bytes that are in no message, and byte counts.
RAW_FIELDS = [
    ("raw_source", pa.string()), ("chunk", pa.int64()), ("offset", pa.int64()), ("last", pa.bool_()),
    ("content", pa.binary()), ("framing", pa.string()), ("digests", pa.binary()),
    ("bytes_read", pa.int64()), ("bytes_framed", pa.int64()), ("bytes_rejected", pa.int64()),
    ("bytes_repeated", pa.int64()), ("format", pa.string()),
]  # fmt: skip

OF_PARTIAL = ("received_at", "reason")  # other columns of bytes that are in no message yet
RAW_REJECTED = ["raw_source", "chunk", "offset", "content"]  # those in rejections by the format
RAW_HISTORY = ["bytes_read", "bytes_framed", "bytes_rejected", "bytes_repeated", "format"]  # those in microbatches

# Columns of a superseded row: the id of the row that it supersedes, and of the amended batch with its first message.
SUPERSEDED_FIELDS = [("superseded_id", pa.string()), ("superseded_by", pa.string())]

PROGRESS_FIELDS = [
    ("depot_id", pa.string()), ("start_from", pa.string()), ("depot_version", pa.int64()),
    ("commit_fingerprint", pa.string()), ("schema_version", pa.int32()), ("microbatch", pa.int64()),
    ("token", pa.string()), ("paused", pa.bool_()), ("rules", pa.string()),
    ("source", pa.string()), ("clock", TIME), ("floor", TIME), ("cut", TIME), ("seen_at", TIME),
    ("open_batches", pa.int64()), ("open_messages", pa.int64()), ("open_bytes", pa.int64()), ("next_window_end", TIME),
    ("versions_written", pa.int64()), ("versions_obsolete", pa.int64()), ("messages_written", pa.int64()),
    (CHAIN, pa.string()),
]  # fmt: skip

APPENDED = pa.list_(pa.struct([("output", pa.string()), ("rows", pa.int64())]))

# Additional columns of a topology's ledger: the depot of a row, up to which time its next version is read, events,
# options, which of these were used, the number and time that all attempts at a microbatch share, the time up
# to which timers fired, what it appended to outputs, the token of the last commit that changed more than a pause, an
# option or the settings, the states whose columns changed, and the depots that were overtaken because their feeders
# stood still.
TOPOLOGY_FIELDS = [
    ("depot", pa.string()), ("part_until", TIME), ("part_fingerprint", pa.string()),
    ("event", pa.string()), ("due", TIME),
    ("option", pa.string()), ("option_value", pa.string()),
    ("events_fired", pa.list_(pa.string())), ("options_used", pa.string()),
    ("planned_microbatch", pa.int64()), ("planned_at", TIME), ("due_until", TIME), ("appended", APPENDED),
    ("state_token", pa.string()), ("migrated", pa.list_(pa.string())), ("overtook", pa.list_(pa.string())),
]  # fmt: skip

# The depot version up to which a ledger had read before a time. A topology has one row per depot, at most at the
# current position, because a rollback may have moved it back.
REACHED = """
SELECT max(CASE WHEN state = 'microbatch' AND {started} < {before:d} THEN depot_version END) AS reached,
       max(CASE WHEN state = 'progress' THEN depot_id END) AS depot_id
FROM {ledger} WHERE state IN ('microbatch', 'progress')"""
REACHED_OF_TOPOLOGY = """
SELECT least(max(h.depot_version), max(p.depot_version)) AS reached, p.depot_id AS depot_id
FROM {ledger} h JOIN ({live}) p ON h.depot = p.depot
WHERE h.state = 'microbatch' AND {started} < {before:d} AND p.state = 'progress' AND p.depot_id IS NOT NULL
GROUP BY p.depot_id"""


def ledger_schema(payload: pa.DataType | None = None, *, raw: bool = False) -> pa.Schema:
    """Return all columns of the ledger, `id` and `state` first; `raw` for one over a raw depot."""
    kind = payload or pa.string()
    # Delta keeps statistics of the first 32 columns: readers skip files by them, verify compares them with rows, and a
    # fold finds the files of the latest commits with them.
    fields: dict[str, pa.DataType] = {"id": pa.string(), "state": pa.string(), "revision": pa.int64()}
    groups = (batch_fields(kind), rejected_fields(kind), HISTORY, PROGRESS_FIELDS, ROW_FIELDS, SUPERSEDED_FIELDS)
    for group in (*groups, RAW_FIELDS if raw else []):
        fields |= dict(group)
    required = {"id", "state"}
    return pa.schema([pa.field(name, type_, nullable=name not in required) for name, type_ in fields.items()])


def topology_schema(*, raw: bool = False) -> pa.Schema:
    """Return the columns of a topology's ledger without those of its states; `raw` if it reads a raw depot."""
    known = {field.name: field for field in ledger_schema(raw=raw)}
    for name, type_ in TOPOLOGY_FIELDS:
        known[name] = pa.field(name, type_)
    batches = {name for name, _ in batch_fields(pa.string())} - {name for name, _ in rejected_fields(pa.string())}
    kept = {"id", "state"} | {name for name, _ in (*ROW_FIELDS, *HISTORY)} | {name for name, _ in PROGRESS_FIELDS}
    return pa.schema([field for name, field in known.items() if name in kept or name not in batches])


def control_schema(ledger: pa.Schema) -> pa.Schema:
    """Return the columns that control rows of a ledger have."""
    groups = (PROGRESS_FIELDS, ROW_FIELDS, RAW_FIELDS, TOPOLOGY_FIELDS)
    own = {"id", "state", *OF_PARTIAL, *(name for group in groups for name, _ in group)}
    return pa.schema([field for field in ledger if field.name in own])


def partial_schema(ledger: pa.Schema) -> pa.Schema:
    """Return the columns of a ledger, except the id, that describe the unfinished bytes of a raw source."""
    names = {"raw_source", "chunk", "last", "content", "framing", "digests", "received_at", "depot_version", "depot"}
    return pa.schema([field for field in ledger if field.name in names])


def is_topology_ledger(columns: Iterable[str]) -> bool:
    """Tell whether a ledger with these columns belongs to a topology."""
    return "event" in columns


ARE_LIVE = f"state NOT IN ({', '.join(map(repr, FINAL))})"  # the SQL condition for rows that are not final


def live_rows(ledger: str, where: str = ARE_LIVE, hint: str = "") -> str:
    """Return the query for the versions of a table reference that count, among the live rows that meet a condition."""
    return (
        f"SELECT {hint}v.* FROM (SELECT * FROM {ledger} WHERE {where}) v JOIN "
        f"(SELECT state, id, max(revision) AS revision FROM {ledger} WHERE {where} GROUP BY state, id) latest "
        f"ON v.state = latest.state AND v.id = latest.id AND v.revision = latest.revision "
        f"WHERE v.{DELETED} IS NOT TRUE"
    )


def rows_that_count(ledger: str) -> str:
    """Return the query for the final rows of a table reference and the versions that count.

    An open batch has only the messages that came with its latest version.
    """
    return f"SELECT * FROM {ledger} WHERE NOT ({ARE_LIVE}) UNION ALL {live_rows(ledger)}"


# Spark SQL expressions over the `parts` of an open batch, which are revision, whole and messages of each version:
# the messages from the last whole part on, whether a part is whole, and the messages in the order of a batch.
JOINED = """flatten(transform(array_sort(
  filter(parts, p -> p.revision >= coalesce(array_max(transform(filter(parts, w -> w.whole), w -> w.revision)), 0)),
  (a, b) -> CASE WHEN a.revision < b.revision THEN -1 WHEN a.revision > b.revision THEN 1 ELSE 0 END
), p -> p.messages))"""
HAS_WHOLE = "exists(parts, p -> p.whole IS TRUE)"
IN_ORDER = f"""array_sort({JOINED}, (a, b) -> CASE
  WHEN a.event_time < b.event_time THEN -1 WHEN a.event_time > b.event_time THEN 1
  WHEN a.type < b.type THEN -1 WHEN a.type > b.type THEN 1 ELSE 0 END)"""


def open_batches(ledger: str, columns: Sequence[str] = BATCH_COLUMNS) -> str:
    """Return the Spark SQL query for columns of the open batches of a table reference.

    A query over it that does not name `messages` reads none.
    """
    joined = {"messages": f"{IN_ORDER} AS messages", WHOLE: f"{HAS_WHOLE} AS {WHOLE}"}
    others = ", ".join({f"`{name}`": None for name in (*columns, DELETED) if name not in ("id", *joined)})
    chosen = ", ".join(joined.get(name, f"`{name}`") for name in columns)
    return (
        f"SELECT {chosen} FROM (SELECT id, newest.*, parts FROM (SELECT id, max_by(struct({others}), revision) AS "
        f"newest, collect_list(struct(revision, {WHOLE}, messages)) AS parts "
        f"FROM {ledger} WHERE state = '{OPEN}' GROUP BY id)) WHERE {DELETED} IS NOT TRUE"
    )


def spark_rows_that_count(ledger: str, columns: Sequence[str]) -> str:
    """Return the Spark SQL query for the final rows of a table with these columns, and the versions that count.

    Open batches have the messages of all their versions.
    """
    if "messages" not in columns:
        return rows_that_count(ledger)
    named = ", ".join(f"`{name}`" for name in columns)
    live = live_rows(ledger, f"{ARE_LIVE} AND state <> '{OPEN}'")
    return (
        f"SELECT {named} FROM {ledger} WHERE NOT ({ARE_LIVE}) "
        f"UNION ALL SELECT {named} FROM ({live}) UNION ALL {open_batches(ledger, columns)}"
    )


def is_live(states: pa.Array | pa.ChunkedArray) -> Any:
    """Return which of the states are live."""
    return pc.invert(pc.is_in(states, string_array(FINAL)))


def reads_raw_depot(names: Iterable[str]) -> bool:
    """Tell from its columns whether a ledger reads a raw depot."""
    return "bytes_read" in names


def reached_query(columns: Iterable[str], ledger: str, started: str, before: int) -> str:
    """Return the query for the version up to which a ledger with these columns had read each depot.

    `started` is `started_at` in microseconds, as an SQL expression of the caller; `before` is the time.
    """
    query = REACHED_OF_TOPOLOGY if is_topology_ledger(columns) else REACHED
    live = live_rows(ledger, f"state = '{PROGRESS}'")
    return query.format(ledger=ledger, live=live, started=started, before=before)


def reached_version(rows: Iterable[Any], depot_id: str) -> int:
    """Return, from the rows of `reached_query`, the version up to which a depot was read; -1 for none."""
    positions = [row["reached"] for row in rows if row["depot_id"] == depot_id and row["reached"] is not None]
    return int(positions[0]) if positions else -1


def require_filled(rows: pa.Table, names: Iterable[str]) -> None:
    """Raise IncompatibleTableError for live rows that are NULL in a filled column: Windrow cannot have written them."""
    for name in names:
        # guard: live-rows-complete
        if rows[name].null_count:
            empty = rows.filter(pc.is_null(rows[name]))["id"][0].as_py()
            raise IncompatibleTableError(f"the row {empty!r} of the ledger has no {name}", DAMAGED)


def rows(schema: pa.Schema, columns: dict[str, object], count: int) -> pa.Table:
    """Return ledger rows with the given columns (arrays, or one value for all) and NULL in the others."""
    filled = [_repeat_value(columns.get(field.name), field.type, count) for field in schema]
    return pa.Table.from_arrays(filled, schema=schema)


def identifier(kind: str, *components: pa.Array) -> pa.Array:
    """Return ids `kind/component/...`; components are strings or integers of one length."""
    encoded = [_encode(component) for component in components]
    return pc.binary_join_element_wise(pa.scalar(kind), *encoded, "/")


def views(ledger: str, *, raw: bool = False) -> dict[str, str]:
    """Return the SQL of each view over the ledger, which is a table reference such as ``delta.`path` ``.

    Over the ledger of a raw depot, they also have the bytes of rejections and the byte counts of microbatches.
    """
    beside = {name: [f"`{name_}`" for name_ in of] if raw else [] for name, of in _RAW_VIEWS.items()}
    batch, rejected = ", ".join(BATCH_COLUMNS), ", ".join([*REJECTED, *beside["rejected_messages"]])
    history = ", ".join(
        "messages_read AS message_count" if name == "messages_read" else name
        for name in [*(name for name, _ in HISTORY), *beside["microbatches"]]
    )
    exploded = (
        f"SELECT {', '.join(BATCH_KEY)}, message.* "
        f"FROM {ledger} LATERAL VIEW explode(messages) AS message WHERE state = 'closed'"
    )
    return {
        "open_batches": open_batches(ledger),
        "closed_batches": f"SELECT {batch} FROM {ledger} WHERE state = 'closed'",
        "closed_messages": exploded,
        "current_batches": current_batches(ledger),
        "amendments": f"SELECT {', '.join(AMENDMENTS)} FROM {ledger} WHERE state = 'superseded'",
        "rejected_messages": f"SELECT {rejected} FROM {ledger} WHERE state = 'rejected'",
        "microbatches": f"SELECT {history} FROM {ledger} WHERE state = 'microbatch'",
    }


def current_batches(ledger: str) -> str:
    """Return the query for the closed and amended batches of a table reference that no amendment supersedes."""
    return (
        f"SELECT {', '.join(f'b.{name}' for name in BATCH_COLUMNS)} FROM (SELECT * FROM {ledger} "
        f"WHERE state IN ('closed', 'amended')) b LEFT ANTI JOIN (SELECT superseded_id FROM {ledger} "
        f"WHERE state = 'superseded') s ON b.id = s.superseded_id"
    )


AMENDMENTS = (
    "id", "microbatch", "reason", "superseded_id", "superseded_by", "source", "key", "part", "window_start",
    "window_end", "type", "event_time",
)  # fmt: skip
_RAW_VIEWS = {"rejected_messages": RAW_REJECTED, "microbatches": RAW_HISTORY}


def _repeat_value(value: object, type_: pa.DataType, count: int) -> Any:
    if isinstance(value, pa.Array | pa.ChunkedArray | np.ndarray):
        return value
    if value is None:
        return pa.nulls(count, type_)
    scalar = (
        string_scalar(value) if isinstance(value, str) else boolean_scalar(value) if isinstance(value, bool) else None
    )
    return pa.repeat(pa.scalar(value, type_) if scalar is None else scalar, count)


def _encode(component: pa.Array) -> pa.Array:
    if not pa.types.is_string(component.type):
        return component.cast(pa.string())
    values = component.dictionary_encode()
    words = values.dictionary
    for special, code in (("%", "%25"), ("/", "%2F"), ("\0", "%00")):
        words = pc.replace_substring(words, special, code)
    return pc.fill_null(words.take(values.indices), "%N")
