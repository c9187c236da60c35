"""Times: dates and moments in octets, read strictly and all at once, as ISO 8601 has them or as a pattern says.

Without a pattern a date is `2024-02-29`, and a moment that or that and, behind `T` or a blank, the time of day to the
hour, minute, second or a fraction of it, then a zone or none: `Z`, `+01`, `+0100` or `+01:00`. No zone means UTC. A
pattern is one of strptime; `%f` is any number of digits, `%Y` has four, other numbers have two or, unless they touch
another, one; names of months are English in letters of any case, and all else stands for itself. A time is in the years
1 to 9999 of UTC. What its unit cannot hold is bad: digits of a fraction behind the unit's are zeros or the time is not
read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from windrow.compiled import compiled
from windrow.formats.blocks import eight
from windrow.formats.texts import Flags, Ints, Octets

YEAR, SHORT_YEAR, MONTH, DAY, HOUR, HALF_HOUR, MINUTE, SECOND = range(8)
LITERAL, MAY_END, MAY_END_OR_ZONE, PARTED, FRACTION, ZONE, NAME, SHORT_NAME, HALF = range(8, 17)
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
SHORT_LENGTH, CENTURY_BEGINS = 3, 69  # as POSIX has it: 69 is 1969, 68 is 2068
DAY_SECONDS, FIRST_SECOND, LAST_SECOND = 86_400, -62_135_596_800, 253_402_300_799
ZERO, NINE, SMALL, PLUS, MINUS, POINT, COLON, BLANK, A, M, P, T, Z = (ord(letter) for letter in "09 +-.: ampTZ")
# A usual moment: what stands in it besides digits, what makes the highest bit of an octet that is too large, and where
# the time of day and the second stand; how many octets it has without a fraction, and with a long one.
DATE, TIME, TIME_BEHIND_BLANK = (np.frombuffer(text, "<u8")[0] for text in (b"0000-00-", b"00T00:00", b"00 00:00"))
DATE_DIGITS, TIME_DIGITS = (
    np.frombuffer(bytes(0x76 if letter == "0" else 0x7F for letter in text), "<u8")[0]
    for text in ("0000-00-", "00T00:00")
)
HIGH_BITS, OCTET, EIGHT, TEN = (np.uint64(number) for number in (0x8080808080808080, 0xFF, 8, 10))
AT_TIME, AT_SECOND, SHORTEST, LONGEST = (np.uint64(number) for number in (11, 17, 20, 30))
TENS, SCALES = 10, 10 ** np.arange(10)
BEYOND = 9.3e18  # no number of 64 bits; what is nearer and has overflown has the wrong sign


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """How a time is written: each row of `steps` is what comes next, and of a number the least and most digits."""

    steps: Ints

    @classmethod
    def of(cls, text: str) -> Pattern:
        """Read a pattern of strptime. Raises ValueError that says what is wrong with it."""
        whole = re.sub("%.", lambda found: SHORT_FOR.get(found[0], found[0]), text, flags=re.DOTALL)
        steps, seen = [], []
        for directive, other in re.findall("%(.?)|([^%]+)", whole, re.DOTALL):
            if other or directive == "%":
                steps += [(LITERAL, octet, 0) for octet in (other or "%").encode()]
                continue
            if directive not in MEANING:
                raise ValueError(
                    f"%{directive} has no meaning; known are %{', %'.join(MEANING)}, {', '.join(SHORT_FOR)}"
                )
            steps.append((MEANING[directive], *({"Y": (4, 4), "f": (1, 2**31)}.get(directive, (1, 2)))))
            seen.append(directive)
        _require_whole(seen)
        return cls(_apart(np.array(steps, np.int64)))

    @property
    def date(self) -> bool:
        """Tell whether it says nothing but a date."""
        return OF_A_DATE.issuperset(self.steps[:, 0].tolist())


def _apart(steps: Ints) -> Ints:
    """Give numbers that touch each other all their digits, or nobody knows whose a digit is."""
    number = (steps[:, 0] < LITERAL) | (steps[:, 0] == FRACTION)
    touching = np.append(number[1:], False) | np.append(False, number[:-1])
    steps[(steps[:, 0] < LITERAL) & touching, 1] = steps[(steps[:, 0] < LITERAL) & touching, 2]
    return steps


def _require_whole(seen: list[str]) -> None:
    for name, letters in (ONCE | AT_MOST_ONCE).items():
        count = sum(letter in letters for letter in seen)
        if count > 1:
            raise ValueError(f"the {name} comes twice")
        if name in ONCE and not count:
            raise ValueError(f"there is no {name}: %{' or %'.join(letters)}")
    if ("I" in seen) != ("p" in seen):
        raise ValueError("%I and %p need each other")


def _iso(*steps: tuple[int, int, int]) -> Pattern:
    dash = (LITERAL, MINUS, 0)
    return Pattern(np.array([(YEAR, 4, 4), dash, (MONTH, 2, 2), dash, (DAY, 2, 2), *steps], np.int64))


ISO_DATE = _iso()
ISO_MOMENT = _iso(
    (MAY_END, 0, 0),
    (PARTED, 0, 0),
    (HOUR, 2, 2),
    (MAY_END_OR_ZONE, 0, 0),
    (LITERAL, COLON, 0),
    (MINUTE, 2, 2),
    (MAY_END_OR_ZONE, 0, 0),
    (LITERAL, COLON, 0),
    (SECOND, 2, 2),
    (MAY_END_OR_ZONE, 0, 0),
    (LITERAL, POINT, 0),
    (FRACTION, 1, 2**31),
    (MAY_END_OR_ZONE, 0, 0),
    (ZONE, 0, 0),
)


@compiled
def moments(
    octets: Octets, begin: Ints, end: Ints, valid: Flags, steps: Ints, usual: bool, digits: int, values: Ints
) -> Flags:
    """Read moments as numbers since 1970 of a unit that is so many `digits` finer than a second.

    With `usual` most of them are expected as `2024-02-29T12:00:00Z`, with a fraction or none, which goes without steps.
    """
    good = np.zeros(len(begin), np.bool_)
    unit, one, two = 10**digits, np.uint64(1), np.uint64(2)  # unsigned as in `cells`
    part, short_year = np.empty(LITERAL, np.int64), False
    for step in range(len(steps)):
        short_year = short_year or steps[step, 0] == SHORT_YEAR
    for number in range(len(begin)):
        at, stop = np.uint64(begin[number]), np.uint64(end[number])
        values[number] = 0
        if not valid[number] or at >= stop:
            continue
        for goal in range(LITERAL):
            part[goal] = 0
        fraction, offset, half, fits, step = np.int64(0), np.int64(0), -1, True, 0
        size = stop - at
        if usual and size >= SHORTEST and size <= LONGEST and octets[stop - one] == Z:
            # Eight octets a word: what is left of each one is a digit, or nothing where something else must stand.
            blank = octets[at + AT_TIME - one] == BLANK
            date = eight(octets, at) ^ DATE
            time = eight(octets, at + AT_TIME - one - two) ^ (TIME_BEHIND_BLANK if blank else TIME)
            odd = date | (date + DATE_DIGITS) | time | (time + TIME_DIGITS)
            tens, ones = np.int64(octets[at + AT_SECOND]) - ZERO, np.int64(octets[at + AT_SECOND + one]) - ZERO
            wrong = odd & HIGH_BITS != 0 or octets[at + AT_SECOND - one] != COLON
            wrong |= not (0 <= tens <= TENS - 1 and 0 <= ones <= TENS - 1)
            wrong |= size > SHORTEST and (octets[at + SHORTEST - one] != POINT or size == SHORTEST + one)
            for behind_point in range(at + SHORTEST, stop - one):
                digit = np.int64(octets[behind_point]) - ZERO
                wrong |= not 0 <= digit <= TENS - 1
                fraction = fraction * TENS + digit
            missing = digits if size == SHORTEST else digits - np.int64(size - SHORTEST - one)
            if not wrong and missing >= 0:
                date, time = date * TEN + (date >> EIGHT), time * TEN + (time >> EIGHT)  # each two digits a number
                part[YEAR] = 100 * np.int64(date & OCTET) + np.int64(date >> np.uint64(16) & OCTET)
                part[MONTH], part[DAY] = np.int64(date >> np.uint64(40) & OCTET), np.int64(time & OCTET)
                part[HOUR] = np.int64(time >> np.uint64(24) & OCTET)
                part[MINUTE] = np.int64(time >> np.uint64(48) & OCTET)
                part[SECOND] = TENS * tens + ones
                fraction *= SCALES[missing]
                at, step = stop, len(steps)
            else:
                fraction = np.int64(0)
        while fits and step < len(steps):
            goal, least, most = steps[step, 0], steps[step, 1], steps[step, 2]
            step += 1
            if at == stop:
                fits = goal == MAY_END or goal == MAY_END_OR_ZONE
                break
            if goal < LITERAL:
                value, count = np.int64(0), 0
                while at < stop and count < most and ZERO <= octets[at] <= NINE:
                    value = value * 10 + (np.int64(octets[at]) - ZERO)
                    count += 1
                    at += one
                fits = count >= least
                part[goal] = value
            elif goal == LITERAL:
                fits = octets[at] == least
                at += one
            elif goal == MAY_END_OR_ZONE:
                if octets[at] == Z or octets[at] == PLUS or octets[at] == MINUS:
                    step = len(steps) - 1
            elif goal == PARTED:
                fits = octets[at] == T or octets[at] == BLANK
                at += one
            elif goal == FRACTION:
                place = 0
                while at < stop and ZERO <= octets[at] <= NINE:
                    digit = np.int64(octets[at]) - ZERO
                    if place < digits:
                        fraction = fraction * 10 + digit
                    elif digit > 0:
                        fits = False
                    place += 1
                    at += one
                fits = fits and place > 0
                for _ in range(place, digits):
                    fraction *= 10
            elif goal == ZONE:
                sign = 1 if octets[at] == PLUS else -1 if octets[at] == MINUS else 0
                fits = sign != 0 or octets[at] == Z
                at += one
                if sign != 0:
                    zone, count = np.int64(0), 0
                    while at < stop and count < 4 and ZERO <= octets[at] <= NINE:
                        zone = zone * 10 + (np.int64(octets[at]) - ZERO)
                        count += 1
                        at += one
                        if count == 2 and at + one < stop and octets[at] == COLON and ZERO <= octets[at + one] <= NINE:
                            at += one
                    hours = zone if count == 2 else zone // 100
                    minutes = np.int64(0) if count == 2 else zone % 100
                    fits = bool((count == 2 or count == 4) and hours < 24 and minutes < 60)
                    offset = sign * (hours * 60 + minutes) * 60
            elif goal == NAME or goal == SHORT_NAME:
                part[MONTH] = 0
                for name in range(12):
                    length = LENGTHS[name] if goal == NAME else SHORT_LENGTH
                    same = bool(np.uint64(length) <= stop - at)
                    for letter in range(length if same else 0):
                        same = same and octets[at + np.uint64(letter)] | SMALL == NAMES[name, letter]
                    if same:
                        part[MONTH] = name + 1
                        at += np.uint64(length)
                        break
                fits = bool(part[MONTH] > 0)
            elif goal == HALF:
                fits = bool(two <= stop - at) and octets[at + one] | SMALL == M
                half = 0 if octets[at] | SMALL == A else 1
                fits = fits and (half == 0 or octets[at] | SMALL == P)
                at += two
        month, day, hour, minute, second = part[MONTH], part[DAY], part[HOUR], part[MINUTE], part[SECOND]
        year = part[YEAR]
        if short_year:
            year = part[SHORT_YEAR] + (1900 if part[SHORT_YEAR] >= CENTURY_BEGINS else 2000)
        if half >= 0:
            fits = fits and 1 <= part[HALF_HOUR] <= 12
            hour = part[HALF_HOUR] % 12 + 12 * half
        leap = year & 3 == 0 and (year % 100 != 0 or year & 15 == 0)  # of hundreds 16 divides what 400 does
        longest = 30 + (month + (month >> 3) & 1) if month != 2 else 28 + np.int64(leap)
        if not (fits and at == stop and year >= 1 and 1 <= month <= 12 and 1 <= day <= longest):
            continue
        if hour > 23 or minute > 59 or second > 59:
            continue
        # Days since 1970, of years that begin in March: the day that leaps is the last one of such a year.
        shifted = year - 1 if month <= 2 else year
        of_year = (153 * (month + 9 if month <= 2 else month - 3) + 2) // 5 + day - 1
        hundreds = shifted // 100
        days = shifted * 365 + (shifted >> 2) - hundreds + (hundreds >> 2) + of_year - 719_468
        seconds = days * DAY_SECONDS + hour * 3600 + minute * 60 + second - offset
        value = seconds * unit + fraction
        if seconds < FIRST_SECOND or seconds > LAST_SECOND:
            continue
        if abs(np.float64(seconds) * unit) < BEYOND and (value >= 0) == (seconds >= 0):
            values[number] = value
            good[number] = True
    return good
