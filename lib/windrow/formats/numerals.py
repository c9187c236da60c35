"""Read integers, decimal numbers and bools from bytes, strictly and in bulk.

A number is ASCII digits after an optional sign. A fraction may have one point, with a digit on at least one side of it,
and an exponent (`e` or `E`, an optional sign, digits). Blanks, thousands separators and other bases are not accepted.
Each function fills an array of values and returns which texts were good; NULL is not good.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from windrow.columnar.compiled import ByteArray, Flags, Ints, Words, compile_lazily, inline

Floats = npt.NDArray[np.float64]
BAD, READ, FINE = 0, 1, 2
LARGEST_POWER = 22
SURE = 18  # digits that always fit into 64 bits
POWERS = 10.0 ** np.arange(LARGEST_POWER + 1)
ZERO, NINE, PLUS, MINUS, POINT, SMALL = (ord(letter) for letter in "09+-. ")
E, ONE, FAR = ord("e"), ord("1"), 1_000_000  # an exponent this large cannot be cancelled by digits
WORDS, SHORTEST_WORD = np.array([list(b"true "), list(b"false")], np.uint8), 4
NAMES = np.array([list(name.ljust(8)) for name in (b"nan", b"inf", b"infinity")], np.uint8)
LENGTHS = np.array([3, 3, 8])
NAMED = np.array([np.nan, np.inf, np.inf])


@compile_lazily
def parse_integers(
    buffer: ByteArray, start: Ints, end: Ints, valid: Flags, least: np.uint64, most: np.uint64, values: Words
) -> Flags:
    """Read integers from -`least` to `most`; negative ones are stored as two's complement."""
    good = np.zeros(len(start), np.bool_)
    ten, limit = np.uint64(10), np.uint64(2**64 - 1) // np.uint64(10)
    one = np.uint64(1)  # positions are unsigned as in `csv_cells`
    for number in range(len(start)):
        at, stop = np.uint64(start[number]), np.uint64(end[number])
        values[number] = 0
        if not valid[number] or at >= stop:
            continue
        negative = buffer[at] == MINUS
        if negative or buffer[at] == PLUS:
            at += one
        fits = bool(at < stop)
        value = np.uint64(0)
        if stop - at <= np.uint64(SURE):
            while at < stop:
                digit = np.uint64(buffer[at]) - np.uint64(ZERO)
                fits = bool(fits and digit <= np.uint64(9))
                value = value * ten + digit
                at += one
        while at < stop:
            digit = np.uint64(buffer[at]) - np.uint64(ZERO)
            if digit > np.uint64(9) or value > limit:
                fits = False
                break
            more = value * ten + digit
            if more < digit:
                fits = False
                break
            value = more
            at += one
        if fits and value <= (least if negative else most):
            values[number] = np.uint64(0) - value if negative else value
            good[number] = True
    return good


@compile_lazily
def parse_booleans(buffer: ByteArray, start: Ints, end: Ints, valid: Flags, values: Flags) -> Flags:
    """Read `true` and `false`, in letters of any case, and `1` and `0`."""
    good = np.zeros(len(start), np.bool_)
    for number in range(len(start)):
        at, length = np.uint64(start[number]), end[number] - start[number]
        values[number] = False
        if not valid[number]:
            continue
        if length == 1:
            good[number] = buffer[at] == ZERO or buffer[at] == ONE
            values[number] = buffer[at] == ONE
        elif SHORTEST_WORD <= length < SHORTEST_WORD + len(WORDS):
            truth = length == SHORTEST_WORD
            same = True
            for place in range(length):
                same &= buffer[at + np.uint64(place)] | SMALL == WORDS[length - SHORTEST_WORD, place]
            good[number], values[number] = same, same and truth
    return good


