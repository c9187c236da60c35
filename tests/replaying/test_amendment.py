"""Amendments: late data gets into current batches, closed ones stay, and each message is in one of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clocks import NOW, ManualClock
from tests.conftest import one_in
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, Row, log, message
from tests.probes import fail_times
from tests.verify.test_executors import by_spark
from windrow.batching.rules import Rules
from windrow.errors import DepotChangedError, SettingsError, UsageError
from windrow.model.timestamps import microseconds_of
from windrow.reading.certificate import Certifier
from windrow.reading.tables import open_ledger
from windrow.reading.trace import trace
from windrow.replaying import Amendment, amend, amendment, replay
from windrow.testing.points import Point, ProbedLedger
from windrow.verify import verify

RULES = {"window": "10s", "max_delay": "2s", "window_anchor": "aligned", "on_repeat": "keep"}
PATIENT = RULES | {"max_delay": "60s"}
START = NOW - 600 * SECOND
NUMBERS = count()


def measurement(second: float, delay: float, key: str = "k", **others: Any) -> Row:
    """Return a message of a time after the start, which came so much later; both in seconds."""
    at = START + int(second * SECOND)
    return message("t", at, at + int(delay * SECOND), key=key, **others)


def late(world: World) -> None:
    """Batch messages of 100 s, of which those of 12 s and 33 s come too late."""
    rows = [measurement(second, 0) for second in range(0, 100, 5)]
    rows += [measurement(12, 20), measurement(33, 10), measurement(36, 70)]
    world.publish(sorted(rows, key=lambda row: row["received_at"]))
    world.runner(EMBEDDED, rules=RULES).once()


def branch(world: World, name: str = "branch", rules: dict[str, Any] = PATIENT) -> str:
    """Replay the ledger under other rules; return the path of the new one."""
    place = str(Path(world.ledger).parent / name)
    replay(world.settings(EMBEDDED), into=place, rules=Rules(**rules))
    return place


def amended(world: World, factory: EngineFactory = EMBEDDED, rules: dict[str, Any] = PATIENT) -> Amendment:
    """Amend the ledger by a branch."""
    session = factory.session if factory.name == "spark" else None
    return amend(world.settings(factory), branch(world, f"branch-{next(NUMBERS)}", rules), spark=session)


def current(world: World) -> list[dict[str, Any]]:
    """Return the current batches, as the view says."""
    gone = {row["superseded_id"] for row in world.rows("superseded")}
    return [row for row in world.rows("closed", "amended") if row["id"] not in gone]


def contents(batches: list[dict[str, Any]]) -> set[tuple[Any, ...]]:
    """Return windows with their messages."""
    names = ("source", "key", "window_start", "window_end", "part")
    return {
        (*(row[name] for name in names), *(tuple(inside.values()) for inside in row["messages"])) for row in batches
    }


def messages(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Return how often each message is in some batches."""
    return Counter((row["source"], row["key"], *inside.values()) for row in rows for inside in row["messages"])


@pytest.fixture
def late_world(world: World) -> World:
    """A ledger with messages that came too late."""
    late(world)
    return world


