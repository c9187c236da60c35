"""`windrow prove`: it prints the root, and writes a certificate of a message that is final."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


def test_root(filled: Command, tmp_path: Path) -> None:
    """Without a message it prints the root, and writes nothing."""
    document = filled("prove", "--json").json()
    assert (document["closed_windows"], document["rejected"], document["certificate"]) == (2, 1, None)
    assert document["root"] in filled("prove").out
    assert not (tmp_path / "certificate.json").exists()


def test_message(filled: Command, tmp_path: Path) -> None:
    """A message of a closed batch gets a certificate under the same root."""
    [batch, *_] = filled("show", "--closed", "--json").json()
    message = batch["messages"][0]
    name = ["--key", batch["key"], "--event-time", message["event_time"], "--type", message["type"]]
    document = filled("prove", *name, "--out", "one.json", "--json").json()
    assert (document["outcome"], document["certificate"]) == ("closed", "one.json")
    certificate = json.loads((tmp_path / "one.json").read_text())
    assert certificate["ledger"]["root"] == document["root"]
    assert "is in a closed batch: wrote certificate.json" in filled("prove", *name).out


def test_rejection(filled: Command) -> None:
    """A rejection is named by its id."""
    [rejection] = filled("show", "--rejected", "--json").json()
    assert filled("prove", rejection["id"], "--json").json()["outcome"] == "rejected"
    assert "The message was rejected" in filled("prove", rejection["id"]).out


def test_version(filled: Command) -> None:
    """The root of an earlier version is another one; a version that does not exist is refused."""
    version = filled("prove", "--json").json()["ledger_version"]
    assert filled("prove", "--ledger-version", str(version), "--json").json()["ledger_version"] == version
    assert filled("prove", "--ledger-version", "99").status != 0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--key", "a"], "--event-time"),
        (["--type", "a"], "--key"),
        (["x", "--key", "a"], "an id names one rejection"),
        (["--key", "a", "--event-time", "yesterday"], "yesterday"),
        (["rejected/9/a/b/0"], "there is no rejection"),
        (["--key", "nobody", "--event-time", "2026-01-31T12:00:07Z"], "no such message"),
    ],
)
def test_refused(filled: Command, flags: list[str], says: str) -> None:
    """What names no message, or not one, says what is missing."""
    result = filled("prove", *flags)
    assert (result.status != 0, says in result.err) == (True, True), result.err


def test_out(filled: Command) -> None:
    """A file that cannot be written is an error with a hint."""
    [rejection] = filled("show", "--rejected", "--json").json()
    result = filled("prove", rejection["id"], "--out", "nowhere/one.json")
    assert (result.status, "--out" in result.err) == (2, True)
