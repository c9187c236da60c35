import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Command

SETTINGS = """\
[depot.columns]
key = "name"
type = "'t'"
event_time = "received_at"
received_at = "received_at"

[format]
type = "csv"
strict = true

[format.fields]
name = "string"
value = "int64"
"""


@pytest.fixture
def ready(windrow: Command, tmp_path: Path) -> Command:
    """A format, and files of good and of bad records."""
    (tmp_path / "windrow.toml").write_text(SETTINGS)
    (tmp_path / "good.csv").write_text("name,value\na,1\nb,\n")
    (tmp_path / "bad.csv").write_text('name,value\n"a\nb",1\n[red]c,x\nd,2\n')
    return windrow


class TestCheck:
    def test_good(self, ready: Command, tmp_path: Path) -> None:
        """Good files end with 0, their first records as a table with types, and their messages; nothing is written."""
        before = sorted(tmp_path.iterdir())
        result = ready("ingest", "--check", "good.csv", "--rejects", "rejects.csv")
        assert (result.status, result.err) == (0, "")
        lines = [" ".join(line.split()) for line in result.out.splitlines()]
        assert lines[0] == "good.csv: 18 bytes, 2 good records"
        at = lines.index("name value")
        assert lines[at + 1] == "string int64"
        assert lines[at + 3 : at + 5] == ["a 1", "b NULL"]
        assert any(line.startswith("a t ") for line in lines)
        assert sorted(tmp_path.iterdir()) == before

    def test_bad(self, ready: Command, tmp_path: Path) -> None:
        """Bad records end it with status 1, each with file and line, byte, reason, field and its begin as it stands."""
        result = ready("ingest", "--check", "good.csv", "bad.csv", "--rejects", "rejects.csv")
        assert result.status == 1
        assert "bad.csv: 32 bytes, 2 good records, 1 rejected (9 bytes)\n" in result.out
        assert "  bad.csv:4, byte 19: format_cast value: 'x' is not a valid int64\n" in result.out
        assert "\n      [red]c,x\n" in result.out
        assert "rejects.csv: the bytes of 1 bad record." in result.out
        assert (tmp_path / "rejects.csv").read_text() == "name,value\n[red]c,x\n"

    def test_sample(self, ready: Command, tmp_path: Path) -> None:
        """`--sample` bounds what is shown of good and bad records, and not what is counted."""
        (tmp_path / "many.csv").write_text("name,value\n" + "a,1\nb,x\n" * 9)
        document = ready("ingest", "--check", "many.csv", "--sample", "2", "--json").json()
        assert [len(document[name]) for name in ("rejects", "sample", "messages")] == [2, 2, 2]
        assert (document["accepted_count"], document["rejected"], document["reasons"]) == (9, 9, {"format_cast": 9})
        assert "and 7 more" in ready("ingest", "--check", "many.csv", "--sample", "2").out
        output = ready("ingest", "--check", "many.csv", "--sample", "0").out
        assert output.startswith("many.csv: 83 bytes, 9 good records, 9 rejected (36 bytes)\nrejected: 9 format_cast\n")

    def test_what_a_terminal_obeys(self, ready: Command, tmp_path: Path) -> None:
        """No value, detail or record of a file reaches the terminal as an order to it."""
        (tmp_path / "odd.csv").write_text("name,value\n\x1b[2Ja,1\nb,\x1b[2J\n")
        result = ready("ingest", "--check", "odd.csv")
        assert result.out.count("\\x1b[2J") == 4
        assert "\x1b" not in result.out

    def test_standard_input(self, ready: Command, tmp_path: Path) -> None:
        """`-` reads standard input to its end."""
        program = "import sys; from windrow.cli import main; sys.exit(main())"
        arguments = [sys.executable, "-c", program, "ingest", "--check", "-", "--json"]
        result = subprocess.run(
            arguments, input=b"name,value\na,1\nb", cwd=tmp_path, capture_output=True, check=False, timeout=300
        )
        assert result.returncode == 1, result.stderr
        assert b'"reason": "format_columns"' in result.stdout

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            (SETTINGS.replace("int64", "integer"), "windrow.toml, line 13: [format] field 'value': unknown type"),
            (SETTINGS.replace("int64", 'integer" # "'), "Did you mean 'int32'?"),
            (SETTINGS.replace("csv", "tsv"), "windrow.toml, line 8: format.type = 'tsv'"),
            (SETTINGS.replace('type = "csv"', "delimeter = ';'"), "windrow.toml, line 8: unknown setting"),
            (SETTINGS.replace('"csv"', '"csv"\nquote_char = ","'), "windrow.toml, line"),
            (SETTINGS.replace('"name"', '"nmae"'), "[depot.columns] key"),
            ("", "[format] has no type"),
        ],
        ids=["type", "nearest", "format", "unknown", "delimiters", "mapping", "none"],
    )
    def test_wrong_settings(self, ready: Command, tmp_path: Path, settings: str, says: str) -> None:
        """Wrong settings end it with status 2 before anything is read, and the error names the setting and its line."""
        (tmp_path / "windrow.toml").write_text(settings)
        result = ready("ingest", "--check", "absent.csv")
        assert (result.status, result.out) == (2, "")
        assert says in result.err

    def test_run_tells_the_same(self, ready: Command, tmp_path: Path) -> None:
        """A run over a raw depot refuses the same settings with the same line."""
        assert ready("ingest", "good.csv", "--format", "csv").status == 0
        (tmp_path / "windrow.toml").write_text(SETTINGS.replace("int64", "integer"))
        result = ready("run", "--once")
        assert result.status == 2
        assert "windrow.toml, line 13: [format] field 'value'" in result.err

    @pytest.mark.parametrize(("file", "says"), [("absent.csv", "No such file"), (".", "is a directory")])
    def test_unreadable(self, ready: Command, file: str, says: str) -> None:
        """A file that cannot be read ends it with status 3."""
        result = ready("ingest", "--check", "good.csv", file)
        assert (result.status, result.out) == (3, "")
        assert "WINDROW-FILE-UNREADABLE" in result.err
        assert says in result.err

    def test_output_that_is_there(self, ready: Command, tmp_path: Path) -> None:
        """A file that is there already is not written over."""
        result = ready("ingest", "--check", "bad.csv", "--rejects", "bad.csv")
        assert (result.status, "WINDROW-OUTPUT" in result.err) == (2, True)


def test_rejects_alone(windrow: Command) -> None:
    """A file for rejects without --check is refused."""
    result = windrow("ingest", "good.csv", "--format", "csv", "--rejects", "rejects.csv")
    assert (result.status, "--rejects needs --check" in result.err) == (2, True)
