"""Commands that run microbatches: run, tick, flush."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from windrow import moments
from windrow.cli import options
from windrow.cli.options import Config, Debug, Depot, Engine, Json, Ledger, aside, say
from windrow.errors import SettingsError

if TYPE_CHECKING:
    from windrow.microbatch import Committed
    from windrow.runner import Runner, Summary
    from windrow.settings import Settings
    from windrow.wall import WallClock

Every = Annotated[str | None, typer.Option("--every", help="Go on, looking at the depot this often, e.g. 10s.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(epilog="Example: windrow run --once   or   windrow run --every 10s")(run)
    app.command(epilog="Example: windrow tick --to 2026-01-31T12:00:00Z")(tick)
    app.command(epilog="Example: windrow flush --json")(flush)


def run(
    once: Annotated[bool, typer.Option("--once", help="Batch what is new, then stop (default).")] = False,
    every: Every = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Batch what is new in the depot. SIGINT and SIGTERM let the microbatch at work finish."""
    if once and every is not None:
        raise SettingsError("--once and --every exclude each other", "Give one of them.")
    chosen = options.settings(config, depot=depot, ledger=ledger, engine=engine)
    pause = chosen.run.every if every is None else _microseconds(every)
    _run(chosen, lambda runner: runner.once() if every is None else runner.every(pause), json)


def tick(
    to: Annotated[
        str | None, typer.Option("--to", help="Raise the floor of every source to this time, ISO 8601.")
    ] = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Close what is overdue: at the idle clocks now, or at a time of your choice. It is recorded and replayed."""
    moment = None if to is None else moments.microseconds(to, "--to")
    _run(options.settings(config, depot=depot, ledger=ledger, engine=engine), lambda runner: runner.tick(moment), json)


def flush(
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Close all that is open, each source at its clock. Messages from before the cut are too old afterwards."""
    _run(options.settings(config, depot=depot, ledger=ledger, engine=engine), lambda runner: runner.flush(), json)


def _run(settings: Settings, work: Callable[[Runner], Summary], json: bool) -> None:
    from windrow.engine import choose
    from windrow.wall import WallClock

    if not json:
        aside.print(f"[dim]engine {choose(settings.engine)}, depot {settings.depot}, ledger {settings.ledger}[/dim]")
    clock = WallClock()
    with stopping(clock), reporting(settings, quiet=json) as (report, retrying):
        summary = work(runner_of(settings, clock, report, retrying))
    if json:
        options.print_json(_document(summary))
    else:
        say(sentence(summary))


def runner_of(
    settings: Settings,
    clock: WallClock,
    report: Callable[[Committed], None],
    retrying: Callable[[Exception, int], None],
) -> Runner:
    """Open the engine and return the runner."""
    from windrow.engine import open_engine
    from windrow.runner import Runner

    runner = Runner(open_engine(settings), settings, clock, report, retrying)
    _install(clock)  # once more: Spark's session puts a handler of its own in place
    return runner


def sentence(summary: Summary) -> str:
    """Say in one line what a run did."""
    if not summary.microbatches:
        return "Nothing new, nothing overdue."
    counted = options.count
    return (
        f"{counted(len(summary.microbatches), 'microbatch')}: {counted(summary.total('messages'), 'message')} read, "
        f"{summary.total('accepted'):,} accepted, {summary.total('rejected'):,} rejected; "
        f"{counted(summary.total('opened'), 'batch')} opened, {summary.total('closed'):,} closed."
    )


@contextmanager
def stopping(clock: WallClock) -> Iterator[None]:
    """Let SIGINT and SIGTERM ask for a stop; a second SIGINT interrupts."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    _install(clock)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _install(clock: WallClock) -> None:
    def stop(number: int, _: object) -> None:
        aside.print("stopping after this microbatch")
        clock.stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


@contextmanager
def reporting(
    settings: Settings, quiet: bool
) -> Iterator[tuple[Callable[[Committed], None], Callable[[Exception, int], None]]]:
    """Show a progress bar on a terminal, a line for each microbatch elsewhere, nothing when `quiet`."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=aside, disable=quiet or not aside.is_terminal, transient=True) as bar:
        waiting = bar.add_task("messages", total=_waiting(settings))

        def report(committed: Committed) -> None:
            bar.advance(waiting, committed.messages)
            if not quiet and not aside.is_terminal:
                aside.print(line(committed))

        def retrying(error: Exception, attempt: int) -> None:
            aside.print(f"attempt {attempt} failed, trying again: {str(error).splitlines()[0]}")

        yield report, retrying


def line(committed: Committed) -> str:
    """Say in one line what a microbatch did and how long its phases took."""
    phases = ", ".join(
        f"{name} {getattr(committed, f'{name}_ms'):.0f}" for name in ("prime", "plan", "process", "commit")
    )
    return (
        f"microbatch {committed.microbatch} ({committed.kind}): {committed.messages} messages, "
        f"{committed.rejected} rejected, {committed.closed} closed; ms: {phases}"
    )


def _waiting(settings: Settings) -> int | None:
    """Return how many messages wait, by the logs of local tables; None where they do not say."""
    from windrow.reading import waiting

    return waiting(settings.depot, settings.ledger)


def _document(summary: Summary) -> dict[str, object]:
    names = ("messages", "accepted", "rejected", "opened", "closed")
    totals = {name: summary.total(name) for name in names}
    microbatches = [asdict(committed) for committed in summary.microbatches]
    return {"engine": summary.engine, **totals, "microbatches": microbatches}


def _microseconds(duration: str) -> int:
    from windrow.durations import microseconds

    return microseconds(duration, "--every")
