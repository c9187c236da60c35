import re
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_csv import framed, read_lines
from windrow.errors import SettingsError
from windrow.formats.fields import parse
from windrow.formats.grammar import delimiter_automaton
from windrow.formats.lines import LineParser, build
from windrow.formats.settings import FormatSettings

ACCESS = LineParser(
    parse({"host": "string", "time": "timestamp[us] %d/%b/%Y:%H:%M:%S %z", "status": "int16", "bytes": "int64"}),
    r'(?P<host>\S+) \S+ \S+ \[(?P<time>[^\]]+)\] "[^"]*" (?P<status>\S+) (?P<bytes>\S+)',
    nulls=("-",),
)
PAIR = LineParser(parse({"name": "string", "number": "int32"}), r"(?P<name>[a-zä]+)=(?P<number>[^;]*)(?:;.*)?")


def test_access_log():
    """A line of an access log is what its groups say, and a dash means NULL where it is told to."""
    line = b'10.0.0.1 - - [10/Oct/2000:13:55:36 -0700] "GET / HTTP/1.0" 200 -\r\n'
    parsed = ACCESS.parse(framed(delimiter_automaton(b"\n"), line))
    time = datetime(2000, 10, 10, 20, 55, 36, tzinfo=UTC)
    assert parsed.fields.to_pylist() == [{"host": "10.0.0.1", "time": time, "status": 200, "bytes": None}]


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (b"a=1", ("a", 1)),
        ("ä=1;and so on".encode(), ("ä", 1)),
        (b"a=", ("a", None)),
        (b"a=1\r", ("a", 1)),
        (b"a=x", ("format_cast", "number")),
        (b"A=1", ("format_syntax", None)),
        (b" a=1", ("format_syntax", None)),
        (b"a=1\xff", ("format_encoding", None)),
        (b"", "skipped"),
        (b"\r", "skipped"),
    ],
)
def test_verdicts(line, verdict):
    """A line must match as a whole, be UTF-8, and have groups of the types of the fields."""
    assert read_lines(PAIR, [line, b"z=9", line]) == [verdict, ("z", 9), verdict]


@given(st.lists(st.text("aä=1;x\r", max_size=6), max_size=8))
def test_oracle(lines):
    """Lines match as Python's regular expressions match them, whatever the lines beside them."""
    expected = []
    for line in (line.removesuffix("\r") for line in lines):
        match = re.fullmatch(PAIR.regex, line, re.DOTALL)
        if match is None:
            expected.append(("format_syntax", None) if line else "skipped")
        elif match["number"] and not match["number"].isdecimal():
            expected.append(("format_cast", "number"))
        else:
            expected.append((match["name"], int(match["number"]) if match["number"] else None))
    assert read_lines(PAIR, [line.encode() for line in lines]) == expected


def test_nothing():
    """No lines are no values and no rejects."""
    parsed = PAIR.parse(framed(delimiter_automaton(b"\n"), b""))
    assert (parsed.fields.num_rows, parsed.record.size, parsed.rejects.num_rows, parsed.skipped.size) == (0, 0, 0, 0)
    assert parsed.fields.schema == PAIR.schema
    assert parsed.record.dtype == np.int64


@pytest.mark.parametrize(
    ("regex", "what"),
    [
        (r"(?P<name>a)(?P<number>", "regular expression: "),
        (r"(?P<name>a)(?P<number>1)(b)", "unnamed groups"),
        (r"(?P<name>a)(?P<number>1)(?=b)", r"\(\?="),
        (r"(?P<name>a)(?P<number>1)(?P<other>b)", "'other' is not a field"),
        (r"(?P<name>a)", "has no group 'number'"),
        (r"(?P<name>a)(?P<number>1)(?P<number>2)", "two groups 'number'"),
        (r"(?P<name>a))(?:(?P<number>1)", "regular expression: "),
    ],
)
def test_refused(regex, what):
    """An expression that is none, or whose groups are not the fields, is refused."""
    with pytest.raises(SettingsError, match=what):
        build(FormatSettings(type="lines", regex=regex), PAIR.fields)
