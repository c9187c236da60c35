"""Cells: where in delimited records the columns are, found in one pass and without a copy.

What framing says of quotes holds here: one opens only at the begin of a column, and what follows a closing one up to
the next delimiter belongs to the column. A column with a quote that never closes makes its record OPEN.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import BLOCK, lowest, same
from windrow.columnar.compiled import compiled, inlined
from windrow.formats.records import Records
from windrow.formats.texts import Flags, Ints, Octets, Texts

Kinds = npt.NDArray[np.uint8]
PLAIN, QUOTED, MIXED = 0, 1, 2
OPEN, EMPTY = -1, 0
NEWLINE = b"\n"
RETURN = ord("\r")


class Marks(NamedTuple):
    """What delimits columns: octets, a quote and an escape (or -1), and whether a return may end a record."""

    field: Octets
    quote: int
    escape: int
    stripped: bool

    @classmethod
    def of(cls, record: bytes, field: bytes, quote: bytes, escape: bytes) -> Marks:
        """Return the marks of a format, where a carriage return before a newline belongs to it."""
        once = escape if escape != quote else b""  # to escape a quote with a quote is to double it
        octets = read_only(np.frombuffer(field, np.uint8))
        return cls(octets, quote[0] if quote else -1, once[0] if quote and once else -1, record == NEWLINE)


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Of each record the `count` of columns, OPEN or EMPTY; of chosen columns, one a row, where in whole ones it is.

    Whole are the records with as many columns as they should have. A PLAIN cell stands as it is and a QUOTED one within
    its quotes. Of a MIXED one the quotes and escapes are still among its octets.
    """

    octets: Octets
    marks: Marks
    count: Ints
    begin: Ints
    end: Ints
    kind: Kinds

    @classmethod
    def of(cls, records: Records, marks: Marks, chosen: Ints) -> Cells:
        """Cut records that should have as many columns as `chosen`: column `i` goes to row `chosen[i]`, if not -1."""
        rows = int(chosen.max(initial=-1)) + 1
        begin, end = np.empty((2, rows, records.count), np.int64)
        kind, count = np.empty(begin.shape, np.uint8), np.empty(records.count, np.int64)
        octets = read_only(records.octets)
        whole = _cut(octets, records.begin, records.end, *marks, chosen, count, begin, end, kind)
        return cls(octets, marks, count, begin[:, :whole], end[:, :whole], kind[:, :whole])

    def texts(self, row: int, nulls: tuple[bytes, ...]) -> Texts:
        """Return a column of the whole records, NULL where it is one of `nulls` and not in quotes."""
        begin, end, kind = self.begin[row], self.end[row], self.kind[row]
        valid = np.empty(begin.size, np.bool_)
        mixed = _there(begin, end, kind, b"" in nulls, valid)
        for word in filter(None, nulls):
            _untell(self.octets, begin, end, kind, np.frombuffer(word, np.uint8), valid)
        if not mixed:
            return Texts(self.octets, begin, end, valid)
        plain = np.empty(int((end - begin).sum()), np.uint8)
        bounds = _plainly(self.octets, begin, end, kind, self.marks.quote, self.marks.escape, plain)
        return Texts(read_only(plain), bounds[:-1], bounds[1:], valid)


