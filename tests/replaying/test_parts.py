"""Parts of the log: from one version or time to another, and some streams."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

import windrow
from tests.clocks import NOW
from tests.engine.factory import EMBEDDED, EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log, message
from windrow import reading
from windrow.delta.creation import create_ledger
from windrow.errors import DepotMismatchError, IncompatibleTableError, NotFoundError, SettingsError
from windrow.replaying import ReplayRange
from windrow.runtime.maintenance import fold
from windrow.verify import verify

pytestmark = pytest.mark.ci


@pytest.fixture
def read(world: World, embedded: EngineFactory) -> World:
    """A depot of six versions, read two at a time."""
    for version in log(versions=6):
        world.publish(version)
    world.runner(embedded, max_messages=60).once()
    return world


class TestVersions:
    @pytest.mark.slow_unless({"start": "4"}, {"end": "5"}, {"start": "3", "end": "4"})
    @pytest.mark.parametrize(
        ("start", "end", "versions"),
        [("3", None, (3, 6)), ("4", None, (3, 6)), (None, "4", (1, 4)), (None, "5", (1, 4)), ("3", "4", (3, 4))],
    )
    def test_whole_microbatches(
        self, read: World, tmp_path: Path, start: str | None, end: str | None, versions: tuple[int, int]
    ) -> None:
        """A part is whole microbatches: what was open when it begins is open in the new ledger, which is a sound
        one.
        """
        into = str(tmp_path / "part")
        result = read.replayed(into, portion=ReplayRange(start, end))
        assert result.equal, result.comparison
        assert (result.first_depot_version, result.last_depot_version) == versions
        assert verify(read.depot, into).differences == ()

    def test_by_time(self, read: World) -> None:
        """A time is that of the depot's commits: what came at it or later, what came before it."""
        commits = read.tables(EMBEDDED).source.commits()
        moment = reading.time_text(next(commit.committed_at for commit in commits if commit.version == 3))
        assert read.replayed(portion=ReplayRange(start=moment)).first_depot_version <= 3
        assert read.replayed(portion=ReplayRange(end=moment)).last_depot_version == 2

    def test_other_rules_from_there_on(self, read: World, embedded: EngineFactory, tmp_path: Path) -> None:
        """Other rules from a version on are the change of rules that a run would have made there."""
        into = str(tmp_path / "part")
        result = read.replayed(into, rules=windrow.Rules(max_delay="8s"), portion=ReplayRange(start="3"))
        assert result.ok
        read.ledger, earlier = str(tmp_path / "copied"), DeltaTable(read.ledger, version=1)
        create_ledger(read.ledger, earlier.to_pyarrow_table(), "90d")
        read.runner(embedded, rules={"max_delay": "8s"}).once()
        assert windrow.digests(read.ledger).total == windrow.digests(into).total

    def test_of_a_ledger_that_cannot_be_read_any_more(self, read: World) -> None:
        """Where the ledger can no longer be read as it was, the error says which microbatch, and what can be done."""
        fold(read.tables(EMBEDDED).ledger)
        table = DeltaTable(read.ledger)
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
        with pytest.raises(NotFoundError, match=r"as it was at microbatch 1\n.*Without --from"):
            read.replayed(portion=ReplayRange(start="3"))
        assert read.replayed().equal

    def test_after_a_restore(self, read: World, embedded: EngineFactory) -> None:
        """Of two commits that were the same microbatch, before and after a RESTORE, the one that holds is taken."""
        DeltaTable(read.ledger).restore(1)
        read.runner(embedded, max_messages=1_000).once()
        assert read.replayed(portion=ReplayRange(start="3")).equal
        assert read.replayed(portion=ReplayRange(end="2")).equal


class TestStreams:
    @pytest.mark.parametrize("flushed", [False, True])
    def test_by_key(self, world: World, embedded: EngineFactory, flushed: bool) -> None:
        """Some streams alone give what they gave among all: the clock of a source goes on with the others' messages,
        and a flush cuts where the last of them says.
        """
        world.publish(*log(versions=3))
        world.runner(embedded).once()
        if flushed:
            world.runner(embedded).flush()
        world.publish(log(versions=4)[-1])
        world.runner(embedded).once()
        keys = sorted({row["key"] for row in world.rows("closed")})
        for key in keys:
            result = world.replayed(portion=ReplayRange(keys=[key]))
            assert result.equal
            assert 0 < result.recorded.batch_count < world.replayed().recorded.batch_count
        assert len(keys) > 1

    def test_by_source(self, world: World, embedded: EngineFactory) -> None:
        """A source alone gives what it gave; another rule changes what is of it, and nothing else is told."""
        rows = [message("a", NOW + at * SECOND, NOW + at * SECOND, source=of) for of in ("s", "t") for at in (0, 7, 30)]
        world.publish(rows)
        world.runner(embedded).once()
        assert world.replayed(portion=ReplayRange(sources=["s"])).equal
        result = world.replayed(rules=windrow.Rules(window="7s"), portion=ReplayRange(sources=["s"]))
        assert result.comparison is not None
        assert all("/s/" in change.id for change in result.comparison.changes)


class TestRefused:
    def test_nothing_to_replay(self, read: World) -> None:
        """Versions that were not read, and streams that nothing is known of, are told."""
        with pytest.raises(NotFoundError, match=r"no microbatch .* from 7"):
            read.replayed(portion=ReplayRange(start="7"))
        with pytest.raises(NotFoundError, match="no message of key 'nobody'"):
            read.replayed(portion=ReplayRange(keys=["nobody"]))

    def test_places(self, read: World, tmp_path: Path) -> None:
        """The new ledger needs a place of its own, on a path; a part of the streams makes no ledger."""
        with pytest.raises(IncompatibleTableError, match="already"):
            read.replayed(read.ledger)
        with pytest.raises(SettingsError, match="catalog"):
            read.replayed("main.windrow.ledger")
        with pytest.raises(SettingsError, match="every message"):
            read.replayed(str(tmp_path / "x"), portion=ReplayRange(keys=["k"]))
        with pytest.raises(SettingsError, match="reuse or fresh"):
            read.replayed(ticks="some")

    def test_another_depot(self, read: World, tmp_path: Path) -> None:
        """The depot must be the ledger's."""
        read.depot = World(tmp_path / "other", read.clock).depot
        with pytest.raises(DepotMismatchError):
            read.replayed()
