"""Rows of depots, read once from storage for several readers in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock

import pyarrow as pa

Key = tuple[str, str, int, str | None]  # the place of a depot, its id, a version, the fingerprint of its commit


@dataclass(slots=True)
class _Version:
    """The rows of a version, None until they are read, and how many readers have not taken them yet."""

    left: int
    pieces: list[pa.Table] | None = None
    lock: Lock = field(default_factory=Lock)

    @property
    def byte_count(self) -> int:
        return sum(piece.nbytes for piece in self.pieces or ())


class SharedRows:
    """The rows of versions, kept in at most `max_bytes` until each of their readers has taken them.

    A later reader reads them again. A version that is larger is not kept.
    """

    def __init__(self, readers: Mapping[str, int], max_bytes: int) -> None:
        """Start empty; `readers` says how many read the depot at a place."""
        self._readers, self._max_bytes = readers, max_bytes
        self._versions: dict[Key, _Version] = {}  # the oldest first
        self._lock = Lock()

    def rows(self, key: Key, read: Callable[[], Iterable[pa.Table]]) -> list[pa.Table]:
        """Return the rows of a version: those that another reader has read, or what `read` returns."""
        with self._lock:
            version = self._versions.setdefault(key, _Version(self._readers.get(key[0], 1)))
        with version.lock:  # another reader may be reading
            pieces = version.pieces
            if pieces is None:
                pieces = list(read())
        with self._lock:
            version.left -= 1
            version.pieces = pieces if version.left > 0 else None
            if version.left <= 0:
                self._versions.pop(key, None)
            self._trim()
        return pieces

    def _trim(self) -> None:
        """Forget the oldest versions beyond the limit."""
        sizes = {key: version.byte_count for key, version in self._versions.items()}
        total = sum(sizes.values())
        for key, size in sizes.items():
            if total <= self._max_bytes:
                return
            self._versions[key].pieces = None
            total -= size
