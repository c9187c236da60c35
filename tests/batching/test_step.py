"""Microbatches as the engines run them, but without tables: floors planned ahead, streams apart, rows merged by id."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.batching.log import Log, LogRules, Message
from tests.batching.strategies import (
    LONG_AFTER,
    Books,
    Row,
    cuts,
    late_rules,
    logs,
    place,
    rows,
    table,
    windrow_rules,
)
from tests.batching.test_properties import content, in_any_order, without_names
from tests.clocks import NOW
from tests.conftest import one_in
from tests.messages import message as plain_message
from tests.messages import table as plain_table
from windrow.batching.rules import Rules
from windrow.batching.step import Step, closed_through, timeouts
from windrow.errors import InternalError
from windrow.ledger.live import LoadedRows
from windrow.model import messages, tables
from windrow.model.floors import Floors, FloorsByVersion
from windrow.model.messages import microseconds
from windrow.model.open_batches import BatchFilter
from windrow.model.summary import merge_summaries, summarise_messages

VERSIONED = logs(kinds=("message",) * 12 + ("tick", "tick", "flush"), versioned=st.just(True))
PARTS = st.sampled_from((1, 2, 3))
FEWER = one_in(4, least=20)  # a microbatch takes milliseconds
TEN, TWENTY = 10, 20


class Ledger:
    """What engines keep between microbatches: live rows and floors; and what they wrote, which stays."""

    def __init__(self, log: Log, parts: int = 1, latest: int = LONG_AFTER) -> None:
        self.rules, self.parts, self.latest, self.kind = windrow_rules(log.rules), parts, latest, Step
        self.payload = pa.binary() if log.binary else pa.string()
        self.live = tables.ledger_schema(self.payload).empty_table()
        self.floors, self.cuts, self.number, self.final = Floors.empty(), Floors.empty(), 0, Books()
        self.opened: dict[tuple[Any, ...], int] = {}

    def play(self, log: Log, cuts: int = 0) -> Ledger:
        """Run a microbatch for the messages of each call, and another for its tick or flush."""
        for call in log.calls(cuts):
            if call.messages:
                self.read(messages.conform(table(call.messages, log)))
            if call.now is not None or call.flush:
                self.tick(self.floors if call.now is None else self.floors.at_least(call.now), call.flush)
        return self

    def read(self, arrived: pa.Table) -> None:
        """Run a microbatch over messages."""
        summaries = [summarise_messages(part, self.latest) for part in (arrived.slice(0, 1), arrived.slice(1))]
        summary = merge_summaries(pa.concat_tables(summaries))
        self.run(arrived, FloorsByVersion.plan(summary, self.floors), flush=False)

    def tick(self, after: Floors, flush: bool = False) -> None:
        """Run a microbatch without messages."""
        nothing = messages.schema(self.payload).append(pa.field("version", pa.int64())).empty_table()
        self.run(nothing, FloorsByVersion.none(after), flush)

    def run(self, arrived: pa.Table, plan: FloorsByVersion, flush: bool) -> None:
        """Run a microbatch, the streams in several parts."""
        self.number += 1
        self.floors, live = plan.after, self.live
        step = self.kind(self.rules, plan, self.latest, self.number, flush, cuts=self.cuts)
        if flush and self.parts > 1:
            step = replace(step, last=last_event_times(live, step.closed_through))
        for part in range(self.parts):
            written, cuts = step(self.share(arrived, part), self.read_of(self.share(live, part), arrived, step))
            self.floors = self.floors.raised(cuts.source, cuts.floor)
            self.cuts = self.cuts.raised(cuts.source, cuts.cut)
            self.merge(written)

    def read_of(self, live: pa.Table, arrived: pa.Table, step: Step) -> pa.Table:
        """Return the live rows as a microbatch reads them."""
        return live

    def share(self, rows: pa.Table, part: int) -> pa.Table:
        """Return the rows whose streams belong to one part."""
        if self.parts == 1:
            return rows
        named = zip(rows["source"].to_pylist(), rows["key"].to_pylist(), strict=True)
        return rows.filter(pa.array([len(f"{source}{key}") % self.parts == part for source, key in named], pa.bool_()))

    def merge(self, written: pa.Table) -> None:
        """Enter what a part of a microbatch writes, as a MERGE by id does."""
        before, still_open = {row["id"]: row for row in rows(self.live)}, []
        for row in rows(written):
            known, old = row.pop("known"), before.get(row["id"])
            assert known == (old is not None), "the MERGE would count this row wrongly"
            if row["whole"] is False:
                assert old, "a batch grows that is not open"
                same = ("source", "key", "part", "window_start", "window_end")
                assert [row[name] for name in same] == [old[name] for name in same], "a batch grows in another window"
                assert row["messages"], "a batch grows by nothing"
                row |= {"messages": in_order([*old["messages"], *row["messages"]]), "whole": True}
            assert row != old, "a row is written that did not change"
            self.enter(row)
            still_open += [row] if row["state"] == "open" else []
        kept = self.live.filter(pc.invert(pc.is_in(self.live["id"], written["id"])))
        self.live = pa.concat_tables([kept, pa.Table.from_pylist(still_open, self.live.schema)])

    def enter(self, row: Row) -> None:
        """Note a final row; say when what happened."""
        if row["state"] == "rejected":
            assert row["microbatch"] == self.number
            self.final.rejected.append(self.only(row, tables.rejected_fields(self.payload)))
            return
        assert row["opened_microbatch"] == self.opened.setdefault(place(row)[:3], self.number)
        assert row["closed_microbatch"] == (self.number if row["state"] == "closed" else None)
        if row["state"] == "closed":
            assert row["id"] not in self.final.closed_by_id, "a closed batch is written again"
            self.final.closed_by_id[row["id"]] = self.only(row, tables.batch_fields(self.payload))

    def only(self, row: Row, fields: list[tuple[str, pa.DataType]]) -> Row:
        """Return some of the columns of a row."""
        return {name: row[name] for name, _ in fields}

    @property
    def books(self) -> Books:
        """All that stands in the ledger."""
        fields = tables.batch_fields(self.payload)
        self.final.open_by_id = {row["id"]: self.only(row, fields) for row in rows(self.live)}
        return self.final


def in_order(messages: list[Row]) -> list[Row]:
    """Return the messages of a batch in its order."""
    return sorted(messages, key=lambda message: (message["event_time"], message["type"].encode()))


def last_event_times(live: pa.Table, passed: Floors) -> Floors:
    """Return, by source, the last event time in batches that the clock has not passed, as executors are told it."""
    left = live.filter(pa.array(microseconds(live["window_end"]) > passed.of(live["source"].combine_chunks())))
    return Floors.empty().raised(left["source"].combine_chunks(), microseconds(left["last_event_time"]))


def name_rows(books: Books) -> list[list[Any]]:
    """Return the ids of batches and rejections."""
    return [[row["id"] for row in books.batches], sorted(row["id"] for row in books.rejected)]


def by_source(floors: Floors) -> dict[str, int]:
    """Return floors as a dictionary."""
    return dict(zip(floors.source.to_pylist(), floors.floor.tolist(), strict=True))


def message(at: int, **values: Any) -> Message:
    """Return a message of one stream."""
    return replace(Message(0, "", "k", "a", at, at, None, None, at), **values)


class TestMicrobatches:
    @FEWER
    @given(VERSIONED, cuts(), PARTS)
    def test_give_what_one_call_gives(self, log, cuts, parts):
        """Microbatches cut anywhere, with their streams in any parts, write the rows of one call of `windrow.batch`,
        ids included; each row is new or replaces the live one of its id, and says in which microbatch it came and
        went.
        """
        once, ledger = Books().play(log), Ledger(log, parts).play(log, cuts)
        assert content(ledger.books) == content(once)
        assert name_rows(ledger.books) == name_rows(once)
        assert by_source(ledger.floors) == by_source(once.state.floors)

    @FEWER
    @given(logs(versioned=st.just(True)), st.sampled_from(("key", "type", "event_time", "received_at", "ahead")))
    def test_refuse_what_no_rule_sees(self, log, name):
        """An invalid message, and one stamped later than the wall clock allows, is rejected under an id of its own and
        changes nothing for the others, though it comes with the first of them.
        """
        latest = max(message.received_at for message in log.messages)
        fault = {"received_at": latest + 7} if name == "ahead" else {"received_at": latest, name: None}
        bad = replace(log.messages[0], **fault)
        alone = Ledger(log).play(log).books
        first, *others = log.steps
        books = Ledger(log, latest=latest).play(replace(log, steps=((bad, *first), *others))).books
        assert without_names(books.batches) == without_names(alone.batches)
        (refused,) = [row for row in books.rejected if row["reason"] in ("invalid", "clock_ahead")]
        assert (refused["reason"], refused["missed_by_us"]) == (
            ("clock_ahead", 7) if name == "ahead" else ("invalid", 0)
        )
        assert refused["detail"] == (None if name == "ahead" else f"{name} is NULL")
        assert (refused["processing_time"], refused["floor_raise_us"]) == (None, None)
        rest = [row for row in books.rejected if row is not refused]
        assert in_any_order(without_names(rest)) == in_any_order(without_names(alone.rejected))
        assert len({row["id"] for row in books.rejected}) == len(books.rejected)

    def test_an_id_twice(self):
        """A step that names two rows alike is stopped before anything is written."""
        log = Log(LogRules(TEN, 5, 1), ((message(0),),), versioned=True)
        ledger = Ledger(log)
        ledger.kind = Twice
        with pytest.raises(InternalError, match="duplicate id"):
            ledger.play(log)


class Headers(Ledger):
    """A ledger of which a microbatch reads the messages of the batches that can change, of others the headers."""

    left_out = 0

    def read_of(self, live: pa.Table, arrived: pa.Table, step: Step) -> pa.Table:
        """Return the batches that are needed."""
        if step.flush:
            return live
        batch_filter = BatchFilter(lambda: arrived.select(["source", "key", "event_time"]), step.closed_through)
        batches, read = batch_filter.needed(live)
        self.left_out += live.num_rows - int(read.sum())
        return without_messages(batches, ~read)


def without_messages(batches: pa.Table, which: np.ndarray) -> pa.Table:
    """Return batches, some of them without messages."""
    at, column = batches.schema.get_field_index("messages"), batches["messages"]
    left = pc.if_else(pa.array(which), pa.nulls(batches.num_rows, column.type), column)
    return batches.set_column(at, batches.schema.field(at), left)


class TestHeaders:
    @FEWER
    @given(VERSIONED | logs(late_rules(), versioned=st.just(True)), cuts(), PARTS)
    def test_are_enough(self, log, cuts, parts):
        """A step that has the messages only of batches that a message or a clock can change writes the same as one
        call.
        """
        once, ledger = Books().play(log), Headers(log, parts).play(log, cuts)
        assert content(ledger.books) == content(once)
        assert name_rows(ledger.books) == name_rows(once)

    def test_without_messages_that_are_needed(self):
        """A batch that changes although its messages were not read stops the step: they would be lost."""
        log = Log(LogRules(TEN, 5, 1), ((message(0),), (message(1, type="b"),)), versioned=True)
        ledger = Headless(log)
        with pytest.raises(InternalError, match="whose messages were not read"):
            ledger.play(log, -1)

    @pytest.mark.parametrize("start", ["arrival", "event_time"])
    @pytest.mark.parametrize("at", [12, 32])
    def test_windows_beside_a_message(self, at, start):
        """A window that opens beside open ones ends where the next one begins, and begins where the last one ends."""
        rules = LogRules(TEN, 1_000, 1, None, start, "split", "message")
        sent = [(message(at),) for at in (20, 40)]
        log = Log(rules, (*sent, (message(at, received_at=41, version=41),)), versioned=True)
        assert content(Headers(log).play(log, -1).books) == content(Books().play(log))

    def test_are_left_out(self):
        """Of many open windows of a stream only those at a message are read."""
        sent = [(message(number * TWENTY),) for number in range(TEN)]
        log = Log(LogRules(TEN, 1_000, 1), (*sent, (message(3 * TWENTY, type="b", version=1_000),)), versioned=True)
        ledger = Headers(log).play(log, -1)
        assert ledger.left_out > TEN
        assert content(ledger.books) == content(Books().play(log))


class Headless(Ledger):
    """A ledger of which no message is read."""

    def read_of(self, live: pa.Table, arrived: pa.Table, step: Step) -> pa.Table:
        """Return all headers."""
        return without_messages(live, np.ones(live.num_rows, np.bool_))


class Twice(Step):
    """A step that returns every row twice."""

    def decide_streams(self, arrived: pa.Table, live: pa.Table) -> tuple[pa.Table, Floors]:
        """Return what batching returns, twice."""
        rows, cuts = super().decide_streams(arrived, live)
        return pa.concat_tables([rows, rows]), cuts


def due(ledger: Ledger, now: Floors) -> dict[str, int]:
    """Return what a tick at `now` would raise: of the windows that the step says have ended, the last one's timeout."""
    return by_source(
        timeouts(ledger.rules, LoadedRows(ledger.live).passed_window_ends(closed_through(ledger.rules, now)))
    )


