from pathlib import Path

import pytest

from windrow.operate.doctor.machine import check_java, check_machine, check_packages


@pytest.mark.parametrize(
    ("requirement", "level"),
    [("pytest>=1.10", "ok"), ("pytest<2", "warning"), ("none; extra == 'x'", "ok")],
)
def test_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirement: str, level: str) -> None:
    """Packages that are there are compared with what the installed Windrow asks for; those of extras may be missing."""
    (tmp_path / "windrow_delta-9.dist-info").mkdir()
    (tmp_path / "windrow_delta-9.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: windrow-delta\nVersion: 9\nRequires-Dist: {requirement}\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert {finding.level for finding in check_packages()} == {level, "ok"}


def test_here() -> None:
    """Where the tests run, nothing is wrong with the packages."""
    assert {finding.level for finding in check_machine("embedded", network=False)} == {"ok"}


class TestJava:
    @pytest.mark.parametrize(
        ("output", "level"),
        [
            ('openjdk version "17.0.15" 2025-04-15', "ok"),
            ('java version "21" 2023-09-19 LTS', "ok"),
            ('java version "1.8.0_401"', "error"),
            ("command not found", "error"),
        ],
    )
    def test_version(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str, level: str) -> None:
        """Java must be new enough for Spark, and say so."""
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        (tmp_path / "bin").mkdir()
        java = tmp_path / "bin" / "java"
        java.write_text(f"#!/bin/sh\necho '{output}' >&2\n")
        java.chmod(0o755)
        assert check_java().level == level

    def test_where_it_counts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """No Java is an error only where Spark starts on this machine: not embedded, not with a platform's session."""
        monkeypatch.setenv("JAVA_HOME", str(tmp_path))
        assert errors("spark") == ["java"]
        assert errors("embedded") == []
        monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")
        assert errors("spark") == []


def errors(engine: str) -> list[str]:
    """Return the codes of errors of the machine."""
    return [finding.code for finding in check_machine(engine, network=False) if finding.level == "error"]
