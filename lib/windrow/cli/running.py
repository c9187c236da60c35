"""Commands that run microbatches: run, tick, flush."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import options
from windrow.cli.options import (
    Checkpoints,
    Config,
    Debug,
    Depot,
    Engine,
    Json,
    Ledger,
    LogFormat,
    LogLevel,
    Views,
    aside,
    say,
)
from windrow.cli.topologies import Named, refuse_tables, run_topology, settings_of, switch_topology
from windrow.errors import SettingsError
from windrow.model import timestamps as moments

if TYPE_CHECKING:
    from windrow.runtime.runner import Runner, Summary
    from windrow.settings.settings import Settings

Every = Annotated[str | None, typer.Option("--every", help="Go on, looking at the depot this often, e.g. 10s.")]
MaintainEvery = Annotated[
    str | None, typer.Option("--maintain-every", help="With --every: maintain tables this often, e.g. 1h, or never.")
]


def add_to(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command(epilog="Example: windrow run --every 10s   or   windrow run words:topology")(run)
    app.command(epilog="Example: windrow tick --to 2026-01-31T12:00:00Z")(tick)
    app.command(epilog="Example: windrow flush --json")(flush)
    app.command(epilog="Example: windrow pause --ledger data/ledger")(pause)
    app.command(epilog="Example: windrow resume --ledger data/ledger")(resume)


def run(
    topology: Named = None,
    once: Annotated[bool, typer.Option("--once", help="Batch what is new, then stop (default).")] = False,
    every: Every = None,
    maintain_every: MaintainEvery = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be batched, closed and rejected; write nothing.")
    ] = False,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    views: Views = None,
    checkpoints: Checkpoints = None,
    engine: Engine = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Batch what is new in the depot, or process it with a topology. SIGINT and SIGTERM let the microbatch finish.

    With --every the tables are maintained between microbatches, as `windrow maintain` does it.
    """
    if once and every is not None:
        raise SettingsError("--once and --every exclude each other", "Give one of them.")
    if dry_run and every is not None:
        raise SettingsError("--dry-run and --every exclude each other", "A dry run looks once.")
    if maintain_every is not None and every is None:
        raise SettingsError("--maintain-every is nothing without --every", "A scheduler starts `windrow maintain`.")
    log = options.table(format=log_format, level=log_level)
    flags = {"depot": depot, "ledger": ledger, "views": views, "checkpoints": checkpoints, "engine": engine}
    chosen = options.running(config, **flags, log=log, run=options.table(maintain_every=maintain_every))
    pause = chosen.run.every if every is None else _microseconds(every)

    def work(runner: Runner) -> Summary:
        return runner.once() if every is None else runner.every(pause)

    if topology is None:
        _run(chosen, work, json, config, dry_run, may_idle=every is None and not dry_run)
        return
    refuse_tables(depot=depot, ledger=ledger, views=views)
    if dry_run:
        raise SettingsError("--dry-run is nothing with a topology", "Try it in a test: windrow.testing.Harness.")
    run_topology(topology, chosen, work, json, "Nothing new, nothing due.")


