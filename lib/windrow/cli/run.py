"""The command `windrow run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import shared_options
from windrow.cli.running import NOTHING_DUE, run_and_print, run_topologies, run_topology
from windrow.cli.shared_options import CommandContext, command, refuse
from windrow.model.durations import microseconds

if TYPE_CHECKING:
    from windrow.runtime.driver import RunSummary
    from windrow.runtime.loop import Runner


@command(
    "config depot ledger views_schema checkpoint_location engine log_format log_level",
    example="windrow run --interval 10s   or   windrow run words:topology",
)
def run(
    call: CommandContext,
    topologies: Annotated[
        list[str] | None, typer.Argument(metavar="[MODULE:NAME]...", help="Your topologies. Default: the batcher.")
    ] = None,
    once: Annotated[bool, "Batch what is new, then stop (default)."] = False,
    interval: Annotated[str | None, "Keep running and poll the depot at this interval, e.g. 10s."] = None,
    maintenance_interval: Annotated[
        str | None, "With --interval: maintain tables this often, e.g. 1h, or never."
    ] = None,
    skip_version: Annotated[
        str | None,
        typer.Option(
            metavar="[DEPOT:]VERSION",
            help="Skip this depot version, which deleted or rewrote rows; read none of its rows.",
        ),
    ] = None,
    dry_run: Annotated[bool, "Show what would be batched, closed and rejected; write nothing."] = False,
    allow_missing_depot: Annotated[bool, "Without a depot, say so and end with status 0 instead of 3."] = False,
) -> None:
    """Batch what is new in the depot, once or continuously.

    Given MODULE:NAME it runs that topology instead. Several topologies each run in a loop of their own, and each depot
    is read once for all of them. One that fails does not stop the others. After SIGINT or SIGTERM the current
    microbatch finishes. With --interval it also maintains the tables between microbatches, as `windrow maintain` does.
    """
    maintains_alone = maintenance_interval is not None and interval is None
    refuse(
        (once and interval is not None, "--once and --interval exclude each other", "Give one of them."),
        (
            dry_run and interval is not None,
            "--dry-run and --interval exclude each other",
            "Leave one out: a dry run runs once.",
        ),
        (maintains_alone, "--maintenance-interval needs --interval", "Without it, schedule `windrow maintain`."),
    )
    more = shared_options.table(maintenance_interval=maintenance_interval)
    chosen = call.settings(run=more) if topologies else call.engine_settings(run=more)
    pause = chosen.run.trigger_interval if interval is None else microseconds(interval, "--interval")
    skipped = None if skip_version is None else _version(skip_version)

    def work(runner: Runner) -> RunSummary:
        if skipped is not None:
            runner.skip_version(*skipped)
        return runner.once() if interval is None else runner.every(pause)

    if not topologies:
        with call.waiting(allow_missing_depot, microbatches=[]):
            idle = interval is None and skip_version is None and not dry_run
            run_and_print(call, chosen, work, dry_run, may_idle=idle)
        return
    refuse((dry_run, "a topology has no --dry-run", "Try it in a test with windrow.testing.Harness."))
    named_topologies = [call.find_topology(place) for place in topologies]
    if len(named_topologies) == 1:
        run_topology(call, named_topologies[0], chosen, work, nothing=NOTHING_DUE)
        return
    refuse((skipped is not None, "--skip-version applies to one topology", "Run that one alone, once."))
    run_topologies(call, named_topologies, chosen, work)


def _version(text: str) -> tuple[int, str | None]:
    """Return the version of `--skip-version`, and the name of its depot if it is given. Raises SettingsError."""
    depot, _, version = text.rpartition(":")
    is_valid = version.isdecimal() and int(version)
    refuse(
        (not is_valid, f"--skip-version {text} is not a depot version", "Use a number, or DEPOT:NUMBER for a topology.")
    )
    return int(version), depot or None
