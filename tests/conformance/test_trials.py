"""The input, the trials and the table; and Windrow without Spark in two trials."""

from __future__ import annotations

import ast
from pathlib import Path

import pyarrow.compute as pc
import pytest

from tests.conformance import depot, oracle
from tests.conformance.depot import Scenario
from tests.conformance.page import BEGIN, END, cell, markdown, write
from tests.conformance.system import NAMES, InvalidSystemError, load_system
from tests.conformance.trials import TRIALS, Bench, Result, forget_reply, run_trial

PACKAGE = Path(__file__).parent
CONTENT = ["source", "key", "type", "event_time", "sequence", "payload"]


def result(counts: dict[str, int | None], struck: int | None = None, note: str = "") -> Result:
    return Result("window", "SIGKILL", counts, struck, note)


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=str)
def test_shares_no_code(file: Path) -> None:
    """Nothing here imports Windrow, or modules of its tests."""
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    names = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    assert not [
        name for name in names if name.split(".")[0] in ("windrow", "tests", "benchmarks") and not _is_own(name)
    ]


def _is_own(name: str) -> bool:
    return name.startswith("tests.conformance") or name == "benchmarks.peers"


@pytest.mark.parametrize("scenario", Scenario)
def test_input(scenario: Scenario) -> None:
    """An id names one content, deliveries come in the order of their arrival, and only the scenarios have what they
    are named for.
    """
    sent = depot.messages(1, scenario)
    content = sent.drop_columns("received_at").group_by(CONTENT).aggregate([])
    assert content.num_rows == len(pc.unique(sent["sequence"])) < sent.num_rows
    assert sent["received_at"].to_pylist() == sorted(sent["received_at"].to_pylist())
    delay = pc.subtract(*(sent[name].cast("int64") for name in ("received_at", "event_time")))
    assert (pc.max(delay).as_py() > oracle.MAX_DELAY_US) == (scenario is Scenario.LATE)
    assert (pc.min(delay).as_py() < 0) == (scenario is Scenario.FAST_CLOCK)
    last = sent.group_by("source").aggregate([("received_at", "max")])["received_at_max"].to_pylist()
    assert ((max(last) - min(last)).seconds > 20) == (scenario is Scenario.IDLE_SOURCE)
    assert sum(part.num_rows for part in depot.versions(sent)) == sent.num_rows


def test_newest_note_is_forgotten(tmp_path: Path) -> None:
    """The newest note of a checkpoint is deleted if its microbatch is the newest that began, and otherwise none."""
    for directory, numbers in {"offsets": (0, 1, 2), "commits": (0, 1)}.items():
        (tmp_path / directory).mkdir()
        for number in numbers:
            (tmp_path / directory / f"{number}").touch()
    forget_reply(tmp_path)
    assert len(list((tmp_path / "commits").iterdir())) == 2
    (tmp_path / "offsets" / "2").unlink()
    forget_reply(tmp_path)
    assert [file.name for file in (tmp_path / "commits").iterdir()] == ["0"]
    forget_reply(tmp_path / "nothing")


def test_sound() -> None:
    """A result is sound without defects, if the fault struck and the writer ended."""
    assert result({"lost": 0, "different": None}, struck=1).is_sound
    assert not result({"lost": 1}).is_sound
    assert not result({"lost": 0}, struck=0).is_sound
    assert not result({"lost": None}, note="it ended with status 1").is_sound


def test_table() -> None:
    """The table has a row for each trial and says what is wrong, and what was not run."""
    systems = [load_system("window"), load_system("windrow")]
    table = markdown(systems, [result({"lost": 1200, "twice": 0})])
    assert table.splitlines()[2] == "| SIGKILL | 1,200 lost | not run |"
    assert [cell(result({"lost": 0}, struck)) for struck in (None, 0, 2)] == ["sound", "never struck", "sound"]
    assert cell(result({}, note="it did not end")) == "failed"


def test_written_table_keeps_others(tmp_path: Path) -> None:
    """Results that are written to a page replace theirs, and those of other systems and trials stay."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}{END}after\n")
    write([], [result({"lost": 2})], page)
    write([], [Result("windrow", "undisturbed", {"lost": 0})], page)
    write([], [result({"lost": 3})], page)
    lines = page.read_text().splitlines()
    assert "| undisturbed | sound | not run |" in lines
    assert "| SIGKILL | not run | 3 lost |" in lines
    assert (lines[0], lines[-1]) == ("before", "after")


@pytest.mark.parametrize("name", NAMES)
def test_systems(name: str) -> None:
    """The description of each system can be read, and its command gets the three directories."""
    system = load_system(name)
    command = system.command_for(Path("/d"), Path("/o"), Path("/c"))
    assert "/d" in command
    assert "/o" in command
    assert system.claims_conformance == name.startswith("windrow")


def test_invalid_system(tmp_path: Path) -> None:
    """A file that does not describe a system is refused with its name."""
    (tmp_path / "mine.toml").write_text("command = ['run']")
    with pytest.raises(InvalidSystemError, match=r"mine\.toml"):
        load_system(str(tmp_path / "mine.toml"))


@pytest.mark.ci
@pytest.mark.parametrize("trial", ["lost reply", "late messages"])
def test_windrow(trial: str, tmp_path: Path) -> None:
    """Windrow without Spark loses, repeats, alters and changes nothing, and finds the same batches after a kill."""
    result = run_trial(Bench(load_system("windrow_embedded"), tmp_path, seed=2, kills=2), trial)
    assert result.is_sound, result


def test_every_trial_says_what_it_does() -> None:
    """Each trial has a docstring, and the page that explains the suite names it."""
    page = Path("docs/reference/conformance.md").read_text(encoding="utf-8")
    for name, trial in TRIALS.items():
        assert trial.__doc__
        assert f"| {name} |" in page
