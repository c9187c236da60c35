"""The notes of a journal (`windrow.engine.side_files`), written and read by Spark where delta-rs cannot."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from windrow.delta.locations import is_catalog_name, reference
from windrow.delta.table import unwritable_error
from windrow.engine.side_files import ATTEMPTS, BRIEF, LATEST, Journal
from windrow.engine.spark.log import SparkLog
from windrow.model.commits import note_of


@dataclass(frozen=True, slots=True)
class SparkJournal(Journal):
    """Notes in Spark commits, each of which replaces one row: Spark skips a commit without files."""

    session: SparkSession
    location: str

    def write(self, note: Mapping[str, Any]) -> None:
        """Commit a note; if another writer's commit came in between, try again. Raises TableUnwritableError."""
        row = self.session.createDataFrame([(note["name"],)], "name STRING").coalesce(1)
        for attempt in range(ATTEMPTS):
            try:
                self._replace(row, json.dumps(note))
            except Exception as error:  # a PySparkException, or whatever the bridge to Java raises
                if attempt + 1 == ATTEMPTS:
                    raise unwritable_error(self.location, "ledger", error) from error
            else:
                return

    def _replace(self, row: DataFrame, note: str) -> None:
        if not is_catalog_name(self.location):
            row.write.format("delta").mode("overwrite").option("userMetadata", note).save(self.location)
            return
        name = reference(self.location)
        properties = ", ".join(f"'{key}' = '{value}'" for key, value in BRIEF.items())
        self.session.sql(f"CREATE TABLE IF NOT EXISTS {name} (name STRING) USING DELTA TBLPROPERTIES ({properties})")
        row.writeTo(name).option("userMetadata", note).overwrite(F.lit(True))

    def notes(self) -> Iterable[Mapping[str, Any]]:
        """Return the latest notes, newest first."""
        commits = SparkLog(self.session, reference(self.location)).recent(LATEST)
        return [note_of(commit) for commit in commits]
