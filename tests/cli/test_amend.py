"""`windrow amend`: a branch that a replay kept is committed as an amendment."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Command


def test_amend(filled: Command) -> None:
    """The rejected message is let in; the same again says that there is nothing to amend."""
    filled("replay", "--window", "30s", "--max-delay", "15s", "--into", "patient")
    document = filled("amend", "patient", "--json").json()
    counts = (
        document["microbatch"],
        document["superseded_batch_count"],
        document["amended_batch_count"],
        document["let_in"],
    )
    assert counts == (2, 0, 1, 1)
    filled("replay", "--window", "30s", "--max-delay", "15s", "--into", "again")
    assert "Nothing to amend" in filled("amend", "again").out
    assert filled("verify").status == 0


def test_no_branch(filled: Command) -> None:
    """What is no ledger, or is not there, is refused."""
    result = filled("amend", "data/depot")
    assert (result.status != 0, "not a ledger" in result.err) == (True, True)
    result = filled("amend", "nowhere")
    assert (result.status != 0, "no branch at nowhere" in result.err, "--into" in result.err) == (True, True, True)


def test_rule_sets(filled: Command, tmp_path: Path) -> None:
    """Several rule sets are compared in a table, a line for each; none is kept."""
    for name, window in (("a", "30s"), ("b", "60s")):
        (tmp_path / f"{name}.toml").write_text(f'[rules]\nwindow = "{window}"\nmax_delay = "15s"\n')
    files = ["--rules", "a.toml", "--rules", "b.toml"]
    lines = filled("replay", *files).out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["as", "a.toml", "b.toml"]
    documents = filled("replay", *files, "--json").json()
    assert [document["replayed"]["rejected_by_reason"] for document in documents] == [{}, {}]
    assert "one rule set" in filled("replay", *files, "--into", "kept").err
