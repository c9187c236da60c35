"""Settings without sense: refused when they are read, with the setting's name, before anything is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command

FILES = {
    "not UTF-8": (b"\xff\xfe", "windrow.toml is not TOML"),
    "broken": (b"depot = [", "windrow.toml is not TOML"),
    "line": (b'depot = "d"\nledger = oops', "line 2"),
    "twice": (b"max_retries = 1\nmax_retries = 2", "keep one of the two"),
    "part twice": (b"[rules]\n[rules]", "keep one of the two"),
    "text without quotes": (b"[rules]\nrepeats = keep", "Put text in quotes"),
    "unknown": (b"max_retires = 3", "Did you mean max_retries?"),
    "unknown part": (b'[rule]\nwindow = "1s"', "unknown setting 'rule'"),
    "unknown in a part": (b'[rules]\nwindwo = "1s"', "Did you mean rules.window?"),
    "capitals": (b'DEPOT = "x"', "'DEPOT'"),
    "no part": (b"rules = 3", "rules = 3"),
    "a list of parts": (b'[[rules]]\nwindow = "1s"', "rules = "),
    "number for a path": (b"depot = 3", "depot = 3"),
    "table for a path": (b"[depot]\nx = 1", "unknown setting 'depot.x'"),
    "no path": (b'depot = ""', "depot = ''"),
    "blank path": (b'ledger = " "', "ledger = ' '"),
    "NUL in a path": (b'ledger = "a\\u0000"', "ledger = "),
    "one place": (b'depot = "a"\nledger = "a/"', "overlap"),
    "one in the other": (b'depot = "a"\nledger = "a/b"', "overlap"),
    "no messages": (b"max_messages = 0", "max_messages = 0"),
    "half a message": (b"max_messages = 1.5", "max_messages = 1.5"),
    "many messages": (b'max_messages = "many"', "max_messages = 'many'"),
    "negative retries": (b"max_retries = -1", "max_retries = -1"),
    "negative driver": (b"max_driver_messages = -1", "max_driver_messages = -1"),
    "no grace": (b'idle_timeout = "forever"', "idle_timeout = 'forever'"),
    "negative grace": (b"idle_timeout = -1", "idle_timeout = -1"),
    "negative skew": (b'max_clock_skew = "-5m"', "max_clock_skew = '-5m'"),
    "no retention": (b'retention = "0s"', "retention = '0s'"),
    "short retention": (b'retention = "59m"', "less than an hour"),
    "endless retention": (b'retention = "never"', "retention = 'never'"),
    "deletions": (b'on_depot_change = "maybe"', "on_depot_change = 'maybe'"),
    "no window": (b'[rules]\nwindow = "0s"', "window is 0"),
    "negative window": (b"[rules]\nwindow = -1", "rules.window = -1"),
    "huge window": (b'[rules]\nwindow = "36501d"', "rules.window = '36501d'"),
    "window beyond numbers": (b"[rules]\nwindow = 9223372036854775808", "no unit"),
    "window without a unit": (b'[rules]\nwindow = "10"', "rules.window = '10'"),
    "broken window": (b'[rules]\nwindow = "1.5s"', "rules.window = '1.5s'"),
    "empty window": (b'[rules]\nwindow = ""', "rules.window = ''"),
    "delay that is none": (b"[rules]\nmax_delay = nan", "rules.max_delay = nan"),
    "negative bytes": (b"[rules]\nmax_batch_bytes = -1", "rules.max_batch_bytes = -1"),
    "bytes beyond numbers": (b"[rules]\nmax_batch_bytes = 99999999999999999999", "rules.max_batch_bytes"),
    "no window start": (b'[rules]\nwindow_anchor = "noon"', "rules.window_anchor = 'noon'"),
    "negative pause": (b'[run]\ntrigger_interval = "-1s"', "run.trigger_interval = '-1s'"),
}

VARIABLES = {
    "WINDROW_LEGDER": ("x", "Did you mean WINDROW_LEDGER?"),
    "WINDROW_RULES__WINDO": ("1s", "Did you mean WINDROW_RULES__WINDOW?"),
    "WINDROW_RULES__WINDOW__X": ("1s", "unknown variable"),
    "WINDROW_": ("x", "unknown variable"),
    "WINDROW_RULES": ("nonsense", "variable WINDROW_RULES"),
    "WINDROW_RULES__WINDOW": ("", "rules.window = ''"),
    "WINDROW_MAX_MESSAGES": ("x", "max_messages = 'x'"),
    "WINDROW_DEPOT": ("", "depot = ''"),
    "WINDROW_ENGINE": ("flink", "engine = 'flink'"),
}


@pytest.mark.parametrize("command", ["run", "status"])
@pytest.mark.parametrize("name", FILES)
def test_file(windrow: Command, tmp_path: Path, name: str, command: str) -> None:
    """
    A settings file that is broken, or holds a value without sense, ends every command with 2, and one or two lines
    that name the setting; nothing is made.
    """
    content, says = FILES[name]
    (tmp_path / "windrow.toml").write_bytes(content)
    result = windrow(command)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(("WINDROW-SETTINGS: ", "WINDROW-RULES: "))
    assert says in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert [path.name for path in tmp_path.iterdir()] == ["windrow.toml"]


@pytest.mark.parametrize("start", ["yesterday", "", "version:", "version:-1", "version:99999999999999999999"])
def test_start(windrow: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, start: str) -> None:
    """
    A place to begin that has no meaning is an error where a ledger is to be made, and none is made.
    """
    monkeypatch.setenv("WINDROW_START_FROM", start)
    result = windrow("init")
    assert (result.status, result.out) == (2, "")
    assert f"start_from = {start!r} is invalid" in result.err
    assert not (tmp_path / "data" / "ledger").exists()


@pytest.mark.parametrize("name", VARIABLES)
def test_variable(windrow: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    """
    A variable that nobody knows, or with a value without sense, does the same.
    """
    value, says = VARIABLES[name]
    monkeypatch.setenv(name, value)
    result = windrow("run")
    assert (result.status, result.out) == (2, "")
    assert says in result.err
    assert len(result.err.strip().splitlines()) <= 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b'\xef\xbb\xbfdepot = "depot"\n'])
def test_nothing_to_complain_about(windrow: Command, tmp_path: Path, content: bytes) -> None:
    """
    An empty settings file, and one that an editor began with a byte order mark, are settings.
    """
    (tmp_path / "windrow.toml").write_bytes(content)
    assert windrow("init").status == 0
    assert windrow("run", "--json").json()["message_count"] == 0


def test_directory(windrow: Command, tmp_path: Path) -> None:
    """
    A directory in the place of the settings file is said to be one.
    """
    (tmp_path / "windrow.toml").mkdir()
    result = windrow("run")
    assert (result.status, "Is a directory" in result.err) == (2, True)
