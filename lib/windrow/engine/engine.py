"""What depots and ledgers need from an engine: Delta tables, wherever they are. It knows neither depots nor ledgers.

`windrow.source` reads depots through an engine, `windrow.ledger` commits to ledgers, `windrow.ingest` appends to
depots. Each has a class for each engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, TypeAlias

import pyarrow as pa

from windrow.delta.log import Log
from windrow.delta.maintenance import TableMaintenance
from windrow.engine.side_files import LocalSideFiles, StoredSideFiles
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SideFiles: TypeAlias = LocalSideFiles | StoredSideFiles


class Engine(Protocol):
    """Reaches Delta tables. Other methods name a table by its `place`, the location as the engine writes it."""

    name: str
    remote: bool = False  # Spark Connect: functions of a stream run in another process
    settings: Settings

    def place(self, location: str) -> str:
        """Return a location as the engine writes it. Raises EngineUnavailableError for one that it cannot reach."""

    def log(self, place: str) -> Log:
        """Return the log of a table."""

    def path(self, place: str) -> str | None:
        """Return the path of a table for commands without Spark, None if they can read none."""

    def lock(self, place: str, sync: bool = True) -> AbstractContextManager[None]:
        """Hold the lock of a table on a local disk; with `sync`, what was written is on the disk afterwards.

        Other tables have no lock. Raises TableLockedError, and EngineUnavailableError if commits there could replace
        each other.
        """

    def maintenance(self, place: str, role: str) -> TableMaintenance:
        """Return the maintenance of a table, which is a `depot` or a `ledger`."""

    def side_files(self, place: str) -> SideFiles:
        """Return the small texts beside a table. Raises TableMissingError."""

    def transaction(self, place: str, application: str, last_version: int) -> int | None:
        """Return the last version recorded in the log of a table for a transaction id, None if there is none.

        A version greater than `last_version` may be returned as `last_version`.
        """

    def free_number(self, place: str, application: str, least: int) -> int:
        """Return the first number from `least` on that the log of a table has not recorded for a transaction id."""

    def append(self, place: str, rows: Sequence[pa.Table | DataFrame], transaction: tuple[str, int], note: str) -> None:
        """Append rows to a table in one commit, unless its log has this transaction; create it if it is missing.

        `note` becomes the commit's user metadata. Raises TableUnwritableError if the log has a greater number.
        """

    @property
    def session_at_work(self) -> SparkSession | None:
        """Return the Spark session that a microbatch works on, None without Spark."""
        return None
