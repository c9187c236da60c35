"""What no other check of verify looks at is found as well: the log and each file tell of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import log
from windrow.errors import TableUnreadableError
from windrow.model import messages, tables
from windrow.verify import Report, verify

LATER = {"max_delay": "6s", "max_batch_bytes": 40, "window_anchor": "event_time"}


def check(world: World) -> Report:
    """Verify the latest version."""
    return verify(world.depot, world.ledger)


def failed_checks(world: World) -> set[str]:
    """Return the names of the checks that find a difference."""
    return {difference.check for difference in check(world).differences}


def entry(location: str, version: int) -> Path:
    """Return the log's file of a version."""
    return Path(location) / "_delta_log" / f"{version:020}.json"


def live_file(location: str, state: str = "") -> Path:
    """Return a data file of a table as it is now, of a state of a ledger."""
    paths = DeltaTable(location).file_uris()
    return Path(min(path for path in paths if state in path))


def flip(file: Path, column: str) -> None:
    """Flip all bits in which a column's values are kept."""
    group = pq.ParquetFile(file).metadata.row_group(0)
    columns = [group.column(at) for at in range(group.num_columns)]
    place = next(chunk for chunk in columns if chunk.path_in_schema == column)
    start = min(at for at in (place.dictionary_page_offset, place.data_page_offset) if at)
    end, content = start + place.total_compressed_size, bytearray(file.read_bytes())
    content[start:end] = bytes(byte ^ 0xFF for byte in content[start:end])
    file.write_bytes(content)


@pytest.mark.ci
class TestByHand:
    @pytest.mark.parametrize(
        ("where", "updates", "check"),
        [
            ("state = 'microbatch' AND microbatch = 2", {"token": "'x'"}, "notes"),
            ("state = 'microbatch' AND microbatch = 2", {"attempt": "7"}, "by hand"),
            ("state = 'microbatch' AND microbatch = 2", {"column_mapping": "'{}'"}, "by hand"),
            ("state = 'microbatch' AND microbatch = 2", {"started_at": "closed_at"}, "by hand"),
            ("id = 'progress'", {"token": "'x'"}, "progress row"),
            ("id = 'progress'", {"paused": "true"}, "progress row"),
            ("id = 'progress'", {"commit_fingerprint": "'log:x'"}, "progress row"),
            ("id = 'progress'", {"commit_fingerprint": "NULL"}, "progress row"),
        ],
    )
    def test_updated(self, world: World, where: str, updates: dict[str, str], check: str) -> None:
        """An update of what only the log, the version before or the depot's log can tell is found."""
        DeltaTable(world.ledger).update(updates=updates, predicate=where)
        assert check in failed_checks(world)

    def test_restored(self, world: World) -> None:
        """A RESTORE mends what was updated."""
        version = world.version()
        DeltaTable(world.ledger).update(updates={"token": "'x'"}, predicate="id = 'progress'")
        assert failed_checks(world)
        DeltaTable(world.ledger).restore(version)
        assert failed_checks(world) == set()

    def test_goes_on(self, world: World, embedded: EngineFactory) -> None:
        """A change of the history is found after further microbatches as well."""
        DeltaTable(world.ledger).update(updates={"attempt": "7"}, predicate="state = 'microbatch' AND microbatch = 2")
        world.publish(*log(versions=1, seed=7))
        world.runner(embedded, rules=LATER).once()
        assert failed_checks(world) == {"by hand"}

    @pytest.mark.parametrize(
        ("where", "updates", "row"),
        [
            ("microbatch = 2 AND state = 'microbatch'", {"closed": "closed + 1"}, "microbatch/2"),
            ("microbatch = 2 AND state = 'microbatch'", {"chain": "NULL"}, "microbatch/2"),
            ("id = 'progress'", {"chain": "'x'"}, "progress"),
        ],
    )
    def test_chain(self, world: World, where: str, updates: dict[str, str], row: str) -> None:
        """A row of the history that is not the one that was written breaks the chain there."""
        DeltaTable(world.ledger).update(updates=updates, predicate=where)
        [broken] = [difference for difference in check(world).differences if difference.check == "chain"]
        assert row in {example["id"] for example in broken.examples}

    def test_commit_of_the_depot(self, world: World) -> None:
        """A commit of the depot that is another one than that which was read is found, though its rows are equal."""
        first = entry(world.depot, 1)
        first.write_text(first.read_text().replace('"timestamp":', '"timestamp":1'))
        [replaced] = [difference for difference in check(world).differences if difference.check == "depot commits"]
        assert [example["version"] for example in replaced.examples] == [1]

    def test_pause(self, world: World, embedded: EngineFactory) -> None:
        """A ledger that is paused, and one that was resumed, is as it should be."""
        world.runner(embedded, rules=LATER).pause()
        assert failed_checks(world) == set()
        world.runner(embedded, rules=LATER).resume()
        assert failed_checks(world) == set()

    def test_foreign_state(self, world: World) -> None:
        """A row of a state that Windrow does not know is found."""
        schema = tables.ledger_schema(world.payload)
        write_deltalake(world.ledger, pa.Table.from_pylist([{"id": "a", "state": "note"}], schema), mode="append")
        assert failed_checks(world) == {"states"}


