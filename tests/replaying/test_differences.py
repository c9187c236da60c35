"""What a replay says when the result is another one: damage, other rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

import windrow
from tests.clocks import NOW
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, Row, log, message
from tests.replaying.test_equal import live
from windrow.errors import DepotUnreadableError
from windrow.model import tables
from windrow.replaying import Comparison, Replay
from windrow.verify import verify


def compared(result: Replay) -> Comparison:
    """Return the comparison of a replay that gave something else."""
    assert result.comparison is not None
    return result.comparison


def damage(world: World, change: Callable[[list[Row]], None]) -> None:
    """Replace the rows of a ledger by what `change` makes of them."""
    rows = world.rows("open", "closed", "progress", "rejected", "microbatch")
    change(rows)
    schema = tables.ledger_schema(world.payload)
    write_deltalake(world.ledger, pa.Table.from_pylist(rows, schema), mode="overwrite")


def first(rows: list[Row], state: str) -> Row:
    """Return the first row of a state that has messages or a reason."""
    return next(row for row in rows if row["state"] == state)


class TestDamage:
    @pytest.fixture
    def read(self, world: World, embedded: EngineFactory) -> World:
        """A ledger of two microbatches, with everything in it."""
        world.publish(*log(versions=4))
        world.runner(embedded, max_messages=60).once()
        return world

    def test_of_a_column(self, read: World) -> None:
        """A batch whose window was changed by hand is named, with the column and both values, and the microbatch."""
        ids = []

        def change(rows: list[Row]) -> None:
            row = first(rows, "closed")
            row["open_reason"] = "size"
            ids.append((row["id"], row["closed_microbatch"]))

        damage(read, change)
        result = read.replayed()
        assert (result.equal, result.ok) == (False, False)
        comparison = compared(result)
        assert [(change.kind, change.id, change.microbatch) for change in comparison.changes] == [("changed", *ids[0])]
        assert comparison.changes[0].columns == {"open_reason": ("size", "message")}
        assert (comparison.first_microbatch, comparison.moved_message_count) == (ids[0][1], 0)

    def test_of_a_payload(self, read: World) -> None:
        """One byte in one payload makes another digest: the message that is there, and the one that ought to be."""

        def change(rows: list[Row]) -> None:
            first(rows, "closed")["messages"][0]["payload"] = "other"

        damage(read, change)
        comparison = compared(read.replayed())
        places = [(move.before is None, move.after is None, move.message_count) for move in comparison.moves]
        assert sorted(places) == [(False, True, 1), (True, False, 1)]

    def test_of_a_rejection(self, read: World) -> None:
        """A rejection that was deleted, and one with another reason, are found by their messages."""

        def change(rows: list[Row]) -> None:
            rows.remove(first(rows, "rejected"))
            first(rows, "rejected")["reason"] = "duplicate"

        damage(read, change)
        result = read.replayed()
        comparison = compared(result)
        assert not result.ok
        assert None in {move.before for move in comparison.moves}
        assert {change.columns["reason"][0] for change in comparison.changes} == {"duplicate"}

    def test_of_the_depot(self, read: World) -> None:
        """Where the depot no longer has what was read, the replay says so and ends."""
        table = DeltaTable(read.depot)
        table.optimize.compact()
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(DepotUnreadableError, match="--from"):
            read.replayed()


class TestOtherRules:
    RULES = windrow.Rules(window="20s", max_delay="9s")

    def test_as_if_they_had_been(self, world: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """Under other rules the new ledger is the one that a run under them would have made, and runs go on from it."""
        *versions, last = log(versions=5, seed=5)
        world.publish(*versions)
        world.runner(embedded).once()
        result = world.replayed(str(tmp_path / "other"), rules=self.RULES)
        assert result.ok
        assert result.rules is not None
        assert result.rules["window"] == 20 * SECOND
        world.publish(last)
        for name in ("other", "straight"):
            world.ledger = str(tmp_path / name)
            world.runner(embedded, rules={"window": "20s", "max_delay": "9s"}).once()
            assert verify(world.depot, world.ledger).differences == ()
        assert windrow.digests(str(tmp_path / "other")).total == windrow.digests(world.ledger).total

    def test_every_message_is_accounted_for(self, world: World) -> None:
        """The changes and moves add up: each side's batches are the same, changed, in another window, or on one side
        only; as many messages as were rejected before and are not any more came out of a rejection.
        """
        live(world, [("publish", 3), ("publish", 4), ("tick", 3), ("publish", 9), ("flush", 0)])
        result = world.replayed(rules=self.RULES, limit=10_000)
        comparison = compared(result)
        of = dict.fromkeys(("changed", "moved", "removed", "added"), 0)
        for change in comparison.changes:
            of[change.kind] += 1
        assert of == comparison.counts
        refused = sum(result.recorded.rejected_by_reason.values())
        old, new = (
            result.recorded.batch_count + refused,
            result.replayed.batch_count + sum(result.replayed.rejected_by_reason.values()),
        )
        assert comparison.unchanged + of["changed"] + of["moved"] + of["removed"] <= old
        assert comparison.unchanged + of["changed"] + of["moved"] + of["added"] <= new
        assert sum(move.message_count for move in comparison.moves) == comparison.moved_message_count
        for reason in {*result.recorded.rejected_by_reason, *result.replayed.rejected_by_reason}:
            left = sum(move.message_count for move in comparison.moves if move.before == reason)
            came = sum(move.message_count for move in comparison.moves if move.after == reason)
            before, after = (side.rejected_by_reason.get(reason, 0) for side in (result.recorded, result.replayed))
            assert before - left + came == after

    def test_same_messages_in_another_window(self, world: World, embedded: EngineFactory) -> None:
        """A batch of the same messages is one change, not one that disappears and one that appears, and nothing
        moved.
        """
        world.publish(
            [message("a", NOW, NOW), message("b", NOW, NOW)], [message("a", NOW + 90 * SECOND, NOW + 90 * SECOND)]
        )
        world.runner(embedded).once()
        comparison = compared(world.replayed(rules=windrow.Rules(max_delay="4s")))
        assert [change.kind for change in comparison.changes] == ["moved", "moved"]
        assert comparison.moved_message_count == 0
        assert comparison.changes[0].columns["window_start"][0] != comparison.changes[0].columns["window_start"][1]

    def test_limit(self, world: World, embedded: EngineFactory) -> None:
        """No more is told than was asked for, the earliest first, and the counts say how much there is."""
        world.publish(*log(versions=4, seed=5))
        world.runner(embedded).once()
        whole = compared(world.replayed(rules=self.RULES, limit=1_000))
        short = compared(world.replayed(rules=self.RULES, limit=2))
        assert short.counts == whole.counts
        assert short.changes == whole.changes[:2]
        assert short.moves == whole.moves[:2]
