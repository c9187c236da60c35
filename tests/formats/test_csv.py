import csv
import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.naive import NaiveCsv
from windrow.errors import SettingsError
from windrow.formats.automaton import Automaton
from windrow.formats.csv import CsvParser, InvalidHeader
from windrow.formats.fields import parse
from windrow.formats.format import format_of
from windrow.formats.framing import DelimitedFraming
from windrow.formats.grammar import delimiter_automaton
from windrow.formats.records import REJECTS, Parser, Records
from windrow.formats.settings import FormatSettings
from windrow.testing.formats import RawLedger

TEXTS = CsvParser(parse({"a": "string", "b": "string"}))
TYPED = CsvParser(parse({"a": "int64", "b": "string", "c": "binary"}))
ONE = CsvParser(parse({"a": "string"}))
ROWS = delimiter_automaton(b"\n", b",", b'"')
SHAPES = {
    "csv": TEXTS,
    "one column": ONE,
    "three typed": TYPED,
    "backslash": replace(TEXTS, escape=b"\\"),
    "no quote": replace(TEXTS, quote=b""),
    "long delimiter": replace(TEXTS, delimiter=b"--"),
    "nulls": replace(TYPED, nulls=(b"b", b"a,")),
    "no nulls": replace(TEXTS, nulls=()),
    "quote as escape": replace(TEXTS, escape=b'"'),
}


def records_of(lines: list[bytes]) -> Records:
    """Return records that lie apart, in bytes that belong to none."""
    data = b"".join(b"\x01" + line for line in lines)
    end = np.cumsum([1 + len(line) for line in lines], dtype=np.int64)
    return Records(np.frombuffer(data, np.uint8), end - [len(line) for line in lines], end)


def framed(automaton: Automaton, data: bytes) -> Records:
    buffer = np.frombuffer(data, np.uint8)
    ends = automaton.follow(buffer, 0, 0, 0, len(buffer)).ends
    framing = DelimitedFraming(automaton, b"\n", len(buffer))
    return Records(buffer, *framing.content(buffer, np.append(0, ends)[:-1], ends))


def read_lines(parser: Parser, lines: list[bytes]) -> list[object]:
    """Return of each record its values, or reason and column, or that it was skipped."""
    parsed = parser.parse(records_of([line.removesuffix(b"\r") for line in lines]))  # which framing does not hand on
    parsed.fields.validate(full=True)
    assert parsed.fields.schema == parser.schema
    assert parsed.rejects.schema == REJECTS
    assert (np.diff(parsed.record) > 0).all()
    verdicts = [(record, "skipped") for record in parsed.skipped.tolist()]
    verdicts += zip(parsed.record.tolist(), (tuple(row.values()) for row in parsed.fields.to_pylist()), strict=True)
    verdicts += [(row["record"], (row["reason"], row["column"])) for row in parsed.rejects.to_pylist()]
    assert sorted(record for record, _ in verdicts) == list(range(len(lines)))
    return [verdict for _, verdict in sorted(verdicts, key=lambda pair: pair[0])]


def cut_cells(parser: CsvParser, line: bytes) -> list[tuple[bytes, bool]] | None:  # noqa: C901 - one state after the other
    """Cut a record into columns, byte by byte: each with whether it was quoted. None: a quote does not end a value."""
    quote, escape = parser.quote or None, parser.escape if parser.escape not in {b"", parser.quote} else None
    columns, text, state, quoted = [], b"", "start", False
    while line:
        byte, line, rest = line[:1], line[1:], line
        if state == "quoted":
            if byte == escape:
                if not line:
                    return None
                text, line = text + line[:1], line[1:]
            elif byte == quote and escape is None and line[:1] == quote:
                text, line = text + byte, line[1:]
            elif byte == quote:
                state = "closed"
            else:
                text += byte
        elif state == "start" and byte == quote:
            state, quoted = "quoted", True
        elif rest.startswith(parser.delimiter):
            columns.append((text, quoted))
            line, text, state, quoted = rest[len(parser.delimiter) :], b"", "start", False
        elif state == "closed":
            if byte != b" ":
                return None
        else:
            text, state = text + byte, "field"
    columns.append((text, quoted))
    return None if state == "quoted" or has_quote_behind_lines(columns, parser.quote) else columns


