"""The properties that follow from the rules, on random logs, against what `verify` derives where it has a say."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import groupby, pairwise
from random import Random
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.batching.derived import CONTENT, derive
from tests.batching.log import Call, Flush, Log, LogRules, Message, Tick
from tests.batching.strategies import (
    EPOCH,
    LONG_AFTER,
    Books,
    Row,
    aligned_rules,
    any_rules,
    chained_rules,
    cuts,
    logs,
    long_log,
    place,
    programs,
    rows,
    table,
    windrow_rules,
)
from tests.conftest import one_in
from windrow.batching import streams as decided
from windrow.columnar import arrow

STREAM = ("source", "key")
FULL_CONTENT = (*STREAM, *CONTENT)
FEWER = one_in(10, least=20)  # what is derived follows from the rules, the properties follow from it


def picked(thing: Any, names: Iterable[str]) -> Row:
    """Return some attributes of an object, or some columns of a row, as a row."""
    return {name: thing[name] if isinstance(thing, dict) else getattr(thing, name) for name in names}


def without_names(reported: Iterable[Row]) -> list[Row]:
    """Return rows without what names them or says when they were written."""
    aside = ("id", "detail", "opened_microbatch", "closed_microbatch", "microbatch")
    return [{name: value for name, value in row.items() if name not in aside} for row in reported]


def in_any_order(reported: Iterable[Row]) -> list[Row]:
    """Return rows in an order that depends on their content alone."""
    return sorted(reported, key=lambda row: repr(sorted(row.items())))


def emitted(batches: Iterable[Row]) -> list[Row]:
    """Return the messages of batches, each with its stream."""
    return [picked(batch, STREAM) | message for batch in batches for message in batch["messages"]]


def identity(thing: Any, names: Iterable[str] = FULL_CONTENT) -> tuple[Any, ...]:
    """Return what tells a message from others, its whole content unless told."""
    return tuple(picked(thing, names).values())


def count_messages(messages: Iterable[Any], names: Iterable[str] = FULL_CONTENT) -> Counter[tuple[Any, ...]]:
    """Count messages by their identity."""
    return Counter(identity(message, names) for message in messages)


def by_stream(things: Iterable[Any]) -> dict[tuple[str, str], list[Any]]:
    """Return batches or messages of each stream, in the order given."""
    streams: dict[tuple[str, str], list[Any]] = {}
    for thing in things:
        streams.setdefault(identity(thing, STREAM), []).append(thing)
    return streams


def by_window(batches: Iterable[Row]) -> list[list[Row]]:
    """Return the parts of each window."""
    return [list(parts) for _, parts in groupby(batches, key=lambda batch: place(batch)[:3])]


def stamped(log: Log) -> Log:
    """Return a log of the messages alone, each received at its processing time."""
    times = derive(log).processing_times
    return log.with_messages(replace(message, received_at=times[message.index]) for message in log.messages)


def content(*books: Books) -> tuple[list[Row], list[Row]]:
    """Return all that the books say together, but for names, in an order that depends on it alone."""
    batches = sorted((batch for each in books for batch in each.batches), key=place)
    return without_names(batches), in_any_order(without_names(row for each in books for row in each.rejected))


def named_content(books: Books) -> tuple[list[Row], list[Row]]:
    """Return all that the books say, names included, in an order that depends on it alone."""
    return books.batches, in_any_order(books.rejected)


def closed_by(log: Log) -> Log:
    """Return the log with a tick behind it that closes everything."""
    return log.then(Tick(LONG_AFTER))


class TestDerived:
    @given(programs(), cuts())
    def test_batches(self, log, cuts):
        """Batches, open and closed, are those that `verify` derives in every column."""
        derived, books = derive(log), Books().play(log, cuts)
        assert without_names(books.closed) == derived.closed
        assert without_names(books.open) == derived.open

    @given(programs(), cuts())
    def test_rejections(self, log, cuts):
        """Rejections are as `verify` derives them, with how far each was off and how far its time was raised."""
        books = Books().play(log, cuts)
        assert in_any_order(without_names(books.rejected)) == in_any_order(derive(log).rejected)

    @given(st.randoms(use_true_random=True), st.sampled_from((30, 100, 300, 1_000, 5_000)), cuts(5_000))
    def test_long_logs(self, random, size, cuts):
        """Thousands of messages in a stream are batched as `verify` derives it."""
        log = long_log(random, size)
        derived, books = derive(log), Books().play(log, cuts)
        assert without_names(books.batches) == derived.batches
        assert in_any_order(without_names(books.rejected)) == in_any_order(derived.rejected)

    def test_many_times(self):
        """A stream with more distinct times than two levels of a set of bits hold is batched as `verify` derives it."""
        random, spread = Random(1), 10
        messages = [
            Message(
                at,
                "",
                "k",
                f"t{random.randrange(20)}",
                spread * at - random.choice((0, 0, 0, 33, 191)),
                0,
                None,
                None,
                at,
            )
            for at in range(64 * 64 + 500)
        ]
        rules = LogRules(window=400, max_delay=200, max_lead=50, max_batch_bytes=60)
        log = Log(rules, (), versioned=True).with_messages(
            replace(each, received_at=spread * each.index) for each in messages
        )
        derived, books = derive(log), Books().play(log)
        assert len({each.event_time for each in log.messages}) > 64 * 64
        assert without_names(books.batches) == derived.batches
        assert in_any_order(without_names(books.rejected)) == in_any_order(derived.rejected)


class TestWindows:
    @FEWER
    @given(programs(), cuts())
    def test_never_overlap(self, log, cuts):
        """Windows of a stream never overlap, closed ones included."""
        for batches in by_stream(Books().play(log, cuts).batches).values():
            windows = {(batch["window_start"], batch["window_end"]) for batch in batches}
            assert all(end <= start for (_, end), (start, _) in pairwise(sorted(windows)))

    @FEWER
    @given(programs(), cuts())
    def test_named_for_ever(self, log, cuts):
        """Stream, window start and part name one batch, whose id is its own, and parts are numbered from 0."""
        batches = Books().play(log, cuts).batches
        assert len({batch["id"] for batch in batches}) == len(batches)
        for parts in by_window(batches):
            assert [part["part"] for part in parts] == list(range(len(parts)))

    @FEWER
    @given(programs(), cuts())
    def test_hold_their_messages(self, log, cuts):
        """Every message lies in its window, no batch is empty and no window is longer than the rules say."""
        for batch in Books().play(log, cuts).batches:
            times = [message["event_time"] for message in batch["messages"]]
            assert times
            assert batch["window_start"] <= min(times) <= max(times) < batch["window_end"]
            assert batch["window_end"] - batch["window_start"] <= log.rules.window

    @FEWER
    @given(logs(chained_rules(), kinds=("message",) * 6 + ("tick",), versioned=st.just(False)))
    def test_active_ones_are_a_chain(self, log):
        """With `window` > `max_delay` + `max_lead` active windows form a chain: a new one is appended, a split
        divides.
        """
        books = Books()
        for call in log.calls(cuts=-1):
            before = books.open_by_id
            books.open_by_id = dict(before)
            books.enter(call, log)
            for batches in by_stream(books.open).values():
                assert all(left["window_end"] == right["window_start"] for left, right in pairwise(batches))
            for batch in books.open:
                if batch["id"] not in before:
                    assert self.fits(batch, by_stream(before.values()).get(identity(batch, STREAM), []))

    def fits(self, batch: Row, before: list[Row]) -> bool:
        """Say whether a new batch lies behind all that were active, or divides one of them."""
        start = batch["window_start"]
        if batch["open_reason"] == "message":
            return all(other["window_end"] <= start for other in before)
        return any(other["window_start"] < start < other["window_end"] for other in before)


class TestAligned:
    @given(logs(aligned_rules(), kinds=("message",) * 6 + ("tick",)), cuts())
    def test_cells_of_the_calendar(self, log, cuts):
        """Without splits a batch is exactly the accepted messages of one stream and one cell of the calendar."""
        length, offset = log.rules.window, log.rules.window_offset
        books = Books().play(log, cuts)
        cells: dict[tuple[Any, ...], Counter[tuple[Any, ...]]] = {}
        for message in (count_messages(log.messages) - count_messages(books.rejected)).elements():
            at = dict(zip(FULL_CONTENT, message, strict=True))
            number = (at["event_time"] - offset) // length
            cells.setdefault((at["source"], at["key"], number), Counter())[message] += 1
        for batch in books.batches:
            number, beside = divmod(batch["window_start"] - offset, length)
            assert (beside, batch["window_end"] - batch["window_start"]) == (0, length)
            assert cells.pop((batch["source"], batch["key"], number)) == count_messages(emitted([batch]))
        assert cells == {}

    def test_offset(self):
        """An offset moves the cells, also before 1970: they begin at a multiple of the window plus the offset."""
        rules = LogRules(window=10, max_delay=100, max_lead=1, window_anchor="aligned", window_offset=3)
        times = (-18, -17, -8, -7, 2, 3, 12)
        messages = tuple(Message(at, "", "k", f"t{at}", time, 20, None, None, at) for at, time in enumerate(times))
        batches = Books().play(Log(rules, (messages,), versioned=True)).batches
        windows = [(batch["window_start"], batch["window_end"], batch["message_count"]) for batch in batches]
        assert windows == [(-27, -17, 1), (-17, -7, 2), (-7, 3, 2), (3, 13, 2)]

    def test_split_inside_a_cell(self):
        """A split cuts a cell in two, and the second half ends where the cell does."""
        rules = LogRules(window=10, max_delay=100, max_lead=1, window_anchor="aligned")
        messages = tuple(Message(at, "", "k", "a", time, 20, None, None, at) for at, time in enumerate((3, 6, 11)))
        batches = Books().play(Log(rules, (messages,), versioned=True)).batches
        assert [(batch["window_start"], batch["window_end"]) for batch in batches] == [(0, 6), (6, 10), (10, 20)]

    def test_flush_inside_a_cell(self):
        """After a flush the rest of the cell is a window of its own, and the next cell is whole."""
        rules = LogRules(window=10, max_delay=20, max_lead=20, window_anchor="aligned", on_repeat="keep")
        first, *later = (Message(at, "", "k", "a", at, 3, None, None, at) for at in (3, 7, 12))
        log = Log(rules, ((first,), Flush(None), tuple(later)), versioned=True)
        windows = [(batch["window_start"], batch["window_end"]) for batch in Books().play(log).batches]
        assert windows == [(0, 4), (4, 10), (10, 20)]

    def test_from_windows_that_do_not_lie_on_the_calendar(self):
        """A window that other rules opened and that has closed since is not overlapped: the cell begins after it."""
        arrival = LogRules(window=10, max_delay=20, max_lead=0)
        aligned = replace(arrival, window_anchor="aligned")
        first, second, third = (
            Message(at, "", "k", kind, time, now, None, None, at)
            for at, (kind, time, now) in enumerate([("a", 92, 103), ("b", 95, 114), ("c", 118, 125)])
        )
        books = Books().play(Log(arrival, ((first,),), versioned=True))
        books.play(Log(aligned, ((second,), (third,)), versioned=True))
        windows = [(batch["window_start"], batch["window_end"], batch["state"]) for batch in books.batches]
        assert windows == [(83, 93, "closed"), (94, 100, "closed"), (110, 120, "open")]


class TestRepeats:
    @FEWER
    @given(programs(), cuts())
    def test_split(self, log, cuts):
        """With `split` a window holds at most one message of a type."""
        log = replace(log, rules=replace(log.rules, on_repeat="split"))
        for parts in by_window(Books().play(log, cuts).batches):
            assert set(count_messages(emitted(parts), ("type",)).values()) == {1}

    @FEWER
    @given(programs(), cuts())
    def test_keep(self, log, cuts):
        """With `keep` a type decides only what is a duplicate: batches are as if no type came back at another time."""

        def unrepeated(step):
            if not isinstance(step, tuple):
                return step
            return tuple(replace(message, type=f"{message.type}@{message.event_time}") for message in step)

        log = replace(log, rules=replace(log.rules, on_repeat="keep", max_batch_bytes=None))
        rules = replace(log.rules, on_repeat="split")
        apart = replace(log, rules=rules, steps=tuple(map(unrepeated, log.steps)))
        names = (
            *STREAM,
            "part",
            "window_start",
            "window_end",
            "timeout_at",
            "open_reason",
            "closed_at",
            "message_count",
        )
        kept, separate = (Books().play(variant, cuts) for variant in (log, apart))
        assert [picked(row, names) for row in kept.batches] == [picked(row, names) for row in separate.batches]
        assert [row["reason"] for row in kept.rejected] == [row["reason"] for row in separate.rejected]

    def test_order_in_a_batch(self):
        """Repeated messages of a batch are listed by event time and type, whatever their order of arrival."""
        arrivals = (("b", 3), ("a", 7), ("b", 1), ("a", 3), ("b", 7), ("a", 1))
        messages = tuple(
            Message(at, "", "k", kind, time, 9, None, None, at) for at, (kind, time) in enumerate(arrivals)
        )
        rules = LogRules(window=100, max_delay=20, max_lead=1, on_repeat="keep")
        (batch,) = Books().play(Log(rules, (messages,), versioned=True)).batches
        listed = [(inside["event_time"], inside["type"]) for inside in batch["messages"]]
        assert listed == [(1, "a"), (1, "b"), (3, "a"), (3, "b"), (7, "a"), (7, "b")]

    @pytest.mark.parametrize(
        ("times", "now", "start"),
        [((0, 10), 10, 5), ((10, 0), 12, 5), ((0, 9), 9, 5), ((0, 1), 1, 1), ((0, 20), 38, 18), ((0, 20), 40, 20)],
        ids=["even", "reversed", "odd", "one apart", "never expired", "at the later one"],
    )
    def test_midpoint(self, times, now, start):
        """A window splits halfway between two messages of a type, after the earlier one, and never where it is too
        late.
        """
        first, second = (Message(at, "", "k", "a", time, 0, None, None, at) for at, time in enumerate(times))
        steps = ((replace(first, received_at=times[0]),), (replace(second, received_at=now),))
        rules = LogRules(window=100, max_delay=20, max_lead=20, split_at="midpoint")
        books = Books().play(Log(rules, steps, versioned=True))
        assert [batch["window_start"] for batch in books.batches] == [times[0] - 20, start]
        assert books.rejected == []

    @pytest.mark.parametrize(("split_at", "fewest", "most"), [("message", 0, 10), ("midpoint", 241, 300)])
    def test_rounds_stay_whole(self, split_at, fewest, most):
        """Of 300 rounds of ten types, every two seconds and up to 20 ms out of order, only the midpoint keeps most
        whole.
        """
        random, whole = Random(1), 0
        sent = [(2_000_000 * at + 1_000 * kind, f"t{kind}") for at in range(1, 301) for kind in range(10)]
        arriving = sorted((time + random.randrange(20_000), time, kind) for time, kind in sent)
        rules = LogRules(10_000_000, 5_000_000, 1_000_000, split_at=split_at)
        log = Log(rules, (), versioned=True).with_messages(
            Message(at, "", "k", kind, time, now, None, None, at) for at, (now, time, kind) in enumerate(arriving)
        )
        for batch in Books().play(log).batches:
            rounds = {message["event_time"] // 2_000_000 for message in batch["messages"]}
            whole += len(rounds) == 1 and batch["message_count"] == 10
        assert fewest <= whole <= most


class TestMessages:
    @FEWER
    @given(programs(), cuts())
    def test_emitted_once(self, log, cuts):
        """A message of one stream, type and event time is in one batch at most."""
        counts = count_messages(emitted(Books().play(log, cuts).batches), (*STREAM, "type", "event_time"))
        assert set(counts.values()) <= {1}

    @FEWER
    @given(programs(), cuts())
    def test_duplicate_of_a_closed_batch_is_too_old(self, log, cuts):
        """A message of a closed batch that comes again is rejected as too old and changes nothing."""
        books = Books().play(log, cuts)
        known = count_messages(emitted(books.closed))
        again = tuple(message for message in log.messages if identity(message) in known)
        batches, rejected = books.batches, len(books.rejected)
        books.enter(Call(again), log)
        assert books.batches == batches
        assert [row["reason"] for row in books.rejected[rejected:]] == ["too_old"] * len(again)

    @FEWER
    @given(programs(), cuts())
    def test_nothing_vanishes(self, log, cuts):
        """After every call the messages read are those in open batches, in closed batches and rejected."""
        books, read = Books(), Counter()
        for call in log.calls(cuts):
            books.enter(call, log)
            read += count_messages(call.messages)
            assert read == count_messages(emitted(books.batches)) + count_messages(books.rejected)

    @FEWER
    @given(logs(versioned=st.just(True)), st.sampled_from(("key", "type", "event_time", "received_at")))
    def test_invalid_is_rejected(self, log, name):
        """A message without key, type or time is rejected as invalid and changes nothing for the others."""
        alone, rules = Books().play(log), windrow_rules(log.rules)
        invalid = replace(log.messages[0], **{"received_at": LONG_AFTER, name: None})
        result = windrow.batch(table([invalid, *log.messages], log), rules)
        rejected = {row["id"]: row["reason"] for row in rows(result.rejected)}
        assert sorted(rows(result.batches), key=place) == alone.batches
        assert Counter(rejected.values()) == Counter(row["reason"] for row in alone.rejected) + Counter(["invalid"])

    @FEWER
    @given(programs(), cuts())
    def test_accepted_is_emitted(self, log, cuts):
        """Once all is closed, every message that was not rejected is in a closed batch."""
        books = Books().play(closed_by(log), cuts)
        assert books.open == []
        assert count_messages(log.messages) - count_messages(books.rejected) == count_messages(emitted(books.closed))

    @FEWER
    @given(programs(), cuts())
    def test_listed_by_event_time_and_type(self, log, cuts):
        """Messages of a window are listed by event time and type, over all its parts."""
        for parts in by_window(Books().play(log, cuts).batches):
            ranks = [identity(message, ("event_time", "type")) for message in emitted(parts)]
            assert ranks == sorted(ranks)

    @FEWER
    @given(programs(), cuts())
    def test_reasons_follow_from_processing_time(self, log, cuts):
        """A message is too old, too far ahead or a duplicate exactly as its processing time and its twins say."""
        books = Books().play(log, cuts)
        accepted = count_messages(emitted(books.batches), (*STREAM, "type", "event_time"))
        for row in books.rejected:
            late = row["processing_time"] - log.rules.max_delay - row["event_time"]
            early = row["event_time"] - row["processing_time"] - log.rules.max_lead
            twin = identity(row, (*STREAM, "type", "event_time")) in accepted
            reasons = {"too_old": late > 0, "too_far_ahead": early > 0, "duplicate": twin}
            assert row["reason"] == next(reason for reason, holds in reasons.items() if holds)
            assert row["missed_by_us"] == max(late, early, 0)


class TestCutting:
    @FEWER
    @given(programs(), cuts(), cuts())
    def test_any_cutting(self, log, cuts, other_cuts):
        """Cutting a log with its ticks and flushes into calls anywhere changes no batch and no rejection."""
        assert content(Books().play(log, cuts)) == content(Books().play(log, other_cuts))

    @FEWER
    @given(logs(kinds=("message",) * 6 + ("tick", "flush"), versioned=st.just(True)), cuts(), cuts())
    def test_names_of_versions(self, log, cuts, other_cuts):
        """With versions given, not even the ids depend on the cutting, and no two rejections share one."""
        books = Books().play(log, cuts)
        assert named_content(books) == named_content(Books().play(log, other_cuts))
        assert len({row["id"] for row in books.rejected}) == len(books.rejected)

    @FEWER
    @given(logs(versioned=st.just(True)), st.randoms(use_true_random=False))
    def test_any_order_of_rows(self, log, random):
        """With versions given, the order of the rows of a table changes no batch and no rejection."""
        shuffled = random.sample(log.messages, len(log.messages))
        rules = windrow_rules(log.rules)
        ordered, mixed = (windrow.batch(table(messages, log), rules) for messages in (log.messages, shuffled))
        assert in_any_order(rows(ordered.batches)) == in_any_order(rows(mixed.batches))
        assert in_any_order(rows(ordered.rejected)) == in_any_order(rows(mixed.rejected))

    @FEWER
    @given(logs(), st.lists(st.integers(0, 30), max_size=5))
    def test_any_chunking(self, log, bounds):
        """The chunks in which a table arrives, empty ones included, change nothing."""
        messages = table(log.messages, log)
        edges = sorted([0, 0, *(min(bound, len(messages)) for bound in bounds), len(messages)])
        chunked = pa.concat_tables([messages.slice(start, end - start) for start, end in pairwise(edges)])
        whole, pieces = (windrow.batch(variant, windrow_rules(log.rules)) for variant in (messages, chunked))
        assert rows(whole.batches) == rows(pieces.batches)
        assert rows(whole.rejected) == rows(pieces.rejected)

    @FEWER
    @given(programs(), cuts(), st.integers(1, 8))
    def test_any_shares(self, log, cuts, size):
        """Shares of streams, however large, that several threads take give what one share gives."""
        whole = Books().play(log, cuts)
        with patch.object(decided, "SHARE", size), patch.object(arrow, "MANY", 0):
            shared = Books().play(log, cuts)
        assert shared.batches == whole.batches
        assert shared.rejected == whole.rejected

    @FEWER
    @given(programs(), cuts(), st.integers(1, 8))
    def test_any_bytes(self, log, cuts, most):
        """Payloads that are more than one array of Arrow holds change nothing, not even the types of the columns."""
        messages, rules = table(log.messages, log), windrow_rules(log.rules)
        few, whole = windrow.batch(messages, rules), Books().play(log, cuts)
        with patch.object(arrow, "MAX_BYTES", most):
            many, apart = windrow.batch(messages, rules), Books().play(log, cuts)
        assert (many.batches.schema, many.rejected.schema) == (few.batches.schema, few.rejected.schema)
        assert apart.batches == whole.batches
        assert apart.rejected == whole.rejected

    @FEWER
    @given(logs(), st.integers(0, 30))
    def test_pure(self, log, position):
        """A call leaves the state that it was given as it was: made again it returns the same."""
        books = Books().play(replace(log, steps=log.steps[:position]))
        messages, rules = table(log.messages, log), windrow_rules(log.rules)
        once, again = (windrow.batch(messages, rules, state=books.state) for _ in range(2))
        assert rows(once.batches) == rows(again.batches)
        assert rows(once.rejected) == rows(again.rejected)


class TestTicks:
    @FEWER
    @given(logs(), st.lists(st.none() | st.sampled_from((0, 0, 1, 10)), min_size=1, max_size=10), cuts())
    def test_not_later_than_the_next_message(self, log, slacks, cuts):
        """Ticks not later than the next message change nothing but when a closed batch becomes visible."""
        ticked = replace(log, steps=tuple(self.with_ticks(log, slacks)))
        assert content(Books().play(closed_by(ticked), cuts)) == content(Books().play(closed_by(log)))

    def with_ticks(self, log: Log, slacks: list[int | None]) -> Iterable[Any]:
        """Return the steps of a log, some followed by a tick, not later than the next message of known sources."""
        times, known = derive(log).processing_times, set()
        for number, version in enumerate(log.steps):
            yield version
            known |= {message.source for message in version}
            following = [message for step in log.steps[number + 1 :] for message in step]
            latest = min((times[m.index] for m in following if m.source in known), default=LONG_AFTER)
            slack = slacks[number % len(slacks)]
            if slack is not None:
                yield Tick(latest - slack)

    @FEWER
    @given(programs(), cuts())
    def test_closed_as_far_as_the_clock(self, log, cuts):
        """What is open times out later than its source's clock; what timed out is closed at its timeout."""
        floors, books = derive(log).floors, Books().play(log, cuts)
        assert all(batch["timeout_at"] > floors[batch["source"]] for batch in books.open)
        for batch in books.closed:
            if batch["close_reason"] == "timeout":
                assert batch["closed_at"] == batch["timeout_at"] <= floors[batch["source"]]

    @FEWER
    @given(logs())
    def test_time_or_microseconds(self, log):
        """`now` may be given as a time or as microseconds."""
        now = max(message.received_at for message in log.messages) + log.rules.window
        moments = (now, EPOCH + timedelta(microseconds=now))
        messages, rules = table(log.messages, log), windrow_rules(log.rules)
        by_number, by_time = (windrow.batch(messages, rules, now=moment) for moment in moments)
        assert rows(by_number.batches) == rows(by_time.batches)