@compile_lazily
def parse_floats(
    buffer: ByteArray, start: Ints, end: Ints, valid: Flags, largest: int, power: int, values: Floats
) -> ByteArray:
    """Read fractions, `nan`, `inf` and `infinity` (letters of any case) if one rounding is enough.

    It is enough if the digits without the point are at most `largest`, and the power of ten at most `power` (Clinger
    1990). Other well-formed numbers get the code FINE and no value.
    """
    code, one = np.zeros(len(start), np.uint8), np.uint64(1)
    for number in range(len(start)):
        at, stop = np.uint64(start[number]), np.uint64(end[number])
        values[number] = 0.0
        if not valid[number] or at >= stop:
            continue
        negative = buffer[at] == MINUS
        if negative or buffer[at] == PLUS:
            at += one
        mantissa, digits, shift, pointed, short = np.int64(0), 0, np.int64(0), False, True
        while at < stop:
            byte = np.int64(buffer[at])
            if ZERO <= byte <= NINE:
                digits += 1
                if mantissa <= largest:
                    mantissa = mantissa * 10 + (byte - ZERO)
                    shift -= np.int64(pointed)
                else:
                    short = False
            elif byte == POINT and not pointed:
                pointed = True
            else:
                break
            at += one
        if digits > 0:
            at, exponent = _exponent(buffer, at, stop)
            shift += exponent
        if digits > 0 and at == stop:
            if short and mantissa <= largest and -power <= shift <= power:
                value = mantissa / POWERS[-shift] if shift < 0 else mantissa * POWERS[shift]
                values[number] = -value if negative else value
                code[number] = READ
            else:
                code[number] = FINE
        elif digits == 0 and not pointed:
            for name in range(len(NAMES)):
                same = stop - at == np.uint64(LENGTHS[name])
                for place in range(LENGTHS[name] if same else 0):
                    same &= buffer[at + np.uint64(place)] | SMALL == NAMES[name, place]
                if same:
                    values[number] = -NAMED[name] if negative else NAMED[name]
                    code[number] = READ
    return code


@inline
def _exponent(buffer: ByteArray, at: np.uint64, stop: np.uint64) -> tuple[np.uint64, np.int64]:
    """Return where an exponent ends, and its value: 0 at the place itself if there is none there."""
    start, exponent, one = at, np.int64(0), np.uint64(1)
    if at >= stop or buffer[at] | SMALL != E:
        return start, exponent
    at += one
    lower = at < stop and buffer[at] == MINUS
    if at < stop and (lower or buffer[at] == PLUS):
        at += one
    if at == stop:
        return start, exponent
    while at < stop and ZERO <= buffer[at] <= NINE:
        if exponent < FAR:
            exponent = exponent * 10 + (np.int64(buffer[at]) - ZERO)
        at += one
    return at, -exponent if lower else exponent


@compile_lazily
def decimals(
    buffer: ByteArray, start: Ints, end: Ints, valid: Flags, precision: int, scale: int, values: Words
) -> Flags:
    """Read fractions that the decimal type holds exactly; each value is two words, the lower one first."""
    good = np.zeros(len(start), np.bool_)
    ten, half, low = np.uint64(10), np.uint64(32), np.uint64(0xFFFFFFFF)
    for number in range(len(start)):
        at, stop = start[number], end[number]
        values[number, 0], values[number, 1] = 0, 0
        if not valid[number] or at >= stop:
            continue
        negative = buffer[at] == MINUS
        if negative or buffer[at] == PLUS:
            at += 1
        first, digits, whole, pointed = at, 0, np.int64(0), False
        while at < stop:
            if ZERO <= buffer[at] <= NINE:
                digits += 1
                whole += np.int64(not pointed)
            elif buffer[at] == POINT and not pointed:
                pointed = True
            else:
                break
            at += 1
        last = at
        behind, exponent = _exponent(buffer, np.uint64(at), np.uint64(stop))
        if digits == 0 or behind < np.uint64(stop):
            continue
        upper, under, fits = np.uint64(0), np.uint64(0), True
        place = whole + exponent + scale
        zeros = min(max(place - digits, 0), precision)  # that are missing up to the last place
        for digit_at in range(first, last + zeros):
            byte = buffer[digit_at] if digit_at < last else ZERO
            if byte == POINT:
                continue
            place -= 1
            digit = np.uint64(byte) - np.uint64(ZERO)
            if digit > np.uint64(0) and not 0 <= place < precision:
                fits = False
                break
            if place >= 0:
                lowest = (under & low) * ten + digit
                middle = (under >> half) * ten + (lowest >> half)
                under = (middle << half) | (lowest & low)
                upper = upper * ten + (middle >> half)
        if negative:
            under = ~under + np.uint64(1)
            upper = ~upper + np.uint64(under == np.uint64(0))
        if fits:
            values[number, 0], values[number, 1] = under, upper
            good[number] = True
    return good
