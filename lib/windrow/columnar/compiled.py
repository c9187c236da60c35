"""Compile functions with numba, and cache the machine code for the next process if a directory is writable."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial, wraps
from threading import RLock
from types import FunctionType
from typing import Any

import numpy as np
import numpy.typing as npt

# The arrays that compiled functions take.
ByteArray = npt.NDArray[np.uint8]
Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.int32]  # row numbers and counts of rows: half the memory to go through
Words = npt.NDArray[np.uint64]

# The only option of numba here that its manual does not describe; a test fails when a version of numba ignores it.
UNCOUNTED: dict[str, Any] = {"_nrt": False}

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_ONE_AT_A_TIME = RLock()


def compile_lazily(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Compile a function on its first call, and import numba only then: it doubles the time of read-only commands.

    The code is cached in NUMBA_CACHE_DIR, next to the source, or in the user's home. An executor may have none of them,
    because a service user has no home and no write permission; it then compiles in every process. Compiled functions
    can call `inline` and `always_inlined` functions; numba does not notice a change in those of another file.
    They release the GIL. Hot loops use unsigned indexes, because numba checks at each use whether a signed index counts
    from the end.
    """

    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        source = _knowing(function)
        try:
            return njit(cache=True, nogil=True, **options)(source)
        except RuntimeError:  # numba finds no writable directory
            return njit(nogil=True, **options)(source)

    ready: Callable[..., Any] | None = None

    @wraps(function)
    def call(*values: Any) -> Any:
        nonlocal ready
        if ready is None:
            with _ONE_AT_A_TIME:  # so that two threads do not compile the same function
                ready = machine_code()
        return ready(*values)

    return call


def inline(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Make a function callable from compiled functions. It creates no arrays, so it counts no references to them.

    Counting them (`UNCOUNTED`) makes reading JSON take 5 times as long. The compiler decides whether to inline it.
    """

    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        return njit(**UNCOUNTED, **options)(_knowing(function))  # type: ignore[call-overload, no-any-return, unused-ignore]

    function.__dict__["machine_code"] = machine_code
    return function


# For a function that only fills arrays that it is given, and creates none: counting references to them would make
# batching as a whole take 1.5 to 2.9 times as long.
compiled_in_place: Decorator = partial(compile_lazily, **UNCOUNTED)
# For a function that is called once per row, and that is too long for the compiler to inline by itself.
always_inlined: Decorator = partial(inline, forceinline=True)


def _knowing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with access to the machine code of the functions that it calls."""
    named: dict[str, Any] = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    known = {name: function.machine_code() for name, function in named.items() if hasattr(function, "machine_code")}
    if not known:
        return function
    return wraps(function)(FunctionType(function.__code__, function.__globals__ | known, function.__name__))