class TestFlush:
    @FEWER
    @given(programs(), cuts())
    def test_cuts_windows_after_the_last_event(self, log, cuts):
        """A flush closes all that is open, and no window ends later than just after the last event of the source."""
        books = Books().play(log, cuts)
        before, floors = books.open, derive(log).floors
        books.enter(Call((), flush=True), log)
        assert books.open == []
        cuts_by_source = self.cuts_by_source(before)
        for batch in before:
            closed = books.closed_by_id[batch["id"]]
            assert closed["window_end"] == min(batch["window_end"], cuts_by_source[batch["source"]])
            assert closed["closed_at"] == floors[batch["source"]]
            assert closed["close_reason"] == "flush"

    @FEWER
    @given(programs(), cuts())
    def test_only_what_lies_before_the_cut_is_too_old(self, log, cuts):
        """After a flush a source goes on at the cut, or at its clock less the delay if that is later."""
        books = Books().play(log, cuts)
        before, floors = books.open, derive(log).floors
        books.enter(Call((), flush=True), log)
        rejected = len(books.rejected)
        cuts_by_source = self.cuts_by_source(before)
        for source, cut in cuts_by_source.items():
            oldest = max(floors[source] - log.rules.max_delay, cut)
            books.enter(Call((self.probe(source, "good", oldest), self.probe(source, "late", oldest - 1))), log)
        assert [message["type"] for message in emitted(books.open)] == ["good"] * len(cuts_by_source)
        reasons = [(row["type"], row["reason"]) for row in books.rejected[rejected:]]
        assert reasons == [("late", "too_old")] * len(cuts_by_source)

    def cuts_by_source(self, batches: list[Row]) -> dict[str, int]:
        """Return for each source the time just after its last event."""
        ordered = sorted(batches, key=lambda batch: batch["last_event_time"])
        return {batch["source"]: batch["last_event_time"] + 1 for batch in ordered}

    def probe(self, source: str, name: str, event_time: int) -> Message:
        """Return a message that was received long ago, so that only the floor decides."""
        return Message(0, source, "probe", name, event_time, -1_000_000, None, None, 0)


