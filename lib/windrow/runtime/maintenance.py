"""Maintenance: fewer and larger files, and no more of the past than `keep` asks for. No row is ever deleted.

What microbatches write is many small files, of which every reader opens all. Compaction makes large ones of those that
hold final rows (of a depot: of all), so it never competes with a microbatch for live rows. What it replaces, and what
microbatches replaced, stays on the disk for `keep`: so far back reach replay, verify, RESTORE and a downstream stream
that was behind. Afterwards it is deleted, together with the log's entries of that time.

A depot's past is the log of messages, and ledgers read it by version. So a depot is left alone while a ledger has yet
to read a version of it that is older than `keep`, or read one so lately that a RESTORE of the ledger would read it
again; other ledgers that read it are named by `[maintain] other_ledgers`. And one that Windrow did not make is left to
its owner.

A run that goes on does it by itself (`windrow.runtime.background_maintenance`): `tidy` often, `maintain` now and then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from windrow.delta.maintenance import Compacted
from windrow.engine.protocol import TableMaintenance, WholeEngine
from windrow.model import chunks, tables
from windrow.model.durations import microseconds
from windrow.model.results import ROLES, Maintained, Role
from windrow.model.timestamps import time_text
from windrow.runtime.progress import progress_row
from windrow.settings.settings import Settings

FINAL = ("closed", "rejected", "microbatch")
HEADSTART = 3_600_000_000  # microseconds
SMALL = 4 * 1024 * 1024  # bytes
Progress = Callable[[Role, str], None]


def maintain(
    engine: WholeEngine,
    settings: Settings,
    now: int,
    only: Role | None = None,
    dry_run: bool = False,
    progress: Progress = lambda table, step: None,
    asked: bool = True,
) -> list[Maintained]:
    """Look after ledger and depot (or `only` one), beside whoever runs them, and return what was done to each.

    `now` is the wall time in microseconds. A dry run changes nothing. `progress` is told each step before it is done;
    when it raises, the steps before are done and whole. Where nobody `asked` for it at this moment, a table with
    another retention than `keep` is left alone, because a shorter one takes away what cannot be had again.
    Raises TableMissing, TableUnreadable, TableUnwritable, and TableLocked when a writer holds a table for long.
    """
    if not dry_run:
        engine.mend()
    chosen: tuple[Role, ...] = ROLES if only is None else (only,)
    return [
        _maintained(engine, _Table(role, engine.upkeep(role), settings, dry_run, partial(progress, role)), now, asked)
        for role in chosen
    ]


def tidy(engine: WholeEngine, settings: Settings, progress: Progress = lambda table, step: None) -> Maintained:
    """Put together what microbatches wrote lately: files of the ledger's final rows that are smaller than SMALL.

    A compaction writes the last file that is not full once more, and what it replaced stays for `keep`. With files of
    any size that is, done every hour, soon more than all rows together. `progress` and errors are those of `maintain`.
    """
    table = _Table("ledger", engine.upkeep("ledger"), settings, False, partial(progress, "ledger"))
    why = table.upkeep.obstacle()
    if why is not None:
        return Maintained(table.role, table.location, left_alone=why)
    removed, added = table.compact(FINAL, SMALL)
    return Maintained(table.role, table.location, compacted_files=removed, compacted_into=added)


@dataclass(frozen=True, slots=True)
class _Table:
    """One of the tables, and how it is to be looked after."""

    role: Role
    upkeep: TableMaintenance
    settings: Settings
    dry_run: bool
    progress: Callable[[str], None]

    def maintained(self, partitions: Sequence[str | None]) -> Maintained:
        """Do the steps in an order in which none removes what another one made."""
        changed = self._set_retention()
        removed, added = self.compact(partitions)
        self.progress("removing old files")
        vacuumed = self.upkeep.vacuum(self.dry_run)
        self.progress("trimming the log")
        if not self.dry_run:
            self.upkeep.trim_log()
        return Maintained(
            self.role,
            self.location,
            self.settings.keep,
            changed,
            removed,
            added,
            vacuumed,
        )

    @property
    def location(self) -> str:
        """Return where the table is, as the settings have it."""
        return self.settings.ledger if self.role == "ledger" else self.settings.depot

    def keeps(self) -> bool:
        """Tell whether the table's retention is what `keep` says."""
        return tables.retention(self.settings.keep).items() <= self.upkeep.properties().items()

    def compact(self, partitions: Sequence[str | None], below: int | None = None) -> tuple[int | None, int | None]:
        """Make large files of small ones in each partition, and return how many became how many."""
        compacted = [self._compact(partition, below) for partition in partitions]
        removed = _sum([None if one is None else one.removed for one in compacted])
        return removed, _sum([None if one is None else one.added for one in compacted])

    def _set_retention(self) -> bool:
        """Bring the table's retention in line with `keep`, and tell whether it was not."""
        self.progress("retention")
        changed = not self.keeps()
        if changed and not self.dry_run:
            self.upkeep.set_properties(tables.retention(self.settings.keep))
        return changed

    def _compact(self, partition: str | None, below: int | None) -> Compacted | None:
        self.progress(f"compacting {partition or 'files'}")
        return self.upkeep.compact(partition, self.dry_run, below)


