"""Compare the final rows of two ledger versions: they are in the same files, or equal rows are in others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from deltalake import DeltaTable

from windrow.columnar.arrow import times_to_numbers, to_plain_types
from windrow.delta.database import database
from windrow.delta.table import table_files, translate_read_errors
from windrow.model.tables import FINAL
from windrow.reading.tables import Ledger
from windrow.verify.report import Difference, difference_in_rows

# Rows that two sets of files do not have equally often.
CHANGED = """
SELECT DISTINCT state, id FROM (
    SELECT state, id, hash(r) AS content, 1 AS sign FROM older AS r
    UNION ALL SELECT state, id, hash(r), -1 FROM newer AS r
) GROUP BY state, id, content HAVING sum(sign) <> 0 ORDER BY state, id
"""


def last_revision(ledger: Ledger) -> int:
    """Return the revision of the last commit of a ledger version: later rows have later ones."""
    return int(ledger.rows("progress", "max(revision) AS revision")["revision"][0].as_py())


def check_finals(before: Ledger, after: Ledger) -> Iterator[Difference]:
    """Check that closed batches, rejections and history of a version are the same in a later one.

    Rows that are in the same file are the same. Those of other files are compared by their hashes; what came since then
    is left out. Raises TableUnreadableError for a file that is gone.
    """
    revision = last_revision(before)
    old, new = (final_files(snapshot.table) for snapshot in (before, after))
    gone, others = old.keys() - new.keys(), [path for path in new if path not in old and (new[path] or 0) <= revision]
    if not gone and not others:
        return
    not_newer = ~(ds.field("revision") > revision) | ds.field("revision").is_null()
    names = [field.name for field in before.table.schema().fields if field.name != "folded"]
    with translate_read_errors(before.location, "ledger"), database() as connection:
        connection.register("older", _rows(before, gone, names, None))
        connection.register("newer", _rows(after, others, names, not_newer))
        changed = connection.sql(CHANGED).to_arrow_table()
    for state in FINAL:
        rows = changed.filter(pc.equal(changed["state"], state)).select(["id"])
        expected = f"final rows as in version {before.version}"
        yield from difference_in_rows(f"final rows ({state})", expected, rows, "rows that changed")


def final_files(table: DeltaTable) -> dict[str, int | None]:
    """Return the least revision in each live file of final rows, by path; None if the log does not say it."""
    listed = to_plain_types(pa.RecordBatchReader.from_stream(table.get_add_actions(flatten=True)).read_all())
    names = [name for name in ("path", "partition.state", "min.revision") if name in listed.column_names]
    entries = times_to_numbers(listed.select(names)).to_pylist()
    return {unquote(entry["path"]): entry.get("min.revision") for entry in entries if entry["partition.state"] in FINAL}


def _rows(ledger: Ledger, paths: Iterable[str], names: list[str], where: ds.Expression | None) -> pa.RecordBatchReader:
    """Return a reader over the rows in some files of a ledger."""
    chosen, store = set(paths), table_files(ledger.location, ledger.table)
    table = ledger.table.to_pyarrow_dataset(filesystem=store)
    files = [get_fragment for get_fragment in table.get_fragments() if unquote(get_fragment.path) in chosen]
    return (
        ds.FileSystemDataset(files, table.schema, table.format, store).scanner(columns=names, filter=where).to_reader()
    )
