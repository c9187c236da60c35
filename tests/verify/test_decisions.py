"""What the log and the rules give, derived once more, is what a ledger has; one that has it otherwise is found."""

from __future__ import annotations

import json

import pytest

from tests.engine.world import World
from tests.quality.damages import damage
from tests.verify.damages import DAMAGES
from windrow.verify import Report, verify
from windrow.verify.decisions import CHECKS


def check(world: World) -> Report:
    """Verify the latest version."""
    return verify(world.depot, world.ledger)


class TestClean:
    def test_every_version(self, world: World) -> None:
        """
        At every version of a ledger as it was written, every decision and every batch is what the rules make of it.
        """
        report = verify(world.depot, world.ledger, range(world.version() + 1))
        assert (report.differences, report.findings) == ((), ())
        for books in report.books:
            assert books.decided == books.messages_read
            assert books.derived_streams == books.streams
        assert {"data", "tick", "rules", "flush"} == set(world.kinds())
        reasons = {row["reason"] for row in world.rows("rejected")}
        assert reasons == {"too_old", "too_futuristic", "duplicate", "invalid", "clock_ahead"}
        batches = world.rows("closed", "open")
        assert {row["opened_by"] for row in batches} == {"message", "conflict", "size"}
        assert {row["close_reason"] for row in batches} == {"timeout", "flush", None}
        assert {row["part"] for row in batches} == {0, 1}


class TestDamaged:
    @pytest.mark.parametrize("name", DAMAGES)
    def test_found(self, world: World, name: str) -> None:
        """
        A ledger that agrees with itself and with the depot, but not with the rules, is found, and by nothing else.
        """
        change, checks = DAMAGES[name]
        damage(world, change)
        report = check(world)
        found = {difference.check for difference in report.differences}
        assert found - set(CHECKS) == set()
        assert found >= checks
        assert all(difference.examples for difference in report.differences)
        json.dumps(report.to_dict())
