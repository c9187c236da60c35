"""Compare two ledgers: digests first, then only the rows that differ, and their messages as multisets."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.digests import BATCHES, Digests, Part
from windrow.reading.tables import Ledger
from windrow.reading.values import records
from windrow.replaying.report import Change, Comparison, Move, What

COMPARED = [name for name in dict.fromkeys((*canonical.BATCH, *canonical.REJECTED)) if name != "id"]


def compare(ledgers: tuple[Ledger, Ledger], found: tuple[Digests, Digests], part: Part, limit: int) -> Comparison:
    """Compare two ledgers with the given digests; list at most `limit` changes and moves."""
    before, after = (side.rows for side in found)
    left, right = _differing(before, after), _differing(after, before)
    (old, was), (new, now) = _rows(ledgers[0], part, left), _rows(ledgers[1], part, right)
    pairs = _pairs(old, new)
    moved, listed = moves(was, _as_before(now, old, new, pairs), limit)
    counts = Counter(pairs["what"].to_pylist())
    return Comparison(
        same=before.num_rows - left.num_rows,
        counts={what: counts[what] for what in get_args(What)},
        moved=moved,
        first_microbatch=pc.min(left["microbatch"]).as_py(),
        changes=tuple(_changes(old, new, pairs, limit)),
        moves=listed,
    )


def _differing(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows that the others do not have with the same digest."""
    at = pc.index_in(rows["id"], others["id"].combine_chunks())
    same = pc.equal(others["digest"].take(at), rows["digest"])
    return rows.filter(pc.invert(pc.fill_null(same, False)))


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
    pieces = [plain(ledger.rows(states, wanted, "false"))]
    for piece in ledger.pieces(states, wanted, where):
        rows = plain(pa.table(piece))
        pieces.append(rows.filter(pc.is_in(rows["id"], ids)))
    chosen = pa.concat_tables(pieces).combine_chunks()
    at = pc.index_in(chosen["id"], ids)
    for name in ("microbatch", "content"):
        chosen = chosen.append_column(name, differing[name].take(at))
    return chosen


def _pairs(before: pa.Table, after: pa.Table) -> pa.Table:
    """Pair rows with the same id, then batches with the same messages: `what` changed, and the row in each table.

    The row is NULL for a batch without a partner. A rejection in only one ledger is not listed as a change: its message
    is among those that moved.
    """
    rows = pa.concat_tables([before, after], promote_options="default").combine_chunks()
    split, every = before.num_rows, np.arange(rows.num_rows)
    partner = partners(codes(rows["id"].combine_chunks()), split)
    changed = partner >= 0
    alone = np.flatnonzero(~changed & pc.is_in(rows["state"], pa.array(BATCHES)).to_numpy())
    content = [canonical.netstrings(rows[name].take(pa.array(alone)).combine_chunks()) for name in CONTENT]
    other = partners(codes(canonical.joined(content)), int(np.searchsorted(alone, split)))
    partner[alone] = np.where(other >= 0, alone[other], -1)
    what = np.select([changed, partner >= 0, every < split], ["changed", "other window", "disappears"], "appears")
    listed = np.flatnonzero(((every < split) | (partner < 0)) & (changed | np.isin(every, alone)))
    old, new = (np.where(of, every, partner)[listed] for of in (every < split, every >= split))
    return pa.table(
        {
            "what": what[listed],
            "before": pa.array(old, mask=old < 0),
            "after": pa.array(new - split, mask=new < 0),
        }
    )


CONTENT = ("source", "key", "content")  # equal for two batches with the same messages


def _as_before(messages: pa.Table, before: pa.Table, after: pa.Table, pairs: pa.Table) -> pa.Table:
    """Return the messages of the other ledger, with the old ids of batches that only have another window."""
    windows = pairs.filter(pc.equal(pairs["what"], "other window"))
    old, new = before["id"].take(windows["before"]), after["id"].take(windows["after"])
    place = pc.coalesce(old.take(pc.index_in(messages["place"], new.combine_chunks())), messages["place"])
    return messages.set_column(messages.column_names.index("place"), "place", place)


def _changes(before: pa.Table, after: pa.Table, pairs: pa.Table, limit: int) -> Iterator[Change]:
    """Yield the first changes, ordered by time and id."""
    sides = before.take(pairs["before"]), after.take(pairs["after"])
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


def moves(before: pa.Table, after: pa.Table, limit: int) -> tuple[int, tuple[Move, ...]]:
    """Compare two tables of messages with their `place`; return how many messages moved, and the first moves by time.

    Messages that are equal in every column cannot be told apart, so they are paired in order. Moves between the same
    two places count as one.
    """
    both, split = pa.concat_tables([before, after]).combine_chunks(), before.num_rows
    message = codes(canonical.joined([canonical.netstrings(both[name].combine_chunks()) for name in COLUMNS]))
    place = codes(both["place"].combine_chunks())
    left = np.flatnonzero(partners(message * (place.max(initial=0) + 1) + place, split) < 0)
    partner = partners(message[left], int(np.searchsorted(left, split)))
    once = np.flatnonzero((left < split) | (partner < 0))  # of two partners the one in `before`
    row, other = left[once], np.where(partner >= 0, left[partner], -1)[once]
    old, new = np.where(row < split, row, -1), np.where(row < split, other, row)
    moved = {name: both["place"].take(pa.array(at, mask=at < 0)) for name, at in (("before", old), ("after", new))}
    moved |= {"row": pa.array(row), "time": both["event_time"].take(pa.array(row))}
    ordered = pa.table(moved).sort_by([(name, "ascending") for name in ("time", "before", "after")])
    grouped = ordered.group_by(["before", "after"], use_threads=False).aggregate([("row", "first"), ("row", "count")])
    first = grouped.slice(0, limit)
    examples = records(both.select(list(COLUMNS)).take(first["row_first"]))
    columns = (first[name].to_pylist() for name in ("before", "after", "row_count"))
    return row.size, tuple(map(Move, *columns, examples))


def codes(values: pa.Array) -> Ints:
    """Number distinct values; equal ones have the same number."""
    return values.dictionary_encode().indices.to_numpy().astype(np.int64)


def partners(code: Ints, split: int) -> Ints:
    """Pair the rows before `split` with those from there on that have the same code, the first with the first.

    Returns the partner of each row, -1 for none.
    """
    key = 2 * code + (np.arange(code.size) >= split)
    order = np.argsort(key, kind="stable")
    rank = np.arange(code.size) - np.searchsorted(key[order], key[order])  # of a row among those of its side
    again = np.lexsort((key[order], rank, code[order]))  # partners are now neighbours
    order, rank = order[again], rank[again]
    at = np.flatnonzero((np.diff(code[order]) == 0) & (np.diff(rank) == 0))
    partner = np.full(code.size, -1)
    partner[order[at]], partner[order[at + 1]] = order[at + 1], order[at]
    return partner
