"""Compare two ledgers, the recorded one (`old`) and that of a replay (`new`).

1. Rows with equal digests are the same (`DigestTables`).
2. The rows that differ are read from both ledgers, and put on disk by their streams, so that memory does not grow with
   the ledgers. The next steps take as many streams at a time as fit.
3. Rows are paired: by id (`changed`), then batches with equal messages (`moved`). The others are `added` or
   `removed`.
4. Messages are compared as multisets. Each has a *place*: the id of its batch, or the reason of its rejection. A
   message in another place moved.

To pair rows, both sides are concatenated: the rows before `old_count` are the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import TypeAlias, TypeVar, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.delta.database import database
from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.digests import BATCHES, Digests, LedgerSelection, batch_digests, rejection_digests
from windrow.reading.tables import Ledger
from windrow.reading.values import records
from windrow.replaying.digest_tables import SIDES, DigestTables
from windrow.replaying.report import ChangeKind, Comparison, LedgerDigest, Move, ReplayChange
from windrow.verify.parts import Part as Buckets
from windrow.verify.parts import PartedRows, divide

COPIES = 4  # times the memory of a part of `verify`, because here rows are compared in memory
KINDS = ("batches", "rejections")
SEPARATOR = "/"  # in the id of a batch: a place without it is the reason of a rejection
CONTENT = ("source", "key", "content")  # equal for two batches with the same messages
T = TypeVar("T")
SortKey: TypeAlias = tuple[tuple[bool, int | str], ...]
Listed: TypeAlias = tuple[SortKey, T]  # a difference in a part, with its place in a listing of all parts
COMPARED = [name for name in dict.fromkeys((*canonical.BATCH, *canonical.REJECTED)) if name != "id"]


def compare(
    ledgers: tuple[Ledger, Ledger],
    microbatches: tuple[int, int],
    part: LedgerSelection,
    limit: int,
    max_memory_bytes: int,
) -> tuple[tuple[LedgerDigest, LedgerDigest], Comparison | None]:
    """Summarise a part of two ledgers, made by so many `microbatches`; compare them if their digests differ.

    The comparison lists at most `limit` changes and moves. Raises TableUnwritableError for a full disk.
    """
    with database(max_memory_bytes) as connection:
        digests = DigestTables(connection)
        for side, ledger in zip(SIDES, ledgers, strict=True):
            digests.load(side, ledger, part)
        old, new = (
            LedgerDigest(digests.total(side), number, *digests.counts(side))
            for side, number in zip(SIDES, microbatches, strict=True)
        )
        equal = old.digest == new.digest
        return (old, new), None if equal else _compare_rows(ledgers, digests, part, limit, max_memory_bytes)


def _compare_rows(
    ledgers: tuple[Ledger, Ledger], digests: DigestTables, part: LedgerSelection, limit: int, max_memory_bytes: int
) -> Comparison:
    same, first_microbatch = digests.find_differing()
    counts, moved = Counter[str](), 0
    changes, moves = list[Listed[ReplayChange]](), list[Listed[Move]]()
    with PartedRows(max_memory_bytes) as rows:
        _store(rows, ledgers, digests, part)
        for buckets in divide([rows.byte_count], max_memory_bytes // COPIES):
            (old_batches, old_rejected, old), (new_batches, new_rejected, new) = _read(rows, buckets)
            old_rows, old_messages = _differing(old_batches, old_rejected, old.differing(new))
            new_rows, new_messages = _differing(new_batches, new_rejected, new.differing(old))
            pairs = _pairs(old_rows, new_rows)
            new_messages = _with_old_ids(new_messages, old_rows, new_rows, pairs)
            counts.update(pairs["kind"].to_pylist())
            changes += _changes(old_rows, new_rows, pairs, limit)
            number, of_part = _moves(old_messages, new_messages, limit)
            moved += number
            moves += of_part
    return Comparison(
        unchanged=same,
        counts={kind: counts[kind] for kind in get_args(ChangeKind)},
        moved_message_count=moved,
        first_microbatch=first_microbatch,
        changes=_first_in_order(changes, limit),
        moves=_first_in_order(_add_up_moves(moves), limit),
    )


def _store(rows: PartedRows, ledgers: tuple[Ledger, Ledger], digests: DigestTables, part: LedgerSelection) -> None:
    """Put the rows that differ, and a few others, on disk by stream."""
    marked = digests.differing_marks()
    for side, ledger in zip(SIDES, ledgers, strict=True):
        for kind, pieces in zip(KINDS, (part.batches(ledger), part.rejections(ledger)), strict=True):
            for piece in pieces:
                rows.add(f"{side} {kind}", piece.filter(pa.array(marked[digests.marks(piece)])))
    rows.close_blocks()


def _read(rows: PartedRows, buckets: Buckets) -> Iterator[tuple[pa.Table, pa.Table, Digests]]:
    """Yield the batches and rejections of some streams on each side, and their digests."""
    for side in SIDES:
        batches, rejected = (rows.read(f"{side} {kind}", buckets).read_all() for kind in KINDS)
        yield batches, rejected, Digests.of(pa.concat_tables([batch_digests(batches), rejection_digests(rejected)]))


def _differing(batches: pa.Table, rejected: pa.Table, differing: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the batches and rejections that differ, and their messages.

    The rows have `content` from their digests, and the `time` that orders them in a listing. The `place` of a message
    is the id of its batch, or the reason of its rejection.
    """
    batches, rejected = (_with_content(rows, differing) for rows in (batches, rejected))
    inside = messages_of(batches)
    messages = [
        inside.select(list(COLUMNS)).append_column("place", batches["id"].take(inside["row"])),
        rejected.select(list(COLUMNS)).append_column("place", rejected["reason"]),
    ]
    rows = [
        batches.drop_columns(["messages"]).append_column("time", batches["window_start"]),
        rejected.append_column("time", rejected["event_time"]),
    ]
    return pa.concat_tables(rows, promote_options="default").combine_chunks(), pa.concat_tables(messages)


