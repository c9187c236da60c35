"""Keep the last report of each source, and read it again when it is old.

Reading a large ledger takes seconds. So a report is not old before four times as long has passed as reading it took:
each source that is looked at takes at most a fifth of a core. It is not safe for threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from windrow.report import Report

SHARE = 4  # a guess: who works on the machine should not notice
MAX_KEPT = 8  # reports; each has pictures of up to half a megabyte


class _Kept(NamedTuple):
    report: Report
    read_at: float
    took: float


class LiveReport:
    """The report of each source that was asked for, no older than `interval` seconds where reading is fast enough."""

    def __init__(self, read: Callable[[str | None], Report], interval: float, elapsed: Callable[[], float]) -> None:
        """Read with `read`; `elapsed` is a clock that only goes forward (seconds)."""
        self._read, self._interval, self._elapsed = read, interval, elapsed
        self._kept: dict[str | None, _Kept] = {}

    def get(self, source: str | None) -> Report:
        """Return the report of a source, None for all. Raises what reading raises."""
        kept = self._kept.get(source)
        if kept is None or self._elapsed() - kept.read_at > max(self._interval, SHARE * kept.took):
            kept = self._read_anew(source)
        return kept.report

    def forget(self) -> None:
        """Read anew at the next call, because something was changed."""
        self._kept.clear()

    def _read_anew(self, source: str | None) -> _Kept:
        start = self._elapsed()
        self._kept.pop(source, None)
        report = self._read(source)
        now = self._elapsed()
        self._kept[source] = kept = _Kept(report, now, now - start)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return kept
