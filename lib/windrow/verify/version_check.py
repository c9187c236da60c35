"""The check of one ledger version against the depot, as many streams at a time as fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from windrow.verify.base import Base
from windrow.verify.decisions import Decisions
from windrow.verify.depot import Depot
from windrow.verify.messages import Matched, check_counts, check_versions, match
from windrow.verify.parts import Part, divide
from windrow.verify.quality.parted import check_overall, check_part, create_views
from windrow.verify.raw.checks import check_raw
from windrow.verify.report import Books, Found, Standing, merged
from windrow.verify.snapshot import Snapshot
from windrow.verify.tables import OF_LEDGER, ledger_tables, load_open, load_part

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

COUNTS = """
SELECT coalesce(sum(message_rows) FILTER (WHERE state = 'open'), 0)::BIGINT,
    coalesce(sum(message_rows) FILTER (WHERE state = 'closed'), 0)::BIGINT, (SELECT count(*) FROM all_rejected)
FROM all_batches
"""
STREAMS = "SELECT count(*) FROM (SELECT DISTINCT source, key FROM batches)"
Progress: TypeAlias = Callable[[Standing], None]


class VersionCheck:
    """The check of one ledger version against the depot: `found` has what is wrong, and what could not be checked."""

    def __init__(self, snapshot: Snapshot, depot: Depot, max_memory_bytes: int, base: Base | None) -> None:
        """Check within so much memory what came after the base, without one everything."""
        self._snapshot, self._depot, self._base = snapshot, depot, base
        self._max_memory_bytes = max_memory_bytes
        self.found: list[Found] = []
        self._matched = Matched()

    def run(self, most: int | None, progress: Progress) -> Books:
        """Check part by part what concerns streams, and the rest over all parts; return the books."""
        snapshot, depot, room = self._snapshot, self._depot, self._max_memory_bytes
        stored = [snapshot.rows, depot.rows, *([self._base.snapshot.rows] if self._base else [])]
        parts = divide([one.byte_count for one in stored], room)
        standing = Standing(snapshot.version, parts=len(parts))
        with ledger_tables(snapshot, room) as connection:
            create_views(connection)
            decisions = Decisions(connection, snapshot, self._base.since.microbatch if self._base else 0)
            decisions.check(depot, most, room)
            standing = replace(standing, streams=decisions.streams, messages=decisions.chosen)
            by_part = list[Found]()
            for number, part in enumerate(parts):

                def derived(done: int, now: Standing = standing) -> None:
                    progress(replace(now, derived_messages=done))

                progress(standing)
                by_part += self._check_part(connection, part)
                decisions.check_part(derived)
                [(streams,)] = connection.sql(STREAMS).fetchall()
                standing = replace(
                    standing,
                    parts_done=number + 1,
                    proven_streams=standing.proven_streams + streams,
                    derived_messages=decisions.placed,
                    differences=len(merged([*by_part, *decisions.found])),
                )
            progress(standing)
            in_open, in_closed, rejected = _counts(connection)
            self.found += check_versions(snapshot, depot)
            self.found += check_counts(snapshot, depot, self._matched, in_open + in_closed + rejected)
            self.found += [*merged(by_part), *check_raw(snapshot, depot), *check_overall(connection)]
            self.found += merged(decisions.found)
        partly = depot.readable > depot.first
        return Books(
            ledger_version=snapshot.version,
            depot_version=snapshot.progress.depot_version,
            microbatches=snapshot.history.num_rows,
            messages_read=snapshot.messages_read,
            in_open_batches=in_open,
            in_closed_batches=in_closed,
            rejected=rejected,
            rejected_by_format=snapshot.raw.rejected.num_rows if snapshot.raw else 0,
            ok=self._matched.ok,
            lost=self._matched.lost,
            duplicated=0 if partly else self._matched.duplicated,
            unexpected=0 if partly else self._matched.unexpected,
            unchecked=self._matched.extra if partly else 0,
            decided=decisions.messages,
            streams=decisions.streams,
            derived_streams=decisions.derived,
        )

    def _check_part(self, connection: DuckDBPyConnection, part: Part) -> list[Found]:
        """Load a part; check its messages, and the invariants of its streams."""
        load_part(connection, part, {"depot": self._depot.rows} | dict.fromkeys(OF_LEDGER, self._snapshot.rows))
        if self._base:
            load_open(connection, part, self._base.snapshot.rows, self._base.since.depot_version)
        matched, differences = match(connection, self._snapshot, self._depot)
        self._matched += matched
        return [*differences, *check_part(connection)]


def _counts(connection: DuckDBPyConnection) -> tuple[int, int, int]:
    """Return the number of messages in open and in closed batches, and of rejections."""
    [counts] = connection.sql(COUNTS).fetchall()
    return counts
