"""Chain the rows of the history: each row has a hash of its content and of the hash before it.

A row of the history says which versions of the depot were read, with the fingerprints of their commits, under which
rules, what was decided, and how far the clocks were. Its *link* is the SHA-256 of two netstrings: the link before
(`~` for the first row) and the digest of the row, which is the SHA-256 of its fields `LINKED` in canonical form. Anyone
who has noted a link can see later whether anything before it was changed, in the history or in the log of the depot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import sha256

import pyarrow as pa

from windrow.columnar.arrow import one_batch, string_array
from windrow.model import canonical

CHAIN = "chain"  # the column of the history, and of the progress row, which has the last link
LINKED = (
    "id", "kind", "depot_version", "versions", "messages_read", "accepted", "rejected", "opened", "closed", "clocks",
    "rules",
)  # fmt: skip


def row_digests(history: pa.Table) -> list[str]:
    """Return the digest of each row of the history, in hexadecimal digits."""
    rows = one_batch(history.select(list(LINKED)))
    digests: list[str] = canonical.digests(canonical.fields(rows.columns)).to_pylist()
    return digests


def links(digests: Iterable[str], before: str | None) -> Iterator[str]:
    """Yield the link of each row by its digest; `before` is the link of the row before the first."""
    for digest in digests:
        previous = b"~" if before is None else b"%d:%b," % (len(before), before.encode())
        before = sha256(previous + b"%d:%b," % (len(digest), digest.encode())).hexdigest()
        yield before


def in_order(history: pa.Table) -> pa.Table:
    """Return the rows of the history in the order of the chain: by microbatch, and for several depots then by id."""
    return history.sort_by([("microbatch", "ascending"), ("id", "ascending")])


def link_rows(history: pa.Table, before: str | None) -> pa.Table:
    """Return the rows of a microbatch in the order of the chain, with their links."""
    rows = in_order(history)
    column = string_array(list(links(row_digests(rows), before)))
    return rows.set_column(rows.schema.get_field_index(CHAIN), rows.schema.field(CHAIN), column)
