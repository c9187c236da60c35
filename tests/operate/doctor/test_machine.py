import tomllib
from pathlib import Path

import pytest

from windrow.operate.doctor.finding import Finding
from windrow.operate.doctor.machine import (
    GIBIBYTE,
    PYTHON,
    USES,
    check_java,
    check_machine,
    check_memory,
    check_python,
    jar_folders,
    required,
    total_memory,
    within,
)

PROJECT = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]


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
    def test_ranges_are_those_of_the_package(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        What the doctor compares with is what the installed package asks for.
        """
        requires = [*PROJECT["dependencies"], *(f"{one}; extra == 'spark'" for one in EXTRAS["spark"])]
        (tmp_path / "windrow_delta-9.dist-info").mkdir()
        (tmp_path / "windrow_delta-9.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: windrow-delta\nVersion: 9\n"
            + "".join(f"Requires-Dist: {one}\n" for one in requires)
        )
        monkeypatch.syspath_prepend(tmp_path)
        for extra, asked in (("", PROJECT["dependencies"]), ("spark", EXTRAS["spark"])):
            found = {
                f"{name}>={first}" + (f",<{below}" if below else "") for name, (first, below) in required(extra).items()
            }
            assert found == set(asked)

    def test_python_is_that_of_the_project(self) -> None:
        """
        The versions of Python are those of pyproject.toml, and each extra that the doctor explains is there.
        """
        assert PROJECT["requires-python"] == ">={}.{},<{}.{}".format(*PYTHON[0], *PYTHON[1])
        assert USES.keys() <= EXTRAS.keys()

    @pytest.mark.parametrize(
        ("version", "bounds", "inside"),
        [
            ("1.6", ("1.6", "2"), True),
            ("1.6.6", ("1.6", "2"), True),
            ("1.10", ("1.6", "2"), True),
            ("1.5.9", ("1.6", "2"), False),
            ("2.0.0rc1", ("1.6", "2"), False),
            ("26.0.1", ("21", ""), True),
            ("nightly", ("21", ""), False),
        ],
    )
    def test_within(self, version: str, bounds: tuple[str, str], inside: bool) -> None:
        """
        Versions are compared number by number, not as text.
        """
        assert within(version, bounds) is inside

    @pytest.mark.parametrize(
        ("version", "level"), [((3, 10), "error"), ((3, 11), "ok"), ((3, 13), "ok"), ((3, 14), "error")]
    )
    def test_python(self, version: tuple[int, int], level: str) -> None:
        """
        A Python that is not supported is an error.
        """
        assert check_python(version).level == level

    def test_here(self) -> None:
        """
        Where the tests run, nothing is wrong with the packages.
        """
        found = [finding for finding in check_machine("embedded", network=False) if finding.level == "error"]
        assert found == []


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
        """
        Java must be new enough for Spark; an old one is an error only where Spark runs.
        """
        says(java, said)
        assert check_java(runs_on).level == level

    def test_none(self, java: Path) -> None:
        """
        Without Java the Spark engine is an error that says what to install, the embedded one needs none.
        """
        found = check_java("spark")
        assert (found.level, "JAVA_HOME" in found.what, "Install Java 17" in found.todo) == ("error", True, True)
        assert check_java("embedded").level == "ok"


class TestJars:
    def test_other_home(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """
        Jars are also looked for in the user's own home, which Java uses whatever HOME says.
        """
        before = jar_folders()
        monkeypatch.setenv("HOME", str(tmp_path))
        assert {folder for folder in before if folder.parent.name.startswith(".ivy2")} <= set(jar_folders())
        assert tmp_path / ".ivy2" / "jars" in jar_folders()


class TestMemory:
    @pytest.mark.parametrize(
        ("runs_on", "total", "level"),
        [
            ("spark", 3 * GIBIBYTE, "ok"),
            ("spark", 3 * GIBIBYTE - 1, "warning"),
            ("embedded", GIBIBYTE, "ok"),
            ("embedded", GIBIBYTE - 1, "warning"),
        ],
    )
    def test_enough(self, runs_on: str, total: int, level: str) -> None:
        """
        Less memory than an engine needs is a warning that says what to do.
        """
        [found] = check_memory(runs_on, total)
        assert found.level == level
        assert bool(found.todo) == (level == "warning")

    def test_unknown(self) -> None:
        """
        If the amount of memory is unknown, there is no finding.
        """
        nothing: list[Finding] = []
        assert list(check_memory("spark", None)) == nothing
        assert (total_memory() or GIBIBYTE) > 1 << 20
