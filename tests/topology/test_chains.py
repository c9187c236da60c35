"""Chains by states: a topology reads what another one changed in a state."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.conftest import factory_of
from tests.engine.factory import EngineFactory
from windrow.delta.maintenance import DeltaRsMaintenance
from windrow.errors import DepotChangedError, IncompatibleTableError, TableMissingError, TopologyError
from windrow.model.commits import note_of
from windrow.settings.settings import Settings
from windrow.testing import DriverCrash, Harness, Point
from windrow.topology import Depot, Microbatch, SparkMicrobatch, Topology
from windrow.topology.replay import replay_topology
from windrow.topology.running import maintain_topology, tables_of

TAGS = pa.map_(pa.string(), pa.int64())


def upstream() -> Topology:
    """Return a topology that counts words in one state, and sentences in another; `-word` deletes one."""
    topology = Topology("words", depots=["sentences"], states="data/words")
    topology.state("counts", key="word STRING", value="count BIGINT, tags MAP<STRING, BIGINT>")
    topology.state("sentences", value="sentences BIGINT")

    @topology.function
    def count(microbatch: Microbatch) -> None:
        sentences = microbatch.rows("sentences").sort_by([("version", "ascending"), ("sequence", "ascending")])
        words = [word for text in sentences["payload"].to_pylist() for word in text.split()]
        kept = [word for word in words if not word.startswith("-")]
        microbatch.state("counts").combine(pa.table({"word": pa.array(kept, pa.string())}), count="count")
        tagged = microbatch.state("counts").get(pa.table({"word": sorted(set(kept))}))
        tags = pa.array([[("length", len(word))] for word in tagged["word"].to_pylist()], TAGS)
        microbatch.state("counts").put(tagged.set_column(2, "tags", tags))
        gone = [word[1:] for word in words if word.startswith("-")]
        microbatch.state("counts").delete(pa.table({"word": pa.array(gone, pa.string())}))
        microbatch.state("sentences").combine(sentences, sentences="count")

    return topology


def mirror(frames: bool = False) -> Topology:
    """Return a topology that keeps a copy of the counts, and how often each word changed."""
    topology = Topology("mirror", depots={"counts": Depot("data/words", state="counts")}, states="data/mirror")
    topology.state("copy", key="word STRING", value="count BIGINT, tags MAP<STRING, BIGINT>")
    topology.state("changed", key="word STRING", value="times BIGINT, deleted_times BIGINT")

    if frames:

        @topology.function
        def follow_frames(microbatch: SparkMicrobatch) -> None:
            rows = microbatch.rows("counts")
            microbatch.state("copy").put(rows.where("NOT deleted").drop("deleted", "version"))
            microbatch.state("copy").delete(rows.where("deleted").select("word"))
            counted = rows.selectExpr("word", "int(deleted) AS gone")
            microbatch.state("changed").combine(counted, times="count", deleted_times=("gone", "sum"))

        return topology

    @topology.function
    def follow(microbatch: Microbatch) -> None:
        rows = microbatch.rows("counts")
        assert rows.column_names == ["word", "count", "tags", "deleted", "version"], rows.column_names
        microbatch.state("copy").put(rows.filter(pa.compute.invert(rows["deleted"])))
        microbatch.state("copy").delete(rows.filter(rows["deleted"]))
        counted = pa.table({"word": rows["word"], "gone": rows["deleted"].cast(pa.int64())})
        microbatch.state("changed").combine(counted, times="count", deleted_times=("gone", "sum"))

    return topology


class Chain:
    """Both topologies over one directory, and how often each word should have changed."""

    def __init__(self, directory: Path, engine: EngineFactory, frames: bool = False) -> None:
        """Prepare them; nothing runs yet."""
        options: dict[str, Any] = {"engine": engine.name, "session": engine.session, **engine.more}
        self.options, self.frames = options, frames
        folds = {"fold_commits": 2, "fold_rows": 3}  # what a fold writes again is no change
        above = {"engine": "embedded"} if engine.more else options
        self.words = Harness(upstream(), directory, **folds, **above)
        self.mirror = Harness(mirror(frames), directory, **folds, **options)
        self.times: dict[str, int] = {}
        self.gone: dict[str, int] = {}
        self.known: set[str] = set()

    def say(self, *sentences: str) -> None:
        """Append sentences in one version, and have the first topology count their words."""
        self.words.append([{"payload": text, "sequence": at} for at, text in enumerate(sentences)])
        self.words.run()
        words = {word for text in sentences for word in text.split()}
        gone = {word[1:] for word in words if word.startswith("-")} & self.known
        new = {word for word in words if not word.startswith("-")} - {word[1:] for word in words}
        for word in new | gone:
            self.times[word] = self.times.get(word, 0) + 1
            self.gone[word] = self.gone.get(word, 0) + (word in gone)
        self.known = (self.known | new) - gone

    def assert_equal(self) -> None:
        """The second topology has seen each change of the first one once."""
        assert self.mirror.state("copy") == self.words.state("counts")
        changed = {row["word"]: (row["times"], row["deleted_times"]) for row in self.mirror.state("changed")}
        assert changed == {word: (times, self.gone[word]) for word, times in self.times.items()}


KINDS = {
    "embedded": ("embedded", False),
    "spark": ("spark", False),
    "frames": ("spark", True),
    "executors": ("spark-executors", True),
}


@pytest.fixture(params=[kind if kind == "embedded" else pytest.param(kind, marks=pytest.mark.spark) for kind in KINDS])
def chain(request: pytest.FixtureRequest, tmp_path: Path) -> Chain:
    """Both topologies on each engine, the second one with Arrow tables, and with frames that stay on the executors."""
    engine, frames = KINDS[request.param]
    return Chain(tmp_path, factory_of(engine, request), frames)


@pytest.mark.slow_unless({"chain": "embedded"})
def test_each_change_once(chain: Chain) -> None:
    """New, changed and deleted rows of a state come once each, microbatch by microbatch, whatever folds write again
    beside them; also after the files were compacted and while crashes interrupt.
    """
    chain.say("to be or not to be", "that is the question")
    chain.mirror.run()
    chain.assert_equal()
    chain.say("to", "-question -unknown")
    chain.say("be be")
    chain.mirror.crash_at(Point.BEFORE_COMMIT)
    with pytest.raises(DriverCrash):
        chain.mirror.run()
    chain.mirror.restart()
    chain.mirror.run()
    chain.assert_equal()
    chain.say("question", "-to")
    DeltaRsMaintenance(chain.words.topology.location, "ledger").compact(None, dry_run=False)
    chain.words.pause()
    chain.words.resume()
    chain.mirror.run()
    chain.say("to")
    chain.mirror.run()
    chain.assert_equal()
    read = [row["depot_version"] for row in chain.mirror.history() if row["messages_read"]]
    assert len(read) == 5


@pytest.mark.ci
def test_many_changes(tmp_path: Path) -> None:
    """The same in random steps, with crashes of both, compaction and vacuum in between; a replay gives the same
    states.
    """
    random = Random(3)
    chain = Chain(tmp_path, EngineFactory("embedded"))
    for _ in range(12):
        words = random.sample("abcdefghij", random.randint(1, 4))
        chain.say(" ".join(random.choice(["", "", "-"]) + word for word in words))
        if random.random() < 0.3:
            DeltaRsMaintenance(chain.words.topology.location, "ledger").compact(None, dry_run=False)
        if random.random() < 0.5:
            chain.mirror.crash_at(random.choice(list(Point)))
            try:
                chain.mirror.run()
            except DriverCrash:
                chain.mirror.restart()
    chain.mirror.run()
    chain.assert_equal()
    assert replay_topology(chain.mirror.topology, Settings(engine="embedded")).ok


@pytest.mark.ci
def test_nan(tmp_path: Path) -> None:
    """NaN that stays NaN is no change: not where it is put again, nor beside other rows of its file, nor in a
    replay.
    """
    levels = Topology("levels", depots=["readings"], states="data/levels")
    levels.state("level", key="sensor STRING", value="level DOUBLE, all ARRAY<DOUBLE>")
    seen = Topology("seen", depots={"level": Depot("data/levels", state="level")}, states="data/seen")
    seen.state("times", key="sensor STRING", value="times BIGINT, last DOUBLE")

    @levels.function
    def read(microbatch: Microbatch) -> None:
        rows = microbatch.rows("readings")
        level = rows["payload"].cast(pa.float64())
        put = {"sensor": rows["key"], "level": level, "all": pa.array([[row] for row in level.to_pylist()])}
        microbatch.state("level").put(pa.table(put))

    @seen.function
    def see(microbatch: Microbatch) -> None:
        microbatch.state("times").combine(microbatch.rows("level"), times="count", last=("level", "last"))

    first, second = Harness(levels, tmp_path), Harness(seen, tmp_path)
    for readings in ({"a": "nan", "b": "1"}, {"b": "nan"}, {"a": "nan", "c": "2"}):
        first.append([{"key": key, "payload": value} for key, value in readings.items()])
        first.run()
        second.run()
    assert {row["sensor"]: row["times"] for row in second.state("times")} == {"a": 1, "b": 2, "c": 1}
    for harness in (first, second):
        assert replay_topology(harness.topology, Settings(engine="embedded")).ok


@pytest.mark.slow_on_spark
def test_state_that_does_not_change(tmp_path: Path, engine: EngineFactory) -> None:
    """A state that does not change holds nobody up: its old versions are not read again, and may be cleaned up."""
    options: dict[str, Any] = {"engine": engine.name, "session": engine.session, **engine.more}
    words = Harness(upstream(), tmp_path, **options)
    topology = Topology(
        "both",
        depots={name: Depot("data/words", state=name) for name in ("counts", "sentences")},
        states="data/both",
    )
    topology.state("seen", key="depot STRING", value="rows BIGINT")

    @topology.function
    def see(microbatch: Microbatch) -> None:
        for name in ("counts", "sentences"):
            rows = microbatch.rows(name)
            names = pa.table({"depot": pa.repeat(name, rows.num_rows)})
            microbatch.state("seen").combine(names, rows="count")

    both = Harness(topology, tmp_path, **options)
    for _ in range(3):
        words.append([{"payload": "-a"}])
        words.run()
        both.run()
    both.restart()
    _, folded = tables_of(words.topology, Settings(engine="embedded"))
    folded.fold(folded.live(), "large")  # which leaves no file of the first versions
    DeltaTable(words.topology.location).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    words.append([{"payload": "-a"}])
    words.run()
    both.run()
    assert both.state("seen") == [{"depot": "sentences", "rows": 4}]
    words.append([{"payload": "a"}])
    words.run()
    both.rollback(3)
    both.run()
    assert both.state("seen") == [{"depot": "counts", "rows": 1}, {"depot": "sentences", "rows": 5}]


@pytest.mark.slow_unless({"chain": "embedded"})
def test_set_back(chain: Chain) -> None:
    """A rollback or a RESTORE of the first topology stops the second one, unless it is told to read what it changed."""
    for text in ("a b", "b c", "d"):
        chain.say(text)
    chain.mirror.run()
    chain.words.rollback(2)
    with pytest.raises(DepotChangedError, match="undoes earlier microbatches") as stopped:
        chain.mirror.run()
    commits = DeltaTable(chain.words.topology.location).history()
    (at,) = [commit["version"] for commit in commits if note_of(commit).get("kind") == "rollback"]
    assert f"version:{at + 1}" in stopped.value.hint
    reader = Harness(mirror(chain.frames), chain.mirror.directory, on_depot_change="ignore", **chain.options)
    reader.run()
    assert reader.state("copy") == chain.words.state("counts")
    chain.words.run()
    chain.mirror.restart()
    chain.mirror.run()
    assert chain.mirror.state("copy") == chain.words.state("counts")
    DeltaTable(chain.words.topology.location).restore(DeltaTable(chain.words.topology.location).version() - 1)
    with pytest.raises(DepotChangedError, match="undoes earlier microbatches"):
        chain.mirror.run()


def test_left_alone(tmp_path: Path) -> None:
    """The states that a topology reads are maintained by the topology that writes them, whatever the settings say."""
    chain = Chain(tmp_path, EngineFactory("embedded"))
    chain.say("a b")
    chain.mirror.run()
    settings = Settings(engine="embedded", maintain={"depot": "always"})
    own, other = maintain_topology(chain.mirror.topology, settings, chain.words.clock.now())
    assert own.skip_reason is None
    assert "as it is a ledger" in str(other.skip_reason)


def test_refused(tmp_path: Path) -> None:
    """A state that does not exist, a table that is none of a topology, and a topology without a state are refused."""
    words = Harness(upstream(), tmp_path)

    def harness(**depot: Any) -> Harness:
        topology = Topology("reader", depots={"counts": Depot("data/words", **depot)}, states="data/reader")
        topology.function(_nothing)
        return Harness(topology, tmp_path)

    with pytest.raises(TableMissingError):
        harness(state="counts").run()
    words.append([{"payload": "a"}])
    words.run()
    with pytest.raises(TopologyError, match="has no state 'count'"):
        harness(state="count").run()
    other = Topology("reader", depots={"words": Depot("data/words")}, states="data/reader")
    other.function(_nothing)
    placed = other.with_locations({"words": Depot(words.topology.location)}, str(tmp_path / "reader"))
    reader = Harness(other, tmp_path)
    reader.topology = placed
    with pytest.raises(IncompatibleTableError, match="has the states of a topology"):
        reader.run()


def _nothing(microbatch: Microbatch) -> None:
    microbatch.rows(next(iter(microbatch.depots)))