class TestDue:
    @FEWER
    @given(VERSIONED, st.integers(-5, 60))
    def test_the_last_timeout_that_has_come(self, log, later):
        """Due are the sources with an open batch whose timeout has come, at the latest such timeout of each."""
        ledger = Ledger(log).play(log)
        now = ledger.floors.at_least(max(ledger.floors.floor, default=0) + later)
        come = sorted((row["timeout_at"], row["source"]) for row in ledger.books.open)
        expected = {source: timeout for timeout, source in come if timeout <= by_source(now)[source]}
        assert due(ledger, now) == expected

    @FEWER
    @given(VERSIONED)
    def test_at_its_timeout(self, log):
        """A batch is due at its timeout, and not a microsecond earlier."""
        ledger = Ledger(log).play(log)
        last = {
            row["source"]: row["timeout_at"] for row in sorted(ledger.books.open, key=lambda row: row["timeout_at"])
        }
        for source, timeout in last.items():
            for moment, is_due in ((timeout, True), (timeout - 1, False)):
                now = Floors(pa.array([source]), np.array([moment]))
                assert (due(ledger, now).get(source) == timeout) == is_due

    @FEWER
    @given(VERSIONED, st.integers(-5, 60))
    def test_a_tick_to_it_closes_what_a_later_one_would(self, log, later):
        """A tick to what is due closes the batches that a tick to `now` closes."""
        short, long = Ledger(log).play(log), Ledger(log).play(log)
        now = long.floors.at_least(max(long.floors.floor, default=0) + later)
        to = due(short, now)
        short.tick(short.floors.raised(pa.array(to.keys(), pa.string()), np.array(list(to.values()), np.int64)))
        long.tick(now)
        assert content(short.books) == content(long.books)


