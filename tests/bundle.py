"""The bundle as the Databricks command line reads it: the job files, and what each target lays over them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
KEYS = ("task_key", "job_cluster_key", "environment_key")  # lists of these are joined by them, not replaced

Node = Any


def load(file: Path) -> Node:
    """Return the content of a YAML file, with its anchors resolved."""
    return YAML(typ="safe", pure=True).load(file)


def bundle() -> Node:
    """Return databricks.yml."""
    return load(ROOT / "databricks.yml")


def job_files() -> list[Path]:
    """Return the files that the bundle includes."""
    return sorted(file for pattern in bundle()["include"] for file in ROOT.glob(pattern))


def jobs() -> dict[str, Node]:
    """Return the jobs as their files have them."""
    return {name: job for file in job_files() for name, job in load(file)["resources"]["jobs"].items()}


def deployed(target: str) -> dict[str, Node]:
    """Return the jobs of a target: its own settings over those of the files, with the values of complex variables."""
    above = bundle()["targets"][target]["resources"]["jobs"]
    values = complex_variables(target)
    return {name: replaced(merged(job, above.get(name, {})), values) for name, job in jobs().items()}


def complex_variables(target: str) -> dict[str, Node]:
    """Return the values of a target's complex variables, by what refers to them."""
    overrides = bundle()["targets"][target].get("variables", {})
    declared = {name: variable for name, variable in bundle()["variables"].items() if variable.get("type") == "complex"}
    return {f"${{var.{name}}}": overrides.get(name, variable["default"]) for name, variable in declared.items()}


def replaced(node: Node, values: dict[str, Node]) -> Node:
    """Return a tree in which values stand where texts refer to them."""
    if isinstance(node, dict):
        return {name: replaced(child, values) for name, child in node.items()}
    if isinstance(node, list):
        return [replaced(child, values) for child in node]
    return values.get(node, node) if isinstance(node, str) else node


def merged(below: Node, above: Node) -> Node:
    """Lay one tree over another; lists of tasks, clusters and environments are joined by their keys."""
    if isinstance(below, dict) and isinstance(above, dict):
        both = {name: merged(below[name], above[name]) for name in below.keys() & above.keys()}
        return below | above | both
    if isinstance(below, list) and isinstance(above, list):
        [key] = [key for key in KEYS if all(key in item for item in below)]
        laid = {item[key]: item for item in below}
        return list((laid | {item[key]: merged(laid.get(item[key], {}), item) for item in above}).values())
    return above


def texts(node: Node) -> Iterator[str]:
    """Return every text in a tree."""
    if isinstance(node, dict | list):
        for child in node.values() if isinstance(node, dict) else node:
            yield from texts(child)
    elif isinstance(node, str):
        yield node


def keys(node: Node) -> Iterator[str]:
    """Return every key in a tree."""
    if isinstance(node, dict | list):
        yield from node if isinstance(node, dict) else ()
        for child in node.values() if isinstance(node, dict) else node:
            yield from keys(child)


def references(node: Node) -> set[str]:
    """Return what a tree refers to by `${...}`."""
    return {name for text in texts(node) for name in re.findall(r"\$\{([^}]*)\}", text)}


def flags(task: Node) -> dict[str, str]:
    """Return the flags of a script's task, without their dashes."""
    parameters = task["spark_python_task"]["parameters"]
    assert all(flag.startswith("--") and "=" in flag for flag in parameters), parameters
    return dict(flag.removeprefix("--").split("=", 1) for flag in parameters)


def project() -> Node:
    """Return `[project]` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def wheel_name() -> str:
    """Return the file name of the project's wheel."""
    return f"{project()['name'].replace('-', '_')}-{project()['version']}-py3-none-any.whl"
