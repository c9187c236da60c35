from __future__ import annotations

from datetime import datetime, timedelta, timezone
from random import Random

import pyarrow as pa
import pytest

import windrow
from tests.clocks import NOW
from tests.messages import EPOCH, message, table

RULES = windrow.Rules()
LATER = 9_056_448_000_000_001  # in 2256; a float does not hold it


class TestNow:
    @pytest.mark.parametrize(
        "now",
        [
            LATER,
            EPOCH + timedelta(microseconds=LATER),
            (EPOCH + timedelta(microseconds=LATER)).replace(tzinfo=None),
            (EPOCH + timedelta(microseconds=LATER)).astimezone(timezone(timedelta(hours=5, minutes=45))),
        ],
        ids=["microseconds", "UTC", "without a zone", "another zone"],
    )
    def test_in_any_form(self, now: int | datetime) -> None:
        """A tick is a number of microseconds or a time, which is UTC unless it has a zone; the floor is that
        microsecond.
        """
        floors = windrow.batch(table([message()]), RULES, now=now).state.floors
        assert floors.floor.tolist() == [LATER]
        assert floors.floor.dtype == "int64"


@pytest.mark.parametrize("payload", [pa.string(), pa.binary()])
def test_nothing_at_all(payload: pa.DataType) -> None:
    """Of no messages come no batches and no rejections, with payloads of the type that was given."""
    messages = table([])
    messages = messages.set_column(messages.schema.get_field_index("payload"), "payload", pa.array([], payload))
    batched = windrow.batch(messages, RULES)
    for batches in (batched.batches, batched.state.open):
        assert batches.num_rows == 0
        assert batches.schema.field("messages").type.value_type.field("payload").type == payload
    assert batched.rejected.schema.field("payload").type == payload


def test_id() -> None:
    """A batch is named by its kind, source, key, where its window starts and its part."""
    batched = windrow.batch(table([message(source="s", key="k/1")]), windrow.Rules(max_delay="5s"))
    assert batched.batches["id"].to_pylist() == [f"batch/s/k%2F1/{NOW - 5_000_000}/0"]


def test_order_of_sequence() -> None:
    """Of messages of one version and stamp the one of the least sequence comes first, NULL before all, to the last
    digit.
    """
    sequences = [None, -(2**63), -1, 0, 2**53, 2**53 + 1, 2**63 - 1]
    for first in range(len(sequences)):
        rows = [message(sequence=sequence) for sequence in reversed(sequences[first:])]
        version = pa.array([1] * len(rows), pa.int64())
        (batch,) = windrow.batch(table(rows).append_column("version", version), RULES).batches.to_pylist()
        assert [inside["sequence"] for inside in batch["messages"]] == [sequences[first]]


def test_alike_but_for_the_payload() -> None:
    """Of messages of one version that differ in their payload alone the first is batched, NULL before text, whatever
    the order of the rows.
    """
    all_rows = [
        *(message("a", payload=payload) for payload in ("c", None, "b")),
        *(message("b", payload=payload) for payload in ("e", "d")),
        *(message("a", key="l", payload=payload) for payload in ("g", "f", "h")),
        message("c", payload="z"),
        message("d", payload="y"),
    ]
    random = Random(1)
    for _ in range(50):
        rows = random.sample(all_rows, len(all_rows))
        version = pa.array([1] * len(rows), pa.int64())
        batched = windrow.batch(table(rows).append_column("version", version), RULES)
        kept = [(row["type"], row["payload"]) for batch in batched.batches["messages"].to_pylist() for row in batch]
        assert sorted(kept, key=str) == sorted([("a", None), ("b", "d"), ("c", "z"), ("d", "y"), ("a", "f")], key=str)
        assert sorted(batched.rejected["payload"].to_pylist()) == ["b", "c", "e", "g", "h"]
        assert set(batched.rejected["reason"].to_pylist()) == {"duplicate"}


def test_off_by_centuries() -> None:
    """How far a message is off is told to the microsecond, also where it is more than a float holds."""
    odd = 2**53 + 1
    early = table([message(event_time=odd + 1_000_000, received_at=0)])
    late = table([message(event_time=-odd - 5_000_000, received_at=0)])
    for messages in (early, late):
        assert windrow.batch(messages, RULES).rejected["missed_by_us"].to_pylist() == [odd]
