"""Versions of live rows: what a commit writes, which of them count, and when those that do not are dropped.

A commit never changes a row of the ledger. It writes the live rows that change once more, under its *revision*; a row
that goes gets a *tombstone*. Of the versions of an id the latest counts.

What no longer counts is dropped by a *fold*, a commit of its own that replaces live rows by those that count. A small
one replaces only what was written since the last large one, and keeps tombstones, because an older file may have their
id. A large one replaces all live rows. So that a reader knows when, without counting, each commit says in its progress
row how many versions it wrote, and how many versions are obsolete because of it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import flag, from_numpy, mask, places, text, to_numpy, where, whole
from windrow.errors import TableRefused
from windrow.ledger.result import Counts
from windrow.model import tables
from windrow.model.tables import DELETED
from windrow.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Fold = Literal["small", "large"]
# What a tombstone has of its batch: by these a reader decides whether it reads the versions of an id, all or none.
TOMBSTONE = ("id", "source", "key", "part", "window_start", "window_end")


def written(rows: pa.Table, revision: int) -> pa.Table:
    """Return rows of a result as they are written: with tombstones of open batches that closed, without `known`."""
    if "known" in rows.column_names:
        rows = pa.concat_tables([rows, tombstones(rows)]).drop_columns(["known"])
    return _stamped(rows, revision)


def tombstones(rows: pa.Table) -> pa.Table:
    """Return the tombstones of the open batches that the rows of a result close."""
    if "messages" not in rows.column_names:
        return rows.slice(0, 0)
    # guard: closed-is-not-open
    closed = where(rows, pc.and_(pc.equal(rows["state"], text("closed")), rows["known"]))
    columns: dict[str, object] = {name: closed[name] for name in TOMBSTONE}
    columns |= {"state": tables.OPEN, DELETED: True, "known": True}
    return tables.rows(rows.schema, columns, closed.num_rows)


def _stamped(rows: pa.Table, revision: int) -> pa.Table:
    """Return rows with the revision that writes them; an open batch has all of its messages."""
    values = {
        "revision": from_numpy(np.full(rows.num_rows, revision)),
        "folded": pa.repeat(flag(False), rows.num_rows),
    }
    if "whole" in rows.column_names:
        is_open = pc.equal(rows["state"], text(tables.OPEN))
        values["whole"] = pc.if_else(is_open, flag(True), pa.nulls(rows.num_rows, pa.bool_()))
    for name, column in values.items():
        at = rows.schema.get_field_index(name)
        field = pa.field(name, column.type)
        rows = rows.append_column(field, column) if at < 0 else rows.set_column(at, field, column)
    return rows


def latest(rows: pa.Table, keep_tombstones: bool = False, keep_doubles: bool = False) -> pa.Table:
    """Return the latest version of each id, without tombstones.

    Raises TableRefused for what only damage does: a row without a revision, and an id that two rows of one revision
    have, unless both are kept.
    """
    tables.require_filled(rows, ["revision"])
    if rows.num_rows > 1:
        ids = whole(rows["id"]).dictionary_encode()
        of, revision = to_numpy(ids.indices), to_numpy(rows["revision"])
        if len(ids.dictionary) < rows.num_rows:
            newest = np.full(len(ids.dictionary), np.iinfo(np.int64).min)
            np.maximum.at(newest, of, revision)
            # guard: latest-version-counts
            rows = where(rows, mask(revision == newest[of]))
        # guard: live-ids-unique
        if rows.num_rows > len(ids.dictionary) and not keep_doubles:
            raise TableRefused("an id stands twice among the open batches and clocks of the ledger", tables.DAMAGED)
    if keep_tombstones:
        return rows
    # guard: tombstone-hides
    return where(rows, pc.invert(pc.fill_null(rows[DELETED], flag(False))))


def followed(rows: pa.Table, versions: pa.Table) -> pa.Table:
    """Return the latest version of each id after later commits, whose `versions` take the place of known `rows`.

    It costs less than `latest` of both, where there are many rows and few new versions.
    """
    replaced = np.zeros(rows.num_rows + 1, np.bool_)
    replaced[places(whole(versions["id"]), whole(rows["id"]))] = True  # the last one is for ids that are new
    return pa.concat_tables([where(rows, mask(~replaced[:-1])), latest(versions)]).combine_chunks()


def latest_frame(versions: DataFrame) -> DataFrame:
    """Return the latest version of each id, without tombstones; the frame has `id`, `revision`, `deleted`, `folded`.

    Folded rows are the only versions of their ids that a fold left, so only ids that were written since are looked up.
    """
    from pyspark.sql import functions as F

    new = versions.where("NOT folded")
    row = F.struct(*[F.col(f"`{name}`") for name in versions.columns if name != "id"])
    newest = new.groupBy("id").agg(F.max_by(row, "revision").alias("row")).select("id", "row.*")
    stays = versions.where("folded").join(new.select("id"), "id", "left_anti")
    both = newest.unionByName(stays)
    return both.where(f"{DELETED} IS NOT TRUE").drop("revision", DELETED, "folded")


@dataclass(frozen=True, slots=True)
class Growth:
    """How many versions were written in all and are obsolete; how many since the last large fold, in so many commits.

    What a small fold leaves counts as one commit.
    """

    versions: int = 0
    obsolete: int = 0
    unfolded: int = 0
    commits: int = 0

    @classmethod
    def of(cls, control: pa.Table) -> Growth:
        """Return the growth that all versions of the progress row record."""
        own = where(control, pc.equal(control["id"], text(tables.PROGRESS)))
        new = where(own, pc.invert(own["folded"]))
        versions, obsolete = (pc.sum(own[name]).as_py() or 0 for name in ("versions_written", "versions_obsolete"))
        return cls(versions, obsolete, pc.sum(new["versions_written"]).as_py() or 0, new.num_rows)

    def __add__(self, new: Growth) -> Growth:
        """Return the growth after later commits."""
        versions, obsolete = self.versions + new.versions, self.obsolete + new.obsolete
        return Growth(versions, obsolete, self.unfolded + new.unfolded, self.commits + new.commits)

    @classmethod
    def by(cls, counts: Counts, control: pa.Table, live: pa.Table) -> Growth:
        """Return what a commit adds: a result with these counts, and control rows in place of some of the live ones."""
        replaced = int((places(whole(control["id"]), whole(live["id"])) >= 0).sum())
        return cls(counts.versions + control.num_rows, counts.obsolete + replaced)

    def fold(self, after_commits: int, after_rows: int) -> Fold | None:
        """Return which fold is due: after so many commits, or as soon as more rows are obsolete than live.

        Fewer obsolete rows than `after_rows` are never too many. A fold is large if it drops a quarter of the rows, or
        if half as many were written since the last large one as that one left: so a ledger whose rows only come, and
        never go, writes each of them again a few times, however many there are.
        """
        live = self.versions - self.obsolete
        if self.obsolete > max(live, after_rows):
            return "large"
        if self.commits < max(after_commits, 2):  # one is what a small fold leaves
            return None
        much = self.obsolete * 4 > live or self.unfolded * 2 > self.versions - self.unfolded
        return "large" if self.versions <= after_rows or much else "small"


def fold_note(fold: Fold) -> str:
    """Return the note of the commit of a fold."""
    return json.dumps({"windrow": VERSION, "fold": fold})


def recorded(rows: pa.Table, growth: Growth) -> pa.Table:
    """Return control rows, of which the progress row records the growth."""
    is_progress = pc.equal(rows["id"], text(tables.PROGRESS))
    for name, value in (("versions_written", growth.versions), ("versions_obsolete", growth.obsolete)):
        column = pc.if_else(is_progress, pa.scalar(value, pa.int64()), pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows
