import re
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, InvalidOperation
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats import times
from windrow.formats.conversion import convert, details, quote_bytes
from windrow.formats.fields import parse
from windrow.formats.texts import Texts

BAD = "bad"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INTEGERS = {"int8": (-128, 127), "uint16": (0, 65535), "int64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1)}
FINER = {"s": 0, "ms": 3, "us": 6, "ns": 9}
MOMENT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?", re.ASCII
)


def field(text):
    (only,) = parse({"x": text})
    return only


def verdicts(texts, type_):
    """Return the value of each text, or that it is bad; times as numbers of their unit."""
    converted = convert(pa.array(texts, pa.binary()), field(type_))
    converted.values.validate(full=True)
    assert converted.values.type == field(type_).type
    assert len(converted.detail) == converted.bad.size
    values = converted.values
    if pa.types.is_timestamp(values.type):
        values = values.cast(pa.int64())
    rows = values.to_pylist()
    bad = set(converted.bad.tolist())
    assert all(rows[row] is None for row in bad)
    return [BAD if row in bad else value for row, value in enumerate(rows)]


def same(left, right):
    return left == right or (left != left and right != right)  # noqa: PLR0124 - NaN is no equal of itself


def nearest(text, type_):
    """Return the nearest float, or None beyond the largest one."""
    exact = float(text)
    if type_ == "float64":
        return exact if np.isfinite(exact) else None
    with np.errstate(over="ignore", under="ignore"):
        first = np.float32(exact)
        candidates = [first, *(np.nextafter(first, np.float32(end)) for end in (-np.inf, np.inf))]
    goal, largest = Fraction(Decimal(text)), 2.0**128
    values = [
        Fraction(float(candidate)) if np.isfinite(candidate) else Fraction(largest) * (1 if candidate > 0 else -1)
        for candidate in candidates
    ]
    least = min(abs(value - goal) for value in values)
    even = [candidate for candidate, value in zip(candidates, values, strict=True) if abs(value - goal) == least]
    chosen = min(even, key=lambda candidate: int(candidate.view(np.uint32)) & 1)
    return float(chosen) if np.isfinite(chosen) else None


def oracle(text, type_):  # noqa: C901, PLR0911 - one case a type
    """Read a text as slowly as it takes."""
    if type_ == "binary":
        return text
    try:
        letters = text.decode("ascii" if type_ != "string" else "utf-8")
    except UnicodeDecodeError:
        return BAD
    if type_ == "string":
        return letters
    if type_ in INTEGERS:
        least, most = INTEGERS[type_]
        return int(letters) if re.fullmatch("[+-]?[0-9]+", letters) and least <= int(letters) <= most else BAD
    if type_ == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(letters.lower(), BAD)
    if type_ == "date":
        try:
            return date.fromisoformat(letters) if re.fullmatch(r"\d{4}-\d\d-\d\d", letters, re.ASCII) else BAD
        except ValueError:
            return BAD
    if type_.startswith("timestamp"):
        return moment(letters, FINER[type_[10:-1]])
    if type_.startswith("float") and re.fullmatch(r"[+-]?(nan|inf|infinity)", letters, re.IGNORECASE):
        return float(letters)
    if not re.fullmatch(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?", letters, re.IGNORECASE):
        return BAD
    if type_.startswith("float"):
        value = nearest(letters, type_)
        return BAD if value is None else value
    digits, scale = map(int, re.findall(r"\d+", type_))
    try:
        scaled = Fraction(Decimal(letters)) * 10**scale
    except InvalidOperation:
        return BAD
    whole = scaled.denominator == 1 and abs(scaled) < 10**digits
    return Decimal(int(scaled)).scaleb(-scale, Context(prec=100)) if whole else BAD


def moment(text, finer):
    match = MOMENT.fullmatch(text)
    if not match:
        return BAD
    day, hour, minute, second, fraction, zone = match.groups()
    if zone in {None, "Z"}:
        zone = "+00:00"
    zone = f"{zone[:3]}:{zone[3:].lstrip(':') or '00'}"
    try:
        whole = datetime.fromisoformat(f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}{zone}")
        whole = whole.astimezone(UTC)
    except (ValueError, OverflowError):
        return BAD
    exact = (whole - EPOCH) // timedelta(seconds=1) * 10**finer + Fraction(f"0.{fraction or 0}") * 10**finer
    return int(exact) if exact.denominator == 1 and -(2**63) <= exact < 2**63 else BAD


TYPES = [*INTEGERS, "float64", "float32", "decimal(5, 2)", "decimal(38, 10)", "bool", "date", "string", "binary"]
TYPES += [f"timestamp[{unit}]" for unit in FINER]
NUMERALS = st.from_regex(r"\A[+-]?[0-9]{0,25}\.?[0-9]{0,25}([eE][+-]?[0-9]{1,3})?\Z", fullmatch=True).filter(
    lambda text: text.isascii()
)
WHOLE = st.integers(-(2**65), 2**65).map(str) | st.integers(-300, 300).map("{:+04}".format)
FLOATS = st.floats().map(repr) | st.floats(width=32).map(repr)
TIMES = st.builds(
    "{:%Y-%m-%d}{}{}{}".format,
    st.dates(),
    st.sampled_from(["T", " ", "t"]),
    st.times().map(str)
    | st.sampled_from(["23", "12:59", "24:00", "12:00:60", "12:00:00.123456789", "12:00:00.1230000000"]),
    st.sampled_from(["", "Z", "+01", "-0130", "+23:59", "+24:00", "z", " "]),
)
ODD = st.sampled_from(
    [
        "", " 1", "1 ", "+1", "-", "+", ".", "0x1F", "1_0", "NA", "nan", "-NaN", "inf", "Infinity", "infin", "TRUE",
        "tRue", "1.8e309", "-1e400", "1e-400", "3.4028236e38", "1e39", "1e", "e1", "0e999999999", "2024-02-29",
        "2023-02-29", "9999-12-31T23:59:59.999999999", "0001-01-01T00:00+00:01", "2262-04-11 23:47:16.854775807",
        "true\0", "\N{ARABIC-INDIC DIGIT ONE}", "2262-04-11T23:47:16.854775808Z", "1677-09-21T00:12:43.145224192",
        "1677-09-21T00:12:43.145224191",
    ]
)  # fmt: skip
BYTES = (ODD | NUMERALS | WHOLE | FLOATS | TIMES | st.text(max_size=6)).map(str.encode) | st.binary(max_size=6)


@pytest.mark.parametrize("type_", TYPES)
@given(texts=st.lists(BYTES | st.none(), max_size=20))
def test_oracle(type_, texts):
    """Each text is the value that one finds by hand, or bad, and NULL stays NULL."""
    expected = [None if text is None else oracle(text, type_) for text in texts]
    actual = verdicts(texts, type_)
    assert all(map(same, actual, expected)), list(zip(texts, actual, expected, strict=True))


@pytest.mark.parametrize("type_", TYPES)
@given(texts=st.lists(BYTES, min_size=1, max_size=20), cut=st.integers(0, 20))
def test_neighbours(type_, texts, cut):
    """What a text is does not depend on those beside it, nor on where in an array they lie."""
    alone = [verdicts([text], type_)[0] for text in texts]
    assert all(map(same, verdicts(texts, type_), alone))
    part = convert(pa.array(texts, pa.binary()).slice(cut % len(texts)), field(type_))
    assert part.bad.tolist() == [row for row, verdict in enumerate(alone[cut % len(texts) :]) if verdict == BAD]


@pytest.mark.parametrize(
    ("type_", "good", "bad"),
    [
        ("int64", {"7": 7, "+7": 7, "007": 7, "-0": 0}, [" 7", "7.0", "1e3", "0x1F", "1_0", "", "9223372036854775808"]),
        ("float64", {"1.5": 1.5, ".5": 0.5, "5.": 5.0, "+1e3": 1000.0, "1e-999": 0.0}, ["1.8e309", "NA", "1,5"]),
        ("float64", {}, ["0x1p3"]),
        ("float64", {"-inf": float("-inf"), "Infinity": float("inf")}, ["nan(1)", "infin", "1.#INF"]),
        ("decimal(5, 2)", {"1.500": Decimal("1.50"), "15e-1": Decimal("1.50")}, ["1.005", "1000", "nan"]),
        ("bool", {"true": True, "TRUE": True, "False": False, "1": True, "0": False}, ["t", "yes", "2", ""]),
        ("date", {"2024-02-29": date(2024, 2, 29)}, ["2023-02-29", "2024-2-9", "2024-02-29T00"]),
        ("timestamp[s]", {"1970-01-01T00:00:01.000Z": 1, "1970-01-01 01:00+01": 0}, ["1970-01-01T00:00:00.5"]),
        ("timestamp[s]", {}, ["1970-01-01T24"]),
        ("timestamp[us]", {"1970-01-01": 0, "1969-12-31T23:59:59.999999": -1}, ["1970-01-01Z", "now"]),
        ("timestamp[us]", {}, ["2016-12-31T23:59:60Z"]),
        ("timestamp[us] %d/%b/%Y:%H:%M:%S %z", {"01/JAN/1970:01:00:00 +0100": 0}, ["1/1/1970"]),
        ("timestamp[us] %d/%b/%Y:%H:%M:%S %z", {}, ["31/Feb/2024:00:00:00 Z"]),
        ("timestamp[ms] %d.%m.%y %I:%M %p", {"1.1.70 12:00 am": 0, "1.1.70 12:01 PM": 43_260_000}, ["1.1.70 13:00 PM"]),
        ("timestamp[us] %B %d, %Y %% %H%M%S.%f", {"january 1, 1970 % 000000.5": 500_000}, ["jan 1, 1970 % 000000.5"]),
        ("date %Y%m%d", {"19700102": date(1970, 1, 2)}, ["1970012", "197001021", "19700230"]),
    ],
)  # fmt: skip
def test_table(type_, good, bad):
    """The odd texts are what the documentation says they are."""
    texts = [*good, *bad]
    assert verdicts([text.encode() for text in texts], type_) == [*good.values(), *[BAD] * len(bad)]


@given(st.datetimes(), st.sampled_from(["%Y/%m/%d %H-%M-%S.%f", "%d.%B %Y %I:%M:%S %p", "%b %d %y, %H:%M"]))
def test_patterns(when, pattern):
    """What Python writes with a pattern is read as Python reads it."""
    text = f"{when.year:04}".join(when.strftime(part) for part in pattern.split("%Y"))
    expected = datetime.strptime(text, pattern).replace(tzinfo=UTC)
    assert verdicts([text.encode()], f"timestamp[us] {pattern}") == [(expected - EPOCH) // timedelta(microseconds=1)]


def test_details():
    """A detail quotes the text, shortened, and says what it is not."""
    converted = convert(pa.array(["1", "x" * 50, "ä"]), field("int64"))
    assert converted.reason == "format_cast"
    assert converted.detail.to_pylist() == [f"'{'x' * 40}'... is not a valid int64", "'ä' is not a valid int64"]
    converted = convert(pa.array([b"a\xff"]), field("string"))
    assert (converted.reason, converted.detail.to_pylist()) == ("format_encoding", ["'a\\xff' is not UTF-8"])


@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)), max_size=8))
def test_what_is_said(texts):
    """Many texts are shown as each is by itself: whole letters, at most forty, and bytes that are none as escapes."""
    shown = details(Texts.of(pa.array(texts, pa.binary())), "is none").to_pylist()
    assert shown == [f"{quote_bytes(text)} is none" for text in texts]


