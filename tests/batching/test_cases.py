"""`windrow.batch` against the written cases."""

import json
from pathlib import Path

import pytest

from tests.batching.log import Flush, Log, LogRules, Message, Tick
from tests.batching.strategies import LONG_AFTER, Books

CASES = json.loads((Path(__file__).parent / "cases.json").read_text())["cases"]


def as_message(index: int, case_input: dict) -> Message:
    """Return a message of a case; its sequence tells which input it was."""
    return Message(
        index=index,
        source="",
        key="stream",
        type=case_input["type"],
        event_time=case_input["event_time"],
        received_at=case_input["processing_time"],
        sequence=index,
        payload="x" * (case_input["bytes"] - len(case_input["type"])),
        version=index,
    )


def as_step(index: int, case_input: dict) -> tuple[Message, ...] | Tick | Flush:
    """Return an input of a case as a step of a log."""
    if case_input["op"] == "message":
        return (as_message(index, case_input),)
    return {"tick": Tick, "flush": Flush}[case_input["op"]](case_input["processing_time"])


def as_log(case: dict) -> Log:
    """Return the log of a case, closed at the end."""
    steps = [
        as_step(index, case_input) for index, case_input in enumerate(case["inputs"]) if case_input["op"] != "finish"
    ]
    return Log(LogRules(**case["rules"]), (*steps, Tick(LONG_AFTER)), versioned=False)


def as_in_case(row: dict, inputs: list[dict]) -> dict:
    """Return a closed batch as the cases write it."""
    return {
        "window": [row["window_start"], row["window_end"]],
        "timeout_at": row["timeout_at"],
        "closed_at": row["closed_at"],
        "messages": [inputs[message["sequence"]]["id"] for message in row["messages"]],
        "part": row["part"],
    }


@pytest.mark.parametrize("cuts", [0, -1], ids=["one call", "a call each"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
class TestCases:
    def test_batches(self, case, cuts):
        """Every expected window comes out with timeout, closing time, part and messages in order, and no other."""
        books = Books().play(as_log(case), cuts)
        expected = [{"part": 0, **batch} for batch in case["expected"]["batches"]]
        assert [as_in_case(row, case["inputs"]) for row in books.closed] == expected
        assert books.open == []

    def test_dispositions(self, case, cuts):
        """Every message is accepted or rejected for the expected reason."""
        books = Books().play(as_log(case), cuts)
        accepted = [message["sequence"] for row in books.closed for message in row["messages"]]
        dispositions = dict.fromkeys(accepted, "accepted")
        dispositions |= {row["sequence"]: row["reason"] for row in books.rejected}
        named = {case["inputs"][index]["id"]: disposition for index, disposition in dispositions.items()}
        assert named == case["expected"]["disposition"]
