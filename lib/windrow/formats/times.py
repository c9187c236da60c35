"""Read dates, times of day and timestamps from bytes, strictly and in bulk, in ISO 8601 or by a strptime pattern.

Without a pattern a date is `2024-02-29`. A timestamp is a date, or a date followed by `T` or a blank, the time of day
to the hour, minute, second or a fraction of it, and an optional zone: `Z`, `+01`, `+0100` or `+01:00`. No zone means
UTC. In a pattern, `%f` is any number of digits and `%Y` has four. Other numbers have two digits, or one unless they
touch another number. Month names are English, in letters of any case. Other characters match themselves. Times are in
the years 1 to 9999 of UTC. A time of day is `12:00`, `12:00:00` or with a fraction, and has no zone. A time that its
unit cannot hold is bad: digits finer than the unit must be zeros.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from windrow.columnar.blocks import load_u64
from windrow.columnar.compiled import ByteArray, Flags, Ints, always_inlined, compile_lazily, inline

# The fields of a time; UNSAID marks optional ones that were not given. Then come the other kinds of steps.
YEAR, SHORT_YEAR, MONTH, DAY, HOUR, HALF_HOUR, MINUTE, SECOND, FRACTION, ZONE, HALF = range(11)
PARTS, UNSAID = 11, -1
LITERAL, MAY_END, MAY_END_OR_ZONE, PARTED, NAME, SHORT_NAME = range(PARTS, 17)
OF_A_DATE = {YEAR, SHORT_YEAR, MONTH, DAY, LITERAL, NAME, SHORT_NAME}
MEANING = {
    "Y": YEAR, "y": SHORT_YEAR, "m": MONTH, "B": NAME, "b": SHORT_NAME, "d": DAY, "H": HOUR, "I": HALF_HOUR, "p": HALF,
    "M": MINUTE, "S": SECOND, "f": FRACTION, "z": ZONE,
}  # fmt: skip
ONCE = {"year": "Yy", "month": "mBb", "day": "d"}
AT_MOST_ONCE = {"hour": "HI", "half of the day": "p", "minute": "M", "second": "S", "fraction": "f", "zone": "z"}
SHORT_FOR = {"%F": "%Y-%m-%d", "%T": "%H:%M:%S", "%D": "%m/%d/%y", "%R": "%H:%M"}
DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}
MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
NAMES = np.array([list(name.ljust(9).encode()) for name in MONTHS], np.uint8)
LENGTHS = np.array([len(name) for name in MONTHS], np.int64)
SHORT_LENGTH, CENTURY_BEGINS = 3, 69  # as in POSIX: 69 is 1969, 68 is 2068
DAY_SECONDS, FIRST_SECOND, LAST_SECOND = 86_400, -62_135_596_800, 253_402_300_799
ZERO, NINE, SMALL, PLUS, MINUS, POINT, COLON, BLANK, A, M, P, T, Z = (ord(letter) for letter in "09 +-.: ampTZ")
# A time in the usual form: its separators, addends that set the highest bit of a byte that is too large, where the time
# of day and the second begin, and its length without a fraction and with the longest one.
DATE, TIME, TIME_BEHIND_BLANK = (np.frombuffer(text, "<u8")[0] for text in (b"0000-00-", b"00T00:00", b"00 00:00"))
DATE_DIGITS, TIME_DIGITS = (
    np.frombuffer(bytes(0x76 if letter == "0" else 0x7F for letter in text), "<u8")[0]
    for text in ("0000-00-", "00T00:00")
)
ZEROS, ABOVE_NINE, LOW_BYTES = (np.uint64(bytes_) for bytes_ in (0x3030303030303030, 0x7676767676767676, 0xFF000000FF))
# The first pair of eight digits counts millions and the third hundreds; the second ten thousands and the fourth ones.
LOW_SCALES, HIGH_SCALES = np.uint64(100 + (1_000_000 << 32)), np.uint64(1 + (10_000 << 32))
HIGH_BITS, BYTE, EIGHT, TEN = (np.uint64(number) for number in (0x8080808080808080, 0xFF, 8, 10))
AT_TIME, AT_SECOND, MIN_LENGTH, MAX_LENGTH = (np.uint64(number) for number in (11, 17, 20, 30))
ONE, TWO = np.uint64(1), np.uint64(2)
SCALES = 10 ** np.arange(10)
BEYOND = 9.3e18  # does not fit into 64 bits; a smaller number that has overflowed has the wrong sign


@dataclass(frozen=True, slots=True, eq=False)
class TimePattern:
    """How a time is written: each row of `steps` is the next step, and for a number its least and most digits."""

    steps: Ints

    @classmethod
    def of(cls, text: str, *, of_day: bool = False) -> TimePattern:
        """Read a strptime pattern of a time of day or of a date. Raises ValueError, which says what is wrong."""
        whole = re.sub("%.", lambda match: SHORT_FOR.get(match[0], match[0]), text, flags=re.DOTALL)
        steps, seen = [], []
        for directive, other in re.findall("%(.?)|([^%]+)", whole, re.DOTALL):
            if other or directive == "%":
                steps += [(LITERAL, byte, 0) for byte in (other or "%").encode()]
                continue
            if directive not in MEANING:
                raise ValueError(f"%{directive} is unknown; known are %{', %'.join(MEANING)}, {', '.join(SHORT_FOR)}")
            steps.append((MEANING[directive], *({"Y": (4, 4), "f": (1, 2**31)}.get(directive, (1, 2)))))
            seen.append(directive)
        _require_whole(seen, of_day)
        return cls(_apart(np.array(steps, np.int64)))

    @property
    def date(self) -> bool:
        """Tell whether the pattern has nothing but a date."""
        return OF_A_DATE.issuperset(self.steps[:, 0].tolist())


def _apart(steps: Ints) -> Ints:
    """Require all digits of numbers that touch each other; otherwise, where one ends would be ambiguous."""
    number = steps[:, 0] <= FRACTION
    touching = np.append(number[1:], False) | np.append(False, number[:-1])
    touched = touching & (steps[:, 0] < FRACTION)
    steps[touched, 1] = steps[touched, 2]
    return steps


def _require_whole(seen: list[str], of_day: bool) -> None:
    beyond = [directive for directive in seen if of_day and directive in "YymBbdz"]
    if beyond:
        raise ValueError(f"a time of day has no %{beyond[0]}")
    for name, letters in (ONCE | AT_MOST_ONCE).items():
        count = sum(letter in letters for letter in seen)
        if count > 1:
            raise ValueError(f"the {name} appears twice")
        if name in ONCE and not count and not of_day:
            raise ValueError(f"it has no {name}: %{' or %'.join(letters)}")
    if ("I" in seen) != ("p" in seen):
        raise ValueError("%I and %p go together")


def _iso(*steps: tuple[int, int, int]) -> TimePattern:
    dash = (LITERAL, MINUS, 0)
    return TimePattern(np.array([(YEAR, 4, 4), dash, (MONTH, 2, 2), dash, (DAY, 2, 2), *steps], np.int64))


def _after_hour(end: int) -> list[tuple[int, int, int]]:
    """Return the steps after the hour; a time may end before the seconds and before the fraction."""
    colon = (LITERAL, COLON, 0)
    whole = [colon, (MINUTE, 2, 2), (end, 0, 0), colon, (SECOND, 2, 2), (end, 0, 0)]
    return [*whole, (LITERAL, POINT, 0), (FRACTION, 1, 2**31)]


HOURS, END_OR_ZONE = (HOUR, 2, 2), (MAY_END_OR_ZONE, 0, 0)
ISO_DATE = _iso()
ISO_TIME = TimePattern(np.array([HOURS, *_after_hour(MAY_END)], np.int64))
ISO_MOMENT = _iso(
    (MAY_END, 0, 0), (PARTED, 0, 0), HOURS, END_OR_ZONE, *_after_hour(MAY_END_OR_ZONE), END_OR_ZONE, (ZONE, 0, 0)
)


@compile_lazily
def parse_timestamps(
    buffer: ByteArray, start: Ints, end: Ints, valid: Flags, steps: Ints, usual: bool, digits: int, values: Ints
) -> Flags:
    """Read timestamps as numbers since 1970, in a unit that has `digits` digits after the second.

    Times of day count since midnight.

    If `usual`, most are written as `2024-02-29T12:00:00Z`, maybe with a fraction, and these are read without steps.
    """
    good = np.zeros(len(start), np.bool_)
    part = np.empty(PARTS, np.int64)
    for number in range(len(start)):
        values[number] = 0
        at, stop = np.uint64(start[number]), np.uint64(end[number])
        if not valid[number] or at >= stop:
            continue
        for name in range(PARTS):
            part[name] = UNSAID if name == SHORT_YEAR or name == HALF else 0
        part[YEAR], part[MONTH], part[DAY] = 1970, 1, 1  # the date of a time of day
        if (usual and _usual(buffer, at, stop, digits, part)) or _by_steps(buffer, at, stop, steps, digits, part):
            good[number], values[number] = _since_1970(part, digits)
    return good


@always_inlined
def _usual(buffer: ByteArray, at: np.uint64, stop: np.uint64, digits: int, part: Ints) -> bool:
    """Read a timestamp in the usual form; return False and leave `part` unchanged if it has another form.

    It reads words of eight bytes. XOR turns each byte into the value of its digit, or 0 for an expected separator.
    """
    size = stop - at
    if size < MIN_LENGTH or size > MAX_LENGTH or buffer[stop - ONE] != Z:
        return False
    blank = buffer[at + AT_TIME - ONE] == BLANK
    date = load_u64(buffer, at) ^ DATE
    time = load_u64(buffer, at + AT_TIME - TWO - ONE) ^ (TIME_BEHIND_BLANK if blank else TIME)
    odd = date | (date + DATE_DIGITS) | time | (time + TIME_DIGITS)
    tens, ones = np.int64(buffer[at + AT_SECOND]) - ZERO, np.int64(buffer[at + AT_SECOND + ONE]) - ZERO
    wrong = odd & HIGH_BITS != 0 or buffer[at + AT_SECOND - ONE] != COLON
    wrong |= not (0 <= tens <= 9 and 0 <= ones <= 9)
    wrong |= size > MIN_LENGTH and (buffer[at + MIN_LENGTH - ONE] != POINT or size == MIN_LENGTH + ONE)
    fraction = np.int64(0)
    if size > MIN_LENGTH + ONE:
        for behind_point in range(at + MIN_LENGTH, stop - ONE - EIGHT):  # the first of nine digits
            digit = np.int64(buffer[behind_point]) - ZERO
            wrong |= not 0 <= digit <= 9
            fraction = digit * 100_000_000
        last, are_digits = _last_digits(buffer, stop - ONE, min(size - MIN_LENGTH - ONE, EIGHT))
        wrong |= not are_digits
        fraction += last
    missing = digits if size == MIN_LENGTH else digits - np.int64(size - MIN_LENGTH - ONE)
    if wrong or missing < 0:
        return False
    date, time = date * TEN + (date >> EIGHT), time * TEN + (time >> EIGHT)  # two digits become one number
    part[YEAR] = 100 * np.int64(date & BYTE) + np.int64(date >> np.uint64(16) & BYTE)
    part[MONTH], part[DAY] = np.int64(date >> np.uint64(40) & BYTE), np.int64(time & BYTE)
    part[HOUR], part[MINUTE] = np.int64(time >> np.uint64(24) & BYTE), np.int64(time >> np.uint64(48) & BYTE)
    part[SECOND], part[FRACTION] = 10 * tens + ones, fraction * SCALES[missing]
    return True


@inline
def _last_digits(buffer: ByteArray, stop: np.uint64, count: np.uint64) -> tuple[np.int64, np.bool_]:
    """Return the number that the `count` bytes before `stop` (1 to 8) form, and whether all of them are digits."""
    others = EIGHT * (EIGHT - count)
    word = (load_u64(buffer, stop - EIGHT) ^ ZEROS) >> others << others
    are_digits = (word | (word + ABOVE_NINE)) & HIGH_BITS == np.uint64(0)
    pairs = word * TEN + (word >> EIGHT)  # two-digit numbers, in every second byte
    low, high = pairs & LOW_BYTES, pairs >> np.uint64(16) & LOW_BYTES
    return np.int64((low * LOW_SCALES + high * HIGH_SCALES) >> np.uint64(32)), are_digits


@always_inlined
def _by_steps(buffer: ByteArray, at: np.uint64, stop: np.uint64, steps: Ints, digits: int, part: Ints) -> bool:
    """Read a timestamp step by step; return whether it is complete and nothing follows."""
    fits, step = True, 0
    while fits and step < len(steps):
        goal, least, most = steps[step, 0], steps[step, 1], steps[step, 2]
        step += 1
        if at == stop:
            return bool(goal == MAY_END or goal == MAY_END_OR_ZONE)
        if goal < FRACTION:
            at, fits = _number(buffer, at, stop, goal, least, most, part)
        elif goal == LITERAL:
            at, fits = at + ONE, buffer[at] == least
        elif goal == MAY_END_OR_ZONE:
            if buffer[at] == Z or buffer[at] == PLUS or buffer[at] == MINUS:
                step = len(steps) - 1
        elif goal == PARTED:
            at, fits = at + ONE, buffer[at] == T or buffer[at] == BLANK
        elif goal == FRACTION:
            at, fits = _fraction(buffer, at, stop, digits, part)
        elif goal == ZONE:
            at, fits = _zone(buffer, at, stop, part)
        elif goal == NAME or goal == SHORT_NAME:
            at, fits = _month(buffer, at, stop, goal, part)
        elif goal == HALF:
            at, fits = _half(buffer, at, stop, part)
    return fits and at == stop


@inline
def _number(
    buffer: ByteArray, at: np.uint64, stop: np.uint64, goal: int, least: int, most: int, part: Ints
) -> tuple[np.uint64, bool]:
    value, count = np.int64(0), 0
    while at < stop and count < most and ZERO <= buffer[at] <= NINE:
        value = value * 10 + (np.int64(buffer[at]) - ZERO)
        count += 1
        at += ONE
    part[goal] = value
    return at, count >= least


@inline
def _fraction(buffer: ByteArray, at: np.uint64, stop: np.uint64, digits: int, part: Ints) -> tuple[np.uint64, bool]:
    value, place, is_valid = np.int64(0), 0, True
    while at < stop and ZERO <= buffer[at] <= NINE:
        digit = np.int64(buffer[at]) - ZERO
        if place < digits:
            value = value * 10 + digit
        elif digit > 0:
            is_valid = False
        place += 1
        at += ONE
    for _ in range(place, digits):
        value *= 10
    part[FRACTION] = value
    return at, is_valid and place > 0


@inline
def _zone(buffer: ByteArray, at: np.uint64, stop: np.uint64, part: Ints) -> tuple[np.uint64, bool]:
    sign = 1 if buffer[at] == PLUS else -1 if buffer[at] == MINUS else 0
    if sign == 0:
        return at + ONE, buffer[at] == Z
    at += ONE
    value, count = np.int64(0), 0
    while at < stop and count < 4 and ZERO <= buffer[at] <= NINE:
        value = value * 10 + (np.int64(buffer[at]) - ZERO)
        count += 1
        at += ONE
        if count == 2 and at + ONE < stop and buffer[at] == COLON and ZERO <= buffer[at + ONE] <= NINE:
            at += ONE
    hours = value if count == 2 else value // 100
    minutes = np.int64(0) if count == 2 else value % 100
    part[ZONE] = sign * (hours * 60 + minutes) * 60
    return at, bool((count == 2 or count == 4) and hours < 24 and minutes < 60)


@inline
def _month(buffer: ByteArray, at: np.uint64, stop: np.uint64, goal: int, part: Ints) -> tuple[np.uint64, bool]:
    for month in range(len(NAMES)):
        length = np.uint64(LENGTHS[month] if goal == NAME else SHORT_LENGTH)
        same = length <= stop - at
        for letter in range(length if same else 0):
            same = same and buffer[at + letter] | SMALL == NAMES[month, letter]
        if same:
            part[MONTH] = month + 1
            return at + length, True
    return at, False


@inline
def _half(buffer: ByteArray, at: np.uint64, stop: np.uint64, part: Ints) -> tuple[np.uint64, bool]:
    if stop - at < TWO:
        return at, False
    morning = buffer[at] | SMALL == A
    part[HALF] = 0 if morning else 1
    return at + TWO, (morning or buffer[at] | SMALL == P) and buffer[at + ONE] | SMALL == M


@always_inlined
def _since_1970(part: Ints, digits: int) -> tuple[bool, int]:
    """Return whether the timestamp exists and its unit can hold it, and its value."""
    year, month, day, hour, minute, second = (
        part[YEAR], part[MONTH], part[DAY], part[HOUR], part[MINUTE], part[SECOND],
    )  # fmt: skip
    if part[SHORT_YEAR] != UNSAID:
        year = part[SHORT_YEAR] + (1900 if part[SHORT_YEAR] >= CENTURY_BEGINS else 2000)
    if part[HALF] != UNSAID:
        hour = part[HALF_HOUR] % 12 + 12 * part[HALF] if 1 <= part[HALF_HOUR] <= 12 else 24
    if year < 1 or not 1 <= month <= 12 or not 1 <= day <= _last_day(year, month):
        return False, 0
    if hour > 23 or minute > 59 or second > 59:
        return False, 0
    seconds = _days(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second - part[ZONE]
    if seconds < FIRST_SECOND or seconds > LAST_SECOND:
        return False, 0
    value = seconds * SCALES[digits] + part[FRACTION]
    if abs(np.float64(seconds) * SCALES[digits]) < BEYOND and (value >= 0) == (seconds >= 0):
        return True, value
    return False, 0


@inline
def _last_day(year: int, month: int) -> int:
    leap = year & 3 == 0 and (year % 100 != 0 or year & 15 == 0)  # 16 divides the same hundreds as 400
    return 30 + (month + (month >> 3) & 1) if month != 2 else 29 if leap else 28


@inline
def _days(year: int, month: int, day: int) -> int:
    """Return the days since 1970, counted in years that begin in March, so that the leap day is the last of a year."""
    shifted = year - 1 if month <= 2 else year
    of_year = (153 * (month + 9 if month <= 2 else month - 3) + 2) // 5 + day - 1
    hundreds = shifted // 100
    return shifted * 365 + (shifted >> 2) - hundreds + (hundreds >> 2) + of_year - 719_468
