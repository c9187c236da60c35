"""What a batch of a streaming query held, as its commit to the depot records it.

A number alone does not identify a batch: if the newest files of a checkpoint are lost, Spark gives the same number to
other rows. So the note of the commit has the number of rows, and a digest that depends neither on their order nor on
partitions: the sum of a hash of each row.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from windrow.model.commits import note_of


@dataclass(frozen=True, slots=True)
class StreamBatch:
    """A batch: the transaction id of its query, its number, the count and the digest of its rows."""

    query: str
    batch: int
    rows: int
    digest: str

    @classmethod
    def of(cls, rows: DataFrame, query: str, number: int) -> Self:
        """Compute the digest of the messages of a batch."""
        columns = [F.col(name) for name in rows.columns]
        hashed = F.xxhash64(*columns, *[column.isNull() for column in columns])  # which skips NULL
        count, digest = rows.select(F.count("*"), F.sum(hashed.cast("decimal(20, 0)"))).collect()[0]
        return cls(query, number, count, str(digest or 0))

    @property
    def note(self) -> str:
        """Return the user metadata of the commit."""
        return json.dumps(asdict(self))

    @property
    def name(self) -> str:
        """Return a transaction id of its own, for a batch whose number has become that of another one."""
        return f"{self.query}/{self.batch}/{self.digest}"

    def is_in(self, commits: Iterable[Mapping[str, Any]]) -> bool:
        """Tell whether one of the commits added this batch."""
        return any(note_of(commit) == asdict(self) for commit in commits)
