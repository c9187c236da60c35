from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command
from windrow.cli.shared_options import CommandContext
from windrow.verify.invariants import INVARIANTS


@pytest.fixture(params=["embedded", pytest.param("spark", marks=pytest.mark.slow)])
def engine(request: pytest.FixtureRequest) -> Any:
    """The engine to check with; of Spark the session of the tests is taken."""
    if request.param == "spark":
        request.getfixturevalue("spark")
    return request.param


class TestCheck:
    def test_warnings_end_with_0(self, filled: Command, engine: str) -> None:
        """A sound ledger ends with 0 although a warning fails, of which the rows are shown."""
        result = filled("quality", "--engine", engine)
        assert result.status == 0, result.err
        assert "books_balance" in result.out
        assert "warning  rejected_share: The share of rejected messages" in result.out
        assert "rejected=1  messages_read=5  share=0.2" in result.out
        assert "checked 2 closed batches, 1 open batch, 1 rejected message, 1 microbatch" in result.out
        assert "expectations, 0 critical, 1 warning, 0 info failed" in result.out

    def test_fail_on(self, filled: Command, engine: str, tmp_path: Path) -> None:
        """With --fail-on warning the same ledger ends with 1; --json says where the Data Docs are."""
        options = ("--fail-on", "warning", "--max-rejected", "0.1", "--data-docs", "site", "--json")
        result = filled("quality", "--engine", engine, *options)
        document = result.json()
        assert (result.status, document["ok"], document["failed_by_severity"]["warning"]) == (1, True, 1)
        assert document["docs"] == str(tmp_path / "site" / "index.html")
        assert (tmp_path / "site" / "index.html").is_file()

    def test_critical_ends_with_1(self, filled: Command, engine: str, tmp_path: Path) -> None:
        """A batch that disappeared from the ledger ends with 1, and the books are shown."""
        DeltaTable(tmp_path / "data" / "ledger").delete("state = 'closed'")
        result = filled("quality", "--engine", engine)
        assert result.status == 1
        assert "critical  closed_batches_there:" in result.out
        assert "nothing to check: no closed batch" in result.out


class TestWithoutSpark:
    @pytest.mark.parametrize(("engine", "starts"), [("auto", False), ("embedded", False), ("spark", True)])
    def test_no_session(self, filled: Command, monkeypatch: pytest.MonkeyPatch, engine: str, starts: bool) -> None:
        """A ledger on this disk is checked without Spark, unless Spark is asked for."""
        sessions: list[str] = []
        monkeypatch.setattr("windrow.cli.quality._session", sessions.append)
        assert filled("quality", "--engine", engine).status == 0
        assert bool(sessions) == starts

    def test_on_a_platform(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a platform provides Spark, only Spark knows what a path without a scheme means, so Spark checks."""
        sessions: list[str] = []
        monkeypatch.setattr("windrow.cli.quality._session", sessions.append)
        monkeypatch.setenv("SPARK_REMOTE", "local[2]")
        assert filled("quality", "--engine", "auto").status == 0
        assert sessions
        assert CommandContext(None, {"engine": "auto"}, json=False).sparkless_settings().engine == "auto"

    def test_missing(self, windrow: Command) -> None:
        """Where there is no ledger the error says so."""
        result = windrow("quality", "--engine", "auto", "--ledger", "nowhere")
        assert (result.status, "WINDROW-TABLE-MISSING" in result.err) == (3, True), result.err

    def test_sql(self, windrow: Command, tmp_path: Path) -> None:
        """With --sql each invariant is printed as a statement over this ledger."""
        result = windrow("quality", "--sql", "--ledger", "some/ledger")
        assert result.status == 0
        assert result.out.count(";\n") == len(INVARIANTS)
        assert f"FROM delta.`{tmp_path}/some/ledger` WHERE state = 'rejected'" in result.out
        assert "{" not in result.out

    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            (("--max-rejected", "5"), "--max-rejected 5 must be between 0 and 1"),
            (("--fail-on", "sometimes"), "WINDROW-USAGE"),
        ],
    )
    def test_mistakes(self, windrow: Command, arguments: tuple[str, ...], says: str) -> None:
        """What cannot be checked is wrong usage, said in words."""
        result = windrow("quality", *arguments)
        assert (result.status, says in result.err) == (2, True), result.err

    def test_missing_extra(self, filled: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without Great Expectations the error names the extra."""
        original_import = builtins.__import__

        def without(name: str, *arguments: Any) -> Any:
            if name.startswith("great_expectations"):
                raise ImportError(name)
            return original_import(name, *arguments)

        monkeypatch.setattr(builtins, "__import__", without)
        result = filled("quality", "--engine", "embedded")
        assert (result.status, "windrow-delta[quality]" in result.err) == (2, True), result.err
