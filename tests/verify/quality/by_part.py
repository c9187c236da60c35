"""The critical invariants of a ledger alone, checked part by part as `verify` does."""

from __future__ import annotations

from windrow.delta.database import MEMORY_BYTES
from windrow.reading.tables import Ledger
from windrow.verify.depot import add_messages
from windrow.verify.parts import PartedRows, divide
from windrow.verify.quality.parted import check_overall, check_part, create_views
from windrow.verify.report import Found, merge_findings
from windrow.verify.snapshot import read_snapshot
from windrow.verify.tables import ledger_tables, load_all, load_nothing, load_part


def check_invariants(ledger: Ledger) -> list[Found]:
    """Return what fails in a ledger version."""
    with PartedRows(MEMORY_BYTES) as rows, PartedRows(MEMORY_BYTES) as messages:
        add_messages((), messages)
        snapshot = read_snapshot(ledger, rows)
        with ledger_tables(snapshot, MEMORY_BYTES) as connection:
            load_all(connection, snapshot, rows)
            load_nothing(connection, rows)
            create_views(connection, "part")
            findings: list[Found] = [*check_overall(connection)]
            for part in divide([rows.byte_count], MEMORY_BYTES):
                load_part(connection, part, rows, messages)
                findings += check_part(connection)
    return merge_findings(findings)
