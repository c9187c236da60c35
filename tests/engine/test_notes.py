"""Small texts beside the ledger, on a disk, through delta-rs, and through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from windrow.delta.table import files_in
from windrow.engine import open_engine
from windrow.engine.notes import LocalNotes, SparkNotes, StoredNotes
from windrow.engine.protocol import Notes
from windrow.errors import TableMissing
from windrow.settings.settings import Settings


@pytest.fixture(params=["local", "stored", pytest.param("spark", marks=pytest.mark.spark)])
def notes(request: pytest.FixtureRequest, tmp_path: Path) -> Notes:
    """The texts beside a table, by each of their ways."""
    write_deltalake(tmp_path, pa.table({"number": [1]}))
    if request.param == "local":
        return LocalNotes(tmp_path)
    if request.param == "stored":
        return StoredNotes(files_in(str(tmp_path)))
    session: Any = request.getfixturevalue("spark")
    return SparkNotes(session, str(tmp_path))


def test_written_once(notes: Notes) -> None:
    """
    A text stays as it was first written until it is deleted, and can then be written anew; another name has its own.
    """
    assert notes.read("one") is None
    notes.delete("one")
    notes.write("one", "first: ä \n")
    notes.write("one", "second")
    assert notes.read("one") == "first: ä \n"
    assert notes.read("two") is None
    notes.delete("one")
    assert notes.read("one") is None
    notes.write("one", "third")
    assert notes.read("one") == "third"
    notes.delete("one")
    notes.write("two", "other")
    assert (notes.read("one"), notes.read("two")) == (None, "other")


def test_left_alone_by_vacuum(notes: Notes, tmp_path: Path) -> None:
    """
    VACUUM does not delete them.
    """
    notes.write("one", "kept")
    DeltaTable(tmp_path).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert notes.read("one") == "kept"


@pytest.mark.spark
def test_no_table_yet(spark: Any) -> None:
    """
    Before a table in a catalog exists, there is no place for texts beside it.
    """
    engine = open_engine(Settings(engine="spark", depot="default.no_depot", ledger="default.no_states"), spark)
    with pytest.raises(TableMissing, match=r"no ledger at default\.no_states"):
        engine.notes  # noqa: B018 - a property
