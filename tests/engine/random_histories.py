"""Random histories under random rules, whose drivers die at any point.

Many histories share a ledger, each with a source, and so a clock, of its own. So one microbatch, tick or flush is a
step of all of them: a thousand take a quarter of a minute, where a ledger for each of them takes half an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import windrow
from tests.batching.derived import derive
from tests.batching.log import Flush, Log, LogRules, Message, Tick, Version
from tests.batching.strategies import Row, place, rows
from tests.batching.test_properties import in_any_order, picked, without_names
from tests.clocks import NOW, ManualClock
from tests.engine.factory import EngineFactory
from tests.engine.histories import Crash, die
from tests.engine.world import World
from tests.messages import MILLISECOND, SECOND, message
from tests.probes import act_once, with_probe
from windrow.columnar.arrow import to_plain_types
from windrow.model.canonical import BATCH, REJECTED
from windrow.reading.tables import open_ledger
from windrow.runtime.loop import Runner
from windrow.testing.points import Point

VERSIONS = 6


class History:
    """The messages of one source, near its clock or near earlier ones, at distances that matter under the rules."""

    def __init__(self, random: Random, rules: LogRules, source: str) -> None:
        self.random, self.rules, self.source = random, rules, source
        self.clock = NOW + random.randrange(rules.window)
        self.sent: list[Message] = []
        window, delay, lead = rules.window, rules.max_delay, rules.max_lead
        spans = (0, window, delay, lead, delay + window, window - delay)
        self.marks = [sign * span + beside for span in spans for sign in (1, -1) for beside in (-1, 0, 0, 1)]

    def version(self) -> Iterator[Message]:
        """Yield what comes in the next depot version."""
        random, rules = self.random, self.rules
        for _ in range(random.choice((0, 1, 1, 2, 3))):
            self.clock += random.choice((0, 0, 0, MILLISECOND, rules.window // 2, rules.window, rules.max_delay))
            if self.sent and random.random() < 0.1:
                yield random.choice(self.sent)
                continue
            anchor = random.choice(self.sent).event_time if self.sent and random.random() < 0.4 else self.clock
            near = random.randint(-rules.max_delay, rules.max_lead)
            event_time, lag = anchor + random.choice((0, near, random.choice(self.marks))), random.choice((0, 0, 1))
            key, type_ = random.choice("kkl"), random.choice("abc")
            sequence = random.choice((None, None, 0, 1))
            payload = f"#{len(self.sent)}"
            message = Message(0, self.source, key, type_, event_time, self.clock - lag, sequence, payload, 0)
            self.sent.append(message)
            yield message


def random_log(random: Random, histories: int) -> Log:
    """Return a log of several histories under the same rules; a tick or a flush is one of all."""
    rules, index = random_rules(random), count()
    sources = [History(random, rules, f"s{number}") for number in range(histories)]
    steps = list[Version | Tick | Flush]()
    for number in range(1, VERSIONS + 1):
        new = [message for source in sources for message in source.version()]
        steps.append(tuple(replace(row, index=next(index), version=number) for row in new))
        if random.random() < 0.3:
            steps.append(Tick(random.choice(sources).clock + random.choice((-1, 0, 1, rules.window, rules.max_delay))))
        elif random.random() < 0.15:
            steps.append(Flush(None))
    return Log(rules, tuple(steps), versioned=True)


def random_rules(random: Random) -> LogRules:
    """Return rules of any proportion."""
    unit = random.choice((MILLISECOND, SECOND))
    window = unit * random.randint(1, 8)
    anchor = random.choice(("aligned", "aligned", "arrival", "event_time"))
    return LogRules(
        window,
        max_delay=unit * random.randint(0, 10),
        max_lead=unit * random.randint(0, 6),
        max_batch_bytes=random.choice((None, None, 5, 13)),
        window_anchor=anchor,
        on_repeat=random.choice(("keep", "split")),
        split_at=random.choice(("message", "midpoint")),
        window_offset=random.randrange(0, window, MILLISECOND) if anchor == "aligned" else 0,
    )


def settings_of(rules: LogRules) -> dict[str, Any]:
    """Return the rules as settings."""
    durations = {
        name: f"{getattr(rules, name) // MILLISECOND}ms"
        for name in ("window", "max_delay", "max_lead", "window_offset")
    }
    others = {name: getattr(rules, name) for name in ("window_anchor", "on_repeat", "split_at")}
    return {"rules": durations | others | {"max_batch_bytes": rules.max_batch_bytes or 0}}


def play(log: Log, world: World, engines: dict[str, EngineFactory], random: Random) -> None:
    """Let each engine take the log into a ledger of its name, in microbatches of the same sizes; half of the drivers
    die on their way, and the next one does it again.
    """
    for step in (*log.steps, ()):
        if isinstance(step, tuple) and step:
            world.publish([message_row(message) for message in step])
        if step and isinstance(step, tuple) and random.random() < 0.5:
            continue  # so that a microbatch can take several versions
        settings = settings_of(log.rules) | {"max_messages": random.choice((1, 100, 10**6))}
        deaths = [point if random.random() < 0.5 else None for point in random.choices([*Point], k=2)]
        for name, factory in engines.items():
            world.ledger = str(Path(world.depot).parent / name)
            driver = partial(world.runner, factory, **settings)
            take(driver, Runner.once, deaths[0])
            if isinstance(step, Tick):
                take(driver, partial(Runner.tick, to=step.now), deaths[1])
            elif isinstance(step, Flush):
                take(driver, Runner.flush, deaths[1])


def take(driver: Callable[..., Runner], step: Callable[[Runner], object], death: Point | None) -> None:
    """Take a step, if there is a death after a driver that died at this point."""
    if death is not None:
        with suppress(Crash):
            step(driver(with_probe(act_once(death, die))))
    step(driver())


def message_row(sent: Message) -> Row:
    """Return a message as a row of the depot."""
    others = {"source": sent.source, "key": sent.key, "sequence": sent.sequence, "payload": sent.payload}
    return message(sent.type, sent.event_time, sent.received_at, **others)


def require_derived(log: Log, ledger: str) -> None:
    """Require that a ledger has the batches and rejections that `verify` derives from the log."""
    derived, book = derive(log), open_ledger(ledger)
    batches = rows(to_plain_types(book.rows(("open", "closed"), ", ".join((*BATCH, "messages")))))
    assert sorted(without_names(batches), key=place) == derived.batches
    rejected = without_names(rows(to_plain_types(book.rows("rejected", ", ".join(REJECTED)))))
    names = derived.rejected[0].keys() if derived.rejected else ()
    assert in_any_order(picked(row, names) for row in rejected) == in_any_order(derived.rejected)


def play_and_compare(folder: Path, seed: int, histories: int, engines: dict[str, EngineFactory]) -> None:
    """Play a log of a seed on engines; the ledger of the first is as the rules say, and all have the same digest."""
    random = Random(seed)
    log = random_log(random, histories)
    play(log, World(folder, ManualClock(NOW * 2)), engines, random)
    require_derived(log, str(folder / next(iter(engines))))
    digests = {windrow.digests(str(folder / name)).total for name in engines}
    assert len(digests) == 1
