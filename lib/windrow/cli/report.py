"""The command `windrow report`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from windrow.cli.shared_options import CommandContext, TopologyArgument, command
from windrow.cli.status import FailIf
from windrow.cli.terminal import stderr_console
from windrow.runtime.wall_clock import WallClock


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

    The page combines status, doctor, show and plot: sources with rejected messages and the reason, pictures, clocks,
    open batches, microbatches, all checks. It is one file, which needs neither scripts nor a network. Pictures need the
    extra `plot`.
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
