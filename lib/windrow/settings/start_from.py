"""Parse `start_from`, which says where a new ledger starts in its depot, and find the depot version.

A ledger starts at a whole depot version, because it records what it read by version. A start within a version includes
the whole version, so a ledger never reads less than was requested.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windrow.errors import DepotUnreadableError, SettingsError
from windrow.model import timestamps as moments
from windrow.model.commits import Commit

FORMS = "beginning, end, version:N, timestamp:2026-01-31T12:00:00Z, records-ago:N or days-ago:N"
DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class StartFrom:
    """A parsed `start_from`: the form, and its number (`timestamp`: microseconds)."""

    form: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> StartFrom:
        """Parse a `start_from`. Raises SettingsError with the valid forms."""
        form, _, value = text.partition(":")
        if form in ("beginning", "end") and not value:
            return cls(form)
        if form in ("version", "records-ago", "days-ago") and re.fullmatch(r"\d{1,18}", value):
            return cls(form, int(value))
        if form == "timestamp":
            return cls(form, moments.microseconds(value, "start_from = timestamp:"))
        raise SettingsError(f"start_from = {text!r} is invalid", f"Use {FORMS}.")

    def version_before(self, latest: int, now: int, commits: Callable[[], Sequence[Commit]]) -> int:
        """Return the depot version up to which a new ledger counts as read.

        `latest` is the depot's version, `now` the wall clock in microseconds, `commits` its log, in order, as far back
        as it reaches. Raises DepotUnreadableError if the log does not reach back far enough.
        """
        if self.form == "beginning":
            return -1
        if self.form == "end":
            return latest
        if self.form == "version":
            return self.number - 1
        if self.form == "records-ago":
            return _before_last_rows(commits(), self.number, latest)
        return _before_moment(commits(), self.number if self.form == "timestamp" else now - self.number * DAY, latest)


def _before_moment(commits: Sequence[Commit], moment: int, latest: int) -> int:
    """Return the version before the first one that was committed at a moment or later."""
    after = [commit.version for commit in commits if commit.committed_at >= moment]
    if not after:
        return latest
    if after[0] == commits[0].version:
        _require_whole(commits)
    return after[0] - 1


def _before_last_rows(commits: Sequence[Commit], rows: int, latest: int) -> int:
    """Return the version after which at least the last `rows` rows were added."""
    left, reached = rows, latest
    for commit in reversed(commits):
        if left <= 0:
            return reached
        if commit.rows is None:
            raise DepotUnreadableError(
                f"the log of the depot does not say how many rows version {commit.version} added",
                "Start with version:N or timestamp:ISO instead of records-ago:N.",
            )
        left, reached = left - commit.rows, commit.version - 1
    if left > 0:
        _require_whole(commits)
    return reached


def _require_whole(commits: Sequence[Commit]) -> None:
    """Raise DepotUnreadableError unless the log begins with version 0, because older rows might have been requested."""
    first = commits[0].version if commits else 0
    if first:
        raise DepotUnreadableError(
            f"the depot's log begins with version {first}, but start_from reaches further back",
            f'To read the versions that are left: start_from = "version:{first}".',
        )
