"""Each invariant, as `windrow verify` checks it: it holds in a ledger as it was written, and it can fail."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import message
from tests.verify.quality.by_part import check_invariants
from tests.verify.quality.damages import DAMAGES, damage
from windrow.reading.tables import open_ledger
from windrow.verify import parts, verify
from windrow.verify.invariants import INVARIANTS

CRITICAL = {name for name, invariant in INVARIANTS.items() if invariant.severity == "critical"}


def failing(world: World) -> dict[str, int]:
    """Return the invariants that fail in the latest version, with as many examples as they show."""
    differences = check_invariants(open_ledger(world.ledger))
    return {difference.check: len(difference.examples) for difference in differences}


def test_every_one_can_fail() -> None:
    """There is a damage for every critical invariant, so none of them is a condition that always holds."""
    assert DAMAGES.keys() == CRITICAL


def test_clean(world: World) -> None:
    """At every version of a ledger as it was written all critical invariants hold."""
    for version in range(world.version() + 1):
        assert list(check_invariants(open_ledger(world.ledger, version))) == []


def test_infinite_times(tmp_path: Path, clock: ManualClock) -> None:
    """A time that DuckDB takes for infinite is out of range as others are: the message is invalid, and nothing
    fails.
    """
    world, ends = World(tmp_path, clock), (2**63 - 1, 1 - 2**63)
    world.publish([row for end in ends for row in (message("a", end, NOW), message("a", NOW, end))])
    assert world.runner(EngineFactory("embedded")).once().total("rejected") == 4
    assert failing(world) == {}


def test_rewriting_changes_nothing(world: World) -> None:
    """The way in which these tests damage a ledger fails nothing when nothing is damaged."""
    damage(world, lambda rows: None)
    assert failing(world) == {}


def test_verify_reports_them(world: World) -> None:
    """What fails is a difference of the report, which says what is expected in the words of the invariant."""
    damage(world, DAMAGES["batch_message_count"])
    report = verify(world.depot, world.ledger)
    (difference,) = [difference for difference in report.differences if difference.check == "batch_message_count"]
    assert (difference.expected, difference.found) == (INVARIANTS["batch_message_count"].about, "1 rows")
    assert (difference.examples[0]["message_count"], report.ok) == (99, False)


@pytest.mark.ci
@pytest.mark.parametrize("name", DAMAGES)
def test_found(world: World, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A ledger that was damaged in this way fails the invariant, and the rows are shown; as many rows fail if every
    stream is a part of its own.
    """
    damage(world, DAMAGES[name])
    ledger = open_ledger(world.ledger)
    differences = check_invariants(ledger)
    assert next(difference for difference in differences if difference.check == name).examples
    together = {broken.check: broken.found for broken in differences}
    monkeypatch.setattr(parts, "PART_SHARE", 1 << 60)
    assert {broken.check: broken.found for broken in check_invariants(ledger)} == together
