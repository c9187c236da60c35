"""What commands say when something is not there, and the options that they name."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from tests.cli.conftest import Command
from windrow.cli import app

LIB = Path(__file__).parents[2] / "lib" / "windrow"
NAMED = re.compile(r"`windrow ([a-z]+)((?: (?!windrow )[^`\n]*?)?)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


def options(command: str) -> set[str]:
    group = typer.main.get_command(app)
    chosen = group.commands[command]  # type: ignore[attr-defined]
    every = [chosen, *getattr(chosen, "commands", {}).values()]
    return {name for each in every for parameter in each.params for name in parameter.opts} | {"--help"}


def test_commands_and_options_exist() -> None:
    """Every command, and every option of it, that a text of the library names in back quotes exists."""
    named = {
        (command, option)
        for file in LIB.rglob("*.py")
        for command, rest in NAMED.findall(file.read_text(encoding="utf-8"))
        for option in [None, *OPTION.findall(rest)]
    }
    known = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    assert {command for command, _ in named} <= known.keys()
    assert {(command, option) for command, option in named if option and option not in options(command)} == set()
    everywhere = {option for command in known for option in options(command)}
    texts = "\n".join(file.read_text(encoding="utf-8") for file in LIB.rglob("*.py"))
    others = {"--conf", "--jars", "--group", "--topic", "--execute", "--reset-offsets", "--to-earliest", "--version"}
    assert set(OPTION.findall(texts)) - everywhere - others == set()


def test_one_example(windrow: Command) -> None:
    """The help of each command says once that an example follows."""
    for name in typer.main.get_command(app).commands:  # type: ignore[attr-defined]
        assert "Example: Example" not in windrow(name, "--help").out


def test_nothing_read(windrow: Command) -> None:
    """Where nothing is read yet, that is said instead of version -1."""
    assert windrow("init").status == 0
    for command in ("status", "doctor"):
        output = windrow(command).out
        assert re.search("nothing (is read )?yet", " ".join(output.split()))
        assert "up to -1" not in output


def test_span(filled: Command) -> None:
    """A length of time is told in the same way everywhere, not as a setting is written."""
    [batch, *_] = filled("show", "--open", "--json").json()
    output = " ".join(filled("show", batch["id"]).out.split())
    assert re.search(r"the clock of its source stands at \S+, which is \d[^m]* s before", output), output


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("run", "--depot", "afile"), "afile is a file, not a table"),
        (("init", "--config", "csv.toml"), "[format] is for a raw depot"),
    ],
)
def test_refused(windrow: Command, tmp_path: Path, command: tuple[str, ...], says: str) -> None:
    """What cannot be a table, or not of this kind, is refused by name before anything is made."""
    (tmp_path / "afile").touch()
    (tmp_path / "csv.toml").write_text("[format]\ntype = 'csv'\n[format.fields]\na = 'string'\n")
    assert says in windrow(*command).err
    assert not (tmp_path / "data").exists()


def test_lock_that_cannot_be(windrow: Command) -> None:
    """A ledger where no lock can be is refused at once, not after the time for which a lock is waited for."""
    code = "import sys; from windrow.cli import main; sys.exit(main(['init', '--ledger', '/proc/x']))"
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert completed.returncode == 3
    assert "WINDROW-TABLE-UNWRITABLE" in completed.stderr


@pytest.mark.parametrize("command", [["tick"], ["tick", "--all"]])
def test_no_spark_for_nothing(windrow: Command, monkeypatch: pytest.MonkeyPatch, command: list[str]) -> None:
    """Without a depot, tick and flush say so before they start Spark, which here could not start."""
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    result = windrow(*command, "--engine", "spark", "--depot", "nowhere")
    assert "WINDROW-TABLE-MISSING" in result.err


def test_waiting_is_no_error(windrow: Command) -> None:
    """A scheduled run that waits for its depot says so, and logs no error."""
    result = windrow("run", "--allow-missing-depot")
    assert result.status == 0
    assert "Nothing to do yet: there is no depot" in result.out
    assert "error" not in result.err
