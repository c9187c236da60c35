from pathlib import Path

from deltalake import DeltaTable

from tests.cli.conftest import Command, publish
from tests.messages import message


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
        assert (document["written"], document["depot"]) == (False, "in")
        assert (tmp_path / "windrow.toml").read_text() == content
        assert (DeltaTable(tmp_path / "in").version(), DeltaTable(tmp_path / "out").version()) == (0, 0)

    def test_binary_payload(self, windrow: Command, tmp_path: Path) -> None:
        """
        The payload's type is chosen when the depot is made, and the ledger follows.
        """
        windrow("init", "--payload", "binary")
        for table in ("data/depot", "data/ledger"):
            kinds = {field.name: str(field.type) for field in DeltaTable(tmp_path / table).schema().fields}
            assert "binary" in kinds["payload"]

    def test_wrong_payload(self, windrow: Command) -> None:
        """
        A type that is none is wrong usage.
        """
        assert windrow("init", "--payload", "xml").status == 2


class TestIngest:
    def test_says_what_became_of_each_file(self, windrow: Command, tmp_path: Path) -> None:
        """
        Ingest says how many messages came in and where, and that a file is known.
        """
        publish(tmp_path, message("a"), message("b"))
        assert "messages.parquet: 2 messages in depot version 1." in windrow("ingest", "messages.parquet").out
        assert "nothing new" in windrow("ingest", "messages.parquet").out
        document = windrow("ingest", "messages.parquet", "--json").json()
        assert document["messages"] == 0
        assert document["files"][0]["known"]
