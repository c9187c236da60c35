"""The oracle finds each defect that is planted into small tables, and no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.conformance.depot import TAIL_KEY, TIME
from tests.conformance.oracle import COUNTS, PUBLISHED, REJECTED, SENT, Outcome, count, read_outcome
from tests.conformance.system import Mapping, System

SECOND = 1_000_000
HOUR = 3600 * SECOND
Row = dict[str, Any]


def message(sequence: int, at: int = 0, delay: int = 1, source: str = "a") -> Row:
    """A delivery `delay` seconds after it was measured, `at` seconds."""
    return {
        "sequence": sequence,
        "source": source,
        "key": "k",
        "type": "t",
        "event_time": at * SECOND,
        "payload": f"{sequence} x",
        "received_at": (at + delay) * SECOND,
    }


def batched(row: Row, batch: str = "A", version: int = 0) -> Row:
    """The message in a batch of a version."""
    return {name: value for name, value in row.items() if name != "received_at"} | {"batch": batch, "version": version}


def outcome(published: list[Row], rejected: tuple[int, ...] = (), versions: tuple[int, ...] = (0,)) -> Outcome:
    rows = pa.Table.from_pylist(published, schema=PUBLISHED)
    return Outcome(rows, pa.Table.from_pylist([{"sequence": row} for row in rejected], schema=REJECTED), versions)


def defects(sent: list[Row], result: Outcome, **others: Any) -> dict[str, int]:
    """Return the kinds of defects that there are."""
    return {name: many for name, many in count(as_table(sent), result, **others).items() if many}


def as_table(sent: list[Row]) -> pa.Table:
    return pa.Table.from_pylist(sent, schema=SENT)


FIRST, SECOND_ONE, LATE = message(1), message(2, at=1), message(3, at=2, delay=6)
SENT_ROWS = [FIRST, SECOND_ONE, LATE]
SOUND = outcome([batched(FIRST), batched(SECOND_ONE)], rejected=(3,))


def test_sound() -> None:
    """Messages that are in one batch or rejected are no defect, and every kind of defect is counted."""
    assert defects(SENT_ROWS, SOUND, expected=SOUND) == {}
    assert set(count(as_table(SENT_ROWS), SOUND)) == set(COUNTS)


def test_lost() -> None:
    """A message that was on time and is nowhere is lost."""
    assert defects(SENT_ROWS, outcome([batched(FIRST)], rejected=(3,))) == {"lost": 1}


def test_dropped() -> None:
    """A message that was late and is nowhere is dropped."""
    assert defects(SENT_ROWS, outcome([batched(FIRST), batched(SECOND_ONE)])) == {"dropped": 1}


def test_nothing_written() -> None:
    """A writer that wrote nothing lost everything."""
    assert defects(SENT_ROWS, outcome([], versions=())) == {"lost": 2, "dropped": 1}


@pytest.mark.parametrize("batch", ["A", "B"])
def test_twice_in_batches(batch: str) -> None:
    """A message that a batch has twice, or that two batches have, is counted twice."""
    result = outcome([batched(FIRST), batched(SECOND_ONE), batched(SECOND_ONE, batch)], rejected=(3,))
    assert defects(SENT_ROWS, result) == {"twice": 1}


def test_twice_on_record() -> None:
    """A message that was sent once, and is in a batch and rejected, is counted twice; sent twice it is not."""
    result = outcome([batched(FIRST), batched(SECOND_ONE)], rejected=(2, 3))
    assert defects(SENT_ROWS, result) == {"twice": 1}
    assert defects([*SENT_ROWS, SECOND_ONE | {"received_at": 9 * SECOND}], result) == {}


@pytest.mark.parametrize(
    "change", [{"payload": "2 y"}, {"event_time": 7}, {"source": "b"}, {"key": "other"}, {"type": None}]
)
def test_altered(change: Row) -> None:
    """A message that a batch has with another content is altered."""
    assert defects(SENT_ROWS, outcome([batched(FIRST), batched(SECOND_ONE) | change], (3,))) == {"altered": 1}


def test_invented() -> None:
    """A message that nobody sent is altered."""
    result = outcome([*SOUND.published.to_pylist(), batched(message(4))], rejected=(3,))
    assert defects(SENT_ROWS, result) == {"altered": 1}


def test_nameless() -> None:
    """A message without an id is altered, and hides nothing that is lost."""
    nameless = batched(FIRST) | {"sequence": None, "key": None}
    assert defects(SENT_ROWS, outcome([nameless, batched(FIRST)], rejected=(3,))) == {"lost": 1, "altered": 1}


def test_changed() -> None:
    """A closed batch that a later version has with another message is changed."""
    rows = [batched(FIRST), batched(FIRST, version=1), batched(SECOND_ONE, version=1)]
    assert defects(SENT_ROWS, outcome(rows, (3,), versions=(0, 1))) == {"changed": 1}


def test_withdrawn() -> None:
    """A closed batch that a version does not have is changed, even if it is there again at the end."""
    rows = [batched(row, version=version) for row in (FIRST, SECOND_ONE) for version in (0, 2)]
    assert defects(SENT_ROWS, outcome(rows, (3,), versions=(0, 1, 2))) == {"changed": 1}


def test_closed_later() -> None:
    """A batch that is closed in a later version than others is not changed."""
    rows = [batched(FIRST), batched(FIRST, version=1), batched(SECOND_ONE, "B", version=1)]
    assert defects(SENT_ROWS, outcome(rows, (3,), versions=(0, 1))) == {}


def test_different() -> None:
    """Batches that an undisturbed run has and this one not, and vice versa, are different, and so are rejections."""
    split = outcome([batched(FIRST), batched(SECOND_ONE, "B")], rejected=(3,))
    assert defects(SENT_ROWS, split, expected=SOUND) == {"different": 3}
    assert count(as_table(SENT_ROWS), split)["different"] is None
    other = outcome([batched(FIRST), batched(SECOND_ONE)])
    assert defects(SENT_ROWS, other, expected=SOUND) == {"dropped": 1, "different": 1}


def test_unfinished_and_waiting() -> None:
    """What closed only when something newer came is unfinished if only its source was silent, else it waits."""
    last = message(4, at=60, source="b")
    result = outcome([batched(FIRST), batched(SECOND_ONE), batched(last, "B")], rejected=(3,))
    quiet = pa.Table.from_pylist([{"sequence": sequence} for sequence in (1, 3)], schema=REJECTED)
    assert defects([*SENT_ROWS, last], result, quiet=quiet) == {"unfinished": 1, "waiting": 1}


def test_stopped() -> None:
    """A source none of whose messages is in a batch after another source's clock jumped has stopped."""
    fast = message(4, source="fast") | {"event_time": 3 * HOUR}
    later = [message(5, at=40), message(6, at=40, source="b")]
    sent = [*SENT_ROWS, fast, *later]
    rows = [batched(FIRST), batched(SECOND_ONE), batched(fast, "F"), batched(later[1], "B")]
    assert defects(sent, outcome(rows, rejected=(3,))) == {"lost": 1, "stopped": 1}


def test_every_version_is_read(tmp_path: Path) -> None:
    """The queries run over every version for batches, over the last for rejections, and leave out the tail."""
    rows = [{"b": "A", "one": message(1)}, {"b": "tail", "one": message(-1) | {"key": TAIL_KEY}}]
    for row in rows:
        table = pa.Table.from_pylist([{"batch": row["b"], **row["one"]}])
        table = table.set_column(5, "event_time", table["event_time"].cast(TIME))
        write_deltalake(str(tmp_path / "out"), table, mode="append")
    query = "SELECT * FROM output"
    system = System("s", "s", (), Mapping("out", query), Mapping("out", "SELECT sequence FROM output WHERE key = 'k'"))
    result = read_outcome(system, tmp_path)
    assert result.versions == (0, 1)
    assert [(row["version"], row["batch"]) for row in result.published.to_pylist()] == [(0, "A"), (1, "A")]
    assert result.rejected.to_pylist() == [{"sequence": 1}]
    assert result.accounted.num_rows == 2