@pytest.mark.ci
class TestFiles:
    @pytest.mark.parametrize("role", ["ledger", "depot"])
    def test_count_in_the_log(self, world: World, role: str) -> None:
        """A number of rows in the log that is not that of the file is found, also where a checkpoint has the right
        one.
        """
        location = getattr(world, role)
        name = live_file(location).name
        for version in range(DeltaTable(location).version() + 1):
            text = entry(location, version).read_text()
            lines = text.splitlines()
            for at, line in enumerate(lines):
                action = json.loads(line)
                if "add" in action and action["add"]["path"].endswith(name):
                    stats = json.loads(action["add"]["stats"])
                    action["add"]["stats"] = json.dumps(stats | {"numRecords": stats["numRecords"] + 1})
                    lines[at] = json.dumps(action)
            entry(location, version).write_text("\n".join(lines))
        assert "files" in failed_checks(world)

    def test_column_that_nothing_else_reads(self, world: World) -> None:
        """A file in which a column can no longer be read is found and named, also where no other check reads the
        column.
        """
        file = live_file(world.ledger, "state=microbatch")
        flip(file, "engine")
        with pytest.raises(TableUnreadableError, match=file.name):
            check(world)

    @pytest.mark.parametrize("column", ["payload", "beside"])
    def test_depot(self, world: World, embedded: EngineFactory, column: str) -> None:
        """The same in the depot, whether a message has the column or not."""
        rows = list(log(versions=1, seed=8)[0])
        extra = pa.Table.from_pylist(rows, messages.schema()).append_column("beside", pa.array(["x"] * len(rows)))
        write_deltalake(world.depot, extra, mode="append", schema_mode="merge")
        world.runner(embedded, rules=LATER).once()
        assert failed_checks(world) == set()
        newest = max(Path(world.depot).glob("*.parquet"), key=lambda path: path.stat().st_mtime_ns)
        flip(newest, column)
        with pytest.raises(TableUnreadableError, match=newest.name):
            check(world)

    def test_changed_in_place(self, world: World) -> None:
        """A file that was written again in its place is found, by its size or by the values that the log says of it."""
        file = live_file(world.ledger, "state=microbatch")
        rows = pq.read_table(file, partitioning=None)
        rows = rows.set_column(rows.column_names.index("attempt"), "attempt", pa.array([7] * rows.num_rows, pa.int32()))
        pq.write_table(rows, file)
        size = file.stat().st_size
        for version in range(world.version() + 1):
            lines = [json.loads(line) for line in entry(world.ledger, version).read_text().splitlines()]
            for action in lines:
                if action.get("add", {}).get("path", "").endswith(file.name):
                    action["add"]["size"] = size
            entry(world.ledger, version).write_text("\n".join(map(json.dumps, lines)))
        for checkpoint in entry(world.ledger, 0).parent.glob("*checkpoint*"):  # has the size as well
            checkpoint.unlink()
        [difference] = check(world).differences
        assert (difference.check, "attempt" in difference.examples[0]["why"]) == ("files", True)


@pytest.mark.ci
class TestEnd:
    @pytest.mark.parametrize("role", ["ledger", "depot"])
    def test_last_entry_gone(self, world: World, role: str) -> None:
        """When the last entry of a log is gone, verify says which files nobody names; it cannot tell this from a commit
        that never came about.
        """
        if role == "depot":
            world.publish(*log(versions=1, seed=9))  # which no microbatch has read: then the ledger does not tell
        location = getattr(world, role)
        entry(location, DeltaTable(location).version()).unlink()
        report = check(world)
        assert (report.ok, report.complete) == (True, False)
        assert any(f"the last commits of the {role}" in finding for finding in report.findings)

    def test_beside_the_entry(self, world: World) -> None:
        """What Spark keeps beside an entry proves that there was one."""
        last = entry(world.ledger, world.version())
        last.rename(last.with_name(f".{last.name}.crc"))
        assert failed_checks(world) == {"log"}

    def test_attempt_that_failed(self, world: World, embedded: EngineFactory) -> None:
        """Files of an attempt that was made again are nothing to tell of."""
        last = world.version()
        entry(world.ledger, last).unlink()
        world.runner(embedded, rules=LATER).once()
        report: Any = check(world)
        assert (report.differences, report.findings) == ((), ())