def test_halves_of_a_letter():
    """Bytes that are a letter only together with a neighbour's are none."""
    assert verdicts([b"\xc3", b"\xa4", "ä".encode()], "string") == [BAD, BAD, "ä"]


USUAL = st.builds(
    "{:04d}-{:02d}-{:02d}{}{:02d}:{:02d}:{:02d}{}{}".format,
    st.sampled_from([0, 1, 1600, 1900, 1970, 2000, 2024, 2100, 9999]) | st.integers(0, 9999),
    st.integers(0, 13),
    st.integers(0, 32),
    st.sampled_from("T "),
    st.integers(0, 25),
    st.integers(0, 61),
    st.integers(0, 61),
    st.sampled_from(["", ".", ".5", ".120", ".123456", ".1234560", ".1234567", ".123456789", ".0000000000"]),
    st.sampled_from(["Z", "", "+01:00", "ZZ"]),
)


@st.composite
def nearly_usual(draw):
    """Write a moment as it mostly is written, some with a byte that is another one, or missing."""
    text = draw(USUAL).encode()
    at = draw(st.integers(0, len(text) - 1))
    return draw(st.sampled_from([text, text[:at] + text[at + 1 :], text[:at] + b"%c" % draw(BYTE) + text[at + 1 :]]))


BYTE = st.sampled_from(b"0159/:;-+.TtZz \x00\x7f\x80\xb0\xff") | st.integers(0, 255)


@given(st.lists(nearly_usual(), max_size=20), st.sampled_from(sorted(times.DIGITS)))
def test_usual_moments(those, unit):
    """What is written as moments mostly are is read without steps, as the steps would read it."""
    texts = Texts.of(pa.array(those, pa.binary()))
    readings = []
    for usual in (True, False):
        values = np.empty(texts.count, np.int64)
        places = texts.buffer, texts.start, texts.end, texts.valid
        good = times.parse_timestamps(*places, times.ISO_MOMENT.steps, usual, times.DIGITS[unit], values)
        readings.append((good.tolist(), values.tolist()))
    assert readings[0] == readings[1]
