"""The report is read again when it is old, and reading takes a fifth of the time at most."""

from __future__ import annotations

from windrow.report import Report
from windrow.ui.views import MAX_KEPT, LiveReport


class Reports:
    """Counts what is read, each of which takes some seconds."""

    def __init__(self, takes: float = 0) -> None:
        self.now, self.takes, self.asked = 0.0, takes, list[str | None]()
        self.live = LiveReport(self.read, 5, lambda: self.now)

    def read(self, source: str | None) -> Report:
        """Read one."""
        self.now += self.takes
        self.asked.append(source)
        return Report(str(len(self.asked)), "", [], [], [], "", [])


def test_interval() -> None:
    """Within the interval the report is the same; after it, or when it is to be forgotten, it is read."""
    reports = Reports()
    assert reports.live.get(None).title == "1"
    reports.now = 5
    assert reports.live.get(None).title == "1"
    reports.now = 5.1
    assert reports.live.get(None).title == "2"
    reports.live.forget()
    assert reports.live.get(None).title == "3"


def test_slow() -> None:
    """What took ten seconds to read is kept for forty."""
    reports = Reports(takes=10)
    reports.live.get(None)
    reports.now = 50
    reports.live.get(None)
    assert len(reports.asked) == 1
    reports.now = 50.1
    reports.live.get(None)
    assert len(reports.asked) == 2


def test_sources() -> None:
    """Each source has a report of its own; the ones read longest ago are forgotten."""
    reports = Reports()
    names = [str(number) for number in range(MAX_KEPT + 1)]
    for name in [*names, *names[1:]]:
        reports.live.get(name)
    assert reports.asked == names
    reports.live.get("0")
    assert reports.asked == [*names, "0"]
