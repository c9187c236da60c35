"""A trial: messages prepared once, then batched under any number of rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching import kernel
from windrow.batching.batched import by_version
from windrow.batching.columns import KernelInput, StreamRows, by_stream, columns
from windrow.batching.rules import Rules
from windrow.batching.streams import REASONS, decide_streams
from windrow.columnar.arrow import drop_rows
from windrow.columnar.compiled import Ints, Numbers
from windrow.errors import NotFoundError
from windrow.model import messages as message_columns
from windrow.model import tables
from windrow.model.admission import reject_inadmissible
from windrow.model.floors import Floors, processing_times
from windrow.model.messages import LATEST, microseconds
from windrow.model.payload import of_column
from windrow.model.warn import MIN_COUNT, REJECTED_SHARE
from windrow.reading.warnings import wrong_clocks

Row = dict[str, int | float | None]

SECOND = 1_000_000
PERCENT = 100
SLIVER = 4


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds of streams whose types repeat: messages closer in event time than half the time between repeats.

    The time between repeats is the median of the type that repeats fastest in the stream. A round has two messages or
    more; a duplicate counts once. `place` is each row's position in the order of rounds, `start` is where each group
    of close messages begins, and `several` tells which groups are rounds.
    """

    place: Numbers
    start: Ints
    several: np.ndarray

    @classmethod
    def of(cls, columns: KernelInput) -> Rounds:
        """Find the rounds in messages prepared for the kernel."""
        numbers = columns.numbers
        streams = columns.start.size - 1
        stream, list_of = np.empty((2, numbers.position_at.size), np.int64)
        stream[numbers.place] = np.repeat(np.arange(streams), np.diff(columns.start))
        list_of[numbers.place] = numbers.list_of
        time = numbers.time_at[numbers.position_at]
        between = _median_repeat(stream, list_of, time, streams)
        order = np.lexsort((time, stream))
        stream, time = stream[order], time[order]
        first = np.append(True, (np.diff(stream) != 0) | (2 * np.diff(time) >= between[stream[1:]]))
        start = np.flatnonzero(first)
        several = (np.diff(np.append(start, time.size)) > 1) & (between[stream[start]] > 0)
        rank = np.empty(order.size, np.int32)
        rank[order] = np.arange(order.size)
        place = np.empty(columns.row_of.size, np.int32)
        place[columns.row_of] = rank[numbers.place]
        return cls(place, start, several)

    def intact_rounds_percent(self, members: Numbers, sizes: Ints) -> float | None:
        """Return the percentage of rounds with all their messages in one batch; None if there is no round.

        `members` has the accepted rows, batch by batch; `sizes` says how many each batch has.
        """
        if not self.several.any():
            return None
        batch = np.full(self.place.max() + 1, -1)
        batch[self.place[members]] = np.repeat(np.arange(sizes.size), sizes)
        first, last = (merge.reduceat(batch, self.start)[self.several] for merge in (np.minimum, np.maximum))
        return float(PERCENT * ((first == last) & (first >= 0)).mean())


