"""Rows of files that stay in memory."""

from __future__ import annotations

import pyarrow as pa

from windrow.ledger.file_cache import FileCache

ROWS, LARGE = pa.table({"n": [1, 2]}), pa.table({"n": list(range(100))})
MESSAGES = pa.chunked_array([[1, 2, 3, 4]])


def cache(most: int) -> FileCache:
    """Return a cache with the rows of three files."""
    found = FileCache(most)
    for path, rows in (("a", ROWS), ("b", LARGE), ("c", ROWS)):
        found.headers.rows[path] = rows
        found.messages.rows[path] = MESSAGES
    return found


def left(found: FileCache) -> tuple[list[str], list[str]]:
    """Return of which files headers and messages are there."""
    return list(found.headers.rows), list(found.messages.rows)


def test_files_that_are_gone() -> None:
    """Files that are no longer live are forgotten."""
    found = cache(10_000)
    found.trim({"b", "c"})
    assert left(found) == (["b", "c"], ["b", "c"])


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
        found = cache(most)
        found.trim({"a", "b", "c"})
        assert left(found) == expected


def test_used_again() -> None:
    """A file that is read again after it was forgotten counts anew."""
    found = cache(ROWS.nbytes)
    found.trim({"a", "b", "c"})
    found.headers.rows["b"] = ROWS
    found.trim({"b", "c"})
    assert left(found) == (["b"], [])
