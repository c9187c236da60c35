"""Where a new ledger starts in its depot: the forms of `start_from`, and the depot version that each one means.

Counting is by whole depot versions, because a version is the identity of what was read. A start that lies between two
versions takes the earlier one in, so that it never gives less than was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from windrow.errors import DepotUnreadable, SettingsError
from windrow.model import timestamps as moments
from windrow.model.commits import Commit

FORMS = "beginning, end, version:N, timestamp:2026-01-31T12:00:00Z, records-ago:N or days-ago:N"
DAY = 86_400_000_000


@dataclass(frozen=True, slots=True)
class Start:
    """A parsed `start_from`: the form, and its number (`timestamp`: microseconds)."""

    form: str
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Start:
        """Read a `start_from`. Raises SettingsError with the forms there are."""
        form, _, value = text.partition(":")
        if form in ("beginning", "end") and not value:
            return cls(form)
        if form in ("version", "records-ago", "days-ago") and re.fullmatch(r"\d{1,18}", value):
            return cls(form, int(value))
        if form == "timestamp":
            return cls(form, moments.microseconds(value, "start_from = timestamp:"))
        raise SettingsError(f"start_from = {text!r} has no meaning", f"Say {FORMS}.")

    def version_before(self, latest: int, now: int, commits: Callable[[], Sequence[Commit]]) -> int:
        """Return the depot version up to which a new ledger counts as read.

        `latest` is the depot's version, `now` the wall clock in microseconds, `commits` its log as far as it goes
        back, in order. Raises DepotUnreadable when the log does not go back far enough to tell.
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
    """Return the version before the first that was committed at a moment or later."""
    after = [commit.version for commit in commits if commit.committed_at >= moment]
    if not after:
        return latest
    if after[0] == commits[0].version:
        _require_whole(commits)
    return after[0] - 1


def _before_last_rows(commits: Sequence[Commit], rows: int, latest: int) -> int:
    """Return the version after which the last `rows` rows were added, or a few more."""
    left, reached = rows, latest
    for commit in reversed(commits):
        if left <= 0:
            return reached
        if commit.rows is None:
            raise DepotUnreadable(
                f"the log of the depot does not say how many rows version {commit.version} added",
                "Start with version:N or timestamp:ISO instead of records-ago:N.",
            )
        left, reached = left - commit.rows, commit.version - 1
    if left > 0:
        _require_whole(commits)
    return reached


def _require_whole(commits: Sequence[Commit]) -> None:
    """Raise unless the log is there from version 0: what is gone might belong to what was asked for."""
    first = commits[0].version if commits else 0
    if first:
        raise DepotUnreadable(
            f"the depot's log begins with version {first}, and start_from reaches further back",
            f'What is left can be read: start_from = "version:{first}".',
        )
