"""A depot and a ledger in memory, with the semantics of Delta: versions that are put once and read whole."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self, cast

import pyarrow as pa
import pyarrow.compute as pc

from tests.messages import Row
from tests.messages import table as messages
from windrow.columnar.arrow import conform
from windrow.delta.log import TableInfo
from windrow.engine.engine import Engine
from windrow.errors import ConcurrentCommitError, TableUnwritableError
from windrow.ledger import Ledger
from windrow.ledger.live import Live
from windrow.ledger.result import MicrobatchResult
from windrow.ledger.versions import Fold, Growth, latest, record_growth, rows_to_write
from windrow.model import tables
from windrow.model.commits import CHANGE, VERSION, Commit, ListedVersions
from windrow.settings.settings import Settings
from windrow.source import Source
from windrow.source.arrivals import Arrivals
from windrow.source.conversion import Conversion
from windrow.source.slices import Slice

if TYPE_CHECKING:
    from tests.explorer.scheduler import Execution

STANDING = SimpleNamespace(name="embedded", remote=False, session_at_work=None, place=str)


@dataclass(frozen=True)
class TableVersion:
    """A version of a table: what its commit did, its rows, those that were added, and a digest of all up to it."""

    operation: str
    rows: pa.Table
    added: pa.Table
    digest: str

    @property
    def adds(self) -> bool:
        """Tell whether the commit may have added rows, which a MERGE in progress must not miss."""
        return self.operation in ("commit", "restore")

    @cached_property
    def live(self) -> pa.Table:
        """Return the live rows, with all of their versions."""
        return self.rows.filter(tables.is_live(self.rows["state"]))


@dataclass(frozen=True, slots=True)
class MemoryTable:
    """A Delta table as it is at some moment: its versions."""

    versions: tuple[TableVersion, ...] = ()

    @property
    def latest(self) -> int:
        """Return the number of the latest version, -1 if there is no table."""
        return len(self.versions) - 1

    @property
    def digest(self) -> str:
        """Return a digest of all versions in their order."""
        return self.versions[-1].digest if self.versions else ""

    def with_version(self, operation: str, rows: pa.Table, added: pa.Table) -> Self:
        """Return the table with one more version."""
        content = hashlib.sha256(f"{self.digest}/{operation}/".encode())
        for batch in rows.combine_chunks().to_batches():
            content.update(batch.serialize())
        version = TableVersion(operation, rows, added, content.hexdigest())
        return replace(self, versions=(*self.versions, version))

    def appended(self, rows: Iterable[Row]) -> Self:
        """Return a depot with one more version of messages."""
        added = messages(rows)
        before = self.versions[-1].rows if self.versions else added.slice(0, 0)
        return self.with_version("commit", pa.concat_tables([before, added]), added)

    def restored(self, version: int) -> Self:
        """Return the table after a RESTORE to one of its versions."""
        rows = self.versions[version].rows
        return self.with_version("restore", rows, rows.slice(0, 0))


@dataclass(frozen=True, slots=True)
class Tables:
    """Depot and ledger at some moment; of a topology also its output, and the plans beside the table of states."""

    depot: MemoryTable = MemoryTable()
    ledger: MemoryTable = MemoryTable()
    output: MemoryTable = MemoryTable()
    plans: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> object:
        """Return what tells them from all others."""
        return self.depot.digest, self.ledger.digest, self.output.digest, self.plans


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call returned or raised, and a digest of what the process learns from that."""

    digest: str
    result: Any = None
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """A call to a table: it takes the tables and returns them as they are afterwards, with the answer.

    `settled` tells of a reading call whether no later call of another process can change its answer, unless that
    process writes the depot.
    """

    name: str
    apply: Callable[[Tables], tuple[Tables, Answer]]
    writes: bool
    settled: Callable[[Tables], bool] = lambda now: False


