"""Rows of files that stay in memory."""

from __future__ import annotations

import pyarrow as pa

from windrow.ledger.file_cache import FileCache

ROWS, LARGE = pa.table({"n": [1, 2]}), pa.table({"n": list(range(100))})
MESSAGES = pa.chunked_array([[1, 2, 3, 4]])


def cache(most: int) -> FileCache:
    """Return a cache with the rows of three files."""
    file_cache = FileCache(most)
    for path, rows in (("a", ROWS), ("b", LARGE), ("c", ROWS)):
        file_cache.headers.rows[path] = rows
        file_cache.messages.rows[path] = MESSAGES
    return file_cache


def cached_paths(file_cache: FileCache) -> tuple[list[str], list[str]]:
    """Return of which files headers and messages are there."""
    return list(file_cache.headers.rows), list(file_cache.messages.rows)


def test_files_that_are_gone() -> None:
    """Files that are no longer live are forgotten."""
    file_cache = cache(10_000)
    file_cache.trim({"b", "c"})
    assert cached_paths(file_cache) == (["b", "c"], ["b", "c"])


def test_messages_go_first() -> None:
    """What is too much goes: messages before headers, and of both the oldest first, until the rest fits."""
    headers = 2 * ROWS.nbytes + LARGE.nbytes
    for most, expected in (
        (headers + 3 * MESSAGES.nbytes, (["a", "b", "c"], ["a", "b", "c"])),
        (headers + 3 * MESSAGES.nbytes - 1, (["a", "b", "c"], ["b", "c"])),
        (headers, (["a", "b", "c"], [])),
        (2 * ROWS.nbytes, (["a", "c"], [])),
        (ROWS.nbytes, (["c"], [])),
        (0, ([], [])),
    ):
        file_cache = cache(most)
        file_cache.trim({"a", "b", "c"})
        assert cached_paths(file_cache) == expected


def test_used_again() -> None:
    """A file that is read again after it was forgotten counts anew."""
    file_cache = cache(ROWS.nbytes)
    file_cache.trim({"a", "b", "c"})
    file_cache.headers.rows["b"] = ROWS
    file_cache.trim({"b", "c"})
    assert cached_paths(file_cache) == (["b"], [])
