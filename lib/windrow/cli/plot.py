"""The command `windrow plot`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from windrow.cli.shared_options import CommandContext, Source, command, refuse
from windrow.cli.terminal import stderr_console
from windrow.model import timestamps as moments
from windrow.model.printable import pluralize

if TYPE_CHECKING:
    import altair as alt

    from windrow.reading import TimeRange

FEW_NAMES = 4
EXAMPLE = "windrow plot --key pump-1 --from 2026-01-31T12:00 --to 2026-01-31T12:05 --out pump-1.html"
Document = dict[str, Any]
Chart = Literal["timeline", "batches", "microbatches"]
Plot = tuple["alt.TopLevelMixin", Document, list[str]]


@command("config ledger engine", example=EXAMPLE)
def plot(
    call: CommandContext,
    out: Annotated[Path, "The file to write: .html (to zoom in), .png, .svg or .json."],
    chart: Annotated[
        Chart,
        "timeline: messages and windows in time. batches: sizes, delays and waits. "
        "microbatches: messages, phases and lag of each.",
    ] = "timeline",
    key: Annotated[str | None, "Draw this key. Default: the streams with the most messages."] = None,
    source: Source = None,
    from_: Annotated[str | None, "Start of the range, ISO 8601. Default: all."] = None,
    to: Annotated[str | None, "End of the range, ISO 8601. Default: all."] = None,
    streams: Annotated[
        int | None,
        typer.Option(min=1, max=40, help="Maximum number of streams in a timeline. Default: 6."),
    ] = None,
) -> None:
    """Draw messages and windows over time, or their statistics.

    The timeline has event time above and processing time below. Each message is a line between the two, red if it was
    rejected, and each window is a box; bands replace lines where there are too many. --chart draws the distribution of
    batches and delays, or the work and time of microbatches. Times without a zone are UTC.
    """
    from windrow.reading import plot as picture

    start, end = moments.event_range(from_, to)
    picture.require_picture(out)
    _refuse(chart, {"--key": key, "--source": source, "--streams": streams})
    with call.readable_settings() as chosen, stderr_console.status("reading"):
        if chart == "timeline":
            drawn, document, lines = _timeline(chosen.ledger, key, source, start, end, streams or 6)
        elif chart == "batches":
            drawn, document, lines = _batches(chosen.ledger, key, source, start, end)
        else:
            drawn, document, lines = _microbatches(chosen.ledger, start, end)
    with stderr_console.status("drawing"):
        picture.save(drawn, out)
    first, *others = lines
    call.answer({"file": out, "chart": chart, **document}, f"Wrote {out}: {first}", *others)


def _refuse(chart: Chart, flags: dict[str, object]) -> None:
    known = {"timeline": set(flags), "batches": {"--key", "--source"}, "microbatches": set()}
    wrong = [flag for flag, value in flags.items() if value is not None and flag not in known[chart]]
    refuse((wrong, f"{' and '.join(wrong)} cannot narrow --chart {chart}", "Leave it out."))


def _timeline(
    ledger: str, key: str | None, source: str | None, start: int | None, end: int | None, streams: int
) -> Plot:
    from windrow import reading
    from windrow.reading import plot as picture

    time_range = reading.time_range(ledger, key, source, start, end, streams)
    chart = picture.timeline(
        time_range.batches, time_range.rejected, title=_title(time_range), start=start, end=end, max_streams=streams
    )
    batches, rejected = time_range.batches.num_rows, time_range.rejected.num_rows
    holds = f"{pluralize(batches, 'batch')} and {pluralize(rejected, 'rejected message')}"
    lines = [f"{pluralize(len(time_range.chosen), 'stream')} of {time_range.stream_count:,} with {holds}."]
    if batches > picture.MAX_LINES:
        lines.append("There are too many windows to draw; choose a shorter range (--from, --to) or one --key.")
    drawn = [{"source": source, "key": key} for source, key in time_range.chosen]
    return (
        chart,
        {"stream_count": time_range.stream_count, "drawn": drawn, "batch_count": batches, "rejected": rejected},
        lines,
    )


def _title(time_range: TimeRange) -> str:
    names = ", ".join(sorted({key for _, key in time_range.chosen}))
    if time_range.stream_count > len(time_range.chosen) or len(time_range.chosen) > FEW_NAMES:
        names = f"The {pluralize(len(time_range.chosen), 'busiest stream')} of {time_range.stream_count:,}"
    return f"{names}: from event time to processing time"


def _batches(ledger: str, key: str | None, source: str | None, start: int | None, end: int | None) -> Plot:
    from windrow import reading
    from windrow.reading import plot as picture

    distribution = reading.distribution(ledger, key, source, start, end)
    of = " of ".join(name for name in (key, source) if name is not None)
    chart = picture.batches(distribution, title=f"{of or 'All streams'}: batches and delays")
    outcomes, batches = distribution.messages(), distribution.sizes.num_rows
    accepted = outcomes.pop("accepted", 0)
    rejected = sum(outcomes.values())
    document = {"batch_count": batches, "message_count": accepted, "rejected": rejected}
    return chart, document, [f"{pluralize(batches, 'batch')} and {pluralize(rejected, 'rejected message')}."]


def _microbatches(ledger: str, start: int | None, end: int | None) -> Plot:
    from windrow import reading
    from windrow.reading import plot as picture

    history = reading.history(ledger, start, end)
    chart = picture.microbatches(history)
    first, last = (history["microbatch"][place].as_py() for place in (0, -1))
    document = {"microbatch_count": history.num_rows, "first": first, "last": last}
    return chart, document, [f"{pluralize(history.num_rows, 'microbatch')}, from {first:,} to {last:,}."]