class Shared:
    """The tables as one process reaches them: each call waits for its turn."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution

    def read(
        self,
        name: str,
        work: Callable[[Tables], Any],
        sees: Callable[[Tables], str],
        settled: Callable[[Tables], bool] = lambda now: False,
    ) -> Any:
        """Make a call that changes nothing; `sees` tells apart all that the process learns from it."""

        def apply(now: Tables) -> tuple[Tables, Answer]:
            try:
                return now, Answer(f"{name} {sees(now)}", work(now))
            except ConcurrentCommitError as error:
                return now, Answer(f"{name} moved", error=error)

        return self._execution.step(Call(name, apply, False, settled))

    def write(self, name: str, work: Callable[[Tables], Tables | None]) -> bool:
        """Make a call that returns other tables, or None to change nothing, or raises ConcurrentCommitError.

        Returns whether it changed something; no more is learnt from it.
        """

        def apply(now: Tables) -> tuple[Tables, Answer]:
            try:
                after = work(now)
            except (ConcurrentCommitError, TableUnwritableError) as error:
                return now, Answer(f"{name} refused", error=error)
            return after or now, Answer(f"{name} {after is not None}", after is not None)

        written: bool = self._execution.step(Call(name, apply, True))
        return written


class MemoryLog:
    """The log of a depot in memory."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.known = MemoryTable()  # the depot when it was looked at last: versions never change

    def table(self) -> TableInfo | None:
        """Return the depot's identity and latest version."""
        self.known = self._shared.read(
            "look", lambda now: now.depot, lambda now: now.depot.digest, settled=lambda now: True
        )
        return self.identity()

    def identity(self) -> TableInfo | None:
        """Return the depot as it was at the last look."""
        if not self.known.versions:
            return None
        return TableInfo(
            "depot", self.known.latest, self.known.versions[0].rows.schema, pa.string(), has_change_feed=True
        )

    def commits(self, since: int | None = None, last_version: int | None = None) -> list[Commit]:
        """Return the commits from one version to another."""
        versions = list(enumerate(self.known.versions))[
            max(since or 0, 0) : None if last_version is None else last_version + 1
        ]
        return [Commit(number, number, one.added.num_rows, f"log:{one.digest}") for number, one in versions]


class MemorySource(Source):
    """Reads a depot in memory."""

    def __init__(self, settings: Settings, shared: Shared, rows: bool = False) -> None:
        super().__init__(cast("Engine", STANDING), settings, rows)
        self._log = MemoryLog(shared)

    @property
    def log(self) -> Any:
        """Return the log of the depot."""
        return self._log

    @contextmanager
    def arrivals(self, after: int, last_version: int) -> Iterator[Arrivals | None]:
        """Give what the depot added after a version."""
        commits = self._log.commits(after, last_version)
        counts = {commit.version: commit.rows for commit in commits if commit.version > after and commit.rows}
        if not counts:
            yield None
            return
        conversion = Conversion.of(self.settings, cast("TableInfo", self._log.identity()), self._as_rows)
        listed = ListedVersions.of("depot", after + 1, commits)
        yield MemoryArrivals(listed, counts, {}, self.settings, conversion, last_version, self._log.known.versions)


@dataclass(frozen=True, slots=True)
class MemoryArrivals(Arrivals):
    """Versions of a depot in memory."""

    versions: Sequence[TableVersion] = ()

    def _slice(self, counts: Mapping[int, int | None]) -> Slice | None:
        parts = []
        for version in counts:
            added = self.versions[version].added
            columns = {CHANGE: pa.repeat("insert", added.num_rows), VERSION: pa.repeat(version, added.num_rows)}
            for name, column in columns.items():
                added = added.append_column(name, column)
            parts.append(added)
        feed = pa.concat_tables(parts)
        rows = self.conversion.new_rows(feed, pc.equal(feed[CHANGE], "insert"), self.settings.on_depot_change)
        return self._fill_slice(rows, counts, self.conversion.apply)


