"""Compile functions with numba, and cache the machine code for the next process if a directory is writable."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from threading import RLock
from types import FunctionType
from typing import Any

# The only option of numba here that its manual does not have; a test tells when a numba no longer heeds it.
UNCOUNTED: dict[str, Any] = {"_nrt": False}

_ONE_AT_A_TIME = RLock()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call, and import numba no earlier: that doubles the time of read-only commands.

    The code is cached in NUMBA_CACHE_DIR, next to the source, or in the user's home. An executor may have none of them,
    because a service user has no home and no write permission; it then compiles in every process. Compiled functions
    can call functions that are `inlined` or `always_inlined`; numba does not notice a change in those of another file.
    They release the GIL. Hot loops use unsigned indexes, because a signed one is checked at each use for counting from
    the end.
    """
    return _compiled(function)


def compiled_in_place(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function that fills the arrays it is given and makes none, as `compiled` does.

    It counts no references to arrays (`UNCOUNTED`): with them, batching as a whole takes 1.5 to 2.9 times as long.
    """
    return _compiled(function, **UNCOUNTED)


def _compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        source = _knowing(function)
        try:
            return njit(cache=True, nogil=True, **options)(source)
        except RuntimeError:  # numba finds no writable directory
            return njit(nogil=True, **options)(source)

    @wraps(function)
    def call(*values: Any) -> Any:
        with _ONE_AT_A_TIME:  # so that two threads do not compile the same function
            ready = machine_code()
        return ready(*values)

    return call


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function callable from `compiled` functions. It creates no arrays, so it counts no references to them.

    With them (`UNCOUNTED`), reading JSON as a whole takes 5 times as long. The compiler decides whether to inline it.
    """
    return _inlined(function)


def always_inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function callable from `compiled` functions, and inline every call.

    Use it for a function that is called once per row and too long for the compiler to inline.
    """
    return _inlined(function, forceinline=True)


def _inlined(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    @cache
    def machine_code() -> Callable[..., Any]:
        from numba import njit

        return njit(**UNCOUNTED, **options)(_knowing(function))  # type: ignore[call-overload, no-any-return, unused-ignore]

    function.__dict__["machine_code"] = machine_code
    return function


def _knowing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that knows the machine code of what it calls."""
    named: dict[str, Any] = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    known = {name: one.machine_code() for name, one in named.items() if hasattr(one, "machine_code")}
    if not known:
        return function
    return wraps(function)(FunctionType(function.__code__, function.__globals__ | known, function.__name__))
