"""What grows with the number of depot versions: a run that goes on, a first run, and `verify`.

Each version has ten messages, as a producer commits them that keeps nothing back: at ten commits a second a day has
864,000. A run that goes on opens the tables anew, as a scheduled job does.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benchmarks.conditions import Conditions
from benchmarks.microbatches import ours, settings
from benchmarks.peers import inputs
from benchmarks.row import Measurement, at_most, times
from benchmarks.turns import Run, time_interleaved, timed
from windrow.delta.table import OPEN_TABLES
from windrow.verify import verify

SIZE = 10
FEW = 100


def measure(conditions: Conditions) -> Iterator[Measurement]:
    """Compare a depot of many versions with one of a few, on the embedded engine."""
    many, rounds = conditions.size(20_000, 200), conditions.size(15, 2)
    messages = inputs.generated((many + 2 * rounds + 2) * SIZE)
    depots = {count: conditions.directory / f"depot-{count}" for count in (FEW, many)}
    chosen = {count: settings(depot, conditions.directory / f"ledger-{count}") for count, depot in depots.items()}
    for count, depot in depots.items():
        conditions.tell(f"{count:,} versions are written")
        inputs.write_many(depot, messages.slice(0, count * SIZE), count)
    ours(settings(depots[FEW], conditions.directory / "warm"))()  # compilers
    first = {count: ours(ledger_settings)() for count, ledger_settings in chosen.items()}
    runs = {str(count): partial(_afresh, ours(ledger_settings)) for count, ledger_settings in chosen.items()}

    def arrive(number: int) -> None:
        for count, depot in depots.items():
            inputs.write(depot, messages.slice((count + number) * SIZE, SIZE), 1)

    taken = time_interleaved(runs, rounds, 2, arrive, conditions.tell)
    yield times(f"a run after {many:,} versions", taken[str(many)], f"after {FEW}", taken[str(FEW)], at_most(1.3))
    yield Measurement("a first run, a version", _each(first, many), "ms", aim=at_most(0.5))
    conditions.tell("verify")
    verify(chosen[FEW].depot, chosen[FEW].ledger)
    checked = {
        count: timed(partial(verify, ledger_settings.depot, ledger_settings.ledger))
        for count, ledger_settings in chosen.items()
    }
    yield Measurement("verify, a version", _each(checked, many), "ms", aim=at_most(0.5))


def _afresh(run: Run) -> float:
    OPEN_TABLES.clear()
    return run()


def _each(seconds: dict[int, float], many: int) -> float:
    """Return how many milliseconds one more version takes."""
    return (seconds[many] - seconds[FEW]) / (many - FEW) * 1_000
