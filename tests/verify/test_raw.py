"""A ledger over a raw depot verifies clean as it was written, and not when it was damaged."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.messages import Row
from tests.verify.quality.by_part import check_invariants
from tests.verify.quality.damages import Damage, Rows, damage, dropping, first, plus, setting
from tests.verify.raws import RawWorld, eventful, random_world
from windrow.reading.tables import open_ledger
from windrow.verify import Report, quality, verify

BALANCE = {"bytes", "rejected bytes"}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables that saw everything that a raw depot can hold."""
    root = tmp_path_factory.mktemp("raw")
    eventful(root, ManualClock())
    return root


@pytest.fixture
def world(written: Path, tmp_path: Path, clock: ManualClock) -> RawWorld:
    """A copy of these tables."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return RawWorld(tmp_path, clock)


def failed_checks(report: Report) -> set[str]:
    """Return the names of the checks that found a difference."""
    return {difference.check for difference in report.differences}


class TestClean:
    @pytest.mark.slow
    def test_every_version(self, world: RawWorld) -> None:
        """At every version the bytes and the books balance, and all is as the depot, formatted in one piece, gives
        it.
        """
        report = verify(world.depot, world.ledger, range(world.version() + 1))
        assert (report.differences, report.findings) == ((), ())
        last = report.books[-1]
        assert last.matched + last.rejected_by_format == last.messages_read
        assert last.redecided == last.matched
        assert last.derived_stream_count == last.stream_count > 0
        reasons = {row["reason"] for row in world.rows("rejected")}
        assert reasons == {
            "duplicate", "format_columns", "format_conflict", "format_gap", "format_invalid", "format_repeated",
        }  # fmt: skip
        assert {row["raw_source"] for row in world.rows("partial")} == {"a", "b", "c", "d"}

    def test_check(self, world: RawWorld) -> None:
        """All critical expectations hold, and the one about the format says how much it refused."""
        checked = quality.check(None, world.ledger)
        assert checked.ok
        failed = {failure.name: failure.failed_count for failure in checked.failures("info")}
        refused = [row for row in world.rows("rejected") if row["reason"].startswith("format_")]
        assert failed["format_nothing"] == len(refused)
        assert list(check_invariants(open_ledger(world.ledger))) == []

    @pytest.mark.slow
    @settings(max_examples=4)
    @given(seed=st.integers(0, 1_000_000))
    def test_random(self, seed: int) -> None:
        """Nothing is wrong after any chunks, cut anywhere, in any order, in any microbatches, whatever the format
        was.
        """
        with tempfile.TemporaryDirectory() as root:
            world = random_world(seed, Path(root))
            report = verify(world.depot, world.ledger, {world.version(), seed % (world.version() + 1)})
            assert (report.differences, report.findings) == ((), ())

    def test_forgotten(self, world: RawWorld) -> None:
        """Where the beginning of a raw depot is gone nothing of it can be formatted; the books are checked, and the
        report says how much could not be.
        """
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        report = verify(world.depot, world.ledger)
        assert (report.ok, report.complete) == (True, False)
        assert any("cannot be formatted again" in finding for finding in report.findings)
        books = report.books[0]
        assert books.unchecked == books.messages_read - books.rejected_by_format


def by_format(reason: str) -> Callable[[Row], bool]:
    """Return what tells the rejections for a reason."""
    return lambda row: bool(row["reason"] == reason)


def of_source(name: str) -> Callable[[Row], bool]:
    """Return what tells the partial row of a source itself."""
    return lambda row: bool(row["raw_source"] == name and row["framing"])


def unreject(rows: Rows) -> Rows:
    """Take away a rejection of the format, and count one less."""
    gone = first(rows, "rejected", by_format("format_columns"))
    history = first(rows, "microbatch", lambda row: row["microbatch"] == gone["microbatch"])
    size = len(gone["content"])
    for name in ("rejected", "messages_read"):
        history[name] -= 1
    history["versions"][0]["messages"] -= 1
    history["bytes_rejected"] -= size
    history["bytes_framed"] += size
    return [row for row in rows if row is not gone]


def longer(rows: Rows) -> None:
    """Let a microbatch have read and framed more bytes than there are."""
    history = first(rows, "microbatch", lambda row: row["bytes_read"])
    history["bytes_read"] += 1
    history["bytes_framed"] += 1


def swap(rows: Rows) -> None:
    """Change bytes of a rejection, not their number."""
    row = first(rows, "rejected", by_format("format_columns"))
    row["content"] = row["content"][::-1]


def rename(rows: Rows) -> None:
    """Let a rejection be of another source, with the id of it."""
    row = first(rows, "rejected", by_format("format_columns"))
    row |= {"raw_source": "z", "id": row["id"].replace("/b/", "/z/")}


def other_end(rows: Rows) -> None:
    """Change the bytes of an unfinished record, not their number."""
    row = first(rows, "partial", of_source("b"))
    row["content"] = row["content"][::-1]


DAMAGES: dict[str, tuple[Damage, set[str]]] = {
    "rejection gone": (dropping("rejected"), {"balance", "microbatch_rejected", "refused by the format"}),
    "rejection gone from the books": (unreject, {"refused by the format", "depot versions"}),
    "content": (swap, {"refused by the format"}),
    "content gone": (
        setting("rejected", by_format("format_columns"), content=None),
        {"rejected bytes", "refused by the format"},
    ),
    "reason": (setting("rejected", by_format("format_columns"), reason="format_cast"), {"refused by the format"}),
    "unknown reason": (
        setting("rejected", by_format("format_columns"), reason="format_mood"),
        {"format_reason", "refused by the format"},
    ),
    "no reason of the format": (
        setting("rejected", by_format("format_columns"), reason="invalid"),
        {"rejected_id", "unexpected", "refused by the format", "decisions"},
    ),
    "detail": (setting("rejected", by_format("format_gap"), detail=None), {"format_detail"}),
    "key": (setting("rejected", by_format("format_gap"), key="k"), {"format_no_message"}),
    "payload": (setting("rejected", by_format("format_gap"), payload="p"), {"payloads of the format"}),
    "offset": (setting("rejected", by_format("format_columns"), offset=plus("offset", 1)), {"ids"}),
    "chunk": (setting("rejected", by_format("format_conflict"), chunk=plus("chunk", 1)), {"ids"}),
    "source": (rename, {"refused by the format"}),
    "microbatch": (
        setting("rejected", by_format("format_columns"), microbatch=plus("microbatch", 1)),
        {"microbatch_rejected", "refused by the format"},
    ),
    "bytes read": (setting("microbatch", bytes_read=plus("bytes_read", 1)), {"bytes", "bytes read"}),
    "bytes framed": (setting("microbatch", bytes_framed=plus("bytes_framed", 1)), {"bytes"}),
    "bytes rejected": (setting("microbatch", bytes_rejected=plus("bytes_rejected", 1)), BALANCE),
    "bytes repeated": (setting("microbatch", bytes_repeated=plus("bytes_repeated", 1)), {"bytes"}),
    "bytes read and framed": (longer, {"bytes read"}),
    "partial gone": (dropping("partial", most=99), {"bytes", "unfinished"}),
    "partial content": (other_end, {"unfinished"}),
    "partial longer": (setting("partial", of_source("b"), content=b"173"), {"bytes", "unfinished"}),
    "partial chunk": (setting("partial", of_source("a"), chunk=9), {"unfinished"}),
    "partial id": (setting("partial", of_source("a"), raw_source="z"), {"ids", "unfinished"}),
}


@pytest.mark.ci
class TestDamaged:
    @pytest.mark.parametrize("name", DAMAGES)
    def test_found(self, world: RawWorld, name: str) -> None:
        """What is damaged is found by the checks that are about it, with examples that JSON knows."""
        change, checks = DAMAGES[name]
        damage(world, change)
        report = verify(world.depot, world.ledger)
        assert failed_checks(report) >= checks
        json.dumps(report.to_dict())

    def test_rewriting_changes_nothing(self, world: RawWorld) -> None:
        """The way in which these tests damage a ledger makes no difference when nothing is damaged."""
        damage(world, lambda rows: None)
        assert verify(world.depot, world.ledger).ok

    def test_final(self, world: RawWorld) -> None:
        """A rejection of the format that changes after it was written, and bytes that do, are found between
        versions.
        """
        before = world.version()
        damage(world, setting("rejected", by_format("format_gap"), detail="another one"))
        damage(world, setting("microbatch", bytes_framed=plus("bytes_framed", 1)))
        report = verify(world.depot, world.ledger, [before, world.version()])
        assert failed_checks(report) >= {"final rows (rejected)", "final rows (microbatch)"}
