"""One commit to a ledger: files that come and files that go, the version it rests on, and what the log shows of it.

On a disk of this machine it is an entry put right behind the one that prime saw. Where that is taken, delta-rs compares
what came between with what was read, and finds the place or refuses. Now and then delta-rs commits in any case, because
it looks after the log as well: it writes a checkpoint as often as the table asks for one, and removes what is old.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.transaction import AddAction, RemoveAction

from windrow import entries, tables
from windrow.engine.live_files import BY, File
from windrow.entries import Action
from windrow.errors import LedgerMoved
from windrow.storage import UNTRIMMED, Seen

TRIMMED_EVERY = 100  # commits; to look for what is to be trimmed lists the whole log


@dataclass(frozen=True, slots=True)
class LedgerCommit:
    """What to commit to the ledger at a location, as it was seen."""

    location: str
    seen: Seen
    added: Sequence[AddAction]
    removed: Sequence[File]
    note: Mapping[str, str]

    def make(self) -> None:
        """Commit. Raises CommitFailedError for what others did since, LedgerMoved for another ledger, OSError."""
        log, seen = self.seen.log, self.seen
        if log is None or seen.identity is None:
            self._written(seen.table)
            return
        if self._is_plain() and log.put(self._actions(), seen.version, seen.identity) is not None:
            return
        if not log.holds(seen.version, seen.identity):
            raise LedgerMoved(
                f"the ledger at {self.location} was set back or is another one since prime read it",
                "Nothing was written.",
            )
        self._written(DeltaTable(self.location, version=seen.version))

    def _is_plain(self) -> bool:
        """Tell whether the commit is files and numbers, and nothing else is to be done at it."""
        table, version = self.seen.table, self.seen.version + 1
        metadata = table.metadata()
        checkpoint = (version + 1) % entries.checkpoint_interval(table) == 0
        return (
            entries.is_plain(table)
            and metadata.partition_columns == [BY]
            and metadata.configuration.get("delta.appendOnly", "false") == "false"
            and not checkpoint
            and not self._trims
        )

    @property
    def _trims(self) -> bool:
        return self.seen.version % TRIMMED_EVERY == 0

    @property
    def _number(self) -> tuple[str, int]:
        """Return the transaction id with which Spark's second belt compares, and the version that prime saw."""
        return tables.application(str(self.seen.table.metadata().id)), self.seen.version

    def _actions(self) -> list[Action]:
        at = entries.now()
        parameters = {"mode": "Append", "partitionBy": json.dumps([BY])}
        return [
            {"commitInfo": entries.commit_info(parameters, self.note, at)},
            *(entries.add(one.path, one.size, one.partition_values, one.stats, at) for one in self.added),
            *(entries.remove(file.path, file.size, {BY: file.state}, at) for file in self.removed),
            entries.number(*self._number, at),
        ]

    def _written(self, table: DeltaTable) -> None:
        """Have delta-rs commit to the table as it was when it was seen."""
        at = entries.now()
        gone = [RemoveAction(file.path, True, at, file.size, {BY: file.state}) for file in self.removed]
        noted = CommitProperties(custom_metadata=dict(self.note), app_transactions=[Transaction(*self._number)])
        table.create_write_transaction(
            [*self.added, *gone],
            "append",
            table.schema(),
            partition_by=[BY],
            commit_properties=noted,
            post_commithook_properties=None if self._trims else UNTRIMMED,
        )
