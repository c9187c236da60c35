"""Raw depots and their ledgers: chunks in and out of order, bad records, gaps, repetitions, conflicts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from deltalake import write_deltalake

from tests.clocks import NOW, ManualClock
from tests.engine.factory import EMBEDDED
from tests.engine.world import World
from tests.messages import MILLISECOND, SECOND, Row
from windrow.delta.creation import create_depot
from windrow.model.chunks import RAW
from windrow.runtime.loop import Runner

COLUMNS = {
    "source": "raw_source",
    "key": "device",
    "type": "kind",
    "event_time": "timestamp_millis(ts)",
    "payload": "value",
}
FIELDS = {"ts": "int64", "device": "string", "kind": "string", "value": "int64"}
COMMA: dict[str, Any] = {
    "type": "csv",
    "fields": FIELDS,
    "has_header": False,
    "max_pending_bytes": 100,
    "max_record_bytes": 80,
}
SEMICOLON = COMMA | {"delimiter": ";"}
BAD = ['2,"k\nk",a,1\n', "nonsense\n", "x,y\n", '"open,k,a,1\n', "2,k,a,x\n", "\n", "y" * 90 + "\n", "\xe9,\xff\n"]


class RawWorld(World):
    """A raw depot and its ledger."""

    raw = True

    def __init__(self, root: Path, clock: ManualClock, ledger: str = "ledger") -> None:
        self.clock, self.payload = clock, pa.string()
        self.depot, self.ledger = str(root / "depot"), str(root / ledger)
        create_depot(self.depot, None)

    def publish(self, *versions: Iterable[Row]) -> None:
        """Append depot versions."""
        for rows in versions:
            write_deltalake(self.depot, pa.Table.from_pylist(list(rows), RAW), mode="append")

    def run(self, format_: dict[str, Any] = COMMA, columns: dict[str, str] = COLUMNS, **settings: Any) -> Runner:
        """Read all there is."""
        runner = self.runner(EMBEDDED, depot_columns=columns, format=format_, **settings)
        runner.once()
        return runner


def chunk(source: str | None, sequence: int | None, text: str, last: bool = False, at: int = NOW) -> Row:
    """Return a row of a raw depot."""
    content = text.encode("latin-1")
    return {"raw_source": source, "sequence": sequence, "bytes": content, "last": last, "received_at": at}


def record(device: str, kind: str, at: int, value: int = 1, delimiter: str = ",") -> str:
    """Return a record; `at` in microseconds."""
    return delimiter.join([str(at // MILLISECOND), device, kind, f"{value}\n"])


def eventful(root: Path, clock: ManualClock) -> RawWorld:
    """Return tables that saw everything: see the comments on each version."""
    world = RawWorld(root, clock)
    good = [record("k", kind, NOW + at * 100 * MILLISECOND) for at in range(6) for kind in "ab"]
    whole = "".join(good)
    world.publish(
        [chunk("a", 3, whole[150:]), chunk("a", 1, whole[:70])],  # out of order; the second chunk is missing
        [chunk("b", 1, good[0] + "nonsense\n" + good[0] + '2,"open\n' + good[1])],  # bad records, a duplicate
    )
    world.run(max_messages=1)
    world.publish(
        [chunk("a", 2, whole[70:150]), chunk("a", 1, whole[:70])],  # what was missing; a repetition
        [
            chunk("a", 1, "other"),
            chunk(None, 1, "of nobody"),
            chunk("b", 0, "before the first"),
        ],  # a conflict, no chunks
        [chunk("c", 1, good[0] + "12")],
    )
    world.run()
    world.publish([chunk("c", number, good[number], at=NOW + SECOND) for number in (3, 4, 5, 6, 7, 8, 9)])  # a gap
    world.run()
    world.publish([chunk("c", 2, "too late"), chunk("c", 10, "12")], [chunk("b", 2, "17", at=NOW + 2 * SECOND)])
    world.run()
    last = record("k", "c", NOW + 2 * SECOND, delimiter=";")
    world.publish([chunk("d", 1, last + last[:9], at=NOW + 3 * SECOND), chunk("d", 3, "held", at=NOW + 3 * SECOND)])
    world.run(SEMICOLON, COLUMNS | {"payload": "concat('=', CAST(value AS STRING))"})  # another format, another mapping
    return world


def random_world(seed: int, root: Path) -> RawWorld:
    """Return tables after any chunks, cut anywhere, in any order, read in any microbatches."""
    random, clock = Random(seed), ManualClock()
    world = RawWorld(root, clock)
    chunks: list[Row] = []
    for source in "abc"[: random.randint(1, 3)]:
        text = "".join(
            random.choice(BAD)
            if random.random() < 0.2
            else record("k", random.choice("ab"), NOW + at * 700 * MILLISECOND)
            for at in range(random.randint(0, 12))
        )
        ends = sorted(random.choices(range(len(text) + 1), k=random.randint(0, 6)))
        parts = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
        chunks += [
            chunk(source, number, part, number == len(parts), NOW + random.randint(0, 9) * SECOND)
            for number, part in enumerate(parts, 1)
            if random.random() < 0.95
        ]
    chunks += random.choices(chunks, k=random.randint(0, 2)) if chunks else []
    random.shuffle(chunks)
    while chunks:
        size = random.randint(1, 6)
        world.publish(chunks[:size])
        chunks = chunks[size:]
        if random.random() < 0.6:
            world.run(random.choice([COMMA, COMMA, SEMICOLON]), max_messages=random.choice([1, 1_000]))
    world.run()
    return world
