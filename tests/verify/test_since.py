"""A verification that relies on an earlier one finds what is wrong since, and notices when it must not rely on it."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import Row, log, table
from tests.verify.worlds import random_world
from windrow.batching.rules import ShortWindowWarning
from windrow.columnar.arrow import to_plain_types
from windrow.errors import NotFoundError, TableUnreadableError
from windrow.model import tables
from windrow.verify import Reliance, Report, verify
from windrow.verify.base import Record, write_record

VERSIONS = log(versions=8, seed=3)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
Change = Callable[[list[Row]], list[Row] | None]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables after two microbatches, and what was verified then; the versions after it are the same for all tests."""
    root = tmp_path_factory.mktemp("written")
    world = World(root, ManualClock())
    world.publish(*VERSIONS[:4])
    world.runner(EMBEDDED, max_messages=60).once()
    report = verify(world.depot, world.ledger, relying_on=Reliance(record=str(root / "record.json")))
    assert (report.since, report.since_refused) == (None, None)
    assert write_record(report, str(root / "record.json"), NOW)
    return root


@pytest.fixture
def world(written: Path, tmp_path: Path, clock: ManualClock) -> World:
    """A copy of these tables."""
    shutil.copytree(written, tmp_path, dirs_exist_ok=True)
    return World(tmp_path, clock)


@pytest.fixture
def later(world: World) -> World:
    """The tables after another microbatch."""
    return go_on(world)


def go_on(world: World) -> World:
    """Run over the other depot versions."""
    world.publish(*VERSIONS[4:])
    world.runner(EMBEDDED).once()
    return world


def record_of(world: World) -> Path:
    """Return the file of the record."""
    return Path(world.ledger).parent / "record.json"


def recorded(world: World) -> Record:
    """Return the record."""
    rows = Record.read(str(record_of(world)))
    assert rows is not None
    return rows


def check(world: World) -> Report:
    """Verify what came since the record."""
    return verify(world.depot, world.ledger, relying_on=Reliance(record=str(record_of(world))))


def whole(world: World) -> Report:
    """Verify everything."""
    return verify(world.depot, world.ledger)


def alter(world: World, state: str, change: Change) -> None:
    """Change the rows of a state that were written since the record: in their file, of which the log then tells."""
    version, root = world.version(), Path(world.ledger)
    entry = root / "_delta_log" / f"{version:020}.json"
    actions = [json.loads(line) for line in entry.read_text().splitlines()]
    added = next(
        action["add"] for action in actions if action.get("add", {}).get("path", "").startswith(f"state={state}/")
    )
    file = pq.read_table(root / added["path"], partitioning=None)
    rows = to_plain_types(file).to_pylist()
    rows = change(rows) or rows
    schema = pa.schema([field for field in tables.ledger_schema(world.payload) if field.name in file.column_names])
    pq.write_table(pa.Table.from_pylist(rows, schema), root / added["path"])
    added |= {"size": (root / added["path"]).stat().st_size, "stats": json.dumps({"numRecords": len(rows)})}
    entry.write_text("\n".join(map(json.dumps, actions)))
    for checkpoint in entry.parent.glob("*checkpoint*"):
        checkpoint.unlink()


def joint(rows: list[Row], microbatch: int) -> Row:
    """Return a batch that was open after a microbatch and closed later."""
    return next(row for row in rows if row["opened_microbatch"] <= microbatch and row["message_count"] > 1)


def new(rows: list[Row], microbatch: int) -> Row:
    """Return a batch that was opened after a microbatch."""
    return next(row for row in rows if row["opened_microbatch"] > microbatch and row["message_count"] > 1)


