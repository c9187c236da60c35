"""What proofs cost next to the run that they prove, for one and ten million messages: seconds, and the most memory.

All are commands from the shell, on the messages of a thousand devices in versions of a million; each runs once. On
Spark only the driver is measured, its Python and its JVM, next to two executors in processes of their own: the messages
should not pass through it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from sys import executable

from deltalake import DeltaTable

from benchmarks import processes
from benchmarks.conditions import Conditions
from benchmarks.peers import inputs
from benchmarks.row import Measurement, Target, at_most

ROOT = Path(__file__).parents[2]
VERSIONS = 10
RUN, VERIFY = ("run", "--once", "--engine", "embedded"), ("verify", "--json")
# Of ten million messages, the aims: seconds next to those of the run, or seconds, and GB.
COMMANDS: dict[str, tuple[tuple[str, ...], Target, Target]] = {
    "verify": (VERIFY, at_most(3), at_most(1.2)),
    "quality": (("quality",), at_most(8, own=True), at_most(1)),
    "replay": (("replay", "--json"), at_most(2), at_most(1)),
}
ON_EXECUTORS = """
import sys
from benchmarks.scale.sessions import session
from windrow.cli import main
session("local-cluster[2,1,2048]")
sys.exit(main(sys.argv[1:]))
"""


@dataclass(frozen=True, slots=True)
class Tables:
    """A depot of so many messages a version, and ledgers of it."""

    conditions: Conditions
    directory: Path
    size: int

    def publish(self, *versions: int) -> None:
        """Add versions to the depot."""
        for number in versions:
            self.conditions.tell(f"writing depot version {number}")
            devices = self.conditions.size(1_000, 10)
            messages = inputs.generated(self.size, devices, seed=number, first=number * self.size)
            inputs.write(self.directory / "depot", messages, 1)

    def command(self, ledger: str, *arguments: str, on_executors: bool = False) -> processes.Finished:
        """Run a command on the depot and one of the ledgers."""
        self.conditions.tell(f"windrow {' '.join(arguments)}, {self.directory.name}")
        environment = {
            "WINDROW_DEPOT": str(self.directory / "depot"),
            "WINDROW_LEDGER": str(self.directory / ledger),
            "WINDROW_IDLE_TIMEOUT": "never",
        }
        if not on_executors:
            return processes.run(processes.windrow(*arguments), environment)
        return processes.run([executable, "-c", ON_EXECUTORS, *arguments], environment | {"PYTHONPATH": str(ROOT)})


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Measure all commands on both depots, then what came last in the larger one, then Spark's driver on both."""
    size = conditions.size(1_000_000, 2_000)
    few, many = (Tables(conditions, conditions.directory / name, size) for name in ("few", "many"))
    few.publish(0)
    yield from proofs(few, size, has_aims=False)
    many.publish(*range(VERSIONS - 1))
    many.command("grown", *RUN)
    since = DeltaTable(many.directory / "grown").version()
    many.publish(VERSIONS - 1)
    many.command("grown", *RUN)
    yield from proofs(many, VERSIONS * size, has_aims=True)
    whole, last = few.command("ledger", *VERIFY), many.command("grown", *VERIFY, "--since", str(since))
    what, against = f"verify --since, the last {size:,} of {VERSIONS * size:,}", f"verify of {size:,}"
    yield Measurement(
        what, last.seconds, "s", against, whole.seconds, last.seconds / whole.seconds, "time", at_most(1.5)
    )
    yield held(what, last)
    yield driver(few, many)


def proofs(tables: Tables, messages: int, *, has_aims: bool) -> Iterator[Measurement]:
    """Run, and measure each command next to the run."""
    run = tables.command("ledger", *RUN)
    yield Measurement(f"run, {messages:,} messages", run.seconds, "s")
    yield held(f"run, {messages:,} messages", run)
    for name, (arguments, seconds, gigabytes) in COMMANDS.items():
        what, finished = f"{name}, {messages:,} messages", tables.command("ledger", *arguments)
        ratio, aim = finished.seconds / run.seconds, seconds if has_aims else None
        yield Measurement(what, finished.seconds, "s", "run", run.seconds, ratio, "time", aim)
        yield held(what, finished, gigabytes if has_aims else None)


def held(what: str, finished: processes.Finished, aim: Target | None = None) -> Measurement:
    """Return the most memory of a command, in GB as the setting `max_memory_bytes` counts."""
    return Measurement(f"{what}: memory", finished.peak_bytes / 1e9, "GB", aim=aim)


def driver(few: Tables, many: Tables) -> Measurement:
    """Measure the memory of Spark's driver on both."""
    own, other = (
        tables.command("ledger", *VERIFY, "--engine", "spark", on_executors=True).driver_peak_bytes / 1e9
        for tables in (many, few)
    )
    what, against = f"verify on Spark, {VERSIONS * many.size:,}: memory of the driver", f"{few.size:,} messages"
    return Measurement(what, own, "GB", against, other, own / other, "memory", at_most(1.2))
