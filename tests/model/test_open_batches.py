"""The running totals of open batches against an account that counts each batch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import InternalError
from windrow.model.clock import UNKNOWN
from windrow.model.floors import Floors
from windrow.model.messages import times
from windrow.model.open_batches import SCHEMA, OpenBatchTotals, total_batches

SOURCES = ("", "a", "b/c")
BASE = 1_790_000_000_000_000  # too many microseconds for a float


@dataclass(frozen=True)
class Batch:
    """An open batch."""

    source: str
    messages: int
    bytes: int
    end: int


@dataclass(frozen=True)
class Step:
    """A microbatch: how far the clocks had come, what it read of the batches that had not ended and kept, and new ones.

    `picks` are bits: of each batch whether it is read though it has not ended, and whether one that was read stays.
    """

    passed: dict[str, int]
    picks: tuple[tuple[bool, bool], ...]
    new: tuple[Batch, ...]


ENDS = st.integers(-5, 20).map(lambda end: BASE + end)
BATCHES = st.builds(Batch, st.sampled_from(SOURCES), st.integers(1, 9), st.integers(0, 2**40), ENDS)
CLOCKS = st.dictionaries(st.sampled_from((*SOURCES, "never seen")), ENDS)
STEPS = st.builds(
    Step,
    CLOCKS,
    st.tuples(*[st.tuples(st.booleans(), st.booleans())] * 8),
    st.lists(BATCHES, max_size=4).map(tuple),
)


def totals(batches: Iterable[Batch]) -> OpenBatchTotals:
    """Return the totals of batches."""
    rows = list(batches)
    columns = {
        "source": pa.array([row.source for row in rows], pa.string()),
        "message_count": pa.array([row.messages for row in rows], pa.int64()),
        "bytes": pa.array([row.bytes for row in rows], pa.int64()),
        "window_end": times(np.array([row.end for row in rows], np.int64)),
    }
    return OpenBatchTotals.of(total_batches(pa.table(columns)))


def floors(passed: dict[str, int]) -> Floors:
    """Return clocks as floors."""
    return Floors(pa.array(passed.keys(), pa.string()), np.array(list(passed.values()), np.int64))


def rows_of(opened: OpenBatchTotals) -> dict[str, tuple[int, ...]]:
    """Return totals by source."""
    values = (*opened.counts, opened.next_window_end)
    return dict(zip(opened.source.to_pylist(), zip(*(value.tolist() for value in values), strict=True), strict=True))


def count_batches(batches: Iterable[Batch]) -> dict[str, tuple[int, int, int, int]]:
    """Return the totals of each source that has batches, counted one by one."""
    totals_by_source: dict[str, tuple[int, int, int, int]] = {}
    for batch in batches:
        count, messages, size, end = totals_by_source.get(batch.source, (0, 0, 0, batch.end))
        totals_by_source[batch.source] = count + 1, messages + batch.messages, size + batch.bytes, min(end, batch.end)
    return totals_by_source


class Account:
    """The open batches themselves, and the totals that follow from step to step."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.totals = OpenBatchTotals.none()
        self.changed = OpenBatchTotals.none()
        self.whole: set[str] = set()  # the sources of which all was read

    def take(self, step: Step) -> Account:
        """Read what has ended and what else was picked, and leave some of that and what is new."""
        picks = [step.picks[at % len(step.picks)] for at in range(len(self.batches))]
        read, unread, kept = [], [], []
        for batch, (other, stays) in zip(self.batches, picks, strict=True):
            ended = batch.end <= step.passed.get(batch.source, UNKNOWN)
            (read if ended or other else unread).append(batch)
            if (ended or other) and stays:
                kept.append(batch)
        left = [*kept, *step.new]
        self.changed = self.totals.after(totals(read), totals(left), floors(step.passed))
        sources = pa.concat_arrays([self.totals.source, self.changed.source]).unique()
        self.totals = self.totals.updated(self.changed, sources)
        self.batches = [*unread, *left]
        self.whole = set(SOURCES) - {batch.source for batch in unread}
        return self


