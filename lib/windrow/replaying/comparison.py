"""Compare two ledgers: digests first, then only the rows that differ, and their messages as multisets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import plain
from windrow.model import canonical
from windrow.model.floors import Ints
from windrow.model.messages import COLUMNS
from windrow.reading.delta import Ledger
from windrow.reading.digests import BATCHES, Digests, Part
from windrow.reading.values import records
from windrow.replaying.moves import Moves
from windrow.replaying.report import Change, Comparison, What

MESSAGE = tuple(COLUMNS)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of one ledger that the other does not have, and their messages.

    `rows` are batches and rejections, with `microbatch` and `content` from their digests and the `time` that orders
    them in a listing. The `place` of a message is the id of its batch, or the reason of its rejection.
    """

    rows: pa.Table
    messages: pa.Table


def compare(ledgers: tuple[Ledger, Ledger], found: tuple[Digests, Digests], part: Part, limit: int) -> Comparison:
    """Compare two ledgers with the given digests; list at most `limit` changes and moves."""
    before, after = (side.rows for side in found)
    left, right = _differing(before, after), _differing(after, before)
    sides = _rows(ledgers[0], part, left), _rows(ledgers[1], part, right)
    pairs = _pairs(sides[0].rows, sides[1].rows)
    moved = Moves.between(sides[0].messages, _as_before(sides, pairs))
    return Comparison(
        same=before.num_rows - left.num_rows,
        counts={what: int(np.sum(pairs.what == what)) for what in get_args(What)},
        moved=moved.messages,
        first_microbatch=pc.min(left["microbatch"]).as_py(),
        changes=tuple(_changes(sides[0].rows, sides[1].rows, pairs, limit)),
        moves=tuple(moved.first(limit)),
    )


def _differing(rows: pa.Table, others: pa.Table) -> pa.Table:
    """Return the rows that the others do not have with the same digest."""
    at = pc.index_in(rows["id"], others["id"].combine_chunks())
    same = pc.equal(others["digest"].take(at), rows["digest"])
    return rows.filter(pc.invert(pc.fill_null(same, False)))


def _rows(ledger: Ledger, part: Part, differing: pa.Table) -> Rows:
    """Return the rows that differ, and their messages."""
    columns = ", ".join([*canonical.BATCH, "messages"])
    batches = _read_differing(ledger, BATCHES, columns, part.condition("closed_in"), differing)
    rejections = _read_differing(
        ledger, ("rejected",), ", ".join(canonical.REJECTED), part.condition("microbatch"), differing
    )
    inside, of = pc.list_flatten(batches["messages"]), pc.list_parent_indices(batches["messages"])
    held = {name: batches[name].take(of) for name in ("source", "key")}
    held |= {name: pc.struct_field(inside, name) for name in canonical.MESSAGE}
    contents = [
        pa.table({name: held[name] for name in MESSAGE} | {"place": batches["id"].take(of)}),
        pa.table({name: rejections[name] for name in MESSAGE} | {"place": rejections["reason"]}),
    ]
    listed = [
        batches.drop_columns(["messages"]).append_column("time", batches["window_start"]),
        rejections.append_column("time", rejections["event_time"]),
    ]
    return Rows(pa.concat_tables(listed, promote_options="default").combine_chunks(), pa.concat_tables(contents))


def _read_differing(ledger: Ledger, states: tuple[str, ...], columns: str, where: str, differing: pa.Table) -> pa.Table:
    """Read the rows that differ, piece by piece, and add `microbatch` and `content`."""
    ids = differing["id"].combine_chunks()
    pieces = [plain(ledger.rows(states, columns, "false"))]
    for piece in ledger.pieces(states, columns, where):
        rows = plain(pa.table(piece))
        pieces.append(rows.filter(pc.is_in(rows["id"], ids)))
    chosen = pa.concat_tables(pieces).combine_chunks()
    at = pc.index_in(chosen["id"], ids)
    for name in ("microbatch", "content"):
        chosen = chosen.append_column(name, differing[name].take(at))
    return chosen


