from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import Row, message, table
from windrow.model import tables
from windrow.model.admission import REFUSED
from windrow.model.rejected_rows import rejection_rows


def ids(rows: list[Row], versions: list[int], refused: list[int] | None = None) -> list[str]:
    """Return the ids of refused messages: of all, or of those that stand where `refused` says."""
    row = np.array(range(len(rows)) if refused is None else refused, np.int64)
    part = tables.rows(REFUSED, {"row": row, "reason": "invalid"}, row.size)
    return rejection_rows(table(rows), np.array(versions, np.int64), [part], 1)["id"].to_pylist()


TIMES = st.none() | st.integers(-1, 2)
ANY = st.tuples(
    st.builds(
        message,
        st.sampled_from([None, "a", "b"]),
        TIMES,
        TIMES,
        source=st.sampled_from([None, "", "s"]),
        sequence=TIMES,
        payload=st.sampled_from([None, "", "x"]),
    ),
    st.integers(1, 2),
)


def stream(row: Row) -> tuple[object, object]:
    """Return the stream of a message."""
    return row["source"], row["key"]


def place(row: Row) -> list[tuple[bool, object]]:
    """Return by what a message is ordered among those of its stream, NULL first."""
    keys = ("received_at", "sequence", "event_time", "type", "payload")
    return [(row[name] is not None, row[name]) for name in keys]


class TestId:
    def test_tells_version_stream_and_place(self) -> None:
        """An id is the kind, the depot version, source, key and the place among the rows of that stream and version."""
        rows = [message(source="s", key=key) for key in ("k", "l", "k")]
        assert ids(rows, [7, 7, 8]) == ["rejected/7/s/k/0", "rejected/7/s/l/0", "rejected/8/s/k/0"]

    def test_counts_those_that_were_accepted(self) -> None:
        """The place counts all messages of the stream and version, so that other rules leave an id as it is."""
        rows = [message(received_at=at) for at in (3, 1, 2)]
        assert ids(rows, [1, 1, 1], [0]) == ["rejected/1//k/2"]

    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("received_at", [None, -1, 0, 1]),
            ("sequence", [None, -1, 0, 1]),
            ("event_time", [None, -1, 0, 1]),
            ("type", [None, "", "a", "b"]),
            ("payload", [None, "", "a", "b"]),
        ],
    )
    def test_orders_by_content(self, name: str, values: list[object]) -> None:
        """The place follows from the content, whatever the order of the rows; NULL comes first."""
        backwards = [message() | {name: value} for value in reversed(values)]
        assert ids(backwards, [1] * 4) == [f"rejected/1//k/{place}" for place in (3, 2, 1, 0)]

    @given(st.lists(ANY, min_size=1, max_size=12), st.data())
    def test_place_is_that_in_the_whole_order(self, rows: list[tuple[Row, int]], data: st.DataObject) -> None:
        """Whatever is refused, the place of a message is how many of its stream and version come before it in the order
        of all that tells them apart.
        """
        refused = sorted(data.draw(st.sets(st.sampled_from(range(len(rows))), min_size=1)))
        given_rows, versions = [row for row, _ in rows], [version for _, version in rows]
        identifiers = ids(given_rows, versions, refused)
        for at, identifier in zip(refused, identifiers, strict=True):
            alike = [row for row, version in rows if (stream(row), version) == (stream(rows[at][0]), rows[at][1])]
            less = sum(place(row) < place(rows[at][0]) for row in alike)
            equal = sum(place(row) == place(rows[at][0]) for row in alike)
            assert less <= int(identifier.rpartition("/")[2]) < less + equal
        assert len(set(identifiers)) == len(identifiers)

    def test_null_is_a_stream_of_its_own(self) -> None:
        """A NULL in source or key is neither empty text nor the text that stands for it."""
        rows = [message(source=None), message(source=""), message(source="%N"), message(key=None), message(key="")]
        expected = ["%N/k", "/k", "%25N/k", "/%N", "/"]
        assert ids(rows, [1] * 5) == [f"rejected/1/{stream}/0" for stream in expected]

    def test_streams_never_share_places(self) -> None:
        """Every message of its own source, key and version is the first of its stream."""
        streams = [(source, key, version) for source in "abc" for key in "klmno" for version in (1, 2, 5, 9)]
        rows = [message(source=source, key=key) for source, key, _ in streams]
        expected = [f"rejected/{version}/{source}/{key}/0" for source, key, version in streams]
        assert ids(rows, [version for _, _, version in streams]) == expected


def test_none() -> None:
    """Nothing refused is a table without rows, with the columns of a rejection."""
    none = REFUSED.empty_table()
    rejections = rejection_rows(table([message()]), np.array([1]), [none], 1)
    assert (rejections.num_rows, rejections.schema.field("reason").type) == (0, pa.string())
