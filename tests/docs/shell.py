"""The lines of a `console` block: one command each, with what it prints if the block shows prompts (`$ `).

`windrow` runs; one that goes on forever (`--interval`, `--watch`, `ui`) until it has said something. `python` runs a
file of the page or of the repository. Targets of `make`, extras of `pip install` and scripts of `spark-submit` are
looked up. Anything else, and what needs a shell (`|`, `>`, `&&`), is refused: it belongs into an `sh` block, or needs a
reason not to be run.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.cli.conftest import Command, Said
from tests.docs.pages import ROOT

WINDROW = (sys.executable, "-c", "import sys; from windrow.cli import main; sys.exit(main())")
# The commands of this Python, installed or not.
HERE = f"""
python() {{ '{sys.executable}' "$@"; }}
windrow() {{ python -c 'import sys; from windrow.cli import main; sys.exit(main())' "$@"; }}
"""
FOR_A_SHELL = {"|", ">", ">>", "<", "&&", "||", ";", "&", "2>"}
FOREVER = {"--interval": signal.SIGTERM, "--watch": signal.SIGINT, "ui": signal.SIGTERM}
VARIABLE = re.compile(r"([A-Z][A-Z0-9_]*)=(.*)")
WITH_EXTRAS = re.compile(r"(\.|[\w-]+)\[([\w,]+)\]")
DONE = Said(0, "", "")


@dataclass(frozen=True, slots=True)
class Line:
    """A command, and the lines of its output that the page shows."""

    command: str
    shown: tuple[str, ...]


def lines(text: str) -> Iterator[Line]:
    """Return the commands of a block; where prompts are, what has none is output."""
    joined = re.sub(r"\\\n *", "", text).splitlines()
    if not any(line.startswith("$ ") for line in joined):
        yield from (Line(line, ()) for line in joined if line.strip() and not line.startswith("#"))
        return
    starts = [at for at, line in enumerate(joined) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(joined)], strict=True):
        yield Line(joined[start][2:], tuple(joined[start + 1 : end]))


def run(command: str, windrow: Command) -> Said:
    """Run a line; return what it said."""
    words = shlex.split(command, comments=True)
    assert not FOR_A_SHELL.intersection(words), f"{command}: what needs a shell stands in an sh block"
    with pytest.MonkeyPatch.context() as environment:
        while assignment := VARIABLE.fullmatch(words[0]):
            environment.setenv(assignment[1], assignment[2])
            words = words[1:]
        name, *arguments = [expanded for word in words for expanded in _expanded(word)]
        return _run(Path(name).name, arguments, command, windrow)


def script(text: str) -> Said:
    """Run an `sh` block with bash, which stops at the first failure."""
    completed = subprocess.run(["bash", "-euc", HERE + text], capture_output=True, text=True, check=False)
    return Said(completed.returncode, completed.stdout, completed.stderr)


def _run(name: str, arguments: list[str], command: str, windrow: Command) -> Said:
    if name == "windrow":
        if arguments[:1] == ["demo"] and "--engine" not in arguments:
            arguments += ["--engine", "embedded"]
        ends = next((number for flag, number in FOREVER.items() if flag in arguments[::-1]), None)
        return windrow(*arguments) if ends is None else _until_it_speaks(arguments, ends)
    if name == "python":
        resolved = [
            str(ROOT / word) if not Path(word).exists() and (ROOT / word).exists() else word for word in arguments
        ]
        completed = subprocess.run([sys.executable, *resolved], capture_output=True, text=True, check=False)
        return Said(completed.returncode, completed.stdout, completed.stderr)
    look_up = {"make": _targets, "pip": _extras, "spark-submit": _scripts}.get(name)
    assert look_up is not None, (
        f"{command}: nobody knows how to run {name!r}; say <!-- not run: why --> above the block"
    )
    look_up(arguments)
    return DONE


def _expanded(word: str) -> list[str]:
    return sorted(map(str, Path().glob(word))) or [word] if "*" in word else [word]


def _until_it_speaks(arguments: list[str], ends: signal.Signals) -> Said:
    """Run a command that goes on forever, in a process of its own, until it has printed a line."""
    with TemporaryDirectory() as directory:
        out, err = Path(directory, "out"), Path(directory, "err")
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen([*WINDROW, *arguments], stdout=stdout, stderr=stderr)
        speaks = out if "--watch" in arguments or arguments[0] == "ui" else err
        while process.poll() is None and "\n" not in speaks.read_text(encoding="utf-8"):
            time.sleep(0.05)
        process.send_signal(ends)
        return Said(process.wait(timeout=60), out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def _targets(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in (word for word in arguments if "=" not in word):
        assert f"\n{target}:" in makefile, f"there is no make {target}"


def _extras(arguments: list[str]) -> None:
    """Raise for extras, or a name with extras, that are not those of this project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for name, extras in (match.groups() for match in map(WITH_EXTRAS.match, arguments) if match):
        assert name in (project["name"], "."), f"the distribution is called {project['name']}, not {name}"
        unknown = set(extras.split(",")) - set(project["optional-dependencies"])
        assert not unknown, f"there are no extras {unknown}"


def _scripts(arguments: list[str]) -> None:
    named = [word for word in arguments if word.endswith(".py")]
    assert named, "spark-submit names no script"
    missing = [word for word in named if not (Path(word).exists() or (ROOT / word).exists())]
    assert not missing, f"there is no {missing} in {Path.cwd()} or {ROOT}"
