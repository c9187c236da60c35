"""Maintain tables: fold, compact small files, delete old files and log entries. No row that counts is lost.

Microbatches write many small files, and every reader opens all of them. In a ledger a fold replaces the live rows, and
compaction merges only files of final rows, which no microbatch reads; in a depot it merges any files. Replaced files
stay on the disk for `retention`, which is how far back replay, verify, RESTORE and a late downstream stream can read.
Then they are deleted, together with the log entries of that time.

Ledgers read a depot by version. So a depot is left alone while a ledger has yet to read a version older than
`retention`, or would read one again after a RESTORE. `[maintain] other_ledgers` names the other ledgers that read the
depot. A depot that Windrow did not create is left to its owner.

A repeating run maintains its tables between two microbatches. Every `maintenance_interval` it tidies the ledger. Once a
day it does everything that `windrow maintain` does; that part looks at every file and at the whole log of the depot,
which is too much to do every hour. It uses no thread, because a microbatch would wait for the table's lock anyway.

Maintenance never decides about messages, and no run depends on it. A failure is reported and tried again next time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from windrow.delta.maintenance import TableMaintenance
from windrow.errors import ConcurrentCommitError
from windrow.ledger import Ledger
from windrow.model import chunks, tables
from windrow.model.clock import Clock
from windrow.model.durations import SECOND, UNITS, microseconds
from windrow.model.results import MaintenanceResult, Role
from windrow.model.timestamps import time_text
from windrow.operate import Observers
from windrow.runtime.ledger_state import progress_row
from windrow.settings.settings import Settings
from windrow.source import Source

HEADSTART = 3_600_000_000  # microseconds
SMALL = 4 * 1024 * 1024  # bytes
Progress = Callable[[Role, str], None]


def maintain(
    sources: Sequence[Source],
    ledger: Ledger,
    now: int,
    only: Role | None = None,
    dry_run: bool = False,
    progress: Progress = lambda table, step: None,
    by_command: bool = True,
) -> list[MaintenanceResult]:
    """Maintain ledger and depots (or `only` one of the two) during runs, and return what was done to each.

    `now` is the wall time in microseconds. A dry run changes nothing. `progress` is called before each step; if it
    raises, the earlier steps are complete. Unless a command asked for it (`by_command`), a table whose retention
    differs from `retention` is left alone, because a shorter retention deletes what cannot be recovered. Raises
    TableMissingError, TableUnreadableError, TableUnwritableError, and TableLockedError if a writer holds a table for
    too long.
    """
    if not dry_run:
        ledger.repair(source.place for source in sources)
    results = []
    if only != "depot":
        table = _Table("ledger", ledger.maintenance(), ledger.settings, dry_run, partial(progress, "ledger"))
        results.append(_maintain_ledger(ledger, table, by_command))
    for source in sources if only != "ledger" else ():
        table = _Table("depot", source.maintenance, source.settings, dry_run, partial(progress, "depot"))
        results.append(_maintain_depot(source, ledger, table, now, by_command))
    return results


def fold(ledger: Ledger, dry_run: bool = False) -> int:
    """Drop the versions of live rows that do not count, and return how many; 0 if somebody commits meanwhile."""
    live = ledger.live()
    if live.growth.obsolete and not dry_run:
        try:
            ledger.fold(live, "large")
        except ConcurrentCommitError:
            return 0
    return live.growth.obsolete


def tidy_ledger(ledger: Ledger, progress: Progress = lambda table, step: None) -> MaintenanceResult:
    """Compact the ledger's files of final rows that are smaller than SMALL, which recent microbatches wrote.

    Each compaction also rewrites the last file that is not full, and the replaced file stays for `retention`. If files
    of any size were compacted hourly, they would soon occupy more than all rows. `progress` and errors are those of
    `maintain`.
    """
    table = _Table("ledger", ledger.maintenance(), ledger.settings, False, partial(progress, "ledger"))
    why = table.maintenance.unsupported_reason()
    if why is not None:
        return MaintenanceResult(table.role, table.location, skip_reason=why)
    removed, added = table.compact(tables.FINAL, SMALL)
    return MaintenanceResult(table.role, table.location, files_removed=removed, files_added=added)


@dataclass(frozen=True, slots=True)
class _Table:
    """One of the tables, and how to maintain it."""

    role: Role
    maintenance: TableMaintenance
    settings: Settings
    dry_run: bool
    progress: Callable[[str], None]

    def maintain(self, partitions: Sequence[str | None]) -> MaintenanceResult:
        """Do the steps in an order in which none removes what another created."""
        retention = self.settings.retention
        self.progress("retention")
        changed = not self.keeps()
        if changed and not self.dry_run:
            self.maintenance.set_properties(tables.retention_properties(retention))
        removed, added = self.compact(partitions)
        self.progress("removing old files")
        vacuumed = self.maintenance.vacuum(self.dry_run)
        self.progress("trimming the log")
        if not self.dry_run:
            self.maintenance.trim_log()
        return MaintenanceResult(self.role, self.location, retention, changed, removed, added, vacuumed)

    @property
    def location(self) -> str:
        """Return the location of the table in the settings."""
        return self.settings.ledger if self.role == "ledger" else self.settings.depot

    def keeps(self) -> bool:
        """Tell whether the table's retention equals the setting."""
        return tables.retention_properties(self.settings.retention).items() <= self.maintenance.properties().items()

    def other_retention(self, by_command: bool) -> str | None:
        """Return why a table that no command asked for is left alone, None if it is not."""
        # guard: retention-unchanged
        if not by_command and not self.keeps():
            return f"its retention differs from the setting, {self.settings.retention}; `windrow maintain` sets it"
        return None

    def compact(self, partitions: Sequence[str | None], below: int | None = None) -> tuple[int | None, int | None]:
        """Merge small files in each partition, and return how many files were removed and added."""
        compacted = []
        for partition in partitions:
            self.progress(f"compacting {partition or 'files'}")
            compacted.append(self.maintenance.compact(partition, self.dry_run, below))
        removed = _sum([None if result is None else result.removed for result in compacted])
        return removed, _sum([None if result is None else result.added for result in compacted])


