"""The base of a verification: a ledger version verified before, if depot and ledger still agree with it.

The tables must be the same (ids and fingerprints of commits), and so must the files of that version (names and sizes)
and its final rows. What was open then is read as of that version: new messages may join it, so it links what was
verified to what is new. The record of a verification is a JSON file that says what was verified, and when.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.errors import NotFoundError, OutputFileError, TableUnreadableError, first_line
from windrow.reading.tables import DepotTable, Ledger, open_ledger
from windrow.verify.columns import numbers
from windrow.verify.depot import DepotMessages
from windrow.verify.files import check_finals, last_revision
from windrow.verify.log import Log, read_log
from windrow.verify.parts import PartedRows
from windrow.verify.report import Report, Since, VerifiedRange
from windrow.verify.snapshot import LedgerContents, read_snapshot

IDENTITY = "depot_version, microbatch, token"
FILE = ("size_bytes", "path")
COUNTS = ("messages_read", "accepted", "rejected", "opened", "closed")
TYPES = {"str": str, "int": int}
CHANGED = {
    "ledger_id": "the record is of another ledger",
    "depot_id": "the record is of another depot",
    "depot_version": "the ledger was replaced",
    "depot_fingerprint": "the depot was replaced, or set back and filled again",
}


class NoBaseError(Exception):
    """There is no base to build on; the text says why."""


@dataclass(frozen=True, slots=True)
class Reliance:
    """What to rely on: the ledger `version`; None for the one in the file `record`, if it exists; 0 for nothing."""

    version: int | None = None
    record: str = ""


NOTHING = Reliance()


@dataclass(frozen=True, slots=True)
class Record:
    """What was verified, and when (ISO 8601)."""

    verified: VerifiedRange
    verified_at: str

    @classmethod
    def read(cls, path: str) -> Record | None:
        """Read a record, None if there is no such file. Raises ValueError if the file is not a whole record."""
        try:
            document = json.loads(Path(path).read_text(encoding="utf-8"))
            moment = document.pop("verified_at")
            datetime.fromisoformat(moment)
            # guard: whole-record
            _require_values(document)
            return cls(VerifiedRange(**document), moment)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"{path} is not a complete verification record ({first_line(error)})") from error

    def write(self, path: str) -> None:
        """Replace the file with this record atomically. Raises OutputFileError."""
        text = json.dumps(asdict(self.verified) | {"verified_at": self.verified_at}, indent=2)
        new = Path(f"{path}.{os.getpid()}.new")
        try:
            with new.open("w", encoding="utf-8") as opened:
                opened.write(text + "\n")
                opened.flush()
                os.fsync(opened.fileno())
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise OutputFileError(
                f"[verify] record = {path!r} cannot be written: {first_line(error)}",
                "The report is valid. Name a file in a writable directory.",
            ) from error


@dataclass(frozen=True, slots=True)
class Base:
    """A verified ledger version: its history, and the `rows` that were open; later rows have later revisions.

    `since` says what is relied on; `logs` are the logs of ledger and depot from then on.
    """

    snapshot: LedgerContents
    rows: PartedRows
    revision: int
    logs: tuple[Log, Log]
    since: Since

    def join(self, after: LedgerContents) -> LedgerContents:
        """Return a later snapshot as if only one of the verified microbatches had read messages: those that were open.

        It is the last one that read data. So the books cover what was open and what is new.
        """
        history, number = after.history, numbers(after.history["microbatch"])
        count = int(np.count_nonzero((number >= 0) & (number <= self.since.microbatch)))
        data = np.flatnonzero(pc.equal(history["kind"][:count], "data").to_numpy())
        at = int(data[-1]) if data.size else 0
        reached = history["depot_version"][:count].to_pylist()
        listed = {"version": reached[at], "messages": self.since.open_message_count}
        beginning: dict[str, list[Any]] = {
            **{name: [0] * count for name in COUNTS},
            "depot_version": [reached[at] - 1] * at + reached[at:],
            "versions": [None] * count,
        }
        if self.since.open_message_count:
            beginning["versions"][at] = [listed]
            beginning["opened"][at] = self.since.open_batch_count
            beginning["messages_read"][at] = beginning["accepted"][at] = self.since.open_message_count
        for name, values in beginning.items():
            column = history[name].combine_chunks()
            column = pa.concat_arrays([pa.array(values, column.type), column[count:]])
            history = history.set_column(history.column_names.index(name), name, column)
        return replace(after, history=history)

    def add_to(self, depot: DepotMessages) -> DepotMessages:
        """Return the messages since then, with those that were open counted in the version that `join` gives them.

        Raises NoBaseError for versions that can no longer be read.
        """
        # guard: new-versions-readable
        if depot.readable > depot.first:
            raise NoBaseError("depot versions since then can no longer be read")
        if not self.since.open_message_count:
            return depot
        listed = self.join(self.snapshot).versions_read
        return replace(depot, per_version=pa.concat_tables([depot.per_version, listed.select(["version", "messages"])]))


def identify(ledger: Ledger, log: Log, depot: DepotTable, depot_log: Log) -> VerifiedRange:
    """Identify what was verified: a ledger version and its depot, by ids and fingerprints.

    A fingerprint is empty where the log no longer has the commit. Raises NotFoundError, IncompatibleTableError.
    """
    [row] = ledger.rows("progress", IDENTITY, "id = 'progress'").to_pylist()
    listed = pa.RecordBatchReader.from_stream(ledger.table.get_add_actions()).read_all()
    files = sorted(f"{size} {path}" for size, path in zip(*(listed[name].to_pylist() for name in FILE), strict=True))
    digest = hashlib.sha256("\n".join(files).encode()).hexdigest()
    return VerifiedRange(
        ledger_id=str(ledger.table.metadata().id),
        ledger_version=ledger.version,
        ledger_fingerprint=log.marks.get(ledger.version, ""),
        ledger_files=digest,
        token=row["token"],
        microbatch=row["microbatch"],
        depot_id=str(depot.metadata().id),
        depot_version=row["depot_version"],
        depot_fingerprint=depot_log.marks.get(row["depot_version"], ""),
    )


def find_base(relying_on: Reliance, ledger: Ledger, depot: DepotTable, location: str, rows: PartedRows) -> Base | None:
    """Return the base for verifying a ledger version against its depot, None if nobody asked for one.

    What was open then is added to `rows`. Raises NoBaseError.
    """
    try:
        record = Record.read(relying_on.record) if relying_on.record and relying_on.version != 0 else None
    except ValueError as error:
        raise NoBaseError(str(error)) from error
    version = record.verified.ledger_version if record and relying_on.version is None else relying_on.version
    if not version:
        return None
    if not isinstance(depot, DeltaTable):
        raise NoBaseError("Spark reads the tables, so their files and logs cannot be compared")
    if ledger.raw:
        raise NoBaseError("the ledger of a raw depot is verified as a whole")
    recorded = record if record and record.verified.ledger_version == version else None
    if recorded and recorded.verified.ledger_id != str(ledger.table.metadata().id):
        raise NoBaseError(CHANGED["ledger_id"])
    if version > ledger.version:
        is_set_back = f"the ledger ends at version {ledger.version}: it was set back since then"
        raise NoBaseError(is_set_back if recorded else f"the latest version of the ledger is {ledger.version}")
    try:
        before = open_ledger(ledger.location, version)
        reached = before.progress()
        own = read_log(ledger.table, ledger.location, "ledger", version)
        others = read_log(depot, location, "depot", max(reached.depot_version, 0))
        verified = identify(before, own, depot, others)
        _require_unchanged(ledger, verified, recorded, (own, others))
        # guard: final-rows-as-they-were
        if any(check_finals(before, ledger)):
            raise NoBaseError("rows that were final then have changed")
        revision = last_revision(before)
        snapshot = read_snapshot(before, rows, revision)
    except (NotFoundError, TableUnreadableError) as error:
        raise NoBaseError(f"ledger version {version} can no longer be read") from error
    since = Since(
        ledger_version=version,
        microbatch=verified.microbatch,
        depot_version=verified.depot_version,
        verified_at=recorded.verified_at if recorded else None,
        open_batch_count=int(pc.sum(snapshot.sources["open_batches"]).as_py() or 0),
        open_message_count=int(pc.sum(snapshot.sources["open_messages"]).as_py() or 0),
    )
    return Base(snapshot, rows, revision, (own, others), since)


def _require_unchanged(ledger: Ledger, verified: VerifiedRange, record: Record | None, logs: tuple[Log, Log]) -> None:
    """Raise NoBaseError if a version is not the recorded one, or if later versions do not build on it."""
    if not verified.microbatch:
        raise NoBaseError("no microbatch had run by then")
    for name in VerifiedRange.__dataclass_fields__ if record else ():
        # guard: same-as-recorded
        if record and getattr(record.verified, name) != getattr(verified, name):
            raise NoBaseError(CHANGED.get(name, f"ledger version {verified.ledger_version} is not the recorded one"))
    if not (verified.ledger_fingerprint and verified.depot_fingerprint):
        raise NoBaseError("the logs no longer have the commits of that time")
    # guard: restored-since
    if any(version > verified.ledger_version for version in logs[0].restored):
        raise NoBaseError("the ledger was restored since then")
    # guard: depot-restored-since
    if any(version > verified.depot_version for version in logs[1].restored):
        raise NoBaseError("the depot was restored since then")
    since = f"microbatch >= {verified.microbatch:d}"
    rules = ledger.rows("microbatch", "rules, min(microbatch) AS first", since, "GROUP BY rules")
    # guard: rules-since
    if rules.num_rows > 1:
        raise NoBaseError(f"the rules changed in microbatch {pc.max(rules['first']).as_py()}")


def write_record(report: Report, path: str, now: datetime) -> bool:
    """Write the record of a report without differences and findings; tell whether it was written.

    A report that relies on a version without a record is not recorded. Raises OutputFileError.
    """
    is_founded = report.since is None or report.since.verified_at is not None
    # guard: only-verified-is-remembered
    if not (report.ok and report.complete and is_founded) or report.verified is None:
        return False
    Record(report.verified, now.isoformat(timespec="seconds")).write(path)
    return True


def _require_values(document: dict[str, Any]) -> None:
    for field in fields(VerifiedRange):
        if type(document.get(field.name)) is not TYPES[str(field.type)]:
            raise ValueError(f"no {field.name}")