@given(st.lists(STEPS, max_size=6))
def test_totals_are_those_of_the_batches(steps: list[Step]) -> None:
    """After any microbatches the totals of each source are what its batches sum up to, whichever of them were read."""
    account = Account()
    for step in steps:
        account.take(step)
        rows_by_source, expected = rows_of(account.totals), count_batches(account.batches)
        assert {source: row[:3] for source, row in rows_by_source.items() if row[0]} == {
            source: row[:3] for source, row in expected.items()
        }
        assert {row for row in rows_by_source.values() if not row[0]} <= {(0, 0, 0, UNKNOWN)}
        assert account.totals.total == tuple(sum(row[at] for row in expected.values()) for at in range(3))


@given(st.lists(STEPS, max_size=6))
def test_next_window_end_is_a_lower_bound(steps: list[Step]) -> None:
    """The next window end is never later than the least one of an open batch, is it where all of the source was read,
    and lies behind what the clock has passed where all that is left does.
    """
    account = Account()
    for step in steps:
        before = rows_of(account.totals)
        account.take(step)
        rows_by_source = rows_of(account.totals)
        for source, (_, _, _, least) in count_batches(account.batches).items():
            bound, passed = rows_by_source[source][3], step.passed.get(source, UNKNOWN)
            assert UNKNOWN < bound <= least
            if source in account.whole:
                assert bound == least
            if least > passed:
                assert bound > passed
            if source in before and least >= before[source][3]:
                assert bound >= before[source][3]


@given(st.lists(STEPS, min_size=1, max_size=6))
def test_only_what_changed_is_returned(steps: list[Step]) -> None:
    """A microbatch returns the totals of the sources whose totals are other ones than before, and of no others."""
    account = Account()
    for step in steps:
        before = rows_of(account.totals)
        account.take(step)
        after, nothing = rows_of(account.totals), (0, 0, 0, UNKNOWN)
        differs = {source for source, row in after.items() if row != before.get(source, nothing)}
        assert set(account.changed.source.to_pylist()) == differs


@given(st.lists(STEPS, max_size=6), CLOCKS)
def test_ended_misses_no_window(steps: list[Step], passed: dict[str, int]) -> None:
    """Each source with an open window that its clock has passed is named with its clock, one without open batches
    never, and after all was read no other one.
    """
    account = Account()
    for step in steps:
        account.take(step)
    ended = account.totals.passed_window_ends(floors(passed))
    named = dict(zip(ended.source.to_pylist(), ended.floor.tolist(), strict=True))
    least = {source: row[3] for source, row in count_batches(account.batches).items()}
    due = {source: at for source, at in passed.items() if source in least and least[source] <= at}
    assert due.items() <= named.items() <= passed.items()
    assert named.keys() <= least.keys()
    assert {source for source in named if source in account.whole} == due.keys() & account.whole


@given(st.lists(STEPS, max_size=4))
def test_columns_come_back(steps: list[Step]) -> None:
    """Totals that were written to the columns of a ledger and read again are the same, with NULL where nothing is
    open.
    """
    account = Account()
    for step in steps:
        account.take(step)
    columns: dict[str, Any] = {"source": account.totals.source, **account.totals.columns()}
    rows = pa.table(columns)
    assert rows.schema == SCHEMA
    assert rows_of(OpenBatchTotals.of(rows)) == rows_of(account.totals)
    open_, end = rows["open_batches"].to_pylist(), rows["next_window_end"].to_pylist()
    assert [bound is None for bound in end] == [count == 0 for count in open_]


def test_rows_without_totals() -> None:
    """Rows that say nothing of what is open, as those of a depot of a topology, count nothing."""
    rows = pa.table({"source": ["a"]} | {field.name: pa.nulls(1, field.type) for field in list(SCHEMA)[1:]})
    assert rows_of(OpenBatchTotals.of(rows)) == {"a": (0, 0, 0, UNKNOWN)}


def test_more_read_than_there_is() -> None:
    """Totals that count fewer batches than a microbatch read are no account of them, and stop it."""
    batch = Batch("a", 1, 1, BASE)
    with pytest.raises(InternalError, match="no more open batches than there are"):
        totals([batch]).after(totals([batch, batch]), OpenBatchTotals.none(), Floors.empty())