def _with_content(rows: pa.Table, differing: pa.Table) -> pa.Table:
    """Return the rows that differ, with the `content` of their digests."""
    at = pc.index_in(rows["id"], differing["id"].combine_chunks())
    chosen = rows.append_column("content", differing["content"].take(at))
    return chosen.filter(at.is_valid()).combine_chunks()


def _pairs(old_rows: pa.Table, new_rows: pa.Table) -> pa.Table:
    """Pair rows with the same id, then batches with the same messages: the `kind` of change, and the row in each table.

    The row is NULL for a batch without a partner. A rejection in only one ledger is not listed as a change: its message
    is among those that moved.
    """
    rows = pa.concat_tables([old_rows, new_rows], promote_options="default").combine_chunks()
    old_count, index = old_rows.num_rows, np.arange(rows.num_rows)
    is_old = index < old_count
    partner = partners(codes(rows["id"].combine_chunks()), old_count)
    changed = partner >= 0
    batches = np.flatnonzero(~changed & pc.is_in(rows["state"], pa.array(BATCHES)).to_numpy())
    content = [rows[name].take(pa.array(batches)).combine_chunks() for name in CONTENT]
    other = partners(codes(canonical.fields(content)), int(np.searchsorted(batches, old_count)))
    partner[batches] = np.where(other >= 0, batches[other], -1)
    kinds = np.select([changed, partner >= 0, is_old], ["changed", "moved", "removed"], "added")
    # A pair is listed once, at its old row.
    listed = np.flatnonzero((is_old | (partner < 0)) & (changed | np.isin(index, batches)))
    old = np.where(is_old, index, partner)[listed]
    new = np.where(is_old, partner, index)[listed]
    return pa.table(
        {
            "kind": kinds[listed],
            "old": pa.array(old, mask=old < 0),
            "new": pa.array(new - old_count, mask=new < 0),
        }
    )


def _with_old_ids(messages: pa.Table, old_rows: pa.Table, new_rows: pa.Table, pairs: pa.Table) -> pa.Table:
    """Return the new messages, in the place of the old batch if a batch only has another window."""
    windows = pairs.filter(pc.equal(pairs["kind"], "moved"))
    old_ids, new_ids = old_rows["id"].take(windows["old"]), new_rows["id"].take(windows["new"])
    place = pc.coalesce(old_ids.take(pc.index_in(messages["place"], new_ids.combine_chunks())), messages["place"])
    return messages.set_column(messages.column_names.index("place"), "place", place)


def _changes(old_rows: pa.Table, new_rows: pa.Table, pairs: pa.Table, limit: int) -> Iterator[Listed[ReplayChange]]:
    """Yield the first changes by time and id."""
    sides = old_rows.take(pairs["old"]), new_rows.take(pairs["new"])
    order = {name: pc.coalesce(*(side[name] for side in sides)) for name in ("time", "id")}
    chosen = pc.sort_indices(pa.table(order), [(name, "ascending") for name in order]).slice(0, limit)
    columns = (*(records(side.take(chosen)) for side in sides), pairs["kind"].take(chosen).to_pylist())
    times = order["time"].take(chosen).cast(pa.int64()).to_pylist()
    for time, old, new, kind in zip(times, *columns, strict=True):
        both = kind in ("changed", "moved")
        change = ReplayChange(
            kind=kind,
            id=old["id"] or new["id"],
            new_id=new["id"] if kind == "moved" else None,
            microbatch=old["microbatch"],
            message_counts=(old["message_count"] or 0, new["message_count"] or 0),
            columns={name: (old[name], new[name]) for name in COMPARED if both and old[name] != new[name]},
        )
        yield _sort_key(time, change.id), change