class TestAmend:
    def test_late_data(self, late_world: World) -> None:
        """Windows with late messages get them; the closed batches and the rejections stay as they are."""
        before = late_world.rows("closed", "rejected")
        result = amended(late_world)
        assert (
            result.microbatch,
            result.superseded_batch_count,
            result.amended_batch_count,
            result.let_in,
        ) == (2, 2, 2, 2)
        assert result.rules["max_delay"] == 60 * SECOND
        assert late_world.rows("closed", "rejected") == before
        assert [row["message_count"] for row in late_world.rows("amended")] == [3, 3]
        assert contents(current(late_world)) >= contents(late_world.rows("amended"))
        assert len(current(late_world)) == len(late_world.rows("closed"))
        assert verify(late_world.depot, late_world.ledger).ok

    def test_what_is_said(self, late_world: World) -> None:
        """Each superseded row says which batch or rejection, why, and where its message is now."""
        amended(late_world)
        rows = late_world.rows("superseded")
        assert Counter(row["reason"] for row in rows) == {"amended": 2, "too_old": 2}
        by_id = {row["id"]: row for row in late_world.rows("amended", "closed", "rejected")}
        for row in rows:
            heir = by_id[row["superseded_by"]]
            assert heir["window_start"] <= (row["event_time"] or row["window_start"]) < heir["window_end"]
            assert row["superseded_id"] in by_id

    def test_again(self, late_world: World) -> None:
        """The same amendment again says nothing; a more patient one lets in what is left."""
        amended(late_world)
        before = len(late_world.history())
        assert amended(late_world).microbatch is None
        assert len(late_world.history()) == before
        assert amended(late_world, rules=RULES | {"max_delay": "100s"}).let_in == 0
        late_one = [measurement(200, 0), measurement(14, 190)]
        late_world.publish(late_one)
        late_world.runner(EMBEDDED, rules=RULES).once()
        again = amended(late_world, rules=RULES | {"max_delay": "190s"})
        assert (again.superseded_batch_count, again.let_in) == (0, 0)  # the branch still has all of it open
        late_world.publish([measurement(500, 0)])
        late_world.runner(EMBEDDED, rules=RULES).once()
        assert amended(late_world, rules=RULES | {"max_delay": "190s"}).let_in == 2
        assert max(messages(current(late_world)).values()) == 1
        assert verify(late_world.depot, late_world.ledger).ok

    def test_goes_on(self, late_world: World) -> None:
        """The batcher goes on as before, and so does a replay; the recorded ledger is still equal to its replay."""
        amended(late_world)
        late_world.publish([measurement(120, 0), measurement(140, 0)])
        late_world.runner(EMBEDDED, rules=RULES).once()
        assert max(messages(current(late_world)).values()) == 1
        assert replay(late_world.settings(EMBEDDED)).equal
        assert verify(late_world.depot, late_world.ledger).ok

    def test_keys(self, world: World) -> None:
        """Only the streams that are asked for are amended."""
        rows = [measurement(second, 0, key) for key in ("a", "b") for second in range(0, 100, 5)]
        rows += [measurement(12, 20, key) for key in ("a", "b")]
        world.publish(sorted(rows, key=lambda row: row["received_at"]))
        world.runner(EMBEDDED, rules=RULES).once()
        assert amend(world.settings(EMBEDDED), branch(world), {"key": ("a",)}).let_in == 1
        assert {row["key"] for row in world.rows("amended", "superseded")} == {"a"}
        assert verify(world.depot, world.ledger).ok

    def test_lost_reply(self, late_world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        """When the commit took place and its reply was lost, the next attempt finds it, and says its number."""
        opened, probe = amendment.tables_of, fail_times(Point.AFTER_COMMIT, times=1)

        def probed(*arguments: Any) -> tuple[Any, Any]:
            source, ledger = opened(*arguments)
            return source, ProbedLedger(ledger, probe)

        monkeypatch.setattr(amendment, "tables_of", probed)
        result = amended(late_world)
        assert (result.microbatch, result.let_in) == (2, 2)
        assert [row["kind"] for row in late_world.history()] == ["data", "amend"]
        assert verify(late_world.depot, late_world.ledger).ok

    def test_traced(self, late_world: World) -> None:
        """What became of a message that was let in says so."""
        amended(late_world)
        [arrival] = trace(late_world.depot, late_world.ledger, "k", START + 12 * SECOND)
        [row] = [
            row for row in late_world.rows("superseded") if row["superseded_id"] == (arrival.rejection or {})["id"]
        ]
        assert arrival.why.endswith(f"an amendment let it into {row['superseded_by']}")

    def test_goes_on_meanwhile(self, late_world: World) -> None:
        """A ledger that has read on since the branch was made is amended up to there."""
        place = branch(late_world)
        late_world.publish([measurement(120, 0), measurement(140, 0)])
        late_world.runner(EMBEDDED, rules=RULES).once()
        assert amend(late_world.settings(EMBEDDED), place).let_in == 2
        assert max(messages(current(late_world)).values()) == 1
        assert verify(late_world.depot, late_world.ledger).ok


class TestRefused:
    @pytest.mark.parametrize(
        ("rules", "says"),
        [
            (RULES | {"max_delay": "1s"}, "max_delay at least as long"),
            (PATIENT | {"on_repeat": "split", "max_lead": "0s"}, "take 1 message out"),
        ],
    )
    def test_rules(self, world: World, rules: dict[str, Any], says: str) -> None:
        """Rules that take a message out, or that wait less, are refused, and nothing is committed."""
        ahead = measurement(50.5, -0.5)
        rows = [*(measurement(second, 0) for second in range(0, 300, 5)), ahead]
        world.publish(sorted(rows, key=lambda row: row["received_at"]))
        world.runner(EMBEDDED, rules=RULES).once()
        before = len(world.history())
        with pytest.raises(SettingsError, match=says):
            amended(world, rules=rules)
        assert len(world.history()) == before

    def test_larger_than_memory(self, late_world: World) -> None:
        """Amended batches that do not fit into the memory that is set are refused, and nothing is committed."""
        small = late_world.settings(EMBEDDED).model_copy(update={"max_memory_bytes": 1})
        with pytest.raises(SettingsError, match="larger than max_memory_bytes"):
            amend(small, branch(late_world))
        assert len(late_world.history()) == 1

    def test_no_branch(self, late_world: World, tmp_path: Path) -> None:
        """A ledger that read something else is no branch."""
        other = World(tmp_path / "other", ManualClock(NOW))
        other.publish([measurement(1, 0)], [measurement(2, 0)])
        other.runner(EMBEDDED, rules=PATIENT).once()
        with pytest.raises(SettingsError, match="is not a branch"):
            amend(late_world.settings(EMBEDDED), other.ledger)

    def test_other_messages(self, late_world: World) -> None:
        """A branch whose batches do not have the messages of the ledger's, because somebody changed it, is refused."""
        place = branch(late_world)
        id_ = f"batch//k/{START + 10 * SECOND}/0"
        update_metrics = DeltaTable(place).update({"source": "'x'"}, predicate=f"id = '{id_}' AND state = 'closed'")
        assert update_metrics["num_updated_rows"] == 1

        with pytest.raises(DepotChangedError, match="do not agree"):
            amend(late_world.settings(EMBEDDED), place)

    @pytest.mark.parametrize("happens", ["amended", "restored"])
    def test_meanwhile(self, late_world: World, monkeypatch: pytest.MonkeyPatch, happens: str) -> None:
        """A ledger that is amended or restored after it was compared is not amended by that."""
        version = late_world.version()
        late_world.publish([measurement(120, 0)])
        late_world.runner(EMBEDDED, rules=RULES).once()
        place, compared = branch(late_world), amendment.late_messages

        def meanwhile(*arguments: Any) -> Any:
            difference = compared(*arguments)
            monkeypatch.setattr(amendment, "late_messages", compared)
            if happens == "amended":
                assert amended(late_world, rules=RULES | {"max_delay": "15s"}).let_in == 1
            else:
                DeltaTable(late_world.ledger).restore(version)
            return difference

        monkeypatch.setattr(amendment, "late_messages", meanwhile)
        with pytest.raises(UsageError, match="amended or restored"):
            amend(late_world.settings(EMBEDDED), place)
        assert max(messages(current(late_world)).values()) == 1


DAMAGE: dict[str, tuple[Callable[[DeltaTable], object], str]] = {
    "a superseded batch that is not": (lambda table: table.delete("reason = 'amended'"), "amended messages"),
    "a rejection that is not": (lambda table: table.delete("state = 'superseded' AND reason = 'too_old'"), "amended"),
    "an amended batch is gone": (lambda table: table.delete("state = 'amended'"), "superseded"),
    "of something else": (lambda table: table.update({"superseded_id": "'x'"}, predicate="reason = 'amended'"), "sup"),
    "another count": (lambda table: table.update({"message_count": "1"}, predicate="state = 'amended'"), "amended b"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_verified(late_world: World, name: str) -> None:
    """`verify` finds an amendment that does not add up."""
    amended(late_world)
    damage, check = DAMAGE[name]
    damage(DeltaTable(late_world.ledger))
    assert any(
        difference.check.startswith(check) for difference in verify(late_world.depot, late_world.ledger).differences
    )


@pytest.mark.ci
@pytest.mark.filterwarnings("ignore::windrow.batching.rules.ShortWindowWarning")
@settings(one_in(20), deadline=None)
@given(
    seed=st.integers(0, 10_000), anchor=st.sampled_from(["aligned", "arrival", "event_time"]), parts=st.integers(1, 4)
)
def test_random(tmp_path_factory: pytest.TempPathFactory, seed: int, anchor: str, parts: int) -> None:
    """Of random logs each message is at most once in the current batches, with those of all amendments, and the rest
    is open or rejected; before the cuts they are the closed ones of the branch.
    """
    world = World(tmp_path_factory.mktemp("random"), ManualClock(NOW))
    rules = {"window": "4s", "max_delay": "1s", "window_anchor": anchor, "on_repeat": "keep"}
    for number in range(parts):
        world.publish(*log(versions=3, seed=seed + number, start=NOW - (parts - number) * 60 * SECOND))
        world.runner(EMBEDDED, rules=rules).once()
        patient = rules | {"max_delay": f"{5 * (number + 1)}s"}
        amended(world, rules=patient)
        counted = messages(current(world)) + messages(world.rows("open"))
        assert max(counted.values()) == 1
        gone = {row["superseded_id"] for row in world.rows("superseded")}
        refused = [row for row in world.rows("rejected") if row["id"] not in gone]
        assert counted.total() + len(refused) == sum(row["messages_read"] for row in world.history())
        assert verify(world.depot, world.ledger).ok


@pytest.mark.spark
@pytest.mark.ci
@pytest.mark.parametrize("commit", ["merge", "files"])
def test_spark(world: World, spark: Any, commit: str) -> None:
    """On Spark the commit has the same rows, by MERGE and by files, and its views say the same."""
    late(world)
    place = branch(world)
    settings_ = world.settings(EngineFactory("spark", spark), commit=commit)
    assert amend(settings_, place, spark=spark).let_in == 2
    assert verify(world.depot, world.ledger).ok
    from windrow.model.tables import views

    queries = views(f"delta.`{world.ledger}`")
    shown = {row["id"] for row in spark.sql(queries["current_batches"]).collect()}
    assert shown == {row["id"] for row in current(world)}
    assert spark.sql(queries["amendments"]).count() == 4
    assert microseconds_of(world.rows("amended")[0]["window_start"]) % SECOND == 0
    assert open_ledger(world.ledger).version == world.version()


@pytest.mark.spark
@pytest.mark.slow  # verify on Spark's executors takes a minute
def test_verified_by_spark(late_world: World, spark: Any) -> None:
    """`verify --engine spark` finds what the embedded engine finds, with an amendment and with a damaged one."""
    assert spark is not None
    amended(late_world)
    assert by_spark(late_world).ok
    DeltaTable(late_world.ledger).delete("state = 'superseded' AND reason = 'too_old'")
    assert "amended messages" in {difference.check for difference in by_spark(late_world).differences}


def test_root(late_world: World) -> None:
    """The root of a ledger covers its amendments: one that is damaged has another."""
    before = Certifier(open_ledger(late_world.ledger)).root
    amended(late_world)
    after = Certifier(open_ledger(late_world.ledger)).root
    assert (after.closed_windows, after.rejected) == (before.closed_windows, before.rejected)
    DeltaTable(late_world.ledger).update({"superseded_by": "'x'"}, predicate="reason = 'amended'")
    assert len({before.root, after.root, Certifier(open_ledger(late_world.ledger)).root.root}) == 3