def tick(
    topology: Named = None,
    to: Annotated[
        str | None, typer.Option("--to", help="Raise the floor of every source to this time, ISO 8601.")
    ] = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Close what is overdue: at the idle clocks now, or at a time of your choice. It is recorded and replayed.

    Of a topology it fires the events that are due, and raises the clocks of its depots to a time of your choice.
    """
    moment = None if to is None else moments.microseconds(to, "--to")
    if topology is not None:
        refuse_tables(depot=depot, ledger=ledger)
        chosen = settings_of(config, engine, log=options.table(format=log_format, level=log_level))
        run_topology(topology, chosen, lambda runner: runner.tick(moment), json, "Nothing due.")
        return
    log = options.table(format=log_format, level=log_level)
    chosen = options.running(config, depot=depot, ledger=ledger, engine=engine, log=log)
    _run(chosen, lambda runner: runner.tick(moment), json, config)


def flush(
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Close all that is open, each source at its clock. Messages from before the cut are too old afterwards."""
    log = options.table(format=log_format, level=log_level)
    chosen = options.running(config, depot=depot, ledger=ledger, engine=engine, log=log)
    _run(chosen, lambda runner: runner.flush(), json, config)


def pause(
    topology: Named = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Pause the ledger: whoever runs it does nothing more until `resume`. It is recorded in the history."""
    if topology is not None:
        refuse_tables(depot=depot, ledger=ledger)
        switch_topology(topology, settings_of(config, engine), lambda runner: runner.pause(), json)
        return
    chosen = options.switching(config, depot=depot, ledger=ledger, engine=engine)
    _run(chosen, lambda runner: runner.pause(), json, config)


def resume(
    topology: Named = None,
    config: Config = None,
    depot: Depot = None,
    ledger: Ledger = None,
    engine: Engine = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Let a paused ledger go on. It is recorded in the history."""
    if topology is not None:
        refuse_tables(depot=depot, ledger=ledger)
        switch_topology(topology, settings_of(config, engine), lambda runner: runner.resume(), json)
        return
    chosen = options.switching(config, depot=depot, ledger=ledger, engine=engine)
    _run(chosen, lambda runner: runner.resume(), json, config, nothing="The ledger was not paused.")


def _run(
    settings: Settings,
    work: Callable[[Runner], Summary],
    json: bool,
    config: str | None,
    dry_run: bool = False,
    nothing: str = "Nothing new, nothing overdue.",
    may_idle: bool = False,
) -> None:
    summary = done(settings, work, quiet=json, config=config, dry_run=dry_run, may_idle=may_idle)
    if json:
        options.print_json(_document(summary) | ({"dry_run": True} if dry_run else {}))
        return
    say(sentence(summary, nothing))
    if dry_run:
        say("This was a dry run: nothing was written.")


def done(
    settings: Settings,
    work: Callable[[Runner], Summary],
    quiet: bool,
    config: str | None = None,
    dry_run: bool = False,
    may_idle: bool = False,
) -> Summary:
    """Do what a command does, with log, signals and, unless `quiet`, a progress bar on a terminal.

    A dry run is in no metric: what it would commit is not committed. With `may_idle` no engine is opened for nothing.
    """
    from windrow.cli.watching import stopping, waiting
    from windrow.engine import open_engine
    from windrow.operate.log import logging_to
    from windrow.runtime.api import idle_summary, opened
    from windrow.runtime.wall_clock import WallClock
    from windrow.settings.settings import MetricsPart

    if dry_run:
        settings = settings.model_copy(update={"metrics": MetricsPart()})
    clock = WallClock()
    with (
        logging_to(aside, settings.log.format, settings.log.level),
        stopping(clock) as install,
        waiting(settings, quiet) as bar,
    ):
        if may_idle and (idle := idle_summary(settings, clock, [bar])) is not None:
            return idle
        engine = open_engine(settings)
        if engine.session_at_work is not None:
            install()  # once more: Spark puts a handler of its own in place
        with opened(engine, settings, clock, [bar], dry_run=dry_run) as runner:
            if not dry_run:
                options.note_paths(config, settings, engine)
            return work(runner)


def sentence(summary: Summary, nothing: str = "Nothing new, nothing overdue.") -> str:
    """Say in one line what a run did."""
    if summary.paused:
        return "The ledger is paused; `windrow resume` lets it go on."
    if summary.microbatches and summary.microbatches[-1].kind == "resume":
        return "The ledger goes on."
    if not summary.microbatches:
        return f"{nothing}{_maintained(summary)}"
    counted = options.count
    return (
        f"{counted(len(summary.microbatches), 'microbatch')}: {counted(summary.total('messages'), 'message')} read, "
        f"{summary.total('accepted'):,} accepted, {summary.total('rejected'):,} rejected; "
        f"{counted(summary.total('opened'), 'batch')} opened, {summary.total('closed'):,} closed."
        f"{_maintained(summary)}"
    )


def _maintained(summary: Summary) -> str:
    """Say in a sentence what a run that went on did to the files of the tables, nothing when it did nothing."""
    compacted = sum(done.compacted_files or 0 for done in summary.maintained)
    into = sum(done.compacted_into or 0 for done in summary.maintained)
    removed = sum(done.vacuumed_files for done in summary.maintained)
    if not compacted + removed:
        return ""
    return f" {options.count(compacted, 'small file')} compacted into {into:,}, {removed:,} old ones removed."


def _document(summary: Summary) -> dict[str, object]:
    names = ("messages", "accepted", "rejected", "opened", "closed")
    totals = {name: summary.total(name) for name in names}
    lists = {
        "microbatches": [asdict(committed) for committed in summary.microbatches],
        "maintained": [asdict(done) for done in summary.maintained],
    }
    return {"engine": summary.engine, "paused": summary.paused, **totals, **lists}


def _microseconds(duration: str) -> int:
    from windrow.model.durations import microseconds

    return microseconds(duration, "--every")
