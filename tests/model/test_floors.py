from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from windrow.errors import InternalError
from windrow.model.clock import UNKNOWN
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.messages import times, with_dictionaries
from windrow.model.summary import summarise_messages

LATE = 2**60 + 1  # a float does not hold it


def floors(**floor: int) -> Floors:
    """Return the floors of sources."""
    return Floors(pa.array(floor, pa.string()), np.array(list(floor.values()), np.int64))


def as_dictionary(floors: Floors) -> dict[str, int]:
    """Return floors by source."""
    return dict(zip(floors.source.to_pylist(), floors.floor.tolist(), strict=True))


def test_of() -> None:
    """Each source has its own floor, to the microsecond, and one that was never seen has none."""
    sources = pa.array(["b", "c", "a", "b"])
    assert floors(a=5, b=LATE).of(sources).tolist() == [LATE, UNKNOWN, 5, LATE]
    assert Floors.empty().of(sources).tolist() == [UNKNOWN] * 4
    assert Floors.empty().of(sources).dtype == np.int64


def test_at_least() -> None:
    """A tick raises the floors that lie below it, of known sources alone."""
    assert as_dictionary(floors(a=5, b=LATE).at_least(7)) == {"a": 7, "b": LATE}
    assert as_dictionary(Floors.empty().at_least(7)) == {}


def test_raised() -> None:
    """No floor is ever lowered, the greatest counts, and sources that were unknown are added."""
    again = pa.array(["b", "c", "b", "a"])
    raised = floors(a=5, b=7).raised(again, np.array([6, LATE, 9, -1], np.int64))
    assert as_dictionary(raised) == {"a": 5, "b": 9, "c": LATE}
    assert as_dictionary(Floors.empty().raised(raised.source, raised.floor)) == as_dictionary(raised)


def stamped(*rows: tuple[int, str, int]) -> pa.Table:
    """Return messages of (version, source, received_at)."""
    version, source, received_at = zip(*rows, strict=True)
    at = times(np.array(received_at))
    columns = {"source": pa.array(source), "key": pa.array(source), "type": pa.array(source), "received_at": at}
    return pa.table(columns | {"event_time": at, "version": pa.array(version)})


@pytest.mark.parametrize("spread", [1, 1_000_000], ids=["few versions", "many versions"])
def test_processing_times(spread: int) -> None:
    """
    The processing time is the stamp, or what its source had reached before the version, whatever the rows' order.

    Many versions of many sources are looked up in another way than few.
    """
    count = 2_000 if spread > 1 else 3
    rows = [(version * spread, f"s{version % count}", 10 * version) for version in range(count)]
    rows += [((count + version) * spread, f"s{version % count}", 5) for version in range(count)]
    messages = stamped(*rows)
    by_version = FloorsByVersion.plan(summarise_messages(messages, LATE), Floors.empty())
    expected = [max(5 if at >= count else 0, 10 * (at % count)) for at in range(2 * count)]
    assert by_version.processing_times(with_dictionaries(messages)).tolist() == expected
    assert by_version.processing_times(messages.take(pa.array([count + 1, 0]))).tolist() == [10, 0]


def test_sources_that_no_message_has() -> None:
    """A dictionary may have more sources than the messages; a message of a source that was not summarised is
    refused.
    """
    plain = stamped((1, "a", 3), (1, "b", 4))
    messages = with_dictionaries(plain)
    by_version = FloorsByVersion.plan(summarise_messages(plain.slice(0, 1), LATE), Floors.empty())
    assert by_version.processing_times(messages.slice(0, 1)).tolist() == [3]
    with pytest.raises(InternalError, match="was summarised"):
        by_version.processing_times(messages)
