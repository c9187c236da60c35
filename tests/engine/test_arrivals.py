from __future__ import annotations

from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.messages import log
from tests.silence import silence
from windrow.delta.log import DeltaRsLog
from windrow.source.conversion import MIN_BYTES, Conversion, next_versions

COUNTS = st.dictionaries(st.integers(0, 12), st.none() | st.integers(0, 6), max_size=10)


class TestNextVersions:
    @given(COUNTS, st.integers(-1, 12), st.integers(1, 12))
    def test_next_ones_without_a_gap(self, counts, after, most):
        """The next slice takes the versions right after the last one read, in order, and at least one if there is
        any.
        """
        ahead = sorted(version for version in counts if version > after)
        chosen = next_versions(counts, after, most)
        assert chosen == list(islice(ahead, len(chosen)))
        assert bool(chosen) == bool(ahead)

    @given(COUNTS, st.integers(-1, 12), st.integers(1, 12))
    def test_as_many_as_are_allowed(self, counts, after, most):
        """A slice holds at most so many messages unless it is one version, and one more version would be too much; a
        version whose count is not known is with empty ones at most.
        """
        ahead = sorted(version for version in counts if version > after)
        chosen = next_versions(counts, after, most)
        sizes = [most if counts[version] is None else counts[version] for version in ahead]
        assert len(chosen) <= 1 or sum(sizes[: len(chosen)]) <= most
        assert len(chosen) == len(ahead) or sum(sizes[: len(chosen) + 1]) > most

    def test_of_unknown_counts(self, world, embedded):
        """Versions whose counts are unknown are weighed by their bytes, if these are known."""
        conversion = Conversion.of(world.settings(embedded), DeltaRsLog(world.depot).table())
        counts = {1: 4, 2: None, 3: None, 4: None}
        sizes = {2: 3 * MIN_BYTES, 3: 3 * MIN_BYTES}
        assert conversion.next_versions(counts, sizes, 0, 10) == [1, 2, 3]
        assert conversion.next_versions(counts, sizes, 0, 9) == [1, 2]
        assert conversion.next_versions(counts, {}, 0, 10) == [1]
        assert conversion.next_versions(counts, sizes, 3, 10) == [4]

    def test_to_the_message(self):
        """Versions that hold together just what is allowed are one slice; one message more, and they are two."""
        assert next_versions({1: 3, 2: 3}, 0, 6) == [1, 2]
        assert next_versions({1: 3, 2: 4}, 0, 6) == [1]


@pytest.mark.parametrize("names", [("operationMetrics",), ("operationMetrics", "stats")], ids=["rows", "bytes"])
@pytest.mark.slow_on_spark
def test_silent_depot(world, engine, names):
    """A depot whose commits do not say how many rows they added is read like another one: many versions in a
    microbatch.
    """
    world.publish(*log(versions=12))
    silence(world.depot, *names)
    world.runner(engine).once()
    assert [len(row["versions"]) for row in world.history()] == [12]
    world.publish(*log(versions=3, seed=8))
    silence(world.depot, *names)
    world.runner(engine).once()
    assert [len(row["versions"]) for row in world.history()] == [12, 3]
    assert world.canonical() == world.expected()
