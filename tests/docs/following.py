"""Somebody who follows a page: does what its blocks say, one after the other, in one directory.

Paths below `/srv/data/` are meant to be the directory's `data/`, and so are those of Spark, whose JVM knows no working
directory. A name such as `main.silver.closed_batches` is the view of the ledger at `data/ledger`.
"""

from __future__ import annotations

import configparser
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.cli.conftest import Command, Said
from tests.docs import results, shell
from tests.docs.pages import Block, Table
from windrow.model import tables
from windrow.settings.settings import Settings

LEDGER = "data/ledger"
SETTINGS = set(Settings.model_fields)
VIEW = re.compile(rf"\b(?:\w+\.){{0,2}}({'|'.join(tables.views(''))})\b")
RELATIVE = re.compile(r"(?<=[\"'`])(?=(?:data|demo)/)")
END = re.compile(r"""("[^"]*"|'[^']*'|`[^`]*`|--[^\n]*)|;""")


class Following:
    """Follows one page. `spark` gives the session when a block asks for it; `found` has the results to compare."""

    def __init__(self, windrow: Command, capfd: pytest.CaptureFixture[str], spark: Callable[[], Any]) -> None:
        """Begin in the working directory."""
        self.found: list[tuple[Table, tuple[str, ...]]] = []
        self._windrow, self._capfd, self._spark = windrow, capfd, spark
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._printed, self._has_views = "", False
        self._here = str(Path.cwd())

    def follow(self, block: Block) -> None:
        """Do what a block says. Raises AssertionError, or what the block raises."""
        if not block.is_run:
            assert len(block.remarks["not run"].split()) > 1, f"{block.place}: say why it is not run"
            return
        run = RUNS.get(block.language)
        assert run is not None, f"{block.place}: no language, or one that nobody runs: {block.language!r}"
        text = block.text.replace("/srv/data/", f"{self._here}/data/")
        if "file" in block.remarks:
            file = Path(block.remarks["file"])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
            if block.language not in PARSED:
                return
        run(self, block, text)
        for remark in ("prints", "prints once"):
            require_printed(block.place, [block.remarks.get(remark, "")], self._printed)
        if "prints once" in block.remarks:
            run(self, block, text)
            assert not self._printed, f"{block.place}: run a second time it prints {self._printed}"

    def _console(self, block: Block, text: str) -> None:
        allowed = int(block.remarks.get("ends with", 0))
        commands = list(shell.lines(text))
        self._printed = ""
        for line in commands:
            result = shell.run(line.command, self._windrow)
            expected = allowed if line is commands[-1] else 0
            assert result.status == expected, (
                f"{block.place}: {line.command}: {result.status}\n{result.out}{result.err}"
            )
            require_printed(f"{block.place}: {line.command}", line.shown, result.out + result.err)
            self._printed += result.out + result.err

    def _script(self, block: Block, text: str) -> None:
        result = shell.script(text)
        self._printed = result.out + result.err
        assert result.status == int(block.remarks.get("ends with", 0)), (
            f"{block.place}: {result.status}\n{self._printed}"
        )

    def _python(self, block: Block, text: str) -> None:
        if block.needs_spark:
            self._names["spark"] = self._spark()
            text = RELATIVE.sub(f"{self._here}/", text)
        exec(compile(block.remarks.get("given", ""), block.place, "exec"), self._names)  # noqa: S102 - our own pages
        self._capfd.readouterr()
        exec(compile(text, block.place, "exec"), self._names)  # noqa: S102 - our own pages
        self._printed = "".join(self._capfd.readouterr())

    def _sql(self, block: Block, text: str) -> None:
        statements = split(RELATIVE.sub(f"{self._here}/", text))
        assert statements, f"{block.place}: there is no statement"
        for statement in statements:
            if VIEW.search(statement) and not self._has_views:
                self._make_views()
            result = self._spark().sql(VIEW.sub(r"\1", statement)).toArrow()
        if block.result is not None:
            self.found.append((block.result, results.shown(result, block.result.varying)))

    def _make_views(self) -> None:
        for name, query in tables.views(f"delta.`{self._here}/{LEDGER}`").items():
            self._spark().sql(f"CREATE OR REPLACE TEMP VIEW {name} AS {query}")
        self._has_views = True

    def _toml(self, block: Block, text: str) -> None:
        read = tomllib.loads(text)
        if SETTINGS.intersection(read):
            file = Path(self._here) / "shown.toml"
            file.write_text(text, encoding="utf-8")
            Settings.load(file)
            file.unlink()
        else:
            assert "project" in read or "tool" in read, f"{block.place}: neither settings nor a project's file"

    def _json(self, block: Block, text: str) -> None:
        shown = json.loads(text)
        if "output of" in block.remarks:
            command = block.remarks["output of"]
            real = documents(shell.run(command, self._windrow))
            assert real, f"{block.place}: {command} prints no JSON"
            lacking = nearest(missing(shown, document) for document in real)
            assert not lacking, f"{block.place}: {command} does not print {lacking}"

    def _yaml(self, block: Block, text: str) -> None:
        assert list(YAML(typ="safe").load_all(text)), f"{block.place}: nothing in it"

    def _ini(self, block: Block, text: str) -> None:
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(text)
        assert parser.sections(), f"{block.place}: nothing in it"

    def _text(self, block: Block, text: str) -> None:
        if "output" in block.remarks:
            require_printed(block.place, text.splitlines(), self._printed)


