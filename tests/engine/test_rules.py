"""Rules that change while the ledger runs, in any order and over any messages."""

from __future__ import annotations

import tempfile
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.clocks import NOW, ManualClock
from tests.conftest import one_in
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import SECOND, log, message
from tests.probes import act_once
from windrow.batching.rules import ShortWindowWarning
from windrow.testing.points import Point
from windrow.verify import verify

RULES = st.fixed_dictionaries(
    {
        "window": st.sampled_from(["2s", "6s", "10s", "20s"]),
        "max_delay": st.sampled_from(["0s", "1s", "5s", "12s"]),
        "max_lead": st.sampled_from(["0s", "1s", "3s"]),
        "max_batch_bytes": st.sampled_from([0, 12, 40]),
        "window_anchor": st.sampled_from(["arrival", "event_time", "aligned"]),
    }
)


def run(root: str, parts: list[Any], sequence: list[dict[str, Any]], max_messages: int) -> World:
    """Publish and run part by part, each under its own rules; `max_messages` cuts what a run reads."""
    world = World(Path(root), ManualClock())
    for rows, rules in zip(parts, sequence, strict=True):
        world.publish(*rows)
        world.runner(EMBEDDED, rules=rules, max_messages=max_messages).once()
    return world


@one_in(12)
@given(seed=st.integers(0, 10_000), sequence=st.lists(RULES, min_size=2, max_size=4))
def test_any_sequence(seed: int, sequence: list[dict[str, Any]]) -> None:
    """However the rules change: every message is in one batch or rejected, what is closed stays as it is, windows of a
    stream never overlap, the ids stand forever, and the result does not depend on how the log was cut into
    microbatches.
    """
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as other:
        warnings.simplefilter("ignore", ShortWindowWarning)
        versions = log(versions=2 * len(sequence), seed=seed, size=15)
        parts = [versions[2 * at : 2 * at + 2] for at in range(len(sequence))]
        world = run(directory, parts, sequence, max_messages=1_000)
        assert verify(world.depot, world.ledger).differences == ()
        world.assert_balanced()
        assert_apart(world)
        assert run(other, parts, sequence, max_messages=15).canonical() == world.canonical()
        changes = sum(before != after for before, after in pairwise(sequence))
        assert world.kinds().count("rules") == changes


def test_of_two_drivers(world: World) -> None:
    """A driver at work, under whose feet another one brings other rules in force, brings its own back before it goes
    on, with the floors that go with them: what the other one closed stays closed.
    """
    patient, strict = {"max_delay": "8s"}, {"max_delay": "0s"}
    world.publish([message("a", NOW, NOW)])
    world.runner(EMBEDDED, rules=patient).once()
    world.publish([message("b", NOW + SECOND, NOW + 4 * SECOND)])
    other = act_once(Point.BEFORE_COMMIT, lambda: world.runner(EMBEDDED, rules=strict).tick(NOW + 3 * SECOND))
    world.probed(EMBEDDED, other, rules=patient).once()
    assert world.kinds() == ["data", "rules", "tick", "rules", "data"]
    assert [row["reason"] for row in world.rows("rejected")] == ["too_old"]
    assert verify(world.depot, world.ledger).ok
    assert_apart(world)


def assert_apart(world: World) -> None:
    """No two windows of a stream overlap; parts of one window are the exception that has one."""
    by_stream: dict[tuple[str, str], set[tuple[Any, Any]]] = {}
    for row in world.rows("open", "closed"):
        by_stream.setdefault((row["source"], row["key"]), set()).add((row["window_start"], row["window_end"]))
    for windows in by_stream.values():
        ordered = sorted(windows)
        for (_, end), (start, _) in pairwise(ordered):
            assert end <= start
