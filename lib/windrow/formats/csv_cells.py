r"""Find the columns of delimited records, in one pass and without copying.

Quotes follow the rules of framing: a quote opens only at the start of a column, and only spaces may stand between the
closing quote and the next delimiter. Anything else there makes the record MALFORMED, a quote that never closes OPEN. A
record is also MALFORMED if a value of several lines precedes an unquoted value with a quote in it: RFC 4180 allows
none, and most likely a quote was left open and then closed by the opening quote of a later value. In
`1,"open\n2,", text"\n` the columns may fit by chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import EIGHT, count_before_mark, load_u64, mark_equal
from windrow.columnar.compiled import ByteArray, Flags, Ints, compile_lazily, inline
from windrow.formats.records import Records
from windrow.formats.texts import Texts

PLAIN, QUOTED, ESCAPED = 0, 1, 2
MALFORMED, OPEN, EMPTY = -2, -1, 0
SPACE = ord(" ")


class Marks(NamedTuple):
    """What delimits columns (the delimiter, the quote and the escape, or -1), and what ends a line."""

    field: ByteArray
    quote: int
    escape: int
    line: ByteArray


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The `count` of columns of each record (or OPEN, MALFORMED, EMPTY), and where the cells of whole records are.

    A record is whole if it has the expected number of columns. Cells are arranged column by row. The bytes of a PLAIN
    cell are its text; those of a QUOTED cell are too, without the surrounding quotes. Those of an ESCAPED cell still
    contain doubled quotes or escapes.
    """

    buffer: ByteArray
    marks: Marks
    count: Ints
    start: Ints
    end: Ints
    kind: ByteArray

    @classmethod
    def of(cls, records: Records, marks: Marks, chosen: Ints) -> Cells:
        """Cut records that should have `len(chosen)` columns: column `i` goes to row `chosen[i]`, unless that is -1."""
        rows = int(chosen.max(initial=-1)) + 1
        start, end = np.empty((2, rows, records.count), np.int64)
        kind, count = np.empty(start.shape, np.uint8), np.empty(records.count, np.int64)
        buffer = read_only(records.buffer)
        whole = _split_cells(buffer, records.start, records.end, *marks, chosen, count, start, end, kind)
        return cls(buffer, marks, count, start[:, :whole], end[:, :whole], kind[:, :whole])

    def texts(self, row: int, nulls: tuple[bytes, ...]) -> Texts:
        """Return one column of the whole records, NULL where an unquoted text is one of `nulls`."""
        start, end, kind = self.start[row], self.end[row], self.kind[row]
        valid = np.ones(start.size, np.bool_)
        for word in nulls:
            _mark_nulls(self.buffer, start, end, kind, np.frombuffer(word, np.uint8), valid)
        if kind.max(initial=PLAIN) != ESCAPED:
            return Texts(self.buffer, start, end, valid)
        plain = np.empty(int((end - start).sum()), np.uint8)
        bounds = _unquote(self.buffer, start, end, kind, self.marks.quote, self.marks.escape, plain)
        return Texts(read_only(plain), bounds[:-1], bounds[1:], valid)


