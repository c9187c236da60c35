"""A depot, and faults of commits to it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from windrow.columnar.arrow import to_plain_types
from windrow.producer import Producer
from windrow.producer.writer import CommitEntry, DepotWriter

REALLY_WRITE = DepotWriter._write


class Faults:
    """Faults of commits: `before` and `after` are called with the number of the attempt, and may raise."""

    def __init__(self) -> None:
        self.attempts = 0
        self.before: Callable[[int], None] = lambda attempt: None
        self.after: Callable[[int], None] = lambda attempt: None

    def write(self, ours: DepotWriter, rows: pa.Table, entry: CommitEntry) -> int:
        """Write as the writer does, with the faults around it."""
        self.attempts += 1
        attempt = self.attempts
        self.before(attempt)
        version = REALLY_WRITE(ours, rows, entry)
        self.after(attempt)
        return version


class Gate:
    """Holds a commit until it is opened, and tells when a commit is waiting."""

    def __init__(self) -> None:
        self._come, self._open = threading.Event(), threading.Event()

    def __call__(self, attempt: int) -> None:
        """Hold a commit."""
        self._come.set()
        assert self._open.wait(60)

    def await_commit(self) -> None:
        """Wait until a commit is held."""
        assert self._come.wait(60)

    def open(self) -> None:
        """Let it pass."""
        self._open.set()


@pytest.fixture
def depot(tmp_path: Path) -> str:
    """A place for a depot."""
    return str(tmp_path / "depot")


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> Faults:
    """What goes wrong with commits."""
    commit_faults = Faults()

    def write(ours: DepotWriter, rows: pa.Table, entry: CommitEntry) -> int:
        return commit_faults.write(ours, rows, entry)

    monkeypatch.setattr(DepotWriter, "_write", write)
    return commit_faults


@pytest.fixture
def gate() -> Iterator[Gate]:
    """A gate that is opened at the end in any case."""
    commit_gate = Gate()
    yield commit_gate
    commit_gate.open()


def messages(depot: str) -> pa.Table:
    """Return the messages of a depot by their numbers."""
    return to_plain_types(DeltaTable(depot).to_pyarrow_table()).sort_by("sequence")


def empty(producer: Producer) -> bool:
    """Tell whether all of the buffer is free again."""
    metrics = producer.metrics()
    return metrics.buffer_available_bytes == metrics.buffer_total_bytes