@dataclass(frozen=True, slots=True)
class Pairs:
    """Rows of two tables that belong together: the kind of change, and the row in each table, -1 for none."""

    what: npt.NDArray[np.str_]
    before: Ints
    after: Ints

    @classmethod
    def joined(cls, parts: Sequence[tuple[What, Ints, Ints]]) -> Pairs:
        """Combine pairs of several kinds."""
        what = np.concatenate([np.full(before.size, name) for name, before, _ in parts])
        return cls(what, *(np.concatenate([part[side] for part in parts]).astype(np.int64) for side in (1, 2)))


def _pairs(before: pa.Table, after: pa.Table) -> Pairs:
    """Pair rows with the same id, then batches with the same messages; other batches have no partner.

    A rejection in only one ledger is not listed as a change: its message is among those that moved.
    """
    same = _found(before["id"], after["id"])
    old = np.flatnonzero((same < 0) & _batches(before))
    new = np.setdiff1d(np.flatnonzero(_batches(after)), same)
    window = _found(_content(before).take(pa.array(old)), _content(after).take(pa.array(new)))
    renamed, gone = window >= 0, window < 0
    appearing = np.setdiff1d(np.arange(new.size), window)
    changed = np.flatnonzero(same >= 0)
    return Pairs.joined(
        [
            ("changed", changed, same[changed]),
            ("other window", old[renamed], new[window[renamed]]),
            ("disappears", old[gone], np.full(int(gone.sum()), -1)),
            ("appears", np.full(appearing.size, -1), new[appearing]),
        ]
    )


def _as_before(sides: tuple[Rows, Rows], pairs: Pairs) -> pa.Table:
    """Return the messages of the other ledger, with the old ids of batches that only have another window."""
    windows = pairs.what == "other window"
    old = sides[0].rows["id"].take(pa.array(pairs.before[windows]))
    new = sides[1].rows["id"].take(pa.array(pairs.after[windows]))
    messages = sides[1].messages
    place = pc.coalesce(old.take(pc.index_in(messages["place"], new.combine_chunks())), messages["place"])
    return messages.set_column(messages.column_names.index("place"), "place", place)


def _found(values: pa.ChunkedArray, among: pa.ChunkedArray) -> Ints:
    """Return the position of each value among others, -1 if it is not there."""
    at = pc.index_in(values, among.combine_chunks() if isinstance(among, pa.ChunkedArray) else among)
    return pc.fill_null(at, -1).cast(pa.int64()).to_numpy(zero_copy_only=False)


def _batches(rows: pa.Table) -> npt.NDArray[np.bool_]:
    return pc.is_in(rows["state"], pa.array(BATCHES)).to_numpy()


def _content(rows: pa.Table) -> pa.Array:
    """Return a key that is equal for two batches with the same messages."""
    parts = [canonical.netstrings(rows[name].combine_chunks()) for name in ("source", "key", "content")]
    return canonical.joined(parts)


def _changes(before: pa.Table, after: pa.Table, pairs: Pairs, limit: int) -> Iterator[Change]:
    """Yield the first changes, ordered by time and id."""
    sides = []
    for rows, at in ((before, pairs.before), (after, pairs.after)):
        here = pa.array(at, mask=at < 0)
        sides.append(rows.take(here))
    time, id_ = (pc.coalesce(sides[0][name], sides[1][name]) for name in ("time", "id"))
    order = pc.sort_indices(pa.table({"time": time, "id": id_}), [("time", "ascending"), ("id", "ascending")])
    chosen = order.slice(0, limit)
    listed = zip(*(records(side.take(chosen)) for side in sides), pairs.what[chosen.to_numpy()].tolist(), strict=True)
    for old, new, what in listed:
        yield _change(what, old, new)


def _change(what: What, old: dict[str, Any], new: dict[str, Any]) -> Change:
    compared = [name for name in dict.fromkeys((*canonical.BATCH, *canonical.REJECTED)) if name != "id"]
    both = what in ("changed", "other window")
    return Change(
        what=what,
        id=old["id"] or new["id"],
        becomes=new["id"] if what == "other window" else None,
        microbatch=old["microbatch"],
        messages=(old["message_count"] or 0, new["message_count"] or 0),
        columns={name: (old[name], new[name]) for name in compared if both and old[name] != new[name]},
    )
