from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from tests.cli.conftest import Command
from tests.messages import SECOND, TIME, message
from windrow.model import chunks
from windrow.model.payload import of_column, parse


class TestInit:
    def test_makes_tables_and_settings_and_keeps_them(self, windrow: Command, tmp_path: Path) -> None:
        """
        Init makes depot, ledger and windrow.toml; again it changes none of them.
        """
        assert "Wrote windrow.toml" in windrow("init", "--depot", "in", "--ledger", "out").out
        content = (tmp_path / "windrow.toml").read_text()
        assert 'depot = "in"' in content
        assert (DeltaTable(tmp_path / "in").version(), DeltaTable(tmp_path / "out").version()) == (0, 0)
        document = windrow("init", "--json").json()
        assert (document["created"], document["depot"]) == (False, "in")
        assert (tmp_path / "windrow.toml").read_text() == content
        assert (DeltaTable(tmp_path / "in").version(), DeltaTable(tmp_path / "out").version()) == (0, 0)

    def test_binary_payload(self, windrow: Command, tmp_path: Path) -> None:
        """
        The payload's type is chosen when the depot is made, and the ledger follows.
        """
        windrow("init", "--payload-type", "binary")
        for table in ("data/depot", "data/ledger"):
            kinds = {field.name: str(field.type) for field in DeltaTable(tmp_path / table).schema().fields}
            assert "binary" in kinds["payload"]

    def test_typed_payload(self, windrow: Command, tmp_path: Path) -> None:
        """
        Depot, ledger and settings get the type; another one later is refused.
        """
        kind = "STRUCT<celsius: DOUBLE, unit: STRING>"
        assert windrow("init", "--payload-type", kind.lower()).status == 0
        for table in ("data/depot", "data/ledger"):
            kinds = pa.schema(DeltaTable(tmp_path / table).schema().to_arrow())
            assert of_column(kinds) == parse(kind)
        assert f'payload_type = "{kind}"' in (tmp_path / "windrow.toml").read_text()
        assert windrow("init", "--payload-type", kind).status == 0
        refused = windrow("init", "--payload-type", "double")
        assert refused.status == 2
        assert "Write payload_type = 'DOUBLE' there." in refused.err
        assert windrow("run", "--once", "--engine", "embedded").status == 0

    def test_wrong_payload(self, windrow: Command) -> None:
        """
        A type that is none is wrong usage.
        """
        assert windrow("init", "--payload-type", "xml").status == 2

    def test_raw(self, windrow: Command, tmp_path: Path) -> None:
        """With --raw the depot takes chunks, and no ledger is made; a depot of messages is refused."""
        result = windrow("init", "--raw")
        assert "Raw depot data/depot is ready." in result.out
        assert "--format csv" in result.out
        assert chunks.is_raw(pa.schema(DeltaTable(tmp_path / "data/depot").schema().to_arrow()))
        assert not (tmp_path / "data/ledger").exists()
        assert windrow("init", "--raw", "--json").json()["raw"]
        assert DeltaTable(tmp_path / "data/depot").version() == 0
        assert "WINDROW-INCOMPATIBLE-TABLE" in windrow("init").err
        assert windrow("init", "--depot", "messages").status == 0
        assert "does not hold raw chunks" in windrow("init", "--raw", "--depot", "messages").err
        assert windrow("init", "--raw", "--payload-type", "binary").status == 2


class TestFromTable:
    def test_a_file_that_runs(self, windrow: Command, tmp_path: Path) -> None:
        """
        Init looks at a table and writes a file with which the next command batches it, by device and window.
        """
        at = [message()["event_time"] + number // 2 * SECOND for number in range(400)]
        columns = {"device": ["a", "b"] * 200, "ts": pa.array(at).cast(TIME), "value": [1.5] * 400}
        write_deltalake(tmp_path / "bronze", pa.table(columns))
        output = windrow("init", "--from", "bronze", "--engine", "embedded").out
        content = (tmp_path / "windrow.toml").read_text()
        assert content in output
        assert 'key = "device"' in content
        assert 'window_anchor = "aligned"' in content
        assert "# by its name; 2 values" in content
        assert windrow("run").status == 0
        assert windrow("verify", "--strict").status == 0
        batches = windrow("show", "--json", "--limit", "100").json()
        assert {(row["key"], row["message_count"]) for row in batches} >= {("a", 10), ("b", 10)}

    def test_the_line_that_corrects_clocks(self, windrow: Command, tmp_path: Path) -> None:
        """
        The file has a comment below the event time; in its place, it puts each message into its window.
        """
        at = [message()["event_time"] + number // 4 * SECOND for number in range(400)]
        ahead = [86_400 * SECOND if number % 4 == 0 else 0 for number in range(400)]
        measured = [time + lead for time, lead in zip(at, ahead, strict=True)]
        arrived = [time + 700_000 for time in at]
        columns = {"device": list("abcd") * 100, "ts": pa.array(measured).cast(TIME), "value": [1.5] * 400}
        write_deltalake(tmp_path / "bronze", pa.table(columns | {"ingested_at": pa.array(arrived).cast(TIME)}))
        windrow("init", "--from", "bronze", "--engine", "embedded")
        lines = (tmp_path / "windrow.toml").read_text().splitlines()
        [event_time] = [line for line in lines if line.startswith("event_time")]
        [correction] = [line for line in lines if line.startswith("# event_time")]
        assert lines.index(correction) == lines.index(event_time) + 1
        lines.remove(event_time)
        content = "\n".join(lines).replace(correction, correction.removeprefix("# "))
        (tmp_path / "windrow.toml").write_text(content)
        assert windrow("run").status == 0
        assert windrow("tick", "--all").status == 0
        batches = windrow("show", "--json", "--limit", "100").json()
        counts = {key: sorted(row["message_count"] for row in batches if row["key"] == key) for key in "abcd"}
        assert counts["a"] == counts["b"]
        assert sum(counts["a"]) == 100

    def test_refused(self, windrow: Command, tmp_path: Path) -> None:
        """
        A file that is there is not replaced; flags that contradict are refused, and so are tables that are missing or
        no depots. Nothing is left of such an attempt.
        """
        assert "goes with neither" in windrow("init", "--from", "bronze", "--raw").err
        assert "bronze" in windrow("init", "--from", "bronze", "--engine", "embedded").err
        windrow("init", "--raw", "--depot", "raw", "--config", "raw.toml")
        chunk = pa.table([["file"], [1], [b"1,2"], [True], pa.array([message()["received_at"]]).cast(TIME)], chunks.RAW)
        write_deltalake(tmp_path / "raw", chunk, mode="append")
        assert "the depot is raw" in windrow("init", "--from", "raw", "--engine", "embedded").err
        assert not (tmp_path / "windrow.toml").exists()
        (tmp_path / "windrow.toml").write_text("")
        assert "windrow.toml exists already" in windrow("init", "--from", "bronze").err
