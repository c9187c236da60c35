"""Closed batches for programs without Spark."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import windrow
from tests.clocks import ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, Row, log, message
from windrow.errors import IncompatibleTableError, LedgerRestoredError, SettingsError, TableMissingError
from windrow.model import tables
from windrow.reading.export import ExportSelection, export

LOG = log(versions=12, seed=4)
COLUMNS = [name for name, _ in tables.batch_fields(pa.string())]


@pytest.fixture
def world(tmp_path: Path, clock: ManualClock) -> World:
    """A depot of six versions and a ledger that does not exist yet."""
    world = World(tmp_path, clock)
    world.publish(*LOG[:6])
    return world


def work(world: World, factory: EngineFactory, microbatches: int) -> None:
    """Go on with the log, a version and a second a microbatch."""
    published = DeltaTable(world.depot).version()
    for version in LOG[published : published + microbatches]:
        world.clock.advance(SECOND)
        world.publish(version)
        world.runner(factory, max_messages=1).once()


def closed(world: World) -> list[Row]:
    """Return the closed rows of the ledger, read with another reader, in the order of their closing."""
    rows = [{name: row[name] for name in COLUMNS} for row in world.rows("closed")]
    return sorted(rows, key=lambda row: (row["closed_microbatch"], row["id"]))


def compact(location: str) -> None:
    """Compact the table and delete every file that it no longer needs."""
    DeltaTable(location).optimize.compact()
    DeltaTable(location).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)


def forget_log(location: str) -> None:
    """Leave of the log only a checkpoint of the latest version."""
    table = DeltaTable(location)
    table.create_checkpoint()
    for file in (Path(location) / "_delta_log").glob("*.json"):
        if int(file.stem) < table.version():
            file.unlink()


class TestReadClosed:
    def test_each_once(self, world, embedded):
        """Calls that go on where the last one ended give each closed batch once, in order, whatever upkeep does."""
        world.runner(embedded, max_messages=1).once()
        first = windrow.read_closed(world.ledger)
        assert first.batches.to_pylist() == closed(world)
        pieces = [first]
        for disturb in (compact, forget_log, compact):
            work(world, embedded, 2)
            disturb(world.ledger)
            pieces.append(windrow.read_closed(world.ledger, since=pieces[-1].position))
        assert all(piece.batches.num_rows for piece in pieces)
        assert [row for piece in pieces for row in piece.batches.to_pylist()] == closed(world)
        assert windrow.read_closed(world.ledger, since=pieces[-1].position).batches.num_rows == 0

    def test_columns(self, world, embedded):
        """The columns are those of the view closed_batches, in plain types, also where there are no rows."""
        world.runner(embedded)
        expected = pa.schema(tables.batch_fields(pa.string()))
        assert windrow.read_closed(world.ledger).batches.schema == expected
        world.runner(embedded).once()
        batches = windrow.read_closed(world.ledger).batches
        assert batches.schema == expected
        assert batches.num_rows

    def test_positions(self, world, embedded):
        """A position survives JSON; the bare number in it means the same, as text or not, and None the beginning."""
        world.runner(embedded, max_messages=1).once()
        position = windrow.read_closed(world.ledger).position
        number, mark = position.split("@")
        assert (int(number), len(mark)) == (6, 12)
        work(world, embedded, 1)
        expected = windrow.read_closed(world.ledger, since=json.loads(json.dumps(position)))
        assert expected.batches.num_rows
        assert windrow.read_closed(world.ledger, since=int(number)) == expected
        assert windrow.read_closed(world.ledger, since=number) == expected
        assert windrow.read_closed(world.ledger, since=0) == windrow.read_closed(world.ledger)

    def test_from_an_empty_ledger(self, world, embedded):
        """An empty ledger gives no batches and a position from which everything follows."""
        world.runner(embedded)
        empty = windrow.read_closed(world.ledger)
        assert (empty.batches.num_rows, empty.position.split("@")[0]) == (0, "0")
        world.runner(embedded).once()
        assert windrow.read_closed(world.ledger, since=empty.position).batches.to_pylist() == closed(world)

    @pytest.mark.ci
    @pytest.mark.slow_unless({"at_once": 7}, {"at_once": 20, "most": 1}, {"at_once": 10_000, "most": 10_000})
    @pytest.mark.parametrize("most", [1, 10_000], ids=["small", "one microbatch"])
    @pytest.mark.parametrize("at_once", [1, 7, 20, 10_000])
    def test_in_pieces(self, world, embedded, at_once, most, tmp_path):
        """Pieces hold as many batches as asked for, and fewer only at the end; an export takes their positions."""
        world.runner(embedded, max_messages=most).once()
        position, rows = None, []
        while (piece := windrow.read_closed(world.ledger, position, batches_at_once=at_once)).batches.num_rows:
            rows += piece.batches.to_pylist()
            assert piece.batches.num_rows == min(at_once, len(closed(world)) - len(rows) + piece.batches.num_rows)
            left = export(world.ledger, str(tmp_path / f"{len(rows)}.json"), ExportSelection(since=piece.position))
            assert left.row_count == len(closed(world)) - len(rows)
            position = piece.position
        assert rows == closed(world)
        assert piece.position == windrow.read_closed(world.ledger).position

    def test_nothing_closed(self, world, embedded, tmp_path, clock):
        """Microbatches that closed nothing move the position, in one call."""
        quiet = World(tmp_path / "quiet", clock)
        quiet.publish([message("a")], [message("b")], [message("c")])
        quiet.runner(embedded, max_messages=1).once()
        closed_batches = windrow.read_closed(quiet.ledger, batches_at_once=1)
        assert (closed_batches.batches.num_rows, closed_batches.position.split("@")[0]) == (0, "3")


@pytest.mark.ci
class TestRestored:
    def test_behind(self, world, embedded):
        """A ledger that was restored to before the position raises, whether the position has a mark or is a number."""
        world.runner(embedded, max_messages=1).once()
        position = windrow.read_closed(world.ledger).position
        DeltaTable(world.ledger).restore(4)
        for since in (position, int(position.split("@")[0])):
            with pytest.raises(LedgerRestoredError, match="but the ledger ends at 4"):
                windrow.read_closed(world.ledger, since)

    def test_gone_on(self, world, embedded):
        """A position behind a restored version raises though the clock stands still; earlier ones stay good."""
        world.runner(embedded, max_messages=1).once()
        early = windrow.read_closed(world.ledger, batches_at_once=1)
        assert int(early.position.split("@")[0]) <= 4
        position = windrow.read_closed(world.ledger).position
        DeltaTable(world.ledger).restore(4)
        world.runner(embedded, max_messages=1).once()
        assert windrow.read_closed(world.ledger).position.split("@")[0] == position.split("@")[0]
        with pytest.raises(LedgerRestoredError, match="is not the one"):
            windrow.read_closed(world.ledger, position)
        later = windrow.read_closed(world.ledger, early.position).batches.to_pylist()
        assert early.batches.to_pylist() + later == closed(world)

    @pytest.mark.parametrize("microbatches", [0, 6])
    def test_made_anew(self, world, embedded, microbatches):
        """Another ledger at the same place raises, also for a position from before the first microbatch."""
        if microbatches:
            world.runner(embedded, max_messages=1).once()
        else:
            world.runner(embedded)
        position = windrow.read_closed(world.ledger).position
        shutil.rmtree(world.ledger)
        world.runner(embedded, max_messages=1).once()
        with pytest.raises(LedgerRestoredError, match="is not the one"):
            windrow.read_closed(world.ledger, position)

    def test_deleted(self, world, embedded):
        """Closed rows that were deleted by hand are missed, not skipped."""
        world.runner(embedded, max_messages=1).once()
        lost = closed(world)[-1]
        DeltaTable(world.ledger).delete(f"state = 'closed' AND id = '{lost['id']}'")
        with pytest.raises(LedgerRestoredError, match="closed rows"):
            windrow.read_closed(world.ledger)

    def test_ledger_without_tokens(self, world, embedded):
        """A history that recorded no tokens has marks as well, of the times its microbatches started."""
        world.runner(embedded, max_messages=1).once()
        DeltaTable(world.ledger).update(updates={"token": "NULL"}, predicate="state = 'microbatch'")
        position = windrow.read_closed(world.ledger).position
        assert windrow.read_closed(world.ledger, position).batches.num_rows == 0
        DeltaTable(world.ledger).update(
            updates={"started_at": "started_at + INTERVAL '1 second'"}, predicate="state = 'microbatch'"
        )
        with pytest.raises(LedgerRestoredError, match="is not the one"):
            windrow.read_closed(world.ledger, position)

    def test_inside_a_microbatch(self, world, embedded):
        """A position inside a microbatch raises when the ledger has another one there, or lost what was read of it."""
        world.runner(embedded).once()
        piece = windrow.read_closed(world.ledger, batches_at_once=3)
        assert piece.position.endswith("/3")
        with pytest.raises(SettingsError, match="is between two closed batches"):
            export(world.ledger, "-", ExportSelection(what="rejected", since=piece.position), "json")
        DeltaTable(world.ledger).delete("state = 'closed'")
        with pytest.raises(LedgerRestoredError, match="wrote 3 closed rows or more, but fewer are there"):
            windrow.read_closed(world.ledger, piece.position)
        DeltaTable(world.ledger).restore(0)
        world.runner(embedded).once()
        with pytest.raises(LedgerRestoredError, match="is not the one"):
            windrow.read_closed(world.ledger, piece.position)


class TestRefused:
    @pytest.mark.parametrize("since", ["", "x", "-1", -1, "4@", "4@XYZ", "1.5", "4@ab@cd", "4/3", "4@ab/0", "9" * 4301])
    def test_no_position(self, world, embedded, since):
        """A `since` that is not a position is an error of the caller."""
        world.runner(embedded)
        with pytest.raises(SettingsError, match="is not a position"):
            windrow.read_closed(world.ledger, since)

    @pytest.mark.parametrize("number", [0, 2.5, "3"])
    def test_no_batches_at_once(self, world, embedded, number):
        """Fewer than one batch at once, or no whole number of them, is an error of the caller."""
        world.runner(embedded)
        with pytest.raises(SettingsError, match=f"batches_at_once is {number!r}"):
            windrow.read_closed(world.ledger, batches_at_once=number)

    def test_no_ledger(self, world, tmp_path):
        """No table, or one that is no ledger, is named."""
        with pytest.raises(TableMissingError):
            windrow.read_closed(os.fspath(tmp_path / "nowhere"))
        with pytest.raises(IncompatibleTableError):
            windrow.read_closed(world.depot)
