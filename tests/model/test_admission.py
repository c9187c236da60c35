"""Which messages are rejected before any rule."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.messages import message, table
from windrow.model.admission import find_invalid, reject_inadmissible

BEGIN, END = datetime(1678, 1, 1, tzinfo=UTC), datetime(2262, 1, 1, tzinfo=UTC)


class TestFaults:
    def test_first_column_that_is_missing(self) -> None:
        """A message without source, key, type or a time is told by the first of them; a good one by nothing."""
        names = ("source", "key", "type", "event_time", "received_at")
        rows = [message(**dict.fromkeys(names[at:])) for at in range(len(names))]
        expected = [*(f"{name} is NULL" for name in names), None]
        assert find_invalid(table([*rows, message()])).to_pylist() == expected

    def test_range(self) -> None:
        """A time is in range from the beginning of 1678 up to the end of 2261, to the microsecond."""
        start, end = (int(moment.timestamp()) * 1_000_000 for moment in (BEGIN, END))
        times = [start, end - 1, start - 1, end]
        expected = [None, None, *["event_time is out of range"] * 2]
        assert find_invalid(table(message(event_time=time) for time in times)).to_pylist() == expected
        expected = [None, None, *["received_at is out of range"] * 2]
        assert find_invalid(table(message(received_at=time) for time in times)).to_pylist() == expected

    def test_refused(self) -> None:
        """Refused is what is invalid, and what is stamped later than the wall clock allows, with how much later."""
        messages = table([message(received_at=9), message(received_at=11), message(received_at=10), message(key=None)])
        refused = reject_inadmissible(messages, 10).to_pylist()
        assert [tuple(row.values()) for row in refused] == [
            (1, "clock_ahead", None, 1, None),
            (3, "invalid", "key is NULL", 0, None),
        ]
