"""The check of parts of the streams of one ledger version: here, or in a task of Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from windrow.verify.decisions import OF_PARTS, DecisionCheck, Derivation, decide_part
from windrow.verify.depot import DepotMessages
from windrow.verify.messages import MessageMatch, match
from windrow.verify.parts import Part, PartedRows
from windrow.verify.quality.parted import check_part, create_views
from windrow.verify.report import Difference, Found
from windrow.verify.snapshot import LedgerContents
from windrow.verify.tables import OF_LEDGER, ledger_tables, load_nothing, load_part

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STREAMS = "SELECT count(*) FROM (SELECT DISTINCT source, key FROM batches)"


@dataclass(frozen=True, slots=True)
class PartResult:
    """What the check of a part found: about its messages and invariants, and about its decisions."""

    matched: MessageMatch
    findings: Sequence[Found]
    redecided: DecisionCheck
    streams: int


@dataclass(frozen=True, slots=True)
class PartContext:
    """What all parts need besides their rows: the rest of the ledger, and what their decisions follow from.

    `snapshot` and `depot` have no rows. `relations` are those that `OF_PARTS` names.
    """

    snapshot: LedgerContents
    depot: DepotMessages
    derivation: Derivation | None
    relations: Mapping[str, pa.Table]

    @contextmanager
    def opened(self, rows: PartedRows) -> Iterator[DuckDBPyConnection]:
        """Yield a connection to what all parts need, with tables for `rows` of a part."""
        with ledger_tables(self.snapshot, rows.max_memory_bytes) as connection:
            for name, relation in self.relations.items():
                connection.register(name, relation)
            load_nothing(connection, rows)
            create_views(connection, "part")
            yield connection


class Parts(Protocol):
    """The streams of a ledger version and its depot in parts, and questions about all of them."""

    @property
    def count(self) -> int:
        """Return how many parts there are."""

    def ask(self, query: str) -> pa.Table:
        """Return the answer to a query over `all_batches` and `all_rejected`, in SQL that DuckDB and Spark know."""

    def ask_depot(self, query: str) -> pa.Table:
        """Return the answer to a query over `stream`, the messages of the depot; rows may come in parts."""

    def check(self, derivation: Derivation | None, progress: Callable[[int], None]) -> Iterator[PartResult]:
        """Yield what the check of each part finds; `progress` is called with the messages derived in a part so far."""

    def check_overall(self) -> Iterator[Difference]:
        """Check the invariants that need no messages, of all streams."""


def relations_of_parts(connection: DuckDBPyConnection) -> dict[str, pa.Table]:
    """Return the relations that all parts need to derive decisions."""
    return {name: connection.sql(query).to_arrow_table() for name, query in OF_PARTS.items()}


def check_loaded(
    connection: DuckDBPyConnection,
    snapshot: LedgerContents,
    depot: DepotMessages,
    derivation: Derivation | None,
    progress: Callable[[int], None],
) -> PartResult:
    """Check the part that is loaded: its messages, the invariants of its streams, and the decisions on them."""
    matched, differences = match(connection, snapshot, depot)
    findings = [*differences, *check_part(connection)]
    decided = decide_part(connection, derivation, progress)
    [(streams,)] = connection.sql(STREAMS).fetchall()
    return PartResult(matched, findings, decided, streams)


def load(connection: DuckDBPyConnection, part: Part, ledger: PartedRows, depot: PartedRows) -> None:
    """Load a part of the rows of ledger and depot."""
    load_part(connection, part, {"depot": depot} | dict.fromkeys(OF_LEDGER, ledger))
