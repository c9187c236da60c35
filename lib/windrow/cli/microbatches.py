"""Run microbatches of the batcher for a command, with its log, signals and progress bar, and print what they did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

from windrow.cli import options
from windrow.cli.options import Call, aside, say
from windrow.delta.locations import local_path

if TYPE_CHECKING:
    from windrow.runtime.runner import Runner, Summary
    from windrow.settings.settings import Settings


def run_and_print(
    call: Call,
    settings: Settings,
    work: Callable[[Runner], Summary],
    dry_run: bool = False,
    nothing: str = "Nothing new, nothing overdue.",
    may_idle: bool = False,
) -> None:
    """Run microbatches and print what they did, `nothing` if they did nothing."""
    summary = run(settings, work, quiet=call.json, config=call.config, dry_run=dry_run, may_idle=may_idle)
    if call.json:
        options.print_json(_document(summary) | ({"dry_run": True} if dry_run else {}))
        return
    say(sentence(summary, nothing))
    if dry_run:
        say("This was a dry run: nothing was written.")


def run(
    settings: Settings,
    work: Callable[[Runner], Summary],
    quiet: bool,
    config: str | None = None,
    dry_run: bool = False,
    may_idle: bool = False,
) -> Summary:
    """Do `work` with a runner, a log, signals and, unless `quiet`, a progress bar on a terminal.

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
            install()  # again, because Spark has installed its own handler
        with opened(engine, settings, clock, [bar], dry_run=dry_run) as runner:
            if not dry_run:
                options.note_paths(config, settings, engine)
            summary = work(runner)
        if not dry_run and any(committed.kind == "data" for committed in summary.microbatches):
            _warn(settings)
        return summary


def _warn(settings: Settings) -> None:
    """Log what is off in a local ledger; any other would be read over the network once more."""
    from windrow.operate.log import log
    from windrow.reading.delta import open_ledger
    from windrow.reading.warnings import warnings_of

    if local_path(settings.ledger) is not None:
        for one in warnings_of(open_ledger(settings.ledger), settings.warn):
            log.warning(one.code, what=one.what, todo=one.todo)


def sentence(summary: Summary, nothing: str = "Nothing new, nothing overdue.") -> str:
    """Say in one line what a run did."""
    if summary.paused:
        return "The ledger is paused; `windrow resume` continues it."
    if summary.microbatches and summary.microbatches[-1].kind == "resume":
        return "The ledger continues."
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
