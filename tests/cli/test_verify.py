from pathlib import Path

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
