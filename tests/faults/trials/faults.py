"""The faults by name, and how often each is tried."""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.engine.factory import EngineFactory
from tests.faults import power
from tests.faults.trials import (
    amendments,
    catalogs,
    clusters,
    folds,
    histories,
    migrations,
    mishaps,
    outputs,
    processes,
    senders,
    stores,
    streams,
)
from tests.faults.trials.trial import Counted, Trial


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong, and how often it is tried: so many times as often as others; on Spark, in hundredths.

    A `process` of Spark's own takes ten seconds to start, so there are few of them. It is not tried where it is not
    `supported`.
    """

    name: str
    act: Callable[[Trial], None]
    embedded: int = 1
    spark: int = 0
    supported: Callable[[], bool] = lambda: True

    def times(self, engine: str, times: int) -> int:
        """Return how often it is tried when others are tried `times` times."""
        if not self.supported():
            return 0
        if engine == "embedded":
            return self.embedded * times
        return -(-self.spark * times // 100)


FAULTS = [
    Fault("SIGKILL at a random moment", processes.killed_at_random, 4, 10),
    Fault("random rules and messages, drivers that die at any point", histories.played, spark=10),
    Fault("SIGKILL at a named point", processes.killed_at_a_point, 2, 5),
    Fault("lost reply", mishaps.lost_reply, spark=10),
    Fault("failing commit", mishaps.failing_commit, spark=10),
    Fault("failing microbatch, retried", mishaps.failing_microbatch, spark=10),
    Fault("two drivers at once", processes.two_drivers, spark=3),
    Fault("three drivers at once", processes.three_drivers, spark=2),
    Fault("three drivers at once, two of them killed", processes.drivers_killed_in_turn),
    Fault("tick and flush by another process", processes.ticked_and_flushed, spark=5),
    Fault("RESTORE of the ledger between runs", mishaps.restored_between_runs, spark=5),
    Fault("RESTORE of the ledger during a run", mishaps.restored_during_a_run, spark=5),
    Fault("loss of the checkpoint", mishaps.checkpoint_lost, embedded=0, spark=10),
    Fault("OPTIMIZE, VACUUM, log clean-up of both tables between runs", mishaps.cleaned_up_between_runs, spark=5),
    Fault("the same by another process during a run", processes.looked_after, spark=3),
    Fault("OPTIMIZE of the depot during a run", mishaps.depot_compacted_during_a_run, spark=5),
    Fault("log files touched, tables copied elsewhere", mishaps.copied_and_touched, spark=3),
    Fault("disk full", mishaps.disk_full),
    Fault("ledger read-only", mishaps.read_only),
    Fault("wall clock jumps", mishaps.clock_jumps, spark=5),
    Fault("messages sent twice", mishaps.sent_twice, spark=5),
    Fault("damaged newest log entry", mishaps.damaged_entry),
    Fault("SIGKILL during a fold", folds.killed, 2, 5),
    Fault("drivers and maintenance at once, SIGKILL during folds", folds.raced, 2, spark=3),
    Fault("lost reply of a fold", folds.reply_lost, spark=5),
    Fault("an amendment, SIGKILL", amendments.killed, 2),
    Fault("an amendment, failing commits and lost replies", amendments.failing, spark=5),
    Fault("an amendment, two at once beside a driver", amendments.raced),
    Fault("an object store that fails", stores.failing, spark=5),
    Fault("an object store that fails, two drivers", stores.raced),
    Fault("disk full during a fold", folds.disk_full, spark=3),
    Fault("a topology with an output and timers, SIGKILL", outputs.killed),
    Fault("a topology with an output and timers, SIGKILL, then rollback or RESTORE", outputs.taken_back),
    Fault("a topology with an output and timers, three drivers", outputs.raced),
    Fault("a topology with an output and timers, three drivers, then rollback or RESTORE", outputs.raced_back),
    Fault("a topology with its plans in a table, three drivers, then rollback or RESTORE", outputs.raced_back_stored),
    Fault("a topology with its plans in a table, SIGKILL", outputs.killed_stored),
    Fault("a topology with its plans in a table, three drivers", outputs.raced_stored),
    Fault("a state of a topology gets other columns, SIGKILL", migrations.killed),
    Fault("the same, drivers with the columns of before and after at once", migrations.raced),
    Fault("a topology on tables of a catalog, SIGKILL", catalogs.killed, embedded=0, spark=10),
    Fault("a topology on tables of a catalog, failing commits", catalogs.failed, embedded=0, spark=5),
    Fault("a topology on tables of a catalog, two drivers", catalogs.raced, embedded=0, spark=10),
    Fault("producers, SIGKILL", senders.producers_killed, 2),
    Fault("a bridge, SIGKILL, and its broker started again", senders.bridges_killed),
    Fault("executors of a cluster, SIGKILL", clusters.executors_killed, embedded=0, spark=2),
    Fault("power cuts", power.power_cut, spark=2, supported=power.is_supported),
    Fault("foreach_batch, SIGKILL", streams.killed, embedded=0, spark=2),
    Fault("damaged checkpoint of foreach_batch", streams.checkpoint_damaged, embedded=0, spark=10),
]


def seed_of(fault: Fault, engine: str, seed: int, number: int) -> int:
    """Return the seed of one try, which is all that it depends on."""
    return zlib.crc32(f"{fault.name}/{engine}/{seed}/{number}".encode())


def tries(
    fault: Fault, factory: EngineFactory, seed: int, times: int, failed: Callable[[int, Exception], None]
) -> Iterator[Counted]:
    """Try a fault and count after each try; one that ends in an error differs, and `failed` is told its seed."""
    for number in range(times):
        trial_seed = seed_of(fault, factory.name, seed, number)
        with tempfile.TemporaryDirectory(prefix="windrow-") as folder:
            trial = Trial(Path(folder), trial_seed, factory)
            try:
                fault.act(trial)
                counted = trial.counted()
            except Exception as error:  # noqa: BLE001 - whatever comes out of a fault is a difference
                failed(trial_seed, error)
                counted = Counted(0, 0, (str(error),), trial.struck)
            else:
                if not counted.sound:
                    failed(trial_seed, AssertionError(str(counted)))
            yield counted