RUNS = {
    "console": Following._console,
    "sh": Following._script,
    "bash": Following._script,
    "python": Following._python,
    "sql": Following._sql,
    "toml": Following._toml,
    "json": Following._json,
    "yaml": Following._yaml,
    "ini": Following._ini,
    "text": Following._text,
}
PARSED = {"toml", "json", "yaml", "ini"}


def require_printed(place: str, expected: Sequence[str], printed: str) -> None:
    """Raise unless the lines are printed, in this order, whatever stands between them; `...` is any text."""
    left = iter([squeezed(line) for line in printed.splitlines()])
    for line in filter(None, map(squeezed, expected)):
        pattern = re.compile(".*".join(map(re.escape, line.split("..."))))
        assert any(pattern.search(real) for real in left), f"{place}: {line!r} is not printed here:\n{printed}"


def squeezed(line: str) -> str:
    """Return a line without spaces at its ends, and with single ones inside."""
    return " ".join(line.split())


def split(text: str) -> list[str]:
    """Return the statements of a text; a semicolon in quotes or in a comment ends none."""
    parted = END.sub(lambda match: match[1] or "\0", text).split("\0")
    return [part.strip() for part in parted if re.sub(r"--[^\n]*", "", part).strip()]


def documents(result: Said) -> list[Any]:
    """Return the JSON documents that a command printed: all of standard output, or line by line."""
    try:
        return [json.loads(result.out)]
    except json.JSONDecodeError:
        lines = (result.out + result.err).splitlines()
        return [json.loads(line) for line in lines if line.startswith(("{", "["))]


def missing(shown: Any, real: Any, name: str = "") -> list[str]:
    """Return the names of the fields that are shown and not there; of a list any element may have them."""
    if isinstance(shown, dict):
        if not isinstance(real, dict):
            return [name or "an object"]
        parts = ((inner, shown[inner], f"{name}.{inner}".lstrip(".")) for inner in shown)
        return [
            lack
            for key, shown_value, path in parts
            for lack in (missing(shown_value, real[key], path) if key in real else [path])
        ]
    if isinstance(shown, list) and shown:
        if not isinstance(real, list):
            return [name or "a list"]
        return [
            lack
            for element in shown
            for lack in nearest(missing(element, candidate, f"{name}[]") for candidate in real)
        ]
    return []


def nearest(lacking: Iterable[list[str]]) -> list[str]:
    """Return what the best of several documents lacks: the fewest fields, the deepest ones."""
    known = list(lacking)
    return min(known, key=lambda lack: (len(lack), -sum(map(len, lack)))) if known else ["something that has it"]