@dataclass(frozen=True, slots=True)
class Trial:
    """Messages in the kernel's form, `received_at` of each row (microseconds), and the last `clock` of each stream.

    `refused` counts, by reason, the messages that no rule sees; `left_out` counts, by source, those of wrong clocks.
    """

    rows: StreamRows
    columns: KernelInput
    rounds: Rounds
    received_at: Ints
    clock: Ints
    refused: dict[str, int]
    left_out: dict[str, int]

    @classmethod
    def of(
        cls,
        messages: pa.Table,
        key: str | None = None,
        source: str | None = None,
        latest: int | None = None,
        rules: Rules | None = None,
    ) -> Trial:
        """Prepare messages, those of one key or source if given; `messages` has the form that `windrow.batch` takes.

        All messages of a source move its clock, including those of other keys. A message stamped later than `latest`
        (microseconds) is refused as `clock_ahead` and moves no clock. Sources are left out if `rules` (those in force)
        reject nearly all of their messages: their clocks are wrong. Where that holds for more than half of the sources,
        the rules are to blame, and none is left out. Raises MessagesError, or NotFoundError when there is no message to
        batch.
        """
        arrived = by_version(message_columns.conform(messages, of_column(messages.schema)))
        refused = reject_inadmissible(arrived, LATEST if latest is None else latest)
        valid, _ = drop_rows(arrived, refused["row"].to_numpy())
        version = valid["version"].to_numpy()
        processing_time, floors = processing_times(valid, Floors.empty())
        query = {name: value for name, value in (("key", key), ("source", source)) if value is not None}
        rows = np.flatnonzero(_has(valid, query))
        if not rows.size:
            what = "".join(f" of {name} {value!r}" for name, value in query.items())
            raise NotFoundError(f"there is no message{what} to batch", "Choose another one, or a longer time range.")
        left_out = _wrong_clocks(valid, processing_time, rows, rules or Rules())
        rows = rows[~pc.is_in(valid["source"].take(pa.array(rows)), pa.array(left_out, pa.string())).to_numpy()]
        chosen = valid.take(pa.array(rows))
        no_batches = pa.schema(tables.batch_fields(chosen.schema.field("payload").type)).empty_table()
        by = by_stream(chosen, processing_time[rows], version[rows], no_batches)
        unseen = refused.filter(pa.array(_has(arrived, query)[refused["row"].to_numpy()]))
        kernel_columns = columns(by, 0, len(by.source))
        return cls(
            rows=by,
            columns=kernel_columns,
            rounds=Rounds.of(kernel_columns),
            received_at=microseconds(by.content["received_at"]),
            clock=floors.of(by.source),
            refused=dict(Counter(unseen["reason"].to_pylist())),
            left_out=left_out,
        )

    @property
    def messages(self) -> int:
        """The number of messages, including those that no rule sees."""
        return self.received_at.size + sum(self.refused.values())

    @property
    def event_time(self) -> Ints:
        """When each message happened, in microseconds, in the order of the kernel, not of the rows."""
        return self.columns.event_time

    @property
    def age(self) -> Ints:
        """How old each message was when it was processed, which the rules compare with `max_delay`."""
        return self.columns.processing_time - self.event_time

    @property
    def own_age(self) -> Ints:
        """How old each message was when it was received, in the order of `age`."""
        return self.received_at[self.columns.row_of] - self.event_time

    def count_older(self, age: int) -> list[tuple[str, int]]:
        """Count by source the messages older than `age` (microseconds), the source with the most first."""
        stream = np.repeat(np.arange(self.columns.start.size - 1), np.diff(self.columns.start))
        sources = self.rows.source.take(pa.array(stream[self.age > age]))
        return Counter(sources.to_pylist()).most_common()

    def outcome(self, rules: Rules) -> Row:
        """Return what the rules make of the messages; `sweep` explains the names."""
        share = decide_streams(self.rows, 0, self.columns, rules, self.clock)
        sizes, closed_at, kept = share.batches.messages, share.batches.closed_at, share.members.size
        closes = np.repeat(closed_at, sizes)
        waited = (closes - self.received_at[share.members])[closes != kernel.NEVER]
        refused = np.bincount(share.refused.fate, minlength=len(REASONS)).tolist()
        by_rule = dict(zip(REASONS.to_pylist()[1:], refused[1:], strict=True))
        rejected, p95 = self.messages - kept, partial(np.percentile, q=95)
        return {
            "message_count": self.messages,
            "accepted": kept,
            "rejected": rejected,
            **by_rule,
            **{reason: self.refused.get(reason, 0) for reason in ("invalid", "clock_ahead")},
            "rejected_percent": PERCENT * rejected / self.messages,
            "batch_count": sizes.size,
            "open_batch_count": int((closed_at == kernel.NEVER).sum()),
            "slivers": _slivers(share.batches.stream, sizes),
            "intact_rounds_percent": self.rounds.intact_rounds_percent(share.members, sizes),
            **_describe_values("batch_messages", sizes, {"mean": np.mean, "median": np.median, "max": np.max}),
            **_describe_values("wait_seconds", waited / SECOND, {"median": np.median, "p95": p95, "max": np.max}),
        }


def _has(messages: pa.Table, query: dict[str, str]) -> npt.NDArray[np.bool_]:
    mask = np.ones(messages.num_rows, np.bool_)
    for name, value in query.items():
        mask &= pc.fill_null(pc.equal(messages[name], value), False).to_numpy()
    return mask


def _wrong_clocks(messages: pa.Table, processing_time: Ints, rows: Ints, rules: Rules) -> dict[str, int]:
    """Count by source the messages (in `rows`) of sources nearly all of whose messages the rules reject."""
    encoded = messages["source"].take(pa.array(rows)).combine_chunks().dictionary_encode()
    age = processing_time[rows] - microseconds(messages["event_time"])[rows]
    number, sources = encoded.indices.to_numpy(), encoded.dictionary.to_pylist()
    counts = np.bincount(number, minlength=len(sources))
    rejected = np.bincount(number[(age > rules.max_delay) | (age < -rules.max_lead)], minlength=len(sources))
    nearly_all = np.flatnonzero((counts >= MIN_COUNT) & (rejected > REJECTED_SHARE * counts)).tolist()
    count_of = {sources[number]: int(counts[number]) for number in nearly_all}
    return {source: count_of[source] for source in wrong_clocks(list(count_of), len(sources))}


def _slivers(stream: Ints, sizes: Ints) -> int:
    """Count the batches with less than a quarter of the messages of their stream's median batch."""
    order = np.lexsort((sizes, stream))
    sizes, first = sizes[order], np.flatnonzero(np.diff(stream[order], prepend=-1))
    counts = np.diff(np.append(first, sizes.size))
    return int((SLIVER * sizes < np.repeat(sizes[first + (counts - 1) // 2], counts)).sum())


def _describe_values(name: str, values: npt.NDArray[np.generic], how: dict[str, object]) -> Row:
    return {f"{name}_{what}": float(figure(values)) if values.size else None for what, figure in how.items()}  # type: ignore[operator]


def _median_repeat(stream: Ints, list_of: Ints, time: Ints, streams: int) -> Ints:
    """Return for each stream the shortest median time between messages of a type, 0 where no type comes again."""
    same = np.diff(list_of) == 0
    gaps, lists = np.diff(time)[same], list_of[1:][same]
    order = np.lexsort((gaps, lists))
    start = np.flatnonzero(np.append(True, np.diff(lists[order]) != 0)[: gaps.size])
    middle = order[(start + np.append(start[1:], gaps.size) - 1) // 2]
    shortest = np.full(streams, np.iinfo(np.int64).max)
    np.minimum.at(shortest, stream[1:][same][middle], gaps[middle])
    return np.where(shortest == np.iinfo(np.int64).max, 0, shortest)
