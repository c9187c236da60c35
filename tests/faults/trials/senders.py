"""Faults of what brings messages into a depot: producers and bridges that are killed, a broker that starts again."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, closing
from itertools import islice
from multiprocessing.connection import Connection

import pyarrow.compute as pc
from deltalake import DeltaTable

import windrow
from tests.faults.trials.processes import Child, children
from tests.faults.trials.trial import Counted, Trial
from tests.producer.bridge.broker import Broker, Publisher, Stream, until
from windrow.producer.bridge.mqtt import MqttBridge
from windrow.reading.tables import open_ledger
from windrow.settings.settings import Settings
from windrow.verify import verify

PRODUCERS = 10  # of a process, each with a depot of its own: so its start is a tenth of a try
KILLS = 2
BURST = 5  # messages that a producer sends before it waits
PAUSE_SECONDS = 0.1  # what a burst to all depots takes on two cores, measured


def send(pipe: Connection, depots: list[str]) -> None:
    """Continue the numbers in each depot without an end, and say of each which one it has acknowledged."""
    pipe.send("ready")
    pipe.recv()
    with ExitStack() as stack:
        opened = [windrow.Producer(depot, "p", fsync=False, linger="5ms") for depot in depots]
        producers = [stack.enter_context(producer) for producer in opened]
        numbers = [producer.last_sequence() for producer in producers]
        while True:
            for at, producer in enumerate(producers):
                burst = range(numbers[at] + 1, numbers[at] + BURST + 1)
                sent = [producer.send(key="k", type="t", payload=str(number)) for number in burst]
                numbers[at] = [future.result(60).sequence for future in sent][-1]
                pipe.send((at, numbers[at]))


def producers_killed(trial: Trial) -> None:
    """Kill a process with producers twice, whose successor continues after the last number in each depot."""
    depots = [str(trial.folder / f"depot-{number}") for number in range(PRODUCERS)]
    acknowledged: dict[int, int] = {}
    struck = 0
    for _ in range(KILLS):
        with children(Child(send, depots)) as (child,):
            child.go()
            acknowledged |= dict(islice(child.said(), trial.random.randrange(3 * PRODUCERS)))
            time.sleep(trial.random.uniform(0, PAUSE_SECONDS))
            struck += child.kill()
            acknowledged |= dict(child.said())
    counted = Counted.sum(_numbered(depot, acknowledged.get(at, 0)) for at, depot in enumerate(depots))
    trial.result = Counted(counted.lost, counted.duplicated, counted.differences, struck * PRODUCERS, KILLS * PRODUCERS)


def _numbered(depot: str, acknowledged: int) -> Counted:
    """Count the numbers from 1 on that a depot has."""
    stored = Counter[int]()
    if DeltaTable.is_deltatable(depot):
        stored.update(map(int, DeltaTable(depot).to_pyarrow_table(columns=["payload"])["payload"].to_pylist()))
    lost = {*range(1, acknowledged + 1)} - stored.keys()
    gaps = {*range(1, max(stored, default=0) + 1)} - stored.keys()
    differences = (f"{depot} has no number {min(gaps)}",) if gaps else ()
    return Counted(len(lost), stored.total() - len(stored), differences, struck=0)


def bridge(pipe: Connection, depot: str, broker: str) -> None:
    """Be a bridge, and say how many messages are committed."""
    topics = {"broker": broker, "topics": ["plant/{key}/{type}"], "event_time": "collectd"}
    pipe.send("ready")
    pipe.recv()
    with MqttBridge(
        Settings(depot=depot, mqtt=topics, fsync=False), lambda stats: pipe.send(stats.committed)
    ) as opened:
        opened.run()


def bridges_killed(trial: Trial) -> None:
    """Kill a bridge twice while messages are published, whose broker may start again before."""
    struck, depot, broker = 0, trial.world.depot, Broker(trial.folder / "broker")
    with ExitStack() as stack:
        broker.start()
        stack.callback(broker.stop)
        publisher = stack.enter_context(closing(Publisher(broker.port)))
        _subscribe(depot, broker, publisher)
        first = time.time()
        stream = Stream(publisher, lambda number: f"{first + number / 1_000:.3f}:{number}")
        stack.callback(stream.stop)
        for _ in range(KILLS):
            with children(Child(bridge, depot, broker.place)) as (child,):
                child.go()
                for _ in islice(child.said(), trial.random.randrange(1, 5)):
                    pass
                if trial.random.random() < 0.5:
                    broker.stop()
                    broker.start()
                time.sleep(trial.random.uniform(0, PAUSE_SECONDS))
                struck += child.kill()
        with children(Child(bridge, depot, broker.place)) as (child,):
            child.go()
            stream.stop()
            taken = stream.taken  # what the broker acknowledges later may come after the end
            until(lambda: _has(depot, taken), "all is in the depot")
    trial.result = _batched(trial, taken, struck)


def _subscribe(depot: str, broker: Broker, publisher: Publisher) -> None:
    """Run a bridge until it gets a message: from then on the broker keeps what it cannot send."""

    def arrives() -> bool:
        publisher.publish("plant/first/level", f"{time.time():.3f}:first")
        return DeltaTable.is_deltatable(depot) and DeltaTable(depot).version() > 0

    with children(Child(bridge, depot, broker.place)) as (child,):
        child.go()
        until(arrives, "the bridge gets messages")


def _has(depot: str, payloads: set[str]) -> bool:
    return payloads <= {*DeltaTable(depot).to_pyarrow_table(columns=["payload"])["payload"].to_pylist()}


def _batched(trial: Trial, taken: set[str], struck: int) -> Counted:
    """Batch what came: a message that came again is rejected as a duplicate."""
    tables = {"depot": trial.world.depot, "ledger": trial.world.ledger}
    rules = {"window": "1d", "max_delay": "5h", "max_lead": "5h", "on_repeat": "keep"}
    windrow.run(Settings(**tables, rules=rules, engine="embedded", idle_timeout="never"))
    report = verify(**tables)
    inside = pc.list_flatten(open_ledger(tables["ledger"]).rows(("open", "closed"), "messages")["messages"])
    stored = Counter(pc.struct_field(inside, "payload").to_pylist())
    reasons = {row["reason"] for row in trial.world.rows("rejected")} - {"duplicate"}
    differences = (*map(str, report.differences), *(f"messages were rejected as {reason}" for reason in reasons))
    lost = taken - stored.keys()
    return Counted(len(lost), (stored - Counter(stored.keys())).total(), differences, struck, KILLS)
