"""Test topologies: a harness with real tables, a manual clock, and points at which a microbatch can fail."""

from windrow.testing.clock import NOW, ManualClock
from windrow.testing.harness import Crashed, Harness
from windrow.testing.points import Point

__all__ = ["NOW", "Crashed", "Harness", "ManualClock", "Point"]
