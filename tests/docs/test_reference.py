"""The pages of docs/reference are what the code says, and what the commands print."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.docs import shell, worlds
from tests.docs.following import documents as printed_documents
from tests.docs.reference import HOME, generate

KINDS: dict[str, tuple[type, ...]] = {
    "true or false": (bool,),
    "whole number": (int,),
    "number": (int, float),
    "text": (str,),
    "object": (dict,),
    "null": (type(None),),
}
SPARK = "--engine spark"
KAFKA = "bridge kafka"
KNOWN = generate.documents()


@pytest.mark.parametrize("name", generate.pages())
def test_pages_are_what_the_code_says(name: str) -> None:
    """The page in the repository is the one that the generator makes now."""
    assert (HOME / name).read_text(encoding="utf-8") == generate.pages()[name], "make reference writes it anew"


def test_readme_counts() -> None:
    """The README's matrix has what trials, explorations, models and guards gave the last time."""
    assert generate.README.read_text(encoding="utf-8") == generate.readme(), "make reference writes it anew"


def test_every_json_has_a_document() -> None:
    """Each command with --json is described, and no other."""
    prints = {
        name
        for name, command in generate.commands().items()
        if any("--json" in option.opts for option in command.params)
    }
    assert {name for document in KNOWN for name in document.commands} == prints, (
        "add it to docs/reference/documents.toml"
    )


def with_marks() -> list[Any]:
    """Return the documents; those that only Spark makes are marked so, and slow."""
    spark, kafka = [pytest.mark.spark, pytest.mark.slow], [pytest.mark.kafka]
    return [
        pytest.param(document, id=document.title, marks=spark if SPARK in runs else kafka if KAFKA in runs else [])
        for document in KNOWN
        for runs in [" ".join(document.runs)]
    ]


@pytest.mark.ci
@pytest.mark.parametrize("document", with_marks())
def test_fields_are_printed(
    document: Any, windrow: Command, tmp_path: Path, made: Any, request: pytest.FixtureRequest
) -> None:
    """Every field that a command prints is described with its type, and every described one is printed."""
    worlds.prepare(document.world, tmp_path, made)
    if SPARK in " ".join(document.runs):
        request.getfixturevalue("spark")
    if "bridge" in document.commands:
        request.getfixturevalue("kafka_topic" if KAFKA in " ".join(document.runs) else "broker")
    types = {field.name: field.type for field in document.fields}
    seen: dict[str, Any] = {}
    for run in document.runs:
        printed = list(printed_documents(result := shell.run(run, windrow)))
        assert printed or "--json" not in run, f"{run} prints no document: {result.err}"
        for printed_document in printed:
            assert isinstance(printed_document, list) == document.is_list, run
            for row in printed_document if document.is_list else [printed_document]:
                for name, value in flat(row, types):
                    assert name in types, f"{run} prints {name}, which docs/reference/documents.toml does not describe"
                    assert fits(value, types[name]), f"{run} prints {name} as {value!r}, no {types[name]}"
                    seen[name] = value
    assert set(types) - set(seen) <= document.typed, "no run prints these"


def flat(value: dict[str, Any], types: dict[str, str], at: str = "") -> Iterator[tuple[str, Any]]:
    """Return every field of an object and of those inside it, but not what a map maps."""
    for key, inner in value.items():
        name = f"{at}.{key}".lstrip(".")
        yield name, inner
        if "map" in types.get(name, "").split():
            continue
        if isinstance(inner, dict):
            yield from flat(inner, types, name)
        if isinstance(inner, list):
            yield from (field for part in inner if isinstance(part, dict) for field in flat(part, types, f"{name}[]"))


def fits(value: Any, kind: str) -> bool:
    """Tell whether a value is of a type in words."""
    if kind.endswith(" or null"):
        return value is None or fits(value, kind.removesuffix(" or null"))
    if kind.startswith("`"):
        return value in kind.strip("`").split("`, `")
    if kind.startswith("list of "):
        of = kind.removeprefix("list of ").replace("objects", "object")
        return isinstance(value, list) and all(fits(element, of) for element in value)
    if kind.startswith("map of text to "):
        inner = kind.removeprefix("map of text to ")
        return isinstance(value, dict) and all(fits(element, inner) for element in value.values())
    if kind == "anything":
        return True
    return isinstance(value, KINDS[kind]) and (kind == "true or false" or not isinstance(value, bool))
