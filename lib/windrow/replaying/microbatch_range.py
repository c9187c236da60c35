"""Find the microbatches to replay, and the ledger's table versions at both ends."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from windrow.errors import NotFoundError, TableUnreadableError
from windrow.model import timestamps as moments
from windrow.reading.tables import Ledger, open_ledger, versions_after
from windrow.settings.start_from import StartFrom
from windrow.source import Source

GONE = "`windrow status` shows how far back the ledger can be read. Without --from and --to, all of it is replayed."


@dataclass(frozen=True, slots=True)
class MicrobatchRange:
    """The microbatches after `after`, up to `through`: depot versions, messages, and the ledger at both ends.

    `start` is None if the replay starts at the beginning of the ledger.
    """

    after: int
    through: int
    first: int
    last: int
    message_count: int
    start: Ledger | None
    end: Ledger


def find_span(ledger: str, source: Source, start: str | None, end: str | None) -> MicrobatchRange:
    """Return the microbatches that read the depot versions from `start` to `end`, rounded to whole microbatches.

    Both are a version, or a time of the depot's commits. Raises SettingsError for anything else, NotFoundError if there
    is no such microbatch, or if the ledger at one of the ends can no longer be read.
    """
    book = open_ledger(ledger)
    rows = book.rows("microbatch", "microbatch, depot_version, messages_read, versions, token", rest=ORDER)
    number, version = rows["microbatch"], rows["depot_version"]
    earlier = rows.filter(pc.less(version, _version(start, source, first=True))) if start else rows.slice(0, 0)
    within = rows.filter(pc.less_equal(version, _version(end, source, first=False))) if end else rows
    chosen = within.slice(earlier.num_rows)
    if not pc.sum(chosen["messages_read"]).as_py():
        limits = " ".join(limit for limit in (start and f"from {start}", end and f"up to {end}") if limit)
        what = f"no microbatch of the ledger {ledger} read messages of the depot {limits}".rstrip()
        raise NotFoundError(what, "`windrow status` shows what was read; a replay takes whole microbatches.")
    read = [version["version"] for versions in chosen["versions"].to_pylist() for version in versions or ()]
    return MicrobatchRange(
        after=earlier.num_rows and earlier["microbatch"][-1].as_py(),
        through=chosen["microbatch"][-1].as_py(),
        first=min(read),
        last=chosen["depot_version"][-1].as_py(),
        message_count=pc.sum(chosen["messages_read"]).as_py(),
        start=_at(book, earlier) if earlier.num_rows else None,
        end=book if chosen["microbatch"][-1] == number[-1] else _at(book, within),
    )


ORDER = "ORDER BY microbatch"


def _version(text: str, source: Source, first: bool) -> int:
    """Return the depot version for a version or a time: the first version from then on, or the last one before."""
    if text.isdigit():
        return int(text)
    moment = moments.microseconds(text, "--from" if first else "--to")
    before = StartFrom("timestamp", moment).version_before(source.depot().version, moment, source.commits)
    return before + 1 if first else before


def _at(book: Ledger, rows: pa.Table) -> Ledger:
    """Return the ledger after the last of some microbatches. Raises NotFoundError."""
    number, token = (rows[name][-1].as_py() for name in ("microbatch", "token"))
    for version in versions_after(book, number):
        try:
            ledger = open_ledger(book.location, version)
            if ledger.rows("progress", "token", "id = 'progress'")["token"].to_pylist() == [token]:
                return ledger
        except (TableUnreadableError, NotFoundError) as error:
            raise NotFoundError(f"the ledger can no longer be read as it was at microbatch {number}", GONE) from error
    raise NotFoundError(f"the log of the ledger no longer has the commit of microbatch {number}", GONE)
