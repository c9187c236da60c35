"""Versions of live rows: which ones count."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.columnar.arrow import places
from windrow.errors import TableRefused
from windrow.ledger.versions import followed, latest

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
    """
    Known rows, followed by later versions, are the latest of all versions.
    """
    earlier, later = versions(before, 1), versions(after, 1 + len(before))
    whole = latest(pa.concat_tables([earlier, later]))
    assert followed(latest(earlier), later).sort_by("id") == whole.sort_by("id")


def test_twice() -> None:
    """
    Two rows of one id and one revision are refused, or both kept.
    """
    rows = versions([{"a": False}, {"b": False}], 1)
    twice = pa.concat_tables([rows, rows.slice(0, 1)])
    with pytest.raises(TableRefused, match="stands twice"):
        latest(twice)
    assert latest(twice, keep_doubles=True).num_rows == 3


@given(st.lists(st.none() | st.sampled_from("abcxy"), max_size=8), st.permutations("abcdefgh"), st.integers(0, 8))
def test_places(values: list[str | None], among: list[str], size: int) -> None:
    """
    Each value has its place, however many there are on either side; one that is absent, and NULL, have -1.
    """
    known = among[:size]
    found = places(pa.array(values, pa.string()), pa.array(known, pa.string())).tolist()
    assert found == [known.index(value) if value in known else -1 for value in values]
