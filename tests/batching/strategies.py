"""Logs for the property tests: how they are drawn, cut into calls, and what books are kept of the results.

Times are drawn as distances that matter under the drawn rules (0, `window`, `max_delay`, `max_lead`, their sums,
and one unit beside each), from the clock or from an earlier message, so that boundaries are met often.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, NamedTuple

import pyarrow as pa
from hypothesis import strategies as st

import windrow
from tests.batching.log import Call, Flush, Log, LogRules, Message, Tick, Version

TIME = pa.timestamp("us", tz="UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LONG_AFTER = 9_214_646_000_000_000
BASES = (0, -40, 1_700_000_000_000_000, 9_214_000_000_000_000)  # the last are too many for a float
STREAMS = (("", "k"), ("", "l"), ("a", "b/c"), ("a/b", "c"), ("a%2Fb", "c"), ("a", ""), ("s", "k"))
TYPES = ("a", "b", "c", "ß", "")
UNIQUE = "unique"
PAYLOADS = (UNIQUE, UNIQUE, None, "", "x", "ß", "xxxxx")
BYTE_LIMITS = (None, 1, 2, 3, 5, 8, 13)

Row = dict[str, Any]


class Move(NamedTuple):
    """One drawn step, relative to those before it."""

    kind: str
    stream: int
    type: str
    advance: int
    anchor: int
    distance: int
    lag: int
    sequence: int | None
    payload: str | None
    joins: bool
    repeats: bool


def any_rules() -> st.SearchStrategy[LogRules]:
    """Rules of every proportion, also windows shorter than `max_delay` + `max_lead`."""

    def build(unit: int, window: int, delay: int, lead: int, offset: int, *others: Any) -> LogRules:
        rules = LogRules(unit * window, unit * delay, unit * lead, *others)
        return replace(rules, window_offset=offset % rules.window if rules.window_anchor == "aligned" else 0)

    return st.builds(
        build,
        st.sampled_from((1, 10, 1_000)),
        st.integers(1, 8),
        st.integers(0, 10),
        st.integers(0, 6),
        st.sampled_from((0, 0, 1, 17_003)),
        st.sampled_from(BYTE_LIMITS),
        st.sampled_from(("arrival", "event_time", "aligned")),
        st.sampled_from(("split", "split", "keep")),
        st.sampled_from(("message", "midpoint")),
    )


def chained_rules() -> st.SearchStrategy[LogRules]:
    """Rules whose window is longer than `max_delay` + `max_lead` and starts at the arrival."""

    def lengthened(rules: LogRules, extra: int) -> LogRules:
        window = rules.max_delay + rules.max_lead + extra
        return replace(rules, window=window, window_anchor="arrival", window_offset=0)

    return st.builds(lengthened, any_rules(), st.integers(1, 8))


def aligned_rules() -> st.SearchStrategy[LogRules]:
    """Rules whose windows lie on the calendar and are not split."""

    def aligned(rules: LogRules, offset: int) -> LogRules:
        kept = {"on_repeat": "keep", "max_batch_bytes": None}
        return replace(rules, window_anchor="aligned", window_offset=offset % rules.window, **kept)

    return st.builds(aligned, any_rules(), st.integers(0, 8_000))


def late_rules() -> st.SearchStrategy[LogRules]:
    """Rules under which many short windows are open at a time."""

    def delayed(rules: LogRules, times: int) -> LogRules:
        return replace(rules, max_delay=times * rules.window)

    return st.builds(delayed, any_rules(), st.integers(10, 40))


def cuts(steps: int = 30) -> st.SearchStrategy[int]:
    """After which of the first steps a log is cut, as bits; a short log also after each."""
    chosen = st.lists(st.integers(0, steps), max_size=4).map(lambda cuts: sum(1 << cut for cut in set(cuts)))
    return chosen | chosen | st.sampled_from((0, 0, 0, 0, -1 if steps <= 30 else 0))


@st.composite
def logs(
    draw: st.DrawFn,
    rules: st.SearchStrategy[LogRules] | None = None,
    kinds: tuple[str, ...] = ("message",),
    versioned: st.SearchStrategy[bool] | None = None,
    streams: tuple[tuple[str, str], ...] = STREAMS,
) -> Log:
    """Logs of messages in some of the `streams`, or with other `kinds` of steps between them."""
    drawn = draw(any_rules() if rules is None else rules)
    chosen = draw(st.lists(st.sampled_from(streams), min_size=1, max_size=3, unique=True))
    length = draw(st.sampled_from((1, 6, 12, 20)))
    moves = draw(st.lists(_moves(drawn, kinds), min_size=length, max_size=30))
    layout = _Layout(chosen, draw(st.sampled_from(BASES)))
    layout.binary = draw(st.booleans())
    layout.versioned = draw(st.booleans() if versioned is None else versioned)
    for move in moves:
        layout.lay(move)
    return Log(drawn, tuple(layout.steps), layout.versioned, layout.binary)


def programs(streams: tuple[tuple[str, str], ...] = STREAMS) -> st.SearchStrategy[Log]:
    """Logs with ticks and flushes between the messages."""
    return logs(kinds=("message",) * 12 + ("tick", "tick", "flush"), streams=streams)


def long_log(random: Random, size: int) -> Log:
    """Return a log too long to be drawn step by step, mostly in order, of few streams and many types."""
    window, delay, lead = random.choice(((50, 20, 10), (30, 40, 10), (400, 300, 50)))
    limit, start = random.choice((None, 40)), random.choice(("arrival", "event_time", "aligned"))
    conflicts = random.choice(("split", "split", "keep")), random.choice(("message", "midpoint"))
    rules = LogRules(window, delay, lead, limit, start, *conflicts)
    clock, version, messages = 0, 0, []
    for index in range(size):
        clock += random.choice((0, 0, 1, 2, 9)) if random.random() < 0.99 else 2 * window + delay
        version += random.choice((0, 0, 1))
        early = random.choice((0, 0, -1, -delay, lead, random.randint(-delay - 2, lead + 2)))
        kind, key = f"t{random.randrange(20)}", random.choice("kkkl")
        received_at = clock - random.choice((0, 0, 0, delay))
        messages.append(Message(index, "", key, kind, clock + early, received_at, None, f"{index}", version))
    return Log(rules, (), versioned=True).with_messages(messages)


def _moves(rules: LogRules, kinds: tuple[str, ...]) -> st.SearchStrategy[Move]:
    unit = math.gcd(rules.window, rules.max_delay, rules.max_lead)
    window, delay, lead = rules.window, rules.max_delay, rules.max_lead
    spans = (0, window, delay, lead, delay + window, window - delay)
    marks = [span + beside for span in spans for beside in (-1, 0, 0, 1)]
    near = [unit * count for count in range(-delay // unit, lead // unit + 1)]
    reach = window + delay + lead
    return st.builds(
        Move,
        kind=st.sampled_from(kinds),
        stream=st.integers(0, 3),
        type=st.sampled_from(TYPES),
        advance=st.sampled_from((0,) * 8 + (1, unit, unit, 2 * unit, 2 * unit, window, delay, reach + 1)),
        anchor=st.sampled_from((0, 0, 0, 1, 1, 2, 3)),
        distance=st.just(0) | st.sampled_from([*near, *near, *marks, *(-mark for mark in marks)]),
        lag=st.sampled_from((0, 0, 0, 0, 0, 1, unit, delay)),
        sequence=st.sampled_from((None, None, 0, 1, -1)),
        payload=st.sampled_from(PAYLOADS),
        joins=st.booleans(),
        repeats=st.sampled_from((False,) * 9 + (True,)),
    )


class _Layout:
    """Lays moves out in time, one after the other."""

    def __init__(self, streams: list[tuple[str, str]], base: int) -> None:
        self.streams, self.clock = streams, base
        self.binary, self.versioned = False, True
        self.steps: list[Version | Tick | Flush] = []
        self.messages: list[Message] = []

    def lay(self, move: Move) -> None:
        self.clock += move.advance
        if move.kind == "tick":
            earlier = self._earlier(move)
            self.steps.append(Tick((earlier.received_at if earlier else self.clock) + move.distance))
        elif move.kind == "flush":
            self.steps.append(Flush(self.clock + move.distance if move.joins else None))
        else:
            self._lay_message(move)

    def _lay_message(self, move: Move) -> None:
        joins = self.versioned and move.joins and bool(self.steps) and isinstance(self.steps[-1], tuple)
        version = self.messages[-1].version + (0 if joins else 1 + move.stream) if self.messages else 7
        message = replace(self._message(move), index=len(self.messages), version=version)
        self.messages.append(message)
        if joins:
            self.steps[-1] += (message,)
        else:
            self.steps.append((message,))

    def _message(self, move: Move) -> Message:
        source, key = self.streams[move.stream % len(self.streams)]
        earlier = self._earlier(move)
        if earlier and move.repeats:
            return earlier
        event_time = (earlier.event_time if earlier else self.clock) + move.distance
        payload = self._payload(move.payload)
        received_at = self.clock - move.lag
        return Message(0, source, key, move.type, event_time, received_at, move.sequence, payload, 0)

    def _earlier(self, move: Move) -> Message | None:
        return self.messages[-move.anchor] if 0 < move.anchor <= len(self.messages) else None

    def _payload(self, text: str | None) -> bytes | str | None:
        text = f"#{len(self.messages)}" if text is UNIQUE else text
        return text.encode("latin-1") if self.binary and text is not None else text


def table(messages: Iterable[Message], log: Log) -> pa.Table:
    """Return messages as the table that `windrow.batch` takes, in the order given, with the columns of the log."""
    kinds = dict.fromkeys(("source", "key", "type"), pa.string())
    kinds |= {"event_time": TIME, "received_at": TIME, "sequence": pa.int64()}
    kinds |= {"payload": pa.binary() if log.binary else pa.string()}
    kinds |= {"version": pa.int64()} if log.versioned else {}
    columns = {name: [getattr(message, name) for message in messages] for name in kinds}
    return pa.table({name: pa.array(columns[name], kind) for name, kind in kinds.items()})


def windrow_rules(rules: LogRules) -> windrow.Rules:
    """Return the rules as the package takes them; that a window is short is intended here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return windrow.Rules(
            window=rules.window,
            max_delay=rules.max_delay,
            max_lead=rules.max_lead,
            max_batch_bytes=rules.max_batch_bytes,
            window_anchor=rules.window_anchor,
            on_repeat=rules.on_repeat,
            split_at=rules.split_at,
            window_offset=rules.window_offset,
        )


