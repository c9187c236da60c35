"""Test topologies and formats: a harness with real tables, a manual clock, failure points; every cut of bytes."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.testing.clock import NOW, ManualClock
    from windrow.testing.formats import check_format
    from windrow.testing.harness import DriverCrash, Harness
    from windrow.testing.points import Point

__all__ = ["NOW", "DriverCrash", "Harness", "ManualClock", "Point", "check_format"]

_HOMES = {"NOW": "clock", "ManualClock": "clock", "Point": "points", "check_format": "formats"}  # else the harness


def __getattr__(name: str) -> Any:
    """Load a name when it is first used: a test of a topology needs no formats."""
    if name not in __all__:
        raise AttributeError(f"module 'windrow.testing' has no attribute {name!r}")
    return getattr(import_module(f"windrow.testing.{_HOMES.get(name, 'harness')}"), name)
