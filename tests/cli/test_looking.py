import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message


class TestStatus:
    def test_says_where_the_ledger_stands(self, filled: Command, tmp_path: Path) -> None:
        """
        Status names what was read, what is open and closed, what was rejected, and what would have kept it.
        """
        said = filled("status")
        assert said.status == 0
        assert "read    5 messages in 1 microbatch" in said.out
        assert "closed  2 batches with 3 messages" in said.out
        assert "batch//k/155000000/0" in said.out
        assert "nothing waits" in said.out
        assert "11.0 s would have kept every message" in said.out
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        assert "1 message in 1 version wait" in filled("status").out

    def test_json(self, filled: Command) -> None:
        """
        With --json the same stands in one document.
        """
        document = filled("status", "--json").json()
        assert document["totals"]["messages"] == 5
        assert [row["reason"] for row in document["rejected"]] == ["too_old"]
        assert document["needed_delay"]["needed_us"] == 11 * SECOND

    def test_starts_no_jvm_and_no_compiler(self, filled: Command, tmp_path: Path) -> None:
        """
        Status and show load neither Spark nor the kernel's compiler, so that they answer at once.
        """
        script = (
            "import sys; from windrow.cli import main; status = main(['status']) or main(['show', '--open']) "
            "or main(['show', '--key', 'k', '--type', 'a', '--at', '1970-01-01T00:01:40Z']); "
            "loaded = {'pyspark', 'numba', 'duckdb', 'pandas'} & set(sys.modules); "
            "sys.exit(f'loaded {loaded}' if loaded else status)"
        )
        done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def test_missing_ledger(self, windrow: Command) -> None:
        """
        Without a ledger status says which command makes one.
        """
        said = windrow("status")
        assert said.status == 3
        assert "WINDROW-TABLE-MISSING" in said.err
        assert "windrow init" in said.err


class TestShow:
    def test_batches_and_rejections(self, filled: Command) -> None:
        """
        Show lists closed and open batches, and rejected messages with the reason and how far they were off.
        """
        assert "2 messages" in filled("show", "--closed").out
        assert "open because the clock of its source is" in filled("show", "--open").out
        rejected = filled("show", "--rejected").out
        assert "too_old by 6.000 s" in rejected
        assert "late" in rejected

    def test_one_by_its_id(self, filled: Command) -> None:
        """
        An id, as any listing prints it, shows the one batch or message it names.
        """
        for state in ("--closed", "--open", "--rejected"):
            listed = filled("show", state, "--json").json()
            assert filled("show", listed[0]["id"], "--json").json() == listed[0]

    def test_key(self, filled: Command) -> None:
        """
        A key that has no batches gives an empty list, not an error.
        """
        assert filled("show", "--key", "k", "--json").json()
        said = filled("show", "--key", "nobody")
        assert (said.status, "Nothing like this" in said.out) == (0, True)

    def test_unknown_id(self, filled: Command) -> None:
        """
        An id that is not there is an error that says where to look.
        """
        said = filled("show", "batch//k/1/0")
        assert said.status == 2
        assert "WINDROW-NOT-FOUND" in said.err
        assert "nearest" in said.err


class TestMessage:
    def test_where_it_went(self, filled: Command) -> None:
        """
        For a message show says in which batch it is, or why it was rejected and what would have kept it.
        """
        said = filled("show", "--key", "k", "--type", "a", "--at", "1970-01-01T00:01:40Z")
        assert "1. closed" in said.out
        assert "in batch//k/95000000/0" in said.out
        assert "by microbatch 1" in said.out
        said = filled("show", "--key", "k", "--at", "1970-01-01T00:02:00")
        assert "too_old: max_delay was 5 s; it came 11 s after its time" in said.out
        assert 'max_delay = "11s" would have kept it' in said.out

    def test_json(self, filled: Command) -> None:
        """
        With --json the arrivals are a list.
        """
        [found] = filled("show", "--key", "k", "--at", "1970-01-01T00:02:00Z", "--json").json()
        assert (found["outcome"], found["rejection"]["reason"], found["payload"]) == ("rejected", "too_old", "late")

    def test_waiting(self, filled: Command, tmp_path: Path) -> None:
        """
        What no microbatch has read yet is said to wait.
        """
        publish(tmp_path, message("b", 161 * SECOND, 161 * SECOND))
        filled("ingest", "messages.parquet")
        asked = ("show", "--key", "k", "--at", "1970-01-01T00:02:41Z")
        assert "it waits in depot version 2" in filled(*asked).out
        filled("pause")
        assert "`windrow resume`, then `windrow run` reads it" in filled(*asked).out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--at", "1970-01-01"), "--at needs --key"),
            (("--key", "k", "--type", "a"), "--type goes with --at"),
            (("--key", "k", "--at", "now"), "--at 'now' is no time"),
            (("--key", "k", "--at", "1970-01-01", "--open"), "exclude each other"),
            (("batch//k/1/0", "--key", "k"), "an ID needs no --key"),
            (("--key", "k", "--at", "1970-01-01"), "the depot has no message of key 'k'"),
        ],
    )
    def test_mistakes(self, filled: Command, arguments: tuple[str, ...], says: str) -> None:
        """
        What cannot be looked up is wrong usage, said in words.
        """
        said = filled("show", *arguments)
        assert (said.status, says in said.err) == (2, True), said.err


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
