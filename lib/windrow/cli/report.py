"""The commands `windrow report` and `windrow ui`, which show one page."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from windrow.cli.shared_options import CommandContext, TopologyArgument, command, refuse
from windrow.cli.status import FailIf
from windrow.cli.terminal import stderr_console
from windrow.model import durations
from windrow.runtime.wall_clock import WallClock

MIN_SECONDS = 0.1  # a guess: a browser asks no faster


@command(
    "config depot ledger engine",
    example="windrow report --out report.html --fail-if 'lag>5m'   or   windrow report words:topology",
)
def report(
    call: CommandContext,
    topology: TopologyArgument = None,
    out: Annotated[Path, "The page to write: .html."] = Path("report.html"),
    fail_if: FailIf = None,
) -> int:
    """Write one HTML page: what is wrong, since when, what to do.

    The page has what status, doctor, show and plot say: sources with rejected messages and the reason, pictures,
    clocks, open batches, microbatches, all checks. It is one file without scripts, which needs no network. Pictures
    need the extra `plot`.
    """
    from windrow.reading import alarms
    from windrow.report import batcher_report, require_page, save, topology_report
    from windrow.report.problems import verdict

    require_page(out)
    conditions = [alarms.parse(text, topology is not None) for text in fail_if or ()]
    with stderr_console.status("reading and drawing"):
        if topology is None:
            with call.readable_settings() as chosen:
                page = batcher_report(chosen, WallClock().now(), conditions)
        else:
            _, chosen = call.topology(topology)
            with call.readable_topology(topology) as named:
                page = topology_report(named, chosen, WallClock().now(), conditions)
        size = save(page, out)
    level, headline = verdict(page.problems)
    document = {
        "file": out,
        "byte_count": size,
        "verdict": level,
        "problems": [asdict(problem) for problem in page.problems],
        "charts": [chart.name for chart in page.charts],
        "no_charts": page.no_charts or None,
        "failed": list(page.alarms),
    }
    drawn = [f"No pictures: {page.no_charts}"] if page.no_charts else []
    call.answer(document, f"Wrote {out} ({size / 1e3:,.0f} kB). {headline}.", *drawn)
    for sentence in page.alarms:
        stderr_console.print(sentence, markup=False, soft_wrap=True)
    return 1 if page.alarms else 0


@command("config depot ledger engine", example="windrow ui   or   windrow ui words:topology --allow-changes")
def ui(
    call: CommandContext,
    topology: TopologyArgument = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: any that is free.")] = 0,
    interval: Annotated[str, "Renew the page at this interval."] = "5s",
    duration: Annotated[str | None, "Stop after this long. Default: never."] = None,
    allow_changes: Annotated[bool, "Show buttons that pause, resume and set options."] = False,
) -> None:
    """Serve the report live to a browser on this machine.

    It also shows streams and batches, and what became of a message. The printed address has a secret: only who knows it
    can look. Ctrl-C ends the server. It needs the extra `ui`; pictures need `plot`.
    """
    from windrow.cli.watching import stop_on_signals
    from windrow.ui import BatcherView, Server, TopologyView

    lasts = None if duration is None else durations.microseconds(duration, "--duration") / 1_000_000
    seconds = durations.microseconds(interval, "--interval") / 1_000_000
    refuse((seconds < MIN_SECONDS, f"--interval {interval} is too short", f"Use at least {MIN_SECONDS:g}s."))
    view: BatcherView | TopologyView
    if topology is None:
        call.settings()  # invalid ones end the command now, not every page
        view = BatcherView(call.readable_settings, call.sparkless_settings)
    else:
        view = TopologyView(*call.topology(topology), lambda: call.readable_topology(topology))
    server = Server(view, port, secrets.token_urlsafe(16), seconds, allow_changes)
    with stop_on_signals(server.stop, "stopping"):
        call.answer({"address": server.access.address}, f"Open {server.access.address}", "Ctrl-C ends the server.")
        server.run(lasts)
