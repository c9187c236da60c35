"""Encode what a ledger version read from the depot and what it holds: streams, types and times become numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from windrow.verify.columns import Bools, Ints, coded, dense, flags, kept, numbers
from windrow.verify.decisions.microbatch_history import MicrobatchHistory
from windrow.verify.depot import Depot
from windrow.verify.snapshot import Snapshot

NOBODY = 1 << 62


@dataclass(frozen=True, slots=True)
class Streams:
    """The streams of a depot and its ledger by number: source and key of each, and whether it is whole.

    A stream is whole when all its messages are in depot versions that can still be read.
    """

    source: Ints
    sources: pa.Array
    key: Ints
    keys: pa.Array
    whole: Bools


@dataclass(frozen=True, slots=True)
class Arrived:
    """The messages of the depot, one element each, from microbatches whose versions can all be read.

    `kind` numbers the types in the order of their bytes.
    """

    messages: pa.Table
    stream: Ints
    source: Ints
    kind: Ints
    event_time: Ints
    received_at: Ints
    has_sequence: Bools  # NULL sorts before every number
    sequence: Ints
    version: Ints
    microbatch: Ints


@dataclass(frozen=True, slots=True)
class Held:
    """The ledger's batches, messages in batches, rejections and recorded clocks, encoded with the same numbers."""

    batch_stream: Ints
    batch_source: Ints
    message_kind: Ints
    rejected_stream: Ints
    clock_source: Ints


def encode(snapshot: Snapshot, depot: Depot, history: MicrobatchHistory) -> tuple[Streams, Arrived, Held]:
    """Encode what was read and what the ledger holds."""
    messages = _read(depot, history)
    batches, rejected = snapshot.batches, snapshot.rejected
    tables = (messages, batches, rejected)
    sources, source = coded(*(table["source"] for table in tables), history.clocks["source"])
    keys, key = coded(*(table["key"] for table in tables))
    _, kind = coded(messages["type"], snapshot.messages["type"])
    pairs, stream = dense(np.concatenate([one * len(keys) + other for one, other in zip(source[:3], key, strict=True)]))
    of_message, of_batch, of_rejected = np.split(stream, np.cumsum([messages.num_rows, batches.num_rows]))
    whole = np.ones(pairs.size, np.bool_)
    if history.gone:
        whole[of_batch[numbers(batches["opened_in"]) <= history.gone]] = False
        whole[of_rejected[numbers(rejected["microbatch"]) <= history.gone]] = False
    version = numbers(messages["version"])
    arrived = Arrived(
        messages=messages,
        stream=of_message,
        source=source[0],
        kind=kind[0],
        event_time=numbers(messages["event_time"]),
        received_at=numbers(messages["received_at"]),
        has_sequence=messages["sequence"].is_valid().to_numpy(),
        sequence=numbers(messages["sequence"]),
        version=version,
        microbatch=history.read_in[np.searchsorted(history.version, version)],
    )
    streams = Streams(pairs // len(keys), sources, pairs % len(keys), keys, whole)
    return streams, arrived, Held(of_batch, source[1], kind[1], of_rejected, source[3])


def ahead_from(snapshot: Snapshot, history: MicrobatchHistory) -> Ints:
    """Return for each microbatch the latest stamp that was not ahead of its clock, as its rejections record it."""
    rejected = kept(snapshot.rejected, flags(pc.equal(snapshot.rejected["reason"], "clock_ahead")))
    latest = np.full(history.last + 1, NOBODY)
    microbatch = numbers(rejected["microbatch"])
    known = (microbatch > 0) & (microbatch <= history.last)
    bound = numbers(rejected["received_at"]) - numbers(rejected["missed_by_us"])
    np.minimum.at(latest, microbatch[known], bound[known])
    return latest


def _read(depot: Depot, history: MicrobatchHistory) -> pa.Table:
    """Return the messages of the versions in the history, from microbatches whose versions can all be read."""
    version = numbers(depot.messages["version"])
    at = np.minimum(np.searchsorted(history.version, version), max(history.version.size - 1, 0))
    if not history.version.size:
        return depot.messages.slice(0, 0)
    return kept(depot.messages, (history.version[at] == version) & (history.read_in[at] > history.gone))
