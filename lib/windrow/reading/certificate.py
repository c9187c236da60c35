"""Certify what became of a message, so that a short program checks it without the tables and without Windrow.

The *root* of a ledger is a hash over everything final in it: each closed window with the digests of its batches, each
rejection, each row of an amendment, each microbatch of the history with the rules in force, and over the depot's id,
the last microbatch's number and the last link of the history's chain. Anybody who has the ledger can recompute the
root; whoever noted it need trust nobody. A *certificate* contains one message, its batch or rejection as stored in the
ledger, the row of the microbatch that decided, and for each the hashes that lead to the root (`hash_tree`). In the
tree, windows cover event times, which shows that no other batch can contain the message.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import (
    combine_chunks,
    from_numpy,
    one_batch,
    string_scalar,
    times_to_numbers,
    to_plain_types,
)
from windrow.errors import NotFoundError, SettingsError
from windrow.model import canonical, tables
from windrow.model.chain import CHAIN, LINKED, row_digests
from windrow.model.hash_tree import NODE, HashTree
from windrow.reading.digests import BATCH_SQL, REJECTED_SQL, batch_digests, rejection_digests
from windrow.reading.tables import Ledger, quote_text, time_literal
from windrow.reading.warnings import first_names

FORMAT = 1
NAMED = 4  # in an error; a guess at how many fit on two lines
LATER = "Prove it once the batch is closed; until then the message may move to another one."
HISTORY = ", ".join(["microbatch", *LINKED])
SUPERSEDED = ("id", "reason", "superseded_id", "superseded_by", "microbatch")
OF_REJECTIONS = ("rejected", "record", "chunk")  # how ids of rejections begin
MICROBATCH = "microbatch"  # the name of microbatches in the tree; their numbers are their places
Document: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class LedgerRoot:
    """The root of a ledger at a version, what it was computed from, and how much it covers."""

    ledger_version: int
    depot_id: str
    microbatch: int
    chain: str
    tree: str
    root: str
    closed_windows: int
    rejected: int


@dataclass(frozen=True, slots=True)
class MessageName:
    """Identifies a message by key and event time (microseconds), and optionally by type and source."""

    key: str
    event_time: int
    type: str | None = None
    source: str | None = None

    def condition(self, begin: str, end: str) -> str:
        """Return the SQL condition for rows whose two times, both included, enclose the event time."""
        at = time_literal(self.event_time)
        where = [f"key = {quote_text(self.key)}", f"{begin} <= {at}", f"{end} >= {at}"]
        return " AND ".join([*where, *([] if self.source is None else [f"source = {quote_text(self.source)}"])])

    def is_(self, row: Mapping[str, Any]) -> bool:
        """Tell whether a message, with times as numbers, is the one named."""
        return row["event_time"] == self.event_time and self.type in (None, row["type"])


class Certifier:
    """Computes the root of a ledger, and certificates under it. It reads all final rows once."""

    def __init__(self, ledger: Ledger, progress: Callable[[int], None] = lambda rows: None) -> None:
        """Read the ledger; `progress` gets the number of rows so far. Raises TableUnreadableError, NotFoundError."""
        self._ledger = ledger
        leaves = _leaves(ledger, progress)
        self._tree, self._names, self._begins = HashTree.of(leaves), leaves["begin_name"], leaves["begin"]
        self.root = self._root(leaves)

    def _root(self, leaves: pa.Table) -> LedgerRoot:
        columns = f"depot_id, microbatch, {CHAIN}"
        [row] = self._ledger.rows("progress", columns, f"id = {quote_text(tables.PROGRESS)}").to_pylist()
        kinds = Counter(pc.list_element(pc.split_pattern(leaves["begin_name"], "/"), 0).to_pylist())
        batches, rejected = kinds[tables.BATCH_ID], sum(kinds[kind] for kind in OF_REJECTIONS)
        known = row["depot_id"], row["microbatch"], row[CHAIN], self._tree.root
        root = sha256(canonical.fields([pa.array([value]) for value in known])[0].as_py()).hexdigest()
        return LedgerRoot(self._ledger.version, *known, root, batches, rejected)

    def of_message(self, message: MessageName) -> Document:
        """Return the certificate of a message: of its closed batch, or else of its rejection.

        Raises NotFoundError if there is no such message or its batch is open, SettingsError if several match.
        """
        if placed := self._batch_of(message):
            batch, row = placed
            return self._document(row, batch=batch)
        rows = self._ledger.rows("rejected", REJECTED_SQL, message.condition("event_time", "event_time"), "ORDER BY id")
        rejected = [row for row in _in_numbers(rows) if message.is_(row)]
        if not rejected:
            raise self._missing(message)
        if len(rejected) > 1:
            ids = first_names([row["id"] for row in rejected], NAMED)
            raise SettingsError(f"{len(rejected)} rejections match this message", f"Give the id of one: {ids}.")
        return self.of_rejection(rejected[0]["id"])

    def of_rejection(self, id_: str) -> Document:
        """Return the certificate of a rejection by its id. Raises NotFoundError."""
        rows = self._ledger.rows("rejected", REJECTED_SQL, f"id = {quote_text(id_)}")
        if not rows.num_rows:
            raise NotFoundError(f"there is no rejection {id_}", "List them with: windrow show --rejected")
        [row] = _in_numbers(rows)
        first = None
        if row["reason"] == "duplicate":
            placed = self._batch_of(MessageName(row["key"], row["event_time"], row["type"], row["source"]))
            if not placed:
                raise NotFoundError("the first of these duplicates is in an open batch", LATER)
            first, _ = placed
        rejection = {"fields": _texts(rows, canonical.REJECTED), "path": self._path(id_, 0)}
        return self._document(row, batch=first, rejection=rejection)

    def _batch_of(self, message: MessageName) -> tuple[Document, Mapping[str, Any]] | None:
        """Return the closed batches of the window that contains a message, and the message with its stream."""
        rows = self._ledger.rows("closed", BATCH_SQL, message.condition("window_start", "window_end"), "ORDER BY part")
        matches = [
            {"source": batch["source"], "key": batch["key"], "microbatch": batch["microbatch"], **inside, "row": number}
            for number, batch in enumerate(_in_numbers(rows))
            for inside in batch["messages"]
            if message.is_(inside)
        ]
        if len(matches) > 1:
            named = first_names(sorted({f"type {row['type']!r} of source {row['source']!r}" for row in matches}), NAMED)
            raise SettingsError(f"{len(matches)} messages match: {named}", "Choose one with --type and --source.")
        if not matches:
            return None
        batch = rows.slice(matches[0]["row"], 1)
        same = [pc.equal(rows[name], batch[name][0]) for name in ("source", "key", "window_start")]
        parts = rows.filter(pc.and_(pc.and_(same[0], same[1]), same[2]))
        stream = tables.identifier(tables.BATCH_ID, *(combine_chunks(batch[name]) for name in ("source", "key")))
        path = self._path(stream[0].as_py(), _in_numbers(batch)[0]["window_start"])
        each = [_batch(parts.slice(at, 1)) for at in range(parts.num_rows)]
        return {"parts": each, "microbatch": matches[0]["microbatch"], "path": path}, matches[0]

    def _missing(self, message: MessageName) -> NotFoundError:
        where = message.condition("window_start", "window_end")
        waits = _in_numbers(self._ledger.rows("open", "messages", where))
        if any(message.is_(inside) for batch in waits for inside in batch["messages"]):
            return NotFoundError("the message is in an open batch", LATER)
        hint = "`windrow show --key KEY --event-time TIME` says what became of it."
        return NotFoundError("the ledger has no such message", hint)

    def _document(self, row: Mapping[str, Any], **shown: Document | None) -> Document:
        """Return the certificate of a message; `row` names the microbatch that decided it."""
        history = self._ledger.rows(MICROBATCH, HISTORY, f"microbatch = {row['microbatch']:d}")
        microbatch = {"fields": _texts(history, LINKED), "path": self._path(MICROBATCH, row["microbatch"])}
        named = {name: row[name] for name in ("source", "key", "type", "event_time")}
        head = {name: getattr(self.root, name) for name in ("depot_id", "microbatch", "chain", "tree", "root")}
        return {"certificate": FORMAT, "message": named, **shown, "decided_by": microbatch, "ledger": head}

    def _path(self, name: str, begin: int) -> list[Any]:
        same = pc.and_(pc.equal(self._names, string_scalar(name)), pc.equal(self._begins, begin))
        return self._tree.path(int(pc.index(same, True).as_py()))


def _in_numbers(rows: pa.Table) -> list[dict[str, Any]]:
    """Return rows with times as numbers."""
    return list(times_to_numbers(to_plain_types(rows)).to_pylist())


def _leaves(ledger: Ledger, progress: Callable[[int], None]) -> pa.Table:
    pieces, count = list[pa.Table](), 0
    for piece in _read_digests(ledger):
        pieces.append(piece)
        count += piece.num_rows
        progress(count)
    if not count:
        raise NotFoundError("nothing is final in the ledger yet", "Run it first: `windrow run`.")
    order = [(name, "ascending") for name in ("begin_name", "begin", "part")]
    return _join_parts(one_batch(pa.concat_tables(pieces).sort_by(order)))


def _read_digests(ledger: Ledger) -> Iterator[pa.Table]:
    """Yield `begin_name, begin, end, part, microbatch, digest` of batches, rejections and microbatches."""
    for piece in ledger.pieces("closed", BATCH_SQL):
        rows = times_to_numbers(to_plain_types(piece))
        streams = tables.identifier(tables.BATCH_ID, *(combine_chunks(rows[name]) for name in ("source", "key")))
        digests = batch_digests(piece)
        yield _leaf(streams, rows["window_start"], rows["window_end"], rows["part"], digests)
    for piece in ledger.pieces("rejected", REJECTED_SQL):
        yield _single_places(rejection_digests(piece))
    for piece in ledger.pieces("amended", BATCH_SQL):
        yield _single_places(batch_digests(piece))
    for piece in ledger.pieces("superseded", ", ".join(SUPERSEDED)):
        encoded = canonical.digests(canonical.fields([combine_chunks(piece[name]) for name in SUPERSEDED]))
        yield _single_places(pa.table({name: piece[name] for name in ("id", MICROBATCH)} | {"digest": encoded}))
    for piece in ledger.pieces(MICROBATCH, HISTORY):
        number = combine_chunks(piece[MICROBATCH])
        digests = pa.table({MICROBATCH: number, "digest": pa.array(row_digests(piece), pa.string())})
        yield _leaf(pa.repeat(MICROBATCH, len(number)), number, pc.add(number, 1), None, digests)


def _single_places(digests: pa.Table) -> pa.Table:
    """Return the leaves of rows that belong to no window; each has its id as its name."""
    return _leaf(digests["id"], pa.repeat(0, len(digests)), pa.repeat(1, len(digests)), None, digests)


def _leaf(name: Any, begin: Any, end: Any, part: Any, digests: pa.Table) -> pa.Table:
    numbers = pa.repeat(0, len(digests)) if part is None else part.cast(pa.int64())
    columns = {"begin_name": name, "begin": begin, "end": end, "part": numbers}
    return pa.table({**columns, MICROBATCH: digests[MICROBATCH], "digest": digests["digest"]})


def _join_parts(rows: pa.RecordBatch) -> pa.Table:
    """Return a leaf for each window, which joins the adjacent rows of its parts."""
    name, begin = rows["begin_name"].dictionary_encode().indices.to_numpy(), rows["begin"].to_numpy()
    begins = np.flatnonzero(np.append(True, (np.diff(name) != 0) | (np.diff(begin) != 0)))
    ends = np.append(begins[1:], rows.num_rows)
    digests = canonical.netstrings(rows["digest"])
    offsets = pa.array(np.append(begins, rows.num_rows).astype(np.int64))
    inside = pc.binary_join(pa.LargeListArray.from_arrays(offsets, digests), canonical.NOTHING)
    first, last = (rows.take(from_numpy(at)) for at in (begins, ends - 1))
    head = canonical.fields([first[MICROBATCH]])
    hashes = canonical.digests(canonical.join_bytes([head, inside]))
    columns = [first["begin_name"], first["begin"], first["begin_name"], last["end"], hashes]
    return pa.Table.from_arrays(columns, schema=NODE)


def _batch(row: pa.Table) -> Document:
    """Return the fields and the messages of a batch as texts in canonical form."""
    inside = pc.list_flatten(combine_chunks(to_plain_types(row)["messages"]))
    members = [_text_column(pc.struct_field(inside, name)) for name in canonical.MESSAGE]
    return {"fields": _texts(row, canonical.BATCH), "messages": list(map(list, zip(*members, strict=True)))}


def _texts(row: pa.Table, names: tuple[str, ...]) -> Document:
    plain = to_plain_types(row)
    return {name: _text_column(combine_chunks(plain[name]))[0] for name in names}


def _text_column(values: pa.Array) -> list[Any]:
    """Return the canonical form of each value as text, or as `{"base64": text}` if not UTF-8; None stays None."""
    return [None if value is None else _text(value) for value in canonical.encode_values(values).to_pylist()]


def _text(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}
