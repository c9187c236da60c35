"""The oracle against the written cases: what judges the kernel is judged first."""

import json
from pathlib import Path

import pytest

from tests.oracle import Batch, Message, Oracle, OracleRules

CASES = json.loads((Path(__file__).parent / "batching" / "cases.json").read_text())["cases"]


def as_message(index: int, given: dict) -> Message:
    """Return a message of a case; its index tells which input it was."""
    return Message(
        index=index,
        source="",
        key="stream",
        type=given["type"],
        event_time=given["event_time"],
        received_at=given["processing_time"],
        sequence=None,
        payload="x" * (given["bytes"] - len(given["type"])),
        version=index,
    )


def play(case: dict) -> Oracle:
    """Return the oracle after a case, closed at the end."""
    oracle = Oracle(OracleRules(**case["rules"]))
    for index, given in enumerate(case["inputs"]):
        if given["op"] == "message":
            oracle.messages([as_message(index, given)])
        elif given["op"] == "tick":
            oracle.tick(given["processing_time"])
        elif given["op"] == "flush":
            oracle.flush(given["processing_time"])
    oracle.finish()
    return oracle


def as_in_case(batch: Batch, inputs: list[dict]) -> dict:
    """Return a closed batch as the cases write it."""
    return {
        "window": [batch.window_start, batch.window_end],
        "timeout": batch.timeout,
        "closed_at": batch.closed_at,
        "messages": [inputs[index]["id"] for index in batch.messages],
        "part": batch.part,
    }


def received(index: int, received_at: int, version: int, source: str = "") -> Message:
    """Return a message of which only the arrival matters."""
    return Message(index, source, "stream", f"type{index}", 100, received_at, None, None, version)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
class TestCases:
    def test_batches(self, case):
        """Every expected window comes out with timeout, closing time, part and messages in order, and no other."""
        expected = [{"part": 0, **batch} for batch in case["expected"]["batches"]]
        closed = [as_in_case(batch, case["inputs"]) for batch in play(case).closed]
        assert sorted(closed, key=lambda batch: (batch["window"], batch["part"])) == expected

    def test_dispositions(self, case):
        """Every message is accepted or rejected for the expected reason."""
        oracle = play(case)
        dispositions = {index: "accepted" for batch in oracle.closed for index in batch.messages}
        dispositions |= {rejected.index: rejected.reason for rejected in oracle.rejected}
        named = {case["inputs"][index]["id"]: disposition for index, disposition in dispositions.items()}
        assert named == case["expected"]["disposition"]

    def test_everything_closes(self, case):
        """After the last input and the finish nothing is open."""
        assert play(case).open == []


class TestClock:
    def test_messages_of_a_version_do_not_raise_each_other(self):
        """The processing time of a message is raised by earlier versions of its source only."""
        oracle = Oracle(OracleRules(window=50, max_delay=20, max_leap=20))
        oracle.messages([received(0, 110, 1), received(1, 100, 1), received(2, 105, 2)])
        oracle.messages([received(3, 90, 3, source="other")])
        assert oracle.processing_times == {0: 110, 1: 100, 2: 110, 3: 90}

    def test_tick_of_one_source(self):
        """A tick of one source raises its floor and leaves the others alone."""
        oracle = Oracle(OracleRules(window=50, max_delay=20, max_leap=20))
        oracle.messages([received(0, 100, 1), received(1, 100, 1, source="other")])
        oracle.tick(150, source="other")
        oracle.tick(90)
        assert oracle.floors == {"": 100, "other": 150}
        assert [batch.source for batch in oracle.open] == [""]
        assert [(batch.source, batch.closed_at) for batch in oracle.closed] == [("other", 150)]
