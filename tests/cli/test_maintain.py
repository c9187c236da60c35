from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command


class TestMaintain:
    def test_says_what_it_did(self, filled: Command) -> None:
        """The command says for each table what it did, or in a dry run would do; afterwards the ledger is verified."""
        for _ in range(2):
            filled("tick", "--all")
        would = filled("maintain", "--dry-run")
        assert would.status == 0, would.err
        result = filled("maintain")
        assert result.status == 0, result.err
        assert "files would be compacted" in would.out
        assert result.out.splitlines()[0].endswith("4 small files compacted into 2.")
        assert filled("maintain").out.count("nothing to do") == 2
        assert filled("verify").status == 0

    def test_json(self, filled: Command) -> None:
        """With --json one document has what was done to each table, or to the one that was asked for."""
        assert [table["table"] for table in filled("maintain", "--json").json()["tables"]] == ["ledger", "depot"]
        document = filled("maintain", "--table", "depot", "--dry-run", "--json").json()
        assert document["dry_run"]
        assert [table["table"] for table in document["tables"]] == ["depot"]

    def test_left_alone(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """What was left alone is said, with the reason."""
        monkeypatch.setenv("WINDROW_MAINTAIN__DEPOT", "never")
        assert "left alone, as [maintain] depot says" in filled("maintain", "--table", "depot").out

    @pytest.mark.ci
    def test_only_spark_can(self, spark: Any, filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where either engine may do it, Spark looks after a ledger with features that only it knows."""
        properties = "'delta.enableDeletionVectors' = 'true'"
        spark.sql(f"ALTER TABLE delta.`{tmp_path}/data/ledger` SET TBLPROPERTIES ({properties})")
        assert "has deletionVectors" in filled("maintain", "--table", "ledger").err
        monkeypatch.setenv("WINDROW_ENGINE", "auto")
        result = filled("maintain", "--table", "ledger")
        assert (result.status, result.err) == (0, "")
        assert "dropped" in result.out

    def test_wrong_table(self, filled: Command) -> None:
        """Another word than ledger or depot is wrong usage."""
        result = filled("maintain", "--table", "both")
        assert (result.status, "Use ledger or depot" in result.err) == (2, True)

    def test_no_tables(self, windrow: Command) -> None:
        """Without a ledger there is an error and no table is made."""
        result = windrow("maintain")
        assert (result.status, "WINDROW-TABLE-MISSING" in result.err) == (3, True)
