import json
import shutil
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.messages import SECOND, Row, message, table
from windrow.cli import main, terminal


@dataclass(frozen=True)
class Said:
    """What a command printed, and its exit status."""

    status: int
    out: str
    err: str

    def json(self) -> Any:
        """Return the document on standard output, of which there must be exactly one."""
        assert self.out, f"exit status {self.status}: {self.err[-4000:]}"
        return json.loads(self.out)


Command = Callable[..., Said]


@pytest.fixture
def windrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run a command of the embedded engine in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDROW_ENGINE", "embedded")
    monkeypatch.setenv("COLUMNS", "200")
    for console in (terminal.stdout_console, terminal.stderr_console):
        monkeypatch.setattr(console, "width", 200)  # they may have been made where the terminal was another

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        status = main(arguments)
        captured = capfd.readouterr()
        return Said(status, captured.out, captured.err)

    return run


@pytest.fixture
def filled(windrow: Command, tmp_path: Path, batched: Path) -> Command:
    """A depot and ledger with two closed batches, an open one and a rejected message of the past."""
    shutil.copytree(batched, tmp_path, dirs_exist_ok=True)
    return windrow


@pytest.fixture(scope="session")
def batched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of which each test takes a copy: two batches closed, one open, one message rejected."""
    directory = tmp_path_factory.mktemp("batched")
    publish(
        directory,
        message("a", 100 * SECOND, 100 * SECOND, payload="1"),
        message("b", 101 * SECOND, 101 * SECOND),
        message("a", 130 * SECOND, 130 * SECOND),
        message("a", 120 * SECOND, 131 * SECOND, payload="late"),
        message("a", 160 * SECOND, 160 * SECOND),
    )
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()):
        patch.chdir(directory)
        patch.setenv("WINDROW_ENGINE", "embedded")
        assert main(["ingest", "messages.parquet", "--json"]) == 0
        (directory / "windrow.toml").write_text('idle_timeout = "never"\n')
        assert main(["run", "--json"]) == 0
    return directory


def publish(directory: Path, *messages: Row) -> None:
    """Write a parquet file of messages."""
    pq.write_table(table(messages), directory / "messages.parquet")
