"""What `status`, `run` and `doctor` say is off, and what they keep quiet about."""

from __future__ import annotations

import tomllib
from typing import Any

import pyarrow as pa
import pytest

from tests.clocks import NOW, ManualClock
from tests.conftest import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, message
from windrow.expressions import Mapping
from windrow.model.messages import COLUMNS
from windrow.model.warn import WarnPart
from windrow.reading.delta import open_ledger
from windrow.reading.warnings import LedgerWarning, warnings_of

LIMITS = WarnPart(least=10)
HOUR = 3_600 * SECOND


def said(world: World, limits: WarnPart = LIMITS) -> dict[str, LedgerWarning]:
    """Return the warnings about a ledger by their codes."""
    return {one.code: one for one in warnings_of(open_ledger(world.ledger), limits)}


class TestSplits:
    @pytest.fixture
    def repeating(self, tmp_path: Any, clock: ManualClock) -> World:
        """Messages of one type, one a second."""
        world = World(tmp_path, clock)
        for at in range(20):
            world.publish([message("a", NOW + at * SECOND, NOW + at * SECOND)])
        return world

    def test_warns(self, repeating: World, embedded: EngineFactory) -> None:
        """
        Where a repeated type split most windows, both settings that change it are named.
        """
        repeating.runner(embedded).once()
        found = said(repeating)["ledger-splits"]
        assert found.what.startswith("19 of 20 windows were split before their end (10s)")
        assert 'repeats = "keep"' in found.todo
        assert 'split_at = "midpoint"' in found.todo

    @pytest.mark.parametrize("limits", [WarnPart(), WarnPart(least=10, split_share=1)], ids=["few", "never"])
    def test_limits(self, repeating: World, embedded: EngineFactory, limits: WarnPart) -> None:
        """
        Few batches, and a share that cannot be exceeded, give no warning.
        """
        repeating.runner(embedded).once()
        assert "ledger-splits" not in said(repeating, limits)

    @pytest.mark.parametrize("rules", [{"repeats": "keep"}, {"split_at": "midpoint"}])
    def test_settled(self, repeating: World, embedded: EngineFactory, rules: dict[str, str]) -> None:
        """
        Whoever has chosen one of them is not told again.
        """
        repeating.runner(embedded, rules=rules).once()
        assert "ledger-splits" not in said(repeating)


class TestSources:
    def test_mapping_mends_it(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """
        A source whose clock is an hour behind is named, and the mapping to paste makes its messages punctual.
        """
        world = World(tmp_path / "before", clock)
        wrong = [message("a", NOW - HOUR + at, NOW + at, source="it's") for at in range(20)]
        right = [message("a", NOW + at, NOW + at, source="right") for at in range(20)]
        world.publish(wrong, right)
        world.runner(embedded).once()
        found = said(world)["ledger-sources"]
        assert found.what.startswith('20 of 20 messages of source "it\'s" were rejected; their event time is 1h behind')
        mapping = Mapping.of_depot(tomllib.loads(found.todo.partition("[depot.columns]: ")[2]), COLUMNS)
        assert mapping is not None
        given = pa.Table.from_pylist([*wrong, *right])
        for name in ("event_time", "received_at"):
            at = given.column_names.index(name)
            given = given.set_column(at, name, given[name].cast(pa.timestamp("us", tz="UTC")))
        moved = mapping.apply(given).read_all()["event_time"].cast(pa.int64()).to_pylist()
        assert moved == [NOW + at for at in range(20)] * 2

    def test_half_is_not_all(self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory) -> None:
        """
        A source half of whose messages are late has no wrong clock.
        """
        world = World(tmp_path, clock)
        world.publish([message("a", NOW - (at % 2) * HOUR + at, NOW + at) for at in range(40)])
        world.runner(embedded).once()
        assert "ledger-sources" not in said(world)


class TestDelay:
    @pytest.mark.parametrize(("late", "warns"), [(1, False), (2, True)])
    def test_more_than_a_hundredth(
        self, tmp_path: Any, clock: ManualClock, embedded: EngineFactory, late: int, warns: bool
    ) -> None:
        """
        Two late messages of a hundred are too many, one is not.
        """
        world = World(tmp_path, clock)
        punctual = [message("a", NOW + at, NOW + at) for at in range(100 - late)]
        world.publish([*punctual, *(message("a", NOW - HOUR + at, NOW) for at in range(late))])
        world.runner(embedded).once()
        assert ("ledger-delay" in said(world)) is warns