def has_quote_behind_lines(columns: list[tuple[bytes, bool]], quote: bytes) -> bool:
    """Tell whether a quote is in a value without quotes, with a line end between it and the first value in quotes."""
    among = [text for text, quoted in columns]
    first = next((at for at, (_, quoted) in enumerate(columns) if quoted), len(columns))
    return any(
        not quoted and quote and quote in text and b"\n" in b"".join(among[first:at])
        for at, (text, quoted) in enumerate(columns)
    )


def expected(parser: CsvParser, line: bytes) -> object:
    line = line.removesuffix(b"\r")
    if not line and len(parser.fields) > 1:
        return "skipped"
    columns = cut_cells(parser, line)
    if columns is None:
        return "format_syntax", None
    if len(columns) != len(parser.fields):
        return "format_columns", None
    values: list[object] = []
    for (text, quoted), field in zip(columns, parser.fields, strict=True):
        if not quoted and text in parser.nulls:
            values.append(None)
        elif pa.types.is_binary(field.type):
            values.append(text)
        elif pa.types.is_string(field.type):
            try:
                values.append(text.decode())
            except UnicodeDecodeError:
                return "format_encoding", field.name
        elif text.isdigit():
            values.append(int(text))
        else:
            return "format_cast", field.name
    return tuple(values)


@pytest.mark.parametrize("name", SHAPES)
@given(lines=st.lists(st.lists(st.sampled_from(b'a1b",,\r\\- \xff\n"'), max_size=12).map(bytes), max_size=12))
def test_oracle(name, lines):
    """Each record is what one reads in it byte by byte, whatever the records beside it."""
    assert read_lines(SHAPES[name], lines) == [expected(SHAPES[name], line) for line in lines]


CELLS = st.text('ab,"\n\r é', max_size=6)
TABLES = st.lists(st.tuples(CELLS, CELLS), max_size=10)


@given(TABLES, st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]))
def test_written_by_python(rows, quoting):
    """What Python's writer writes comes back, through framing and all; where empty means NULL an empty cell is one."""
    written = io.StringIO()
    csv.writer(written, quoting=quoting).writerows(rows)
    parser = replace(TEXTS, nulls=())
    parsed = parser.parse(framed(ROWS, written.getvalue().encode()))
    assert [tuple(row.values()) for row in parsed.fields.to_pylist()] == rows


@given(st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1) | st.none(), st.text('a,"é') | st.none()), max_size=10))
def test_like_arrow(rows):
    """What Arrow writes, Arrow and Windrow read alike: numbers, NULL, and the empty text in quotes."""
    schema = pa.schema([("a", pa.int64()), ("b", pa.string())])
    written = pa.BufferOutputStream()
    pa.csv.write_csv(pa.Table.from_pylist([dict(zip("ab", row, strict=True)) for row in rows], schema), written)
    data = written.getvalue().to_pybytes()
    options = pa.csv.ConvertOptions(
        column_types=schema, strings_can_be_null=True, quoted_strings_can_be_null=False, null_values=[""]
    )
    arrow = pa.csv.read_csv(io.BytesIO(data), convert_options=options)
    parser = CsvParser(parse({"a": "int64", "b": "string"}))
    records = framed(ROWS, data)
    parser = parser.header(records.of(0))
    rest = Records(records.buffer, records.start[1:], records.end[1:])
    assert parser.parse(rest).fields.equals(arrow.combine_chunks())


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        (b'1,"x",y', (1, "x", b"y")),
        (b",,", (None, None, None)),
        (b'1,"",""', (1, "", b"")),
        (b'"",x,y', ("format_cast", "a")),
        (b'"1",x,y', (1, "x", b"y")),
        (b'"1"2,x,y', ("format_syntax", None)),
        (b'"1" ,x,"y"  ', (1, "x", b"y")),
        (b'1,x"y"z,"a""b"', (1, 'x"y"z', b'a"b')),
        (b'1,"a,b"c"d",y', ("format_syntax", None)),
        (b"1,x,y\r", (1, "x", b"y")),
        (b'1,x,"y"\r', (1, "x", b"y")),
        (b'1,x,"y\r"', (1, "x", b"y\r")),
        (b"1,x", ("format_columns", None)),
        (b"1,x,y,", ("format_columns", None)),
        (b'1,x,"y', ("format_syntax", None)),
        (b"1,\xff,\xff", ("format_encoding", "b")),
        (b"1,x,\xff", (1, "x", b"\xff")),
        (b"x,\xff,y", ("format_cast", "a")),
        (b"", "skipped"),
        (b"\r", "skipped"),
    ],
)
def test_verdicts(line, verdict):
    """The verdicts on odd records, between others."""
    assert read_lines(TYPED, [line, b"9,z,z", line]) == [verdict, (9, "z", b"z"), verdict]


