"""Grammars: which bytes belong to one record, as step functions of automata.

`delimited` knows delimiters of any length and quotes as RFC 4180 has them, except that it is lenient where files are:
a quote opens only at the begin of a field, and what follows a closing quote up to the next delimiter belongs to the
field. `lines` knows nothing but the end of a record. `objects` follows the depth of JSON values, which need nothing
between them.
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import cache
from typing import Any, NamedTuple

from windrow.errors import SettingsError
from windrow.formats.automaton import Automaton


class Place(NamedTuple):
    """Where the automaton of delimited fields is: before or in a field, and what of a delimiter it has just seen."""

    within: str
    seen: bytes = b""


class Depth(NamedTuple):
    """Where the automaton of JSON is: in how many braces and brackets, and whether in a text and behind a backslash."""

    depth: int
    quoted: bool = False
    escaped: bool = False


START, FIELD, QUOTED, QUOTE, ESCAPED = "start", "field", "quoted", "quote", "escaped"


@cache
def delimited(record: bytes, field: bytes = b"", quote: bytes = b"", escape: bytes = b"") -> Automaton:
    """Return the automaton of records whose fields may be quoted. Raises SettingsError for delimiters that collide."""
    require_apart(record, field, quote, escape)
    escape = escape if escape != quote else b""  # to escape a quote with a quote is to double it
    marks = [mark for mark in (record, field) if mark]

    def step(place: Any, byte: int) -> tuple[Hashable, bool]:
        now = bytes([byte])
        if place.within == QUOTED:
            return Place(ESCAPED if now == escape else QUOTE if now == quote else QUOTED), False
        if place.within == ESCAPED or (place.within == QUOTE and now == quote and not escape):
            return Place(QUOTED), False
        if place == Place(START) and now == quote:
            return Place(QUOTED), False
        seen = _tail(place.seen + now, marks)
        if seen in marks:
            return start, seen == record
        return Place(FIELD, seen), False

    start = Place(START if quote else FIELD)  # where no quote can open, the begin of a field is like the rest of it
    return Automaton.of(start, step, lambda place: place.within in {QUOTED, ESCAPED})


def lines(record: bytes = b"\n") -> Automaton:
    """Return the automaton of records that only their delimiter ends."""
    return delimited(record)


@cache
def objects(deepest: int) -> Automaton:
    """Return the automaton of JSON objects and arrays, one behind the other, with anything or nothing between them.

    One that nests deeper than `deepest` is ended there, which makes it none.
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


def require_apart(record: bytes, field: bytes, quote: bytes, escape: bytes) -> None:
    """Raise SettingsError for delimiters that are none, or that cannot be told apart."""
    if not record:
        raise SettingsError("a record needs a delimiter", "Give one, such as \\n.")
    if len(quote) > 1 or len(escape) > 1:
        raise SettingsError("quote and escape are one byte each", "Give one character of ASCII, or none.")
    if field and (field in record or record in field):
        raise SettingsError(f"of the delimiters {field!r} and {record!r} one contains the other", "Take others.")
    if quote and (quote in record or quote in field):
        raise SettingsError("a delimiter contains the quote", "Take another quote.")


def _tail(seen: bytes, marks: list[bytes]) -> bytes:
    """Return the longest end of what was seen that begins, or is, a delimiter."""
    for begin in range(len(seen)):
        if any(mark.startswith(seen[begin:]) for mark in marks):
            return seen[begin:]
    return b""
