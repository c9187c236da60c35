"""The command that draws: plot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from windrow import moments
from windrow.cli import options
from windrow.cli.options import Config, Debug, Json, Ledger, aside, count, say

if TYPE_CHECKING:
    from windrow.reading import Stretch

FEW_NAMES = 4
EXAMPLE = "Example: windrow plot --key pump-1 --from 2026-01-31T12:00 --to 2026-01-31T12:05 --out pump-1.html"


def add_to(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command(epilog=EXAMPLE)(plot)


def plot(
    out: Annotated[Path, typer.Option("--out", help="The file to write: .html (to zoom in), .png, .svg or .json.")],
    key: Annotated[
        str | None, typer.Option("--key", help="Draw this key. Default: the streams with the most messages.")
    ] = None,
    source: Annotated[str | None, typer.Option("--source", help="Only this source.")] = None,
    from_: Annotated[str | None, typer.Option("--from", help="Begin of the range, ISO 8601. Default: all.")] = None,
    to: Annotated[str | None, typer.Option("--to", help="End of the range, ISO 8601. Default: all.")] = None,
    streams: Annotated[int, typer.Option("--streams", min=1, max=40, help="How many streams to draw at most.")] = 6,
    config: Config = None,
    ledger: Ledger = None,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw event time above, processing time below, each message a line between them, windows as boxes.

    Rejected messages are red. Where there are too many lines, bands stand for them. Times without a zone are UTC.
    """
    from windrow import plot as picture
    from windrow import reading

    begin = None if from_ is None else moments.microseconds(from_, "--from")
    end = None if to is None else moments.microseconds(to, "--to")
    picture.require_picture(out)
    chosen = options.reading(config, ledger=ledger)
    with aside.status("reading"):
        found = reading.stretch(chosen.ledger, key, source, begin, end, streams)
    with aside.status("drawing"):
        chart = picture.timeline(
            found.batches, found.rejected, title=_title(found), begin=begin, end=end, max_streams=streams
        )
        picture.save(chart, out)
    if json:
        options.print_json(_document(found, out))
        return
    say(f"Wrote {out}: {count(len(found.chosen), 'stream')} of {found.streams:,} with {_holds(found)}.")
    if found.batches.num_rows > picture.MOST_LINES:
        say("The windows are too many to draw; a shorter range (--from, --to) or one --key shows them.")


def _title(found: Stretch) -> str:
    names = sorted({key for _, key in found.chosen})
    what = ", ".join(names)
    if found.streams > len(found.chosen):
        what = f"The {count(len(found.chosen), 'busiest stream')} of {found.streams:,}"
    elif len(names) > FEW_NAMES:
        what = count(len(found.chosen), "stream")
    return f"{what}: from event time to processing time"


def _holds(found: Stretch) -> str:
    batches, rejected = found.batches.num_rows, found.rejected.num_rows
    return f"{count(batches, 'batch')} and {count(rejected, 'rejected message')}"


def _document(found: Stretch, out: Path) -> dict[str, Any]:
    return {
        "file": str(out),
        "streams": found.streams,
        "drawn": [{"source": source, "key": key} for source, key in found.chosen],
        "batches": found.batches.num_rows,
        "rejected": found.rejected.num_rows,
    }
