"""Compile a function with numba, and keep the machine code for the next process where there is a place for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function when it is first called.

    The code is kept in NUMBA_CACHE_DIR, beside the source, or in the user's home. An executor may have none of them: a
    service user has no home and may not write to what is installed. It then compiles in every process.
    """
    try:
        return njit(cache=True)(function)
    except RuntimeError:  # numba finds no place that it can write to
        return njit(function)
