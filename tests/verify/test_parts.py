"""What verify finds does not depend on how many streams it looks at together, and a full disk is no `ok`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.world import World
from tests.verify.damages import DAMAGES, misname
from tests.verify.quality.damages import Rows, damage, dropping, first
from windrow.verify import Report, decisions, parts, verify

FULL_DISK = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
from windrow.errors import TableUnwritableError
from windrow.verify import verify
try:
    verify(*sys.argv[1:], max_memory_bytes=10_000)
except TableUnwritableError as error:
    print(error.message, error.hint)
"""


def two_payloads(rows: Rows) -> None:
    """Give a message of a batch, and a rejected one, another payload."""
    first(rows, "closed")["messages"][0]["payload"] = "changed"
    first(rows, "rejected")["payload"] = "changed"


def twice(rows: Rows) -> Rows:
    """Put a message into a second batch of its stream, and a rejection there twice."""
    batches = [row for row in rows if row["state"] == "closed"]
    stream = batches[0]["source"], batches[0]["key"]
    other = next(row for row in batches[1:] if (row["source"], row["key"]) == stream)
    other["messages"].append(batches[0]["messages"][0])
    rejection = first(rows, "rejected")
    return [*rows, rejection | {"id": f"{rejection['id']}9"}]


BESIDE: dict[str, Callable[[Rows], Rows | None]] = {
    "none": lambda rows: None,
    "payloads": two_payloads,
    "twice": twice,
    "open batches gone": dropping("open", 3),
    "rejections gone": dropping("rejected", 7),
    "history": dropping("microbatch"),
}


def findings_of(report: Report) -> tuple[Any, ...]:
    """Return what a report says, but for the order of differences and of examples, and which are shown of many."""
    differences = sorted(
        (difference.check, difference.expected, difference.found, difference.ledger_version)
        for difference in report.differences
    )
    shown = sorted(
        str(example)
        for difference in report.differences
        if len(difference.examples) < 20
        for example in difference.examples
    )
    return report.books, differences, shown, sorted(report.findings)


@pytest.mark.ci
@pytest.mark.slow_unless(*({"name": name} for name in ("none", "payloads", "twice", "rejections gone", "accepted")))
@pytest.mark.parametrize("name", [*DAMAGES, *BESIDE])
def test_every_stream_alone(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Each planted fault is found, and said of as many rows, also if every stream is a part of its own."""
    before = world.version()
    damage(world, BESIDE[name] if name in BESIDE else DAMAGES[name][0])
    versions = [before, world.version()]
    together = verify(world.depot, world.ledger, versions)
    monkeypatch.setattr(parts, "PART_SHARE", 1 << 60)
    assert findings_of(verify(world.depot, world.ledger, versions)) == findings_of(together)
    assert together.ok == (name == "none")


@pytest.mark.ci
def test_stream_that_is_too_large(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The windows of a stream that is larger than the memory are not derived, and the report says so, even with
    --all.
    """
    messages: dict[tuple[str, str], int] = {}
    for row in world.rows("closed", "open"):
        stream = row["source"], row["key"]
        messages[stream] = messages.get(stream, 0) + row["message_count"]
    largest = max(messages, key=lambda stream: messages[stream])
    damage(world, misname(largest))
    monkeypatch.setattr(decisions, "MODEL_BYTES", 1_000_000_000 // (messages[largest] - 1))
    report = verify(world.depot, world.ledger, max_messages=None)
    assert (report.ok, report.complete) == (True, False)
    assert f"windows of 1 of {len(messages)} streams" in report.findings[0]
    assert "too large for max_memory_bytes" in report.findings[0]


def test_full_disk(world: World) -> None:
    """A disk without room for temporary files is an error that says what to do."""
    output = subprocess.check_output([sys.executable, "-c", FULL_DISK, world.depot, world.ledger], text=True)
    assert "no room for temporary rows" in output
    assert "Set TMPDIR" in output
