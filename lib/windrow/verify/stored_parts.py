"""The parts of a verification in the files of this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.delta.database import joins_as_written
from windrow.verify.base import Base
from windrow.verify.decisions import Derivation
from windrow.verify.depot import DepotMessages
from windrow.verify.part_check import PartResult, check_loaded, load
from windrow.verify.parts import EVERY, Part, PartedRows, divide
from windrow.verify.quality.parted import check_overall, create_views
from windrow.verify.report import Difference
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import load_all, load_nothing, load_open

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection


@dataclass(frozen=True)
class StoredParts:
    """Parts of `ledger`, of `messages` of the depot, and of what was open in a base; one connection checks them."""

    connection: DuckDBPyConnection
    snapshot: LedgerContents
    depot: DepotMessages
    ledger: PartedRows
    messages: PartedRows
    base: Base | None

    def __post_init__(self) -> None:
        """Load what needs no messages."""
        load_all(self.connection, self.snapshot, self.ledger)
        load_nothing(self.connection, self.ledger)
        for schema in ("part", "overall"):
            create_views(self.connection, schema)

    @cached_property
    def parts(self) -> list[Part]:
        """Return the parts."""
        stored = [self.ledger, self.messages, *([self.base.rows] if self.base else [])]
        return divide([rows.byte_count for rows in stored], self.ledger.max_memory_bytes)

    @property
    def count(self) -> int:
        """Return how many parts there are."""
        return len(self.parts)

    def ask(self, query: str) -> pa.Table:
        """Return the answer to a query over `all_batches` and `all_rejected`."""
        return self.connection.sql(query).to_arrow_table()

    def ask_depot(self, query: str) -> pa.Table:
        """Return the answer to a query over `stream`, the messages of the depot."""
        self.connection.register("stream", self.messages.read("depot", EVERY))
        with joins_as_written(self.connection):
            return self.ask(query)

    def check(self, derivation: Derivation | None, progress: Callable[[int], None]) -> Iterator[PartResult]:
        """Yield what the check of each part finds."""
        for part in self.parts:
            load(self.connection, part, self.ledger, self.messages)
            if self.base:
                load_open(self.connection, part, self.base.rows, self.base.since.depot_version)
            result = check_loaded(self.connection, self.snapshot, self.depot, derivation, progress)
            derivation = None if result.redecided.ended else derivation
            yield result

    def check_overall(self) -> Iterator[Difference]:
        """Check the invariants that need no messages, of all streams."""
        return check_overall(self.connection)