@compile_lazily
def _split_cells(
    buffer: ByteArray,
    first: Ints,
    last: Ints,
    field: ByteArray,
    quote: int,
    escape: int,
    line: ByteArray,
    chosen: Ints,
    count: Ints,
    start: Ints,
    end: Ints,
    kind: ByteArray,
) -> int:
    # Positions are unsigned because numba checks the sign of every signed index, which takes as long as all the rest.
    one, two, width = np.uint64(1), np.uint64(2), np.uint64(len(field))
    mark, columns, whole = field[0], len(chosen), 0
    closing = np.uint8(max(quote, 0))
    escaping = np.uint8(escape) if escape >= 0 else closing
    for record in range(len(first)):
        at, stop = np.uint64(first[record]), np.uint64(last[record])
        if at == stop and columns > 1:
            count[record] = EMPTY
            continue
        column, opened = 0, stop  # where the first value in quotes begins
        while True:
            form, left, right = PLAIN, at, stop
            if at < stop and buffer[at] == quote:
                form, closed = QUOTED, False
                at = _next(buffer, at + one, stop, closing, escaping)
                while at < stop:
                    if buffer[at] == escape or (escape < 0 and at + one < stop and buffer[at + one] == quote):
                        form = ESCAPED
                        at = _next(buffer, at + two, stop, closing, escaping)
                    else:
                        closed = True
                        break
                if not closed:
                    column = OPEN
                    break
                left, right, opened = left + one, at, min(opened, left)
                at += one
            behind = at
            at = _next(buffer, at, stop, mark, mark)
            while at < stop:
                same_mark = at + width <= stop
                for place in range(one, width):
                    same_mark = same_mark and buffer[at + place] == field[place]
                if same_mark:
                    break
                at = _next(buffer, at + one, stop, mark, mark)
            if form == PLAIN:
                right = at
                # guard: quote-behind-lines
                with_quote = opened < left and _next(buffer, left, right, closing, closing) < right
                if with_quote and _holds(buffer, opened, left, line):
                    column = MALFORMED
                    break
            elif not _is_blank(buffer, behind, at):
                column = MALFORMED
                break
            row = chosen[column] if column < columns else -1
            if row >= 0:
                start[row, whole], end[row, whole], kind[row, whole] = left, right, form
            column += 1
            if at == stop:
                break
            at += width
        count[record] = column
        if column == columns:
            whole += 1
    return whole


@inline
def _is_blank(buffer: ByteArray, start: np.uint64, end: np.uint64) -> bool:
    """Tell whether there is nothing but spaces between two places."""
    while start < end and buffer[start] == SPACE:
        start += np.uint64(1)
    return start == end


@inline
def _holds(buffer: ByteArray, start: np.uint64, end: np.uint64, text: ByteArray) -> bool:
    """Tell whether the bytes between two places contain a text."""
    size, result = np.uint64(len(text)), False
    while not result and start + size <= end:
        result = True
        for place in range(np.uint64(0), size):
            result = result and buffer[start + place] == text[place]
        start += np.uint64(1)
    return result


@inline
def _next(buffer: ByteArray, at: np.uint64, stop: np.uint64, first_mark: np.uint8, second_mark: np.uint8) -> np.uint64:
    """Return the position of the next of two bytes, or `stop` if there is none before it."""
    while at + EIGHT <= stop:
        word = load_u64(buffer, at)
        marks = mark_equal(word, first_mark) | mark_equal(word, second_mark)
        if marks:
            return at + count_before_mark(marks)
        at += EIGHT
    while at < stop and buffer[at] != first_mark and buffer[at] != second_mark:
        at += np.uint64(1)
    return at


@compile_lazily
def _mark_nulls(buffer: ByteArray, start: Ints, end: Ints, kind: ByteArray, word: ByteArray, valid: Flags) -> None:
    """Mark unquoted cells that are this word as NULL."""
    for number in range(len(start)):
        same = kind[number] == PLAIN and end[number] - start[number] == len(word)
        for place in range(len(word) if same else 0):
            same = same and buffer[start[number] + place] == word[place]
        if same:
            valid[number] = False


@compile_lazily
def _unquote(
    buffer: ByteArray, start: Ints, end: Ints, kind: ByteArray, quote: int, escape: int, plain: ByteArray
) -> Ints:
    """Copy cells, undoing doubled quotes and escapes. Return where each copy begins, and where the last ends."""
    bounds = np.empty(len(start) + 1, np.int64)
    to = 0
    for number in range(len(start)):
        bounds[number] = to
        at, stop = start[number], end[number]
        skipped = escape if escape >= 0 else quote
        while at < stop:
            at += kind[number] == ESCAPED and buffer[at] == skipped
            plain[to] = buffer[at]
            to += 1
            at += 1
    bounds[len(start)] = to
    return bounds
