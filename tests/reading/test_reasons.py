"""Why a message was rejected, in words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import windrow
from tests.messages import HOUR, MILLISECOND, SECOND
from windrow.model.chunks import REASONS
from windrow.reading.reasons import HINTS, explain, reason_hint

DELAY, LEAD = 5 * SECOND, SECOND
EVENT = 100 * SECOND


def refused(
    reason: str, off_by: int = 0, received: int | None = None, processed: int | None = None, detail: str | None = None
) -> dict[str, Any]:
    """Return a rejection of a message of the second 100; times in microseconds after it."""
    at = [None if after is None else EVENT + after for after in (received, processed)]
    times = {"event_time_us": EVENT, "received_at_us": at[0], "processing_time_us": at[1]}
    return {"reason": reason, "detail": detail, "missed_by_us": off_by, "source": "s", **times}


class TestExplain:
    def test_too_old_by_itself(self) -> None:
        """A message that came too late is told how late it came, and the max_delay that would have kept it."""
        late = 7_200 * MILLISECOND
        explanation = explain(refused("too_old", late - DELAY, late, late), DELAY, LEAD)
        assert explanation.reason == "max_delay was 5 s; it came 7.2 s after its time"
        assert explanation.hint == 'max_delay = "8s" would have kept it'

    def test_too_old_because_of_others(self) -> None:
        """A message that came in time is told that others had moved the clock of its source, and by how much."""
        explanation = explain(refused("too_old", HOUR - DELAY, SECOND // 2, HOUR), DELAY, LEAD)
        assert explanation.reason.startswith(
            "max_delay was 5 s; it came 0.5 s after its time, but the clock of source 's' was at "
            "1970-01-01T01:01:40Z already, 1 h after its time"
        )
        assert explanation.hint.startswith("a separate source for each device or file")
        assert explanation.hint.endswith('max_delay = "1h" would have kept it')

    def test_too_old_for_both_reasons(self) -> None:
        """Where a separate source would not have helped, it is not advised."""
        explanation = explain(refused("too_old", 9 * SECOND - DELAY, 6 * SECOND, 9 * SECOND), DELAY, LEAD)
        assert explanation.reason.startswith(
            "max_delay was 5 s; it came 6 s after its time, when the clock of source 's' was"
        )
        assert explanation.hint == 'max_delay = "9s" would have kept it'

    def test_before_its_time(self) -> None:
        """A message that arrived before its time and still was too old says both."""
        explanation = explain(refused("too_old", 9 * SECOND - DELAY, -SECOND, 9 * SECOND), DELAY, LEAD)
        assert "it came 1 s before its time, but the clock of source 's'" in explanation.reason

    def test_too_far_ahead(self) -> None:
        """A message from the future is told how far, and the max_lead that would have kept it."""
        explanation = explain(refused("too_far_ahead", 250 * MILLISECOND, -1_250 * MILLISECOND), DELAY, LEAD)
        assert explanation.reason == "max_lead was 1 s; its time was 1.25 s after its arrival"
        assert explanation.hint.startswith('max_lead = "2s" would have kept it')

    def test_duplicate(self) -> None:
        """A duplicate is told where the first one is, when that is known."""
        assert (
            "and is in batch/s/k/1/0; the first one wins" in explain(refused("duplicate"), 0, 0, "batch/s/k/1/0").reason
        )
        assert "came before it; the first one wins" in explain(refused("duplicate"), 0, 0).reason

    def test_clock_ahead(self) -> None:
        """A stamp ahead of the wall clock is told by how much, and that it harmed nobody."""
        explanation = explain(refused("clock_ahead", 3 * HOUR), DELAY, LEAD)
        assert "was 3 h beyond the wall clock + max_clock_skew" in explanation.reason
        assert "harmed no other" in explanation.hint

    def test_invalid(self) -> None:
        """An invalid message is told which column makes it so."""
        assert explain(refused("invalid", detail="type is NULL"), DELAY, LEAD).reason.endswith(": type is NULL")


class TestFormat:
    def test_every_reason(self) -> None:
        """Every reason for which a format refuses has its own hint and is in the docs, and there are no others."""
        library = Path(windrow.__file__).parent
        written = [path.read_text(encoding="utf-8") for path in (library / "formats").rglob("*.py")]
        assert set(re.findall(r'"(format_[a-z]+)"', "".join(written))) == set(REASONS)
        assert HINTS.keys() == set(REASONS)
        page = (Path(__file__).parents[2] / "docs" / "tables.md").read_text(encoding="utf-8")
        assert {reason for reason in REASONS if f"| `{reason}` |" in page} == set(REASONS)
        assert "correct the format" in reason_hint("format_of_tomorrow")
