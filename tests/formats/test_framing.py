"""Framing gives the same records however the bytes were cut, and loses no good record to a bad one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.formats.test_automaton import AUTOMATA, BYTES, buffer, pieces
from windrow.formats.framing import OPEN, OVERSIZE, RECORD, DelimitedFraming

DELIMITERS = {"csv": b"\n", "csv with backslashes": b"\n", "long delimiters": b"\r\n", "delimiters of one kind": b"aab"}
FRAMINGS = {
    name: [DelimitedFraming(automaton, DELIMITERS.get(name, b"\n"), most) for most in (6, 25, 1000)]
    for name, automaton in AUTOMATA.items()
}
Spans = list[tuple[bytes, int, int]]


def framed(framing: DelimitedFraming, parts: list[bytes]) -> Spans:
    """Frame a source in parts, and return each span: its bytes, what it is, how many bytes of the source it took."""
    all_spans: Spans = []
    pending, seen, state, base = b"", 0, 0, 0
    for number, part in enumerate(parts, 1):
        before = base + len(pending)
        pending += part
        spans = framing.frame(buffer(pending), seen, state, number == len(parts))
        known = (spans.decided_after + base).tolist()
        assert all(before < known_row for known_row in known) or number == len(parts)
        all_spans += [
            (pending[start:end], what, at)
            for start, end, what, at in zip(spans.start, spans.end, spans.kind.tolist(), known, strict=True)
        ]
        assert [*spans.start[1:], spans.tail] == spans.end.tolist() or not spans.end.size
        pending, state, base = pending[spans.tail :], spans.state, base + spans.tail
        seen = len(pending)
        assert seen <= framing.max_record_bytes + len(framing.delimiter)
    assert pending == b""
    return all_spans


@pytest.mark.parametrize("name", FRAMINGS)
@given(data=BYTES, cuts=st.lists(st.integers(0, 200)), size=st.integers(0, 2))
@example(data=b"aaaaaaaaaaaab", cuts=[7], size=0)
@example(data=b'"aaaaa\r\nb\r\n', cuts=[6, 7], size=0)
def test_any_cuts(name, data, cuts, size):
    """A source cut anywhere has the spans of the whole, each told at the same byte, and its spans are all of its
    bytes.
    """
    framing = FRAMINGS[name][size]
    whole = framed(framing, [data])
    assert framed(framing, pieces(data, cuts) or [b""]) == whole
    assert framed(framing, [data[at : at + 1] for at in range(len(data))] or [b""]) == whole
    assert b"".join(span for span, _, _ in whole) == data
    assert all(len(span) <= framing.max_record_bytes for span, _, _ in whole)


class TestTooLong:
    framing = DelimitedFraming(AUTOMATA["csv"], b"\n", 20)

    def test_open_quote(self):
        """A quote that is left open costs its own row, and none behind it."""
        rows = [b"1,a\n", b'2,"b\n', *(b"%d,c\n" % number for number in range(10, 40))]
        spans = [(span, what) for span, what, _ in framed(self.framing, [b"".join(rows)])]
        assert spans[:2] == [(b"1,a\n", RECORD), (b'2,"b\n', OVERSIZE)]
        assert spans[2:] == [(row, RECORD) for row in rows[2:]]

    def test_open_quote_at_the_end(self):
        """A quote that is open where the source ends costs its own row as well."""
        spans = [(span, what) for span, what, _ in framed(self.framing, [b'1,"a\n2,b\n3,c'])]
        assert spans == [(b'1,"a\n', OPEN), (b"2,b\n", RECORD), (b"3,c", RECORD)]

    def test_no_delimiter(self):
        """What has no delimiter is cut off in pieces of the largest size, until one comes."""
        spans = [(span, what) for span, what, _ in framed(self.framing, [b"x" * 50 + b"\n1,a\n"])]
        assert spans == [
            (b"x" * 20, OVERSIZE), (b"x" * 20, OVERSIZE), (b"x" * 10 + b"\n", OVERSIZE), (b"1,a\n", RECORD),
        ]  # fmt: skip

    def test_delimiter_between_pieces(self):
        """A delimiter of several bytes is found where a piece would end in it."""
        framing = DelimitedFraming(AUTOMATA["long delimiters"], b"\r\n", 20)
        spans = [span for span, _, _ in framed(framing, [b'"' + b"x" * 18 + b"\r\n1--a\r\n"])]
        assert spans == [b'"' + b"x" * 18, b"\r\n", b"1--a\r\n"]

    def test_exactly(self):
        """A record of the largest size is one; with a byte more it is none, also without a delimiter at the end."""
        for size, what in ((19, RECORD), (20, OVERSIZE)):
            spans = framed(self.framing, [b"x" * size + b"\n"])
            assert spans[0][1] == what
        assert [what for _, what, _ in framed(self.framing, [b"x" * 20])] == [RECORD]
        assert {what for _, what, _ in framed(self.framing, [b"x" * 21])} == {OVERSIZE}


@pytest.mark.parametrize(
    ("record", "content"),
    [
        (b"a\n", b"a"),
        (b"a\r\n", b"a"),
        (b"a\r\r\n", b"a\r"),
        (b"\n", b""),
        (b"\r\n", b""),
        (b"a\r", b"a"),
        (b"a", b"a"),
    ],
)
def test_content(record, content):
    """The content of a record is without its delimiter, and without a carriage return before it."""
    start, end = TestTooLong.framing.content(buffer(b"xx" + record), np.array([2]), np.array([2 + len(record)]))
    assert (b"xx" + record)[start[0] : end[0]] == content
