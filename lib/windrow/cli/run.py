"""The command `windrow run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from windrow.cli import shared_options
from windrow.cli.running import NOTHING_DUE, run_and_print, run_topologies, run_topology
from windrow.cli.shared_options import Call, command
from windrow.errors import SettingsError
from windrow.model.durations import microseconds

if TYPE_CHECKING:
    from windrow.runtime.driver import Summary
    from windrow.runtime.loop import Runner

Topologies = Annotated[
    list[str] | None, typer.Argument(metavar="[MODULE:NAME]...", help="Topologies of yours. Default: the batcher.")
]
Every = Annotated[str | None, typer.Option("--every", help="Go on, looking at the depot this often, e.g. 10s.")]
Accept = Annotated[
    str | None,
    typer.Option(
        "--accept",
        metavar="[DEPOT:]VERSION",
        help="Skip this depot version, which deleted or rewrote rows; read none of its rows.",
    ),
]
MaintainEvery = Annotated[
    str | None, typer.Option("--maintain-every", help="With --every: maintain tables this often, e.g. 1h, or never.")
]


@command(
    "config depot ledger views checkpoints engine log_format log_level",
    example="windrow run --every 10s   or   windrow run words:topology",
)
def run(
    call: Call,
    topologies: Topologies = None,
    once: Annotated[bool, typer.Option("--once", help="Batch what is new, then stop (default).")] = False,
    every: Every = None,
    maintain_every: MaintainEvery = None,
    accept: Accept = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be batched, closed and rejected; write nothing.")
    ] = False,
    wait_for_depot: Annotated[
        bool, typer.Option("--wait-for-depot", help="Without a depot, say so and end with status 0 instead of 3.")
    ] = False,
) -> None:
    """Batch what is new in the depot, once or continuously.

    Given MODULE:NAME it runs that topology instead, and of several each in a loop of its own, over depots that are read
    once for all. One that fails does not stop the others. After SIGINT or SIGTERM the current microbatch finishes. With
    --every it also maintains the tables between microbatches, as `windrow maintain` does.
    """
    _require_fitting(once, every, maintain_every, dry_run)
    more = shared_options.table(maintain_every=maintain_every)
    chosen = call.settings(run=more) if topologies else call.engine_settings(run=more)
    pause = chosen.run.every if every is None else microseconds(every, "--every")

    accepted = None if accept is None else _version(accept)

    def work(runner: Runner) -> Summary:
        if accepted is not None:
            runner.accept(*accepted)
        return runner.once() if every is None else runner.every(pause)

    if not topologies:
        with call.waiting(wait_for_depot, microbatches=[]):
            run_and_print(call, chosen, work, dry_run, may_idle=every is None and accept is None and not dry_run)
        return
    if dry_run:
        raise SettingsError("a topology has no --dry-run", "Try it in a test with windrow.testing.Harness.")
    named_topologies = [call.find_topology(place) for place in topologies]
    if len(named_topologies) == 1:
        run_topology(call, named_topologies[0], chosen, work, nothing=NOTHING_DUE)
        return
    if accepted is not None:
        raise SettingsError("--accept applies to one topology", "Run that one alone, once.")
    run_topologies(call, named_topologies, chosen, work)


def _version(accept: str) -> tuple[int, str | None]:
    """Return the version of `--accept`, and the name of its depot if it is given. Raises SettingsError."""
    depot, _, version = accept.rpartition(":")
    if not (version.isdecimal() and int(version)):
        raise SettingsError(f"--accept {accept} is no depot version", "Write a number; of a topology, DEPOT:NUMBER.")
    return int(version), depot or None


def _require_fitting(once: bool, every: str | None, maintain_every: str | None, dry_run: bool) -> None:
    """Raise SettingsError for options that exclude each other."""
    if once and every is not None:
        raise SettingsError("--once and --every exclude each other", "Give one of them.")
    if dry_run and every is not None:
        raise SettingsError("--dry-run and --every exclude each other", "A dry run looks once.")
    if maintain_every is not None and every is None:
        raise SettingsError("--maintain-every needs --every", "Without it, schedule `windrow maintain`.")
