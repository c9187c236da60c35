import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.messages import SECOND, Row, message, table
from windrow.cli import main, options


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
    for console in (options.people, options.aside):
        monkeypatch.setattr(console, "width", 200)  # they may have been made where the terminal was another

    def run(*arguments: str) -> Said:
        capfd.readouterr()
        status = main(arguments)
        captured = capfd.readouterr()
        return Said(status, captured.out, captured.err)

    return run


@pytest.fixture
def filled(windrow: Command, tmp_path: Path) -> Command:
    """A depot and ledger with two closed batches, an open one and a rejected message of the past."""
    publish(
        tmp_path,
        message("a", 100 * SECOND, 100 * SECOND, payload="1"),
        message("b", 101 * SECOND, 101 * SECOND),
        message("a", 130 * SECOND, 130 * SECOND),
        message("a", 120 * SECOND, 131 * SECOND, payload="late"),
        message("a", 160 * SECOND, 160 * SECOND),
    )
    assert windrow("ingest", "messages.parquet", "--json").status == 0
    (tmp_path / "windrow.toml").write_text('idle_timeout = "never"\n')
    assert windrow("run", "--json").status == 0
    return windrow


def publish(directory: Path, *messages: Row) -> None:
    """Write a parquet file of messages."""
    pq.write_table(table(messages), directory / "messages.parquet")
