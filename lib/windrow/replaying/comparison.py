"""Compare two ledgers, the recorded one (`old`) and that of a replay (`new`).

1. Rows with equal digests are the same, and are not read.
2. Only the rows that differ are read from both ledgers.
3. They are paired: by id (`changed`), then batches with equal messages (`other window`). The rest only `appears` or
   `disappears`.
4. Messages are compared as multisets. Each has a *place*: the id of its batch, or the reason of its rejection. One that
   is in another place moved.

To pair rows, both sides are concatenated: the rows before `old_count` are the old ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.digests import BATCHES, Digests, Part
from windrow.reading.tables import Ledger
from windrow.reading.values import records
from windrow.replaying.report import Change, Comparison, Move, What

CONTENT = ("source", "key", "content")  # equal for two batches with the same messages
COMPARED = [name for name in dict.fromkeys((*canonical.BATCH, *canonical.REJECTED)) if name != "id"]


def compare(ledgers: tuple[Ledger, Ledger], found: tuple[Digests, Digests], part: Part, limit: int) -> Comparison:
    """Compare two ledgers with the given digests; list at most `limit` changes and moves."""
    old_differing, new_differing = found[0].differing(found[1]), found[1].differing(found[0])
    old_rows, old_messages = _rows(ledgers[0], part, old_differing)
    new_rows, new_messages = _rows(ledgers[1], part, new_differing)
    pairs = _pairs(old_rows, new_rows)
    moved, listed = moves(old_messages, _with_old_ids(new_messages, old_rows, new_rows, pairs), limit)
    counts = Counter(pairs["what"].to_pylist())
    return Comparison(
        same=found[0].rows.num_rows - old_differing.num_rows,
        counts={what: counts[what] for what in get_args(What)},
        moved=moved,
        first_microbatch=pc.min(old_differing["microbatch"]).as_py(),
        changes=tuple(_changes(old_rows, new_rows, pairs, limit)),
        moves=listed,
    )


def _rows(ledger: Ledger, part: Part, differing: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the batches and rejections that differ, and their messages.

    The rows have `microbatch` and `content` from their digests, and the `time` that orders them in a listing. The
    `place` of a message is the id of its batch, or the reason of its rejection.
    """
    columns = [*canonical.BATCH, "messages"]
    batches = _read_differing(ledger, BATCHES, columns, part.condition("closed_in"), differing)
    rejected = _read_differing(ledger, ("rejected",), canonical.REJECTED, part.condition("microbatch"), differing)
    inside, of = pc.list_flatten(batches["messages"]), pc.list_parent_indices(batches["messages"])
    held = {name: batches[name].take(of) for name in ("source", "key")}
    held |= {name: pc.struct_field(inside, name) for name in canonical.MESSAGE}
    messages = [
        pa.table({name: held[name] for name in COLUMNS} | {"place": batches["id"].take(of)}),
        pa.table({name: rejected[name] for name in COLUMNS} | {"place": rejected["reason"]}),
    ]
    rows = [
        batches.drop_columns(["messages"]).append_column("time", batches["window_start"]),
        rejected.append_column("time", rejected["event_time"]),
    ]
    return pa.concat_tables(rows, promote_options="default").combine_chunks(), pa.concat_tables(messages)


def _read_differing(
    ledger: Ledger, states: tuple[str, ...], columns: Sequence[str], where: str, differing: pa.Table
) -> pa.Table:
    """Read the rows that differ, piece by piece, and add `microbatch` and `content`."""
    ids, wanted = differing["id"].combine_chunks(), ", ".join(columns)
    pieces = [piece.filter(pc.is_in(piece["id"], ids)) for piece in ledger.pieces(states, wanted, where)]
    chosen = pa.Table.from_batches(pieces).combine_chunks()
    at = pc.index_in(chosen["id"], ids)
    for name in ("microbatch", "content"):
        chosen = chosen.append_column(name, differing[name].take(at))
    return chosen


