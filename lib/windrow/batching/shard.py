"""Decide a share of the streams: their windows, and the fate of each message."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.batching import kernel
from windrow.batching.columns import Columns, Ints, Numbers
from windrow.batching.rules import Rules
from windrow.columnar.arrow import texts
from windrow.model.messages import microseconds

OPENED_BY = texts(["message", "conflict", "size"])

Bools = npt.NDArray[np.bool_]
Fates = npt.NDArray[np.int8]
Several = TypeVar("Several", bound=NamedTuple)


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of some streams after the kernel; the first ones are the given open batches."""

    stream: Ints
    start: Ints
    end: Ints
    first: Ints
    last: Ints
    opened_by: Ints
    closed_at: Ints
    changed: Bools
    at: Numbers  # per position: the window that begins there
    flushed: Bools

    @property
    def open(self) -> Bools:
        """Which windows may still grow."""
        return self.closed_at == kernel.NEVER


class Emitted(NamedTuple):
    """The accepted rows by batch, and the window, part, bytes and oversize flag of each batch."""

    members: Numbers  # rows
    begin: Ints  # per batch, and at the end: where its rows begin among them
    window: Ints
    part: Ints
    byte_count: Ints
    oversize: Bools


class Refused(NamedTuple):
    """The refused new messages: their index among all new messages, the reason, and by how much they missed."""

    message: Numbers
    fate: Fates
    off_by: Ints  # microseconds


@dataclass(frozen=True, slots=True)
class Share:
    """The kernel's result for some streams, with the columns that are needed to list their batches."""

    row_of: Numbers  # this and what follows per slot, see `Columns`
    ranked: Numbers
    position: Numbers
    byte_count: Ints
    fate: Fates
    time_at: Ints  # per position
    windows: Windows
    known: slice  # which of all open batches the first windows are
    refused: Refused

    def emitted(self, rules: Rules) -> Emitted:
        """List the accepted rows batch by batch."""
        room, windows = self.row_of.size, self.windows
        members = np.empty(room, np.int32)
        begin = np.empty(room + 1, np.int64)
        window, part, weight = np.empty((3, room), np.int64)
        oversize = np.empty(room, np.bool_)
        count = kernel.emit(
            self.ranked, self.row_of, self.position, self.byte_count, self.fate,
            windows.at, windows.first, windows.closed_at, rules.max_batch_bytes,
            members, begin, window, part, weight, oversize,
        )  # fmt: skip
        return Emitted(
            members[: begin[count]], begin[: count + 1], window[:count], part[:count], weight[:count], oversize[:count]
        )


def joined(parts: Iterable[Several]) -> Several:
    """Concatenate the columns of several shares."""
    each = list(parts)
    return each[0]._make(map(np.concatenate, zip(*each, strict=True)))


def decided(columns: Columns, rules: Rules, sweep: Ints) -> Share:
    """Call the kernel; `sweep` is the clock of each stream after all messages.

    `columns` do not depend on the rules, so one encoding serves any number of them.
    """
    slots, positions = columns.row_of.size, columns.time_at.size
    given = columns.rows.batches[columns.opened]
    opened = pc.index_in(given["opened_by"].combine_chunks(), OPENED_BY)
    windows = _room(given.num_rows + positions, positions)
    fate = np.full(slots, kernel.ACCEPTED, np.int8)
    orders = kernel.Orders(columns.time_at, columns.place_begin, columns.position_at)
    count = kernel.decide(
        kernel.Streams(columns.begin, columns.new_begin, columns.position_begin, columns.open_begin, sweep),
        kernel.Slots(
            columns.event_time,
            columns.processing_time,
            columns.byte_count,
            columns.position,
            columns.list_of,
            columns.place,
        ),
        orders,
        kernel.Given(
            columns.rows.open_sizes[columns.opened],
            microseconds(given["window_start"]),
            microseconds(given["window_end"]),
            opened.cast(pa.int64()).to_numpy(),
        ),
        kernel.Limits(
            rules.window, rules.max_delay, rules.max_leap, rules.max_batch_bytes, rules.window_start == "arrival"
        ),
        kernel.Sets.empty(orders, weighed=0 < rules.max_batch_bytes < columns.byte_count.sum()),
        windows,
        fate,
    )
    return Share(
        row_of=columns.row_of,
        ranked=columns.ranked,
        position=columns.position,
        byte_count=columns.byte_count,
        fate=fate,
        time_at=columns.time_at,
        windows=_found(columns, windows, count),
        known=columns.opened,
        refused=_refused(columns, rules, fate),
    )


def _room(windows: int, positions: int) -> kernel.Windows:
    """Allocate the greatest possible number of windows: one per open batch and one per position."""
    start, end, first, last, weight, opened_by, closed_at = np.empty((7, windows), np.int64)
    weighed, changed = np.empty((2, windows), np.bool_)
    at = np.full(positions, kernel.NONE, np.int32)
    return kernel.Windows(start, end, first, last, weight, weighed, opened_by, closed_at, changed, at)


def _found(columns: Columns, windows: kernel.Windows, count: int) -> Windows:
    """Return the windows that exist, without unused space."""
    return Windows(
        stream=np.searchsorted(columns.position_begin, windows.first[:count], side="right") - 1 + columns.first,
        start=windows.start[:count].copy(),
        end=windows.end[:count].copy(),
        first=windows.first[:count].copy(),
        last=windows.last[:count].copy(),
        opened_by=windows.opened_by[:count].copy(),
        closed_at=windows.closed_at[:count].copy(),
        changed=windows.changed[:count].copy(),
        at=windows.at,
        flushed=np.zeros(count, np.bool_),
    )


def _refused(columns: Columns, rules: Rules, fate: Fates) -> Refused:
    slots = np.flatnonzero(fate != kernel.ACCEPTED)
    why, ahead = fate[slots], columns.event_time[slots] - columns.processing_time[slots]
    off_by = np.select(
        [why == kernel.TOO_OLD, why == kernel.TOO_FUTURISTIC], [-ahead - rules.max_delay, ahead - rules.max_leap], 0
    )
    return Refused(columns.row_of[slots] - columns.rows.open_rows, why, off_by)
