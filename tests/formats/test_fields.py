import pyarrow as pa
import pytest

from windrow.columnar.arrow import TIME
from windrow.errors import SettingsError
from windrow.formats.fields import NAMES, PLAIN, Field, parse, require_unsized, type_text

GOOD = {
    **{name: Field("x", type_) for name, type_ in PLAIN.items()},
    " int64 ": Field("x", pa.int64()),
    "decimal(38, 38)": Field("x", pa.decimal128(38, 38)),
    "decimal(1,0)": Field("x", pa.decimal128(1, 0)),
    "string(12)": Field("x", pa.string(), width=12),
    "binary(1)": Field("x", pa.binary(), width=1),
    "timestamp[s] %d/%m/%Y %H:%M:%S": Field("x", pa.timestamp("s", "UTC"), "%d/%m/%Y %H:%M:%S"),
    "date %y%m%d": Field("x", pa.date32(), "%y%m%d"),
    "list<timestamp[us]>": Field("x", pa.list_(TIME)),
    "time[s] %H%M": Field("x", pa.time32("s"), "%H%M"),
    "list<map<string, date>, 3>": Field("x", pa.list_(pa.map_(pa.string(), pa.date32()), 3)),
    "map<string, list<time[ns], 2>>": Field("x", pa.map_(pa.string(), pa.list_(pa.time64("ns"), 2))),
    "struct<a: int64, b: list<string>>": Field("x", pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])),
    "list<struct<a:decimal(5, 2),b:struct<c: bool>>>": Field(
        "x", pa.list_(pa.struct([("a", pa.decimal128(5, 2)), ("b", pa.struct([("c", pa.bool_())]))]))
    ),
}


@pytest.mark.parametrize("text", GOOD)
def test_types(text):
    """Each type is read, also one in another, and is written as it is read."""
    (field,) = parse({"x": text})
    assert field == GOOD[text]
    assert parse({"x": type_text(field)})[0].type == field.type


def test_time():
    """A moment in microseconds is of the type that all times of Windrow have."""
    assert parse({"ts": "timestamp[us]"}) == (Field("ts", TIME),)


def test_order():
    """Fields stay in the order in which they are given."""
    assert [field.name for field in parse({"b": "int8", "a": "bool"})] == ["b", "a"]
    assert len(NAMES) == len(PLAIN)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("int46", "unknown type 'int46'", "Did you mean 'int64'?"),
        ("Int64", "unknown type 'Int64'", "Did you mean 'int64'?"),
        ("double", "unknown type 'double'", "Did you mean 'float64'?"),
        ("BIGINT", "unknown type 'BIGINT'", "Did you mean 'int64'?"),
        ("varchar(20)", "unknown type 'varchar(20)'", "Did you mean 'string'?"),
        ("timestamp", "unknown type 'timestamp'", "Did you mean 'timestamp[us]'?"),
        ("timestamp[min]", "unknown type 'timestamp[min]'", "Did you mean 'timestamp[us]'?"),
        ("decimal(10)", "unknown type 'decimal(10)'", "Did you mean 'decimal(p, s)'?"),
        ("decimal(39, 0)", "decimal(39, 0) is impossible", "Use 1 to 38 digits"),
        ("decimal(2, 3)", "decimal(2, 3) is impossible", "Use 1 to 38 digits"),
        ("decimal(0, 0)", "decimal(0, 0) is impossible", "Use 1 to 38 digits"),
        ("string(0)", "'string(0)' has no bytes", "at least 1"),
        ("", "unknown type ''", "Known types: int8, "),
        ("list<int46>", "unknown type 'int46'", "Did you mean 'int64'?"),
        ("list<string(3)>", "is inside another type", "Leave out sizes and patterns"),
        ("list<date %Y>", "is inside another type", "Leave out sizes and patterns"),
        ("list<int8, 0>", "a list of 0 values", "at least 1"),
        ("map<int8, int8>", "'int8, int8' in a map is not 'string, type'", "names are texts"),
        ("map<string>", "'string' in a map is not 'string, type'", "names are texts"),
        ("map", "unknown type 'map'", "Did you mean 'map<string, ...>'?"),
        ("time[s] %d", "a time of day has no %d", "Write it as for strptime"),
        ("struct<>", "'' in a struct is not 'name: type'", "Write struct<"),
        ("struct<a>", "'a' in a struct is not 'name: type'", "Write struct<"),
        ("struct<a: int8, A: int8>", "a struct has 'a' twice", "Rename"),
        ("list<" * 40 + "int8" + ">" * 40, "nests too deeply", "at most"),
        ("date %H", "it has no year: %Y or %y", "Write it as for strptime"),
        ("date %Y-%m-%d %H", "has more than a date", "Use timestamp[us]"),
        ("timestamp[us] %Y-%m-%d %Q", "%Q is unknown", "Write it as for strptime"),
        ("timestamp[us] %Y-%m-%d %", "% is unknown", "Write it as for strptime"),
        ("timestamp[us] %F %d", "the day appears twice", "Write it as for strptime"),
        ("timestamp[us] %F %I", "%I and %p go together", "Write it as for strptime"),
    ],
)
def test_wrong(text, message, hint):
    """What is no type is refused with the name of the field and the nearest type."""
    with pytest.raises(SettingsError) as refused:
        parse({"good": "int8", "speed": text})
    assert refused.value.message.startswith("field 'speed': ")
    assert message in refused.value.message
    assert hint in refused.value.hint


@pytest.mark.parametrize("types", [{}, {"": "int8"}, {"a": "int8", "A": "int8"}], ids=["none", "unnamed", "twice"])
def test_names(types):
    """Without fields, without a name, or with names that only case tells apart nothing can be read."""
    with pytest.raises(SettingsError):
        parse(types)


def test_requirements():
    """A format that knows no nesting, or no fixed sizes, refuses such fields and takes the others."""
    nested, fixed, plain = (parse({"x": text}) for text in ("list<int8>", "string(3)", "string"))
    with pytest.raises(SettingsError, match="field 'x': csv has no fixed-size fields"):
        require_unsized(plain + fixed, "csv")
    require_unsized(plain + nested, "json")