def _maintained(engine: WholeEngine, table: _Table, now: int, asked: bool) -> Maintained:
    """Maintain a ledger, or a depot that is ours to maintain and of which nothing old is needed."""
    if table.role == "ledger":
        progress_row(engine.live().rows)  # raises for a table that only has the place of one
        why = table.upkeep.obstacle()
    else:
        why = _not_ours(engine, table) or table.upkeep.obstacle() or _still_needed(engine, table, now)
    # guard: retention-unchanged
    if why is None and not asked and not table.keeps():
        why = f"its retention is not keep = {table.settings.keep}; `windrow maintain` sets it"
    if why is not None:
        return Maintained(table.role, table.location, left_alone=why)
    # guard: live-rows-stay
    return table.maintained(FINAL if table.role == "ledger" else (None,))


def _not_ours(engine: WholeEngine, table: _Table) -> str | None:
    """Say why a depot is its owner's to maintain, None when it is ours."""
    engine.depot()
    wanted = table.settings.maintain.depot
    if wanted == "never":
        return "as [maintain] depot says"
    if wanted == "own" and table.upkeep.description() not in (tables.DEPOT_COMMENT, chunks.COMMENT):
        return "Windrow did not make it ([maintain] depot)"
    return None


def _still_needed(engine: WholeEngine, table: _Table, now: int) -> str | None:
    """Say which version of the depot is older than `keep` and still needed, None when there is none.

    Needed is what a ledger has yet to read, and what it would read again after a RESTORE to any of its versions
    within `keep`. Even a compaction would be too much then: with each commit Delta may trim the log. A version is as
    old as its commit says or as its file looks, whichever is older, because Delta trims by the file; and it is old a
    little before its time, because a compaction takes some. So for the ledger `keep` ends twice that little earlier,
    or a depot in use would always have a version that was read too late.
    """
    keep = microseconds(table.settings.keep, "keep")
    headstart = min(HEADSTART, keep // 10)
    before = now - keep + headstart
    reached, ledger = _least_reached(engine, table.settings, before + headstart)
    for commit in engine.depot_commits(reached + 1):
        if commit.version > reached and commit.rows != 0:
            logged_at = table.upkeep.logged_at(commit.version)
            since = commit.committed_at if logged_at is None else min(commit.committed_at, logged_at)
            # guard: depot-maintained-if-unneeded
            if since < before:
                when = f"version {commit.version} of {time_text(since)} is older than {table.settings.keep}"
                return f"{when}, and {ledger} may have to read it still"
    return None


def _least_reached(engine: WholeEngine, settings: Settings, before: int) -> tuple[int, str]:
    """Return which of the ledgers that read the depot had come least far at a time, and up to which version."""
    depot = engine.depot().id
    own = engine.upkeep("ledger").reached(before, depot) if engine.ledger() else -1
    others = [
        (engine.upkeep("ledger", other).reached(before, depot), f"the ledger at {other}")
        for other in settings.maintain.other_ledgers
    ]
    return min([(own, "the ledger"), *others], key=lambda one: one[0])


def _sum(counts: Sequence[int | None]) -> int | None:
    """Return the sum, None when one of them is not known."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None