def _maintain_ledger(ledger: Ledger, table: _Table, by_command: bool) -> MaintenanceResult:
    progress_row(ledger.live().rows)  # raises for a table that is not a ledger
    why = table.maintenance.unsupported_reason() or table.other_retention(by_command)
    if why is not None:
        return MaintenanceResult(table.role, table.location, skip_reason=why)
    table.progress("dropping versions that do not count")
    folded = fold(ledger, table.dry_run)
    return replace(table.maintain(tables.FINAL), folded_versions=folded)


def _maintain_depot(source: Source, ledger: Ledger, table: _Table, now: int, by_command: bool) -> MaintenanceResult:
    """Maintain a depot that Windrow maintains and whose old versions no ledger needs."""
    why = (
        _not_ours(source, table) or table.maintenance.unsupported_reason() or _still_needed(source, ledger, table, now)
    )
    why = why or table.other_retention(by_command)
    if why is not None:
        return MaintenanceResult(table.role, table.location, skip_reason=why)
    return table.maintain((None,))


def _not_ours(source: Source, table: _Table) -> str | None:
    """Return why Windrow does not maintain this depot, None if it does."""
    source.depot()
    policy = table.settings.maintain.depot
    # guard: ledger-is-no-depot
    if table.maintenance.description() == tables.LEDGER_COMMENT:
        return "as it is a ledger, which its own batcher maintains"
    if policy == "never":
        return "as [maintain] depot says"
    if policy == "own" and table.maintenance.description() not in (tables.DEPOT_COMMENT, chunks.COMMENT):
        return "Windrow did not make it ([maintain] depot)"
    return None


