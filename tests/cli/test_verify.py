import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command


class TestVerify:
    def test_books_balance(self, filled: Command) -> None:
        """A sound ledger verifies with exit status 0, at every version asked for."""
        result = filled("verify", "--ledger-version", "0", "--ledger-version", "1")
        assert result.status == 0
        assert "5 messages read = 1 in open batches + 3 in closed batches + 1 rejected" in result.out
        assert "5 ok, 0 lost, 0 duplicated, 0 unexpected" in result.out
        assert filled("verify", "--json").json()["ok"] is True

    def test_derived_again(self, filled: Command) -> None:
        """It says how much was derived again; within a bound what is left is said, and --all leaves nothing."""
        result = filled("verify", "--max-messages", "0")
        assert result.status == 0
        assert "derived again: 5 decisions, the batches of 0 of" in result.out
        assert result.out.splitlines()[-1] == "not checked: see above; no difference in the rest"
        assert filled("verify", "--max-messages", "0", "--strict").status == 1
        assert filled("verify", "--all", "--strict").status == 0
        (books,) = filled("verify", "--all", "--json").json()["books"]
        assert (books["redecided"], books["derived_stream_count"]) == (5, books["stream_count"])

    def test_a_difference_ends_with_1(self, filled: Command, tmp_path: Path) -> None:
        """A message that disappeared from the ledger is a difference, named as lost."""
        DeltaTable(tmp_path / "data" / "ledger").delete("state = 'rejected'")
        result = filled("verify")
        assert result.status == 1
        assert "1 lost" in result.out
        assert filled("verify", "--json").json()["ok"] is False


@pytest.mark.parametrize(("rows", "status"), [(0, 0), (1, 1)])
def test_file_that_was_not_committed(filled: Command, tmp_path: Path, rows: int, status: int) -> None:
    """A new file of the depot that no commit names is a finding of --strict if it holds rows."""
    pq.write_table(pq.read_table(tmp_path / "messages.parquet").slice(0, rows), tmp_path / "data/depot/part-0.parquet")
    assert filled("verify", "--strict").status == status


class TestSince:
    def test_record(self, filled: Command, tmp_path: Path) -> None:
        """With a record each verification says on what it relies; without the setting nothing is written."""
        before = {*tmp_path.iterdir()}
        assert filled("verify", "--strict").status == 0
        assert {*tmp_path.iterdir()} == before
        with (tmp_path / "windrow.toml").open("a") as settings:
            settings.write('[verify]\nrecord = "verified.json"\n')
        result = filled("verify")
        assert result.out.splitlines()[-1].startswith("recorded in verified.json")
        assert "relies on" not in result.out
        result = filled("verify")
        assert "relies on ledger version 1, verified on 20" in result.out.splitlines()[0]
        assert "microbatches up to 1, depot up to version 1; open then: 1 message in 1 batch" in result.out
        assert "1 message open then or read since = 1 in open batches" in result.out
        assert filled("verify", "--ledger-version", "1", "--json").json()["since"] is None
        assert filled("verify", "--since", "0", "--json").json()["since"] is None
        assert filled("verify", "--json").json()["since"]["ledger_version"] == 1

    def test_torn_record(self, filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A torn record is said, and replaced after everything was verified; with --since it is an error."""
        monkeypatch.setenv("WINDROW_VERIFY__RECORD", "verified.json")
        (tmp_path / "verified.json").write_text("{")
        result = filled("verify", "--since", "1")
        assert (
            result.status,
            "WINDROW-NOT-FOUND" in result.err,
            "not a complete verification record" in result.err,
        ) == (2, True, True)
        result = filled("verify")
        assert (result.status, "nothing to rely on: verified.json is not a complete" in result.out) == (0, True)
        assert "relies on" in filled("verify").out

    def test_no_directory(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """A record that cannot be written is an error after the report."""
        monkeypatch.setenv("WINDROW_VERIFY__RECORD", "nowhere/verified.json")
        result = filled("verify")
        assert (result.status, "no difference" in result.out, "WINDROW-OUTPUT" in result.err) == (2, True, True)

    @pytest.mark.parametrize("arguments", [["words:topology"], ["--ledger-version", "1"]])
    def test_does_not_go_with(self, filled: Command, arguments: list[str]) -> None:
        """--since is refused beside --at and for a topology."""
        assert filled("verify", *arguments, "--since", "1").status == 2


STOPPED = """
import os, signal, sys
from windrow.cli import main
from windrow.verify import version_check
decide = version_check.decide_part

def stop(*arguments):
    decided = decide(*arguments)
    if decided.placed >= int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGINT)
    return decided

version_check.decide_part = stop
sys.exit(main(["verify", *sys.argv[2:]]))
"""


def test_ctrl_c(filled: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C says which parts and streams are done and what is left, and leaves nothing behind."""
    (tmp_path / "temporary").mkdir()
    environment = os.environ | {"TMPDIR": str(tmp_path / "temporary"), "WINDROW_VERIFY__RECORD": "verified.json"}
    for options in ([], ["--json"]):
        command = [sys.executable, "-c", STOPPED, "1", *options]
        result = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert result.returncode == 3, result.stderr
        if options:
            document = json.loads(result.stdout)
            assert (document["ledger_version"], document["parts_done"], document["part_count"]) == (1, 0, 1)
            assert (document["proven_stream_count"], document["stream_count"], document["message_count"]) == (0, 1, 4)
        else:
            assert (
                "stopped while verifying ledger version 1: 0 of 1 part done, 1 part left; 0 of 1 stream"
                in result.stdout
            )
        assert list((tmp_path / "temporary").iterdir()) == []
        assert not (tmp_path / "verified.json").exists()
