"""What a device wrote reaches no terminal and no picture as a control character, and any encoding can print it."""

import json
import os
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest

from tests.cli.conftest import Command, publish
from tests.messages import SECOND, message
from windrow.cli.shared_options import text_table
from windrow.cli.terminal import Terminal

SCRIPT = "import sys; from windrow.cli import main; sys.exit(main(sys.argv[1:]))"
HOSTILE = "Prüfstand-✓\x1b[2J\x9b\u202e\r\x7f"
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
READING = (
    "status", "status --json", "show", "show --json", "show --rejected", "show --rejected --json", "status --history 9",
    "status --history 9 --json", "doctor", "tune", "verify --strict", "quality", "quality --sql", "replay", "settings",
    "run", "run --json", "show nothing\x1b[2J", "status --depot x\x1b[2J", "status --fail-if x\x1b[2J",
    "nothing\x1b[2J", "ingest x\x1b[2J", "plot --out timeline.svg",
    "plot --out timeline.png", "plot --chart batches --out batches.svg",
    "plot --chart microbatches --out microbatches.html",
)  # fmt: skip


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory, batched: Path) -> Path:
    """Return a directory whose ledger has a key, a source, a type and payloads with control characters."""
    directory = tmp_path_factory.mktemp("hostile")
    shutil.copytree(batched, directory, dirs_exist_ok=True)
    texts = {"source": HOSTILE, "key": HOSTILE, "payload": HOSTILE}
    publish(
        directory,
        message(HOSTILE, 100 * SECOND, 200 * SECOND, **texts),
        message(HOSTILE, 201 * SECOND, 201 * SECOND, **texts),
        message(HOSTILE, 100 * SECOND, 240 * SECOND, **texts),
        message(HOSTILE, 240 * SECOND, 240 * SECOND, **texts),
        message(HOSTILE, 270 * SECOND, 270 * SECOND, **texts),
    )
    run(directory, "utf-8", "ingest", "messages.parquet")
    run(directory, "utf-8", "run", "--json")
    return directory


def run(directory: Path, encoding: str, *arguments: str) -> str:
    """Run a command in a process of its own; return all it printed, after which it must not have crashed."""
    environment = os.environ | {"PYTHONIOENCODING": f"{encoding}:strict", "WINDROW_ENGINE": "embedded"}
    completed = subprocess.run(
        [sys.executable, "-c", SCRIPT, *arguments], cwd=directory, env=environment, capture_output=True, check=False
    )
    output = (completed.stdout + completed.stderr).decode(encoding)
    assert "UNEXPECTED" not in output, output
    assert "Traceback" not in output, output
    return completed.stdout.decode(encoding) if "--json" in arguments else output


class TestControls:
    @pytest.mark.parametrize("line", READING)
    def test_reading_commands(self, hostile: Path, windrow: Command, tmp_path: Path, line: str) -> None:
        """No command that reads prints or draws a control character, whatever keys, payloads and arguments hold."""
        shutil.copytree(hostile, tmp_path, dirs_exist_ok=True)
        result = windrow(*line.split(" "))
        assert "UNEXPECTED" not in result.err
        for text in (result.out, result.err):
            assert CONTROLS.findall(text) == []
        for picture in [*tmp_path.glob("*.svg"), *tmp_path.glob("*.html")]:
            assert "\x1b" not in picture.read_text(encoding="utf-8")
        assert len([*tmp_path.glob("*.svg"), *tmp_path.glob("*.html"), *tmp_path.glob("*.png")]) == ("plot" in line)

    def test_key_is_escaped(self, hostile: Path, windrow: Command, tmp_path: Path) -> None:
        """For people a key shows its escapes; in JSON it is the key itself."""
        shutil.copytree(hostile, tmp_path, dirs_exist_ok=True)
        assert r"Prüfstand-✓\x1b[2J\x9b\u202e\r\x7f" in windrow("show", "--key", HOSTILE).out
        assert windrow("show", "--key", HOSTILE, "--json").json()[0]["key"] == HOSTILE


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_encodings(hostile: Path, encoding: str) -> None:
    """A terminal that is not UTF-8 gets escapes for what it lacks, and JSON that says the same."""
    assert r"fstand-\u2713\x1b[2J" in run(hostile, encoding, "show", "--key", HOSTILE)
    assert json.loads(run(hostile, encoding, "show", "--key", HOSTILE, "--json"))[0]["key"] == HOSTILE
    assert r"\u2713" in run(hostile, encoding, "show", "✓")


@pytest.mark.parametrize("columns", [None, "80"])
def test_a_pipe_gets_whole_values(monkeypatch: pytest.MonkeyPatch, columns: str | None) -> None:
    """A value in a table is neither cut nor folded where no terminal looks, unless COLUMNS says a width."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns:
        monkeypatch.setenv("COLUMNS", columns)
    out = StringIO()
    Terminal(file=out, highlight=False).print(text_table(("key",), [("x" * 300,)]))
    assert ("x" * 300 in out.getvalue()) == (columns is None)
