from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command


class TestVerify:
    def test_books_balance(self, filled: Command) -> None:
        """
        A sound ledger verifies with exit status 0, at every version asked for.
        """
        said = filled("verify", "--at", "0", "--at", "1")
        assert said.status == 0
        assert "5 messages read = 1 in open batches + 3 in closed batches + 1 rejected" in said.out
        assert "5 ok, 0 lost, 0 duplicated, 0 unexpected" in said.out
        assert filled("verify", "--json").json()["ok"] is True

    def test_derived_again(self, filled: Command) -> None:
        """
        It says how much was derived again; within a bound what is left is said, and --all leaves nothing.
        """
        said = filled("verify", "--most", "0")
        assert said.status == 0
        assert "derived again: 5 decisions, the batches of 0 of" in said.out
        assert said.out.splitlines()[-1] == "not checked: what is named above; in the rest no difference"
        assert filled("verify", "--most", "0", "--strict").status == 1
        assert filled("verify", "--all", "--strict").status == 0
        (books,) = filled("verify", "--all", "--json").json()["books"]
        assert (books["decided"], books["derived_streams"]) == (5, books["streams"])

    def test_a_difference_ends_with_1(self, filled: Command, tmp_path: Path) -> None:
        """
        A message that disappeared from the ledger is a difference, named as lost.
        """
        DeltaTable(tmp_path / "data" / "ledger").delete("state = 'rejected'")
        said = filled("verify")
        assert said.status == 1
        assert "1 lost" in said.out
        assert filled("verify", "--json").json()["ok"] is False


@pytest.mark.parametrize(("rows", "status"), [(0, 0), (1, 1)])
def test_file_that_was_not_committed(filled: Command, tmp_path: Path, rows: int, status: int) -> None:
    """
    A new file of the depot that no commit names is a finding of --strict if it holds rows, and none if it is empty.
    """
    pq.write_table(pq.read_table(tmp_path / "messages.parquet").slice(0, rows), tmp_path / "data/depot/part-0.parquet")
    assert filled("verify", "--strict").status == status