class MemoryLedger(Ledger):
    """A ledger in memory. `commit_mode` says by which of the two kinds of commits it is written."""

    def __init__(self, settings: Settings, shared: Shared) -> None:
        super().__init__(cast("Engine", STANDING), settings)
        self._shared, self.commit_mode = shared, settings.commit

    def table(self) -> TableInfo | None:
        """Return the ledger's first version, None if there is none: a batcher asks for nothing else."""
        first = self._shared.read(
            "ledger",
            lambda now: now.ledger.versions[:1],
            lambda now: str(now.ledger.latest >= 0),
            settled=lambda now: now.ledger.latest >= 0,
        )
        return TableInfo("ledger", 0, first[0].rows.schema, pa.string(), has_change_feed=False) if first else None

    def repair(self, depots: Iterable[str]) -> None:
        """Mend nothing: memory knows no power cut."""

    def create(self, first: pa.Table, retention: str) -> None:
        """Put version 0, unless there is one."""

        def created(now: Tables) -> Tables:
            return now if now.ledger.versions else replace(now, ledger=now.ledger.with_version("create", first, first))

        self._shared.write("create", created)

    def add_columns(self, columns: pa.Schema) -> None:
        """Add nothing: only topologies add columns."""

    def live(self) -> Live:
        """Read the live rows of the latest version."""
        found: MemoryTable = self._shared.read("prime", lambda now: now.ledger, lambda now: now.ledger.digest)
        live = found.versions[-1].live
        return replace(Live.of_rows(latest(live), found.latest), growth=Growth.of(live))

    def commit(self, processed: MicrobatchResult, control: pa.Table, live: Live, token: str, note: str) -> int:
        """Add rows, by adding files or by a MERGE. Raises ConcurrentCommitError."""
        new = (cast("pa.Table", processed.rows), control, *processed.states.values())
        parts = [rows_to_write(row, live.revision + 1) for row in new]
        rows = pa.concat_tables([conform(part, live.schema) for part in parts])
        if self.commit_mode == "files":
            self._shared.write("commit", lambda now: put(now, live.table_version, "commit", added=rows))
            return rows.num_rows
        read = self._shared.read("merge", lambda now: merging(now, token), lambda now: str(now.ledger.latest))
        self._shared.write("commit", lambda now: merged(now, read, rows))
        return rows.num_rows

    def fold(self, live: Live, fold: Fold) -> None:
        """Replace the live rows by those that count, on exactly the primed version; here every fold is a large one."""
        counted = live.growth.after_fold("large", live.totals.total[1])
        self._shared.write("fold", lambda now: put(now, live.table_version, "fold", folded=counted))


def put(now: Tables, on: int, operation: str, added: pa.Table | None = None, folded: Growth | None = None) -> Tables:
    """Put the version after a known one, with more rows or folded ones. Raises ConcurrentCommitError."""
    if now.ledger.latest != on:
        raise ConcurrentCommitError("the ledger has another version", "Nothing was written.")
    before = now.ledger.versions[on].rows
    if folded is None:
        rows = pa.concat_tables([before, added])
    else:
        added, alive = before.slice(0, 0), tables.is_live(before["state"])
        rows = pa.concat_tables([before.filter(pc.invert(alive)), folded_rows(before.filter(alive), folded)])
    return replace(now, ledger=now.ledger.with_version(operation, rows, added))


def folded_rows(live: pa.Table, growth: Growth) -> pa.Table:
    """Return what counts among live rows, as a large fold writes it."""
    kept = latest(live)
    at = kept.schema.get_field_index("folded")
    return record_growth(kept.set_column(at, kept.schema.field(at), pa.array([True] * kept.num_rows)), growth)


def merging(now: Tables, token: str) -> int:
    """Return the version that a MERGE reads. Raises ConcurrentCommitError if it does not have the primed token."""
    progress = latest(
        now.ledger.versions[-1].live.filter(pc.equal(now.ledger.versions[-1].live["id"], tables.PROGRESS))
    )
    if progress["token"].to_pylist() != [token]:
        raise ConcurrentCommitError("the ledger has another token", "Nothing was written.")
    return now.ledger.latest


def merged(now: Tables, read: int, rows: pa.Table) -> Tables:
    """Commit a MERGE on the latest version. Raises ConcurrentCommitError if rows were added since it read."""
    if any(version.adds for version in now.ledger.versions[read + 1 :]):
        raise ConcurrentCommitError("rows were added to what the MERGE read", "Nothing was written.")
    return put(now, now.ledger.latest, "commit", added=rows)
