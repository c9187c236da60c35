"""Write the rows of a microbatch part by part, where they are; only the files and the counts of a part remain."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa

from windrow.ledger.file_writer import FileWriter, WrittenFile
from windrow.ledger.result import GROUPS, count_rows
from windrow.ledger.versions import rows_to_write
from windrow.model.tables import CHANGED


@dataclass(frozen=True, slots=True)
class WrittenRows:
    """Files that no commit has added yet, and the counts of their rows and of the unchanged rows (`GROUPS`)."""

    files: list[WrittenFile]
    groups: pa.Table

    @classmethod
    def together(cls, parts: Iterable[WrittenRows]) -> WrittenRows:
        """Return the written rows of several parts."""
        listed = list(parts)
        files = [file for part in listed for file in part.files]
        return cls(files, pa.concat_tables([GROUPS.empty_table(), *(part.groups for part in listed)]))


@dataclass(frozen=True, slots=True)
class RowWriter:
    """Writes files of a ledger with the columns `schema`, as rows of a `revision`."""

    files: FileWriter
    schema: pa.Schema
    revision: int

    @property
    def no_rows(self) -> pa.Table:
        """Return the rows of a result that are not in files: an empty table."""
        return self._known.empty_table()

    def write(self, rows: pa.Table) -> WrittenRows:
        """Write the rows that are `changed`, and count all."""
        changed = rows.filter(rows[CHANGED]).select(self._known.names).cast(self._known)
        return WrittenRows(self.files.write_all(rows_to_write(changed, self.revision)), count_rows(rows))

    @property
    def _known(self) -> pa.Schema:
        return self.schema.append(pa.field("known", pa.bool_()))
