from __future__ import annotations

import pytest

from windrow.errors import DepotUnreadableError, SettingsError
from windrow.model.commits import Commit
from windrow.settings.start_from import DAY, StartFrom

NOW = 1_700_000_000_000_000
LOG = [Commit(version, NOW + version * 1_000_000, rows) for version, rows in enumerate([0, 10, 20, 0, 5])]
CLEANED = LOG[2:]


def before(text: str, commits: list[Commit] = LOG, now: int = NOW) -> int:
    """Return the version before the first one that a start reads."""
    return StartFrom.parse(text).version_before(4, now, lambda: commits)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", -1),
        ("end", 4),
        ("version:0", -1),
        ("version:3", 2),
        ("version:9", 8),
        ("timestamp:2023-11-14T22:13:20Z", -1),  # committed with version 0
        ("timestamp:2023-11-14T22:13:22", 1),
        ("timestamp:2023-11-14T23:13:22.000001+01:00", 2),
        ("timestamp:2024-01-01", 4),
        ("records-ago:0", 4),
        ("records-ago:1", 3),
        ("records-ago:5", 3),
        ("records-ago:6", 1),
        ("records-ago:35", 0),
        ("records-ago:36", -1),
        ("days-ago:1", -1),
        ("days-ago:0", -1),
    ],
)
def test_version_before(text: str, expected: int) -> None:
    """Each form gives the version before the first one to read, and never fewer rows than requested."""
    assert before(text) == expected


def test_days_by_the_wall_clock() -> None:
    """`days-ago` counts from the wall clock of the first run."""
    assert before("days-ago:1", now=NOW + DAY + 2_000_000) == 1


@pytest.mark.parametrize(("text", "expected"), [("beginning", -1), ("end", 4), ("version:3", 2)])
def test_forms_that_ask_no_log(text: str, expected: int) -> None:
    """The beginning, the end and a version need no log."""
    assert before(text, []) == expected
    assert before(text, CLEANED) == expected


def test_empty_log() -> None:
    """A log without commits has no rows to count back, and is not an error."""
    assert before("records-ago:1", []) == 4
    assert before("timestamp:2000-01-01", []) == 4


def test_commit_times_that_go_back() -> None:
    """When commit times go back, the first version at or after the moment decides, so that none after it is left
    out.
    """
    commits = [Commit(0, 0, 1), Commit(1, 30, 1), Commit(2, 10, 1), Commit(3, 40, 1)]
    assert StartFrom("timestamp", 20).version_before(3, 0, lambda: commits) == 0


@pytest.mark.parametrize("text", ["timestamp:2000-01-01", "days-ago:9000", "records-ago:26"])
def test_cleaned_log(text: str) -> None:
    """A log that does not reach back to the start is an error that names the first readable version."""
    with pytest.raises(DepotUnreadableError, match='start_from = "version:2"'):
        before(text, CLEANED)


def test_cleaned_log_that_reaches_far_enough() -> None:
    """A cleaned log is enough for a start within what is left."""
    assert before("records-ago:25", CLEANED) == 1
    assert before("timestamp:2023-11-14T22:13:23Z", CLEANED) == 2


def test_unknown_rows() -> None:
    """A commit that does not say how many rows it added cannot be counted, and the error says what can be done
    instead.
    """
    with pytest.raises(DepotUnreadableError, match="version 1"):
        before("records-ago:7", [Commit(0, 0, 0), Commit(1, 0, None), Commit(2, 0, 5)])


@pytest.mark.parametrize(
    "text",
    ["", "start", "version", "version:", "version:-1", "version:x", "end:3", "timestamp:noon", "days-ago:1.5"],
)
def test_without_meaning(text: str) -> None:
    """An invalid start is refused with the valid forms."""
    with pytest.raises(SettingsError, match=r"start_from|timestamp"):
        StartFrom.parse(text)
