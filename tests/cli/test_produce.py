import json
import math
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Command
from windrow.producer import Producer
from windrow.settings.producer import ProducerOptions
from windrow.settings.settings import Settings

FIRST = {"key": "a", "type": "t", "event_time": 100_000_000, "received_at": 100_000_000}


def lines(path: Path, *arguments: object) -> str:
    text = "".join((argument if isinstance(argument, str) else json.dumps(argument)) + "\n" for argument in arguments)
    path.write_text(text)
    return path.name


class TestProduce:
    def test_batched(self, windrow: Command, tmp_path: Path) -> None:
        """Lines become messages and messages batches; a line that is no message is rejected with its content."""
        later = FIRST | {"event_time": 160_000_000, "received_at": 160_000_000, "payload": {"value": 21.5}}
        file = lines(tmp_path / "lines", FIRST, "no JSON", FIRST | {"type": "u"}, "", FIRST | {"colour": "red"}, later)
        result = windrow("produce", file, "--id", "p")
        assert (result.status, result.out.count("\n")) == (0, 1)
        assert "6 messages sent" in result.out
        assert "3 of them are not valid messages and will be rejected." in result.out
        log_lines = [json.loads(line) for line in result.err.splitlines()]
        assert [(line["event"], line["line"]) for line in log_lines] == [("no message", line) for line in (2, 4, 5)]
        assert log_lines[2]["reason"] == "no column is mapped to its field 'colour'"
        document = windrow("run", "--once", "--json").json()
        assert (document["accepted"], document["rejected"], document["opened"]) == (3, 3, 2)
        rejected = windrow("show", "--rejected", "--json").json()
        details = {2: "key is NULL", 4: "key is NULL", 5: "event_time is NULL"}
        assert {row["sequence"]: row["detail"] for row in rejected} == details
        kept = {row["sequence"]: json.loads(row["payload"]) for row in rejected}
        assert {number: payload["reason"] for number, payload in kept.items()} == {
            line["line"]: line["reason"] for line in log_lines
        }
        content = {2: "no JSON", 4: "", 5: json.dumps(FIRST | {"colour": "red"})}
        assert {number: payload["line"] for number, payload in kept.items()} == content
        assert windrow("verify").status == 0

    def test_json_and_resumed(self, windrow: Command, tmp_path: Path) -> None:
        """With --json standard output is one document; the same input again is passed over, what is new is sent."""
        document = windrow("produce", lines(tmp_path / "lines", FIRST, "x"), "--id", "p", "--json").json()
        assert {name: document[name] for name in ("message_count", "rejected", "skipped", "sequence")} == {
            "message_count": 2, "rejected": 1, "skipped": 0, "sequence": 2,
        }  # fmt: skip
        assert document["depot_version"] == DeltaTable(tmp_path / "data/depot").version()
        [fault] = document["invalid_lines"]
        assert (fault["line"], fault["reason"][:14]) == (2, "it is not JSON")
        result = windrow("produce", lines(tmp_path / "lines", FIRST, "x", FIRST), "--id", "p", "--json")
        document = result.json()
        assert (document["message_count"], document["skipped"], document["sequence"]) == (1, 2, 3)
        assert json.loads(result.err)["lines"] == 2
        result = windrow("produce", "lines", "--id", "p")
        assert "0 messages sent" in result.out
        assert "3 earlier lines were already in the depot." in result.out

    def test_strict(self, windrow: Command, tmp_path: Path) -> None:
        """With --strict the first invalid line ends it with 2; when it is mended the same command goes on."""
        file = lines(tmp_path / "lines", FIRST, FIRST, {"key": "a"}, FIRST, "")
        result = windrow("produce", file, "--id", "p", "--strict")
        assert result.status == 2
        assert "WINDROW-MESSAGE: line 3 is not a message: type is missing" in result.err
        assert "Lines up to 2 are in the depot" in result.err
        assert DeltaTable(tmp_path / "data/depot").count() == 2
        lines(tmp_path / "lines", FIRST, FIRST, FIRST, FIRST)
        document = windrow("produce", "lines", "--id", "p", "--strict", "--json").json()
        assert (document["message_count"], document["skipped"]) == (2, 2)

    @pytest.mark.parametrize(
        "other",
        [[FIRST], [FIRST, FIRST | {"key": "b"}, FIRST], [FIRST | {"key": "b"}, FIRST, FIRST, FIRST]],
        ids=["shorter", "other", "rotated"],
    )
    def test_other_input(self, windrow: Command, tmp_path: Path, other: list[object]) -> None:
        """Another input under the same id is an error, and nothing of it is sent unless that is asked for."""
        windrow("produce", lines(tmp_path / "lines", FIRST, FIRST), "--id", "p")
        file = lines(tmp_path / "other", *other)
        result = windrow("produce", file, "--id", "p")
        assert result.status == 2
        assert "WINDROW-INPUT-MISMATCH" in result.err
        assert "--no-resume" in result.err
        assert DeltaTable(tmp_path / "data/depot").count() == 2
        document = windrow("produce", file, "--id", "p", "--no-resume", "--json").json()
        assert (document["message_count"], document["sequence"]) == (len(other), 2 + len(other))
        assert windrow("produce", file, "--id", "p").status == 2
        assert windrow("produce", file, "--id", "q").status == 0

    def test_columns(self, windrow: Command, tmp_path: Path) -> None:
        """Columns take fields of other names, texts, and the whole line."""
        line = {"device": "pump-1", "at": "2026-01-31T12:00:00Z", "celsius": 21.5}
        columns = ("key=device", "event_time=at", "type='reading'", "payload=*")
        flags = [flag for column in columns for flag in ("--map", column)]
        assert windrow("produce", lines(tmp_path / "lines", line), "--id", "p", *flags).status == 0
        [row] = DeltaTable(tmp_path / "data/depot").to_pyarrow_table().to_pylist()
        assert (row["source"], row["key"], row["type"]) == ("p", "pump-1", "reading")
        assert json.loads(row["payload"]) == line

    @pytest.mark.parametrize(
        ("arguments", "code"),
        [
            (["missing", "--id", "p"], "WINDROW-FILE"),
            ([".", "--id", "p"], "WINDROW-FILE"),
            (["lines"], "WINDROW-USAGE"),
            (["lines", "--id", ""], "WINDROW-MESSAGE"),
            (["lines", "--id", "p", "--map", "colour=x"], "WINDROW-SETTINGS"),
        ],
    )
    def test_refused(self, windrow: Command, tmp_path: Path, arguments: list[str], code: str) -> None:
        """What cannot be done is said before anything is sent."""
        lines(tmp_path / "lines", FIRST)
        result = windrow("produce", *arguments)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith(code)

    def test_other_table(self, windrow: Command, tmp_path: Path) -> None:
        """A table that is no depot is refused."""
        import pyarrow as pa

        write_deltalake(tmp_path / "table", pa.table({"colour": ["red"]}))
        result = windrow("produce", lines(tmp_path / "lines", FIRST), "--id", "p", "--depot", "table")
        assert (result.status, result.err.partition(":")[0]) == (3, "WINDROW-INCOMPATIBLE-TABLE")

    def test_cannot_be_written(self, windrow: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """When the depot takes nothing more the error says why, and up to which line all is there."""
        from windrow.producer import writer

        def full(*arguments: object, **named: object) -> None:
            raise OSError("no space left on device")

        impatient = property(lambda own: ProducerOptions(**own.producer.model_dump(), delivery_timeout="200ms"))
        windrow("produce", lines(tmp_path / "lines", FIRST, FIRST), "--id", "p")
        lines(tmp_path / "lines", FIRST, FIRST, FIRST)
        monkeypatch.setattr(Settings, "producer_options", impatient)
        monkeypatch.setattr(writer.DepotWriter, "_write", full)
        result = windrow("produce", "lines", "--id", "p", "--json")
        assert (result.status, result.out) == (3, "")
        assert "WINDROW-DELIVERY-TIMEOUT" in result.err
        assert "no space left on device" in result.err
        assert "Lines up to 2 are in the depot: the same command resumes after them." in result.err
        monkeypatch.undo()
        monkeypatch.chdir(tmp_path)
        # An attempt that began before may still have written the third line.
        assert windrow("produce", "lines", "--id", "p").status == 0
        assert DeltaTable("data/depot").to_pyarrow_table().num_rows == 3

    def test_typed_payloads(self, windrow: Command, tmp_path: Path) -> None:
        """`produce` sends values of JSON as the depot's type; a line with another value is rejected later."""
        good = {"key": "k", "type": "t", "event_time": "2026-01-31T12:00:00Z"}
        sent = [good | {"payload": value} for value in (1.5, 2, None, "NaN", "warm", True)]
        (tmp_path / "in.ndjson").write_text("".join(f"{json.dumps(line)}\n" for line in sent))
        with Producer("data/depot", "p", payload="double"):
            pass
        document = windrow("produce", "in.ndjson", "--id", "q", "--json").json()
        assert (document["message_count"], document["rejected"]) == (6, 2)
        rows = DeltaTable("data/depot").to_pyarrow_table().sort_by("sequence").to_pylist()
        assert repr([row["payload"] for row in rows]) == repr([1.5, 2.0, None, math.nan, None, None])
        assert json.loads(rows[4]["type"]) == {"reason": "payload is not a number", "line": json.dumps(sent[4])}
        assert [row["event_time"] is None for row in rows] == [False] * 4 + [True] * 2
        (tmp_path / "windrow.toml").write_text('payload_type = "DOUBLE"\n')
        assert windrow("run", "--once", "--engine", "embedded").status == 0
        shown = windrow("show", "--rejected", "--json").json()
        details = [row["detail"] for row in shown if row["reason"] == "invalid"]
        assert details == ["event_time is NULL"] * 2
        assert windrow("verify").status == 0


class TestRaw:
    def test_as_it_is(self, windrow: Command, tmp_path: Path) -> None:
        """Bytes come through as they are, cut into chunks, behind those that are there; with --end-source the source
        ends.
        """
        data = bytes(range(256)) * 20_500
        (tmp_path / "data").write_bytes(data)
        arguments = ("produce", "data", "--raw-source", "line", "--depot", "raw")
        assert windrow(*arguments).out == "5,248,000 bytes sent as 6 chunks. line continues with chunk 7.\n"
        document = windrow(*arguments, "--end-source", "--json").json()
        assert document == {
            "byte_count": 5_248_000,
            "chunk_count": 7,
            "sequence": 13,
            "is_source_ended": True,
            "stopped": False,
        }
        rows = DeltaTable("raw").to_pyarrow_table().sort_by("sequence")
        assert rows["sequence"].to_pylist() == list(range(1, 14))
        assert b"".join(rows["bytes"].to_pylist()) == 2 * data
        assert rows["last"].to_pylist() == [False] * 12 + [True]
        result = windrow(*arguments)
        assert (result.status, "has ended" in result.err) == (2, True)
        assert DeltaTable("raw").to_pyarrow_table().num_rows == 13

    @pytest.mark.parametrize(
        "arguments",
        [
            ("produce", "data"),
            ("produce", "data", "--id", "p", "--end-source"),
            ("produce", "data", "--raw-source", "line", "--id", "p"),
            ("produce", "data", "--raw-source", "line", "--strict"),
            ("produce", "data", "--raw-source", "line", "--map", "payload=*"),
            ("produce", "data", "--raw-source", ""),
        ],
    )
    def test_refused(self, windrow: Command, tmp_path: Path, arguments: tuple[str, ...]) -> None:
        """Options of lines and of bytes do not go together, and either has a name; nothing is made."""
        (tmp_path / "data").write_bytes(b"x")
        assert windrow(*arguments, "--depot", "raw").status == 2
        assert not (tmp_path / "raw").exists()
