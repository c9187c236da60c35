"""Read one version of a ledger: progress, history, batches, their messages, rejected messages.

Over a raw depot also rejections of the format, partial rows, and counts of bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.errors import NotFound, TableUnreadable, WindrowError, first_line
from windrow.model.chunks import REFUSED
from windrow.model.tables import RAW_REJECTED
from windrow.reading.tables import Ledger, Progress, open_ledger
from windrow.verify.columns import MESSAGE, as_messages, exploded

BATCH = (
    "id, state, source, key, part, window_start, window_end, timeout, opened_by, closed_at, close_reason, "
    "message_count, bytes, oversize, first_event_time, last_event_time, opened_in, closed_in"
)
REJECTED = "id, reason, detail, missed_by_us, clock_lead_us, processing_time, microbatch, " + ", ".join(MESSAGE)
PROGRESS = ", ".join([*Progress.__dataclass_fields__, "token", "commit_fingerprint"])
HISTORY = (
    "id, microbatch, kind, versions, messages_read, accepted, rejected, opened, closed, depot_version, clocks, rules, "
    "started_at, token"
)
PARTIAL = ("id", "raw_source", "chunk", "last", "content", "digests")
BYTES = ("bytes_read", "bytes_framed", "bytes_rejected", "bytes_repeated")


@dataclass(frozen=True, slots=True)
class RawRows:
    """The rejections of the format, the partial rows, and counts of bytes: as a ledger has them, or formatted again.

    `byte_count` has the columns `BYTES` of each microbatch; formatted again, `version, bytes` of each version with
    chunks, NULL where a codec decodes them. Rejections that were formatted again have the `version` that decided them.
    """

    rejected: pa.Table
    partial: pa.Table
    byte_count: pa.Table


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a ledger version. `row` of a message is the row of `batches` that holds it.

    `rejected` has the rejected messages. `raw` has what else the ledger of a raw depot holds; None for any other.
    """

    version: int
    progress: Progress
    token: str
    commit_fingerprint: str | None
    history: pa.Table
    batches: pa.Table
    messages: pa.Table
    rejected: pa.Table
    raw: RawRows | None = None

    @property
    def rejections(self) -> pa.Table:
        """Return all rejections: of messages, and of records and chunks that the format refused."""
        if self.raw is None:
            return self.rejected
        return pa.concat_tables([self.rejected, self.raw.rejected], promote_options="default")

    @property
    def messages_read(self) -> int:
        """Return how many messages the history says were read."""
        return int(pc.sum(self.history["messages_read"]).as_py() or 0)

    @property
    def versions_read(self) -> pa.Table:
        """Return `version, messages` of each depot version that a microbatch read, with the `microbatch`."""
        lists = exploded(self.history, "versions")
        return lists.append_column("microbatch", self.history["microbatch"].take(lists["row"]))


def read_snapshot(location: str, version: int) -> Snapshot:
    """Read a ledger at a version.

    Raises TableMissing, TableRefused, or NotFound for a version that does not exist or can no longer be read.
    """
    ledger = open_ledger(location, version)
    with _readable(ledger):
        controls = _controls(ledger)
        progress = _progress(controls, ledger)
        history = ledger.rows("microbatch", HISTORY, rest="ORDER BY microbatch")
        batches = ledger.rows(("open", "closed"), BATCH + ", messages")
        names = ", ".join([REJECTED, *(f'"{name}"' for name in RAW_REJECTED)]) if ledger.raw else REJECTED
        rejected = as_messages(plain(ledger.rows("rejected", names)))
        raw = _raw_rows(ledger, rejected) if ledger.raw else None
    flat = plain(batches.drop_columns(["messages"]))
    return Snapshot(
        version=version,
        progress=progress,
        token=controls[0]["token"],
        commit_fingerprint=controls[0]["commit_fingerprint"],
        history=plain(history),
        batches=flat,
        messages=_messages(exploded(batches, "messages"), flat),
        rejected=_of_messages(rejected) if raw else rejected,
        raw=raw,
    )


