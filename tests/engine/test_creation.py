"""A ledger that two drivers create at once, where no lock keeps them apart: the first commit decides."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.delta import creation
from windrow.engine import embedded
from windrow.engine.spark import engine as spark_engine
from windrow.model import tables
from windrow.runtime.ledger_state import DepotPosition, first_rows

AT_ONCE, TRIES = 3, 5
PROCESSORS = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()


def no_lock(*_: object, **__: object) -> AbstractContextManager[None]:
    """Lock nothing, as on an object store."""
    return nullcontext()


@pytest.fixture(autouse=True)
def without_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the locks away, which only a disk of this machine has."""
    monkeypatch.setattr(creation, "commit_lock", no_lock)
    monkeypatch.setattr(embedded, "commit_lock", no_lock)
    monkeypatch.setattr(spark_engine, "commit_lock", no_lock)


def first() -> pa.Table:
    """Return the first rows of a ledger."""
    schema = tables.ledger_schema(pa.string())
    return first_rows(schema, {None: DepotPosition("depot", "beginning")}, "{}").combine_chunks()


def after(made: Thread, rows: pa.Table) -> Iterator[pa.RecordBatch]:
    """Yield rows when somebody else has made the table."""
    made.start()
    made.join()
    yield from rows.to_batches()


@pytest.mark.skipif(PROCESSORS == 1, reason="on one processor delta-rs has one thread, which waits")
def test_ledger(tmp_path: Path) -> None:
    """
    Whoever creates a ledger while another one has done it leaves it as it is: one version, one progress row.
    """
    ledger, rows = str(tmp_path / "ledger"), first()
    other = Thread(target=creation.create_ledger, args=(ledger, rows, "90d"))
    ours = pa.RecordBatchReader.from_batches(rows.schema, after(other, first()))
    creation.create_ledger(ledger, ours, "90d")
    table = DeltaTable(ledger)
    assert (table.version(), table.to_pyarrow_table(columns=["token"])) == (0, rows.select(["token"]))


def test_on_spark(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """
    Spark as well.
    """
    ledger, rows = str(tmp_path / "ledger"), first()
    frame_of = spark_engine.frame_of

    def late(session: Any, table: pa.Table) -> Any:
        def create(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                if batch.num_rows:
                    creation.create_ledger(ledger, rows, "90d")
                yield batch

        frame = frame_of(session, table)
        return frame.mapInArrow(create, frame.schema)

    monkeypatch.setattr(spark_engine, "frame_of", late)
    EngineFactory("spark", spark).open(str(tmp_path / "depot"), ledger).ledger.create(first(), "90d")
    table = DeltaTable(ledger)
    assert (table.version(), table.to_pyarrow_table(columns=["token"])) == (0, rows.select(["token"]))


def test_depot(tmp_path: Path) -> None:
    """
    A depot that is created several times at once keeps its identity: its log has one version.
    """
    for number in range(TRIES):
        depot, together = str(tmp_path / str(number)), Barrier(AT_ONCE)

        def create(depot: str = depot, together: Barrier = together) -> None:
            together.wait()
            creation.create_depot(depot, pa.string())

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for made in [threads.submit(create) for _ in range(AT_ONCE)]:
                made.result()
        assert DeltaTable(depot).version() == 0


def test_drivers(tmp_path: Path, clock: ManualClock) -> None:
    """
    Drivers that begin at the same time on a ledger which is not there yet all end well, and each message counts once.
    """
    for number in range(TRIES):
        (tmp_path / str(number)).mkdir()
        world, together = World(tmp_path / str(number), clock), Barrier(AT_ONCE)
        world.publish(*log(versions=2, size=5))

        def drive(world: World = world, together: Barrier = together) -> None:
            together.wait()
            world.runner(EMBEDDED).once()

        with ThreadPoolExecutor(AT_ONCE) as threads:
            for driven in [threads.submit(drive) for _ in range(AT_ONCE)]:
                driven.result()
        assert world.canonical() == world.expected()
        world.assert_balanced()


@pytest.mark.spark
def test_required_properties() -> None:
    """
    A table takes the property that its catalog requires, once, but a ledger keeps the isolation level of its fence.
    """
    template = (
        "Cannot create table a.b: catalog requires table property '{0}'='{1}' but the caller supplied '{0}'='{2}'."
    )
    vectors, isolation = "delta.enableDeletionVectors", "delta.isolationLevel"
    refusal = ValueError(template.format(vectors, "true", "false"))
    own = tables.LEDGER_PROPERTIES
    assert spark_engine._read_requirements(refusal, own) == {vectors: "true"}
    assert spark_engine._read_requirements(refusal, {**own, vectors: "true"}) == {}
    assert (
        spark_engine._read_requirements(
            ValueError(template.format(isolation, "WriteSerializable", "Serializable")), own
        )
        == {}
    )
    assert spark_engine._read_requirements(ValueError("there is no catalog"), own) == {}