def _pairs(old_rows: pa.Table, new_rows: pa.Table) -> pa.Table:
    """Pair rows with the same id, then batches with the same messages: `what` changed, and the row in each table.

    The row is NULL for a batch without a partner. A rejection in only one ledger is not listed as a change: its message
    is among those that moved.
    """
    rows = pa.concat_tables([old_rows, new_rows], promote_options="default").combine_chunks()
    old_count, index = old_rows.num_rows, np.arange(rows.num_rows)
    is_old = index < old_count
    partner = partners(codes(rows["id"].combine_chunks()), old_count)
    changed = partner >= 0
    batches = np.flatnonzero(~changed & pc.is_in(rows["state"], pa.array(BATCHES)).to_numpy())
    content = [canonical.netstrings(rows[name].take(pa.array(batches)).combine_chunks()) for name in CONTENT]
    other = partners(codes(canonical.joined(content)), int(np.searchsorted(batches, old_count)))
    partner[batches] = np.where(other >= 0, batches[other], -1)
    what = np.select([changed, partner >= 0, is_old], ["changed", "other window", "disappears"], "appears")
    # A pair is listed once, at its old row.
    listed = np.flatnonzero((is_old | (partner < 0)) & (changed | np.isin(index, batches)))
    old = np.where(is_old, index, partner)[listed]
    new = np.where(is_old, partner, index)[listed]
    return pa.table(
        {
            "what": what[listed],
            "old": pa.array(old, mask=old < 0),
            "new": pa.array(new - old_count, mask=new < 0),
        }
    )


def _with_old_ids(messages: pa.Table, old_rows: pa.Table, new_rows: pa.Table, pairs: pa.Table) -> pa.Table:
    """Return the new messages, in the place of the old batch where a batch only has another window."""
    windows = pairs.filter(pc.equal(pairs["what"], "other window"))
    old_ids, new_ids = old_rows["id"].take(windows["old"]), new_rows["id"].take(windows["new"])
    place = pc.coalesce(old_ids.take(pc.index_in(messages["place"], new_ids.combine_chunks())), messages["place"])
    return messages.set_column(messages.column_names.index("place"), "place", place)


def _changes(old_rows: pa.Table, new_rows: pa.Table, pairs: pa.Table, limit: int) -> Iterator[Change]:
    """Yield the first changes, ordered by time and id."""
    sides = old_rows.take(pairs["old"]), new_rows.take(pairs["new"])
    order = {name: pc.coalesce(*(side[name] for side in sides)) for name in ("time", "id")}
    chosen = pc.sort_indices(pa.table(order), [(name, "ascending") for name in order]).slice(0, limit)
    rows = (records(side.take(chosen)) for side in sides)
    for old, new, what in zip(*rows, pairs["what"].take(chosen).to_pylist(), strict=True):
        both = what in ("changed", "other window")
        yield Change(
            what=what,
            id=old["id"] or new["id"],
            becomes=new["id"] if what == "other window" else None,
            microbatch=old["microbatch"],
            messages=(old["message_count"] or 0, new["message_count"] or 0),
            columns={name: (old[name], new[name]) for name in COMPARED if both and old[name] != new[name]},
        )


def moves(old_messages: pa.Table, new_messages: pa.Table, limit: int) -> tuple[int, tuple[Move, ...]]:
    """Compare two tables of messages with their `place`; return how many messages moved, and the first moves by time.

    Messages that are equal in every column cannot be told apart, so they are paired in order. Moves between the same
    two places count as one.
    """
    messages, old_count = pa.concat_tables([old_messages, new_messages]).combine_chunks(), old_messages.num_rows
    message = codes(canonical.joined([canonical.netstrings(messages[name].combine_chunks()) for name in COLUMNS]))
    place = codes(messages["place"].combine_chunks())
    stayed = partners(message * (place.max(initial=0) + 1) + place, old_count) >= 0
    rest = np.flatnonzero(~stayed)
    partner = partners(message[rest], int(np.searchsorted(rest, old_count)))
    once = np.flatnonzero((rest < old_count) | (partner < 0))  # of two partners the old one
    row, other = rest[once], np.where(partner >= 0, rest[partner], -1)[once]
    is_old = row < old_count
    old, new = np.where(is_old, row, -1), np.where(is_old, other, row)
    moved = {name: messages["place"].take(pa.array(at, mask=at < 0)) for name, at in (("old", old), ("new", new))}
    moved |= {"row": pa.array(row), "time": messages["event_time"].take(pa.array(row))}
    ordered = pa.table(moved).sort_by([(name, "ascending") for name in ("time", "old", "new")])
    grouped = ordered.group_by(["old", "new"], use_threads=False).aggregate([("row", "first"), ("row", "count")])
    first = grouped.slice(0, limit)
    examples = records(messages.select(list(COLUMNS)).take(first["row_first"]))
    columns = (first[name].to_pylist() for name in ("old", "new", "row_count"))
    return row.size, tuple(map(Move, *columns, examples))


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