def read_progress(location: str, version: int) -> Progress:
    """Read only the progress of a ledger at a version. Raises as `read_snapshot` does."""
    ledger = open_ledger(location, version)
    with _readable(ledger):
        return _progress(_controls(ledger), ledger)


def first_version(location: str, progress: Progress) -> tuple[int, list[str]]:
    """Return the first depot version that counts, and a finding if only the history knows it.

    It comes from `start_from`, or else from the progress row with which the ledger began.
    """
    kind, _, number = progress.start_from.partition(":")
    if kind == "beginning":
        return 0, []
    if kind == "version" and number.isdigit():
        return int(number), []
    try:
        return read_progress(location, 0).depot_version + 1, []
    except NotFound:
        ledger = open_ledger(location)
        earliest = ledger.rows("microbatch", "versions", "messages_read > 0", "ORDER BY microbatch LIMIT 1").to_pylist()
        first = earliest[0]["versions"][0]["version"] if earliest else progress.depot_version + 1
        return first, [f"where the ledger began can only be told from its history: at depot version {first}"]


def bytes_of(table: pa.Table) -> int:
    """Return how many bytes of `content` the rows of a table hold."""
    return int(pc.sum(pc.binary_length(table["content"])).as_py() or 0)


@contextmanager
def _readable(ledger: Ledger) -> Iterator[None]:
    """Raise NotFound when a file of the version is gone, for which delta-rs has no error class."""
    try:
        yield
    except TableUnreadable as error:
        if ledger.version == open_ledger(ledger.location).version:
            raise
        raise _unreadable(ledger, error.__cause__ or error) from error
    except WindrowError:
        raise
    except Exception as error:
        raise _unreadable(ledger, error) from error


def _unreadable(ledger: Ledger, error: BaseException) -> NotFound:
    return NotFound(
        f"ledger version {ledger.version} cannot be read: {first_line(error)}",
        "`windrow status` says from which version on it can.",
    )


def _messages(inside: pa.Table, batches: pa.Table) -> pa.Table:
    """Return the messages of batches, with source and key of their batch."""
    stream = {name: batches[name].take(inside["row"]) for name in ("source", "key")}
    return as_messages(pa.table(stream | {name: inside[name] for name in inside.column_names}))


def _raw_rows(ledger: Ledger, rejected: pa.Table) -> RawRows:
    """Return what a ledger over a raw depot has besides messages; `rejected` has all of its rejections."""
    counts = ", ".join(f"COALESCE({name}, 0) AS {name}" for name in BYTES)
    return RawRows(
        rejected=rejected.filter(_of_format(rejected)),
        partial=plain(ledger.rows("partial", ", ".join(PARTIAL))),
        byte_count=plain(ledger.rows("microbatch", f"microbatch, {counts}", rest="ORDER BY microbatch")),
    )


def _of_messages(rejected: pa.Table) -> pa.Table:
    """Return the rejections of messages, without the columns that only rejections of the format have."""
    mine = rejected.filter(pc.invert(_of_format(rejected)))
    return mine.drop_columns(RAW_REJECTED)


def _of_format(rejected: pa.Table) -> pa.ChunkedArray:
    """Tell which rejections are of the format, not of a message."""
    return pc.fill_null(pc.starts_with(rejected["reason"], REFUSED), False)


def _controls(ledger: Ledger) -> list[dict[str, Any]]:
    rows = ledger.rows("progress", PROGRESS, "id = 'progress'", "ORDER BY microbatch DESC")
    return list(rows.to_pylist())


def _progress(controls: list[dict[str, Any]], ledger: Ledger) -> Progress:
    """Return the progress row; if there are several (a difference), the furthest, so that the rest can be checked."""
    if len(controls) > 1:
        return Progress(**{name: controls[0][name] for name in Progress.__dataclass_fields__})
    return ledger.progress()
