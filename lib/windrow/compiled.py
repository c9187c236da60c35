"""Compile a function with numba, and keep the machine code for the next process where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import Any


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function when it is first called, and load numba no earlier: that takes as long as all else of a look.

    The code is kept in NUMBA_CACHE_DIR, beside the source, or in the user's home. An executor may have none of them: a
    service user has no home and may not write to what is installed. It then compiles in every process. What is compiled
    cannot call it: numba does not look behind it.
    """

    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        try:
            return njit(cache=True)(function)
        except RuntimeError:  # numba finds no place that it can write to
            return njit(function)

    @wraps(function)
    def call(*values: Any) -> Any:
        return machine_code()(*values)

    return call
