"""The command `windrow demo`."""

from __future__ import annotations

import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from windrow.cli import running
from windrow.cli.ingest import ingest_files
from windrow.cli.shared_options import CommandContext, command, print_line
from windrow.cli.terminal import stderr_console
from windrow.errors import MissingExtraError
from windrow.model.durations import SECOND
from windrow.model.printable import pluralize
from windrow.runtime.wall_clock import WallClock

if TYPE_CHECKING:
    from windrow.settings.settings import Settings

QUERY = """\
SELECT key, window_start, message_count, close_reason
FROM delta.`{ledger}` WHERE state = 'closed' ORDER BY message_count DESC LIMIT 5"""

# Hosts send every few seconds and stall for up to 56 s: batches have many messages of a type, and few are too late.
RULES = {"window": "45s", "max_delay": "30s", "on_repeat": "keep"}


@command("engine", example="windrow demo --engine embedded")
def demo(
    call: CommandContext,
    into: Annotated[Path, "Directory for the tables, the picture, the report and the settings."] = Path("demo"),
) -> None:
    """Batch five minutes of real measurements, and draw a picture.

    A second run in the same directory finds nothing new, because every message has been read already.
    """
    from windrow.ingest import sample

    settings = _settings(into, call.flags)

    def step(text: str) -> None:
        if not call.json:
            stderr_console.print(text, soft_wrap=True)

    step("This demo groups five minutes of real measurements into batches, in three steps.")
    step("The first run on a machine takes longest: Spark downloads Delta, or the embedded engine compiles.")
    step("[bold]1 of 3, ingest[/bold]: copies a recorded file into the depot, a Delta table that only grows")
    ingest_files(settings, [str(sample.copy_into(into))], "parquet", call.json)
    step("[bold]2 of 3, run[/bold]: groups the messages into batches; each microbatch is one commit to the ledger")
    ran_on = _run(settings, call.json)
    step(f"[bold]3 of 3, results[/bold], on the {ran_on} engine")
    result = _read_result(settings)
    picture = _picture(settings, into, _stalling(result))
    page = _page(settings, into)
    result |= {"picture": picture and str(picture), "report": page and str(page)}
    query = QUERY.format(ledger=Path(settings.ledger).resolve())
    document = {"into": into, "engine": ran_on, **result, "query": query}
    call.answer(document, tell=lambda: _print(result, into, query))


def _settings(into: Path, flags: dict[str, str]) -> Settings:
    """Write the settings of the demo beside its tables, and read them."""
    from windrow.ingest import sample
    from windrow.settings.settings import IngestSettings, RulesSettings, Settings
    from windrow.settings.template import settings_file

    into.mkdir(parents=True, exist_ok=True)
    chosen = Settings(
        depot=str(into / "depot"),
        ledger=str(into / "ledger"),
        **flags,
        rules=RulesSettings.model_validate(RULES),
        ingest=IngestSettings(columns=sample.COLUMNS),
    )
    (into / "windrow.toml").write_text(settings_file(chosen), encoding="utf-8")
    return chosen


def _run(settings: Settings, quiet: bool) -> str:
    """Run the main job once; return the engine it ran on. The log shows only warnings, formatted for people."""
    from windrow.settings.settings import LogSettings

    shown = settings.model_copy(update={"log": LogSettings(format="pretty", level="warning")})
    summary = running.run(shown, lambda runner: runner.once(), quiet)
    if not quiet:
        print_line(running.describe_run(summary))
    return summary.engine


def _read_result(settings: Settings) -> dict[str, Any]:
    from windrow import reading

    status = reading.status(settings.depot, settings.ledger, WallClock().now())
    closed = status.closed
    return {
        "message_count": status.totals.message_count,
        "closed_batch_count": closed.batch_count,
        "messages_per_closed_batch": round(closed.message_count / closed.batch_count, 1)
        if closed.batch_count
        else None,
        "open_batch_count": status.open.batch_count,
        "rejected_by_reason": {row.reason: row.message_count for row in status.rejections},
        "needed_delay": asdict(status.needed_delay),
    }


def _picture(settings: Settings, into: Path, host: str) -> Path | None:
    """Draw the time range in which messages of the host were rejected; None without the packages that draw."""
    from windrow import reading
    from windrow.model.messages import microseconds

    time_range = reading.time_range(settings.ledger, key=host)
    start = int(microseconds(time_range.rejected["event_time"]).min()) - 10 * SECOND
    end = int(microseconds(time_range.rejected["processing_time"]).max()) + 10 * SECOND
    title = f"{host}: from event time to arrival"
    picture = into / "timeline.html"
    try:
        from windrow.reading import plot

        plot.save(plot.timeline(time_range.batches, time_range.rejected, title=title, start=start, end=end), picture)
    except MissingExtraError as error:
        stderr_console.print(f"no picture: {error.message}. {error.hint}", markup=False)
        return None
    return picture


def _page(settings: Settings, into: Path) -> Path | None:
    """Write the report of the ledger; None without the package that writes it."""
    from windrow import report

    page = into / "report.html"
    try:
        report.require_page(page)
    except MissingExtraError as error:
        stderr_console.print(f"no report: {error.message}. {error.hint}", markup=False)
        return None
    report.save(report.batcher_report(settings, WallClock().now()), page)
    return page


def _print(result: dict[str, Any], into: Path, query: str) -> None:
    closed, left = (result[f"{state}_batch_count"] for state in ("closed", "open"))
    print_line(
        f"{pluralize(closed, 'closed batch')}, {result['messages_per_closed_batch']} messages each; "
        f"{pluralize(left, 'batch')} still open, because the recording ends. A later run closes them."
    )
    for reason, number in result["rejected_by_reason"].items():
        print_line(f"  rejected {number:>6,}  {reason}")
    print_line(_stall(result))
    if result["picture"]:
        print_line(f"Picture: {result['picture']} (open it in a browser)")
    if result["report"]:
        print_line(f"Report: {result['report']} (what is wrong, which source, why, since when)")
    config = into / "windrow.toml"
    print_line("\nTry:")
    for arguments in ("status", "show --rejected", "verify"):
        print_line(f"  {_windrow()} {arguments} --config {config}")
    print_line(f"and in Spark SQL:\n{query}")


def _windrow() -> str:
    """Return how to start this command line: its name if the shell finds it, else the path by which it was started."""
    started, installed = Path(sys.argv[0]), shutil.which("windrow")
    if started.name != "windrow":
        return f"{sys.executable} -m windrow"
    return "windrow" if installed and Path(installed).resolve() == started.resolve() else str(started)


def _stalling(result: dict[str, Any]) -> str:
    """Return the host whose messages came latest."""
    each = result["needed_delay"]["by_source"]
    return max(each, key=each.__getitem__)


def _stall(result: dict[str, Any]) -> str:
    """Say what happens to the host whose messages came latest, and what would keep them."""
    allowed = result["needed_delay"]["max_delay_us"] // SECOND
    enough = -(-result["needed_delay"]["required_max_delay_us"] // SECOND)
    late = result["rejected_by_reason"]["too_old"]
    return (
        f"{_stalling(result)} stalls: it falls silent, then sends everything it measured meanwhile at once, up to "
        f"{enough} s late. With max_delay = {allowed}s its batches are closed by then, so {late:,} of its "
        f'messages are rejected, each on record. max_delay = "{enough}s" would keep every message, and batches would '
        "close that much later."
    )
