"""What a page finds in its working directory. Tables lie at data/depot and data/ledger, as the defaults have it.

| `begins with` | what is there |
|---|---|
| `nothing` | an empty directory |
| `messages` | `data/messages.parquet`: a minute of two pumps, of which one stalls; the pages that say nothing have it |
| `lines` | `data/readings.ndjson`: five messages and a line that is none |
| `records` | `data/readings.csv`: records of which one is bad, and a `windrow.toml` that says how they are read |
| `depot` | the messages, ingested |
| `ledger` | the same, ingested and run: closed and open batches, rejected messages |
| `topology` | the same, and `counting.py`: a topology that ran, and one that did not |
| `sample` | the bundled measurements, minute by minute, a pause and a change of rules after them |
| `fleet` | the bronze table and the first settings of docs/tutorial-fleet.md, twenty devices for two minutes |
| `demo` | `demo/`, as `make demo ENGINE=embedded` leaves it |
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.clocks import ManualClock
from tests.docs.pages import pages
from tests.messages import SECOND, Row, message, table
from tests.probes import open_tables
from windrow.cli import main
from windrow.ingest import sample
from windrow.ingest.ingest import ingest
from windrow.model.timestamps import microseconds
from windrow.runtime.driver import RunSummary
from windrow.runtime.loop import Runner
from windrow.runtime.opening import tables_of
from windrow.runtime.run import open_runner
from windrow.settings.settings import Settings
from windrow.settings.template import settings_file

NOON = microseconds("2026-01-31T12:00:00Z", "noon")
MINUTE = 60 * SECOND
STALL = range(20, 50)


def prepare(world: str, directory: Path, made: Callable[[str], Path]) -> None:
    """Fill a directory; `made` gives one in which a world is that takes long to make."""
    if world in MADE:
        shutil.copytree(made(world), directory, dirs_exist_ok=True)
        return
    assert world in ("nothing", "lines", "records", "messages", "depot", "ledger", "topology"), (
        f"nobody knows a world {world!r}"
    )
    if world == "nothing":
        return
    (directory / "data").mkdir()
    if world == "lines":
        (directory / "data" / "readings.ndjson").write_text("".join(f"{line}\n" for line in readings()))
        return
    if world == "records":
        _format(directory)
        return
    pq.write_table(table(pumps()), directory / "data" / "messages.parquet")
    if world == "messages":
        return
    settings = _settings(directory)
    _ingest(settings, directory / "data" / "messages.parquet")
    if world in ("ledger", "topology"):
        _run(settings, ManualClock(NOON + 2 * MINUTE), Runner.once)
    if world == "topology":
        _count(directory)


def _count(directory: Path) -> None:
    """Write a topology, which counts messages by their types and has an event, and run it on one message or more."""
    (directory / "counting.py").write_text(COUNTING, encoding="utf-8")
    with chdir(directory):
        assert main(["run", "counting:topology", "--engine", "embedded", "--json"]) == 0


COUNTING = """
from windrow.topology import Microbatch, Topology

totals = Topology("totals", depots=["data/depot"], states="data/totals")
totals.state("totals", value="messages BIGINT", initial={"messages": 0})
topology = Topology("counting", depots=["data/depot"], states="data/counting")
topology.state("counts", key="kind STRING", value="count BIGINT")
topology.event("hour", every="1h")


@topology.function
def count_kinds(microbatch: Microbatch) -> None:
    kinds = microbatch.rows("depot").rename_columns({"type": "kind"})
    microbatch.state("counts").combine(kinds, count="count")


@totals.function
def count_all(microbatch: Microbatch) -> None:
    microbatch.state("totals").combine(microbatch.rows("depot"), messages="count")
