"""Put a status into words: what waits, what is open, which `max_delay` would have kept more."""

from __future__ import annotations

from collections.abc import Iterator

from windrow.model.durations import SECOND, approximate_text
from windrow.model.printable import pluralize
from windrow.reading.batcher_status import BatcherStatus, NeededDelay
from windrow.reading.status import Status

TENTH = 100_000  # of a second


def lag_text(status: Status) -> str:
    """Return what waits, and for how long."""
    if not status.versions_waiting:
        return "nothing waits"
    messages = "messages" if status.lag.message_count is None else pluralize(status.lag.message_count, "message")
    versions = pluralize(status.versions_waiting, "version")
    return f"{messages} in {versions} wait, the oldest for {approximate_text(round(status.lag.seconds) * SECOND)}"


def open_text(status: BatcherStatus) -> str:
    """Return what is open, and when the oldest batch closes."""
    if status.open.oldest is None:
        return "no batch"
    oldest = status.open.oldest
    holds = f"{pluralize(status.open.batch_count, 'batch')} with {pluralize(status.open.message_count, 'message')}"
    stands = f"which stands at {oldest.floor}" if oldest.remaining_seconds else "which has passed it"
    return f"{holds}; the oldest, {oldest.id}, closes at {oldest.timeout_at} by the clock of its source, {stands}"


def needed_lines(needed: NeededDelay, most: int | None) -> Iterator[str]:
    """Say which max_delay would have kept all that was too old, and how many messages of wrong clocks do not count."""
    if needed.required_max_delay_us is not None:
        allowed, enough = missed_text(needed.max_delay_us), missed_text(needed.required_max_delay_us)
        sources = _needed_by_source(needed, most)
        yield f"max_delay is {allowed}; {enough} would have kept every message that was too old ({sources})"
    if needed.left_out:
        yield f"{pluralize(needed.left_out, 'message')} of wrong clocks were too old as well, and are not counted there"


def missed_text(length: int) -> str:
    """Return a length of time to a tenth of a second, never shorter than it is."""
    return approximate_text(-(-length // TENTH) * TENTH)


def short_time(time: str) -> str:
    """Return a JSON time to the second, without the `T`, for a table."""
    return time[:19].replace("T", " ")


def _needed_by_source(needed: NeededDelay, most: int | None) -> str:
    shown = sorted(needed.by_source.items(), key=lambda pair: -pair[1])[:most]
    more = len(needed.by_source) - len(shown)
    by_source = ", ".join(f"{source or repr(source)} {missed_text(us)}" for source, us in shown)
    return f"{by_source}, and {more:,} more; `windrow status --sources` shows all" if more else by_source
