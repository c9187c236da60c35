"""What tests of topologies need, the tests of Windrow itself first: a harness, a clock, points at which to fail."""

from windrow.testing.clock import NOW, ManualClock
from windrow.testing.harness import Crashed, Harness
from windrow.testing.points import Point

__all__ = ["NOW", "Crashed", "Harness", "ManualClock", "Point"]
