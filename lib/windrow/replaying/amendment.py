"""Amend a ledger: say, in rows of one commit, what its closed batches would be under other rules.

A closed batch never changes. An amendment adds to the ledger, beside the closed batches, *amended* batches, and
*superseded* rows: each names a batch that amended ones replace, or a rejected message that is now in one. So readers
of closed batches do not see the amendment, and readers of current batches (closed and amended ones that nothing
supersedes) get late data without a silent change.

The result of the other rules is in a *branch*: another ledger over the same depot, such as a replay makes. It may let
messages in (`late_messages`), but not take one out of a closed batch: that is refused. Its `max_delay` may not be
shorter, so that whatever the ledger reads later belongs after the amended batches.

The branch is compared with the ledger as it was when it had read as much of the depot. Since then the ledger may have
read on, but must not have been amended or restored: the commit is fenced, and checks this in the version that was
primed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.columnar.arrow import string_array
from windrow.errors import DepotChangedError, SettingsError, TableMissingError, UsageError, WindrowError
from windrow.ledger.result import MicrobatchCounts, MicrobatchResult
from windrow.model import canonical, tables
from windrow.model.messages import COLUMNS
from windrow.model.printable import pluralize
from windrow.reading.digests import Streams
from windrow.reading.tables import Ledger, open_ledger, recorded_rules
from windrow.replaying.comparison import messages_of
from windrow.replaying.late_messages import batches_in, cut, late_messages, pair_messages
from windrow.replaying.legs import find_span
from windrow.replaying.report import Amendment
from windrow.runtime.ledger_state import LedgerState
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.runtime.wall_clock import WallClock
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HOW_TO_BRANCH = "Make one: `windrow replay --rules FILE --into PATH`."
AT = ("source", "key", "window_start", "window_end", "part")  # columns of a superseded batch


@dataclass(frozen=True, slots=True)
class _Difference:
    """What an amendment changes: the batches that go and come, rejections that go, and the amended id of each."""

    gone: pa.Table
    fresh: pa.Table
    rejected: pa.Table
    gone_to: list[str]
    rejected_to: list[str]


class _CommittedError(UsageError):
    """The amendment is already in the ledger: its reply was lost, or somebody made the same one."""

    def __init__(self, microbatch: int) -> None:
        super().__init__("the ledger already has this amendment", "")
        self.microbatch = microbatch


def amend(
    settings: Settings, branch: str, streams: Streams | None = None, spark: SparkSession | None = None
) -> Amendment:
    """Amend a ledger by the differences of a branch, the path of another ledger over the same depot.

    Args:
        settings: The settings that name depot and ledger.
        branch: The path of the branch, such as one that `replay` kept.
        streams: The keys and sources that are amended (`ReplayRange.streams`); None for all.
        spark: A session to commit with.

    Returns:
        What was committed.

    Raises:
        SettingsError: The branch's rules would take messages out, or are less patient; or it is not a branch.
        TableMissingError: There is no such branch or ledger.
        NotFoundError: The ledger cannot be read as it was when it had read as much as the branch.
        UsageError: Somebody amended or restored the ledger meanwhile.

    Example:
        >>> settings = windrow.Settings(depot="data/depot", ledger="data/ledger")
        >>> amend(settings, "data/patient").let_in
        34
    """
    try:
        other = open_ledger(branch)
    except TableMissingError as error:
        raise TableMissingError(f"there is no branch at {branch}", HOW_TO_BRANCH) from error
    source, progress = tables_of(settings, spark)[0], other.progress()
    book = find_span(settings.ledger, source, None, str(progress.depot_version)).end
    _require_branch(book, other)
    late = late_messages(book, other, streams or {})
    old = batches_in(book, late.ranges, settings.max_memory_bytes)
    new = cut(batches_in(other, late.ranges, settings.max_memory_bytes), late.ranges, progress.max_delay_us)
    difference = _pair_batches(old, new, late.rejected)
    sizes = difference.gone.num_rows, difference.fresh.num_rows, difference.rejected.num_rows
    rules = recorded_rules(progress.rules)
    if not any(sizes):
        return Amendment(None, *sizes, rules)
    with open_runner(*tables_of(settings, spark), WallClock()) as runner:
        try:
            summary = runner.commit_change("amend", partial(_change, book, difference, progress.rules))
            number = summary.microbatches[-1].microbatch
        except _CommittedError as committed:
            number = committed.microbatch
    return Amendment(number, *sizes, rules)


def _require_branch(book: Ledger, branch: Ledger) -> None:
    """Raise SettingsError unless a branch read the same messages as a ledger, and waits at least as long."""
    known, other = book.progress(), branch.progress()
    read = [ledger.rows("microbatch", "sum(messages_read)::BIGINT AS messages") for ledger in (book, branch)]
    # guard: branch-of-the-same-depot
    if (known.depot_id, known.depot_version, read[0]) != (other.depot_id, other.depot_version, read[1]):
        raise SettingsError(f"{branch.location} is not a branch of the ledger: it read other messages", HOW_TO_BRANCH)
    # guard: amended-as-patiently
    if other.max_delay_us < known.max_delay_us:
        raise SettingsError(
            "an amendment needs a max_delay at least as long as that in force",
            "With a shorter one, messages that the ledger still accepts would belong in amended batches.",
        )


def _pair_batches(old: pa.Table, new: pa.Table, late: pa.Table) -> _Difference:
    """Find the amended batch of each message that is let in, and of the first message of each batch that goes.

    Raises DepotChangedError unless the batches that come have exactly the messages let in and of the batches that go.
    """
    before, after = messages_of(old), messages_of(new)
    among = pa.concat_tables([before.select(list(COLUMNS)), late.select(list(COLUMNS))]).combine_chunks()
    pairs = pair_messages(among, after)
    # guard: amendment-adds-up
    if (pairs < 0).any():
        raise DepotChangedError(
            f"ledger and branch do not agree on {pluralize(int((pairs < 0).sum()), 'message')}",
            "Run `windrow verify` on both; make the branch from the ledger as it is now.",
        )
    ids = np.array(new["id"].to_pylist(), dtype=object)
    places = ids[after["row"].to_numpy()[pairs[: among.num_rows] - among.num_rows]]
    _, first = np.unique(before["row"].to_numpy(), return_index=True)
    return _Difference(old, new, late, list(places[first]), list(places[before.num_rows :]))


def _change(
    book: Ledger, difference: _Difference, rules: str, primed: LedgerState
) -> tuple[MicrobatchResult, Mapping[str, Any]]:
    """Return the rows of the amendment as the next microbatch. Raises UsageError."""
    _require_same(book, difference, primed.fence.table_version)
    rows = pa.concat_tables(_rows(primed.progress.schema, difference, primed.microbatch + 1))
    known = rows.append_column("known", pa.repeat(False, rows.num_rows))
    return MicrobatchResult(known, MicrobatchCounts.of(known), history={"amendment": rules}), {}


def _require_same(book: Ledger, difference: _Difference, version: int) -> None:
    """Raise UsageError if a ledger was amended or restored since the comparison, _CommittedError if by this."""
    number = book.progress().microbatch
    columns, since = "microbatch, kind, token", f"microbatch >= {number:d}"
    try:
        now = open_ledger(book.location, version)
        rows = now.rows("microbatch", columns, since).to_pylist()
    except WindrowError as error:
        raise UsageError(f"the ledger cannot be read again: {error.message}", "Amend it again.") from error
    [token] = book.rows("microbatch", "token", f"microbatch = {number:d}")["token"].to_pylist()
    same = any((row["microbatch"], row["token"]) == (number, token) for row in rows)
    later = now.rows("superseded", "superseded_id, microbatch", f"microbatch > {number:d}")
    ids = {*difference.gone["id"].to_pylist(), *difference.rejected["id"].to_pylist()}
    # guard: lost-reply-of-an-amendment
    if same and {*later["superseded_id"].to_pylist()} == ids:
        raise _CommittedError(later["microbatch"][0].as_py())
    # guard: amended-once
    if not same or any(row["kind"] == "amend" and row["microbatch"] > number for row in rows):
        raise UsageError("the ledger was amended or restored meanwhile", "Amend it again.")


def _rows(schema: pa.Schema, difference: _Difference, number: int) -> Iterator[pa.Table]:
    """Yield the amended batches, and the superseded rows: of batches, with their windows, and of rejections."""

    def prefixed(kind: str, ids: Iterable[str]) -> pa.Array:
        return string_array([f"{kind}/{number}/{id_}" for id_ in ids])

    fresh = difference.fresh
    columns: dict[str, Any] = {name: fresh[name] for name in (*canonical.BATCH, "messages")}
    columns |= {"id": prefixed("amended", fresh["id"].to_pylist()), "state": "amended"}
    columns |= {"opened_microbatch": number, "closed_microbatch": number}
    yield tables.rows(schema, columns, fresh.num_rows).cast(schema)
    parts: Iterable[tuple[pa.Table, list[str], tuple[str, ...], Any]] = (
        (difference.gone, difference.gone_to, AT, "amended"),
        (difference.rejected, difference.rejected_to, ("source", "key", "type", "event_time"), None),
    )
    for rows, to, names, reason in parts:
        ids = rows["id"].to_pylist()
        columns = {name: rows[name] for name in names}
        columns |= {
            "id": prefixed("superseded", ids),
            "state": "superseded",
            "reason": reason or rows["reason"],
            "superseded_id": string_array(ids),
            "superseded_by": prefixed("amended", to),
            "microbatch": number,
        }
        yield tables.rows(schema, columns, rows.num_rows).cast(schema)
