import io
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from rich.console import Console

from tests.cli.conftest import Command, publish
from tests.messages import message
from windrow.cli import progress
from windrow.model.payload import of_column, parse


class TestIngest:
    def test_says_what_became_of_each_file(self, windrow: Command, tmp_path: Path) -> None:
        """Ingest says how many messages came in and where, and that a file is known."""
        publish(tmp_path, message("a"), message("b"))
        assert "messages.parquet: 2 messages in depot version 1." in windrow("ingest", "messages.parquet").out
        assert "nothing new" in windrow("ingest", "messages.parquet").out
        document = windrow("ingest", "messages.parquet", "--json").json()
        assert document["message_count"] == 0
        assert document["files"][0]["already_ingested"]

    def test_typed_payloads(self, windrow: Command, tmp_path: Path) -> None:
        """With a type set, the depot that ingest creates has payloads of it, and so has the ledger."""
        kind = "STRUCT<celsius: DOUBLE, unit: STRING>"
        columns = '[ingest.columns]\nkey = "key"\npayload = "struct(unit, celsius)"\n'
        (tmp_path / "windrow.toml").write_text(f'payload_type = "{kind}"\nengine = "embedded"\n{columns}')
        messages = pa.Table.from_pylist([message(), message("b")]).drop_columns(["payload"])
        messages = messages.append_column("celsius", pa.array([1, None])).append_column("unit", pa.array(["C", "K"]))
        times = {name: messages[name].cast(pa.timestamp("us", "UTC")) for name in ("event_time", "received_at")}
        pq.write_table(pa.table({name: messages[name] for name in messages.column_names} | times), "messages.parquet")
        assert windrow("ingest", "messages.parquet").status == 0
        assert windrow("run", "--once").status == 0
        for table in ("data/depot", "data/ledger"):
            assert of_column(pa.schema(DeltaTable(table).schema().to_arrow())) == parse(kind)
        [row] = windrow("show", "--open", "--json").json() or windrow("show", "--closed", "--json").json()
        assert [message["payload"] for message in row["messages"]] == [
            {"celsius": 1.0, "unit": "C"}, {"celsius": None, "unit": "K"},
        ]  # fmt: skip
        assert windrow("verify").status == 0
        assert "the columns of messages" in windrow("doctor").out
        (tmp_path / "windrow.toml").write_text('payload_type = "DOUBLE"\nengine = "embedded"\n')
        assert "payload_type is DOUBLE, but the depot has payloads of type STRUCT" in windrow("doctor").out
        assert windrow("run", "--once").status == 2


class TestRawFiles:
    @pytest.mark.parametrize("format_", ["csv", "json", "native", "lines", "length-prefixed"])
    def test_says_what_became_of_each_file(self, windrow: Command, tmp_path: Path, format_: str) -> None:
        """Ingest says how many bytes and chunks came in and where, and that a file is known, for each raw format."""
        (tmp_path / "a").write_bytes(b"1,2\n" * 300_000)
        (tmp_path / "[b]").write_bytes(b"")
        result = windrow("ingest", "a", "[b]", "--format", format_)
        assert result.out.splitlines() == [
            "a: 1,200,000 bytes as 2 chunks in depot version 1.",
            "[b]: 0 bytes as 1 chunk in depot version 2.",
        ]
        assert windrow("ingest", "a", "--format", format_).out == "a: nothing new; the depot already has it.\n"

    def test_json(self, windrow: Command, tmp_path: Path) -> None:
        """With --json the same is one document."""
        (tmp_path / "a").write_bytes(b"1,2\n")
        windrow("ingest", "a", "--format", "csv")
        (tmp_path / "b").write_bytes(b"3,4\n5,6\n")
        document = windrow("ingest", "a", "b", "--format", "csv", "--json").json()
        assert (document["byte_count"], document["chunk_count"]) == (8, 1)
        names = ("file", "raw_source", "byte_count", "chunk_count", "depot_version", "already_ingested")
        assert [tuple(file[name] for name in names) for file in document["files"]] == [
            ("a", "a", 0, 0, 1, True),
            ("b", "b", 8, 1, 2, False),
        ]

    def test_standard_input(self, windrow: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Standard input needs a name, and a name is for one file."""
        (tmp_path / "a").write_bytes(b"1,2\n")
        with (tmp_path / "a").open() as stream:
            monkeypatch.setattr("sys.stdin", stream)
            assert "--raw-source NAME" in windrow("ingest", "-", "--format", "csv").err
            assert windrow("ingest", "-", "--format", "csv", "--raw-source", "pump").status == 0
        [row] = DeltaTable(tmp_path / "data/depot").to_pyarrow_table().to_pylist()
        assert (row["raw_source"], row["bytes"]) == ("pump", b"1,2\n")
        assert windrow("ingest", "a", "a", "--format", "csv", "--raw-source", "pump").status == 2

    def test_refused(self, windrow: Command, tmp_path: Path) -> None:
        """Raw depots take raw files, others messages; an unknown format is told which are known."""
        (tmp_path / "a").write_bytes(b"1,2\n")
        publish(tmp_path, message("a"))
        assert windrow("ingest", "messages.parquet", "--depot", "messages").status == 0
        result = windrow("ingest", "a", "--format", "csv", "--depot", "messages")
        assert (result.status, "does not hold raw chunks" in result.err) == (3, True)
        assert windrow("ingest", "a", "--format", "csv").status == 0
        result = windrow("ingest", "messages.parquet")
        assert (result.status, "holds raw chunks, not messages" in result.err) == (3, True)
        assert windrow("ingest", "messages.parquet", "--raw-source", "a").status == 2
        assert "length-prefixed" in windrow("ingest", "a", "--format", "xml").err
        (tmp_path / "a").write_bytes(b"1,2\n3,4\n")
        result = windrow("ingest", "a", "--format", "csv")
        assert (result.status, "has grown or was replaced" in result.err) == (2, True)

    def test_catalog_table(self, windrow: Command, tmp_path: Path) -> None:
        """A table by name is found where it was written down, without Spark; without that, the error says who does."""
        (tmp_path / "a").write_bytes(b"1,2\n")
        result = windrow("ingest", "a", "--format", "csv", "--depot", "main.raw")
        assert (result.status, "windrow init" in result.err) == (3, True)
        (tmp_path / ".windrow").mkdir()
        (tmp_path / ".windrow" / "paths.json").write_text(json.dumps({"main.raw": str(tmp_path / "there")}))
        assert windrow("ingest", "a", "--format", "csv", "--depot", "main.raw").status == 0
        assert DeltaTable(tmp_path / "there").version() == 1

    def test_progress(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A terminal sees how many bytes were read, and of how many."""
        screen = Console(file=io.StringIO(), force_terminal=True, width=120)
        monkeypatch.setattr(progress, "stderr_console", screen)
        with progress.byte_count("ingest", quiet=False) as show:
            show(500_000, 2_000_000)
        assert "0.5/2.0 MB" in screen.file.getvalue()
