"""Versions of live rows: which ones count."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import index_in
from windrow.errors import IncompatibleTableError
from windrow.ledger.versions import Growth, apply_versions, latest

SCHEMA = pa.schema([("id", pa.string()), ("revision", pa.int64()), ("deleted", pa.bool_()), ("value", pa.int64())])
COMMITS = st.lists(st.dictionaries(st.sampled_from("abcdef"), st.booleans(), max_size=4), max_size=6)


def versions(commits: list[dict[str, bool]], first: int) -> pa.Table:
    """Return the versions that commits write; a value says whether the id is deleted."""
    rows = [
        {"id": id_, "revision": revision, "deleted": deleted or None, "value": revision * 10}
        for revision, commit in enumerate(commits, first)
        for id_, deleted in commit.items()
    ]
    return pa.Table.from_pylist(rows, SCHEMA)


@given(COMMITS, COMMITS)
def test_followed(before: list[dict[str, bool]], after: list[dict[str, bool]]) -> None:
    """Known rows, followed by later versions, are the latest of all versions."""
    earlier, later = versions(before, 1), versions(after, 1 + len(before))
    whole = latest(pa.concat_tables([earlier, later]))
    assert apply_versions(latest(earlier), later).sort_by("id") == whole.sort_by("id")


MESSAGE = pa.struct([("type", pa.string()), ("event_time", pa.int64())])
WRITES = st.lists(
    st.dictionaries(st.sampled_from("abc"), st.sampled_from(["whole", "grown", "gone"]), max_size=3), max_size=7
)
GROWN = pa.schema([*SCHEMA, ("whole", pa.bool_()), ("messages", pa.list_(MESSAGE))])


def batches(commits: list[dict[str, str]]) -> list[dict[str, Any]]:
    """Return the versions of open batches that commits write, the message of each, and at last all of its messages."""
    rows, messages = list[dict[str, Any]](), dict[str, list[int]]()
    for revision, commit in enumerate(commits, 1):
        for id_, kind in commit.items():
            if kind == "gone":
                rows.append({"id": id_, "revision": revision, "deleted": True})
                messages.pop(id_, None)
                continue
            whole = kind == "whole" or id_ not in messages
            messages[id_] = [*([] if whole else messages[id_]), revision]
            rows.append(
                {"id": id_, "revision": revision, "whole": whole, "messages": [{"type": "a", "event_time": revision}]}
            )
    return [*rows, {"id": "all", "revision": 1, "whole": True, "messages": [], "all": messages}]


def times(row: dict[str, Any]) -> list[int]:
    """Return the times of the messages of a batch."""
    return [message["event_time"] for message in row["messages"]]


@given(WRITES, st.integers(0, 7), st.randoms(use_true_random=False))
def test_grown(commits: list[dict[str, str]], cut: int, order: Random) -> None:
    """The messages of a batch are those of its versions from the last whole one on, in whatever order the versions are
    read, and whether some were joined before.
    """
    *rows, last = batches(commits)
    order.shuffle(rows)
    table = pa.Table.from_pylist(rows, GROWN)
    latest_rows = latest(table)
    assert {row["id"]: times(row) for row in latest_rows.to_pylist()} == last["all"]
    assert all(row["whole"] for row in latest_rows.to_pylist())
    late = pa.array([row["revision"] > cut for row in rows], pa.bool_())
    joined = latest(table.filter(late), keep_tombstones=True)
    both = latest(pa.concat_tables([table.filter(pc.invert(late)), joined]))
    assert both.sort_by("id") == latest_rows.sort_by("id")
    before = latest(table.filter(pc.invert(late)), keep_tombstones=True)
    known = apply_versions(before, table.filter(late), keep_tombstones=True)
    assert latest(known).sort_by("id") == latest_rows.sort_by("id")


def test_due() -> None:
    """A fold counts messages as parts of rows, so a long window that only grows is not written again for its
    headers.
    """
    rows = Growth(versions=33 * 100, obsolete=32 * 100, commits=32, unfolded=3_200)
    assert rows.fold(32, 1_000, 0) == "large"
    grown = replace(rows, messages=33 * 16_000, unfolded=3_200)
    assert grown.fold(32, 1_000, 33 * 16_000) == "small"
    assert replace(grown, unfolded=30_000).fold(32, 1_000, 33 * 16_000) == "large"
    assert replace(grown, commits=31).fold(32, 1_000, 33 * 16_000) is None
    assert replace(grown, commits=31).fold(32, 1_000, 0) == "large"
    assert grown.after_fold("large", 7) == Growth(versions=100, messages=7)
    waits = replace(grown, largest=2_000)
    assert waits.fold(32, 1_000, 33 * 16_000, takes_all=True) is None
    assert waits.fold(32, 1_000, 33 * 16_000) == "small"
    assert replace(waits, largest=1_600).fold(32, 1_000, 33 * 16_000, takes_all=True) == "small"
    assert grown.after_fold("small", 7) == grown


@pytest.mark.parametrize("more", [[], ["b"]])
def test_unread(more: list[str]) -> None:
    """A batch of which a version comes without messages has none, also if others come with some."""
    new = [{"type": type_, "event_time": 1} for type_ in more]
    rows = [{"id": "a", "revision": 1, "whole": True}, {"id": "a", "revision": 2, "whole": False, "messages": new}]
    rows += [{"id": "c", "revision": 1, "whole": True, "messages": [{"type": "d", "event_time": 1}]}]
    rows += [{"id": "c", "revision": 2, "whole": False, "messages": [{"type": "e", "event_time": 2}]}]
    unread, read = latest(pa.Table.from_pylist(rows, GROWN)).sort_by("id").to_pylist()
    assert unread["messages"] is None
    assert [piece["type"] for piece in read["messages"]] == ["d", "e"]


def test_twice() -> None:
    """Two rows of one id and one revision are refused, or both kept."""
    rows = versions([{"a": False}, {"b": False}], 1)
    twice = pa.concat_tables([rows, rows.slice(0, 1)])
    with pytest.raises(IncompatibleTableError, match="duplicate id"):
        latest(twice)
    assert latest(twice, keep_doubles=True).num_rows == 3


@given(st.lists(st.none() | st.sampled_from("abcxy"), max_size=8), st.permutations("abcdefgh"), st.integers(0, 8))
def test_places(values: list[str | None], among: list[str], size: int) -> None:
    """Each value has its place, however many there are on either side; one that is absent, and NULL, have -1."""
    known = among[:size]
    places = index_in(pa.array(values, pa.string()), pa.array(known, pa.string())).tolist()
    assert places == [known.index(value) if value in known else -1 for value in values]