def _still_needed(source: Source, ledger: Ledger, table: _Table, now: int) -> str | None:
    """Return a sentence about a depot version that is older than `retention` and still needed, None if there is none.

    A version is needed if a ledger has yet to read it, or would read it again after a RESTORE to any ledger version
    within `retention`. Even a compaction is unsafe then, because Delta may trim the log with any commit. A version is
    as old as its commit or its log file, whichever is older, because Delta trims by the file. It counts as old
    `headstart` early, because a compaction takes a while; for the ledger `retention` ends two headstarts early,
    because otherwise a depot in use would always have a version that was read too late.
    """
    retention = microseconds(table.settings.retention, "retention")
    headstart = min(HEADSTART, retention // 10)
    before = now - retention + headstart
    reached, behind = _least_reached(source.depot().id, ledger, before + headstart)
    for commit in source.commits(reached + 1):
        if commit.version > reached and commit.rows != 0:
            logged_at = table.maintenance.log_file_time(commit.version)
            since = commit.committed_at if logged_at is None else min(commit.committed_at, logged_at)
            # guard: depot-maintained-if-unneeded
            if since < before:
                when = f"version {commit.version} of {time_text(since)} is older than {table.settings.retention}"
                return f"{when}, and {behind} may still have to read it"
    return None


def _least_reached(depot: str, ledger: Ledger, before: int) -> tuple[int, str]:
    """Return the version of the depot of this id that all ledgers had read by `before`, and the one furthest behind."""
    own = ledger.maintenance().depot_version_before(before, depot) if ledger.table() else -1
    others = [
        (ledger.maintenance(other).depot_version_before(before, depot), f"the ledger at {other}")
        for other in ledger.settings.maintain.other_ledgers
    ]
    return min([(own, "the ledger"), *others], key=lambda pair: pair[0])


def _sum(counts: Sequence[int | None]) -> int | None:
    """Return the sum, None if one of the counts is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


class BackgroundMaintenance:
    """Maintains the tables when it is called between microbatches and maintenance is due."""

    def __init__(
        self,
        sources: Sequence[Source],
        ledger: Ledger,
        clock: Clock,
        observers: Observers,
    ) -> None:
        """Remember what to maintain; `observers` are notified of each result and each failure."""
        self._sources, self._ledger, self._clock, self._observers = sources, ledger, clock, observers
        self._due: float | None = None  # seconds of the clock
        self._all_due = 0.0

    def __call__(self) -> list[MaintenanceResult]:
        """Return what was done to each table; an empty list if nothing is due or a stop was requested."""
        every = self._ledger.settings.run.maintenance_interval
        if every is None:
            return []
        if self._due is None:
            self._due = self._clock.elapsed() + self._time_left(every) / SECOND
        begun = self._clock.elapsed()
        if begun < self._due:
            return []
        whole = begun >= self._all_due
        results = [self._maintain("ledger", whole, self._sources)]
        if whole:
            results += [self._maintain("depot", whole, [source]) for source in self._sources]
        ended = self._clock.elapsed()
        self._due = ended + every / SECOND
        if whole and None not in results:
            self._all_due = ended + max(every, UNITS["d"]) / SECOND
        return [result for result in results if result is not None]

    def _time_left(self, every: int) -> int:
        """Return how much is left (microseconds) of an interval that an earlier process began, by the ledger's log.

        The log does not record maintenance that had nothing to compact; in that case nothing is left.
        """
        now = self._clock.now()
        try:
            last = self._ledger.maintenance().compaction_time(now - every)
        except Exception:  # noqa: BLE001 - the maintenance itself reports what is wrong with the table
            return 0
        return 0 if last is None else min(last + every - now, every)

    def _maintain(self, table: Role, whole: bool, sources: Sequence[Source]) -> MaintenanceResult | None:
        """Maintain one table, or only tidy it if not `whole`; None if that failed or a stop was requested."""
        begun = self._clock.elapsed()
        try:
            self._stop_if_asked(table, "")
            if whole:
                now = self._clock.now()
                [result] = maintain(sources, self._ledger, now, table, progress=self._stop_if_asked, by_command=False)
            else:
                result = tidy_ledger(self._ledger, self._stop_if_asked)
        except _Stopped:
            return None
        except Exception as error:  # noqa: BLE001 - no run depends on maintenance
            self._observers.maintenance_failed(table, error)
            return None
        self._observers.maintained(result, round((self._clock.elapsed() - begun) * 1_000, 3))
        return result

    def _stop_if_asked(self, _: Role, __: str) -> None:
        """Raise _Stopped if a stop was requested. Each step is complete before the next one begins."""
        if self._clock.wait(0):
            raise _Stopped


class _Stopped(Exception):
    """A stop was requested between two steps."""
