"""Versions of live rows: what a commit writes, which of them count, and when those that do not are dropped.

A commit never changes a row of the ledger. It writes the live rows that change again, under its *revision*; a row that
disappears gets a *tombstone*. The latest version of an id counts.

An open batch grows: a version that is not *whole* has the batch as it is now, but only the messages that came with it.
The messages of a batch are those of its versions from the last whole one on, in their order. These versions all have
the same stream and window, so a reader that selects by stream and window finds all of them or none.

A *fold* drops versions that no longer count: a separate commit that replaces live rows with those that count. A small
fold replaces only what was written since some commit; it keeps tombstones, because an older file may have their id, and
joins the messages that a batch got since. A large fold replaces all live rows with whole ones. To show when a fold is
due without counting, each commit records in its progress row how many versions and messages it wrote, and how many
versions it made obsolete.
"""

from __future__ import annotations

import json
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import (
    boolean_array,
    boolean_scalar,
    combine_chunks,
    filter_rows,
    from_numpy,
    index_in,
    string_scalar,
    to_numpy,
)
from windrow.errors import IncompatibleTableError
from windrow.ledger.result import MicrobatchCounts
from windrow.model import tables
from windrow.model.floors import Ints
from windrow.model.open_batches import MESSAGES, with_messages
from windrow.model.tables import DELETED, WHOLE
from windrow.version import VERSION

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

Fold = Literal["small", "large"]
# What a tombstone keeps of its batch: by these columns a reader decides to read all versions of an id, or none.
TOMBSTONE = ("id", "source", "key", "part", "window_start", "window_end")
RECORDED = ("versions_written", "versions_obsolete", "messages_written")  # columns of the progress row, of `Growth`
# This many messages count as a row when deciding on a fold. A guess: on disk, a row took the space of five messages
# (a fleet) to eight (a long window), but merging a row costs more than its bytes.
MESSAGES_OF_A_ROW = 16


def rows_to_write(rows: pa.Table, revision: int) -> pa.Table:
    """Return rows of a result as they are written: with tombstones of open batches that closed, without `known`."""
    if "known" in rows.column_names:
        rows = pa.concat_tables([rows, tombstones(rows)]).drop_columns(["known"])
    return _stamp(rows, revision)


def tombstones(rows: pa.Table) -> pa.Table:
    """Return the tombstones of the open batches that the rows of a result close."""
    if "messages" not in rows.column_names:
        return rows.slice(0, 0)
    # guard: closed-is-not-open
    closed = filter_rows(rows, pc.and_(pc.equal(rows["state"], string_scalar("closed")), rows["known"]))
    columns: dict[str, object] = {name: closed[name] for name in TOMBSTONE}
    columns |= {"state": tables.OPEN, DELETED: True, "known": True}
    return tables.rows(rows.schema, columns, closed.num_rows)


def _stamp(rows: pa.Table, revision: int) -> pa.Table:
    """Return rows with the revision that writes them."""
    values = {
        "revision": from_numpy(np.full(rows.num_rows, revision)),
        "folded": pa.repeat(boolean_scalar(False), rows.num_rows),
    }
    for name, column in values.items():
        at = rows.schema.get_field_index(name)
        field = pa.field(name, column.type)
        rows = rows.append_column(field, column) if at < 0 else rows.set_column(at, field, column)
    return rows


