"""What `status`, `run` and `doctor` say is off, and what they keep quiet about."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, Row, message
from windrow.expressions import ColumnMapping
from windrow.model.messages import COLUMNS
from windrow.reading import warnings
from windrow.reading.tables import open_ledger
from windrow.reading.warnings import LedgerWarning, plain_offset, warnings_of

MIN_COUNT = 10
HOUR = 3_600 * SECOND


def warnings_by_kind(world: World, min_count: int = MIN_COUNT) -> dict[str, LedgerWarning]:
    """Return the warnings about a ledger by their codes."""
    return {warning.code: warning for warning in warnings_of(open_ledger(world.ledger), min_count)}


def moved(warning: LedgerWarning, rows: list[Row]) -> list[int]:
    """Return the event times of rows under the mapping that a warning proposes."""
    mapping = ColumnMapping.of_depot(tomllib.loads(warning.hint.partition("[depot]): ")[2]), COLUMNS)
    assert mapping is not None
    messages = pa.Table.from_pylist(rows)
    for name in ("event_time", "received_at"):
        at = messages.column_names.index(name)
        messages = messages.set_column(at, name, messages[name].cast(pa.timestamp("us", tz="UTC")))
    times: list[int] = mapping.apply(messages).read_all()["event_time"].cast(pa.int64()).to_pylist()
    return times


class TestSplits:
    @pytest.fixture
    def repeating(self, tmp_path: Any, clock: ManualClock) -> World:
        """Messages of one type, one a second."""
        world = World(tmp_path, clock)
        for at in range(20):
            world.publish([message("a", NOW + at * SECOND, NOW + at * SECOND)])
        return world

    def test_warns(self, repeating: World, embedded: EngineFactory) -> None:
        """Where a repeated type split most windows, both settings that change it are named."""
        repeating.runner(embedded).once()
        warning = warnings_by_kind(repeating)["ledger-splits"]
        assert warning.message.startswith("13 of 14 closed windows were split before their end (10 s)")
        assert 'on_repeat = "keep"' in warning.hint
        assert 'split_at = "midpoint"' in warning.hint

    def test_few(self, repeating: World, embedded: EngineFactory) -> None:
        """Few batches give no warning."""
        repeating.runner(embedded).once()
        assert "ledger-splits" not in warnings_by_kind(repeating, 100)

    @pytest.mark.parametrize("rules", [{"on_repeat": "keep"}, {"split_at": "midpoint"}])
    def test_settled(self, repeating: World, embedded: EngineFactory, rules: dict[str, str]) -> None:
        """Whoever has chosen one of them is not told again."""
        repeating.runner(embedded, rules=rules).once()
        assert "ledger-splits" not in warnings_by_kind(repeating)


class TestSlivers:
    @pytest.fixture
    def uneven(self, tmp_path: Any, clock: ManualClock) -> World:
        """A device that measures nine types, of which one burst in three has one only."""
        world = World(tmp_path, clock)
        for number in range(40):
            at = NOW + number * 6 * SECOND
            types = range(9) if number % 3 else range(1)
            world.publish([message(f"t{kind}", at, at) for kind in types])
        return world

    def test_warns(self, uneven: World, embedded: EngineFactory) -> None:
        """Many batches with few messages for their stream are counted, and the windows on the calendar named."""
        uneven.runner(embedded, rules={"window": "5s", "max_delay": "1s", "window_anchor": "event_time"}).once()
        warning = warnings_by_kind(uneven)["ledger-slivers"]
        assert warning.message.startswith("13 of 39 closed batches (33 %)")
        assert 'window_anchor = "aligned"' in warning.hint

    def test_quiet(self, uneven: World, embedded: EngineFactory) -> None:
        """Windows on the calendar give no warning: there the device was silent."""
        uneven.runner(embedded, rules={"window": "5s", "max_delay": "1s", "window_anchor": "aligned"}).once()
        assert "ledger-slivers" not in warnings_by_kind(uneven, MIN_COUNT)


class TestShared:
    def test_one_fast_device(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """Where one fast device moves the clock that others share, the advice is to map the source."""
        for named in (False, True):
            world = World(tmp_path / str(named), clock)
            ahead = {"fast": 10 * 60 * SECOND, "a": 0, "b": 0}
            rows = [
                message("t", NOW + at * SECOND + by, NOW + at * SECOND + by, key=key, source=key if named else "")
                for at in range(20)
                for key, by in ahead.items()
            ]
            clock.set(NOW + HOUR)
            world.publish(rows[:30], rows[30:])
            world.runner(embedded).once()
            warnings = warnings_by_kind(world)
            clocks = {"clock-shared", "ledger-sources", "ledger-delay"} & warnings.keys()
            assert clocks == (set() if named else {"clock-shared"})
            if not named:
                assert "'' (20 of 60 messages, 20 of them only because others moved" in warnings["clock-shared"].message
                assert warnings["clock-shared"].hint.startswith("Map source under [ingest.columns]")


class TestSources:
    def test_mapping_mends_it(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """A source whose clock is an hour behind is named, and the mapping to paste makes its messages punctual."""
        world = World(tmp_path / "before", clock)
        wrong = [message("a", NOW - HOUR + at, NOW + at, source="it's") for at in range(20)]
        right = [message("a", NOW + at, NOW + at, source="right") for at in range(20)]
        ahead = [message("a", NOW + HOUR + at, NOW + at, source="other") for at in range(20)]
        world.publish(wrong, right, ahead)
        world.runner(embedded).once()
        warning = warnings_by_kind(world)["ledger-sources"]
        assert warning.message.startswith(
            "nearly all messages of \"it's\" (20 of 20, 1 h behind), 'other' (20 of 20, 1 h ahead) were rejected"
        )
        assert moved(warning, [*wrong, *right, *ahead]) == [NOW + at for at in range(20)] * 3
        assert 'depot = "..." becomes table = "..." under [depot]' in warning.hint

    @pytest.mark.parametrize("clock_off", [-3_600, -61, 90, 86_400])
    @pytest.mark.parametrize("way", [1, 400_000, 600_000, 999_999])
    def test_offset_without_the_way(self, clock_off: int, way: int) -> None:
        """An offset in whole seconds is that of the clock, not shortened or extended by how long messages take."""
        assert plain_offset(clock_off * 1_000_000 - way) == clock_off * 1_000_000

    def test_a_mapping_of_ones_own(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """Where the depot is mapped, the line has the names of its columns, and nothing is said once it is followed."""
        world = World(tmp_path, clock)
        rows = [
            {"ts": NOW + at - (HOUR if device == "wrong" else 0), "device": device, "at": NOW + at}
            for device in ("wrong", "right")
            for at in range(20)
        ]
        bronze = pa.Table.from_pylist(rows)
        for place, name in ((0, "ts"), (2, "at")):
            bronze = bronze.set_column(place, name, bronze[name].cast(pa.timestamp("us", tz="UTC")))
        world.depot = str(tmp_path / "bronze")
        write_deltalake(world.depot, bronze)
        columns = {"source": "device", "key": "device", "type": "'a'", "event_time": "ts", "received_at": "at"}
        world.runner(embedded, depot_columns=columns).once()
        warning = warnings_by_kind(world)["ledger-sources"]
        assert (
            "timestamp_micros(unix_micros(ts) + CASE WHEN device = 'wrong' THEN 3600000000 ELSE 0 END)" in warning.hint
        )
        assert "becomes" not in warning.hint
        pasted = tomllib.loads(warning.hint.partition("[depot.columns]: ")[2])
        write_deltalake(world.depot, bronze.slice(0, 20), mode="append")
        world.runner(embedded, depot_columns=columns | pasted).once()
        assert "ledger-sources" not in warnings_by_kind(world)
        assert [row["rejected"] for row in world.history() if row["kind"] == "data"] == [20, 0]

    def test_without_sources(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """Where no message names a source, the line asks for no column of that name."""
        world = World(tmp_path, clock)
        wrong = [message("a", NOW + HOUR + at, NOW + at, source="") for at in range(20)]
        world.publish(wrong)
        world.runner(embedded).once()
        warning = warnings_by_kind(world)["ledger-sources"]
        assert 'event_time = "timestamp_micros(unix_micros(event_time) + -3600000000)"' in warning.hint
        assert moved(warning, wrong) == [NOW + at for at in range(20)]

    def test_is_not_told_again(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """A change of the rules begins the count anew; a source that is still rejected is told of again."""
        world = World(tmp_path, clock)
        world.publish([message("a", NOW - HOUR + at, NOW + at, source="slow") for at in range(20)])
        world.runner(embedded).once()
        assert {"ledger-sources"} <= warnings_by_kind(world).keys()
        world.runner(embedded, rules={"max_delay": "2h", "window": "3h"}).once()
        assert warnings_by_kind(world) == {}
        clock.advance(11 * HOUR)
        later = NOW + 10 * HOUR
        world.publish([message("a", later - 3 * HOUR + at, later + at, source="slow") for at in range(20)])
        world.runner(embedded, rules={"max_delay": "2h", "window": "3h"}).once()
        assert "3 h behind" in warnings_by_kind(world)["ledger-sources"].message

    def test_half_is_not_all(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """A source half of whose messages are late has no wrong clock."""
        world = World(tmp_path, clock)
        world.publish([message("a", NOW - (at % 2) * HOUR + at, NOW + at) for at in range(40)])
        world.runner(embedded).once()
        assert "ledger-sources" not in warnings_by_kind(world)


class TestDelay:
    def test_without_wrong_clocks(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """A source with a wrong clock is told of as such, and asks for no longer max_delay."""
        world = World(tmp_path, clock)
        world.publish([message("a", NOW - HOUR + at, NOW + at, source="wrong") for at in range(20)])
        world.publish([message("a", NOW + at, NOW + at, source="right") for at in range(20)])
        world.runner(embedded).once()
        assert warnings_by_kind(world).keys() == {"ledger-sources"}

    @pytest.mark.parametrize(("late", "warns"), [(1, False), (2, True)])
    def test_more_than_a_hundredth(
        self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory, late: int, warns: bool
    ) -> None:
        """Two late messages of a hundred are too many, one is not."""
        world = World(tmp_path, clock)
        punctual = [message("a", NOW + at, NOW + at) for at in range(100 - late)]
        world.publish([*punctual, *(message("a", NOW - HOUR + at, NOW) for at in range(late))])
        world.runner(embedded).once()
        assert ("ledger-delay" in warnings_by_kind(world)) is warns

    def test_reads_no_open_batch(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """Warnings count what is open by the sums beside the clocks, and read no file of open batches."""
        world = World(tmp_path, clock)
        world.publish([message("a", NOW + at, NOW + at) for at in range(20)], [message("a", NOW - HOUR, NOW)])
        world.runner(embedded).once()
        before, files = warnings_by_kind(world), list(Path(world.ledger).glob("state=open/*/*.parquet"))
        assert (before.keys() >= {"ledger-delay"}, bool(files)) == (True, True)
        for file in files:
            file.unlink()
        assert warnings_by_kind(world) == before

    def test_only_the_last_microbatches(
        self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was late long ago is not told forever: only the last microbatches count."""
        world = World(tmp_path, clock)
        for at in range(3):
            late = [message("a", NOW - HOUR + number, NOW) for number in range(20 if at == 0 else 0)]
            world.publish(
                [*late, *(message("a", NOW + at * SECOND + number, NOW + at * SECOND) for number in range(100))]
            )
            world.runner(embedded).once()
        assert "ledger-delay" in warnings_by_kind(world)
        monkeypatch.setattr(warnings, "RECENT", 2)
        assert "ledger-delay" not in warnings_by_kind(world)

    def test_reads_no_file_of_earlier_microbatches(
        self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The end of a run takes no longer because the history is longer: files of earlier microbatches stay closed."""
        world, kinds = World(tmp_path, clock), ("closed", "rejected", "microbatch")
        for at in range(4):
            moment = NOW + at * HOUR
            clock.set(moment)
            late = [message("a", moment - 2 * HOUR + number, moment) for number in range(20)]
            world.publish([*late, *(message("a", moment + number, moment) for number in range(100))])
            world.runner(embedded).once()
            if at == 1:
                earlier = [file for kind in kinds for file in Path(world.ledger).glob(f"state={kind}/*/*.parquet")]
        monkeypatch.setattr(warnings, "RECENT", 2)
        before = warnings_by_kind(world)
        assert (before.keys() >= {"ledger-delay"}, len(earlier) > len(kinds)) == (True, True)
        for file in earlier:
            file.unlink()
        assert warnings_by_kind(world) == before