class TestStreams:
    @FEWER
    @given(logs())
    def test_processed_apart(self, log):
        """A stream is batched alone as it is among others, and can be cut where nothing before is still active."""
        log = stamped(log)
        pieces = [piece for stream in self.cut_streams(log) for piece in stream]
        apart = [Books().play(closed_by(log.with_messages(piece))) for piece in pieces]
        assert content(*apart) == content(Books().play(closed_by(log)))

    @FEWER
    @given(logs())
    def test_nothing_is_active_at_a_cut(self, log):
        """Nothing is open at a processing time later than every earlier event time + `window` + `max_delay`."""
        log = stamped(log)
        for pieces in self.cut_streams(log):
            for piece, following in pairwise(pieces):
                until = log.with_messages(piece).then(Tick(following[0].received_at))
                assert Books().play(until).open == []

    def cut_streams(self, log: Log) -> list[list[list[Message]]]:
        """Return the pieces of each stream."""
        ordered = sorted(log.messages, key=lambda message: (message.version, message.received_at))
        return [self.cut(messages, log.rules) for messages in by_stream(ordered).values()]

    def cut(self, messages: list[Message], rules: LogRules) -> list[list[Message]]:
        """Cut before a processing time later than every earlier event time + `window` + `max_delay`."""
        pieces, latest = [[messages[0]]], messages[0].event_time
        for message in messages[1:]:
            if message.received_at > latest + rules.window + rules.max_delay:
                pieces.append([])
            pieces[-1].append(message)
            latest = max(latest, message.event_time)
        return pieces