@compiled
def _cut(
    octets: Octets,
    first: Ints,
    last: Ints,
    field: Octets,
    quote: int,
    escape: int,
    stripped: bool,
    chosen: Ints,
    count: Ints,
    begin: Ints,
    end: Ints,
    kind: Kinds,
) -> int:
    # Places are unsigned because numba looks at the sign of every other index, which takes as long as all of this.
    one, two, width = np.uint64(1), np.uint64(2), np.uint64(len(field))
    mark, columns, whole = field[0], len(chosen), 0
    closing = np.uint8(max(quote, 0))
    before = np.uint8(escape) if escape >= 0 else closing
    no_marks = np.uint64(0)
    for record in range(len(first)):
        at, stop = np.uint64(first[record]), np.uint64(last[record])
        if stripped and at < stop and octets[stop - one] == RETURN:
            stop -= one
        if at == stop and columns > 1:
            count[record] = EMPTY
            continue
        column, base, marks = 0, at, no_marks
        while True:
            form, left, right = PLAIN, at, stop
            if at < stop and octets[at] == quote:
                form, closed = QUOTED, False
                at = _next(octets, at + one, stop, closing, before)
                while at < stop:
                    if octets[at] == escape or (escape < 0 and at + one < stop and octets[at + one] == quote):
                        form = MIXED
                        at = _next(octets, at + two, stop, closing, before)
                    else:
                        closed = True
                        break
                if not closed:
                    column = OPEN
                    break
                right = at
                at += one
            behind = at
            at, base, marks = _next_mark(octets, at, stop, mark, base, marks)
            while at < stop:
                same_mark = at + width <= stop
                for place in range(one, width):
                    same_mark = same_mark and octets[at + place] == field[place]
                if same_mark:
                    break
                at, base, marks = _next_mark(octets, at + one, stop, mark, base, marks)
            if form == QUOTED and behind == at:
                left += one
            else:
                form = MIXED if form == QUOTED else form
                right = at
            row = chosen[column] if column < columns else -1
            if row >= 0:
                begin[row, whole], end[row, whole], kind[row, whole] = left, right, form
            column += 1
            if at == stop:
                break
            at += width
        count[record] = column
        if column == columns:
            whole += 1
    return whole


@inlined
def _next_mark(
    octets: Octets, at: np.uint64, stop: np.uint64, mark: np.uint8, base: np.uint64, marks: np.uint64
) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return where the next mark is, as `_next` does, and what of a block is known for the one after that."""
    ahead = at - base
    bits = marks >> ahead if ahead < np.uint64(BLOCK) else np.uint64(0)
    if bits == np.uint64(0) and at + np.uint64(BLOCK) <= np.uint64(len(octets)):
        base = at
        marks = same(octets, at, mark)
        bits = marks
    if bits != np.uint64(0):
        return min(at + lowest(bits), stop), base, marks
    return _next(octets, at, stop, mark, mark), base, marks


@inlined
def _next(octets: Octets, at: np.uint64, stop: np.uint64, one: np.uint8, other: np.uint8) -> np.uint64:
    """Return where the next of two octets is, `stop` where there is none before that."""
    while at < stop:
        if at + np.uint64(BLOCK) <= np.uint64(len(octets)):
            bits = same(octets, at, one) | same(octets, at, other)
            if bits != np.uint64(0):
                return min(at + lowest(bits), stop)
            at += np.uint64(BLOCK)
        elif octets[at] == one or octets[at] == other:
            return at
        else:
            at += np.uint64(1)
    return stop


@compiled
def _there(begin: Ints, end: Ints, kind: Kinds, null: bool, valid: Flags) -> bool:
    """Tell which cells are there: all, or with `null` those that are not empty; return whether any is MIXED."""
    highest = PLAIN
    for number in range(len(begin)):
        valid[number] = not null or (kind[number] != PLAIN) | (begin[number] != end[number])
        highest = max(highest, kind[number])
    return highest == MIXED


@compiled
def _untell(octets: Octets, begin: Ints, end: Ints, kind: Kinds, word: Octets, valid: Flags) -> None:
    """Take away cells that are this word and in no quotes."""
    for number in range(len(begin)):
        same = kind[number] == PLAIN and end[number] - begin[number] == len(word)
        for place in range(len(word) if same else 0):
            same = same and octets[begin[number] + place] == word[place]
        if same:
            valid[number] = False


@compiled
def _plainly(octets: Octets, begin: Ints, end: Ints, kind: Kinds, quote: int, escape: int, plain: Octets) -> Ints:
    """Copy cells without the quotes and escapes of MIXED ones; return where each begins and, at last, the last ends."""
    bounds = np.empty(len(begin) + 1, np.int64)
    to = 0
    for number in range(len(begin)):
        bounds[number] = to
        at, stop = begin[number], end[number]
        if kind[number] == MIXED:
            at += 1
            while True:
                if octets[at] == escape or (
                    octets[at] == quote and escape < 0 and at + 1 < stop and octets[at + 1] == quote
                ):
                    at += 1
                elif octets[at] == quote:
                    at += 1
                    break
                plain[to] = octets[at]
                to += 1
                at += 1
        for place in range(at, stop):
            plain[to] = octets[place]
            to += 1
    bounds[len(begin)] = to
    return bounds