"""


def measure(directory: Path) -> None:
    """Batch the sample as a schedule would: a file, then a run, a minute; then a pause and longer rules."""
    settings = _settings(directory, ingest={"columns": sample.COLUMNS})
    whole = pq.read_table(sample.copy_into(directory))
    minute = pc.divide(whole["received_at_ns"], MINUTE * 1_000)
    for number in pc.unique(minute).sort().to_pylist():
        file = directory / "data" / f"{number}.parquet"
        pq.write_table(whole.filter(pc.equal(minute, number)), file)
        _ingest(settings, file)
        _run(settings, ManualClock((number + 1) * MINUTE), Runner.once)
    later = ManualClock((number + 2) * MINUTE)
    _run(settings, later, Runner.pause)
    later.advance(MINUTE)
    _run(settings, later, Runner.resume)
    later.advance(MINUTE)
    _run(_settings(directory, ingest=settings.ingest, rules={"max_delay": "8s"}), later, Runner.once)


def demonstrate(directory: Path) -> None:
    """Run the demo."""
    with chdir(directory):
        assert main(["demo", "--engine", "embedded", "--json"]) == 0


def send(directory: Path) -> None:
    """Follow the beginning of the tutorial about a fleet."""
    [page] = [page for page in pages() if page.path == "docs/tutorial-fleet.md"]
    program, settings, *_ = [block for block in page.blocks if "file" in block.remarks]
    for block in (program, settings):
        (directory / block.remarks["file"]).write_text(block.text, encoding="utf-8")
    subprocess.run([sys.executable, "fleet.py", "20", "120"], cwd=directory, check=True, capture_output=True)


MADE = {"sample": measure, "demo": demonstrate, "fleet": send}


def _format(directory: Path) -> None:
    """Write readings as CSV, one of them without a value, and the settings that read them."""
    lines = [f"2026-01-31T12:00:{second:02}Z,pump-{second % 2},{20 + second}\n" for second in range(5)]
    (directory / "data" / "readings.csv").write_text("".join(["ts,device,value\n", *lines, "2026-01-31,pump-1\n"]))
    fields = {"ts": "timestamp[us]", "device": "string", "value": "float64"}
    columns = {"key": "device", "type": "'value'", "event_time": "ts", "received_at": "received_at"}
    settings = Settings(format={"type": "csv", "fields": fields}, depot_columns=columns)
    (directory / "windrow.toml").write_text(settings_file(settings), encoding="utf-8")


def readings() -> list[str]:
    """Return lines of JSON: a reading a second, and one that was cut."""
    reading = '{{"key": "pump-1", "type": "{}", "event_time": "2026-01-31T12:00:{:02}Z", "payload": {}}}'
    lines = [reading.format(("temperature", "pressure")[second % 2], second, 21.5 + second) for second in range(5)]
    return [*lines[:3], lines[3][:40], *lines[3:]]


def pumps() -> list[Row]:
    """Return a minute of two pumps, one message a second; one is silent for half of it, then sends all at once."""
    return [
        message(
            ("temperature", "pressure")[second % 2],
            NOON + second * SECOND,
            NOON + (50 if key == "pump-2" and second in STALL else second) * SECOND + SECOND // 5,
            source=key,
            key=key,
            payload="20.5",
        )
        for key in ("pump-1", "pump-2")
        for second in range(60)
    ]


def _settings(directory: Path, **values: object) -> Settings:
    """Write the settings file of the directory, and return the settings with paths in full."""
    settings = Settings(idle_timeout="never", **values)
    (directory / "data").mkdir(exist_ok=True)
    (directory / "windrow.toml").write_text(settings_file(settings), encoding="utf-8")
    here = {name: str(directory / "data" / name) for name in ("depot", "ledger")}
    return settings.model_copy(update={**here, "engine": "embedded"})


def _ingest(settings: Settings, file: Path) -> None:
    assert sum(
        outcome.message_count for outcome in ingest(open_tables(settings).writer, [str(file)], settings.ingest.columns)
    )


def _run(settings: Settings, clock: ManualClock, work: Callable[[Runner], RunSummary]) -> None:
    with open_runner(*tables_of(settings), clock) as runner:
        work(runner)