def test_details():
    """A reject says what is wrong: how many columns there are and should be, or the text and the type."""
    parsed = TYPED.parse(records_of([b"1", b"1,2,3,4", b'"', b"0x1F,\xff,", b"1,a,b", b"1,\xff" + b"y" * 99 + b","]))
    assert parsed.rejects["detail"].to_pylist() == [
        "1 column instead of 3",
        "4 columns instead of 3",
        "a quote is not closed",
        "'0x1F' is not a valid int64",
        "'\\xff" + "y" * 36 + "'... is not UTF-8",
    ]
    assert parsed.record.tolist() == [4]


def test_no_records():
    """No records are no values and no rejects."""
    assert read_lines(TYPED, []) == []


class TestHeader:
    def test_order(self):
        """The header gives the order of the columns; those that are no fields are counted and ignored."""
        parser = TYPED.header(b'"c",other,a,b,other')
        assert read_lines(parser, [b"x,y,1,z,y", b"x,1,z"]) == [(1, "z", b"x"), ("format_columns", None)]

    def test_quotes(self):
        """A name in quotes may have delimiters and quotes in it."""
        parser = CsvParser(parse({'x,"y"': "int8"})).header(b'a,"x,""y"""')
        assert read_lines(parser, [b"1,2"]) == [(2,)]

    @pytest.mark.parametrize(
        ("record", "reason", "detail"),
        [
            (b"a,b", "format_columns", "the header does not have the field 'c'; its columns: a, b"),
            (b"a,b,c,a", "format_columns", "the header repeats the field 'a'; its columns: a, b, c, a"),
            (b"", "format_columns", "the header does not have the field 'a'; its columns: none"),
            (b'a,b,"c', "format_syntax", "the header: a quote is not closed"),
            (b"a,b,c,\xff", "format_encoding", "the header: '\\xff' is not UTF-8"),
        ],
    )
    def test_refused(self, record, reason, detail):
        """A header without a field, or with one twice, is refused with the reason of its reject."""
        with pytest.raises(InvalidHeader) as refused:
            TYPED.header(record)
        assert (refused.value.reason, refused.value.detail) == (reason, detail)


@pytest.mark.parametrize(
    "wrong",
    [
        {"delimiter": ""},
        {"delimiter": "\n"},
        {"quote_char": "''"},
        {"quote_char": ","},
        {"fields": {"a": "string(3)"}},
    ],
    ids=lambda wrong: str(next(iter(wrong))),
)
def test_refused(wrong):
    """Delimiters that cannot be told apart are refused, and fields that CSV cannot have."""
    with pytest.raises(SettingsError):
        format_of(FormatSettings(**({"type": "csv", "fields": {"a": "string"}} | wrong)))


NAIVE = {
    "csv": NaiveCsv("ab"),
    "three columns": NaiveCsv("abc"),
    "backslash": NaiveCsv("abc", escape=b"\\"),
    "no quote": NaiveCsv("ab", quote=b""),
    "long delimiters": NaiveCsv("ab", b"||", b"--\r"),
    "lines of two bytes": NaiveCsv("ab", line=b"\r\n", escape=b"\\"),
}


