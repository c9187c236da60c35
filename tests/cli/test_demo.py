import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.report.parsed import parsed


def check(document: dict[str, Any], directory: Path) -> None:
    assert document["message_count"] == 51_004
    assert document["closed_batch_count"] + document["open_batch_count"] == 23
    assert document["rejected_by_reason"] == {"too_old": 250, "duplicate": 88}
    assert document["needed_delay"]["required_max_delay_us"] == 55_922_104
    html = (directory / document["picture"]).read_text(encoding="utf-8")
    assert "edge-c" in html
    assert "edge-c" in parsed(directory / document["report"]).column("rejections", 0)


def test_embedded(windrow: Command, tmp_path: Path) -> None:
    """The demo batches the sample, verifies, says which host stalls, and run again it reads nothing twice."""
    check(windrow("demo", "--engine", "embedded", "--json").json(), tmp_path)
    result = windrow("demo", "--engine", "embedded")
    assert "nothing new" in result.out
    assert "edge-c stalls" in result.out
    assert 'max_delay = "56s" would keep every message' in result.out
    assert windrow("verify", "--strict", "--config", "demo/windrow.toml").status == 0
    assert "warning" not in windrow("status", "--config", "demo/windrow.toml").out
    findings = windrow("doctor", "--config", "demo/windrow.toml", "--json").json()["findings"]
    assert [finding for finding in findings if finding["about"] == "ledger" and finding["level"] != "ok"] == []


@pytest.mark.slow
def test_tries_work_as_printed(tmp_path: Path) -> None:
    """The demo says first what it does, then how far it is; what it says to try runs as printed, where one stands."""
    started = tmp_path / "bin" / "windrow"
    started.parent.mkdir()
    started.write_text(f"#!{sys.executable}\nimport sys\nfrom windrow.cli import main\nsys.exit(main())\n")
    started.chmod(0o755)
    shown = shell("bin/windrow demo --engine embedded", tmp_path)
    lines = shown.stderr.splitlines()
    assert "in three steps" in lines[0]
    assert [line[0] for line in lines if " of 3, " in line] == ["1", "2", "3"]
    tries = [line.strip() for line in shown.stdout.splitlines() if line.startswith("  bin/windrow ")]
    assert [line.split()[1] for line in tries] == ["status", "show", "verify"]
    assert "5 batches with" in "".join(shell(line, tmp_path).stdout for line in tries)


@pytest.mark.ci
def test_no_extras(tmp_path: Path) -> None:
    """Without the packages that draw, the demo says what to install, and everything else of it works."""
    code = (
        "import sys; sys.modules.update(altair=None, jinja2=None); from windrow.cli import main; "
        "sys.exit(main(['demo', '--engine', 'embedded']))"
    )
    completed = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (completed.returncode, "edge-c stalls" in completed.stdout) == (0, True), completed.stderr
    assert "no picture: pictures need altair. pip install" in completed.stderr
    assert "no report: reports need jinja2. pip install" in completed.stderr


def shell(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a line in a shell, as somebody who copies it; it must succeed."""
    completed = subprocess.run(command, shell=True, cwd=directory, capture_output=True, text=True, check=False)  # noqa: S602 - our own line
    assert completed.returncode == 0, completed.stderr
    return completed


@pytest.mark.slow  # 51,004 messages through a Spark that interprets its plans
@pytest.mark.spark
def test_spark(windrow: Command, tmp_path: Path, spark: Any) -> None:
    """On Spark the demo finds the same."""
    check(windrow("demo", "--engine", "spark", "--json").json(), tmp_path)
    assert windrow("verify", "--strict", "--config", "demo/windrow.toml").status == 0
