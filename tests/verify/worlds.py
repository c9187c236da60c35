"""Ledgers after anything that may happen to them, from a seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.world import World
from tests.messages import SECOND, log

EMBEDDED = EngineFactory("embedded")
RULES: dict[str, list[Any]] = {
    "window": ["2s", "6s", "10s", "20s"],
    "max_delay": ["0s", "1s", "5s", "12s"],
    "max_lead": ["0s", "1s", "3s"],
    "max_batch_bytes": [0, 12, 40, 16_777_216],
    "window_anchor": ["arrival", "event_time", "aligned", "aligned"],
    "on_repeat": ["split", "split", "keep"],
    "split_at": ["message", "midpoint"],
}


def random_world(seed: int, root: Path) -> World:
    """Return tables after data in any microbatches, with ticks, flushes, pauses and changes of the rules between."""
    random, clock = Random(seed), ManualClock()
    world, rules, start = World(root, clock), any_rules(random), NOW
    for part in range(random.randint(2, 5)):
        size = random.choice([5, 15, 30])
        world.publish(*log(versions=random.randint(1, 3), seed=seed * 100 + part, size=size, start=start))
        start += random.choice([0, 4, 8, 12]) * SECOND
        world.runner(EMBEDDED, rules=rules, max_messages=random.choice([1, 20, 1_000])).once()
        for _ in range(random.randint(0, 2)):
            clock.advance(random.choice([0, 1, 5, 30]) * SECOND)
            rules = any_rules(random) if random.random() < 0.3 else rules
            to = start + random.randint(-5, 15) * SECOND
            random.choice(HAPPENS)(world, rules, to)
    return world


def any_rules(random: Random) -> dict[str, Any]:
    """Return rules of any kind."""
    rules = {name: random.choice(values) for name, values in RULES.items()}
    if rules["window_anchor"] == "aligned":
        rules["window_offset"] = random.choice(["0s", "1s", "1500ms"])
    return rules


def pause(world: World, rules: dict[str, Any], to: int) -> None:
    """Pause, and go on."""
    world.runner(EMBEDDED, rules=rules).pause()
    world.runner(EMBEDDED, rules=rules).resume()


HAPPENS: list[Callable[[World, dict[str, Any], int], Any]] = [
    lambda world, rules, to: world.runner(EMBEDDED, rules=rules).tick(to),
    lambda world, rules, to: world.runner(EMBEDDED, rules=rules, idle_timeout="1s").tick(),
    lambda world, rules, to: world.runner(EMBEDDED, rules=rules).flush(),
    lambda world, rules, to: world.runner(EMBEDDED, rules=rules, idle_timeout="1s").once(),
    pause,
]
