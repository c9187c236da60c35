"""Check the history's chain, and check history and progress against the Delta logs, which record commits independently.

Windrow adds a note to each commit of a ledger: the number of the microbatch and its token. A commit without a note,
such as a manual UPDATE, must leave history and progress as they were in the version before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from windrow.delta.table import history, translate_read_errors
from windrow.errors import NotFoundError, TableUnreadableError
from windrow.model import tables
from windrow.model.chain import CHAIN, in_order, links, row_digests
from windrow.model.commits import WITHOUT_ROWS, differs, fingerprint, note_of, rows_in
from windrow.reading.tables import open_ledger
from windrow.verify.columns import multiset_difference
from windrow.verify.report import Difference, Found, difference_in_rows
from windrow.verify.snapshot import LedgerContents

NOTED = {
    "microbatch": "microbatch", "token": "token", "kind": "kind", "depot_version": "depot_version",
    "messages_read": "messages", "rejected": "rejected", "closed": "closed",
}  # fmt: skip
RESTORED = "RESTORE"
# Columns of the progress row that a fold changes.
OF_FOLDS = ("versions_written", "versions_obsolete", "messages_written")


@dataclass(frozen=True, slots=True)
class Log:
    """The commits of a log: fingerprint and note by version, versions without a note, and versions undone by RESTORE.

    `rows` has each file's number of rows, from the entry that added the file; `added_in` has the last such version.
    """

    marks: dict[int, str]
    notes: dict[int, dict[str, Any]]
    foreign: list[int]
    restored: dict[int, int]
    rows: dict[str, int | None]
    added_in: dict[str, int]

    def lasting(self, last_version: int) -> list[int]:
        """Return the versions of commits up to a version that Windrow did not make and no RESTORE undid."""
        undone = [(at, to) for at, to in self.restored.items() if at <= last_version]
        return [
            number
            for number in self.foreign
            if number <= last_version and not any(to < number < at for at, to in undone)
        ]


def read_log(table: DeltaTable, location: str, role: str, since: int = 0) -> Log:
    """Read the log of a table from the table's version back to version `since`, or as far as the log goes.

    Raises TableUnreadableError.
    """
    log = Log({}, {}, [], {}, {}, {})
    with translate_read_errors(location, role):
        for commit in history(table, since, files=True):
            version, operation = int(commit["version"]), commit.get("operation")
            added = {unquote(add["path"]): rows_in(add) for add in commit.pop("added")}
            log.rows.update(added)
            log.added_in.update(dict.fromkeys(added.keys() - log.added_in.keys(), version))
            log.marks[version] = fingerprint(commit)
            note = note_of(commit)
            if "windrow" in note:
                log.notes[version] = note
            elif operation == RESTORED:
                to = str((commit.get("operationParameters") or {}).get("version"))
                log.restored[version] = int(to) if to.isdigit() else 0
            elif version and operation not in WITHOUT_ROWS:
                log.foreign.append(version)
    return log


def check_commits(location: str, snapshot: LedgerContents, log: Log, depot: Log, since: int = 0) -> Iterator[Found]:
    """Compare the history with the notes of its commits, and the progress with the history and the depot's log.

    From version `since` on, commits without a note are compared with the version before them.
    """
    yield from _check_notes(snapshot, log)
    yield from _progress(snapshot, depot)
    for version in log.lasting(snapshot.version):
        if version <= since:
            continue
        try:
            yield from _check_change(location, version)
        except (NotFoundError, TableUnreadableError):
            yield f"ledger version {version}, which no microbatch committed: the one before cannot be read"


def check_links(history: pa.Table, last: str | None) -> Iterator[Difference]:
    """Check that each row of the history has the link that follows from the row and the one before.

    `last` is the link in the progress row. If a row was changed, only that row is reported.
    """
    rows = in_order(history)
    before, wrong = None, []
    for id_, digest, link in zip(rows["id"].to_pylist(), row_digests(rows), rows[CHAIN].to_pylist(), strict=True):
        [expected] = links([digest], before)
        if link != expected:
            wrong.append({"id": id_, "expected": expected, "found": link})
        before = link
    if before != last:
        wrong.append({"id": "progress", "expected": before, "found": last})
    expected = "the link that follows from the row and the one before"
    yield from difference_in_rows("chain", expected, pa.Table.from_pylist(wrong), "rows with another link")


def check_fingerprints(versions: pa.Table, depot: Log) -> Iterator[Difference]:
    """Check that the depot's commits are those that the history names, as far back as the depot's log goes.

    `versions` has the columns `version, fingerprint`.
    """
    named = zip(versions["version"].to_pylist(), versions["fingerprint"].to_pylist(), strict=True)
    wrong = [
        {"version": version, "expected": fingerprint, "found": depot.marks[version]}
        for version, fingerprint in named
        if version in depot.marks and differs(fingerprint, depot.marks[version])
    ]
    expected = "the commits that were read"
    yield from difference_in_rows("depot commits", expected, pa.Table.from_pylist(wrong), "versions that were replaced")


def _check_notes(snapshot: LedgerContents, log: Log) -> Iterator[Difference]:
    """Check that each row of the history agrees with the note of its commit, if the log still has it."""
    rows = snapshot.history.select(list(NOTED))
    notes = [note for version, note in log.notes.items() if version <= snapshot.version and "token" in note]
    noted = pa.Table.from_pylist([{name: note.get(key) for name, key in NOTED.items()} for note in notes], rows.schema)
    known = rows.filter(pc.is_in(rows["microbatch"], noted["microbatch"].combine_chunks()))
    expected = "the history as the log noted it beside each commit"
    yield from difference_in_rows("notes", expected, multiset_difference(known, noted)[0], "microbatches")


def _progress(snapshot: LedgerContents, depot: Log) -> Iterator[Difference]:
    """Check that token, pause and depot fingerprint in the progress are those of the microbatches that set them."""
    rows, progress, right = snapshot.history.select(["kind", "depot_version", "token"]), snapshot.progress, {}
    if rows.num_rows:
        right["token"] = rows["token"][-1].as_py()
    switches = rows.filter(pc.is_in(rows["kind"], pa.array(["pause", "resume"])))["kind"].to_pylist()
    right["paused"] = bool(switches) and switches[-1] == "pause"
    read = rows.filter(pc.and_(pc.equal(rows["kind"], "data"), pc.equal(rows["depot_version"], progress.depot_version)))
    token, fingerprint = (snapshot.controls[name][0].as_py() for name in ("token", "commit_fingerprint"))
    mark, by_spark = depot.marks.get(progress.depot_version), str(fingerprint).startswith("spark:")
    if mark is not None and not by_spark and (read.num_rows or fingerprint is not None):
        right["commit_fingerprint"] = mark
    contents = {"token": str(token), "paused": progress.paused, "commit_fingerprint": fingerprint}
    wrong = [
        {"column": name, "expected": str(value), "found": str(contents[name])}
        for name, value in right.items()
        if contents[name] != value
    ]
    expected = "token and pause of the last microbatches, and the mark of the depot's commit"
    yield from difference_in_rows("progress row", expected, pa.Table.from_pylist(wrong), "columns")


def _check_change(location: str, version: int) -> Iterator[Difference]:
    """Compare history and progress before and after a commit without a note.

    If the number of microbatches grew by one, the commit is a microbatch: Spark cannot add notes everywhere.
    """
    before, after = (_controls(location, number) for number in (version - 1, version))
    count_before, count_after = (pc.max(rows["microbatch"]).as_py() or 0 for rows in (before[1], after[1]))
    if count_after == count_before + 1:
        return
    expected = f"history and progress as in version {version - 1}, before a commit that is no microbatch"
    for earlier, later in zip(before, after, strict=True):
        yield from difference_in_rows(
            "by hand", expected, multiset_difference(earlier, later)[0], f"rows that version {version} changed"
        )


def _controls(location: str, version: int) -> tuple[pa.Table, pa.Table]:
    """Return history and progress of a ledger at a version, without list columns."""
    ledger = open_ledger(location, version)
    fields = tables.HISTORY + tables.PROGRESS_FIELDS + tables.RAW_FIELDS
    kept = {"id", *(name for name, type_ in fields if not pa.types.is_nested(type_))} - set(OF_FOLDS)
    names = ", ".join(f'"{field.name}"' for field in ledger.table.schema().fields if field.name in kept)
    return ledger.rows("microbatch", names), ledger.rows("progress", names)
