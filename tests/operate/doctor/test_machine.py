import tomllib
from pathlib import Path

import pytest

from windrow.operate.doctor.machine import check_java, check_machine, check_packages, check_python

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A JAVA_HOME whose java prints what the test writes into it."""
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin" / "java"


def says(java: Path, version: str) -> None:
    """Let a java print a version."""
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)


class TestVersions:
    @pytest.mark.parametrize(
        ("requirement", "level"),
        [("pytest>=1.10", "ok"), ("pytest<2", "warning"), ("pytest-none>=1", "error"), ("none; extra == 'x'", "ok")],
    )
    def test_packages(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, requirement: str, level: str) -> None:
        """Packages are compared with what the installed package asks for, and one that only an extra needs may be
        missing.
        """
        installed(tmp_path, monkeypatch, requirement)
        assert {finding.level for finding in check_packages("embedded")} - {"ok"} == {level} - {"ok"}

    @pytest.mark.parametrize(("runs_on", "level"), [("spark", "error"), ("embedded", "ok")])
    def test_engine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_on: str, level: str) -> None:
        """What the extra of Spark needs is required where Spark runs."""
        installed(tmp_path, monkeypatch, "no-spark-here>=4; extra == 'spark'")
        assert {finding.level for finding in check_packages(runs_on)} == {level, "ok"}

    @pytest.mark.parametrize(
        ("version", "level"), [("3.10.9", "error"), ("3.11.0", "ok"), ("3.13.0rc1", "ok"), ("3.14.0", "error")]
    )
    def test_python(self, version: str, level: str) -> None:
        """A Python that is not supported is an error."""
        assert check_python(version, PROJECT["requires-python"]).level == level

    def test_here(self) -> None:
        """Where the tests run, nothing is wrong with the packages."""
        found = [finding for finding in check_machine("embedded", network=False) if finding.level == "error"]
        assert found == []


def installed(directory: Path, monkeypatch: pytest.MonkeyPatch, requirement: str) -> None:
    """Let the installed Windrow require a package."""
    (directory / "windrow_delta-9.dist-info").mkdir()
    (directory / "windrow_delta-9.dist-info" / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: windrow-delta\nVersion: 9\nRequires-Dist: {requirement}\n"
    )
    monkeypatch.syspath_prepend(directory)


class TestJava:
    @pytest.mark.parametrize(
        ("said", "runs_on", "level"),
        [
            ('openjdk version "17.0.15" 2025-04-15', "spark", "ok"),
            ('java version "21" 2023-09-19 LTS', "spark", "ok"),
            ('openjdk version "11.0.2" 2019-01-15', "spark", "error"),
            ('java version "1.8.0_401"', "spark", "error"),
            ('java version "1.8.0_401"', "embedded", "warning"),
            ("command not found", "spark", "warning"),
        ],
    )
    def test_version(self, java: Path, said: str, runs_on: str, level: str) -> None:
        """Java must be new enough for Spark; an old one is an error only where Spark runs."""
        says(java, said)
        assert check_java(runs_on).level == level

    def test_of_a_platform(self, java: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Where a platform provides Spark's session, no Java here is no error."""
        errors = []
        for remote in (None, "sc://nowhere"):
            if remote:
                monkeypatch.setenv("SPARK_REMOTE", remote)
            errors.append([one.code for one in check_machine("spark", network=False) if one.level == "error"])
        assert errors == [["java"], []]

    def test_none(self, java: Path) -> None:
        """Without Java the Spark engine is an error that says what to install, the embedded one needs none."""
        found = check_java("spark")
        assert (found.level, "JAVA_HOME" in found.what, "Install Java 17" in found.todo) == ("error", True, True)
        assert check_java("embedded").level == "ok"
