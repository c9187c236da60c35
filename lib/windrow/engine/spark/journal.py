"""The notes of a journal (`windrow.engine.side_files`), written and read by Spark where delta-rs cannot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from windrow.delta.locations import reference
from windrow.delta.table import unwritable
from windrow.engine.side_files import ATTEMPTS, LATEST, Journal
from windrow.engine.spark.log import SparkLog
from windrow.model.commits import note_of


@dataclass(frozen=True, slots=True)
class SparkJournal(Journal):
    """Notes in commits by Spark, which each replace one row: Spark leaves out a commit without files."""

    session: SparkSession
    location: str

    def write(self, note: Mapping[str, Any]) -> None:
        """Commit a note; if another writer's commit came in between, try again. Raises TableUnwritable."""
        row = self.session.createDataFrame([(note["name"],)], "name STRING").coalesce(1).write.format("delta")
        row = row.mode("overwrite").option("userMetadata", json.dumps(note))
        for attempt in range(ATTEMPTS):
            try:
                row.save(self.location)
            except Exception as error:  # as a PySparkException, or as what the bridge to Java makes of it
                if attempt + 1 == ATTEMPTS:
                    raise unwritable(self.location, "ledger", error) from error
            else:
                return

    def notes(self) -> Iterable[Mapping[str, Any]]:
        """Return the latest notes, newest first."""
        found = SparkLog(self.session, reference(self.location)).recent(LATEST)
        return [note_of(commit) for commit in found]
