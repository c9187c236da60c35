"""Draw the pictures of `windrow plot` for the page, as SVG without a script, or say why there are none."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.errors import MissingExtraError, NotFoundError
from windrow.reading.distribution import distribution
from windrow.reading.tables import Ledger
from windrow.reading.time_range import recent_stretch, time_range

MAX_MESSAGES, MAX_LINES = 1_500, 500  # in a timeline; each line adds about a kilobyte to the page


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture as the data URI of an image, what it shows, and a command that draws it."""

    name: str
    caption: str
    command: str
    image: str


def charts_of(book: Ledger, history: pa.Table | None, source: str | None) -> tuple[list[Chart], str]:
    """Return the pictures of a batcher, or none and the reason; the timeline shows one source or all."""
    return _draw_charts(lambda: _batcher_charts(book, history, source))


def topology_charts(history: pa.Table | None) -> tuple[list[Chart], str]:
    """Return the picture of the microbatches of a topology, or none and the reason."""
    return _draw_charts(lambda: _microbatches(history, ""))  # `windrow plot` draws no topology


def _draw_charts(draw: Callable[[], Iterator[Chart]]) -> tuple[list[Chart], str]:
    try:
        from windrow.reading import plot

        plot.require_picture("chart.svg")
    except MissingExtraError as missing:
        return [], f"{missing.message}: {missing.hint}"
    return list(draw()), ""


def _batcher_charts(book: Ledger, history: pa.Table | None, source: str | None) -> Iterator[Chart]:
    from windrow.reading import plot

    yield from _timeline(book, source)
    try:
        picture = plot.batches(distribution(book.location))
        caption = "How large batches are, how long messages waited in them, and how late they came"
        yield Chart("batches", caption, "windrow plot --chart batches --out batches.html", image(picture))
    except NotFoundError:
        pass
    yield from _microbatches(history, "windrow plot --chart microbatches --out microbatches.html")


def _timeline(book: Ledger, source: str | None) -> Iterator[Chart]:
    """Draw the last messages, or those of a source up to its last rejection."""
    from windrow.reading import plot

    try:
        start, end = recent_stretch(book, source, MAX_MESSAGES)
        shown = time_range(book.location, source=source, start=start, end=end)
        name = "All sources" if source is None else source or "The source without a name"
        title = f"{name}: from event time to processing time"
        bounds = {"start": start, "end": end, "max_lines": MAX_LINES}
        picture = plot.timeline(shown.batches, shown.rejected, title=title, **bounds)
    except NotFoundError:
        return
    which = "The last messages" if source is None else "The last messages up to the last rejection"
    caption = f"{which}, from event time (above) to processing time (below); red ones are rejected"
    option = "" if source is None else f" --source {shlex.quote(source)}"
    yield Chart("timeline", caption, f"windrow plot{option} --out timeline.html", image(picture))


def _microbatches(history: pa.Table | None, command: str) -> Iterator[Chart]:
    from windrow.reading import plot

    if history is not None:
        caption = "What microbatches read, how long their phases took, and how far they were behind"
        yield Chart("microbatches", caption, command, image(plot.microbatches(history)))


def image(picture: Any) -> str:
    """Return a picture as a data URI; as an image, an SVG can neither run a script nor load anything."""
    import vl_convert

    drawn = picture.to_dict()
    drawn["config"]["aria"] = False  # descriptions of marks, which screen readers do not read in an image
    svg = vl_convert.vegalite_to_svg(drawn)
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