def latest(rows: pa.Table, keep_tombstones: bool = False, keep_doubles: bool = False) -> pa.Table:
    """Return the latest version of each id, without tombstones; open batches get the messages of their versions.

    Raises IncompatibleTableError for what only damage causes: a row without a revision, or two rows with the same id
    and revision, unless both are kept.
    """
    tables.require_filled(rows, ["revision"])
    if rows.num_rows > 1:
        ids = combine_chunks(rows["id"]).dictionary_encode()
        of, revision, versions = to_numpy(ids.indices), to_numpy(rows["revision"]), rows
        newest = np.full(len(ids.dictionary), np.iinfo(np.int64).min)
        if len(newest) < rows.num_rows:
            np.maximum.at(newest, of, revision)
            # guard: latest-version-counts
            rows = filter_rows(rows, boolean_array(revision == newest[of]))
        # guard: live-ids-unique
        if rows.num_rows > len(newest) and not keep_doubles:
            raise IncompatibleTableError("duplicate id among the open batches and clocks of the ledger", tables.DAMAGED)
        if rows.num_rows < versions.num_rows and {MESSAGES, WHOLE} <= {*rows.column_names}:
            rows = _grow(rows, versions, of, revision)
    if keep_tombstones:
        return rows
    # guard: tombstone-hides
    return filter_rows(rows, pc.invert(pc.fill_null(rows[DELETED], boolean_scalar(False))))


def _grow(rows: pa.Table, versions: pa.Table, of: Ints, revision: Ints) -> pa.Table:
    """Return the latest versions of ids; open batches that grew get the messages of their `versions`.

    `of` numbers the ids of the versions. The result for a batch is whole if one of its versions is, and has no messages
    if one came without.
    """
    part, start = chains(of, revision, versions[WHOLE])
    if not part.size:
        return rows
    joined = sort_messages(concatenate_lists(versions[MESSAGES].take(from_numpy(part)), start))
    is_whole = np.logical_or.reduceat((to_numpy(versions[WHOLE], null=0) == 1)[part], start[:-1])
    at = index_in(combine_chunks(rows["id"]), combine_chunks(versions["id"].take(from_numpy(part[start[1:] - 1]))))
    grew, known = boolean_array(at >= 0), from_numpy(np.maximum(at, 0))
    rows = with_messages(rows, pc.if_else(grew, joined.take(known), rows[MESSAGES]))
    wholes = pc.if_else(grew, boolean_array(is_whole).take(known), rows[WHOLE])
    return rows.set_column(rows.schema.get_field_index(WHOLE), rows.schema.field(WHOLE), wholes)


def chains(of: Ints, revision: Ints, wholes: pa.ChunkedArray, grown_only: bool = True) -> tuple[Ints, Ints]:
    """Return the versions that open batches consist of, and where those of each batch begin.

    `of` numbers the batches of the versions. A chain is in the order of revisions; it begins with the last whole
    version, or with the first one if there is none. `grown_only` skips batches whose latest version is whole.
    """
    flags = to_numpy(wholes, null=-1)
    is_whole, is_increment = flags == 1, flags == 0
    count = int(of.max(initial=-1)) + 1
    newest, since = np.full((2, count), np.iinfo(np.int64).min)
    np.maximum.at(newest, of, revision)
    # guard: last-whole-version-begins
    np.maximum.at(since, of[is_whole], revision[is_whole])
    grew = np.full(count, not grown_only)
    grew[of[is_increment & (revision == newest[of])]] = True
    part = np.flatnonzero(grew[of] & (revision >= since[of]))
    part = part[np.lexsort((revision[part], of[part]))]
    return part, np.append(np.flatnonzero(np.diff(of[part], prepend=-1)), part.size)


def latest_whole(rows: pa.Table) -> pa.Table:
    """Return the open batches of which these rows are versions, with all of their messages, as `latest` does.

    Raises IncompatibleTableError also for a batch without a whole version.
    """
    batches = latest(rows)
    require_whole(batches)
    return batches


def require_whole(rows: pa.Table) -> None:
    """Raise IncompatibleTableError for open batches without a whole version: only damage removes the first one."""
    # guard: first-version-is-there
    if pc.any(pc.equal(rows[WHOLE], boolean_scalar(False))).as_py():
        raise IncompatibleTableError(
            "an open batch of the ledger has no version with all of its messages", tables.DAMAGED
        )


