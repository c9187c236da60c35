"""Batching: the rules, and the pure kernel that applies them.

Loading the kernel's compiler takes half a second, so names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from windrow.batching.batched import Batched, State, batch
    from windrow.batching.rules import Rules, ShortWindowWarning

_HOMES = {
    "Batched": "batched",
    "Rules": "rules",
    "ShortWindowWarning": "rules",
    "State": "batched",
    "batch": "batched",
}
__all__ = ["Batched", "Rules", "ShortWindowWarning", "State", "batch"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
