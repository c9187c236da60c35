from __future__ import annotations

from pathlib import Path

import pytest

from windrow.delta import locations


@pytest.mark.parametrize("name", ["s.t", "main.bronze.events", "`my cat`.`s.x`.t", "_a.b1", "schéma.tâble"])
def test_names(name: str) -> None:
    """Two or three words joined by dots are the name of a catalog table, which has no local path."""
    assert locations.is_catalog_name(name)
    assert locations.local_path(name) is None


@pytest.mark.parametrize(
    "path", ["depot", "data/depot", "./a.b", "/srv/a.b", "a.b.c.d", "1.2", "a..b", "a.b/", "../x.y"]
)
def test_paths(path: str) -> None:
    """Everything else is a path on this machine."""
    assert not locations.is_catalog_name(path)
    assert locations.local_path(path) == Path(path)


@pytest.mark.parametrize("address", ["s3://bucket/x", "abfss://c@a.dfs/x", "dbfs:/x", "hdfs://n/x"])
def test_elsewhere(address: str) -> None:
    """A location with a scheme other than `file:` is not local."""
    assert locations.local_path(address) is None
    assert locations.local_path("file:///srv/x") == Path("/srv/x")
    assert locations.local_path("file:/srv/x") == Path("/srv/x")


def test_slashes_inside() -> None:
    """Only the slashes right after `file:` belong to the scheme."""
    assert str(locations.local_path("file:///srv/x")) == "/srv/x"
    assert str(locations.local_path("file:relative/x")) == "relative/x"


def test_reference() -> None:
    """In SQL each part of a name is quoted, and a path is quoted after `delta.`, whatever characters it has."""
    assert locations.reference("main.`a``b`.t") == "`main`.`a``b`.`t`"
    assert locations.reference("/srv/o`dd") == "delta.`/srv/o``dd`"


def test_for_spark() -> None:
    """A local path becomes absolute and keeps its `file:` prefix."""
    here = str(Path.cwd().resolve())
    assert locations.for_spark("x") == f"{here}/x"
    assert locations.for_spark("file:x") == f"file:{here}/x"
    assert [locations.for_spark(place) for place in ("file:///x", "s3://b/x", "a.b")] == ["file:/x", "s3://b/x", "a.b"]