def concatenate_lists(lists: pa.ChunkedArray, start: Ints) -> pa.Array:
    """Concatenate each run of lists, from its start to the next one's; NULL if one of the lists is NULL."""
    each = combine_chunks(lists)
    unread = np.logical_or.reduceat(to_numpy(each.is_null()) == 1, start[:-1])
    # A NULL list must have no elements: Arrow counts them in one place, and leaves them out in another.
    each = pc.if_else(boolean_array(np.repeat(unread, np.diff(start))), pa.scalar(None, each.type), each)
    size = to_numpy(pc.list_value_length(each), null=0)
    ends = np.append(0, np.cumsum(size))[start].astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), each.flatten(), mask=boolean_array(unread)).cast(lists.type)


def sort_messages(batches: pa.Array) -> pa.Array:
    """Return lists of messages in the order of a batch: by event time and type, and otherwise as given."""
    inside = pa.Table.from_arrays(batches.flatten().flatten()[:2], ["type", "event_time"])
    inside = inside.append_column("batch", pc.list_parent_indices(batches))
    keys = [(name, "ascending") for name in ("batch", "event_time", "type")]
    values = batches.flatten().take(pc.sort_indices(inside, keys))
    return pa.ListArray.from_arrays(batches.offsets, values, mask=batches.is_null()).cast(batches.type)


def apply_versions(rows: pa.Table, versions: pa.Table, keep_tombstones: bool = False) -> pa.Table:
    """Return the latest version of each id after other commits, which add `versions` to the known `rows`.

    It costs less than `latest` of both if there are many rows and few other versions.
    """
    known = np.zeros(rows.num_rows + 1, np.bool_)
    known[index_in(combine_chunks(versions["id"]), combine_chunks(rows["id"]))] = True  # the last entry is for new ids
    both = pa.concat_tables([filter_rows(rows, boolean_array(known[:-1])), versions])
    return pa.concat_tables([filter_rows(rows, boolean_array(~known[:-1])), latest(both, keep_tombstones)])


def latest_frame(versions: DataFrame) -> DataFrame:
    """Return the latest version of each id, without tombstones; the frame has `id`, `revision`, `deleted`, `folded`.

    With `messages` and `whole`, open batches have the messages of their versions. Folded rows are the only versions of
    their ids that a fold left, so only ids that were written since are looked up.
    """
    from pyspark.sql import functions as F

    new = versions.where("NOT folded")
    # Going by compressed bytes, Spark would send millions to the driver, and a hash map of them may not fit a task.
    ids = new.select("id").hint("merge")
    stays = versions.where("folded").join(ids, "id", "left_anti")
    if {MESSAGES, WHOLE} <= {*versions.columns}:
        base = versions.where("folded").join(ids, "id", "left_semi")
        newest = newest_frame(new.unionByName(base))
    else:
        row = F.struct(*[F.col(f"`{name}`") for name in versions.columns if name != "id"])
        newest = new.groupBy("id").agg(F.max_by(row, "revision").alias("row")).select("id", "row.*")
    both = newest.unionByName(stays)
    return both.where(f"{DELETED} IS NOT TRUE").drop("revision", DELETED, "folded")


def newest_frame(versions: DataFrame) -> DataFrame:
    """Return the latest version of each id, even a tombstone; open batches get the messages of their versions."""
    from pyspark.sql import functions as F

    row = F.struct(*[F.col(f"`{name}`") for name in versions.columns if name not in ("id", MESSAGES)])
    part = F.struct("revision", WHOLE, MESSAGES)
    each = versions.groupBy("id").agg(F.max_by(row, "revision").alias("row"), F.collect_list(part).alias("parts"))
    joined = {
        MESSAGES: F.expr(tables.IN_ORDER),
        WHOLE: F.when(F.col(WHOLE), True).otherwise(F.when(~F.col(WHOLE), F.expr(tables.HAS_WHOLE))),
    }
    newest = each.select("id", "row.*", "parts").withColumns(joined)
    return newest.select(*[F.col(f"`{name}`") for name in versions.columns])


