"""Run microbatches of the batcher or a topology for a command, with log and signals, and print what they did."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from windrow.cli import shared_options
from windrow.cli.shared_options import CommandContext
from windrow.delta.locations import local_path
from windrow.errors import first_line
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.runtime.driver import RunSummary
    from windrow.runtime.loop import Runner
    from windrow.settings.settings import Settings
    from windrow.topology.together import TopologyRun
    from windrow.topology.topology import Topology

Work = Callable[["Runner"], "RunSummary"]
NOTHING = "Nothing new, nothing overdue."
NOTHING_DUE = "Nothing new, nothing due."


def run_and_print(
    call: CommandContext,
    settings: Settings,
    work: Work,
    dry_run: bool = False,
    nothing: str = NOTHING,
    may_idle: bool = False,
) -> None:
    """Run microbatches and print what they did, or `nothing` if they did nothing."""
    summary = run(settings, work, quiet=call.json, config=call.config, dry_run=dry_run, may_idle=may_idle)
    document = _document(summary, "message_count", "accepted", "rejected", "opened", "closed")
    document |= {"maintained": summary.maintained} | ({"dry_run": True} if dry_run else {})
    notes = ["This was a dry run: nothing was written."] if dry_run else []
    call.answer(document, describe_run(summary, nothing), *notes)


def run(
    settings: Settings,
    work: Work,
    quiet: bool,
    config: str | None = None,
    dry_run: bool = False,
    may_idle: bool = False,
) -> RunSummary:
    """Do `work` with a runner, a log, signals and, unless `quiet`, a progress bar on a terminal.

    A dry run is in no metric, because it commits nothing. With `may_idle`, no engine is opened if there is no work.
    """
    from windrow.cli.watching import show_progress, watch_run
    from windrow.runtime.opening import tables_of
    from windrow.runtime.run import idle_summary, open_runner
    from windrow.settings.settings import MetricsSettings

    if dry_run:
        settings = settings.model_copy(update={"metrics": MetricsSettings()})
    clock = WallClock()
    with watch_run(settings.log, clock.stop) as install, show_progress(settings, quiet) as bar:
        if may_idle and (idle := idle_summary(settings, clock, [bar])) is not None:
            return idle
        _require_depot(settings.depot)
        source, ledger = tables_of(settings)
        if ledger.engine.session_at_work is not None:
            install()  # again, because Spark has installed its own handler
        with open_runner(source, ledger, clock, [bar], dry_run=dry_run) as runner:
            if not dry_run:
                shared_options.note_paths(config, settings, ledger.engine)
            summary = work(runner)
        if not dry_run and any(committed.kind == "data" for committed in summary.microbatches):
            _warn(settings)
        return summary


def run_topology(
    call: CommandContext, topology: Topology, settings: Settings, work: Work, sentence: str = "", nothing: str = ""
) -> None:
    """Do work with the runner of a topology. Print `sentence`, or else what was done, or `nothing` if nothing was."""
    from windrow.cli.watching import watch_run
    from windrow.topology.running import open_topology

    clock = WallClock()
    with watch_run(settings.log, clock.stop) as install, open_topology(topology, settings, clock) as runner:
        install()
        summary = work(runner)
    call.answer(_document(summary, "message_count", "rejected"), sentence or _topology_sentence(summary, nothing))


def run_topologies(call: CommandContext, topologies: Sequence[Topology], settings: Settings, work: Work) -> None:
    """Do work with the runner of each topology at the same time, and print what each did. Raises the first error."""
    from windrow.cli.watching import watch_run
    from windrow.topology.together import TopologyRun, run_together

    runs = [TopologyRun(topology) for topology in topologies]

    def stop() -> None:
        for run in runs:
            run.clock.stop()

    with watch_run(settings.log, stop):
        run_together(runs, settings, work)
    call.answer({"topologies": [_run_document(run) for run in runs]}, *map(_run_sentence, runs))
    for run in runs:
        if run.error is not None:
            raise run.error


def _run_document(run: TopologyRun) -> dict[str, object]:
    from windrow.runtime.driver import RunSummary

    summary = run.summary or RunSummary("")
    return {
        "topology": run.topology.name,
        "error": None if run.error is None else first_line(run.error),
        "paused": summary.paused,
        "microbatch_count": len(summary.microbatches),
        "message_count": summary.total("message_count"),
        "rejected": summary.total("rejected"),
    }


def _run_sentence(run: TopologyRun) -> str:
    if run.summary is None:
        return f"{run.topology.name}: {'interrupted' if run.error is None else first_line(run.error)}"
    return f"{run.topology.name}: {_topology_sentence(run.summary, NOTHING_DUE)}"


def _require_depot(depot: str) -> None:
    """Raise TableMissingError for a local depot that does not exist, before an engine starts in vain."""
    path = local_path(depot)
    if path is not None and not path.exists():
        from windrow.delta.table import missing_error

        raise missing_error(depot, "depot")


def _warn(settings: Settings) -> None:
    """Log the warnings about a local ledger; a remote one would be read over the network once more."""
    from windrow.operate.log import log
    from windrow.reading.tables import open_ledger
    from windrow.reading.warnings import warnings_of

    if local_path(settings.ledger) is not None:
        for warning in warnings_of(open_ledger(settings.ledger)):
            # A log record already has a `message`.
            log.warning(warning.code, warning=warning.message, hint=warning.hint)


def describe_run(summary: RunSummary, nothing: str = NOTHING) -> str:
    """Describe in one line what a run did."""
    if summary.paused:
        return "The ledger is paused; `windrow resume` continues it."
    if summary.microbatches and summary.microbatches[-1].kind == "resume":
        return "The ledger is no longer paused."
    if not summary.microbatches:
        return f"{_nothing(summary, nothing)}{_describe_maintenance(summary)}"
    return (
        f"{pluralize(len(summary.microbatches), 'microbatch')}: {pluralize(summary.total('message_count'), 'message')} "
        f"read, {summary.total('accepted'):,} accepted, {summary.total('rejected'):,} rejected; "
        f"{pluralize(summary.total('opened'), 'batch')} opened, {summary.total('closed'):,} closed."
        f"{_describe_maintenance(summary)}"
    )


def _topology_sentence(summary: RunSummary, nothing: str) -> str:
    if summary.paused:
        return "The topology is paused; `windrow resume` continues it."
    if not summary.microbatches:
        return _nothing(summary, nothing)
    rejected = f", {summary.total('rejected'):,} rejected" if summary.total("rejected") else ""
    read = f"{pluralize(summary.total('message_count'), 'message')} read{rejected}"
    return f"{pluralize(len(summary.microbatches), 'microbatch')}: {read}."


def _nothing(summary: RunSummary, nothing: str) -> str:
    """Say that a run committed nothing, or what was committed although no reply confirmed it."""
    if not summary.others:
        return nothing
    how = "by another driver, or by this one with a lost reply: `windrow status --history 9`."
    return f"{pluralize(summary.others, 'microbatch')} committed meanwhile, {how}"


def _describe_maintenance(summary: RunSummary) -> str:
    """Say in a sentence how a continuous run maintained the tables' files; nothing if it did not."""
    compacted = sum(result.files_removed or 0 for result in summary.maintained)
    into = sum(result.files_added or 0 for result in summary.maintained)
    removed = sum(result.files_deleted for result in summary.maintained)
    if not compacted + removed:
        return ""
    return f" {pluralize(compacted, 'small file')} compacted into {into:,}, {removed:,} old ones removed."


def _document(summary: RunSummary, *totals: str) -> dict[str, object]:
    counts = {name: summary.total(name) for name in totals}
    return {"engine": summary.engine, "paused": summary.paused, **counts, "microbatches": summary.microbatches}
