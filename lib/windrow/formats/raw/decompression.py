"""Decompress the chunks of a raw source: a stream of frames that may be cut into chunks anywhere.

Only whole frames are decompressed. The compressed bytes from the first unfinished frame on are kept, and read again
with the next chunks, so nothing depends on the state of a library. A byte of the content has the place of its frame:
the chunk in which the frame begins, and its offset in the content of all frames that begin there.

Bytes that are no frame are rejected up to the next whole frame; the content alone decides where it begins.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Any, cast

import numpy as np

from windrow.columnar.compiled import Ints
from windrow.formats.codecs import MAGIC, Codec, Damage, Frame, frames, next_magic
from windrow.formats.format import Format
from windrow.formats.raw.queue import ChunkGap
from windrow.formats.raw.segment import ByteRun, Step, piece_of
from windrow.formats.raw.source import BEGIN, CHUNK, OFFSET, RECEIVED_AT, VERSION, Pieces, RawSourceState

CODEC, GAP = "format_codec", "format_gap"


@dataclass(slots=True)
class Decompression:
    """Decompresses the steps of a source; `steps` and `rejects` are the result.

    For each frame, the longer of the frame and its content counts: `grown` says by how much contents exceed their
    frames, `excess` by how much frames exceed their contents.
    """

    source: RawSourceState
    format: Format
    steps: list[Step] = field(default_factory=list)
    rejects: list[dict[str, Any]] = field(default_factory=list)
    grown: int = 0
    excess: int = 0

    @classmethod
    def of(cls, source: RawSourceState, steps: Iterable[Step], format_: Format) -> Decompression:
        """Decompress the kept bytes of a source and those that a queue released, and keep the unfinished ones."""
        decompression = cls(source, format_)
        if format_.codec == "none":
            decompression.steps = decompression._as_they_are(list(steps))
            return decompression
        for step in steps:
            if isinstance(step, ChunkGap):
                decompression._give_up(step)
            elif not decompression._take(step, all_or_nothing=True):
                for part in _by_version(step):  # so that it does not matter which versions are read together
                    decompression._take(part)
        return decompression

    def _as_they_are(self, steps: list[Step]) -> list[Step]:
        """Return the bytes that another codec left, in the version of the first step, and then the steps."""
        kept, first = ByteRun.of_chunks(self.source.encoded), steps[0] if steps else None
        if first is None or not kept.buffer.size:
            return steps
        kept.pieces[:, VERSION] = first.pieces[0, VERSION] if isinstance(first, ByteRun) else first.version
        self.source.encoded, self.source.decoded = [], (0, 0)
        return [kept, *steps]

    def _give_up(self, gap: ChunkGap) -> None:
        kept = ByteRun.of_chunks(self.source.encoded)
        self._reject(kept, 0, kept.buffer.size, GAP, "bytes before or after it never came", gap.version)
        self.source.encoded = []
        self.steps.append(gap)

    def _take(self, run: ByteRun, *, all_or_nothing: bool = False) -> bool:
        """Decompress a run; with `all_or_nothing`, return False and do nothing unless all of it is frames."""
        both = ByteRun.of_chunks(self.source.encoded).join(run)
        buffer, at = both.buffer.tobytes(), 0
        while True:
            frames, damage = self._frames(both, buffer, at)
            if damage is None:
                damage = self._find_endless(both, frames[-1].end if frames else at)
            if damage is not None and all_or_nothing:
                return False
            self._add(both, frames, int(run.pieces[0, VERSION]))
            at = damage.start if damage is not None else frames[-1].end if frames else at
            end = None if damage is None else self._end_of_damage(both, buffer, at)
            if damage is None or end is None:
                break
            self._reject(both, at, end, CODEC, damage.why, int(run.pieces[-1, VERSION]))
            self.steps.append(ChunkGap(int(run.pieces[-1, VERSION])))
            at = end
        self.source.encoded = [] if run.last else both.chunks_from(at)
        if run.last:
            self._add(both, (), 0, at_end=True)
        if not self.source.encoded or self.source.encoded[0].number != self.source.decoded[0]:
            self.source.decoded = 0, 0  # the next frame begins in another chunk
        return True

    def _frames(
        self, run: ByteRun, buffer: bytes, at: int, count: int | None = None
    ) -> tuple[list[Frame], Damage | None]:
        """Return the frames from a position on, at most `count`, and the damage after them, if there is any."""
        frames_read: list[Frame] = []
        chunk, size = self.source.decoded
        for item in islice(frames(buffer, at, self._codec, self.format.limits.max_decoded_bytes), count):
            if isinstance(item, Damage):
                return frames_read, item
            own = int(run.pieces[piece_of(run.pieces, np.array([item.start]))[0], CHUNK])
            chunk, size = own, len(item.content) + (size if own == chunk else 0)
            # guard: decoded-bounded
            if size > self.format.limits.max_decoded_bytes:
                most = self.format.limits.max_decoded_bytes
                why = f"the {self._codec} frames decode to more than {most} bytes together"
                return frames_read, Damage(item.start, why)
            if (damage := self._too_long(run, item.start, item.end)) is not None:
                return frames_read, damage
            frames_read.append(item)
        return frames_read, None

    def _find_endless(self, run: ByteRun, at: int) -> Damage | None:
        """Return the damage if the frame that begins at a position can never end."""
        if at < run.buffer.size and run.last:
            return Damage(at, "the last frame is cut short")
        return self._too_long(run, at, run.buffer.size)

    def _too_long(self, run: ByteRun, start: int, end: int) -> Damage | None:
        """Return the damage if the bytes of several chunks, which may have to be kept, are too many for one frame."""
        most = self.format.limits.max_pending_bytes
        if end - start <= most:
            return None
        first, last = piece_of(run.pieces, np.array([start, end - 1]))
        why = f"a {self._codec} frame in several chunks has more than max_pending_bytes, {most}"
        return Damage(start, why) if first < last else None

    def _end_of_damage(self, run: ByteRun, buffer: bytes, start: int) -> int | None:
        """Return where to stop rejecting bytes that begin no frame, None if the next bytes decide that."""
        most = start + self.format.limits.max_record_bytes
        at = start
        while True:
            at = next_magic(buffer, at + 1, self._codec)
            if at >= most:
                return most
            if not buffer.startswith(MAGIC[self._codec], at):
                return len(buffer) if run.last else None
            frames, damage = self._frames(run, buffer, at, 1)
            if frames:
                return at
            if damage is None and self._find_endless(run, at) is None:
                return None

    def _add(self, run: ByteRun, frames: Iterable[Frame], since: int, *, at_end: bool = False) -> None:
        """Add the contents of frames as a run of their own, with versions of at least `since`.

        The end of the source gets a piece too.
        """
        rows: list[list[int]] = []
        start = 0
        contents = [frame.content for frame in frames]
        for frame in frames:
            first, last = run.pieces[piece_of(run.pieces, np.array([frame.start, frame.end - 1]))]
            chunk, size = self.source.decoded
            size = size if chunk == first[CHUNK] else 0
            version = max(last[VERSION], since)
            rows.append([start, first[CHUNK], size, last[RECEIVED_AT], version])
            start += len(frame.content)
            self.source.decoded = int(first[CHUNK]), size + len(frame.content)
            longer = len(frame.content) - (frame.end - frame.start)
            self.grown += max(0, longer)
            self.excess += max(0, -longer)
        if at_end:
            last = run.pieces[-1]
            chunk, size = self.source.decoded
            rows = [[0, last[CHUNK], size if chunk == last[CHUNK] else 0, last[RECEIVED_AT], last[VERSION]]]
        if rows:
            buffer = np.frombuffer(b"".join(contents), np.uint8)
            self.steps.append(ByteRun(buffer, np.array(rows, np.int64), at_end))

    def _reject(self, run: ByteRun, start: int, end: int, reason: str, why: str, version: int) -> None:
        if start == end:
            return
        first, last = run.pieces[piece_of(run.pieces, np.array([start, end - 1]))]
        inside = int(first[OFFSET] + start - first[BEGIN])
        self.rejects.append(
            {
                "raw_source": self.source.name,
                "chunk": int(first[CHUNK]),
                "received_at": int(last[RECEIVED_AT]),
                "version": version,
                "arrived_in": int(first[VERSION]),
                "ordinal": inside,
                "reason": reason,
                "detail": f"chunk {first[CHUNK]}{f', byte {inside}' if inside else ''}: {why}",
                "bytes": end - start,
                "content": run.buffer[start:end].tobytes(),
            }
        )

    @property
    def _codec(self) -> Codec:
        return cast("Codec", self.format.codec)


def _by_version(run: ByteRun) -> Iterator[ByteRun]:
    """Cut a run into the chunks of each version."""
    versions: Ints = run.pieces[:, VERSION]
    bounds = np.append(run.pieces[:, BEGIN], run.buffer.size)
    cuts = [0, *(np.flatnonzero(versions[1:] != versions[:-1]) + 1).tolist(), len(versions)]
    for first, end in pairwise(cuts):
        pieces: Pieces = run.pieces[first:end].copy()
        pieces[:, BEGIN] -= bounds[first]
        yield ByteRun(run.buffer[bounds[first] : bounds[end]], pieces, run.last and end == len(versions))