@dataclass(frozen=True, slots=True)
class Growth:
    """How many versions and messages were written, and how many versions are obsolete.

    Of these, `unfolded` rows (messages count as parts of rows) were written since the last large fold in `commits`
    commits, the largest of which wrote `largest` rows. What a small fold leaves counts as one commit.
    """

    versions: int = 0
    obsolete: int = 0
    messages: int = 0
    unfolded: int = 0
    commits: int = 0
    largest: int = 0

    @classmethod
    def of(cls, control: pa.Table) -> Growth:
        """Return the growth that all versions of the progress row record."""
        own = filter_rows(control, pc.equal(control["id"], string_scalar(tables.PROGRESS)))
        new = filter_rows(own, pc.invert(own["folded"]))
        versions, obsolete, messages = (pc.sum(own[name]).as_py() or 0 for name in RECORDED)
        rows, of_these = (to_numpy(new[name], null=0) for name in ("versions_written", "messages_written"))
        each = rows + of_these // MESSAGES_OF_A_ROW
        return cls(versions, obsolete, messages, int(each.sum()), new.num_rows, int(each.max(initial=0)))

    def __add__(self, new: Growth) -> Growth:
        """Return the growth after later commits."""
        both = Growth(*(left + right for left, right in zip(astuple(self), astuple(new), strict=True)))
        return replace(both, largest=max(self.largest, new.largest))

    @classmethod
    def by(cls, counts: MicrobatchCounts, control: pa.Table, live: pa.Table) -> Growth:
        """Return what a commit adds: a result with these counts, and control rows in place of some of the live ones."""
        replaced = int((index_in(combine_chunks(control["id"]), combine_chunks(live["id"])) >= 0).sum())
        return cls(counts.versions + control.num_rows, counts.obsolete + replaced, counts.open_messages)

    def fold(self, after_commits: int, after_rows: int, open_messages: int, takes_all: bool = False) -> Fold | None:
        """Return which fold is due: after `after_commits`, or as soon as more rows are obsolete than live.

        A number of messages counts as a row. Fewer obsolete rows than `after_rows` are never too many. A fold is large
        if the obsolete rows are more than half of the live ones, or the rows written since the last large fold more
        than half of those that it left. So a ledger that only gains rows rewrites each of them a few times, however
        many there are. A small fold that `takes_all` new rows, whatever their files are, waits until half of them are
        newer than the last one, or than the largest commit.
        """
        rows = self.versions + self.messages // MESSAGES_OF_A_ROW
        live = self.versions - self.obsolete + open_messages // MESSAGES_OF_A_ROW
        obsolete = rows - live
        if obsolete > max(live, after_rows):
            return "large"
        if self.commits < max(after_commits, 2):  # one is what a small fold leaves
            return None
        much = obsolete * 2 > live or self.unfolded * 2 > rows - self.unfolded
        if rows <= after_rows or much:
            return "large"
        return None if takes_all and self.unfolded < 2 * self.largest else "small"

    def after_fold(self, fold: Fold, open_messages: int) -> Growth:
        """Return the growth that a fold records: a large one leaves what counts."""
        if fold == "small":
            return self
        return Growth(self.versions - self.obsolete, 0, open_messages)


def fold_note(fold: Fold) -> str:
    """Return the note of the commit of a fold."""
    return json.dumps({"windrow": VERSION, "fold": fold})


def record_growth(rows: pa.Table, growth: Growth) -> pa.Table:
    """Return control rows with the growth recorded in the progress row."""
    is_progress = pc.equal(rows["id"], string_scalar(tables.PROGRESS))
    for name, value in zip(RECORDED, (growth.versions, growth.obsolete, growth.messages), strict=True):
        column = pc.if_else(is_progress, pa.scalar(value, pa.int64()), pa.scalar(None, pa.int64()))
        rows = rows.set_column(rows.schema.get_field_index(name), rows.schema.field(name), column)
    return rows
