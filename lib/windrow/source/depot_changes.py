"""A depot may only grow: refuse versions that deleted, rewrote or restored rows.

A version that lost rows stops the run. Somebody then decides: skip that one version and read none of its rows, or
set `on_depot_change = "ignore"`, which reads what such versions add.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from windrow.errors import DepotChangedError
from windrow.model.commits import VERSION, ListedVersions

GO_ON = (
    "The version was not read. To skip it and read none of its rows: `windrow run --skip-version {version}` "
    '(of a topology, --skip-version DEPOT:{version}); if a job deletes rows, on_depot_change = "ignore" reads '
    "what such versions add."
)

READ_IT = 'Set on_depot_change = "ignore" to read what it changed like any other change, unless it is a RESTORE. '


def refuse_changes(changes: pa.Table) -> None:
    """Raise DepotChangedError if a change feed has rows other than insertions."""
    # guard: depot-unchanged-rows
    if changes.num_rows:
        first = changes[VERSION][0].as_py()
        raise DepotChangedError(
            f"depot version {first} deletes or updates rows, but a depot may only grow",
            GO_ON.format(version=first),
        )


def refuse_set_back(microbatches: pa.Table, may_be_read: bool = True) -> None:
    """Raise DepotChangedError if a ledger lost microbatches or rolled some back; `may_be_read`: a setting allows it."""
    # guard: ledger-not-set-back
    if microbatches.num_rows:
        first = microbatches[VERSION][0].as_py()
        raise DepotChangedError(
            f"version {first} of the ledger that is read as a depot undoes earlier microbatches: somebody "
            "rolled it back or restored it",
            f"The version was not read. {READ_IT if may_be_read else ''}"
            f'Begin a new table of states, which has only what changed since: start_from = "version:{first + 1}".',
        )


def refuse_restored(listed: ListedVersions, versions: Iterable[int]) -> None:
    """Raise DepotChangedError if a version is a RESTORE: rows that it brings back have been read, or were deleted."""
    restored = listed.restored.intersection(versions)
    # guard: restored-is-not-new
    if restored:
        raise DepotChangedError(
            f"depot version {min(restored)} is a RESTORE and brings back rows of earlier versions",
            GO_ON.format(version=min(restored)),
        )