@given(logs(versioned=st.just(True)), st.integers(0, 30))
def test_summaries_of_parts_combine(log: Log, position: int) -> None:
    """Summaries of two parts of the messages combine to the summary of all, in the order of versions and sources."""
    arrived = messages.conform(table(log.messages, log))
    parts = [summarise_messages(part, LONG_AFTER) for part in (arrived.slice(0, position), arrived.slice(position))]
    whole = summarise_messages(arrived, LONG_AFTER)
    assert merge_summaries(pa.concat_tables(parts)).to_pylist() == whole.to_pylist()
    named = list(zip(whole["version"].to_pylist(), whole["source"].to_pylist(), strict=True))
    assert named == sorted({(message.version, message.source) for message in log.messages})
    assert whole["messages"].to_pylist() == [
        sum((message.version, message.source) == name for message in log.messages) for name in named
    ]


def test_later_version_first() -> None:
    """Of messages alike the one of the earlier version comes first, though its row and its sequence come later."""
    rows = plain_table([plain_message(sequence=1), plain_message(sequence=2)])
    arrived = rows.append_column("version", pa.array([2, 1], pa.int64()))
    live = tables.ledger_schema(pa.string()).empty_table()
    plan = FloorsByVersion.plan(summarise_messages(arrived, NOW), Floors.empty())
    written, _ = Step(Rules(), plan, NOW, microbatch=1)(arrived, live)
    (batch,) = written.filter(pc.equal(written["state"], "open")).to_pylist()
    assert [inside["sequence"] for inside in batch["messages"]] == [2]