class TestWishes:
    """What users of the original asked for."""

    @FEWER
    @given(logs(), st.integers(0, 5_000))
    def test_grouping_does_not_depend_on_the_delay(self, log, extra):
        """
        With windows that start at the event time, a longer delay moves no message that was in time.

        A midpoint may be too old to split at, and then the split depends on the delay.
        """
        rules = replace(log.rules, window_anchor="event_time", window_offset=0, split_at="message")
        log = stamped(replace(log, rules=rules))
        late = {index for index, reason in derive(log).reasons.items() if reason == "too_old"}
        log = log.with_messages(message for message in log.messages if message.index not in late)
        patient = replace(log, rules=replace(log.rules, max_delay=log.rules.max_delay + extra))
        names = (*STREAM, "part", "window_start", "window_end", "messages")
        hasty, patient = (Books().play(closed_by(variant)).closed for variant in (log, patient))
        assert [picked(row, names) for row in hasty] == [picked(row, names) for row in patient]

    @FEWER
    @given(programs(), any_rules(), st.integers(0, 30), cuts())
    def test_rules_can_be_changed(self, log, rules, position, cuts):
        """Under other rules open batches keep their windows, nothing opens again, and windows still do not overlap.

        What is open is shown under the rules in force, in a ledger under those of its last change.
        """
        before, after = log.steps[:position], replace(log, rules=rules, steps=log.steps[position:])
        first = replace(log, steps=before)
        derived, books = derive(first, after), Books().play(first, cuts)
        books.enter(Call(()), after)
        books.play(after, cuts)
        for batches in by_stream(books.batches).values():
            windows = sorted({(batch["window_start"], batch["window_end"]) for batch in batches})
            assert all(end <= start for (_, end), (start, _) in pairwise(windows))
        names = derived.open[0].keys() - {"timeout_at", "oversize"} if derived.open else ()
        assert [picked(row, names) for row in books.open] == [picked(row, names) for row in derived.open]
        assert all(row["timeout_at"] == row["window_end"] + rules.max_delay for row in books.open)
        assert in_any_order(without_names(books.rejected)) == in_any_order(derived.rejected)
        books.enter(Call((), LONG_AFTER), after)
        assert without_names(books.closed) == derive(first, closed_by(after)).closed

    def test_batch_opened_under_a_larger_window(self):
        """A batch that was opened under a larger window keeps its end when it is split under a smaller one."""
        rules = LogRules(window=100, max_delay=20, max_lead=20)
        first, second = (Message(at, "", "k", "a", at, at, None, None, at) for at in (0, 30))
        books = Books().play(Log(rules, ((first,),), versioned=True))
        books.play(Log(replace(rules, window=10), ((second,),), versioned=True))
        assert [(batch["window_start"], batch["window_end"]) for batch in books.open] == [(-20, 30), (30, 80)]

    @FEWER
    @given(any_rules(), st.sampled_from((0, 1_700_000_000_000_000)))
    def test_conflict_one_unit_apart(self, rules, now):
        """Two messages of a type one microsecond apart are both accepted, in two batches that touch."""
        rules = replace(rules, max_delay=max(rules.max_delay, 1), window=max(rules.window, 2), on_repeat="split")
        messages = tuple(Message(0, "", "k", "a", now - apart, now, None, None, 0) for apart in (0, 1))
        books = Books().play(Log(rules, (messages,), versioned=True))
        earlier, later = books.batches
        assert books.rejected == []
        assert earlier["window_end"] == later["window_start"] == now

    def test_backlog_after_downtime(self):
        """Messages that arrived in time while nothing ran are all batched when they are read at once, long after."""
        arrivals = range(0, 1_000, 7)
        messages = [Message(at, "", "k", "a", at - 5, at, None, None, at) for at in arrivals]
        log = Log(LogRules(window=50, max_delay=20, max_lead=20), (tuple(messages),), versioned=True)
        books = Books().play(closed_by(log))
        assert books.rejected == []
        assert count_messages(emitted(books.closed)) == count_messages(messages)

    def test_safe_defaults(self):
        """The default rules hold their documented values and give no warning."""
        rules = windrow.Rules()
        durations = (rules.window, rules.max_delay, rules.max_lead)
        assert durations == (10_000_000, 5_000_000, 1_000_000)
        assert (rules.max_batch_bytes, rules.window_anchor) == (16_777_216, "arrival")
        assert (rules.on_repeat, rules.split_at) == ("split", "message")

    def test_short_window_warns(self):
        """A window no longer than the delay and the lead together warns, unless windows start at the event time."""
        with pytest.warns(UserWarning, match="window"):
            windrow.Rules(window="6s", max_delay="5s", max_lead="1s")
        windrow.Rules(window="6s", max_delay="5s", max_lead="1s", window_anchor="event_time")

    @pytest.mark.parametrize("unlimited", [None, 0])
    def test_no_byte_limit(self, unlimited):
        """With no limit a batch takes any number of bytes."""
        messages = tuple(Message(0, "", "k", name, 0, 0, None, "x" * 20_000_000, 0) for name in "ab")
        rules = LogRules(window=10, max_delay=5, max_lead=1, max_batch_bytes=unlimited)
        (batch,) = Books().play(Log(rules, (messages,), versioned=True)).batches
        assert (batch["bytes"], batch["oversize"], batch["message_count"]) == (40_000_002, False, 2)

    @pytest.mark.parametrize(("limit", "counts"), [(4, [4]), (3, [3, 1]), (2, [2, 2]), (1, [1, 1, 1, 1])])
    @pytest.mark.parametrize("cuts", [0, -1], ids=["one call", "a call for each message"])
    def test_byte_limit_to_the_byte(self, limit, counts, cuts):
        """A batch takes as many bytes as the limit, and not one more, whichever call it was opened in."""
        steps = tuple((Message(at, "", "k", name, at, at, None, None, at),) for at, name in enumerate("abcd"))
        log = Log(LogRules(window=100, max_delay=5, max_lead=1, max_batch_bytes=limit), steps, versioned=True)
        assert [batch["message_count"] for batch in Books().play(log, cuts).batches] == counts

    @pytest.mark.parametrize(("limit", "counts"), [(4, [4]), (3, [3, 1]), (2, [2, 2]), (1, [1, 1, 1, 1])])
    def test_parts_to_the_byte(self, limit, counts):
        """What has one time cannot be split; once closed it stands in parts that take as much as the limit."""
        messages = tuple(Message(at, "", "k", name, 0, 0, None, None, at) for at, name in enumerate("abcd"))
        log = Log(LogRules(window=100, max_delay=5, max_lead=1, max_batch_bytes=limit), (messages,), versioned=True)
        assert [batch["message_count"] for batch in Books().play(closed_by(log)).closed] == counts

    def test_split_before_what_was_first(self):
        """A batch that got an earlier message and is then split before what was its first is listed as two."""
        arrivals = enumerate((("x", 10), ("a", 5), ("a", 8)))
        messages = tuple(Message(at, "", "k", name, time, 10, None, None, at) for at, (name, time) in arrivals)
        log = Log(LogRules(window=100, max_delay=20, max_lead=1), (messages,), versioned=True)
        times = [[inside["event_time"] for inside in batch["messages"]] for batch in Books().play(log).batches]
        assert times == [[5], [8, 10]]

    @pytest.mark.parametrize(
        ("limit", "arrivals", "counts"),
        [
            (4, [*zip("abcdefg", (0, 1, 2, 3, 2, 0, 1), [None] * 7, strict=True)], [4, 3]),
            (3, [*zip("abcde", (0, 1, 2, 3, 2), [None] * 4 + ["xxxxx"], strict=True)], [2, 2, 1]),
            (4, [*zip("abcdef", (0, 0, 1, 2, 2, 1), [None] * 6, strict=True)], [4, 2]),
            (4, [*zip("abcdefg", (0, 0, 1, 2, 2, 1, 1), [None] * 7, strict=True)], [2, 3, 2]),
        ],
        ids=[
            "room in the first half",
            "a heavy one at the end of the first half",
            "just as much as the first half takes",
            "one more than the first half takes",
        ],
    )
    @pytest.mark.parametrize("cuts", [0, 1 << 3, -1], ids=["one call", "a call for the first four", "a call each"])
    def test_halves_go_on(self, limit, arrivals, counts, cuts):
        """After a split each half takes more messages, by what it weighs itself and where its own last one is."""
        messages = tuple(Message(at, "", "k", *each[:2], 3, None, each[2], at) for at, each in enumerate(arrivals))
        rules = LogRules(window=100, max_delay=5, max_lead=1, max_batch_bytes=limit)
        log = Log(rules, tuple((each,) for each in messages), versioned=True)
        assert [batch["message_count"] for batch in Books().play(log, cuts).batches] == counts

    def test_conflict_with_the_earliest_of_its_type(self):
        """A message splits the window that holds the earliest of its type, also when a later window has one already."""
        messages = tuple(Message(at, "", "k", "x", time, 20, None, None, at) for at, time in enumerate((0, 20, 5)))
        rules = LogRules(window=10, max_delay=20, max_lead=1, window_anchor="event_time")
        batches = Books().play(Log(rules, (messages,), versioned=True)).batches
        assert [(batch["window_start"], batch["window_end"]) for batch in batches] == [(0, 5), (5, 15), (20, 30)]

    @pytest.mark.parametrize("arrivals", [[("a", 0), ("b", 0), ("b", 900)], [("b", 0), ("b", 900), ("a", 0)]])
    def test_a_stream_closes_nothing_of_another(self, arrivals):
        """What times out in a stream leaves open what another one, of a source with an earlier clock, left open."""
        messages = tuple(
            Message(at, each[0], "k", "x", each[1], each[1], None, None, at) for at, each in enumerate(arrivals)
        )
        books = Books().play(Log(LogRules(window=10, max_delay=5, max_lead=1), (messages,), versioned=True))
        assert [(batch["source"], batch["first_event_time"]) for batch in books.closed] == [("b", 0)]
        assert [(batch["source"], batch["first_event_time"]) for batch in books.open] == [("a", 0), ("b", 900)]

    @pytest.mark.parametrize(
        ("arrivals", "times"),
        [
            ([("a", 0, None), ("x", 10, None), ("x", 5, "heavy")], [0, 5, 10]),
            ([("b", 6, None), ("x", 10, None), ("x", 5, "xx")], [5, 6, 10]),
        ],
        ids=["before a message that is too much alone", "after it"],
    )
    def test_conflict_and_size_at_once(self, arrivals, times):
        """The half that a conflict leaves may be too large, and is split again, before the message or after it."""
        messages = tuple(Message(at, "", "k", *each[:2], 10, None, each[2], at) for at, each in enumerate(arrivals))
        log = Log(LogRules(window=100, max_delay=20, max_lead=1, max_batch_bytes=3), (messages,), versioned=True)
        batches = Books().play(log).batches
        assert [batch["first_event_time"] for batch in batches] == times
        assert without_names(batches) == derive(log).batches

    @pytest.mark.parametrize("keys", ["ab", "ba"])
    @pytest.mark.parametrize(("before", "apart"), [(0, 0), (0, 200), (100, 0), (5_000, 0), (5_000, 200)])
    def test_a_stream_leaves_nothing_to_the_next(self, before, apart, keys):
        """What a stream leaves open changes nothing for another one, however many times they have."""
        rules = LogRules(window=10_000, max_delay=99_999, max_lead=99_999, window_anchor="event_time")
        first = [*range(before + apart), 20_000, 40_000]
        second = [*range(before), 20_000, 40_000, 29_999, *range(25_000, 25_000 + 2 * apart)]
        times = dict(zip(keys, (first, second), strict=True))
        messages = tuple(
            Message(at, "", key, f"type {at}", time, 0, None, None, at)
            for key in "ab"
            for at, time in enumerate(times[key])
        )
        batches = Books().play(Log(rules, (messages,), versioned=True)).batches
        windows = [(batch["window_start"], batch["message_count"]) for batch in batches if batch["key"] == keys[1]]
        assert windows == [(0, before)] * (before > 0) + [(20_000, 2 + 2 * apart), (40_000, 1)]

    @pytest.mark.parametrize("keys", ["ab", "ba"])
    @pytest.mark.parametrize("times", [range(10, 11), range(10, 400)], ids=["one", "many"])
    def test_a_stream_leaves_no_times_to_the_next(self, times, keys):
        """A window is split at a time of its own stream, not at one that another stream has had."""
        between = [(f"{time}", time, None) for time in times]
        first = [("w", 0, None), ("y", 5, None), *between]
        second = [("w", 0, None), ("x", 900, None), ("y", 5, "too much"), *between]
        arrivals = [(key, *each) for key, stream in zip(keys, (first, second), strict=True) for each in stream]
        messages = tuple(Message(at, "", *each[:3], 900, None, each[3], at) for at, each in enumerate(arrivals))
        rules = LogRules(window=1_000, max_delay=999, max_lead=1, max_batch_bytes=8, window_anchor="event_time")
        log = Log(rules, (messages,), versioned=True)
        assert without_names(Books().play(log).batches) == derive(log).batches

    @pytest.mark.parametrize("keys", ["ab", "ba"])
    @pytest.mark.parametrize("count", [4, 300])
    def test_a_stream_leaves_no_bytes_to_the_next(self, count, keys):
        """The half of a window weighs what its own stream put into it."""
        heavy = [(f"{time:03}", time, "x" * 100) for time in range(count)]
        light = [(f"{time:03}", time, None) for time in range(count)]
        light += [("001", 0, None), ("a", count - 2, None)]
        arrivals = [(key, *each) for key, stream in zip(keys, (heavy, light), strict=True) for each in stream]
        messages = tuple(Message(at, "", *each[:3], 900, None, each[3], at) for at, each in enumerate(arrivals))
        rules = LogRules(window=1_000, max_delay=999, max_lead=1, max_batch_bytes=3 * count + 50)
        log = Log(replace(rules, window_anchor="event_time", window_offset=0), (messages,), versioned=True)
        assert without_names(Books().play(log).batches) == derive(log).batches

    def test_both_neighbours_are_too_much(self):
        """A message that is too much for what comes before it and for what comes after it stands alone."""
        arrivals = [("a", 0, None), ("b", 2, None), ("c", 1, "x")]
        messages = tuple(Message(at, "", "k", *each[:2], 2, None, each[2], at) for at, each in enumerate(arrivals))
        log = Log(LogRules(window=100, max_delay=5, max_lead=1, max_batch_bytes=2), (messages,), versioned=True)
        assert [batch["first_event_time"] for batch in Books().play(log).batches] == [0, 1, 2]

    def test_first_time_of_a_window(self):
        """A message at the very beginning of a window belongs to it, also when all that it holds is later."""
        messages = tuple(
            Message(at, "", "k", f"t{time}", time, 20, None, None, at) for at, time in enumerate((5, 15, 0))
        )
        log = Log(LogRules(window=10, max_delay=20, max_lead=1), (messages,), versioned=True)
        windows = [(batch["window_start"], batch["window_end"]) for batch in Books().play(log).batches]
        assert windows == [(0, 10), (10, 20)]

    @FEWER
    @given(logs(versioned=st.just(False), streams=(("", "k"),)))
    def test_columns_may_be_absent(self, log):
        """Without source, sequence and payload a message has the empty source and NULL in the others."""
        log = replace(log, binary=False)
        messages = table([replace(each, sequence=None, payload=None) for each in log.messages], log)
        absent = messages.drop_columns(["source", "sequence", "payload"])
        whole, bare = (windrow.batch(variant, windrow_rules(log.rules)) for variant in (messages, absent))
        assert rows(whole.batches) == rows(bare.batches)
        assert rows(whole.rejected) == rows(bare.rejected)