def _moves(old_messages: pa.Table, new_messages: pa.Table, limit: int) -> tuple[int, list[Listed[Move]]]:
    """Compare two tables of messages with their `place`; return how many messages moved, and the first moves by time.

    Messages that are equal in every column cannot be told apart, so they are paired in order. Moves between the same
    two places count as one. Moves between reasons are returned even beyond the `limit`.
    """
    messages, old_count = pa.concat_tables([old_messages, new_messages]).combine_chunks(), old_messages.num_rows
    message = codes(canonical.fields([messages[name].combine_chunks() for name in COLUMNS]))
    place = codes(messages["place"].combine_chunks())
    stayed = partners(message * (place.max(initial=0) + 1) + place, old_count) >= 0
    rest = np.flatnonzero(~stayed)
    partner = partners(message[rest], int(np.searchsorted(rest, old_count)))
    once = np.flatnonzero((rest < old_count) | (partner < 0))  # the old one of two partners
    row, other = rest[once], np.where(partner >= 0, rest[partner], -1)[once]
    is_old = row < old_count
    old, new = np.where(is_old, row, -1), np.where(is_old, other, row)
    moved = {name: messages["place"].take(pa.array(at, mask=at < 0)) for name, at in (("old", old), ("new", new))}
    moved |= {"row": pa.array(row), "time": messages["event_time"].take(pa.array(row))}
    order = [(name, "ascending") for name in ("time", "old", "new")]
    sums = [("time", "first"), ("row", "first"), ("row", "count")]
    grouped = pa.table(moved).sort_by(order).group_by(["old", "new"], use_threads=False).aggregate(sums)
    grouped = grouped.rename_columns({"time_first": "time"}).sort_by(order)
    batches = [pc.match_substring(grouped[name], SEPARATOR) for name in ("old", "new")]
    between_reasons = pc.invert(pc.or_(*(pc.fill_null(batch, False) for batch in batches)))
    chosen = grouped.filter(pc.or_(between_reasons, pa.array(np.arange(grouped.num_rows) < limit)))
    examples = records(messages.select(list(COLUMNS)).take(chosen["row_first"]))
    moves = map(Move, *(chosen[name].to_pylist() for name in ("old", "new", "row_count")), examples)
    times = chosen["time"].cast(pa.int64()).to_pylist()
    return row.size, [(_sort_key(time, move.before, move.after), move) for time, move in zip(times, moves, strict=True)]


def _sort_key(*values: int | str | None) -> SortKey:
    """Return the place in a listing ordered by these values; None is last."""
    return tuple((value is None, "" if value is None else value) for value in values)


def _first_in_order(listed: Iterable[Listed[T]], limit: int) -> tuple[T, ...]:
    return tuple(entry for _, entry in sorted(listed, key=itemgetter(0))[:limit])


def _add_up_moves(moves: Iterable[Listed[Move]]) -> list[Listed[Move]]:
    """Add up moves between the same two places; if both are reasons, these are in several parts."""
    totals: dict[tuple[str | None, str | None], Listed[Move]] = {}
    for at, move in sorted(moves, key=itemgetter(0)):
        earliest, known = totals.get((move.before, move.after), (at, replace(move, message_count=0)))
        total = replace(known, message_count=known.message_count + move.message_count)
        totals[move.before, move.after] = earliest, total
    return list(totals.values())


def messages_of(batches: pa.Table) -> pa.Table:
    """Return the messages of batches in the columns of a depot, with the `row` of their batch."""
    inside, of = pc.list_flatten(batches["messages"]), pc.list_parent_indices(batches["messages"])
    columns = {name: batches[name].take(of) for name in ("source", "key")}
    columns |= {name: pc.struct_field(inside, name) for name in canonical.MESSAGE}
    return pa.table({**{name: columns[name] for name in COLUMNS}, "row": of.cast(pa.int64())}).combine_chunks()


def codes(values: pa.Array) -> Ints:
    """Number distinct values; equal ones have the same number."""
    return values.dictionary_encode().indices.to_numpy().astype(np.int64)


def partners(code: Ints, old_count: int) -> Ints:
    """Pair rows with equal codes, one old and one new, the first with the first; return each row's partner or -1.

    `partners([7, 7, 9, 7, 9, 9], old_count=3)` is `[3, -1, 4, 0, 2, -1]`: the second old 7 and the last 9 have none.
    """
    side = code * 2 + (np.arange(code.size) >= old_count)
    by_side = np.argsort(side, kind="stable")
    rank = np.arange(code.size) - np.searchsorted(side[by_side], side[by_side])  # among the rows of its code and side
    by_rank = np.lexsort((side[by_side], rank, code[by_side]))  # partners are neighbours, the old one first
    order, rank = by_side[by_rank], rank[by_rank]
    at = np.flatnonzero((np.diff(code[order]) == 0) & (np.diff(rank) == 0))
    partner = np.full(code.size, -1)
    partner[order[at]], partner[order[at + 1]] = order[at + 1], order[at]
    return partner
