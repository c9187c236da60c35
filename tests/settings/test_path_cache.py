from __future__ import annotations

from pathlib import Path

import pytest

from windrow.errors import TableMissingError
from windrow.settings.path_cache import PRODUCE, TablePathCache


def test_what_was_noted_is_found(tmp_path: Path) -> None:
    """The path of a catalog table is found under its name, beside the settings file, and a newer one replaces it."""
    config = str(tmp_path / "windrow.toml")
    TablePathCache.beside(config).note("plant.ledger", "/old")
    TablePathCache.beside(config).note("plant.ledger", "/warehouse/ledger")
    TablePathCache.beside(config).note("plant.depot", "/warehouse/depot")
    book = TablePathCache.beside(config)
    assert (book.path("plant.ledger"), book.path("plant.depot")) == ("/warehouse/ledger", "/warehouse/depot")
    assert book.file == tmp_path / ".windrow" / "paths.json"


@pytest.mark.parametrize("path", ["data/ledger", "./plant.ledger", "s3://bucket/ledger"])
def test_paths_stay(tmp_path: Path, path: str) -> None:
    """A path is returned unchanged, and nothing is recorded for it."""
    book = TablePathCache(tmp_path / "paths.json")
    book.note(path, "/elsewhere")
    assert book.path(path) == path
    assert not book.file.exists()


def test_nothing_noted(tmp_path: Path) -> None:
    """An unknown name is an error that says which command records it; so is any name if the file is broken."""
    book = TablePathCache(tmp_path / "paths.json")
    with pytest.raises(TableMissingError, match="windrow init"):
        book.path("plant.ledger")
    book.file.write_text("{broken")
    with pytest.raises(TableMissingError, match="windrow init"):
        book.path("plant.ledger")
    book.note("plant.ledger", None)
    assert book.file.read_text() == "{broken"


def test_of_a_platform(tmp_path: Path) -> None:
    """Where a platform provides Spark, the error says what to do without a path; a path that is noted is used."""
    book = TablePathCache(tmp_path / "paths.json")
    with pytest.raises(TableMissingError, match=r"only Spark reaches the files of .* plant\.ledger") as refused:
        book.path("plant.ledger", PRODUCE, by_platform=True)
    assert (refused.value.hint or "").startswith("Spark appends to it")
    book.note("plant.ledger", "/warehouse/ledger")
    assert book.path("plant.ledger", PRODUCE, by_platform=True) == "/warehouse/ledger"
