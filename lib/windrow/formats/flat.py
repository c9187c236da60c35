"""Read flat JSON records column by column: find their members in one pass, without creating an object for any of them.

Only *plain* records are read here: objects without nested values, without escapes in texts, and without repeated
fields. A full JSON decoder judges all other records, good or bad. A plain record is strictly well-formed JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from windrow.columnar.arrow import read_only
from windrow.columnar.blocks import EIGHT, count_before_mark, load_u64, mark_equal, mark_less_than
from windrow.columnar.compiled import ByteArray, Flags, Ints, always_inlined, compile_lazily, inline
from windrow.formats.conversion import read
from windrow.formats.fields import RAW_JSON, Field
from windrow.formats.records import FieldParser, Records
from windrow.formats.texts import Texts

# The kind of a member, and the kinds that a field accepts. The full decoder judges ODD members.
ODD, NULL, TEXT, WHOLE, FRACTION, TRUTH, RAW = 0, 1, 2, 4, 8, 16, 32
NUMBER = WHOLE | FRACTION
QUOTE, BACKSLASH, COLON, COMMA, OPENED, CLOSED, BLANK, TAB, LINE, RETURN = (ord(letter) for letter in '"\\:,{} \t\n\r')
ZERO, NINE, PLUS, MINUS, POINT, E, SMALL = (ord(letter) for letter in "09+-.e ")
ONE = np.uint64(1)
LITERALS = np.array([list(word.ljust(5)) for word in (b"true", b"false", b"null")], np.uint8)
LENGTHS = np.array([4, 5, 4], np.uint64)
MEANINGS = np.array([TRUTH, TRUTH, NULL])
REMEMBERED = 64  # names, by their position in a record


@dataclass(frozen=True, slots=True, eq=False)
class FlatJsonReader(FieldParser):
    """The fields of plain records: their names concatenated, the `bounds` between them, and what each field `takes`."""

    fields: tuple[Field, ...]
    names: ByteArray
    bounds: Ints
    takes: ByteArray

    @classmethod
    def of(cls, fields: Sequence[Field]) -> FlatJsonReader:
        """Prepare the search for fields. A field whose type cannot occur in a plain record accepts only NULL."""
        names = [field.name.encode() for field in fields]
        bounds = np.cumsum([0, *map(len, names)])
        takes = np.array([_takes(field) for field in fields], np.uint8)
        return cls(tuple(fields), read_only(np.frombuffer(b"".join(names), np.uint8)), bounds, takes)

    def read(self, records: Records, chosen: Ints) -> tuple[pa.Table, Ints]:
        """Return the values of those `chosen` records that are plain and good, and their numbers.

        The chosen records must be UTF-8.
        """
        start, end = np.empty((2, len(self.fields), chosen.size), np.int64)
        valid, plain = np.empty(start.shape, np.bool_), np.empty(chosen.size, np.bool_)
        buffer = read_only(records.buffer)
        whole = _members(
            buffer, records.start[chosen], records.end[chosen], self.names, self.bounds, self.takes, start, end, valid,
            plain,
        )  # fmt: skip
        columns, good = [], np.ones(whole, np.bool_)
        for row, field in enumerate(self.fields):
            texts = Texts(buffer, start[row, :whole], end[row, :whole], valid[row, :whole])
            values, fine = _values(texts, field)
            columns.append(values)
            good &= fine | ~texts.valid
        table = pa.Table.from_arrays(columns, schema=self.schema)
        result = chosen if plain.all() else chosen[plain]
        return (table, result) if good.all() else (table.filter(pa.array(good)), result[good])


def _takes(field: Field) -> int:
    type_, is_ = field.type, pa.types
    if field.pattern == RAW_JSON:
        return NULL | RAW
    if is_.is_integer(type_):
        return NULL | WHOLE
    if is_.is_float32(type_) or is_.is_float64(type_):
        return NULL | NUMBER
    if is_.is_decimal128(type_):
        return NULL | NUMBER | TEXT
    if is_.is_boolean(type_):
        return NULL | TRUTH
    text = is_.is_string(type_) or is_.is_timestamp(type_) or is_.is_date32(type_) or is_.is_time(type_)
    return NULL | TEXT if text else NULL


def _values(texts: Texts, field: Field) -> tuple[pa.Array, Flags]:
    """Convert texts; return the values, and which texts are good."""
    if field.pattern == RAW_JSON:
        return texts.array(field.type), texts.valid
    if not _takes(field) & ~NULL:
        return pa.nulls(texts.count, field.type), texts.valid
    return read(texts, field)


@compile_lazily
def _members(
    buffer: ByteArray,
    first: Ints,
    last: Ints,
    names: ByteArray,
    bounds: Ints,
    takes: ByteArray,
    start: Ints,
    end: Ints,
    valid: Flags,
    plain: Flags,
) -> int:
    """Find the members of plain records, mark these records, and return how many there are."""
    whole = 0
    seen = np.full(len(takes), -1, np.int64)
    # Records resemble each other: the name at a position is usually that of the record before, so it is remembered.
    name_at, name_length = np.zeros(REMEMBERED, np.uint64), np.zeros(REMEMBERED, np.uint64)
    owner = np.full(REMEMBERED, -1, np.int64)
    for record in range(len(first)):
        stop = np.uint64(last[record])
        at = _skip_blanks(buffer, np.uint64(first[record]), stop)
        place, more, good = 0, False, False
        if at < stop and buffer[at] == OPENED:
            at = _skip_blanks(buffer, at + ONE, stop)
            good = at < stop and buffer[at] == CLOSED
            more = not good
        while more:
            at, length = _name(buffer, at, stop, place, name_at, name_length, owner, names, bounds)
            field = owner[place]
            place = min(place + 1, REMEMBERED - 1)
            kind, left, at = _member(buffer, at + length + ONE, stop)
            if kind == ODD or (
                field >= 0 and not _take(left, at, kind, field, record, whole, takes, seen, start, end, valid)
            ):
                break
            at, more, good = _next(buffer, at, stop)
        plain[record] = good and _skip_blanks(buffer, at + ONE, stop) == stop
        if plain[record]:
            for field in range(len(takes)):
                if seen[field] != record:
                    start[field, whole], end[field, whole], valid[field, whole] = 0, 0, False
            whole += 1
    return whole


@always_inlined
def _name(
    buffer: ByteArray,
    at: np.uint64,
    stop: np.uint64,
    place: int,
    name_at: npt.NDArray[np.uint64],
    name_length: npt.NDArray[np.uint64],
    owner: Ints,
    names: ByteArray,
    bounds: Ints,
) -> tuple[np.uint64, np.uint64]:
    """Return where the name of a member begins, and its length; without a closing quote it extends to `stop`."""
    if at >= stop or buffer[at] != QUOTE:
        return stop, np.uint64(0)
    at += ONE
    length = name_length[place]
    same_name = at + length < stop and buffer[at + length] == QUOTE
    for letter in range(length if same_name else 0):
        same_name = same_name and buffer[at + letter] == buffer[name_at[place] + letter]
    if not same_name:
        length = _closing(buffer, at, stop) - at
        name_at[place], name_length[place] = at, length
        owner[place] = _field(buffer, at, length, names, bounds)
    return at, length


@always_inlined
def _member(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> tuple[int, np.uint64, np.uint64]:
    """Return the kind of the value after a name, where it begins and where it ends; ODD if it is not plain."""
    at = _skip_blanks(buffer, at, stop)
    if at >= stop or buffer[at] != COLON:
        return ODD, at, at
    start = _skip_blanks(buffer, at + ONE, stop)
    kind, end = _value(buffer, start, stop)
    return kind, start, end


@always_inlined
def _take(
    left: np.uint64,
    right: np.uint64,
    kind: int,
    field: int,
    record: int,
    row: int,
    takes: ByteArray,
    seen: Ints,
    start: Ints,
    end: Ints,
    valid: Flags,
) -> bool:
    """Make a member the value of its field; return whether the field accepts it."""
    taken = takes[field]
    if seen[field] == record or not (taken & kind or taken & RAW):
        return False
    if kind == TEXT and not taken & RAW:
        left, right = left + ONE, right - ONE
    seen[field] = record
    start[field, row], end[field, row] = left, right
    valid[field, row] = kind != NULL or taken & RAW
    return True


@always_inlined
def _next(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> tuple[np.uint64, bool, bool]:
    """Return the position after a member, whether another member follows, and whether the record ends there."""
    at = _skip_blanks(buffer, at, stop)
    if at < stop and buffer[at] == COMMA:
        return _skip_blanks(buffer, at + ONE, stop), True, False
    return at, False, bool(at < stop and buffer[at] == CLOSED)


@inline
def _skip_blanks(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> np.uint64:
    while at < stop and buffer[at] <= BLANK:
        byte = buffer[at]
        if byte != BLANK and byte != TAB and byte != LINE and byte != RETURN:
            break
        at += ONE
    return at


@inline
def _closing(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> np.uint64:
    """Return where the closing quote of a text is, or `stop` if the text has an escape or never ends."""
    while at + EIGHT <= stop:
        word = load_u64(buffer, at)
        marks = (
            mark_equal(word, np.uint8(QUOTE))
            | mark_equal(word, np.uint8(BACKSLASH))
            | mark_less_than(word, np.uint8(BLANK))
        )
        if marks:
            at += count_before_mark(marks)
            return at if buffer[at] == QUOTE else stop
        at += EIGHT
    while at < stop and buffer[at] != BACKSLASH and buffer[at] >= BLANK:
        if buffer[at] == QUOTE:
            return at
        at += ONE
    return stop


@inline
def _field(buffer: ByteArray, at: np.uint64, length: np.uint64, names: ByteArray, bounds: Ints) -> int:
    """Return which field has this name, -1 if none has."""
    for field in range(len(bounds) - 1):
        start = np.uint64(bounds[field])
        same_name = np.uint64(bounds[field + 1]) - start == length
        for letter in range(length if same_name else 0):
            same_name = same_name and buffer[at + letter] == names[start + letter]
        if same_name:
            return field
    return -1


@inline
def _value(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> tuple[int, np.uint64]:
    """Return the kind of the value at this position, and where it ends; ODD if it is not plain."""
    if at >= stop:
        return ODD, at
    start, kind, negative = buffer[at], WHOLE, False
    if start == QUOTE:
        at = _closing(buffer, at + ONE, stop)
        return TEXT if at < stop else ODD, at + ONE
    if start == MINUS:
        at, negative = at + ONE, True
    digit = at
    while at < stop and ZERO <= buffer[at] <= NINE:
        at += ONE
    if at == digit:
        for word in range(len(LITERALS)):
            alike = not negative and at + LENGTHS[word] <= stop
            for letter in range(LENGTHS[word] if alike else 0):
                alike = alike and buffer[at + letter] == LITERALS[word, letter]
            if alike:
                return MEANINGS[word], at + LENGTHS[word]
        return ODD, at
    if buffer[digit] == ZERO and (at > digit + ONE):
        return ODD, at
    if at < stop and buffer[at] == POINT:
        kind, at = FRACTION, at + ONE
        digit = at
        while at < stop and ZERO <= buffer[at] <= NINE:
            at += ONE
        if at == digit:
            return ODD, at
    if at < stop and buffer[at] | SMALL == E:
        kind, at = FRACTION, at + ONE
        if at < stop and (buffer[at] == PLUS or buffer[at] == MINUS):
            at += ONE
        digit = at
        while at < stop and ZERO <= buffer[at] <= NINE:
            at += ONE
        if at == digit:
            return ODD, at
    return kind, at
