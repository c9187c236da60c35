"""The chunks of a source come in the order of their numbers, each once, and no chunk is passed over in silence."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.formats.raw.queue import ChunkGap, Queue, QueuedChunk, RejectedChunk, ReleasedChunk


def chunk(number, content=b"x", *, last=False, version=1, received_at=0):
    return QueuedChunk.of(number, content, last, received_at, version)


def take(queue, *arrived, max_pending_bytes=1000):
    return list(queue.take(arrived, max_pending_bytes))


def take_all(steps):
    return [(step.chunk.number, step.version) for step in steps if isinstance(step, ReleasedChunk)]


def refused(steps):
    return [(step.chunk.number, step.reason) for step in steps if isinstance(step, RejectedChunk)]


@given(st.integers(1, 12), st.randoms(use_true_random=False))
def test_any_order(count, shape):
    """In any order, repeated, and over any versions each chunk is taken once, in order, when all before it are
    there.
    """
    arrivals = [*range(1, count + 1), *shape.choices(range(1, count + 1), k=shape.randrange(5))]
    random.Random(shape.random()).shuffle(arrivals)
    versions = sorted(shape.choices(range(1, 6), k=len(arrivals)))
    queue, steps = Queue(), []
    for version in sorted(set(versions)):
        here = [number for number, at in zip(arrivals, versions, strict=True) if at == version]
        steps += take(queue, *(chunk(number, b"%d" % number, last=number == count, version=version) for number in here))
    first = {number: versions[arrivals.index(number)] for number in range(1, count + 1)}
    assert take_all(steps) == [
        (number, max(first[before] for before in range(1, number + 1))) for number in range(1, count + 1)
    ]
    assert len(refused(steps)) == len(arrivals) - count
    assert {reason for _, reason in refused(steps)} <= {"format_repeated"}
    assert queue.ended
    assert not queue.waiting


class TestRefused:
    def test_another(self):
        """A chunk that came before and is another one is a conflict, whether it is held or was taken long ago."""
        queue = Queue()
        take(queue, chunk(1), chunk(3))
        for other in (chunk(1, b"y"), chunk(3, b"y"), chunk(3, last=True)):
            assert refused(take(queue, other)) == [(other.number, "format_conflict")]
        assert refused(take(queue, chunk(1), chunk(3))) == [(1, "format_repeated"), (3, "format_repeated")]

    def test_both_at_once(self):
        """Of two different chunks of a number in one version always the same is taken, in whatever order they are
        read.
        """
        both = chunk(1, b"a", received_at=5), chunk(1, b"b", received_at=4)
        for arrived in (both, both[::-1]):
            steps = take(Queue(), *arrived)
            assert [step.chunk.content for step in steps] == [b"a", b"b"]
            assert refused(steps) == [(1, "format_conflict")]

    @pytest.mark.parametrize("early", [True, False])
    def test_behind_last(self, early):
        """What comes behind the last chunk is a conflict, also when it was held back before that came."""
        queue = Queue()
        arrived = [chunk(3), chunk(1), chunk(2, last=True)]
        steps = take(queue, *arrived) if early else take(queue, *arrived[1:]) + take(queue, arrived[0])
        assert take_all(steps) == [(1, 1), (2, 1)]
        assert refused(steps) == [(3, "format_conflict")]

    def test_too_long_ago(self, monkeypatch):
        """A chunk that came so long ago that nothing is remembered of it is kept as a conflict, not dropped."""
        monkeypatch.setattr("windrow.formats.raw.queue.REMEMBERED_CHUNKS", 2)
        queue = Queue()
        take(queue, *(chunk(number) for number in range(1, 6)))
        assert refused(take(queue, chunk(3), chunk(4))) == [(3, "format_conflict"), (4, "format_repeated")]


class TestGivenUp:
    def test_gap(self):
        """Where too much is held back the missing chunks are given up, and are refused when they come after all."""
        queue = Queue()
        assert take(queue, chunk(1), chunk(4, b"x" * 60), max_pending_bytes=100)[1:] == []
        steps = take(queue, chunk(5, b"x" * 60, version=2), max_pending_bytes=100)
        assert steps[0] == ChunkGap(2)
        assert take_all(steps) == [(4, 2), (5, 2)]
        assert refused(take(queue, chunk(2, version=3), chunk(6, version=3))) == [(2, "format_gap")]
        assert queue.next == 7

    def test_several(self):
        """The gaps are given up one after the other, no more of them than must be."""
        arrived = [chunk(number, b"x" * 60) for number in (2, 4, 6)]
        steps = take(Queue(), *arrived, max_pending_bytes=130)
        assert [step for step in steps if isinstance(step, ChunkGap)] == [ChunkGap(1)]
        assert take_all(steps) == [(2, 1)]
