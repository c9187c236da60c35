"""Grammars: the step functions of the automata that find the records of CSV, lines and JSON.

`delimiter_automaton` accepts delimiters of any length and quotes as in RFC 4180: a quote opens only at the start of a
field, and only spaces may stand between the closing quote and the next delimiter. Anything else there makes the record
malformed: most likely its quote was opened by mistake and closed by a quote of another record. `objects` follows the
depth of JSON values, which need no delimiter between them.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

from windrow.errors import SettingsError
from windrow.formats.automaton import Automaton


class Place(NamedTuple):
    """A state of `delimiter_automaton`: before or in a field, and how much of a delimiter it has just seen."""

    within: str
    seen: bytes = b""


class Depth(NamedTuple):
    """A state of `objects`: the depth of braces and brackets, whether in a text, and whether after a backslash."""

    depth: int
    quoted: bool = False
    escaped: bool = False


START, FIELD, QUOTED, QUOTE, ESCAPED = "start", "field", "quoted", "quote", "escaped"
CLOSED = "closed"  # after the closing quote and a space, or the start of a delimiter
MALFORMED = Place("malformed")


@cache
def delimiter_automaton(record: bytes, field: bytes = b"", quote: bytes = b"", escape: bytes = b"") -> Automaton:
    """Return the automaton of records whose fields may be quoted. Raises SettingsError for delimiters that collide.

    With the first argument alone, nothing but the delimiter ends a record.
    """
    _require_apart(record, field, quote, escape)
    escape = escape if escape != quote else b""  # escaping a quote with a quote means doubling it
    marks = [mark for mark in (record, field) if mark]
    lines = [*marks, b"\r\n"] if record == b"\n" else marks  # what may follow a closing quote

    def step(place: Any, byte: int) -> tuple[Hashable, bool]:
        now = bytes([byte])
        if place.within == QUOTED:
            return Place(ESCAPED if now == escape else QUOTE if now == quote else QUOTED), False
        if place.within == ESCAPED or (place.within == QUOTE and now == quote and not escape):
            return Place(QUOTED), False
        if place.within in {QUOTE, CLOSED, MALFORMED.within}:
            return after_quote(place, now)
        if place == Place(START) and now == quote:
            return Place(QUOTED), False
        seen = _tail(place.seen + now, marks)
        if seen in marks:
            return start, seen == record
        return Place(FIELD, seen), False

    def after_quote(place: Place, now: bytes) -> tuple[Hashable, bool]:
        seen = _tail(place.seen + now, lines)
        passed = (place.seen + now).removesuffix(seen)
        if place == MALFORMED or passed.strip(b" "):
            # Only marks end the search, because the bytes between two marks are never examined one by one.
            return MALFORMED, now in record + field + quote + escape
        return (start, seen != field) if seen in lines else (Place(CLOSED, seen), False)

    start = Place(START if quote else FIELD)  # without quotes, the start of a field needs no state of its own
    whole = {b"", b"\r"} if record == b"\n" else {b""}  # what may follow a closing quote at the end of a source
    return Automaton.of(
        start,
        step,
        lambda place: place.within in {QUOTED, ESCAPED} or (place.within == CLOSED and place.seen not in whole),
        MALFORMED,
    )


@cache
def objects(deepest: int) -> Automaton:
    """Return the automaton of consecutive JSON objects and arrays, with anything or nothing between them.

    A value that nests deeper than `deepest` is cut off there, so it is not JSON.
    """

    def step(place: Any, byte: int) -> tuple[Hashable, bool]:
        if place.escaped:
            return place._replace(escaped=False), False
        if place.quoted:
            return Depth(place.depth, byte != ord('"'), byte == ord("\\")), False
        if byte == ord('"'):
            return place._replace(quoted=place.depth > 0), False
        if byte in b"{[":
            return (Depth(0), True) if place.depth == deepest else (Depth(place.depth + 1), False)
        if byte in b"}]":
            return Depth(max(place.depth - 1, 0)), place.depth == 1
        return place, False

    return Automaton.of(Depth(0), step, lambda place: place.depth > 0)


def _require_apart(record: bytes, field: bytes, quote: bytes, escape: bytes) -> None:
    """Raise SettingsError for a missing record delimiter, and for delimiters that cannot be told apart."""
    if not record:
        raise SettingsError("record_delimiter is empty", "Set it, for example to \\n.")
    if len(quote) > 1 or len(escape) > 1:
        raise SettingsError("quote or escape has more than one byte", "Use one ASCII character, or none.")
    if field and (field in record or record in field):
        raise SettingsError(f"one of the delimiters {field!r} and {record!r} contains the other", "Change one of them.")
    if quote and (quote in record or quote in field):
        raise SettingsError("a delimiter contains the quote", "Choose another quote.")


def _tail(seen: bytes, marks: list[bytes]) -> bytes:
    """Return the longest suffix of the bytes seen that is a delimiter or the start of one."""
    for begin in range(len(seen)):
        if any(mark.startswith(seen[begin:]) for mark in marks):
            return seen[begin:]
    return b""
