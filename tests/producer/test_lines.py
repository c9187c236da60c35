"""JSON lines become messages."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.errors import SettingsError
from windrow.model.timestamps import microseconds
from windrow.producer.lines import Fault, Fields, LineReader

NOW = microseconds("2026-01-31T12:00:09Z", "now")
GOOD = {"key": "k", "type": "t", "event_time": "2026-01-31T12:00:00Z"}


NUMBER = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)
BLANK = st.sampled_from(["", " ", "\t"])
SCALAR = st.one_of(NUMBER, st.sampled_from(["true", "false"]), st.text(st.characters(codec="utf-8")).map(json.dumps))


def joined(parts, brackets):
    return st.tuples(BLANK, BLANK, st.lists(parts, max_size=4)).map(
        lambda made: brackets[0] + made[0] + f"{made[1]},{made[0]}".join(made[2]) + made[1] + brackets[1]
    )


NAMED = st.sampled_from(['"a"', '"\\u0061"', '"ä"'])
TREE = st.recursive(
    SCALAR,
    lambda inner: (
        joined(inner, "[]")
        | joined(st.tuples(NAMED, BLANK, inner).map(lambda made: made[0] + ":" + made[1] + made[2]), "{}")
    ),
    max_leaves=12,
)
JSON = TREE.map(lambda text: f'{{"whole":{text},"whole":{text}}}')


def kept_fields(written):
    line = b'{"key":"k","type":"t","event_time":1,"payload": %b }' % written.encode()
    portion = read(line, most_bytes=100_000)
    assert portion.faults == []
    return portion.table["payload"][0].as_py()


def read(*lines, columns=(), most_bytes=1_000):
    content = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return LineReader(Fields.of(columns), "p", most_bytes).read(content, 1, NOW)


class TestMessages:
    def test_columns(self):
        """A line fills each column; missing or null optional fields get the defaults of `send`."""
        full = GOOD | {"source": "s", "received_at": 1_000_000, "sequence": -5, "payload": "21.5"}
        portion = read(full, GOOD, GOOD | {"source": None, "received_at": None, "sequence": None, "payload": None})
        assert portion.faults == []
        first, *others = portion.table.to_pylist()
        assert (first["source"], first["received_at"].timestamp(), first["sequence"], first["payload"]) == (
            "s", 1, -5, "21.5",
        )  # fmt: skip
        assert [(row["source"], row["sequence"], row["payload"]) for row in others] == [("p", None, None)] * 2
        assert {row["received_at"].timestamp() for row in others} == {NOW / 1_000_000}

    @pytest.mark.parametrize(
        "time",
        ["2026-01-31T13:00:00.0000019+01:00", "2026-01-31T12:00:00.000001Z", NOW - 8_999_999],
        ids=["zone, finer than microseconds", "Z", "microseconds"],
    )
    def test_times(self, time):
        """A time is text with a zone, floored to microseconds, or whole microseconds; also where a portion has both."""
        for portion in (read(GOOD | {"event_time": time}), read(GOOD | {"event_time": time}, GOOD | {"event_time": 5})):
            assert portion.table["event_time"].cast("int64")[0].as_py() == NOW - 8_999_999
            assert portion.faults == []

    @pytest.mark.parametrize(
        ("value", "payload"),
        [
            ("ä", "ä"),
            ("", ""),
            (21.5, "21.5"),
            (True, "true"),
            ({"a": [1, "ä", None]}, '{"a": [1, "\\u00e4", null]}'),
            (10**30, str(10**30)),
        ],
    )
    def test_payload(self, value, payload):
        """A payload is a text as it is, any other value as its JSON text."""
        assert read(GOOD | {"payload": value}).table["payload"].to_pylist() == [payload]

    @pytest.mark.parametrize("written", ["0.10000000000000000001", "1.50", '{"a":1,"a":2}', "1e999", "-0", "[ 1 ,2]"])
    def test_json_text(self, written):
        """The JSON text of a payload stays as it was written, byte for byte."""
        assert kept_fields(written) == written

    @given(JSON)
    def test_any_json_text(self, written):
        """So does any JSON text that is not itself a text, with repeated names, long numbers and blanks."""
        assert kept_fields(written) == written

    def test_same_alone_and_together(self):
        """A line gives the same message whatever lines are around it."""
        lines = [
            GOOD, b"", b"{}", GOOD | {"key": "\u00e4"}, GOOD | {"event_time": 7}, GOOD | {"event_time": "x"},
            GOOD | {"payload": 1}, GOOD | {"payload": "x"}, GOOD | {"source": "s", "sequence": 3}, b"\xff", b"[1]",
            GOOD | {"key": 1}, GOOD | {"received_at": "2026-01-31T12:00:00Z"}, GOOD | {"colour": "red"},
        ]  # fmt: skip
        together = read(*lines)
        alone = [read(line) for line in lines]
        assert together.table.to_pylist() == [row for portion in alone for row in portion.table.to_pylist()]
        faults = [(at, fault.reason) for at, portion in enumerate(alone, 1) for fault in portion.faults]
        assert [(fault.line, fault.reason) for fault in together.faults] == faults
        assert len(faults) == 7

    def test_before(self):
        """The part of a portion before a line has the rows and faults of the lines before it."""
        portion = read(b"", GOOD, b"", GOOD)
        part = portion.before(3)
        assert (part.first, part.last, part.faults) == (1, 2, portion.faults[:1])
        assert part.table.equals(portion.table.slice(0, 2))


class TestFaults:
    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"", "it is empty"),
            (b" \r", "it is empty"),
            (b"{", "it is not JSON"),
            (b'{"key": "k"}{"key": "k"}', "it is not JSON: Extra data"),
            (b"[]", "it is not a JSON object"),
            (b"17", "it is not a JSON object"),
            (b'{"key": "\xff"}', "it is not UTF-8 at byte 10"),
            (b"[" * 900, "it is not JSON"),
            (b'{"event_time": NaN}', "NaN is not a number"),
            (b'{"event_time": ' + b"9" * 900 + b"}", "key is missing"),
            ({}, "key is missing"),
            (GOOD | {"type": None}, "type is missing"),
            (GOOD | {"key": 17}, "key is not text"),
            (GOOD | {"source": ["s"]}, "source is not text"),
            (GOOD | {"key": "\ud800"}, "key contains half of a character"),
            (GOOD | {"payload": {"a": "\ud800"}}, "payload contains half of a character"),
            (GOOD | {"event_time": "2026-01-31T12:00:00"}, "event_time has no time zone"),
            (GOOD | {"event_time": "yesterday"}, "event_time is not a time: 'yesterday'"),
            (GOOD | {"event_time": 1.5}, "event_time is neither"),
            (GOOD | {"event_time": True}, "event_time is neither"),
            (GOOD | {"received_at": 2**63}, "received_at is neither"),
            (GOOD | {"sequence": "1"}, "sequence is not a 64-bit integer"),
            (GOOD | {"colour": "red"}, "no column is mapped to its field 'colour'"),
            (GOOD | {"payload": "x" * 940}, "it has more than 1,000 bytes"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_reason(self, line, reason):
        """A line that is not a message is reported with its reason, and becomes a row with NULL event time that holds
        both. Its key and type are kept if they are valid.
        """
        portion = read(line)
        [fault] = portion.faults
        assert fault.line == 1
        assert fault.reason.startswith(reason) or reason in fault.reason
        [row] = portion.table.to_pylist()
        assert (row["source"], row["received_at"].timestamp()) == ("p", NOW / 1_000_000)
        assert (row["event_time"], row["sequence"]) == (None, None)
        content = line if isinstance(line, bytes) else json.dumps(line).encode()
        expected = {"reason": fault.reason, "line": content.decode(errors="backslashreplace")}
        assert json.loads(row["payload"]) == expected

    def test_key_stays(self):
        """An invalid line keeps its key and type, so that it can be found among the rejected messages."""
        wrong = [{"event_time": "2026-01-31T12:00:00"}, {"event_time": None}, {"colour": "red"}, {"sequence": 1.5},
                 {"type": 1}, {"key": None}]  # fmt: skip
        rows = read(*(GOOD | changes for changes in wrong), GOOD).table.to_pylist()
        assert [row["key"] for row in rows] == [GOOD["key"]] * 5 + [None, GOOD["key"]]
        assert [row["type"] for row in rows] == [GOOD["type"]] * 4 + [None] + [GOOD["type"]] * 2
        assert [row["event_time"] is None for row in rows] == [True] * 6 + [False]

    def test_too_large(self):
        """The beginning of an oversize line is kept."""
        portion = read(b"x" * 5_000)
        assert portion.faults == [Fault(1, "it has more than 1,000 bytes")]
        [payload] = portion.table["payload"].to_pylist()
        assert json.loads(payload)["line"] == "x" * 1_024

    def test_nested(self):
        """A value that nests too deeply to be read or written makes the line invalid."""
        for depth in (900, 5_000, 50_000):
            line = b'{"key":"k","type":"t","event_time":1,"payload":' + b"[" * depth + b"]" * depth + b"}"
            portion = read(line, most_bytes=1_000_000)
            assert portion.table.num_rows == 1
            assert len(portion.faults) == portion.table["event_time"].null_count


class TestFields:
    def test_other_names(self):
        """A column takes the mapped field or a constant text; the field of its own name then fills no column."""
        line = {"device": "pump-1", "ts": 7, "value": 21.5}
        columns = ["key=device", "event_time=ts", "payload=value", "type='it''s'", "source='plant'"]
        [row] = read(line, columns=columns).table.to_pylist()
        assert (row["source"], row["key"], row["type"], row["payload"]) == ("plant", "pump-1", "it's", "21.5")
        assert read(line | {"key": "k"}, columns=columns).faults == [Fault(1, "no column is mapped to its field 'key'")]
        assert read({"ts": 7}, columns=columns).faults == [Fault(1, "device is missing")]

    def test_one_field_for_two(self):
        """One field may fill two columns."""
        [row] = read(GOOD, columns=["source=key"]).table.to_pylist()
        assert (row["source"], row["key"]) == ("k", "k")

    def test_whole_line(self):
        """The payload may be the whole line, which also keeps fields that fill no column."""
        line = b' {"key":"k", "type":"t","event_time":1,"colour":"\\ud800 red", "payload":2.50} \r'
        portion = read(line, b"{}", columns=["payload=*"])
        whole, fault = portion.table["payload"].to_pylist()
        assert (whole, json.loads(fault)["line"]) == (line.decode().strip(), "{}")
        assert portion.faults == [Fault(2, "key is missing")]

    @pytest.mark.parametrize("wrong", ["key", "key=", "colour=red", "key=*", "event_time='now'", "sequence='1'", ""])
    def test_refused(self, wrong):
        """An invalid mapping is an error."""
        with pytest.raises(SettingsError):
            Fields.of([wrong])
