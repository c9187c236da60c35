"""Read one version of a ledger: progress and history into memory; batches, messages and rejections to disk, in parts.

For a raw depot, rejections of the format, partial rows, and counts of bytes are also read into memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import times_to_numbers
from windrow.errors import NotFoundError, TableUnreadableError, WindrowError, first_line
from windrow.model.chain import CHAIN
from windrow.model.chunks import REFUSED
from windrow.model.tables import RAW_REJECTED
from windrow.reading.tables import Ledger, Progress, open_ledger
from windrow.verify.columns import MESSAGE, as_messages, explode, version_in_id
from windrow.verify.parts import PartedRows

BATCH = (
    "id, state, source, key, part, window_start, window_end, timeout_at, open_reason, closed_at, close_reason, "
    "message_count, bytes, oversize, first_event_time, last_event_time, opened_microbatch, closed_microbatch, revision"
)
REJECTED = "id, reason, detail, missed_by_us, floor_raise_us, processing_time, microbatch, " + ", ".join(MESSAGE)
PROGRESS = ", ".join(["id", *Progress.__dataclass_fields__, "token", "commit_fingerprint", CHAIN])
SOURCES = "id, source, clock, floor, cut, open_batches, open_messages, open_bytes, next_window_end"
HISTORY = (
    "id, microbatch, kind, versions, messages_read, accepted, rejected, opened, closed, depot_version, clocks, rules, "
    "started_at, token, revision, chain"
)
PARTIAL = ("id", "raw_source", "chunk", "last", "content", "digests")
BYTES = ("bytes_read", "bytes_framed", "bytes_rejected", "bytes_repeated")


@dataclass(frozen=True, slots=True)
class RawRows:
    """The rejections of the format, the partial rows, and counts of bytes, as a ledger has them or formatted again.

    `byte_count` has the columns `BYTES` for each microbatch; if formatted again, `version, bytes` for each version with
    chunks, NULL where a codec decodes them. Rejections formatted again have the `version` that decided them.
    """

    rejected: pa.Table
    partial: pa.Table
    byte_count: pa.Table


@dataclass(frozen=True, slots=True)
class LedgerContents:
    """A ledger version: its `controls` (the `progress` rows, of which there should be one), `sources` and history.

    `raw` has what else the ledger of a raw depot contains; None for any other.
    """

    version: int
    progress: Progress
    controls: pa.Table
    sources: pa.Table
    history: pa.Table
    raw: RawRows | None = None

    @property
    def messages_read(self) -> int:
        """Return how many messages the history says were read."""
        return int(pc.sum(self.history["messages_read"]).as_py() or 0)

    @property
    def versions_read(self) -> pa.Table:
        """Return `version, messages, fingerprint, microbatch` of each depot version that a microbatch read."""
        lists = explode(self.history, "versions")
        return lists.append_column("microbatch", self.history["microbatch"].take(lists["row"]))


def read_snapshot(ledger: Ledger, rows: PartedRows | None, after: int = 0) -> LedgerContents:
    """Read a ledger at its version; add batches, messages and rejections to `rows`; with None, Spark reads them.

    Only closed batches and rejections with revisions after `after` are read. Raises TableMissingError,
    IncompatibleTableError, NotFoundError for a version that does not exist or can no longer be read, and
    TableUnwritableError for a full disk.
    """
    with _readable(ledger):
        controls, progress = _controls(ledger)
        sources = ledger.rows("progress", SOURCES, "id <> 'progress'")
        history = ledger.rows("microbatch", HISTORY, rest="ORDER BY microbatch")
        if rows is None:
            return LedgerContents(ledger.version, progress, controls, sources, history)
        batches_after = f"state = 'open' OR revision > {after:d}" if after else "true"
        count = 0
        for piece in ledger.pieces(("open", "closed"), BATCH + ", messages", batches_after):
            for name, part in batch_rows(piece, count).items():
                rows.add(name, part)
            count += piece.num_rows
        by_format = _read_rejected(ledger, rows, f"revision > {after:d}" if after else "true")
        raw = None
        if ledger.raw:
            counts = ", ".join(f"COALESCE({name}, 0) AS {name}" for name in BYTES)
            byte_count = ledger.rows("microbatch", f"microbatch, {counts}", rest="ORDER BY microbatch")
            raw = RawRows(by_format, ledger.rows("partial", ", ".join(PARTIAL)), byte_count)
    rows.close_blocks()
    return LedgerContents(ledger.version, progress, controls, sources, history, raw)


def batch_rows(batches: pa.Table, first: int) -> dict[str, pa.Table]:
    """Return `batches`, with row numbers from `first` on, and `held`, the messages in them; times are numbers.

    A message has the `row` of its batch, and `message_rows` of a batch is its number of messages.
    """
    flat = batches.drop_columns(["messages"])
    inside = explode(batches, "messages")
    stream = {name: flat[name].take(inside["row"]) for name in ("source", "key")}
    messages = as_messages(pa.table(stream | {name: inside[name] for name in inside.column_names}))
    length = np.bincount(inside["row"].to_numpy(), minlength=flat.num_rows)
    flat = flat.append_column("row", pa.array(np.arange(first, first + flat.num_rows)))
    before = _event_time_before(messages)
    messages = messages.set_column(messages.column_names.index("row"), "row", pc.add(messages["row"], first))
    return {
        "batches": times_to_numbers(flat.append_column("message_rows", pa.array(length))),
        "held": times_to_numbers(messages.append_column("previous_event_time", before)),
    }


def _event_time_before(messages: pa.Table) -> pa.ChunkedArray:
    """Return the event time of the previous message in the same batch; NULL for the first."""
    time, row = messages["event_time"].combine_chunks(), messages["row"].to_numpy()
    before = pa.concat_arrays([pa.nulls(1, time.type), time[:-1]]) if len(time) else time
    first = pa.array(np.diff(row, prepend=-1) != 0)
    return pa.chunked_array([pc.if_else(first, pa.scalar(None, time.type), before)])


def _read_rejected(ledger: Ledger, rows: PartedRows, where: str) -> pa.Table:
    """Add the rejections of messages, with the depot version in their ids; return those of the format."""
    names = [REJECTED, *(f'"{name}"' for name in RAW_REJECTED)] if ledger.raw else [REJECTED]
    by_format = []
    for piece in ledger.pieces("rejected", ", ".join(names), where):
        rejected = as_messages(piece)
        if ledger.raw:
            of_format = pc.fill_null(pc.starts_with(rejected["reason"], REFUSED), False)
            by_format.append(rejected.filter(of_format))
            rejected = rejected.filter(pc.invert(of_format)).drop_columns(RAW_REJECTED)
        rows.add("rejected", rejected_rows(rejected))
    return pa.concat_tables(by_format) if by_format else None


def rejected_rows(rejected: pa.Table) -> pa.Table:
    """Return the rejections of messages with the depot version in their ids."""
    return times_to_numbers(rejected.append_column("version", version_in_id(rejected)))


def read_progress(ledger: Ledger) -> Progress:
    """Read only the progress of a ledger at its version. Raises as `read_snapshot` does."""
    with _readable(ledger):
        return _controls(ledger)[1]


def first_version(location: str, progress: Progress) -> tuple[int, list[str]]:
    """Return the first depot version that counts, and a finding if only the history says so.

    It comes from `start_from`, or else from the progress row with which the ledger began.
    """
    kind, _, number = progress.start_from.partition(":")
    if kind == "beginning":
        return 0, []
    if kind == "version" and number.isdigit():
        return int(number), []
    try:
        return read_progress(open_ledger(location, 0)).depot_version + 1, []
    except NotFoundError:
        ledger = open_ledger(location)
        earliest = ledger.rows("microbatch", "versions", "messages_read > 0", "ORDER BY microbatch LIMIT 1").to_pylist()
        first = earliest[0]["versions"][0]["version"] if earliest else progress.depot_version + 1
        return first, [f"where the ledger began can only be told from its history: at depot version {first}"]


def bytes_of(table: pa.Table) -> int:
    """Return how many bytes of `content` the rows of a table have."""
    return int(pc.sum(pc.binary_length(table["content"])).as_py() or 0)


@contextmanager
def _readable(ledger: Ledger) -> Iterator[None]:
    """Raise NotFoundError when a file of the version is gone, for which delta-rs has no error class."""
    try:
        yield
    except Exception as error:
        cause: BaseException = error
        is_gone = not isinstance(error, WindrowError)
        if isinstance(error, TableUnreadableError):
            cause = error.__cause__ or error
            is_gone = ledger.version != open_ledger(ledger.location).version
        if not is_gone:
            raise
        message = f"ledger version {ledger.version} cannot be read: {first_line(cause)}"
        raise NotFoundError(message, "`windrow status` says from which version on it can.") from error


def _controls(ledger: Ledger) -> tuple[pa.Table, Progress]:
    """Return the progress rows, and the furthest of them, so that the rest can be checked even if there are several."""
    controls = ledger.rows("progress", PROGRESS, "id = 'progress'", "ORDER BY microbatch DESC")
    if controls.num_rows <= 1:
        return controls, ledger.progress()
    [furthest] = controls.slice(0, 1).select(list(Progress.__dataclass_fields__)).to_pylist()
    return controls, Progress(**furthest)
