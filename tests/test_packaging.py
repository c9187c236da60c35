"""What the project says of itself to packagers, to CI and to whoever reads what changed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.bundle import ROOT, load

WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
# https://keepachangelog.com/en/1.1.0/
SECTIONS = ("Added", "Changed", "Deprecated", "Removed", "Fixed", "Security")


def check_schema(name: str, file: Path) -> None:
    """Require that a file follows a published schema."""
    command = [Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", name, file]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


class TestWorkflow:
    def test_shape(self) -> None:
        """GitHub takes the workflow for one."""
        check_schema("vendor.github-workflows", WORKFLOW)

    def test_runs_what_ci_runs(self) -> None:
        """Each change runs .ci/run, which may be executed, with the lowest Python and the Java that Spark needs."""
        workflow: dict[str, Any] = load(WORKFLOW)
        assert workflow["on"].keys() == {"push", "pull_request"}
        steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
        assert [step["run"] for step in steps if "run" in step] == [".ci/run"]
        assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
        versions = {name: value for step in steps for name, value in step.get("with", {}).items() if "version" in name}
        assert versions == {"python-version": "3.11", "java-version": "17"}


class TestConstraints:
    def test_each_is_a_version(self) -> None:
        """Every line pins one package, once, and names no host."""
        lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        names = [re.fullmatch(r"([a-z0-9][a-z0-9._-]*)==[\w.!+]+", pin) for pin in pins]
        assert all(names), [pin for pin, name in zip(pins, names, strict=True) if not name]
        assert len({name[1] for name in names if name}) == len(pins)


class TestChangelog:
    LINES = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()

    def test_sections(self) -> None:
        """Below each version are only sections of Keep a Changelog, and the first version is the unreleased one."""
        headings = [line for line in self.LINES if line.startswith("## ")]
        assert headings[0] == "## [Unreleased]"
        assert all(re.fullmatch(r"## \[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", line) for line in headings[1:])
        sections = [line.removeprefix("### ") for line in self.LINES if line.startswith("### ")]
        assert sections
        assert set(sections) <= set(SECTIONS)

    def test_a_line_each(self) -> None:
        """Each thing is one line that says it in at most 120 characters, and its links lead to pages."""
        listed = self.LINES[self.LINES.index("## [Unreleased]") + 1 :]
        assert all(re.match(r"(- |### |\*\*|$)", line) and len(line) <= 120 for line in listed)
        links = [link for line in listed for link in re.findall(r"\]\((docs/[^)#]+)", line)]
        assert links
        assert all((ROOT / link).is_file() for link in links)
