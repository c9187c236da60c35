"""Small texts beside the ledger, on a disk, through delta-rs, and through Spark."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windrow.delta.table import files_in
from windrow.engine import open_engine
from windrow.engine.protocol import SideFiles
from windrow.engine.side_files import DIRECTORY, LocalSideFiles, SparkSideFiles, StoredSideFiles
from windrow.errors import TableMissing
from windrow.settings.settings import Settings


@pytest.fixture(params=["local", "stored", pytest.param("spark", marks=pytest.mark.spark)])
def side_files(request: pytest.FixtureRequest, tmp_path: Path) -> SideFiles:
    """The texts beside a table, by each of their ways."""
    write_deltalake(tmp_path, pa.table({"number": [1]}))
    if request.param == "local":
        return LocalSideFiles(tmp_path, durable=True)
    if request.param == "stored":
        return StoredSideFiles(files_in(str(tmp_path)))
    session: Any = request.getfixturevalue("spark")
    return SparkSideFiles(session, str(tmp_path))


def test_written_once(side_files: SideFiles) -> None:
    """
    A text stays as it was first written until it is deleted, and can then be written anew; another name has its own.
    """
    assert side_files.read("one") is None
    side_files.delete("one")
    side_files.write("one", "first: ä \n")
    side_files.write("one", "second")
    assert side_files.read("one") == "first: ä \n"
    assert side_files.read("two") is None
    side_files.delete("one")
    assert side_files.read("one") is None
    side_files.write("one", "third")
    assert side_files.read("one") == "third"
    side_files.delete("one")
    side_files.write("two", "other")
    assert (side_files.read("one"), side_files.read("two")) == (None, "other")


def test_left_alone_by_vacuum(side_files: SideFiles, tmp_path: Path) -> None:
    """
    VACUUM does not delete them.
    """
    side_files.write("one", "kept")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert side_files.read("one") == "kept"


@pytest.mark.parametrize("durable", [True, False])
def test_survives_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durable: bool) -> None:
    """
    The names of a text and of its directory are on the device when it is written, unless `durable` is false.
    """
    text, synced, really = tmp_path / DIRECTORY / "one", [], os.fsync

    def keep(descriptor: int) -> None:
        synced.append((Path(f"/proc/self/fd/{descriptor}").readlink(), text.exists()))
        really(descriptor)

    monkeypatch.setattr(os, "fsync", keep)
    LocalSideFiles(tmp_path, durable).write("one", "kept")
    named = {path for path, is_there in synced if is_there}
    assert named == ({text.parent.resolve(), tmp_path.resolve()} if durable else set())


@pytest.mark.spark
def test_no_table_yet(spark: Any) -> None:
    """
    Before a table in a catalog exists, there is no place for texts beside it.
    """
    engine = open_engine(Settings(engine="spark", depot="default.no_depot", ledger="default.no_states"), spark)
    with pytest.raises(TableMissing, match=r"no ledger at default\.no_states"):
        engine.side_files  # noqa: B018 - a property
