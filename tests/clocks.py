"""The clock that tests move by hand, under the name that they know it by."""

from windrow.testing.clock import NOW, ManualClock

__all__ = ["NOW", "ManualClock"]
