"""Test topologies and formats: a harness with real tables, a manual clock, points of failure; every cut of bytes."""

from windrow.testing.clock import NOW, ManualClock
from windrow.testing.formats import check_format
from windrow.testing.harness import Crashed, Harness
from windrow.testing.points import Point

__all__ = ["NOW", "Crashed", "Harness", "ManualClock", "Point", "check_format"]
