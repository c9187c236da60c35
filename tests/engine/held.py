"""Tasks on the executors that stand still in the middle, so that a test can kill what runs them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from windrow.batching.step import Step
from windrow.engine import Engine
from windrow.ledger.live import Live
from windrow.ledger.merge import SparkCommit
from windrow.ledger.spark import SparkLedger
from windrow.model.floors import Floors
from windrow.runtime.algorithm import MicrobatchPlan
from windrow.runtime.batcher import Batcher
from windrow.settings.settings import Settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

WORKER = "CLUSTER_WORKER"


@dataclass(frozen=True, slots=True)
class Hold:
    """A directory where the first tasks that come by say on which worker they are, and then wait forever."""

    directory: str
    tasks: int

    @classmethod
    def make(cls, directory: Path, tasks: int) -> Hold:
        """Make one."""
        directory.mkdir()
        os.mkfifo(directory / "release")
        return cls(str(directory), tasks)

    def here(self) -> None:
        """Hold this task when it is one of the first; those that come later pass."""
        place = Path(self.directory)
        mine = place / f"task-{os.getpid()}"
        mine.write_text(os.environ[WORKER])
        for number in range(self.tasks):
            try:
                os.link(mine, place / f"held-{number}")
            except FileExistsError:
                continue
            (place / "release").read_bytes()  # nobody ever writes there
            return

    def workers(self) -> list[str]:
        """Return the workers that have a held task, once all are held."""
        workers = [file.read_text() for file in Path(self.directory).glob("held-*")]
        return workers if len(workers) == self.tasks else []


@dataclass(frozen=True, slots=True)
class BlockingStep(Step):
    """A step whose first tasks stand still when they have their messages."""

    hold: Hold = field(kw_only=True)

    def __call__(self, arrived: pa.Table, live: pa.Table) -> tuple[pa.Table, Floors]:
        """Process, if not held."""
        self.hold.here()
        return Step.__call__(self, arrived, live)


@dataclass(frozen=True, slots=True)
class BlockingBatcher(Batcher):
    """A batcher whose steps stand still."""

    hold: Hold = field(kw_only=True)

    def step(self, plan: MicrobatchPlan) -> BlockingStep:
        """Return the step that stands still."""
        step = Batcher.step(self, plan)
        return BlockingStep(**{field.name: getattr(step, field.name) for field in fields(Step)}, hold=self.hold)


class HeldLedger(SparkLedger):
    """A ledger whose commit has its first tasks stand still when they have read what is to be written."""

    def __init__(self, engine: Engine, settings: Settings, hold: Hold) -> None:
        super().__init__(engine, settings)
        self._hold = hold

    def statement(self, live: Live, token: str, note: str) -> SparkCommit:
        """Return a commit that stands still."""
        commit = super().statement(live, token, note)
        return HeldCommit(commit.session, commit.ledger, live, token, note, self._hold.here)


@dataclass(frozen=True, slots=True)
class HeldCommit(SparkCommit):
    """A commit whose tasks call `here` when they have read what is to be written."""

    here: Callable[[], object]

    @contextmanager
    def stage(self, frame: DataFrame) -> Iterator[str]:
        """Have the rows pass through a function that calls."""
        here = self.here

        def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            record_batches = list(batches)
            here()
            yield from record_batches

        with SparkCommit.stage(self, frame.mapInArrow(passed, frame.schema)) as source:
            yield source