@pytest.mark.parametrize("name", NAIVE)
@given(data=st.data())
def test_like_a_naive_reader(name, data):
    """Whatever quotes, delimiters and line ends are where, records and rejects are those that one reads byte by
    byte.
    """
    naive = NAIVE[name]
    marks = [naive.delimiter, naive.line, naive.quote, naive.quote, naive.escape, b" ", b"\r"]
    marks += [b"a", b"b", naive.delimiter[:1], naive.line[:1]]
    parts = data.draw(st.lists(st.sampled_from([mark for mark in marks if mark]), max_size=30))
    shape = {
        "delimiter": naive.delimiter,
        "record_delimiter": naive.line,
        "quote_char": naive.quote,
        "escape_char": naive.escape,
    }
    settings = {name: value.decode() for name, value in shape.items()} | {"null_values": [], "has_header": False}
    format_ = format_of(FormatSettings(type="csv", fields=dict.fromkeys(naive.columns, "string"), **settings))
    good, rejects = RawLedger.of(format_, [[b"".join(parts)]]).values()
    expected, bad = naive(b"".join(parts))
    assert (good, sorted(content for _, content in rejects)) == (sorted(map(repr, expected)), sorted(bad))


def test_a_stray_quote_costs_one_record():
    """A quote that nobody closes costs its record, though a quote far below closes it and the columns would fit."""
    format_ = format_of(FormatSettings(type="csv", fields={"ts": "int64", "device": "string", "remark": "string"}))
    plain = b"".join(b"%d,a,fine\n" % at for at in range(2, 10))
    stray = b'1,a,"nobody closes this\n'
    ledger = RawLedger.of(format_, [[b"ts,device,remark\n" + stray + plain + b'10,a,"closed"\n11,a,"two\nlines"\n']])
    assert [row["ts"] for row in sorted(ledger.fields(), key=lambda row: row["ts"])] == [*range(2, 12)]
    assert [(row["reason"], row["content"]) for row in ledger.rejects()] == [("format_syntax", stray)]


def test_columns_that_fit_by_chance():
    """A quote that a value beginning with a delimiter closes costs its record too, though there are as many columns."""
    format_ = format_of(
        FormatSettings(type="csv", has_header=False, fields={"a": "int64", "b": "string", "c": "string"})
    )
    ledger = RawLedger.of(format_, [[b'1,"a,x\n2,b,y\n3,", really"\n4,"d\n",z\n']])
    assert [row["a"] for row in ledger.fields()] == [2, 4]
    assert [row["content"] for row in ledger.rejects("format_syntax")] == [b'1,"a,x\n']


def test_a_source_that_ends_within_a_delimiter():
    """A closing quote with a part of a delimiter at the end of a source costs no record between it and its open
    quote.
    """
    format_ = format_of(
        FormatSettings(type="csv", has_header=False, record_delimiter="\r\n", fields={"a": "int64", "b": "string"})
    )
    ledger = RawLedger.of(format_, [[b'1,"open\r\n2,x\r\n3,"\r']])
    assert [row["a"] for row in ledger.fields()] == [2]
    assert [row["content"] for row in ledger.rejects()] == [b'1,"open\r\n', b'3,"\r']


@pytest.mark.parametrize("above", [b"\n", b"\r\n\n", b"\xef\xbb\xbf\n"], ids=["line", "lines", "mark"])
@pytest.mark.parametrize("fields", [{"a": "int64", "b": "string"}, {"a": "int64"}], ids=["two", "one of two"])
def test_empty_lines_above_the_header(above, fields):
    """Empty lines above the header are skipped, however the bytes are cut."""
    format_, data = format_of(FormatSettings(type="csv", fields=fields)), above + b"a,b\n1,x\n2,y\n"
    for at in range(len(data)):
        ledger = RawLedger.of(format_, [[data[:at], data[at:]]])
        assert ([row["a"] for row in ledger.fields()], ledger.rejects()) == ([1, 2], []), data[:at]


@pytest.mark.parametrize(
    ("names", "order"),
    [(b"B,A", ("b", "a")), (b"a,b,A", ("a", "b", "A")), (b"A,b", ("a", "b"))],
    ids=["both", "exact name first", "one"],
)
def test_case_of_a_header(names, order):
    """A column has the name of a field, or, if none has, the name in other letters."""
    assert TEXTS.header(names).order == order


def test_a_field_in_two_cases_is_refused():
    """Two columns that differ from a field only in case are not chosen between."""
    with pytest.raises(InvalidHeader, match="repeats the field 'a'"):
        TEXTS.header(b"A,b,\xc3\xa4,A")
