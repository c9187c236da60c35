"""What a benchmark is given: where, how often, how large, and whom to tell how far it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession


@dataclass(frozen=True, slots=True)
class Conditions:
    """A directory of its own, the rounds to measure, and a Spark session for who asks for it."""

    directory: Path
    rounds: int
    quick: bool
    spark: Callable[[], SparkSession]
    tell: Callable[[str], None] = lambda text: None

    def size(self, full: int, quick: int) -> int:
        """Return the size to measure: with --quick only so much that everything is done once."""
        return quick if self.quick else full