class TestClean:
    def test_since_the_record(self, later: World) -> None:
        """What came since the record is right, and is what is read: the messages that were open then, and the new
        ones.
        """
        report, everything = check(later), whole(later)
        assert (report.differences, report.findings, report.since_refused) == ((), (), None)
        record, since = recorded(later), report.since
        assert since is not None
        assert (since.ledger_version, since.microbatch) == (record.verified.ledger_version, record.verified.microbatch)
        assert (since.depot_version, since.verified_at) == (record.verified.depot_version, "2026-01-02T03:04:05+00:00")
        [books], [all_books] = report.books, everything.books
        assert books.messages_read == books.matched == since.open_message_count + sum(map(len, VERSIONS[4:]))
        assert 0 < since.open_message_count < sum(map(len, VERSIONS[:4]))
        assert (books.in_open_batches, books.depot_version) == (all_books.in_open_batches, all_books.depot_version)
        assert books.microbatch_count == all_books.microbatch_count
        assert books.redecided == sum(map(len, VERSIONS[4:]))
        assert report.verified == everything.verified

    def test_nothing_new(self, world: World) -> None:
        """Without anything new what was open is looked at again, and the report has no difference."""
        report = check(world)
        assert (report.differences, report.findings, report.since_refused) == ((), (), None)
        assert report.books[0].redecided == 0
        assert report.since is not None
        assert report.books[0].in_open_batches == report.books[0].messages_read == report.since.open_message_count

    def test_from_record_to_record(self, later: World) -> None:
        """A report that relies on a record becomes the next record, on which the next one relies."""
        assert write_record(check(later), str(record_of(later)), NOW)
        later.runner(EMBEDDED).flush()
        report = check(later)
        assert (report.differences, report.findings, report.since_refused) == ((), (), None)
        assert report.since is not None
        assert report.since.ledger_version == later.version() - 1

    def test_compacted(self, later: World) -> None:
        """Final rows that maintenance wrote into other files, old and new ones together, are still relied upon."""
        DeltaTable(later.ledger).optimize.compact([("state", "in", list(tables.FINAL))])
        assert not {*live(later, "closed")} & {*live(later, "closed", recorded(later).verified.ledger_version)}
        report = check(later)
        assert (report.differences, report.findings, report.since_refused) == ((), (), None)

    def test_zero(self, later: World) -> None:
        """`--since 0` relies on nothing, whatever the record is."""
        record_of(later).write_text("torn")
        report = verify(later.depot, later.ledger, relying_on=Reliance(0, str(record_of(later))))
        assert (report.ok, report.since, report.since_refused) == (True, None, None)
        assert report.books[0].messages_read == sum(map(len, VERSIONS))

    def test_several_versions(self, later: World) -> None:
        """If several versions are asked for, everything is verified at each."""
        report = verify(later.depot, later.ledger, [1, later.version()], relying_on=Reliance(1))
        assert (report.ok, report.since, len(report.books)) == (True, None, 2)

    @settings(max_examples=2)
    @given(seed=st.integers(0, 1_000_000))
    def test_random(self, seed: int) -> None:
        """From any version on nothing is wrong with a ledger after any data, ticks, flushes and rules."""
        assert_clean(seed)

    @pytest.mark.slow
    @settings(max_examples=60)
    @given(seed=st.integers(0, 1_000_000))
    def test_many(self, seed: int) -> None:
        """The same for many of them."""
        assert_clean(seed)


