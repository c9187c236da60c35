"""Small texts beside the ledger, on a disk, through delta-rs, and through Spark."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.probes import open_tables
from windrow.engine.engine import SideFiles
from windrow.engine.side_files import DIRECTORY, DeltaRsJournal, LocalSideFiles, StoredSideFiles
from windrow.engine.spark.journal import SparkJournal
from windrow.errors import TableMissingError
from windrow.runtime.saved_plan import SavedPlan, SavedPlans
from windrow.settings.settings import Settings

BY_SPARK = [pytest.param(name, marks=pytest.mark.spark) for name in ("spark", "spark by name")]


@pytest.fixture(params=["local", "stored", *BY_SPARK])
def side_files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SideFiles]:
    """The texts beside a table, by each of their ways."""
    write_deltalake(tmp_path, pa.table({"number": [1]}))
    if request.param == "local":
        yield LocalSideFiles(tmp_path, synced=True)
        return
    if request.param == "stored":
        yield StoredSideFiles(DeltaRsJournal.beside(str(tmp_path)))
        return
    session: Any = request.getfixturevalue("spark")
    named = f"default.texts_{uuid4().hex}"
    place = named if request.param == "spark by name" else f"{tmp_path}/{DIRECTORY}/plans"
    yield StoredSideFiles(SparkJournal(session, place))
    session.sql(f"DROP TABLE IF EXISTS {named}")


def test_created_once(side_files: SideFiles) -> None:
    """A text stays as it was first written until it is replaced; another name has its own."""
    assert side_files.read("one") is None
    side_files.delete("one")
    assert side_files.create("one", "first: ä \n")
    assert not side_files.create("one", "second")
    assert side_files.read("one") == "first: ä \n"
    assert side_files.read("two") is None
    side_files.replace("one", "third")
    assert side_files.create("two", "other")
    assert (side_files.read("one"), side_files.read("two")) == ("third", "other")


def test_one_of_many_creates(side_files: SideFiles) -> None:
    """Of writers that create a text at the same moment one succeeds, and its text stands."""
    start = threading.Barrier(4)

    def create(text: str) -> bool:
        start.wait()
        return side_files.create("one", text)

    with ThreadPoolExecutor(4) as threads:
        created = list(threads.map(create, "abcd"))
    assert sum(created) == 1
    assert side_files.read("one") == "abcd"[created.index(True)]


def test_left_alone_by_vacuum(side_files: SideFiles, tmp_path: Path) -> None:
    """VACUUM does not delete them."""
    assert side_files.create("one", "kept")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert side_files.read("one") == "kept"


@pytest.mark.parametrize("synced", [True, False])
def test_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: bool) -> None:
    """The names of a text and of its directory are on the device when it is written, unless `synced` is false."""
    text, synced, really = tmp_path / DIRECTORY / "one", [], os.fsync

    def keep(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), text.exists()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", keep)
    LocalSideFiles(tmp_path, synced).create("one", "kept")
    named = {path for path, is_there in synced if is_there}
    assert named == ({text.parent.resolve(), tmp_path.resolve()} if synced else set())


@pytest.mark.spark
def test_no_table_yet(spark: Any) -> None:
    """Before a table in a catalog exists, there is no place for texts beside it."""
    tables = open_tables(Settings(engine="spark", depot="default.no_depot", ledger="default.no_states"), spark)
    with pytest.raises(TableMissingError, match=r"no ledger at default\.no_states"):
        tables.ledger.side_files  # noqa: B018 - a property


def test_first_plan_stands(tmp_path: Path) -> None:
    """Who saves a plan after another driver has one gets the plan of the other; each attempt after it is counted."""
    plans = SavedPlans(LocalSideFiles(tmp_path, synced=True), ["a"])
    first, second = SavedPlan(1, 10, {"a": 1}), SavedPlan(1, 20, {"a": 2})
    assert plans.save("state", first) == first
    assert plans.save("state", second) == first
    assert plans.begin("state", lambda: second) == replace(first, attempt=2)
    assert plans.begin("other state", lambda: second) == second
