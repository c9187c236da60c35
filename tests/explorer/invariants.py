"""What must hold after every commit to the ledger, and at the end of every schedule, by name."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow.compute as pc

from tests.engine.world import canonical
from tests.explorer.scenarios import LOG
from tests.explorer.tables import MemoryTable, Tables, TableVersion
from windrow.ledger.versions import Growth, latest
from windrow.model import tables

Row = dict[str, Any]
WHILE_PAUSED = {"resume", "option", "rollback", "pause"}


class Broken(AssertionError):
    """An invariant does not hold; its name comes first."""


class Content:
    """What one version of the ledger says; `content_of` makes it once for each."""

    def __init__(self, version: TableVersion) -> None:
        rows = version.rows
        versions = rows.filter(tables.is_live(rows["state"]))
        counting = latest(versions)
        live = counting.to_pylist()
        growth = Growth.of(versions)
        self.counted = (growth.versions, growth.versions - growth.obsolete)
        self.versions = (versions.num_rows, counting.num_rows)
        final = rows.filter(pc.invert(tables.is_live(rows["state"]))).to_pylist()
        progress = [row for row in live if row["id"] == tables.PROGRESS]
        if len(progress) != 1:
            raise Broken(f"the books: {len(progress)} progress rows")
        self.progress = progress[0]
        self.open = [row for row in live if row["state"] == tables.OPEN]
        self.closed = [row for row in final if row["state"] == "closed"]
        self.rejected = [row for row in final if row["state"] == "rejected"]
        self.history = sorted((row for row in final if row["state"] == "microbatch"), key=lambda row: row["microbatch"])

    def payloads(self) -> Counter[str]:
        """Count each message by its payload, wherever it is."""
        batches = [message["payload"] for row in (*self.open, *self.closed) for message in row["messages"]]
        return Counter([*batches, *(row["payload"] for row in self.rejected)])


_CONTENT: dict[str, Content] = {}


def content_of(version: TableVersion) -> Content:
    """Return what a version of the ledger says; most schedules lead to versions that others led to before."""
    if version.digest not in _CONTENT:
        _CONTENT[version.digest] = Content(version)
    return _CONTENT[version.digest]


def each_message_once(now: Tables) -> None:
    """Each message that was read is in one batch or rejected, once; no other message is in the ledger."""
    content = content_of(now.ledger.versions[-1])
    sent = Counter(str(row["payload"]) for rows in LOG[: content.progress["depot_version"] + 1] for row in rows)
    if content.payloads() != sent:
        lost, more = sent - content.payloads(), content.payloads() - sent
        raise Broken(f"each message once: lost {dict(lost)}, too often {dict(more)}")


def nothing_closed_changes(now: Tables) -> None:
    """What was closed, rejected or recorded stays as it was, and its id never comes again."""
    before, after = (content_of(version) for version in now.ledger.versions[-2:])
    for name in ("closed", "rejected", "history"):
        old, new = ({row["id"]: row for row in getattr(content, name)} for content in (before, after))
        if len(new) != len(getattr(after, name)):
            raise Broken(f"nothing closed changes: an id comes twice among {name}")
        if any(new.get(id_) != row for id_, row in old.items()):
            raise Broken(f"nothing closed changes: {name} rows are other ones than before")
    if {row["id"] for row in after.open} & {row["id"] for row in after.closed}:
        raise Broken("nothing closed changes: a batch is open and closed")


def the_books(now: Tables) -> None:
    """The history counts what was read, its numbers follow each other, and its positions never go back."""
    content = content_of(now.ledger.versions[-1])
    history, progress = content.history, content.progress
    if [row["microbatch"] for row in history] != list(range(1, progress["microbatch"] + 1)):
        raise Broken(f"the books: microbatches {[row['microbatch'] for row in history]} of {progress['microbatch']}")
    read = sum(row["messages_read"] for row in history)
    if read != content.payloads().total():
        raise Broken(f"the books: {read} messages read, {content.payloads().total()} in the ledger")
    decided = {"accepted": read - len(content.rejected), "rejected": len(content.rejected)}
    if decided != {name: sum(row[name] for row in history) for name in decided}:
        raise Broken(f"the books: the history does not add up to {decided}")
    opened, closed = (sum(row[name] for row in history) for name in ("opened", "closed"))
    if (opened - closed, closed) != (len(content.open), len(content.closed)):
        raise Broken(f"the books: {opened} opened and {closed} closed, {len(content.open)} are open")
    positions = [row["depot_version"] for row in history if row["depot_version"] is not None]
    if positions != sorted(positions):
        raise Broken(f"the books: positions {positions}")


def versions_are_counted(now: Tables) -> None:
    """What the commits say they wrote is what is there, so that folds are due when they should be."""
    content = content_of(now.ledger.versions[-1])
    if content.counted != content.versions:
        raise Broken(f"versions are counted: {content.counted} of {content.versions} versions and live rows")


def a_pause_holds(now: Tables) -> None:
    """While the ledger is paused nothing is committed but what ends the pause or changes no batch."""
    before, after = (content_of(version) for version in now.ledger.versions[-2:])
    kinds = {row["kind"] for row in after.history[len(before.history) :]}
    if before.progress["paused"] and not kinds <= WHILE_PAUSED:
        raise Broken(f"a pause holds: {kinds} while the ledger was paused")
    if before.progress["paused"] and not after.progress["paused"] and "resume" not in kinds:
        raise Broken(f"a pause holds: {kinds} ended it")


def rules_change_alone(now: Tables) -> None:
    """Only a commit of its own puts other rules in force; all others are made under those that were in force."""
    before, after = (content_of(version) for version in now.ledger.versions[-2:])
    kinds = {row["kind"] for row in after.history[len(before.history) :]}
    if before.progress["rules"] != after.progress["rules"] and kinds != {"rules"}:
        raise Broken(f"rules change alone: {kinds} changed them")


AFTER_COMMITS = (
    each_message_once,
    nothing_closed_changes,
    the_books,
    versions_are_counted,
    a_pause_holds,
    rules_change_alone,
)


SINCE_THE_COMMIT_BEFORE = (nothing_closed_changes, a_pause_holds, rules_change_alone)  # which a RESTORE takes back


def check(now: Tables) -> None:
    """Check the invariants of the version of the ledger that was put last. Raises Broken."""
    for invariant in AFTER_COMMITS if len(now.ledger.versions) > 1 else ():
        if now.ledger.versions[-1].operation != "restore" or invariant not in SINCE_THE_COMMIT_BEFORE:
            invariant(now)


def outcome(ledger: MemoryTable) -> list[Row]:
    """Return the batches and rejected messages, without what depends on who committed when."""
    content = content_of(ledger.versions[-1])
    return canonical([*content.open, *content.closed], content.rejected)


def version_read(ledger: MemoryTable) -> int:
    """Return up to which version of the depot a ledger has read."""
    version: int = content_of(ledger.versions[-1]).progress["depot_version"]
    return version