def assert_clean(seed: int) -> None:
    """Verify a random ledger from each of its versions on, except where the rules have changed since."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as root:
        warnings.simplefilter("ignore", ShortWindowWarning)
        world = random_world(seed, Path(root))
        for version in range(1, world.version() + 1):
            rules = {row["rules"] for row in world.history() if row["microbatch"] >= version}
            if len(rules) > 1:
                with pytest.raises(NotFoundError, match="the rules changed"):
                    verify(world.depot, world.ledger, relying_on=Reliance(version))
                continue
            report = verify(world.depot, world.ledger, relying_on=Reliance(version))
            assert (report.differences, report.findings) == ((), ()), version
            assert report.since is not None
            assert report.since.ledger_version == version
            assert report.books[0].derived_stream_count == report.books[0].stream_count


def lose(batch: Row) -> None:
    """Take a message out of a batch."""
    del batch["messages"][0]


def double(batch: Row) -> None:
    """Put a message twice into a batch."""
    batch["messages"].append(batch["messages"][0])


def change_payload(batch: Row) -> None:
    """Give a message of a batch another payload."""
    batch["messages"][0]["payload"] = "changed"


def misname(batch: Row) -> None:
    """Say of a batch that something else opened it."""
    batch["open_reason"] = "size"


@pytest.mark.ci
class TestWrong:
    @pytest.mark.parametrize("where", [joint, new])
    @pytest.mark.parametrize(
        ("fault", "checks"),
        [
            (lose, {"lost"}),
            (double, {"duplicated"}),
            (change_payload, {"lost", "unexpected"}),
            (misname, {"windows by the rules"}),
        ],
    )
    def test_batch(
        self,
        later: World,
        where: Callable[[list[Row], int], Row],
        fault: Callable[[Row], None],
        checks: set[str],
    ) -> None:
        """A message that is lost, doubled or altered in a batch of the new part is found, and so is a batch that is not
        as the rules make it; also if it was open then and closed later.
        """
        alter(later, "closed", lambda rows: fault(where(rows, recorded(later).verified.microbatch)))
        report = check(later)
        assert report.since is not None
        assert checks <= {difference.check for difference in report.differences}

    @pytest.mark.parametrize(
        ("change", "check_name"),
        [
            (lambda rows: rows[1:], "lost"),
            (lambda rows: [*rows, rows[0] | {"id": f"{rows[0]['id']}9"}], "duplicated"),
            (lambda rows: rows[0].update(reason="too_far_ahead"), "decisions"),
        ],
    )
    def test_rejection(self, later: World, change: Change, check_name: str) -> None:
        """A rejection of the new part that is lost, doubled or has another reason is found."""
        alter(later, "rejected", change)
        report = check(later)
        assert report.since is not None
        assert check_name in {difference.check for difference in report.differences}

    def test_open_batch(self, later: World) -> None:
        """A message that is lost from a batch that is still open is found."""
        alter(later, "open", lambda rows: lose(next(row for row in rows if row["messages"])))
        report = check(later)
        assert report.since is not None
        assert "lost" in {difference.check for difference in report.differences}

    def test_nothing_is_remembered(self, later: World) -> None:
        """A report with a difference is not remembered, nor one that relies on a version of which there is no
        record.
        """
        version = recorded(later).verified.ledger_version
        trusting = verify(later.depot, later.ledger, relying_on=Reliance(version))
        assert (trusting.ok, trusting.since and trusting.since.verified_at) == (True, None)
        assert not write_record(trusting, str(record_of(later)), NOW)
        alter(later, "closed", lambda rows: lose(rows[0]))
        assert not write_record(check(later), str(record_of(later)), NOW)
        assert recorded(later).verified.ledger_version == version

    @pytest.mark.parametrize("role", ["ledger", "depot"])
    @pytest.mark.parametrize("is_gone", [True, False])
    def test_old_file(self, later: World, role: str, is_gone: bool) -> None:
        """A file of then that is gone, or has another size, is a difference although it is not read."""
        location = getattr(later, role)
        [file, *_] = (
            live(later, "closed", 1) if role == "ledger" else sorted(DeltaTable(location, version=1).file_uris())
        )
        if is_gone:
            Path(file).unlink()
        else:
            with Path(file).open("ab") as opened:
                opened.write(b"x")
        report = check(later)
        assert report.since is not None
        assert {difference.check for difference in report.differences} == {"files"}

    @pytest.mark.parametrize("role", ["ledger", "depot"])
    def test_old_content(self, later: World, role: str) -> None:
        """The content of a file of then is not read again: what changed in its place is found only if everything is."""
        files = live(later, "closed", 1) if role == "ledger" else DeltaTable(later.depot, version=1).file_uris()
        Path(min(files)).write_bytes(b"x" * Path(min(files)).stat().st_size)
        report = check(later)
        assert (report.ok, report.since is None) == (True, False)
        with pytest.raises(TableUnreadableError):
            whole(later)


def live(world: World, state: str, version: int | None = None) -> list[str]:
    """Return the live files of a state of the ledger."""
    return sorted(uri for uri in DeltaTable(world.ledger, version=version).file_uris() if f"state={state}/" in uri)


def restore_ledger(world: World) -> None:
    """Restore the ledger to the version before, and run again."""
    DeltaTable(world.ledger).restore(world.version() - 1)
    world.runner(EMBEDDED).once()


def restore_depot(world: World) -> None:
    """Restore the depot to an earlier version."""
    DeltaTable(world.depot).restore(DeltaTable(world.depot).version() - 1)


def set_back(world: World) -> None:
    """Put the ledger back to where it was before the record."""
    for entry in Path(world.ledger, "_delta_log").iterdir():
        if entry.suffix == ".json" and int(entry.stem) >= recorded(world).verified.ledger_version:
            entry.unlink()


def set_back_and_run(world: World) -> None:
    """Put the ledger back to before the record, and run again: other commits have the same numbers."""
    set_back(world)
    world.runner(EMBEDDED, max_messages=60).once()


def replace_depot(world: World) -> None:
    """Set the depot back and fill it again: other commits have the same numbers."""
    for version in range(recorded(world).verified.depot_version, DeltaTable(world.depot).version() + 1):
        Path(world.depot, "_delta_log", f"{version:020}.json").unlink()
    for rows in VERSIONS[3:]:
        write_deltalake(world.depot, table(rows, world.payload), mode="append")


def change_rules(world: World) -> None:
    """Run with other rules."""
    world.runner(EMBEDDED, rules={"max_delay": "6s"}).tick()


def change_old_batch(world: World) -> None:
    """Change a batch that was closed before the record."""
    old = next(row for row in world.rows("closed", version=1))
    DeltaTable(world.ledger).update(updates={"open_reason": "'size'"}, predicate=f"id = '{old['id']}'")


def drop_old_rejection(world: World) -> None:
    """Delete a message that was rejected before the record."""
    old = next(row for row in world.rows("rejected", version=1))
    DeltaTable(world.ledger).delete(f"id = '{old['id']}'")


def another_ledger(world: World) -> None:
    """Let the record be that of another ledger."""
    document = json.loads(record_of(world).read_text())
    record_of(world).write_text(json.dumps(document | {"ledger_id": "another"}))


def tear(world: World) -> None:
    """Cut the record off, as a full disk may."""
    record_of(world).write_text(record_of(world).read_text()[:-40])


def misspell(world: World) -> None:
    """Let a number in the record be a text."""
    document = json.loads(record_of(world).read_text())
    record_of(world).write_text(json.dumps(document | {"ledger_version": str(document["ledger_version"])}))


@pytest.mark.ci
class TestNoticed:
    @pytest.mark.parametrize(
        ("happens", "why", "is_ok"),
        [
            (restore_ledger, "the ledger was restored", True),
            (restore_depot, "the depot was restored", True),
            (set_back, "it was set back", True),
            (set_back_and_run, "is not the recorded one", True),
            (replace_depot, "the depot was replaced", False),
            (change_rules, "the rules changed in microbatch", True),
            (change_old_batch, "rows that were final then have changed", False),
            (drop_old_rejection, "rows that were final then have changed", False),
            (another_ledger, "the record is of another ledger", True),
            (tear, "is not a complete verification record", True),
            (misspell, "no ledger_version", True),
        ],
    )
    def test_everything_is_verified(
        self, later: World, happens: Callable[[World], None], why: str, is_ok: bool
    ) -> None:
        """What happened since the record and forbids to rely on it is said, and everything is verified."""
        happens(later)
        report, everything = check(later), whole(later)
        assert report.since is None
        assert why in (report.since_refused or "")
        assert report.books == everything.books
        assert report.differences == everything.differences
        assert report.ok == is_ok

    @pytest.mark.parametrize("happens", [restore_ledger, change_rules, change_old_batch, tear])
    def test_asked_for(self, later: World, happens: Callable[[World], None]) -> None:
        """If the version was asked for, that is an error instead."""
        version = recorded(later).verified.ledger_version
        happens(later)
        with pytest.raises(NotFoundError, match=f"cannot rely on ledger version {version}: ") as error:
            verify(later.depot, later.ledger, relying_on=Reliance(version, str(record_of(later))))
        assert "Leave out --since" in error.value.hint

    def test_version_that_never_was(self, later: World) -> None:
        """A version that no record names is said to be after the latest one: the ledger was not set back."""
        latest = later.version()
        with pytest.raises(
            NotFoundError, match=f"version {latest + 1}: the latest version of the ledger is {latest}\n"
        ):
            verify(later.depot, later.ledger, relying_on=Reliance(latest + 1, str(record_of(later))))

    def test_open_rows_gone(self, later: World) -> None:
        """When the files of what was open then are gone, everything is verified."""
        ledger = later.tables(EMBEDDED).ledger
        ledger.fold(ledger.live(), "large")
        DeltaTable(later.ledger).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        report = check(later)
        assert report.since is None
        assert "can no longer be read" in (report.since_refused or "")
        assert report.ok

    def test_new_versions_gone(self, world: World) -> None:
        """When depot versions since then can no longer be read, everything is verified, and what is missing is said."""
        go_on(world)
        DeltaTable(world.depot).optimize.compact()
        DeltaTable(world.depot).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        report = check(world)
        assert report.since is None
        assert report.since_refused == "depot versions since then can no longer be read"
        assert not report.complete
