"""Compare the derived rejections, batches and their messages with those in the ledger.

An example of a difference shows both sides, as far as they differ.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import times_to_numbers
from windrow.reading.values import records
from windrow.verify.columns import MESSAGE, identifier
from windrow.verify.decisions.relations import differing_pairs
from windrow.verify.report import EXAMPLES, Difference
from windrow.verify.tables import execute

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

RULES, LEDGER = "by the rules", "in the ledger"
VERDICT = ["reason", "detail", "missed_by_us", "floor_raise_us", "processing_time", "microbatch"]
WINDOW = ["source", "key", "window_start", "part"]
IDENTITY = ["source", "key", "type", "event_time"]
DECIDED = [
    "window_end", "timeout_at", "open_reason", "opened_microbatch", "closed_at", "close_reason", "closed_microbatch",
    "oversize",
]  # fmt: skip
Row = dict[str, Any]

CONTENT = ", ".join(f"r.{name}" for name in MESSAGE)
OF_STREAM = "JOIN streams AS s ON s.source IS NOT DISTINCT FROM r.source AND s.key IS NOT DISTINCT FROM r.key"
REFUSED = f"""
SELECT {CONTENT}, r.version AS depot_version, r.reason, r.detail, r.missed_by_us,
    r.now - r.received_at AS floor_raise_us, r.now AS processing_time, r.microbatch
FROM judged AS r {OF_STREAM} WHERE s.whole AND r.reason IS NOT NULL
"""
REJECTED = f"""
SELECT {CONTENT}, r.version AS depot_version, {", ".join(f"r.{name}" for name in VERDICT)}
FROM rejected AS r {OF_STREAM} WHERE s.whole
"""
DERIVED = f"""
SELECT s.source, s.key, d.start AS window_start, d.part, d.end AS window_end,
    {", ".join(f"d.{name}" for name in DECIDED[1:])}
FROM derived AS d JOIN streams AS s ON s.stream = d.stream
"""
BATCHES = f"""
SELECT {", ".join(f"r.{name}" for name in (*WINDOW, *DECIDED))}
FROM batches AS r {OF_STREAM} WHERE s.chosen
"""
PLACED = """
SELECT j.source, j.key, j.type, j.event_time, d.start AS window_start, d.part
FROM placed AS p JOIN judged AS j ON j.row = p.row JOIN derived AS d ON d.batch = p.batch
"""
HELD = f"""
SELECT r.source, r.key, h.type, h.event_time, r.window_start, r.part
FROM batches AS r {OF_STREAM} JOIN held AS h ON h.row = r.row
WHERE s.chosen
"""
# What messages are that lie elsewhere.
EXAMPLE = f"""
SELECT {CONTENT}
FROM judged AS r JOIN places AS p ON {" AND ".join(f"r.{name} = p.{name}" for name in IDENTITY)}
WHERE r.reason IS NULL ORDER BY {", ".join(f"r.{name}" for name in IDENTITY)}
"""


def check_rejected(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that the ledger rejects exactly the messages that the rules refuse, for the same reason and by as much."""
    keys = [*MESSAGE, "depot_version"]
    ours, theirs = differing_pairs(connection, REFUSED, REJECTED, keys)
    if not ours.num_rows:
        return
    examples = _either(ours, theirs, keys)
    for name, rows, otherwise in ((RULES, ours, "accepted"), (LEDGER, theirs, "not rejected")):
        verdicts_of = records(rows.slice(0, EXAMPLES).select(VERDICT))
        for example, verdict in zip(examples, verdicts_of, strict=True):
            example[name] = otherwise if verdict["reason"] is None else verdict
    yield Difference(
        "decisions",
        "each message accepted or rejected as the log and the rules decide",
        f"{ours.num_rows} messages that the ledger decided otherwise",
        examples=tuple(examples),
    )


def check_windows(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that the batches of the chosen streams are those that the rules make, opened and closed alike."""
    ours, theirs = differing_pairs(connection, DERIVED, BATCHES, WINDOW)
    if not ours.num_rows:
        return
    *stream, start, part = (theirs[name] for name in WINDOW)
    theirs = theirs.append_column("id", identifier("batch", *stream, start.cast(pa.int64()), part))
    sides = (records(side.slice(0, EXAMPLES)) for side in (ours, theirs))
    yield Difference(
        "windows by the rules",
        "the batches that the rules make from the accepted messages of each stream",
        f"{ours.num_rows} batches that differ",
        examples=tuple(map(_example, *sides)),
    )


def check_members(connection: DuckDBPyConnection) -> Iterator[Difference]:
    """Check that each message is in the batch in which the rules put it."""
    sides = differing_pairs(connection, PLACED, HELD, IDENTITY)
    both = pc.and_(*(side["part"].is_valid() for side in sides))
    ours, theirs = (side.filter(both) for side in sides)
    if not ours.num_rows:
        return
    *stream, start, part = (theirs[name] for name in WINDOW)
    there = identifier("batch", *stream, start.cast(pa.int64()), part).to_pylist()
    places = ours.slice(0, EXAMPLES)
    connection.register("places", times_to_numbers(places))
    examples = records(execute(connection, EXAMPLE))
    for example, place, batch in zip(examples, records(places), there, strict=False):
        example[RULES] = f"window from {place['window_start']}, part {place['part']}"
        example[LEDGER] = batch
    yield Difference(
        "messages by the rules",
        "each message in the window in which the rules put it",
        f"{ours.num_rows} messages in another one",
        examples=tuple(examples),
    )


def _either(ours: pa.Table, theirs: pa.Table, names: list[str]) -> list[Row]:
    """Return the first rows of either side, whichever there is."""
    sides = ours.slice(0, EXAMPLES), theirs.slice(0, EXAMPLES)
    return records(pa.table({name: pc.coalesce(*(side[name] for side in sides)) for name in names}))


def _example(ours: Row, theirs: Row) -> Row:
    """Return a batch that differs, with the columns that differ from both sides; a side that has none is all NULL."""
    there = [side["window_start"] is not None for side in (ours, theirs)]
    names = [name for name in DECIDED if not all(there) or ours[name] != theirs[name]]
    sides = {
        name: {column: side[column] for column in names} if is_there else "no such batch"
        for name, side, is_there in zip((RULES, LEDGER), (ours, theirs), there, strict=True)
    }
    return {name: (theirs if there[1] else ours).get(name) for name in ("id", *WINDOW)} | sides
