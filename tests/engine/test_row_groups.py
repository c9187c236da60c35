"""Row groups of files that stay in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.ledger.row_groups import RowGroups

LISTS = pa.table({"messages": pa.array([[number, -number] for number in range(23)])})
PATHS = ("a", "b")
WANTED = st.lists(st.tuples(st.sampled_from(PATHS), st.lists(st.integers(0, 22), min_size=1)), max_size=8)


class Files:
    """Two files with row groups of five rows; `opened` counts how often each was opened."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.opened = folder, list[str]()
        for path in PATHS:
            pq.write_table(LISTS, folder / path, row_group_size=5)

    @contextmanager
    def open(self, path: str) -> Iterator[pq.ParquetFile]:
        """Open a file."""
        self.opened.append(path)
        with pq.ParquetFile(self._folder / path) as parquet:
            yield parquet


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a directory for files that never change."""
    return tmp_path_factory.mktemp("groups")


@given(requests=WANTED, most=st.integers(0, 2_000))
def test_messages(folder: Path, requests: list[tuple[str, list[int]]], most: int) -> None:
    """Whatever was read before and is forgotten, rows come in the order in which they are asked for, also twice."""
    files, groups = Files(folder), RowGroups()
    for path, rows in requests:
        messages = groups.messages(path, np.array(rows), files.open)
        assert messages.to_pylist() == LISTS["messages"].take(pa.array(rows)).to_pylist()
        groups.trim(PATHS, most)


def test_read_once(folder: Path) -> None:
    """A file is opened only for row groups that are not in memory."""
    files, groups = Files(folder), RowGroups()
    for rows in ([0, 7], [9, 1, 3], [22], [0, 22]):
        groups.messages("a", np.array(rows), files.open)
    assert files.opened == ["a", "a"]
    assert list(groups.kept.rows) == [("a", 1), ("a", 0), ("a", 4)]


def test_least_recently_used_goes(folder: Path) -> None:
    """What does not fit is forgotten, the row groups used least recently first, and those of files that are gone."""
    files, groups = Files(folder), RowGroups()
    for path, row in (("a", 0), ("b", 0), ("a", 5), ("a", 0)):
        groups.messages(path, np.array([row]), files.open)
    size = groups.kept.rows["a", 0].nbytes
    groups.trim({"a"}, 10 * size)
    assert list(groups.kept.rows) == [("a", 1), ("a", 0)]
    groups.trim({"a"}, size)
    assert list(groups.kept.rows) == [("a", 0)]
