"""Floors: the earliest processing time that can still come from each source, and processing times of messages."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from windrow.columnar.arrow import combine_chunks, filter_rows, from_numpy, index_in, string_array, to_numpy
from windrow.columnar.order import fits_a_table
from windrow.errors import ensure
from windrow.model import clock
from windrow.model.admission import reject_inadmissible
from windrow.model.messages import microseconds
from windrow.model.summary import SUMMARY

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Floors:
    """The floor of each source, in microseconds; a source without one has `clock.UNKNOWN`."""

    source: pa.Array
    floor: Ints

    @classmethod
    def empty(cls) -> Floors:
        """Return the floors of no source."""
        return cls(string_array([]), np.array([], np.int64))

    def of(self, sources: pa.Array) -> Ints:
        """Return the floors of the given sources."""
        at = index_in(sources, self.source)
        return np.where(at >= 0, np.append(self.floor, clock.UNKNOWN)[at], clock.UNKNOWN)

    def for_sources(self, sources: pa.Array) -> Floors:
        """Return the floors of the given sources only."""
        return Floors(sources, self.of(sources))

    def at_least(self, moment: int) -> Floors:
        """Return the floors after a tick of every known source."""
        return Floors(self.source, np.maximum(self.floor, moment))

    def raised(self, source: pa.Array, floor: Ints) -> Floors:
        """Return the floors, each raised to the given floor of its source; unknown sources are added."""
        source = source.cast(pa.string())
        at = index_in(source, self.source).copy()
        unknown = from_numpy(np.flatnonzero(at < 0))
        added = source.take(unknown).dictionary_encode()
        at[at < 0] = len(self.source) + to_numpy(added.indices)
        floors = np.append(self.floor, np.full(len(added.dictionary), clock.UNKNOWN, np.int64))
        np.maximum.at(floors, at, floor)
        return Floors(pa.concat_arrays([self.source, added.dictionary]) if len(unknown) else self.source, floors)


@dataclass(frozen=True, slots=True)
class Cuts:
    """What a flush or a change of the rules does to sources, in microseconds.

    All windows of a source that may not lie on the calendar end at its `cut` or earlier. Its floor becomes at least
    `floor`.
    """

    source: pa.Array
    cut: Ints
    floor: Ints

    @classmethod
    def none(cls) -> Cuts:
        """Return the cuts of no source."""
        return cls.flushed(Floors.empty(), 0)

    @classmethod
    def flushed(cls, cut: Floors, max_delay: int) -> Cuts:
        """Return what a flush does that closes all before `cut`: afterwards only messages before it are too old."""
        return cls(cut.source, cut.floor, cut.floor + max_delay)


def processing_times(messages: pa.Table, before: Floors) -> tuple[Ints, Floors]:
    """Return the processing time of each message and the floors after all of them.

    `messages` (valid ones) are in the order of their depot versions. Source of the rule: T = max(floor, received_at).
    """
    stamped = messages.select(["version", "source", "received_at"]).rename_columns(["version", "source", "stamp"])
    planned = FloorsByVersion.plan(stamped, before)
    return np.maximum(planned.floor, microseconds(stamped["stamp"])), planned.after


def times_of(messages: pa.Table, floors: FloorsByVersion, latest: int) -> Ints:
    """Return the processing times of messages, UNKNOWN for those that are invalid or stamped after `latest`."""
    fit = np.ones(messages.num_rows, np.bool_)
    fit[reject_inadmissible(messages, latest)["row"].to_numpy()] = False
    times = np.full(messages.num_rows, clock.UNKNOWN)
    times[fit] = floors.processing_times(messages.filter(pa.array(fit)))
    return times


@dataclass(frozen=True, slots=True)
class FloorsByVersion:
    """The floor that holds for each source in each depot version of a microbatch, and the floors after all of them."""

    version: Ints
    source: pa.Array
    floor: Ints
    after: Floors

    @classmethod
    def plan(cls, summary: pa.Table, before: Floors) -> FloorsByVersion:
        """Compute the floors from a summary of the messages (`summary.summarise_messages`), ordered by version."""
        moving = filter_rows(summary, pc.is_valid(summary["stamp"]))
        version = moving["version"].to_numpy()
        sources = combine_chunks(moving["source"])
        encoded = sources.dictionary_encode()
        source = encoded.indices.to_numpy()
        floor = before.of(encoded.dictionary)
        at = clock.raise_floors(source, version, microseconds(moving["stamp"]), floor)
        return cls(version, sources, at, before.raised(encoded.dictionary, floor))

    @classmethod
    def none(cls, after: Floors) -> FloorsByVersion:
        """Return the floors of a microbatch without messages."""
        return cls.plan(SUMMARY.empty_table(), after)

    def for_sources(self, sources: pa.Array) -> FloorsByVersion:
        """Return the floors; those after the microbatch are only for the given sources and sources with messages."""
        concerned = pa.concat_arrays([self.source.unique(), sources]).unique()
        return replace(self, after=self.after.for_sources(concerned))

    def processing_times(self, messages: pa.Table) -> Ints:
        """Return T = max(floor(source, version), received_at) of messages that were part of the summary."""
        versions = np.unique(self.version)
        sources = self.source.unique()
        known = self._code(versions, sources, self.version, self.source)
        code = self._code(versions, sources, messages["version"].to_numpy(), combine_chunks(messages["source"]))
        places = versions.size * len(sources)
        if fits_a_table(places, code.size):
            by_code = np.full(places, clock.UNKNOWN, np.int64)
            by_code[known] = self.floor
            floor = by_code[code]
        else:
            ordered = np.argsort(known)
            floor = self.floor[ordered][np.searchsorted(known[ordered], code)]
        return np.maximum(floor, microseconds(messages["received_at"]))

    @staticmethod
    def _code(versions: Ints, sources: pa.Array, version: Ints, source: pa.Array) -> Ints:
        coded = source.dictionary_encode()  # its dictionary may have unused sources
        at = to_numpy(pc.index_in(coded.dictionary, sources), null=-1)[coded.indices.to_numpy()]
        ensure(not (at < 0).any(), "a message is of a source that was summarised")
        return np.searchsorted(versions, version) * len(sources) + at