class Books:
    """What the calls reported, merged by id as a ledger does it: closed batches are final, open ones are not."""

    def __init__(self) -> None:
        self.open_by_id: dict[str, Row] = {}
        self.closed_by_id: dict[str, Row] = {}
        self.rejected: list[Row] = []
        self.state: Any = None

    def play(self, log: Log, cuts: int = 0) -> Books:
        """Give the log to `windrow.batch` call by call."""
        for call in log.calls(cuts):
            self.enter(call, log)
        return self

    def enter(self, call: Call, log: Log) -> None:
        """Make one call with the state of the last and enter what it reports."""
        messages = table(call.messages, log)
        rules = windrow_rules(log.rules)
        batched = windrow.batch(messages, rules, state=self.state, now=call.now, flush=call.flush)
        self.state = batched.state
        reported = rows(batched.batches)
        assert len({row["id"] for row in reported}) == len(reported), "an id is reported twice by one call"
        for row in reported:
            assert row["id"] not in self.closed_by_id, "a closed batch is reported again"
            self.open_by_id.pop(row["id"], None)
            books = {"open": self.open_by_id, "closed": self.closed_by_id}[row["state"]]
            books[row["id"]] = row
        self.rejected += rows(batched.rejected)

    @property
    def open(self) -> list[Row]:
        """Open batches by stream and window."""
        return sorted(self.open_by_id.values(), key=place)

    @property
    def closed(self) -> list[Row]:
        """Closed batches by stream, window and part."""
        return sorted(self.closed_by_id.values(), key=place)

    @property
    def batches(self) -> list[Row]:
        """All batches by stream, window and part."""
        return sorted([*self.open, *self.closed], key=place)


def rows(reported: pa.Table) -> list[Row]:
    """Return the rows of a table as dictionaries, times as microseconds."""
    return _plain(reported.to_pylist())


def place(row: Row) -> tuple[str, str, int, int]:
    """Return what names a batch forever."""
    return row["source"], row["key"], row["window_start"], row["part"]


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return (value - EPOCH) // timedelta(microseconds=1)
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_plain(part) for part in value]
    return value
