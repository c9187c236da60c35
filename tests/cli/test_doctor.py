import re
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from tests.cli.conftest import Command
from windrow.operate.doctor import CODES

PAGE = Path(__file__).parents[2] / "docs" / "doctor.md"


class TestDoctor:
    def test_nothing_is_wrong(self, filled: Command) -> None:
        """On sound tables the doctor ends with 0 and says under each heading what it looked at."""
        result = filled("doctor")
        assert result.status == 0, result.out
        assert all(f"\n{about}" in "\n" + result.out for about in CODES if about != "doctor")
        assert "the books balance: 5 messages read, 4 in batches, 1 rejected" in result.out

    def test_json(self, filled: Command) -> None:
        """With --json the findings are one document, each with its subject, level, code, message, hint and sources."""
        document = filled("doctor", "--json").json()
        assert (document["ok"], document["error_count"]) == (True, 0)
        assert {"about", "level", "code", "message", "hint", "sources"} == document["findings"][0].keys()

    def test_an_error_ends_with_1(self, filled: Command, tmp_path: Path) -> None:
        """One error makes the exit status 1, and its hint is said."""
        DeltaTable(tmp_path / "data" / "ledger").delete("state = 'rejected'")
        result = filled("doctor")
        assert result.status == 1
        assert "the books do not balance" in result.out
        assert "Run `windrow verify` to find the messages." in result.out
        assert "1 error" in result.out

    def test_without_settings(self, windrow: Command, tmp_path: Path) -> None:
        """Settings that cannot be read are a finding, not the end of the examination."""
        (tmp_path / "windrow.toml").write_text("max_retires = 3\n")
        result = windrow("doctor")
        assert result.status == 1
        assert "WINDROW-SETTINGS: windrow.toml, line 1: unknown setting 'max_retires'" in result.out
        assert "Python 3" in result.out

    def test_starts_no_jvm(self, filled: Command, tmp_path: Path) -> None:
        """The doctor does not start Spark, also where the engine is Spark, unless it is told to."""
        script = (
            "import sys; from windrow.cli import main; main(['doctor', '--engine', 'spark']); "
            "sys.exit('py4j.java_gateway' in sys.modules and bool(sys.modules['pyspark'].SparkContext._gateway))"
        )
        completed = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_network_starts_spark(filled: Command, tmp_path: Path) -> None:
    """With --start-spark Spark is started once, and its version said."""
    script = (
        "import sys; from windrow.cli import main; sys.exit(main(['doctor', '--engine', 'spark', '--start-spark']))"
    )
    completed = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, completed.stdout
    assert "starts, with Delta's jars" in completed.stdout


def test_docs_list_every_code() -> None:
    """docs/doctor.md has a row for each code, under the heading that it belongs to, and no other."""
    listed: dict[str, list[str]] = {}
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            about = line.removeprefix("## ").lower()
        elif row := re.match(r"\| `([a-z-]+)` \|", line):
            listed.setdefault(about, []).append(row[1])
    assert {about: tuple(codes) for about, codes in listed.items()} == CODES
