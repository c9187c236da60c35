"""What `verify` derives, against the written cases: what judges the kernel is judged first."""

from __future__ import annotations

from typing import Any

import pytest

from tests.batching.derived import derive
from tests.batching.log import Log, LogRules, Message, Tick
from tests.batching.test_cases import CASES, as_in_case, as_log

RULES = LogRules(window=50, max_delay=20, max_lead=20)


def received(index: int, received_at: int, version: int, source: str = "") -> Message:
    """Return a message of which only the arrival matters."""
    return Message(index, source, "stream", f"type{index}", 100, received_at, None, None, version)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
class TestCases:
    def test_batches(self, case: dict[str, Any]) -> None:
        """Every expected window comes out with timeout, closing time, part and messages in order, and no other."""
        derived = derive(as_log(case))
        expected = [{"part": 0, **batch} for batch in case["expected"]["batches"]]
        assert [as_in_case(row, case["inputs"]) for row in derived.closed] == expected
        assert derived.open == []

    def test_dispositions(self, case: dict[str, Any]) -> None:
        """Every message is accepted or rejected for the expected reason."""
        reasons = derive(as_log(case)).reasons
        ids = {case["inputs"][index]["id"]: reason or "accepted" for index, reason in reasons.items()}
        assert ids == case["expected"]["disposition"]


class TestClock:
    def test_messages_of_a_version_do_not_raise_each_other(self) -> None:
        """The processing time of a message is raised by earlier versions of its source only."""
        first = (received(0, 110, 1), received(1, 100, 1), received(2, 105, 2))
        log = Log(RULES, (first, (received(3, 90, 3, source="other"),)), versioned=True)
        assert derive(log).processing_times == {0: 110, 1: 100, 2: 110, 3: 90}

    def test_tick_raises_no_floor_twice(self) -> None:
        """A tick raises the floors that are lower and leaves the others and unknown sources alone."""
        messages = (received(0, 100, 1), received(1, 160, 1, source="other"))
        log = Log(RULES, (messages, Tick(150), Tick(90)), versioned=True)
        derived = derive(log)
        assert derived.floors == {"": 150, "other": 160}
        assert [(batch["source"], batch["closed_at"]) for batch in derived.closed] == [("", 150)]
