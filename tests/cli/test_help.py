import re
from inspect import signature

import pytest
import typer

from tests.cli.conftest import Command
from windrow.cli import COMMANDS, app, shared_options

ONE_LINE = re.compile(r"^│ ([a-z]+) +\S.*│$", re.MULTILINE)


def test_groups(windrow: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Help lists every command under the heading of its group, in one line each of a terminal with 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 80)
    panels = re.split(r"╭─ (.+?) ─+╮\n", windrow("--help").out)[1:]
    listed = {heading: panel.split("╰")[0] for heading, panel in zip(panels[::2], panels[1::2], strict=True)}
    assert list(listed) == ["Options", *COMMANDS]
    for heading, commands in COMMANDS.items():
        names = [command.function.__name__ for command in commands]
        assert ONE_LINE.findall(listed[heading]) == names
        assert len(listed[heading].splitlines()) == len(names), listed[heading]


@pytest.mark.parametrize("name", [*typer.main.get_command(app).commands])  # type: ignore[attr-defined]
def test_every_command_has_help_with_an_example(windrow: Command, name: str) -> None:
    """Each command's help ends with an example, and has --json and --debug."""
    result = windrow(name, "--help")
    assert result.status == 0
    assert f"Example: windrow {name}" in result.out
    assert "--json" in result.out
    assert "--debug" in result.out


@pytest.mark.parametrize(("name", "shown"), [("ingest", "[format]"), ("bridge", "[mqtt]"), ("ingest", "*.parquet")])
def test_help_shows_brackets_and_stars(windrow: Command, name: str, shown: str) -> None:
    """The name of a section and a pattern of files are shown as they are written, not taken for markup."""
    assert shown in windrow(name, "--help").out


def test_shared_options() -> None:
    """A command gets its shared options as one object: settings that were given, and the mode of output."""
    calls = []

    @shared_options.command("config depot ledger log_format log_level", example="windrow try")
    def attempt(call: shared_options.CommandContext, limit: int = 3) -> None:
        calls.append((call, limit))

    names = ["limit", "config", "depot", "ledger", "log_format", "log_level", "json", "debug"]
    assert list(signature(attempt.function).parameters) == names
    values = dict.fromkeys(names) | {"limit": 7, "ledger": "l", "log_level": "debug", "json": True, "debug": False}
    attempt.function(**values)
    assert calls == [(shared_options.CommandContext(None, {"ledger": "l", "log": {"level": "debug"}}, json=True), 7)]
