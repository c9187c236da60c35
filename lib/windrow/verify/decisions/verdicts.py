"""Derive the verdict on each message: it needs no window, only the processing time and the messages before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.model.messages import EARLIEST, LATEST
from windrow.verify.columns import NONE, Bools, Ints, dense
from windrow.verify.decisions.arrived import Arrived
from windrow.verify.decisions.clocks import Clocks, follow
from windrow.verify.decisions.microbatch_history import MicrobatchHistory

ACCEPTED, TOO_OLD, TOO_FUTURISTIC, DUPLICATE, INVALID, CLOCK_AHEAD = range(6)
REASONS = np.array(["accepted", "too_old", "too_futuristic", "duplicate", "invalid", "clock_ahead"])


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The verdict on each message (an index into REASONS), by how much it missed, and its processing time.

    `detail` says what makes a message invalid; NULL for any other.
    """

    verdict: Ints
    off_by: Ints
    processing_time: Ints
    detail: pa.Array


def judge(arrived: Arrived, history: MicrobatchHistory, ahead_from: Ints, recorded: Ints) -> tuple[Verdicts, Clocks]:
    """Derive the verdict on each message, and the clocks, from the log and the rules.

    `ahead_from` has for each microbatch the latest stamp that was not ahead of the clock; `recorded` numbers the
    sources of `history.clocks`.
    """
    detail = _faults(arrived.messages)
    invalid = detail.is_valid().to_numpy(zero_copy_only=False)
    beyond = arrived.received_at - ahead_from[arrived.microbatch]
    good = ~invalid & (beyond <= 0)
    clocks, now = _processing_times(arrived, history, good, recorded)
    delay, leap = (history.each(name)[arrived.microbatch] for name in ("max_delay", "max_leap"))
    late, early = now - delay - arrived.event_time, arrived.event_time - now - leap
    verdict = np.select(
        [invalid, ~good, late > 0, early > 0], [INVALID, CLOCK_AHEAD, TOO_OLD, TOO_FUTURISTIC], ACCEPTED
    )
    verdict[_repeated(arrived, now, np.flatnonzero(verdict == ACCEPTED))] = DUPLICATE
    off_by = np.select(
        [verdict == CLOCK_AHEAD, verdict == TOO_OLD, verdict == TOO_FUTURISTIC], [beyond, late, early], 0
    )
    return Verdicts(verdict, off_by, now, detail), clocks


def _processing_times(arrived: Arrived, history: MicrobatchHistory, good: Bools, recorded: Ints) -> tuple[Clocks, Ints]:
    """Return the clocks, and for each message the greater of its stamp and of the floor before its depot version."""
    rows = np.flatnonzero(good)
    versions, at = dense(arrived.version[rows])
    pairs, pair = dense(arrived.source[rows] * max(versions.size, 1) + at)
    stamp = np.full(pairs.size, NONE)
    np.maximum.at(stamp, pair, arrived.received_at[rows])
    source, version = pairs // max(versions.size, 1), versions[pairs % max(versions.size, 1)]
    clocks, floor = follow(history, source, version, stamp, recorded)
    now = np.full(good.size, NONE)
    now[rows] = np.maximum(floor[pair], arrived.received_at[rows])
    return clocks, now


def _repeated(arrived: Arrived, now: Ints, rows: Ints) -> Ints:
    """Return the messages that are not the first of their stream, type and time in processing order."""
    keys = [values[rows] for values in (arrived.event_time, arrived.kind, arrived.stream)]
    order = np.lexsort(keys)
    same = np.ones(max(rows.size - 1, 0), np.bool_)
    for key in keys:
        same &= key[order[1:]] == key[order[:-1]]
    begins = np.concatenate([[True], ~same])[: rows.size]
    several = np.concatenate([same, [False]])[: rows.size] | ~begins
    alike, group = rows[order][several], np.cumsum(begins)[several]
    payload = arrived.messages["payload"].take(pa.array(alike))
    by = pa.table(
        {
            "group": group,
            "version": arrived.version[alike],
            "processing time": now[alike],
            "has sequence": arrived.has_sequence[alike],
            "sequence": arrived.sequence[alike],
            "received at": arrived.received_at[alike],
            "has payload": payload.is_valid(),
            "payload": payload,
        }
    )
    placed = pc.sort_indices(by, sort_keys=[(name, "ascending") for name in by.column_names]).to_numpy()
    first = np.concatenate([[True], np.diff(group[placed]) > 0])[: placed.size]
    return alike[placed[~first]]


def _faults(messages: pa.Table) -> pa.Array:
    """Say what makes each message invalid: the first column that is NULL, or else a time that is out of range."""
    conditions: list[npt.NDArray[np.bool_]] = []
    words = []
    for name in ("source", "key", "type", "event_time", "received_at"):
        conditions.append(messages[name].is_null().to_numpy())
        words.append(f"{name} is NULL")
    for name in ("event_time", "received_at"):
        time = pc.fill_null(messages[name].cast(pa.int64()), 0).to_numpy()
        conditions.append((time < EARLIEST) | (time >= LATEST))
        words.append(f"{name} is out of range")
    found = np.select(conditions, list(range(len(words))), -1)
    return pa.array(words).take(pa.array(found, mask=found < 0))
